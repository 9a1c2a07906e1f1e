"""Rows that come with the COMMIT, on PostgreSQL: of deferred triggers, open cursors and tables that inherit by now.

A build may begin and end between the statement that causes them and its COMMIT, as nothing tells it to wait.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from unittest.mock import patch

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, OperationalError, connections, transaction

from bloomguard.exceptions import StoreError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.table import EXPIRY_SECONDS
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import raw
from tests.shop.models import Product
from tests.support.guarding import registered
from tests.support.orm_writes import atomic, by_hand

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.parametrize("each_database", ["postgresql"], indirect=True),
]

WRITES = "INSERT INTO shop_product (id, name) VALUES (7, 'x')"
MADE = f"""
CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {WRITES}; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON auth_group DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION later();
CREATE FUNCTION makes() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN {WRITES}; RETURN 7; END $$
"""


def run(sql):
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def site(each_database, fresh, clock):
    """The guard of products, and a database that writes them later."""
    Product.objects.create(pk=1, name="one")
    run(MADE)
    clock.now += 10
    yield registry["product"]
    run("DROP FUNCTION later CASCADE; DROP FUNCTION makes; DROP TABLE IF EXISTS child")


@pytest.fixture
def rebuild(site, clock):
    """Build its filter, as another process does it, and those of other guards."""

    def rebuild(*others):
        def work():
            try:
                for guard in (site, *others):
                    Rebuild(guard, sleep=clock.sleep).run()
            finally:
                connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert status() == ARMED
        clock.now += 10

    return rebuild


def status():
    return state.table.current("product").status


def attached():
    """By a table that becomes a partition, with the rows that it has. Elsewhere the build waits for the partition."""
    run("CREATE TABLE child (id bigint NOT NULL, name varchar(100) NOT NULL)")
    run("INSERT INTO child VALUES (7, 'x')")
    run("ALTER TABLE child INHERIT shop_product")
    yield


def fetched():
    """By a cursor that was opened before the rebuild."""
    run("DECLARE mine CURSOR FOR SELECT makes()")
    yield
    run("FETCH 1 FROM mine")


def deferred():
    """By a trigger that fires at the COMMIT."""
    Group.objects.create(name="x")
    yield


@pytest.mark.parametrize("begin", [atomic, by_hand])
@pytest.mark.parametrize("is_armed", [True, False], ids=["armed", "idle"])
@pytest.mark.parametrize("write", [deferred, fetched, attached])
def test_a_build_that_ends_before_the_commit_does_not_answer(site, rebuild, write, is_armed, begin):
    """The guard is fenced again, before the row can be seen."""
    if is_armed:
        rebuild()
    with begin():
        steps = write()
        next(steps)
        rebuild()
        next(steps, None)

    assert Product.objects.filter(pk=7).exists()
    assert status() == FENCED
    assert site.verdict(7) is Verdict.UNKNOWN


@pytest.mark.parametrize("is_armed", [True, False], ids=["armed", "idle"])
def test_without_a_build_nothing_is_fenced_again(site, rebuild, clock, is_armed):
    """Who waited at the statement does not wait at the COMMIT."""
    if is_armed:
        rebuild()
    with atomic():
        Group.objects.create(name="x")
        before, waited = state.table.current("product"), clock.now
    assert state.table.current("product") == before
    assert clock.now == waited


def test_a_commit_waits_once_for_all_its_guards(site, rebuild, clock):
    """As a statement does."""
    with registered(Product, name="second", lookup="name") as second:
        rebuild(second)
        with transaction.atomic("postgresql"):
            Group.objects.create(name="x")
            rebuild(second)
            began = clock.now

        assert status() == state.table.current("second").status == FENCED
        assert clock.now - began <= EXPIRY_SECONDS


def test_what_is_rolled_back_fences_nothing(site, rebuild):
    """Not at its end."""
    with atomic():
        Group.objects.create(name="x")
        rebuild()
        transaction.set_rollback(True, using="postgresql")

    assert status() == ARMED


def test_a_fence_that_fails_stops_the_commit(site, rebuild, monkeypatch):
    """The writer gets the error, and no row is left."""

    def refuse(*arguments):
        raise DatabaseError("the database is gone")

    def write():
        with atomic():
            Group.objects.create(name="x")
            rebuild()
            monkeypatch.setattr(state.StateTable, "fence", refuse)

    with pytest.raises(StoreError):
        write()
    assert not Group.objects.exists()
    assert not connections["postgresql"].in_atomic_block
    assert not connections["postgresql"].connection.info.transaction_status


@pytest.mark.parametrize("is_armed", [True, False], ids=["armed", "idle"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "answer lost"])
def test_a_commit_that_takes_longer_than_a_build_fences_afterwards(site, rebuild, monkeypatch, is_lost, is_armed):
    """The row was seen for a moment. Also if the writer gets an error, as the connection was lost before the answer."""
    if is_armed:
        rebuild()
    commit = connections["postgresql"]._commit

    def slow():
        rebuild()
        commit()
        if is_lost:
            raise OperationalError("the connection was lost")

    monkeypatch.setattr(connections["postgresql"], "_commit", slow)
    with pytest.raises(OperationalError) if is_lost else nullcontext(), atomic():
        Group.objects.create(name="x")

    assert status() == FENCED
    assert Product.objects.filter(pk=7).exists()


@pytest.mark.parametrize("is_armed", [True, False], ids=["armed", "idle"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "answer lost"])
def test_a_commit_by_hand_that_takes_longer_fences_afterwards(site, rebuild, is_lost, is_armed):
    """Before the connection sends another statement: it may be closed instead."""
    if is_armed:
        rebuild()

    def slow(execute, sql, *args):
        if sql != "COMMIT":
            return execute(sql, *args)
        rebuild()
        result = execute(sql, *args)
        if is_lost:
            raise OperationalError("the connection was lost")
        return result

    with pytest.raises(OperationalError) if is_lost else nullcontext(), connections["postgresql"].execute_wrapper(slow):
        run("BEGIN")
        Group.objects.create(name="x")
        run("COMMIT")

    assert status() == FENCED
    assert Product.objects.filter(pk=7).exists()


@pytest.mark.parametrize("took", [1.2, -900], ids=["long", "by a clock that went back"])
@pytest.mark.parametrize("is_armed", [True, False], ids=["armed", "idle"])
def test_a_build_that_begins_while_the_commit_waits_for_its_fence_is_ended(
    site, rebuild, clock, monkeypatch, is_armed, took
):
    """A receiver of `guard_fenced` may begin it at once. It waits for nothing that the COMMIT has yet to write."""
    if is_armed:
        rebuild()
    connection = connections["postgresql"]
    commit, sleep = connection._commit, state.table.sleep

    def begin_a_build(seconds):
        monkeypatch.setattr(state.table, "sleep", sleep)
        assert state.table.swap(state.table.current("product"), building="another") is not None
        sleep(seconds)

    def slow():
        clock.now += took
        commit()

    monkeypatch.setattr(connection, "_commit", slow)
    with atomic():
        Group.objects.create(name="x")
        rebuild()
        monkeypatch.setattr(state.table, "sleep", begin_a_build)

    assert Product.objects.filter(pk=7).exists()
    assert state.table.current("product").building == ""


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "within"])
def test_a_commit_by_a_method_kept_from_before_fences_too(site, rebuild, is_first):
    """A project may keep ``connection.commit``, of before its transaction or from the one before."""
    connection = connections["postgresql"]
    commit = connection.commit
    connection.set_autocommit(False)
    try:
        if not is_first:
            Group.objects.create(name="first")
            commit = connection.commit
            transaction.rollback(using="postgresql")
        Group.objects.create(name="x")
        rebuild()
        commit()
    finally:
        connection.set_autocommit(True)

    assert Product.objects.filter(pk=7).exists()
    assert status() == FENCED


@pytest.mark.parametrize("name", ["commit", "_commit", "rollback", "_rollback"])
@pytest.mark.parametrize("ends_with", ["COMMIT", "ROLLBACK"])
def test_a_method_that_the_project_has_replaced_is_put_back(site, rebuild, name, ends_with):
    """As ``mock.patch.object`` does it in a project's tests, around the transaction or inside of it."""
    connection, own = connections["postgresql"], {name: vars(connections["postgresql"]).get(name)}

    with patch.object(connection, name, wraps=getattr(connection, name)) as replaced:
        with atomic():
            Group.objects.create(name="x")
            rebuild()
            transaction.set_rollback(ends_with == "ROLLBACK", using="postgresql")
        assert replaced.called is (ends_with.lower() in name)
        assert vars(connection)[name] is replaced
    assert status() == (FENCED if ends_with == "COMMIT" else ARMED)
    assert {name: vars(connection).get(name)} == own

    Product.objects.filter(pk=7).delete()
    with atomic():
        Group.objects.create(name="y")
        with patch.object(connection, name):
            pass
        transaction.set_rollback(ends_with == "ROLLBACK", using="postgresql")
    with atomic():
        assert connection.execute_wrappers == [raw.watch]
        assert {name: vars(connection).get(name)} == own
