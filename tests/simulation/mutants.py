"""Rules of the protocol, each switched off by one small patch of the project's code. The simulation must notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from bloomguard.exceptions import StoreError
from bloomguard.filters import FilterError
from bloomguard.rebuild import Rebuild, rebuild
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.negative_cache import NegativeCache
from bloomguard.state.row import Copy, State
from bloomguard.state.table import LEASE_SECONDS, StateTable
from bloomguard.writes import fencing, idle, state_rows

from . import agents
from .agents import Faults
from .database import SimulatedConnection, read_row
from .servers import Server, SimulatedGeneration, SimulatedStore
from .world import Process, World

Patches = list[Any]


@dataclass(frozen=True)
class Mutant:
    """One rule less. ``first`` is the seed to look at first: it is known to catch it, or was before the code changed.

    ``rare`` are those that so little stands against that it takes a thousand schedules and more to find one again.
    """

    patches: Callable[[], Patches]
    first: int
    rare: bool


MUTANTS: dict[str, Mutant] = {}


def mutant(first: int, *, rare: bool = False) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Register a mutant under its name."""

    def register(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        MUTANTS[patches.__name__] = Mutant(patches, first, rare)
        return patches

    return register


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """The project's code with one rule less, while the block lasts."""
    patches = MUTANTS[name].patches() if name else []
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


# -- the lease


@mutant(3)
def no_lease_on_reading() -> Patches:
    """Readers and writers go by their copy of the row, however old."""

    def lease(self: StateTable, name: str) -> Any:
        return self.copy.rows.get(name)

    return [patch.object(StateTable, "lease", lease)]


@mutant(81)
def lease_from_the_answer() -> Patches:
    """The lease counts from when the row arrived, not from when it was asked for."""

    def late(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: StateTable, *arguments: Any, **options: Any) -> Any:
            before = self.copy
            try:
                return real(self, *arguments, **options)
            finally:
                if self.copy is not before:
                    self.copy = Copy(self.clock(), self.copy.rows)

        return wrapped

    return [patch.object(StateTable, name, late(getattr(StateTable, name))) for name in ("renew", "current")]


@mutant(986)
def clock_that_sleeps_with_its_host() -> Patches:
    """As ``time.monotonic`` counts on Linux: who wakes up takes an old copy for a fresh one."""
    real = Process.clock
    return [patch.object(Process, "clock", lambda self: real(self) - self.slept)]


@mutant(1)
def lease_of_another_clock() -> Patches:
    """After a clock went back, a copy of the row counts as read a moment ago."""

    def lease(self: StateTable, name: str) -> Any:
        return self.copy.rows.get(name) if self.clock() - self.copy.read_at < LEASE_SECONDS else None

    return [
        patch.object(StateTable, "lease", lease),
        patch.object(StateTable, "_check_clock", lambda self: None),
    ]


@mutant(5)
def rows_of_a_standby() -> Patches:
    """Whoever answers is believed, however far it lags behind."""
    return [patch.object(SimulatedConnection, "is_standby", "0")]


@mutant(30)
def dump_that_is_believed() -> Patches:
    """A state row that was loaded is as good as one that was written."""
    return [patch.object(state_rows, "_loaded", lambda *arguments, **options: None)]


# -- the write


@mutant(11)
def add_before_the_statement() -> Patches:
    """A key is added before its transaction holds a lock that a barrier waits for."""

    def insert(self: Process, keys: list[int]) -> None:
        with self.world.database.atomic():
            self.add(keys)
            self.statement(keys)

    return [patch.object(Process, "insert", insert)]


@mutant(3)
def add_after_the_commit() -> Patches:
    """A key is added when its row can be seen already."""

    def insert(self: Process, keys: list[int]) -> None:
        with self.world.database.atomic():
            self.statement(keys)
        self.add(keys)

    return [patch.object(Process, "insert", insert)]


def _writes_only(narrow: Callable[[Any], Any]) -> Patches:
    real = ActiveFilter._add
    return [
        patch.object(ActiveFilter, "_add", lambda self, state, *rest, **how: real(self, narrow(state), *rest, **how)),
        patch.object(State, "is_covered_by", lambda self, earlier: True),  # which would notice
    ]


@mutant(4)
def add_to_the_active_alone() -> Patches:
    """Writers leave out the generation that is being built."""
    return _writes_only(lambda state: replace(state, standby="", building=""))


@mutant(17)
def no_add_to_the_standby() -> Patches:
    """Writers leave out the generation that some processes still answer from."""
    return _writes_only(lambda state: replace(state, standby=""))


@mutant(4)
def every_add_counts() -> Patches:
    """An add is taken for done, whatever the store said."""
    real = ActiveFilter._add

    def add(self: ActiveFilter, *arguments: Any, **how: Any) -> bool:
        real(self, *arguments, **how)
        return True

    return [patch.object(ActiveFilter, "_add", add)]


# -- the write while there is no filter


@mutant(0)
def idle_statements_are_not_looked_at_again() -> Patches:
    """A statement that was sent as it is, because there was no filter, may take as long as it likes."""
    return [patch.object(idle, "is_in_time", lambda guard, since: True)]


@mutant(619)
def idle_statements_timed_by_another_clock() -> Patches:
    """A statement during which the clock went back counts as a short one."""
    return [patch.object(idle, "is_within", lambda duration, since, now: now - since < duration)]


@mutant(3)
def idle_by_a_copy_of_any_age() -> Patches:
    """That there is no filter is believed of a row that was read long ago."""

    def idle_since(guard: Any, using: str) -> float | None:
        table = fencing.table_of(guard)
        return None if table.known(guard.name).takes_adds else table.clock()

    return [patch.object(idle, "idle_since", idle_since)]


# -- the fence


@mutant(3)
def no_fence() -> Patches:
    """A failed add is ignored."""
    return [patch.object(fencing, "fence", lambda reasons, using: [])]


def _impatient(owner: Any, name: str) -> Patches:
    """What waits on purpose inside of ``owner.name`` waits no more."""
    real, sleep, hurried = getattr(owner, name), Process.sleep, set()

    def hurry(*arguments: Any, **named: Any) -> Any:
        agent = World.current.scheduler.current
        hurried.add(agent)
        try:
            return real(*arguments, **named)
        finally:
            hurried.discard(agent)

    def wait(self: Process, seconds: float) -> None:
        if self.world.scheduler.current not in hurried:
            sleep(self, seconds)

    return [patch.object(owner, name, hurry), patch.object(Process, "sleep", wait)]


@mutant(25)
def no_wait_after_the_fence() -> Patches:
    """The writer who fences commits at once."""
    return _impatient(fencing, "fence")


@mutant(5)
def fence_of_others_not_heeded() -> Patches:
    """A writer who finds a fence of somebody else commits at once."""
    return _impatient(StateTable, "wait_for_fence")


@mutant(71)
def fence_taken_for_a_former_one() -> Patches:
    """A process that has waited for a fence of the guard does not wait for the next one."""

    def fence_read_at(self: StateTable, state: State) -> float:
        return self.fences.setdefault(state.name, (state.fenced_at, self.clock()))[1]

    return [
        patch.object(StateTable, "_fence_read_at", fence_read_at),
        patch.object(StateTable, "_note_fences", lambda self, copy: None),
    ]


@mutant(1656, rare=True)
def fence_that_failed_is_forgotten() -> Patches:
    """A fence that came too late for rows which are saved all the same is not set when it can be."""
    return [patch.object(StateTable, "fence_soon", lambda self, name, reason: None)]


# -- the store


@mutant(0)
def identity_not_checked() -> Patches:
    """Any server is as good as any other."""
    return [
        patch.object(SimulatedStore, "identity", "life0"),
        patch.object(SimulatedStore, "proves", lambda self, found, expected: True),
    ]


@mutant(47)
def missing_is_empty() -> Patches:
    """A generation that a server does not have is an empty one, and an add creates it."""
    return [
        patch.object(Server, "held", lambda self, name: self.generations.setdefault(name, Counter())),
        patch.object(SimulatedStore, "has", lambda self, server, name: True),
    ]


# -- the rebuild


def _hurried(hurries: Callable[[Rebuild], bool]) -> Patches:
    real = Rebuild.run

    def run(self: Rebuild) -> Any:
        sleep = self._sleep
        self._sleep = lambda seconds: None if hurries(self) else sleep(seconds)
        return real(self)

    return [patch.object(Rebuild, "run", run)]


@mutant(14)
def no_wait_of_writers_for_a_replaced_store() -> Patches:
    """The row names another store while some processes still answer from the one before. Looked for where stores are
    replaced."""
    wait = StateTable.wait_for_fence

    def wait_for_fence(table: StateTable, state: State) -> None:
        if not state.building:
            wait(table, state)

    return [
        patch.object(StateTable, "wait_for_fence", wait_for_fence),
        patch.object(agents, "WEATHERS", [["split", "split", "heal"]]),
    ]


@mutant(1)
def no_wait_after_the_announcement() -> Patches:
    """The scan begins before every writer knows of the new generation."""
    return _hurried(lambda one: one.is_building)


@mutant(55)
def standby_dropped_at_once() -> Patches:
    """The former generation goes while some processes still answer from it."""
    return _hurried(lambda one: one.published)


@mutant(18)
def no_barrier() -> Patches:
    """The scan begins while transactions are open that know nothing of the new generation."""
    return [patch.object(rebuild, "wait_for_writers", lambda *arguments: None)]


@mutant(18)
def publish_without_compare_and_set() -> Patches:
    """A builder publishes whatever happened to the row meanwhile."""
    real = StateTable.swap

    def swap(self: StateTable, seen: Any, **changes: Any) -> Any:
        if "published_at" in changes:
            now = self.current(seen.name)
            seen = replace(seen, version=now.version, token=now.token)
        return real(self, seen, **changes)

    return [patch.object(StateTable, "swap", swap)]


@mutant(86)
def standby_kept_though_an_add_missed_it() -> Patches:
    """A roll-back returns to a generation that lacks what was written when it took no more keys.

    Looked for where that befalls kept standbys alone.
    """

    def fill(self: Faults) -> None:
        row = read_row("default")
        for server in self.world.servers if row.standby_until else ():
            server.full.add(row.standby)

    return [
        patch.object(fencing, "drop_standby", lambda guard, using, seen: True),
        patch.object(agents, "WEATHERS", [["fill"]]),
        patch.object(Faults, "fill", fill),
    ]


# -- discards


@mutant(182)
def discard_without_a_token() -> Patches:
    """A deleted row leaves whatever generation answers by then, whether it was ever added there or not."""
    real = ActiveFilter.discard
    return [patch.object(ActiveFilter, "discard", lambda self, keys, name: real(self, keys, self.active()))]


@mutant(46)
def discard_by_every_deleter() -> Patches:
    """Of two that delete one row, both discard it."""
    return [patch.object(Process, "finds", lambda self, key: True)]


@mutant(9)
def discard_before_the_commit() -> Patches:
    """A row whose deletion is rolled back has left the filter."""

    def delete(self: Process, key: int) -> None:
        real(self, key)
        hooks = self.world.database.mine.on_commit
        while hooks:
            hooks.pop()()

    real = Process.delete
    return [patch.object(Process, "delete", delete)]


@mutant(41)
def insert_if_absent() -> Patches:
    """A key that seems to be there, because it shares its cell with another, is not added."""
    return [patch.object(World, "counts_adds", lambda self: False)]


@mutant(7)
def memory_without_the_recent_bits() -> Patches:
    """What was found to be absent stays so, though the row may have been made since."""
    return [patch.object(NegativeCache, "_is_recent", lambda self, name, key: False)]


@mutant(149)
def adds_without_the_recent_bits() -> Patches:
    """A write adds its key to the filter alone."""

    def add(self: Server, name: str, *args: Any) -> None:
        real(self, name, *args)
        for each in [each for each in self.held(name) if isinstance(each, tuple)]:
            del self.held(name)[each]

    real = Server.add
    return [patch.object(Server, "add", add)]


@mutant(17)
def a_counter_in_place_of_the_recent_bits() -> Patches:
    """What was found to be absent counts until the next add of its key: but the last one may not be committed yet."""
    before: WeakKeyDictionary[SimulatedStore, dict[tuple[str, bytes], int]] = WeakKeyDictionary()

    def might_contain(self: SimulatedGeneration, key: bytes) -> bool:
        times = self.times_added(key)  # before the check, and so before the statement that finds nothing
        before.setdefault(self._store, {})[self.name, key] = times
        return real(self, key)

    def remember(self: NegativeCache, key: bytes, name: str) -> None:
        generation: Any = self._opened(name)
        if generation is not None:
            generation.remembered = getattr(generation, "remembered", {})
            generation.remembered[key] = before.get(generation._store, {}).get((name, key))
        really_remember(self, key, name)

    def is_recent(self: NegativeCache, name: str, key: bytes) -> bool:
        generation: Any = self._opened(name)
        try:
            return generation is None or generation.times_added(key) != generation.remembered.get(key)
        except (FilterError, StoreError):
            return True

    real, really_remember = SimulatedGeneration._might_contain, NegativeCache.remember
    return [
        patch.object(SimulatedGeneration, "_might_contain", might_contain),
        patch.object(NegativeCache, "remember", remember),
        patch.object(NegativeCache, "_is_recent", is_recent),
    ]
