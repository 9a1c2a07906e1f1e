"""Statements that were sent while their guard was idle, and reached the database after the scan of a build."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction

from bloomguard.exceptions import StoreError
from bloomguard.guards import registry
from bloomguard.state import table as state
from bloomguard.state.row import FENCED
from bloomguard.writes import consequences, fencing, statements
from tests.shop.models import Product
from tests.support import database

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def late(each_database, fresh, clock, monkeypatch):
    """``late()``: in this block a build begins before a statement reaches the database, which takes ``step`` seconds.

    After that the state rows cannot be changed if they are ``gone``, and the statement raises ``error``.
    """
    Product.objects.create(pk=6, name="x")
    consequences.caches.clear()
    clock.now += 10

    def refuse(*arguments):
        raise DatabaseError("the database is gone")

    @contextmanager
    def late(error=None, gone=False, step=10):
        with monkeypatch.context() as patches:

            def hold_up(execute, sql, params, many, context):
                if "shop_product" not in sql or state.table.current("product").building:
                    return execute(sql, params, many, context)
                assert state.table.swap(state.table.current("product"), building="another") is not None
                clock.now += step
                found = execute(sql, params, many, context)
                if gone:
                    patches.setattr(state.StateTable, "fence", refuse)
                    patches.setattr(fencing, "_fence_within", refuse)
                if error is not None:
                    raise error
                return found

            with connections[database.current].execute_wrapper(hold_up):
                yield

    return late


def create():
    Product.objects.create(pk=7, name="x")


def update():
    Product.objects.filter(pk=6).update(id=7)


def raw():
    with connections[database.current].cursor() as cursor:
        cursor.execute("INSERT INTO shop_product (id, name) VALUES (7, 'x')")


each_write = pytest.mark.parametrize("write", [create, update, raw], ids=lambda write: write.__name__)


def is_there():
    return Product.objects.filter(pk=7).exists()


def building():
    return state.table.current("product").building


@each_write
def test_what_is_saved_without_add_and_fence_is_fenced_as_soon_as_possible(late, clock, write):
    """Under autocommit nothing undoes it, and the build would be published without it."""
    with late(gone=True):
        with pytest.raises(StoreError, match=r"fenced in time: .+\. Requests for them .*Do not write them again"):
            write()
        assert not state.table.renew()
    assert is_there()
    assert building()

    clock.now += 2
    assert state.table.renew()

    assert not building()
    assert state.table.lease("product").status == FENCED
    assert not state.table.overdue


@each_write
@pytest.mark.parametrize("step", [10, -900], ids=["long", "by a clock that went back"])
def test_what_is_saved_too_late_is_added_or_fenced(late, write, step):
    """Nobody knows how long a statement took by a clock that went back."""
    with late(step=step):
        write()

    assert is_there()
    assert not building()
    assert state.table.current("product").status == FENCED


def test_a_write_waits_no_longer_for_its_fence_if_the_clock_goes_back(each_database, fresh, clock, monkeypatch):
    """Two seconds, and not until the clock is where it was."""
    slept = []
    monkeypatch.setattr(state.table, "sleep", slept.append)
    pending = fencing.PendingFence(state.table, "product", state.table.current("product"), "for a test")
    pending.note_commit()
    pending._after = None  # it could not be read
    clock.now -= 3_600
    pending.finish()

    assert slept == [state.EXPIRY_SECONDS]


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_who_fences_waits_no_longer_if_the_clock_goes_back(each_database, fresh, clock, monkeypatch):
    """Here the fence is a statement of its own, and its time is taken before the rows are read again."""
    assert state.table.swap(state.table.current("product"), building="one") is not None
    clock.now += 10
    slept, fence, renew = [], state.table.fence, state.table.renew

    def go_back(**given):
        clock.now -= 3_600
        monkeypatch.setattr(state.table, "renew", renew)
        return renew(**given)

    def fence_first(*given):
        fence(*given)
        monkeypatch.setattr(state.table, "renew", go_back)

    monkeypatch.setattr(state.table, "sleep", slept.append)
    monkeypatch.setattr(state.table, "fence", fence_first)
    fencing.fence({registry["product"]: "for a test"}, each_database)

    assert slept == [state.EXPIRY_SECONDS]


@each_write
def test_in_a_transaction_it_is_undone(late, write):
    """Also if the project catches the error, and commits."""
    with late(gone=True), transaction.atomic(using=database.current), pytest.raises(StoreError, match="is refused"):
        write()

    assert not is_there()
    assert building()


@each_write
@pytest.mark.parametrize("error", [OperationalError("the connection was lost"), KeyboardInterrupt()], ids=type)
def test_what_fails_may_be_saved_all_the_same(late, write, error):
    """The answer was lost, or nobody waited for it, but the database has committed the row."""
    with late(error), pytest.raises(type(error)):
        write()

    assert is_there()
    assert not building()


def test_what_the_database_refuses_is_not_saved(late):
    """Nothing is missing in the build, so it goes on."""
    with late(), pytest.raises(IntegrityError):
        Product.objects.create(pk=6, name="again")

    assert building()


def test_what_cannot_be_read_back_is_fenced(late, monkeypatch):
    """The row is saved, but its key is not known."""

    def fail(*arguments):
        raise OperationalError("the connection was lost")

    monkeypatch.setattr(statements, "_problem", fail)

    with late(), pytest.raises(OperationalError):
        create()

    assert is_there()
    assert not building()
