"""The generation before is written to until no process answers from it; what a dead builder leaves is removed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild, clear_away
from bloomguard.state import table as states
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import ABSENT, MAYBE
from bloomguard.stores import stores
from tests.conftest import forget
from tests.shop.models import Product
from tests.support import database

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "each_database"),
]

ABSENT_PK = 123_456_789


def row() -> GuardState:
    return GuardState.objects.using(database.current).get(name="product")


def lying() -> set[str]:
    return set(stores["default"].names("product"))


@pytest.fixture
def kept(clock) -> tuple[str, str]:
    """The active generation, and the one before, whose builder was killed when it had to drop it."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    former = Rebuild(registry["product"], sleep=clock.sleep).run()
    killed = Rebuild(registry["product"], sleep=clock.sleep)
    killed.retire = lambda state: None
    active = killed.run()
    clock.now += 1
    return active.generation, former.generation


def serves() -> bool:
    """The guard denies what is not there, and lets every row pass."""
    guard = registry["product"]
    passed = {guard._runtime.decide(pk) for pk in Product.objects.values_list("pk", flat=True)}
    return passed == {MAYBE} and guard._runtime.decide(ABSENT_PK) == ABSENT


def test_the_generation_before_is_written_to_until_nobody_asks_it(clock):
    """Processes that have not heard of the publication answer from it for a lease: adds reach it for two."""
    guard, seen = registry["product"], []
    Product.objects.create(pk=1)
    former = Rebuild(guard, sleep=clock.sleep).run().generation

    def sleep(seconds):
        if row().standby:
            clock.now += 1
            Product.objects.create(pk=500)
            opened = stores["default"].open("product", former, guard._runtime.active_filter.find_key_hash)
            seen.append((seconds, row().standby == former, opened.might_contain((500).to_bytes(8, "little"))))
        clock.now += seconds

    Rebuild(guard, sleep=sleep).run()

    assert seen == [(2.0, True, True)]
    assert (row().standby, lying()) == ("", {row().active})


def test_a_row_that_does_not_reach_the_standby_fences(kept, clock):
    """Some process may still answer from it, so far as the writer knows."""
    active, former = kept
    stores["default"].drop("product", former)
    forget()

    Product.objects.create(pk=500)
    clock.now += 2

    assert (row().active, row().standby, row().status) == (active, "", FENCED)
    assert registry["product"]._runtime.decide(500) != ABSENT


def test_a_fence_ends_the_standby(kept, clock):
    """While a guard is fenced nothing is written to it; the rebuild after that has none."""
    states.table.fence("product", "because")
    clock.now += 1
    standby = row().standby
    again = Rebuild(registry["product"], sleep=clock.sleep).run()
    clock.now += 1

    assert (standby, row().active, row().standby) == ("", again.generation, "")
    assert lying() == {again.generation}
    assert serves()


def test_the_next_build_replaces_the_standby(kept, clock):
    """Of three generations the last alone is there."""
    third = Rebuild(registry["product"], sleep=clock.sleep).run()

    assert (row().active, row().standby) == (third.generation, "")
    assert lying() == {third.generation}


def test_what_a_dead_builder_did_not_drop_is_cleared_away(kept, clock, monkeypatch):
    """A minute after it was replaced, and two leases after it was looked at."""
    waited = []
    seen = states.table.current("product")
    seen = states.table.swap(seen, published_at=timezone.now() - timedelta(seconds=50))
    clear_away([registry["product"]], waited.append)
    before = lying()
    states.table.swap(seen, published_at=timezone.now() - timedelta(seconds=70))

    clear_away([registry["product"]], waited.append)

    assert (before, lying()) == ({*kept}, {kept[0]})
    assert waited == [states.EXPIRY_SECONDS]


def test_what_a_dead_builder_left_is_cleared_away(kept, clock):
    """Else all writers add to it for ever. What a live builder makes stays."""
    mine = Rebuild(registry["product"], sleep=clock.sleep)
    mine.announce()
    clear_away([registry["product"]], clock.sleep)
    assert row().building == mine._name  # this process is alive
    GuardState.objects.using(database.current).filter(name="product").update(builder="elsewhere/1")
    assert row().building == mine._name

    GuardState.objects.using(database.current).filter(name="product").update(
        builder_seen_at=timezone.now() - timedelta(minutes=2)
    )
    clear_away([registry["product"]], clock.sleep)

    assert row().building == ""
    assert row().builder == ""
    assert (row().standby, lying()) == ("", {kept[0]})
    assert serves()


def test_what_another_builder_began_meanwhile_is_not_cleared_away(kept, clock):
    """Its generation lies in the store before the state row names it."""
    Rebuild(registry["product"], sleep=clock.sleep).announce()
    GuardState.objects.using(database.current).filter(name="product").update(
        builder="elsewhere/1", builder_seen_at=timezone.now() - timedelta(minutes=2)
    )
    other = Rebuild(registry["product"], sleep=clock.sleep)

    def sleep(seconds):
        clock.sleep(seconds)
        other.announce()

    clear_away([registry["product"]], sleep)

    assert row().building == other._name
    assert other._name in lying()


def test_clearing_away_that_the_database_refuses_stops_no_other(kept, clock, monkeypatch, caplog):
    """It is tried again the next time; guards that need a rebuild get it now."""
    current = states.table.current
    states.table.swap(current("product"), published_at=timezone.now() - timedelta(minutes=2))

    def refused(name):
        if name == "order":
            raise OperationalError("the row is locked")
        return current(name)

    monkeypatch.setattr(states.table, "current", refused)

    clear_away([registry["order"], registry["product"]], clock.sleep)

    assert "of order: the row is locked" in caplog.text
    assert lying() == {kept[0]}
