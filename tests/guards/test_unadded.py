"""What a transaction has written, and no filter has yet, is absent for nobody, however the guard is asked."""

from __future__ import annotations

import threading

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.db import connections, transaction

from bloomguard import adding, aget_or_load, get_or_load
from bloomguard.guards import registry
from bloomguard.guards.doubts import unadded
from bloomguard.lookups.context import guarded_lookups
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import WRITING, Verdict
from tests.shop.models import Product
from tests.support import database

pytestmark = [
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("each_database", "fresh"),
]


@pytest.fixture
def guard(clock):
    """A guard of products; there is 7."""
    Product.objects.create(pk=7)
    Rebuild(registry["product"], sleep=clock.sleep).run()
    caches["default"].clear()
    assert registry["product"].verdict(9) is Verdict.ABSENT
    return registry["product"]


def insert():
    with connections[database.current].cursor() as cursor:
        cursor.execute("INSERT INTO shop_product (id, name) VALUES (9, 'raw')")


async def aload(pk):
    return "row"


ASKED = {
    "verdict": lambda guard: guard.verdict(9) is not Verdict.ABSENT,
    "averdict": lambda guard: async_to_sync(guard.averdict)(9) is not Verdict.ABSENT,
    "filter_existing": lambda guard: guard.filter_existing([9, 7]) == [9, 7],
    "afilter_existing": lambda guard: async_to_sync(guard.afilter_existing)([9, 7]) == [9, 7],
    "many": lambda guard: 9 in async_to_sync(guard.afilter_existing)(range(2_000)),
    "get_or_load": lambda guard: get_or_load("product", 9, lambda pk: "row") == "row",
    "aget_or_load": lambda guard: async_to_sync(aget_or_load)("product", 9, aload) == "row",
    "lookup": lambda guard: looked_up(),
}


def looked_up():
    with guarded_lookups():
        return Product.objects.filter(pk=9).exists()


@pytest.mark.parametrize("adds", [False, True], ids=["raw", "adding"])
def test_a_row_of_the_own_transaction_is_not_absent(guard, adds):
    """Raw SQL has written it, within ``adding`` or not; after the block it is in the filter, or the guard is fenced."""

    def denied():
        return [way for way, passes in ASKED.items() if not passes(guard)]

    with transaction.atomic(using=database.current):
        if adds:
            with adding(guard, database.current) as add:
                insert()
                assert denied() == []
                add([9])
        else:
            insert()
            assert denied() == []
        assert denied() == []
    assert guard.verdict(9) is not Verdict.ABSENT
    assert not unadded.may_have("product")


def test_a_row_of_a_batch_is_not_absent(guard, monkeypatch):
    """``bulk_create`` asks fields and databases between its statements, after the last of which it may add its keys."""
    said = []

    def note(execute, sql, params, many, context):
        if sql.startswith("INSERT INTO"):
            said.append(guard.verdict(9))
        return execute(sql, params, many, context)

    with connections[database.current].execute_wrapper(note):
        Product.objects.bulk_create([Product(pk=9), Product(pk=10)], batch_size=1)
    assert len(said) == 2
    assert said[1] is not Verdict.ABSENT
    assert not unadded.may_have("product")


def test_a_pass_during_a_write_is_no_fence(guard):
    """An armed guard that passes for the length of a write gives a reason that no rebuild is said to cure."""
    writer = threading.Event()
    unadded.begin(writer, ["product"])
    assert guard._runtime.decide(8) == async_to_sync(guard._runtime.adecide)(8) == WRITING
    unadded.end(writer)
    assert guard.verdict(8) is Verdict.ABSENT


@pytest.mark.parametrize("adds", [False, True], ids=["raw", "adding"])
def test_what_was_rolled_back_keeps_no_guard_from_answering(guard, adds, clock):
    """An error in the block ends what the guard knew of it."""

    def write():
        with transaction.atomic(using=database.current):
            if adds:
                with adding(guard, database.current):
                    insert()
                    raise ZeroDivisionError
            insert()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert not unadded.may_have("product")
    Rebuild(guard, sleep=clock.sleep).run()
    assert guard.verdict(9) is Verdict.ABSENT


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_the_handler_of_a_signal_may_write_in_the_middle():
    """It runs in the same thread, which holds the lock."""
    handler, writer, left = threading.Event(), threading.Event(), []  # any two objects

    def names():
        yield "article"
        unadded.begin(handler, ["product"])  # as the handler does, if it writes rows
        left.append(unadded.may_have("product"))
        unadded.end(handler)

    def write():
        unadded.begin(writer, names())
        left.append(unadded.may_have("article"))
        unadded.end(writer)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(60)

    assert left == [True, True]
    assert not unadded.writers
