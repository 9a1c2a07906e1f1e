"""One guard's filter in one process: what may be said, on what proof, and where an add has to go."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from unittest import mock

import pytest
from django.db.models import Q
from django.utils import timezone

from bloomguard.exceptions import RebuildError, StoreError, StoreUnavailable
from bloomguard.guards import Guard, registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as states
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.row import ARMED, FENCED, State, locate_store
from bloomguard.state.table import StateTable
from bloomguard.state.verdicts import ABSENT, COLD, ERROR, IDENTITY, LEASE, MAYBE, UNTRUSTED, Verdict
from bloomguard.state.verdicts import FENCED as FENCED_DECISION
from bloomguard.stores import disk, stores
from bloomguard.stores.file import FileStore
from tests.conftest import Counting, forget
from tests.shop.guards import ArticleGuard, ProductGuard
from tests.shop.models import Article, Product

ABSENT_PK = 123_456_789


def key(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def added(guard: Guard, value: int) -> bool:
    """Add the key of a row that was just written; return whether that is confirmed."""
    return guard._runtime.active_filter.add([guard._meta.keys.key(value)])


@pytest.fixture(params=["bloom", "bitmap", "cuckoo"])
def product(request, monkeypatch, build, clock) -> Guard:
    """A guard with ten rows and a filter of each kind, in a process that has used it already."""
    monkeypatch.setattr(ProductGuard, "filter", request.param)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 11))
    build("product")
    guard = registry["product"]
    assert guard._runtime.decide(ABSENT_PK) == ABSENT
    return guard


@pytest.fixture
def connection(monkeypatch) -> Counting:
    """Counts what this process asks of the state rows from here on."""
    counting = Counting()
    monkeypatch.setattr(states.table, "connection", counting)
    return counting


def another_process(guard: Guard, clock) -> ActiveFilter:
    table = StateTable(Counting(), clock)
    return ActiveFilter(guard.name, store_alias="default", definition=guard._meta.definition, width=8, table=table)


# -- asking


def test_a_guard_that_was_never_built_is_cold_under_a_lease_as_well(fresh, clock, db):
    """Another guard's request makes the lease valid: no generation is still no answer."""
    states.table.renew()

    assert states.table.lease("product") == State("product")
    assert registry["product"]._runtime.decide(7) == COLD


def test_a_cold_guard_asks_the_database_nothing(fresh, clock, connection, db):
    """A guard that nobody has built a filter for says so, and costs no query, ever."""
    guard = registry["product"]

    found = []
    for _ in range(50):
        found.append(guard._runtime.decide(ABSENT_PK))
        clock.now += 0.5

    assert found == [COLD] * 50
    assert connection.statements == []


def test_maybe_needs_no_lease(product, clock, connection):
    """A key that the filter holds passes without a look at the state rows, however old the copy of them is."""
    clock.now += 1_000

    assert {product._runtime.decide(pk) for pk in range(1, 11)} == {MAYBE}
    assert connection.statements == []


def test_absent_renews_the_lease(product, clock, connection):
    """A no is said under a lease alone: the rows are read once a second, whatever the number of askers."""
    found = []
    for number in range(300):
        found.append(product._runtime.decide(ABSENT_PK + number))
        clock.now += 0.01

    assert found.count(ABSENT) >= 295  # the rest are false positives
    assert set(found) <= {ABSENT, MAYBE}
    assert len(connection.statements) in (2, 3)


def test_without_a_lease_nothing_is_denied(product, clock, connection):
    """While the state rows cannot be read, a no is not said; what the filter holds still passes as before."""
    clock.now += 1
    connection.broken = True

    assert product._runtime.decide(ABSENT_PK) == LEASE
    assert product._runtime.decide(1) == MAYBE
    assert product._runtime.active_filter.ask_now(key(ABSENT_PK)) is None


def test_what_needs_the_database_is_left_to_the_caller(product, clock, connection):
    """``ask_now`` asks the database nothing: under a lease it decides, without one it says that it cannot."""
    ask_now = product._runtime.active_filter.ask_now
    under_lease = ask_now(key(ABSENT_PK))
    clock.now += 1
    without = ask_now(key(ABSENT_PK))

    assert (under_lease, without, ask_now(key(1))) == (ABSENT, None, MAYBE)
    assert connection.statements == []


