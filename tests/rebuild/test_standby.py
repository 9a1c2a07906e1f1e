"""The generation before is kept for a roll-back only while every add reaches it."""

from __future__ import annotations

from datetime import timedelta
from unittest import mock

import pytest
from django.db import OperationalError, transaction
from django.utils import timezone

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild, clear_away, roll_back_all, run_all
from bloomguard.state import table as states
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import ABSENT, MAYBE
from bloomguard.stores import stores
from tests.conftest import forget
from tests.shop.models import Article, Order, Product
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
    """The active generation, and the one before, which is kept for an hour."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    former = Rebuild(registry["product"], sleep=clock.sleep).run()
    active = Rebuild(registry["product"], sleep=clock.sleep, keep_standby=3_600.0).run()
    clock.now += 1
    return active.generation, former.generation


def roll_back(clock):
    (outcome,) = roll_back_all([registry["product"]], clock.sleep)
    clock.now += 1
    return outcome


def serves() -> bool:
    """The guard denies what is not there, and lets every row pass."""
    guard = registry["product"]
    passed = {guard._runtime.decide(pk) for pk in Product.objects.values_list("pk", flat=True)}
    return passed == {MAYBE} and guard._runtime.decide(ABSENT_PK) == ABSENT


def test_a_roll_back_returns_to_what_was_kept(kept, clock):
    """The generation before answers again, with all that was written since; the one that answered is dropped."""
    _, former = kept
    Product.objects.create(pk=500)

    roll_back(clock)

    assert (row().active, row().standby, row().status) == (former, "", ARMED)
    assert lying() == {former}
    assert serves()


def test_the_generation_rolled_back_from_is_written_to_until_nobody_asks_it(kept, clock):
    """Processes that have not heard of the roll-back answer from it for a lease: adds reach it for two."""
    active, former = kept
    seen = []

    def sleep(seconds):
        seen.append((seconds, row().active, row().standby, row().standby_until))
        clock.now += 1
        Product.objects.create(pk=500)
        opened = stores["default"].open("product", active, registry["product"]._runtime.active_filter.find_key_hash)
        seen.append(opened.might_contain((500).to_bytes(8, "little")))
        clock.now += seconds

    roll_back_all([registry["product"]], sleep)

    assert seen == [(2.0, former, active, None), True]


def test_nothing_is_kept_unless_asked_for(clock):
    """Without ``keep_standby`` there is nothing to go back to, and the error says how there would be."""
    Product.objects.create(pk=1)
    for _ in range(2):
        report = Rebuild(registry["product"], sleep=clock.sleep).run()

    outcome = roll_back(clock)

    assert isinstance(outcome, RebuildError)
    assert "--keep-standby 1h" in str(outcome)
    assert row().active == report.generation


def aside(name: str):
    """Where the file of a generation is, and where it is out of the way."""
    path = stores["default"].path / "product" / f"{name}.filter"
    return path, path.with_name("aside")


def test_a_standby_that_an_add_missed_cannot_be_returned_to(kept, clock):
    """The standby that lacks a saved row leaves the state row before that row can be seen. The guard goes on answering;
    on SQLite, where a writer locks the state row too, it is fenced."""
    active, former = kept
    stores["default"].drop("product", former)
    forget()

    Product.objects.create(pk=500)
    clock.now += 2

    status = FENCED if database.current == "default" else ARMED
    assert (row().active, row().standby, row().standby_until, row().status) == (active, "", None, status)
    assert isinstance(roll_back(clock), RebuildError)
    assert registry["product"]._runtime.decide(500) != ABSENT


def test_a_write_that_is_undone_harms_no_roll_back(kept, clock):
    """A transaction that missed the standby and was undone leaves a standby that is complete, or none."""
    _, former = kept
    path, away = aside(former)
    path.rename(away)
    forget()
    with transaction.atomic(using=database.current):
        Product.objects.create(pk=500)
        transaction.set_rollback(True, using=database.current)
    away.rename(path)
    Product.objects.create(pk=501)

    roll_back(clock)

    assert serves()


def test_an_add_that_misses_the_standby_hears_of_a_roll_back(kept, clock, monkeypatch):
    """A roll-back that comes between an add that did not reach the standby and its change of the row: the writer finds
    the row changed, and fences what answers now."""
    if database.current == "default":
        pytest.skip("on SQLite nobody can change the state row before the writer's transaction has ended")
    from bloomguard.writes import fencing

    _, former = kept
    path, away = aside(former)
    path.rename(away)
    forget()
    part = fencing.drop_standby

    def part_late(guard, using, state):
        monkeypatch.setattr(fencing, "drop_standby", part)
        away.rename(path)
        assert not isinstance(roll_back_all([guard], lambda seconds: None)[0], RebuildError)
        path.rename(away)
        forget()
        return part(guard, using, state)

    monkeypatch.setattr(fencing, "drop_standby", part_late)

    Product.objects.create(pk=500)
    clock.now += 1

    assert (row().active, row().status) == (former, FENCED)
    assert registry["product"]._runtime.decide(500) != ABSENT


def test_a_fence_ends_the_standby(kept, clock):
    """While a guard is fenced nothing is written to it: there is no way back, only a rebuild, which keeps nothing."""
    states.table.fence("product", "because")
    clock.now += 1
    refused = roll_back(clock)
    again = Rebuild(registry["product"], sleep=clock.sleep, keep_standby=3_600.0).run()
    clock.now += 1

    assert isinstance(refused, RebuildError)
    assert (row().active, row().standby) == (again.generation, "")
    assert lying() == {again.generation}
    assert serves()


def test_the_next_build_replaces_the_standby(kept, clock):
    """Of three generations the last two are there, or the last alone."""
    active, _ = kept

    third = Rebuild(registry["product"], sleep=clock.sleep, keep_standby=3_600.0).run()

    assert (row().active, row().standby) == (third.generation, active)
    assert lying() == {third.generation, active}
    fourth = Rebuild(registry["product"], sleep=clock.sleep).run()
    assert (row().standby, lying()) == ("", {fourth.generation})


def test_a_roll_back_ends_a_build(kept, clock):
    """A build that is going on is not published over what was returned to."""
    outcomes = []

    def progress(done, total):
        outcomes.append(roll_back(clock))

    with pytest.raises(RebuildError, match="a roll-back"):
        Rebuild(registry["product"], sleep=clock.sleep, progress=progress).run()

    assert (row().active, row().building) == (kept[1], "")
    assert serves()


def test_a_roll_back_to_what_is_damaged_is_refused(kept, clock):
    """The former generation is read whole before it may answer."""
    active, former = kept
    path = stores["default"].path / "product" / f"{former}.filter"
    data = bytearray(path.read_bytes())
    data[-200] ^= 4
    path.write_bytes(data)

    outcome = roll_back(clock)

    assert "the previous generation cannot be trusted" in str(outcome)
    assert row().active == active
    assert serves()


def test_of_two_who_change_the_row_one_rolls_back(kept, clock, monkeypatch):
    """A row that is not as it was read is left alone."""
    current = states.table.current

    def overtaken(name):
        seen = current(name)
        states.table.swap(seen, reason="somebody was faster")
        return seen

    monkeypatch.setattr(states.table, "current", overtaken)

    outcome = roll_back(clock)

    assert "at the same moment, so nothing was done" in str(outcome)
    assert row().active == kept[0]


def test_a_roll_back_that_the_database_refuses_stops_no_other(kept, clock, monkeypatch):
    """Of the others the replaced generation is dropped too, and each has its own outcome."""
    current = states.table.current

    def refused(name):
        if name == "order":
            raise OperationalError("the database is gone")
        return current(name)

    monkeypatch.setattr(states.table, "current", refused)

    done, failed = roll_back_all([registry["product"], registry["order"]], clock.sleep)

    assert isinstance(failed, RebuildError)
    assert str(failed) == "order: the database is gone"
    assert done.active == kept[1]
    assert lying() == {kept[1]}


@pytest.mark.parametrize("over", [True, False])
def test_a_standby_whose_time_is_over_is_cleared_away(over, kept, clock):
    """Once the time it was to be kept for has passed, it goes without a build."""
    active, former = kept
    if over:
        states.table.swap(states.table.current("product"), standby_until=timezone.now() - timedelta(seconds=1))

    clear_away([registry["product"]], clock.sleep)

    assert (row().standby, lying()) == (("", {active}) if over else (former, {active, former}))


def test_what_a_dead_builder_did_not_drop_is_cleared_away(kept, clock, monkeypatch):
    """A standby that nobody kept goes too, a minute after it was replaced, and two leases after it was looked at."""
    monkeypatch.setattr(timezone, "now", mock.Mock(return_value=timezone.now()))
    waited = []
    seen = states.table.current("product")
    seen = states.table.swap(seen, standby_until=None, published_at=timezone.now() - timedelta(seconds=50))
    clear_away([registry["product"]], waited.append)
    before = lying()
    states.table.swap(seen, published_at=timezone.now() - timedelta(seconds=70))

    clear_away([registry["product"]], waited.append)

    assert (before, lying()) == ({*kept}, {kept[0]})
    assert waited == [states.EXPIRY_SECONDS]


def test_what_is_to_be_kept_is_kept_while_the_run_goes_on(kept, clock):
    """The others may take hours, and cron's ``--if-needed`` drops what the builder has not marked after a minute."""
    Order.objects.create()
    Article.objects.create(slug="a")

    def minutes(done, total):
        clock.now += 120

    def cron(done, total):
        hour_ago = timezone.now() - timedelta(hours=1)
        GuardState.objects.using(database.current).filter(name="product").update(published_at=hour_ago)
        clear_away([registry["product"]], clock.sleep)

    options = {"sleep": clock.sleep, "clock": clock, "keep_standby": 3_600.0}
    scans = {"product": minutes, "order": minutes, "article": cron}
    reports = run_all([Rebuild(registry[name], progress=scans[name], **options) for name in scans], clock.sleep)

    assert [report.guard for report in reports] == [*scans]
    assert (row().active, row().standby) == (reports[0].generation, kept[0])
    assert row().standby_until > timezone.now()
    assert lying() == {reports[0].generation, kept[0]}


def test_what_a_dead_builder_left_is_cleared_away(kept, clock):
    """Else all writers add to it for ever. What is kept for a roll-back stays, and what a live builder makes."""
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
    assert lying() == set(kept)
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
    states.table.swap(current("product"), standby_until=timezone.now() - timedelta(seconds=1))

    def refused(name):
        if name == "order":
            raise OperationalError("the row is locked")
        return current(name)

    monkeypatch.setattr(states.table, "current", refused)

    clear_away([registry["order"], registry["product"]], clock.sleep)

    assert "of order: the row is locked" in caplog.text
    assert lying() == {kept[0]}
