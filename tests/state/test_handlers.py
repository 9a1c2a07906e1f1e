"""The handler of a signal, and a ``__del__``, may ask and write in the middle of any function of their thread.

A lock that their thread holds must not stop them for ever, and what they change must not be lost to that function.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connections, transaction

from bloomguard import get_or_load, process
from bloomguard.guards import registry
from bloomguard.guards.counters import counts
from bloomguard.guards.places import Schemas
from bloomguard.lookups.cache_aside import _Call
from bloomguard.lookups.context import guarded_lookups
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.negative_cache import NegativeCache
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import StoreHandler
from bloomguard.writes.consequences import Definitions
from tests.conftest import forget
from tests.shop.models import Product
from tests.support import database

pytestmark = [
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("each_database", "fresh"),
]


PK = 7_000_000  # of a row, to which no sequence comes


def change_definitions():
    with transaction.atomic(using=database.current), connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE handled (id integer)")
        Product.objects.create()
    with connections[database.current].cursor() as cursor:
        cursor.execute("DROP TABLE handled")
    Product.objects.create()


def ask_first():
    forget()
    registry["product"].verdict(-9)


def write_first():
    forget()
    Product.objects.create()


def load():
    caches["default"].clear()
    get_or_load("product", PK, lambda pk: "row")


def remember(*keys: bytes):
    """As the guard does after a query has found no row."""
    active = registry["product"]._runtime.active_filter
    for key in keys:
        active.negative_cache.is_worth_asking(key, active.answered_last)
        active.negative_cache.remember(key, active.answered_last)
    active.negative_cache.tidy([active.answered_last])


def fail():
    active = registry["product"]._runtime.active_filter
    active._stop_using(OSError("a disk"), active.answered_last)
    forget()


#: The functions that hold a lock, and what leads there.
SECTIONS: dict[str, tuple[list[Any], Callable[[], object]]] = {
    "process": ([process._append], lambda: process.own_lock(Schemas(), "_lock")),
    "store": ([StoreHandler.__getitem__, StoreHandler._make], ask_first),
    "open": ([ActiveFilter.generation, ActiveFilter._tidy, NegativeCache.tidy], ask_first),
    "open to add": ([ActiveFilter.generation, ActiveFilter._tidy], write_first),
    "fail": ([ActiveFilter._stop_using], fail),
    "forget": ([ActiveFilter.forget], registry["product"]._runtime.active_filter.forget),
    "remember": (
        [NegativeCache.is_worth_asking, NegativeCache.remember, NegativeCache._keep, NegativeCache.tidy],
        lambda: remember(b"the  one", b"theother"),
    ),
    "schemas": ([Schemas._copy, Schemas._read], ask_first),
    "definitions": ([Definitions.changed, Definitions.are_changing, Definitions._advance], change_definitions),
    "flights": ([_Call.join, _Call.land], load),
    "counts": ([type(counts).read], counts.read),
}


@pytest.mark.parametrize(
    ("each_database", "section"),
    [("postgresql" if section == "schemas" else "sqlite", section) for section in SECTIONS],
    indirect=["each_database"],
)
def test_a_handler_may_ask_and_write_in_the_middle_of(section, build):
    """At each line of a section, one line at a time: after a handler has run, the function may not come to the next."""
    Product.objects.create(pk=PK)
    build("product")
    guard = registry["product"]
    functions, lead_there = SECTIONS[section]
    codes = {function.__code__ for function in functions}
    seen: set[tuple[Any, int]] = set()
    ran: list[tuple[Any, int]] = [(None, 0)]
    written: list[int] = []
    errors: list[BaseException] = []

    def handle(frame: FrameType, event: str, argument: Any) -> Any:
        place = frame.f_code, frame.f_lineno
        if frame.f_code not in codes:
            return None
        if event == "line" and place not in seen and not ran:
            seen.add(place)
            ran.append(place)
            try:
                with guarded_lookups():
                    written.append(Product.objects.create().pk)
                    assert Product.objects.filter(pk=written[-1]).exists()
                    assert not Product.objects.filter(pk=-len(written)).exists()
                get_or_load("product", written[-1], lambda pk: "row")
                remember(b"%8d" % len(written))
                Schemas()  # which has a lock, as what is made when a guard is first asked
                counts.read()
            except BaseException as error:
                errors.append(error)
        return handle

    def run():
        sys.settrace(handle)
        try:
            while ran:
                ran.clear()
                lead_there()
        except BaseException as error:
            errors.append(error)
        finally:
            sys.settrace(None)
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)

    assert not thread.is_alive()
    assert errors == []
    assert len(written) > 1
    assert all(guard.verdict(pk) is not Verdict.ABSENT for pk in written)