def test_a_process_that_just_started_opens_nothing_in_a_hurry(product, clock):
    """``ask_now`` does not open a filter, which reads all of it; ``ask`` does, once."""
    product._runtime.active_filter.forget()

    assert product._runtime.active_filter.ask_now(key(1)) is None
    assert product._runtime.decide(1) == MAYBE
    assert product._runtime.active_filter.ask_now(key(ABSENT_PK)) == ABSENT


def test_a_fenced_guard_denies_nothing(product, clock):
    """From a lease after a fence on, nothing is denied, in this process and any other."""
    states.table.fence("product", "because")
    clock.now += 1
    other = another_process(product, clock)

    assert product._runtime.decide(ABSENT_PK) == other.ask(key(ABSENT_PK)) == FENCED_DECISION
    assert other.ask(key(1)) == FENCED_DECISION
    assert product._runtime.decide(1) == MAYBE


def test_a_fence_by_another_process_is_obeyed_within_a_lease(product, clock):
    """A process that has not heard of the fence answers for less than a second more."""
    StateTable(Counting(), clock).fence("product", "because")
    clock.now += 0.99
    still = product._runtime.decide(ABSENT_PK)
    clock.now += 0.01

    assert still == ABSENT
    assert product._runtime.decide(ABSENT_PK) == FENCED_DECISION


def test_a_generation_of_another_process_is_picked_up_within_a_lease(product, clock):
    """What another process publishes answers here within a second, and the one before is let go of."""
    before = product._runtime.active_filter.table.current("product").active
    other = another_process(product, clock)
    product._runtime.active_filter.__dict__["table"], mine = other.table, product._runtime.active_filter.table
    built = Rebuild(product, sleep=lambda seconds: None).run()
    product._runtime.active_filter.__dict__["table"] = mine
    clock.now += 1

    assert product._runtime.decide(ABSENT_PK) == ABSENT
    assert product._runtime.active_filter.last_check[0] == built.generation != before
    assert list(product._runtime.active_filter._opened) == [built.generation]


@pytest.mark.parametrize("step", [1, -900], ids=["a second later", "after the clock went back"])
def test_a_first_generation_is_picked_up_within_a_lease(fresh, transactional_db, clock, step):
    """A guard that was cold starts to answer within a second of its first build, in a process that was asked before."""
    Product.objects.create(pk=1)
    guard = registry["product"]
    asked = another_process(guard, clock)
    cold = asked.ask(key(ABSENT_PK))
    Rebuild(guard, sleep=lambda seconds: None).run()
    clock.now += step

    assert cold == COLD
    assert asked.ask(key(ABSENT_PK)) == ABSENT
    assert asked.ask(key(1)) == MAYBE


# -- another store, another secret, another definition


def test_another_store_is_not_trusted(product, clock, caplog):
    """A filter folder that is not the one that the row names denies nothing, says so once, and counts no add."""
    path = stores["default"].path
    shutil.copytree(path, path.with_name("copy"))
    shutil.rmtree(path)
    path.with_name("copy").rename(path)
    forget()

    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        found = {product._runtime.decide(number) for number in (1, ABSENT_PK)}

    assert found == {IDENTITY}
    assert len(caplog.records) == 1
    assert not product._runtime.active_filter.add([key(50)])


def test_each_move_to_another_store_is_logged(product, build, clock, caplog):
    """Once, in a process that has found the filter again meanwhile."""
    for _ in range(2):
        states.table.swap(states.table.current("product"), identity="another", active="elsewhere")
        clock.sleep(states.LEASE_SECONDS)
        assert {product._runtime.decide(ABSENT_PK) for _ in range(3)} == {IDENTITY}
        build("product")
        clock.sleep(states.LEASE_SECONDS)
        assert product._runtime.decide(ABSENT_PK) is ABSENT

    assert len([line for line in caplog.messages if "passes every request: its filter was built" in line]) == 2


