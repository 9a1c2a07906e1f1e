"""Transactions that end in no usual way: the connection is closed, Ctrl-C comes, the COMMIT is not Django's.

``KeyboardInterrupt`` stands for all exceptions that may come at any line: of a time limit, or of a greenlet's end.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connections, transaction

from bloomguard.exceptions import StoreError
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import fencing
from bloomguard.writes.raw import watch
from tests.shop.models import Article, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.orm_writes import atomic

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ABSENT, MAYBE, UNKNOWN = Verdict.ABSENT, Verdict.MAYBE, Verdict.UNKNOWN


def connection() -> Any:
    return connections[database.current]


# -- what was to be discarded after a COMMIT that never came


@pytest.fixture
def counted(each_database, fresh, clock):
    """A guard that discards; there are a and b."""
    for slug in "ab":
        Article.objects.create(slug=slug)
    with registered(Article, name="counted", lookup="slug", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        yield guard


@contextmanager
def interrupted(monkeypatch, name, *, is_done):
    """Ctrl-C comes in this method of Django's connection, once; ``is_done``: after it has done its work."""
    own, left = getattr(type(connection()), name), [None]

    def method(self, *args):
        if left:
            left.clear()
            if is_done:
                own(self, *args)
            raise KeyboardInterrupt
        return own(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(type(connection()), name, method)
        yield


def closed(monkeypatch):
    """By the project, as after a fork, or by its server."""
    with atomic():
        Article.objects.filter(slug="a").delete()
        connection().close()


def all_closed(monkeypatch):
    """All of them, and the project commits."""
    with atomic():
        Article.objects.filter(slug="a").delete()
        connections.close_all()
    transaction.commit(using=database.current)


def dropped(monkeypatch):
    """Left open, as in a child that shares it with its parent."""
    with atomic():
        Article.objects.filter(slug="a").delete()
        raw, connection().connection = connection().connection, None
        connection().closed_in_transaction = True
    raw.close()


def given_back(monkeypatch):
    """To a pool, which gives the same one to the next."""
    raw = connection().connection

    def give_back(self):
        raw.rollback()

    with monkeypatch.context() as patch:
        patch.setattr(type(connection()), "_close", give_back)
        with atomic():
            Article.objects.filter(slug="a").delete()
            connection().close()
    monkeypatch.setattr(type(connection()), "get_new_connection", lambda self, parameters: raw)
    connection().ensure_connection()
    assert connection().connection is raw
    monkeypatch.undo()


def interrupted_rollback(monkeypatch):
    """Which is done."""
    with suppress(KeyboardInterrupt), interrupted(monkeypatch, "_rollback", is_done=True), atomic():
        Article.objects.filter(slug="a").delete()
        transaction.set_rollback(True, using=database.current)


def interrupted_commit(monkeypatch):
    """Which PostgreSQL answers by a rollback: the driver cancels what it has sent."""
    own = type(connection())._rollback
    with monkeypatch.context() as patch:
        patch.setattr(type(connection()), "_commit", lambda self: own(self))
        with suppress(KeyboardInterrupt), interrupted(patch, "_commit", is_done=True), atomic():
            Article.objects.filter(slug="a").delete()


def interrupted_rollback_to_a_savepoint(monkeypatch):
    """Which is done, and the project goes on; a later one is no reason to forget that."""
    with atomic():
        savepoint = connection().savepoint()
        Article.objects.filter(slug="a").delete()

        def stop(execute, sql, *args):
            if sql.startswith("ROLLBACK TO"):
                execute(sql, *args)
                raise KeyboardInterrupt
            return execute(sql, *args)

        with suppress(KeyboardInterrupt), connection().execute_wrapper(stop):
            connection().savepoint_rollback(savepoint)
        with suppress(ValueError), atomic():
            Group.objects.create(name="undone")
            raise ValueError


@pytest.mark.parametrize(
    "end",
    [
        closed,
        all_closed,
        dropped,
        given_back,
        interrupted_rollback,
        interrupted_commit,
        interrupted_rollback_to_a_savepoint,
    ],
    ids=lambda end: end.__name__,
)
@pytest.mark.parametrize("each_database", database.FORGETTING, indirect=True)
def test_a_delete_that_was_never_committed_discards_nothing(counted, end, monkeypatch):
    """Nor does a later transaction of the same connection, whatever it writes."""
    end(monkeypatch)
    with atomic():
        Group.objects.create(name="later")

    assert Group.objects.filter(name="later").exists()
    assert Article.objects.filter(slug="a").exists()
    assert counted.verdict("a") is MAYBE
    with atomic():
        Article.objects.filter(slug="b").delete()
    assert counted.verdict("b") is ABSENT
    assert connection().execute_wrappers == [watch]


# -- a refused write in a block that ends nothing


def create():
    """In a block, as Django's for a model of several tables."""
    with transaction.atomic(using=database.current, savepoint=False):
        Product.objects.create(pk=90_001, name="new")


def create_in_bulk():
    Product.objects.bulk_create([Product(pk=90_001, name="new"), Product(pk=90_002, name="new")], batch_size=1)


def update():
    with transaction.atomic(using=database.current, savepoint=False):
        Product.objects.filter(pk=1).update(id=90_001)


def raw_sql():
    with transaction.atomic(using=database.current, savepoint=False), connection().cursor() as cursor:
        cursor.execute("INSERT INTO shop_product (id, name) VALUES (90001, 'raw')")


@pytest.fixture(params=["refused", "interrupted"])
def harmed(request, monkeypatch):
    """``with harmed():`` no add and no fence is confirmed, or Ctrl-C comes in the middle of both."""

    def fail(*args, **named):
        raise DatabaseError("no fence") if request.param == "refused" else KeyboardInterrupt

    @contextmanager
    def harmed():
        with monkeypatch.context() as patch, suppress(StoreError, KeyboardInterrupt):
            for owner, name in [(fencing, "_fence_within"), (state.StateTable, "fence")]:
                patch.setattr(owner, name, fail)
            add = (lambda *args, **named: False) if request.param == "refused" else fail
            patch.setattr("bloomguard.state.active_filter.ActiveFilter.add", add)
            yield
            pytest.fail("the write was not refused")

    return harmed


@pytest.mark.parametrize("write", [create, create_in_bulk, update, raw_sql], ids=lambda write: write.__name__)
def test_a_block_in_a_transaction_by_hand_commits_no_refused_write(product, harmed, write):
    """Django's ``commit()`` does not ask whether a block before it was marked for rollback."""
    connection().set_autocommit(False)
    try:
        Group.objects.create(name="kept")
        with harmed():
            write()
        transaction.commit(using=database.current)
    finally:
        connection().rollback()
        connection().set_autocommit(True)

    assert Group.objects.filter(name="kept").exists()
    assert not Product.objects.filter(pk__gte=90_000).exists()
    assert Product.objects.filter(pk=1).exists()
    assert product.verdict(1) is not ABSENT


def test_a_refused_bulk_create_is_not_committed_by_the_block_around_it(product, harmed):
    """Django 6.1 puts no block of its own around one."""
    rows = Product.objects.all()
    with atomic(), harmed():
        rows._batched_insert([Product(pk=90_001, name="new")], Product._meta.concrete_fields, None)

    assert not Product.objects.filter(pk__gte=90_000).exists()


# -- a COMMIT that is not sent as one


def switched_on():
    """SQLite, MySQL and MariaDB commit when autocommit is switched on."""
    connection().set_autocommit(True)


def by_a_script():
    """Python's driver commits before a script."""
    with connection().cursor() as cursor:
        cursor.executescript("SELECT 1")


def by_a_script_that_begins():
    """The transaction that the script leaves open is another one."""
    with connection().cursor() as cursor:
        cursor.executescript("BEGIN; SELECT 1")


@pytest.mark.parametrize("end", [switched_on, by_a_script, by_a_script_that_begins], ids=lambda end: end.__name__)
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_every_way_to_commit_waits_for_the_fence(product, clock, end):
    """Whoever can see the row knows of the fence that came with it."""
    connection().set_autocommit(False)
    try:
        with connection().cursor() as cursor:
            cursor.execute("INSERT INTO shop_product (id, name) VALUES (90001, 'raw')")
        began = clock.now
        end()
        waited = clock.now - began
    finally:
        connection().rollback()
        connection().set_autocommit(True)

    assert waited >= fencing.EXPIRY_SECONDS
    assert Product.objects.filter(pk=90_001).exists()
    assert state.table.current("product").status == FENCED
    assert product.verdict(90_001) is UNKNOWN


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_transaction_that_switching_autocommit_on_has_committed_is_over(product):
    """The next one has nothing of it."""
    connection().set_autocommit(False)
    with connection().cursor() as cursor:
        cursor.execute("INSERT INTO shop_product (id, name) VALUES (90001, 'raw')")
    connection().set_autocommit(True)

    assert connection().execute_wrappers == [watch]
    assert not {"_commit", "_rollback", "_close", "_set_autocommit"} & set(vars(connection()))