def test_a_store_without_an_identity_is_not_trusted(product, clock, monkeypatch):
    """An empty identity equals no other, not even an empty one: nothing is denied, added or built."""
    monkeypatch.setattr(type(stores["default"]), "identity", property(lambda store: ""))
    GuardState.objects.filter(name="product").update(identity="")
    forget()

    active = product._runtime.active_filter
    assert product._runtime.decide(ABSENT_PK) == IDENTITY
    assert locate_store("", stores["default"]) is None
    assert not active.add([key(77)])
    monkeypatch.setattr(FileStore, "prepare", lambda store, guard: None)
    with pytest.raises(RebuildError, match="has no identity"):
        Rebuild(product, sleep=clock.sleep).run()


def test_rows_without_an_identity_cover_nothing():
    """Adds that reached nothing cover a row that names nothing; no other of an unknown store."""
    nothing, unknown = State("x"), State("x", version=1, active="a")

    assert nothing.is_covered_by(nothing)
    assert nothing.is_covered_by(unknown)
    assert not unknown.is_covered_by(unknown)


def test_a_rebuild_takes_another_store_over(product, build, clock):
    """After a failover the next build fences, takes the new identity, and starts with nothing of the old."""
    shutil.rmtree(stores["default"].path)
    forget()

    report = build("product")
    clock.now += 1

    row = states.table.current("product")
    assert (row.identity, row.active, row.standby) == (stores["default"].identity, report.generation, "")
    assert product._runtime.decide(ABSENT_PK) == ABSENT


def test_a_key_is_found_by_a_former_secret(product, settings, clock):
    """With the former SECRET_KEY among the fallbacks, a filter goes on answering; without it, it denies nothing."""
    former = settings.SECRET_KEY
    settings.SECRET_KEY = "another"
    settings.SECRET_KEY_FALLBACKS = ["a third", former]
    product._runtime.active_filter.forget()
    runtime = product._runtime
    with_fallback = [runtime.decide(1), runtime.decide(ABSENT_PK), added(product, 50), runtime.decide(50)]
    settings.SECRET_KEY_FALLBACKS = []
    product._runtime.active_filter.forget()

    assert with_fallback == [MAYBE, ABSENT, True, MAYBE]
    assert [runtime.decide(1), runtime.decide(ABSENT_PK), added(product, 51)] == [UNTRUSTED, UNTRUSTED, False]


def test_a_rebuild_takes_the_new_secret(product, build, settings, clock):
    """After a rebuild the former secret is needed no more."""
    former = settings.SECRET_KEY
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [former]
    build("product")
    settings.SECRET_KEY_FALLBACKS = []
    forget()
    clock.now += 1

    assert [product._runtime.decide(1), product._runtime.decide(ABSENT_PK)] == [MAYBE, ABSENT]


class AlwaysAlive(ArticleGuard):
    name = "article"
    alive = Q()


class ByPk(ArticleGuard):
    name = "article"
    lookup = "pk"


class Normalized(ArticleGuard):
    name = "article"

    def normalize(self, value: str) -> str:
        return value.casefold()


@pytest.mark.parametrize("changed", [AlwaysAlive, ByPk, Normalized])
def test_a_filter_for_another_definition_is_not_asked(changed, build, clock):
    """When a guard comes to mean other rows, fields or spellings, its old filter denies nothing until a rebuild."""
    Article.objects.create(pk=1, slug="here")
    Article.objects.create(pk=2, slug="hidden", deleted=True)
    build("article")
    guard = changed(Article)

    assert registry["article"]._runtime.decide("nowhere") == ABSENT
    assert guard._runtime.decide("hidden" if changed is not ByPk else 2) == UNTRUSTED

    Rebuild(guard, sleep=lambda seconds: None).run()
    clock.now += 1

    assert guard._runtime.decide("nowhere" if changed is not ByPk else ABSENT_PK) == ABSENT
    assert (
        guard._runtime.decide("hidden" if changed is AlwaysAlive else 1 if changed is ByPk else "HERE".lower()) == MAYBE
    )


# -- adding


def generations(guard: Guard, *names: str) -> dict[str, bool]:
    """Whether each of the generations holds the key 50."""
    find = guard._runtime.active_filter.find_key_hash
    return {name: stores["default"].open(guard.name, name, find).might_contain(key(50)) for name in names}


def test_an_add_goes_to_every_generation_that_is_named(product, clock):
    """Active, standby and building: whichever answers now or next has the key."""
    layout = stores["default"].open(
        "product", states.table.current("product").active, product._runtime.active_filter.find_key_hash
    )
    for name in ("before", "next"):
        stores["default"].create("product", name, layout.layout)
    seen = states.table.current("product")
    states.table.swap(seen, standby="before", building="next")
    clock.now += 1

    assert added(product, 50)
    assert generations(product, seen.active, "before", "next") == {seen.active: True, "before": True, "next": True}


@pytest.mark.parametrize(
    ("changes", "lost", "counts"),
    [
        ({"standby": "gone"}, "gone", False),
        ({"building": "gone"}, "gone", False),
        ({"status": FENCED, "building": ""}, "active", True),
        ({"status": FENCED, "building": "gone"}, "gone", False),
        ({}, "active", False),
    ],
)
def test_an_add_counts_where_it_will_be_asked_for(changes, lost, counts, product, clock):
    """An add that misses a generation that answers, will answer or may still answer somebody is no add; the active one
    of a fenced guard answers nobody."""
    seen = states.table.current("product")
    states.table.swap(seen, **changes)
    if lost == "active":
        stores["default"].drop("product", seen.active)
    forget()

    assert added(product, 50) is counts


def test_a_standby_that_an_add_did_not_reach_makes_it_no_add(product, clock, monkeypatch):
    """Whoever has not read the row since a generation was replaced still answers from it: the add must be there too."""
    seen = states.table.current("product")
    opened = product._runtime.active_filter._opened[seen.active]
    stores["default"].create("product", "new", opened.layout)
    states.table.swap(seen, active="new", standby=seen.active)
    clock.now += 1

    def fail(*args, **kwargs):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(opened, "add", fail)

    assert not added(product, 50)


@pytest.mark.parametrize("parts", [True, False])
def test_a_kept_standby_that_an_add_did_not_reach_has_to_go(parts, product, clock):
    """Nobody asks a standby that is kept for a roll-back. An add that misses it counts if, and only if, it is taken out
    of the row, which is asked for with the row as it was seen."""
    seen = states.table.current("product")
    kept = states.table.swap(seen, standby="gone", standby_until=timezone.now())
    clock.now += 1
    asked = []

    assert product._runtime.active_filter.add([key(50)], lambda state: asked.append(state) or parts) is parts
    assert set(asked) == {kept}
    assert generations(product, seen.active) == {seen.active: True}


def test_an_add_to_a_fenced_guard_asks_no_store(product, clock, monkeypatch):
    """While a guard is fenced, and nothing is being built, saves do not wait for a server that may be gone."""
    seen = states.table.current("product")
    opened = product._runtime.active_filter._opened[seen.active]
    monkeypatch.setattr(opened, "add", lambda *args, **kwargs: pytest.fail("asked"))
    states.table.swap(seen, status=FENCED)
    clock.now += 1

    assert added(product, 50)


def test_an_add_heeds_every_fence_anew(product, build, clock):
    """A writer that knows of a fence, and has looked at nothing since, gives readers their time at the next one too."""
    slept = []
    product._runtime.active_filter.table.sleep = lambda seconds: (slept.append(seconds), clock.sleep(seconds))
    writer = another_process(product, clock)
    writer.table.sleep = product._runtime.active_filter.table.sleep
    states.table.fence("product", "because")
    clock.now += 1
    assert writer.add([key(50)])
    build("product")
    clock.now += 1
    assert product._runtime.decide(ABSENT_PK) == ABSENT
    states.table.fence("product", "because of something else")
    del slept[:]

    assert writer.add([key(51)])
    assert slept == [2.0]


def test_an_add_that_is_refused_is_no_add(product, clock, monkeypatch):
    """A store that fails an add makes it ``False``, and the generation is not trusted afterwards."""
    generation = product._runtime.active_filter._opened[states.table.current("product").active]

    def fail(*args, **kwargs):
        raise StoreError("the disk is gone")

    monkeypatch.setattr(generation, "add", fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores["default"], "open", fail)
        assert not added(product, 50)

    assert product._runtime.decide(ABSENT_PK) == UNTRUSTED


@pytest.mark.parametrize("is_read", [True, False])
def test_an_add_may_outlast_the_lease(product, clock, connection, monkeypatch, is_read):
    """As one of many keys does, each time. It counts if the rows, read after it, name no other generation."""
    generation = product._runtime.active_filter._opened[states.table.current("product").active]
    add, taken = generation.add, []

    def slow(keys, **kwargs):
        add(keys, **kwargs)
        taken.append(1)
        clock.now += 1
        connection.broken = not is_read

    monkeypatch.setattr(generation, "add", slow)

    assert added(product, 50) == is_read
    assert len(taken) == 1


@pytest.mark.parametrize("by_another_thread", [True, False])
def test_an_add_counts_under_the_copy_that_it_began_with(product, clock, monkeypatch, by_another_thread):
    """A copy that was read since then names other generations: the add is done again, for those."""
    seen = states.table.current("product")
    generation = product._runtime.active_filter._opened[seen.active]
    places, taken = generation._located, []

    def slow(keys):
        found = places(keys)
        taken.append(1)
        if len(taken) == 1:
            stores["default"].create("product", "next", generation.layout)
            states.table.swap(seen, building="next")
            clock.now += 3
            if by_another_thread:
                states.table.renew()  # as any thread does that answers a request
        return found

    monkeypatch.setattr(generation, "_located", slow)

    assert added(product, 50)
    assert generations(product, seen.active, "next") == {seen.active: True, "next": True}


def test_a_process_that_only_writes_lets_a_retired_filter_go(product, clock):
    """It was asked once, and the file of that filter would occupy the disk as long as it is mapped."""
    assert product._runtime.decide(ABSENT_PK) == ABSENT
    seen = states.table.current("product")
    active_filter = product._runtime.active_filter
    stores["default"].create("product", "next", active_filter._opened[seen.active].layout)
    states.table.swap(seen, active="next")
    clock.now += 1

    assert added(product, 50)
    assert active_filter.last_check is None


def test_an_add_waits_for_a_fence_that_came_meanwhile(product, clock, monkeypatch):
    """Between two reads of the rows a dump may have named another filter, by which some process still answers."""
    generation = product._runtime.active_filter._opened[states.table.current("product").active]
    add, slept = generation.add, []

    def slow(keys, **kwargs):
        add(keys, **kwargs)
        StateTable(Counting(), clock).fence("product", "because")
        clock.now += 1

    monkeypatch.setattr(generation, "add", slow)
    monkeypatch.setattr(states.table, "sleep", lambda seconds: (slept.append(seconds), clock.sleep(seconds)))

    assert added(product, 50)
    assert slept == [2.0]


def test_an_add_without_a_lease_is_no_add(product, clock, connection):
    """While the state rows cannot be read, nobody knows where a key has to go."""
    clock.now += 1
    connection.broken = True

    assert not added(product, 50)


def test_an_add_before_the_first_build_is_done(fresh, clock, db):
    """A guard without a generation has nowhere to put a key, and its first scan will find the row."""
    assert added(registry["product"], 50)


def test_an_add_follows_a_rebuild_that_it_has_not_heard_of(product, clock):
    """A writer whose copy of the row is from before a build tries again with a fresh one once its generation is
    gone."""
    layout = stores["default"].open(
        "product", states.table.current("product").active, product._runtime.active_filter.find_key_hash
    )
    stores["default"].create("product", "next", layout.layout)
    table = StateTable(Counting(), clock)
    seen = table.current("product")
    product._runtime.active_filter.forget()
    product._runtime.active_filter.table.renew(after=clock.now - 1)
    table.swap(seen, active="next")
    stores["default"].drop("product", seen.active)

    assert added(product, 50)
    assert generations(product, "next") == {"next": True}


def test_a_save_whose_add_fails_fences_the_guard(product, clock, caplog):
    """A row that could not be added is on its way: the guard stops denying before anybody could miss it."""
    stores["default"].drop("product", states.table.current("product").active)
    forget()

    Product.objects.create(pk=50)

    assert states.table.current("product").status == FENCED
    assert product.verdict(50) == Verdict.UNKNOWN


@pytest.mark.parametrize("was_asked", [True, False])
def test_a_fence_says_why_the_add_failed(was_asked, product, clock):
    """Also if a request met the same error before, and the filter is not opened again for the save."""
    stores["default"].drop("product", states.table.current("product").active)
    forget()
    if was_asked:
        states.table.renew()
        assert product._runtime.decide(ABSENT_PK) == UNTRUSTED

    Product.objects.create(pk=50)

    reason = states.table.row("product").reason
    assert reason.startswith("a written row could not be added to its filter: ")
    assert reason.endswith(".filter does not exist") or len(reason) == 200


def test_a_reason_is_that_of_the_last_add(product, clock, monkeypatch):
    """After an add that succeeded, another failure is not given the error of the one before."""
    active = product._runtime.active_filter
    generation = active._opened[states.table.current("product").active]

    def fail(*args, **kwargs):
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(generation, "add", fail)
        assert not added(product, 50)
        assert active.why_not_added() == "a written row could not be added to its filter: no answer"
        assert not added(product, 50)
    assert added(product, 50)
    assert active.why_not_added() == "a written row could not be added to its filter"


def test_a_store_that_does_not_exist_is_an_error_that_passes(fresh, caplog):
    """A guard with a store that nobody configured denies nothing."""

    class Lost(ProductGuard):
        name = "lost"
        store = "nowhere"

    assert Lost(Product)._runtime.decide(1) == ERROR
    assert "nowhere" in caplog.text


@pytest.mark.parametrize("step", [10, -900], ids=["later", "after the clock went back"])
def test_a_filter_that_could_not_be_opened_is_opened_later(product, clock, monkeypatch, step):
    """A permission that was missing may be there after ten seconds; before that no request looks."""
    product._runtime.active_filter.forget()

    def fail(*args):
        raise StoreError("permission denied")

    with monkeypatch.context() as closed:
        closed.setattr(stores["default"], "open", fail)
        assert product._runtime.decide(ABSENT_PK) == UNTRUSTED
    assert product._runtime.decide(ABSENT_PK) == UNTRUSTED

    clock.sleep(step)

    assert product._runtime.decide(ABSENT_PK) == ABSENT


def test_a_write_opens_a_filter_that_a_request_could_not_open(product, monkeypatch):
    """A file descriptor was missing for a moment: the write does not wait ten seconds, nor disable the guard."""
    product._runtime.active_filter.forget()
    with monkeypatch.context() as short:
        short.setattr(stores["default"], "open", mock.Mock(side_effect=StoreError("too many open files")))
        assert product._runtime.decide(ABSENT_PK) == UNTRUSTED

    Product.objects.create(pk=50)
    found = [product._runtime.decide(pk) for pk in (50, ABSENT_PK)]

    assert found == [MAYBE, ABSENT]
    assert states.table.current("product").status == ARMED


@pytest.mark.parametrize("is_leased", [True, False])
def test_a_store_that_this_user_may_not_read_is_logged(product, monkeypatch, caplog, is_leased):
    """As after a ``rebuild_filter`` by root: not as a guard without a filter, and not as another store."""
    forget()
    if is_leased:
        states.table.renew()
    path = stores["default"].path

    def denied(*args):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(disk, "open_private", denied)
    monkeypatch.setattr(os, "listdir", denied)

    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        assert {product._runtime.decide(ABSENT_PK) for _ in range(3)} == {UNTRUSTED}

    (line,) = caplog.messages
    assert f"cannot read {path} as user {os.geteuid()}: Permission denied" in line


def test_a_state_says_what_it_names():
    """The generations of a row are those that are there, the active one first."""
    assert State("city", active="a", building="c").generations == ("a", "c")
