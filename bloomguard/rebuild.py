"""Rebuild: rows -> a new generation, measured, published as a whole.

    create an empty generation -> announce it in the state row -> wait until every writer knows of it and every
    earlier writer has ended -> scan -> measure -> publish by compare-and-set -> drop the one before

Until it is published the former generation answers; whatever stops the rebuild, it goes on answering.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, connections
from django.utils import timezone

from .barrier import wait_for_writers
from .exceptions import BuilderBusy, ConfigurationError, RebuildError, StoreError
from .filters import FilterError
from .filters.choose import Choice, KeysSummary, choose
from .filters.codec import new_tag
from .filters.layout import Layout
from .guards import Guard
from .models import GuardState
from .sources import Page, Source
from .stores import Generation
from .sync.state import ARMED, FENCED, LEASE_SECONDS, State

logger = logging.getLogger("bloomguard")

#: What a filter has room for beyond today's rows, unless the guard says how many.
HEADROOM = 1.5
SMALLEST_CAPACITY = 1_000
#: Every process has read a row that was committed this long ago, or answers nothing.
SETTLE_SECONDS = 2 * LEASE_SECONDS
#: A builder that has not been heard of for this long is dead.
DEAD_AFTER_SECONDS = 60.0
_BEAT_SECONDS = 10.0
_BATCH_KEYS = 400_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rebuild would make: about how many rows, room for how many, and the bytes that takes."""

    guard: str
    kind: str
    rows: int
    capacity: int
    error_rate: float
    bytes: int
    shards: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rebuild made. ``seconds`` is its own work, ``waited_seconds`` the wait for writers of other processes."""

    guard: str
    generation: str
    kind: str
    rows: int
    capacity: int
    bytes: int
    error_rate: float
    error_rate_measured: float
    seconds: float
    waited_seconds: float


class Rebuild:
    """One rebuild of one guard. ``progress(rows done, rows in all)`` is called after every page."""

    def __init__(
        self,
        guard: Guard,
        *,
        progress: Progress = lambda done, total: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guard = guard
        self.source = Source(guard)
        self.store = guard.live.store
        self.table = guard.live.table
        self._progress = progress
        self._sleep = sleep
        self._clock = clock
        self._beaten_at = clock()
        self._name = ""
        self._generation: Generation | None = None
        self._lying: Sequence[str] = ()
        self._seen: State | None = None
        self._mine: State | None = None
        self._seconds = 0.0
        self._expected = KeysSummary(count=0)
        self.published = False
        #: All builds that this process has announced: a long scan speaks for those that wait for their turn.
        self.companions: Sequence[Rebuild] = (self,)

    def plan(self) -> Plan:
        """What :meth:`run` would make; changes nothing. Raises :class:`RebuildError` if it cannot fit, with figures."""
        summary = self._summary()
        layout = self._layout(summary, tag=0)
        return Plan(
            guard=self.guard.name,
            kind=layout.kind,
            rows=summary.count,
            capacity=layout.capacity,
            error_rate=layout.error_rate,
            bytes=layout.total_bytes,
            shards=len(layout.headers),
        )

    def _summary(self) -> KeysSummary:
        return self.source.summary()

    def _layout(self, summary: KeysSummary, tag: int) -> Layout:
        key_id, key_hash = self.guard.live.key_hashes()[0]
        choice = self._choice(summary)
        layout = Layout.plan(
            key_hash=key_hash,
            capacity=choice.capacity,
            error_rate=self.guard.error_rate,
            tag=tag,
            key_id=key_id,
            kind=choice.kind,
            shard_bytes=self.store.shard_bytes,
            **choice.options,
        )
        self._check_room(layout)
        return layout

    def _check_room(self, layout: Layout) -> None:
        free = self.store.free_bytes()
        if free is not None and layout.total_bytes > free:
            raise RebuildError(
                f"{self.guard.name}: room for {layout.capacity:,} keys at {layout.error_rate:g} takes "
                f"{layout.total_bytes:,} bytes; the store {self.store.alias!r} has {free:,} left. Free some, or raise "
                "error_rate"
            )

    def _choice(self, summary: KeysSummary) -> Choice:
        wanted = self.guard.filter
        capacity = max(self.guard.capacity or int(summary.count * HEADROOM), summary.count, SMALLEST_CAPACITY)
        if wanted == "auto":
            return choose(summary, self.guard.error_rate, capacity=capacity)
        if wanted != "bitmap":
            return Choice(kind=wanted, capacity=capacity)
        if self.guard.keys.width != 8:
            raise RebuildError(f"{self.guard.name}: filter is 'bitmap', which holds integers and dates alone")
        low = 1 if summary.low is None else summary.low
        high = low if summary.high is None else summary.high
        # Room above, in the proportion that the rows have to grow.
        reach = (high - low + 1) * capacity // max(summary.count, 1)
        return Choice(kind=wanted, capacity=capacity, options={"low": low, "high": max(high, low + reach - 1)})

    def run(self) -> Report:
        """Build and publish; raises :class:`RebuildError`, and leaves what was served before as it was."""
        outcome = run_all([self], self._sleep)[0]
        if isinstance(outcome, RebuildError):
            raise outcome
        return outcome

    # The steps, in their order; `run_all` takes several guards through them side by side.

    def prepare(self) -> None:
        """What takes long and can be done before anything is announced: here nothing."""

    def announce(self) -> None:
        """Create an empty generation and name it in the state row."""
        began = self._clock()
        if self._seen is None:
            self._create()
        assert self._seen is not None
        self._mine = self._announce(self._seen)
        self._sweep(self._lying, self._mine)
        self._seconds += self._clock() - began

    def _create(self) -> Generation:
        if connections[self.source.using].in_atomic_block:
            raise RebuildError("a rebuild inside a transaction would not see what others commit; call it outside")
        self._expected = self._summary()
        layout = self._layout(self._expected, new_tag())
        # In this order: whoever sweeps lists what there is, then changes the row. What we create after reading the
        # row is either not on that list, or the row is no longer as we read it and we are the one to give way.
        seen = self.table.current(self.guard.name)
        if seen.building:
            self._refuse_if_alive(seen)
        self._seen, self._lying = seen, self.store.names(self.guard.name)
        self._name = secrets.token_hex(12)
        self._generation = self.store.create(self.guard.name, self._name, layout)
        return self._generation

    def wait_for_writers(self) -> None:
        """Return when nobody writes any more who does not know of it; a settling time has to be over before."""

        def sleep(seconds: float) -> None:
            self._sleep(seconds)
            for one in self.companions:
                one.beat()  # a writer may take longer than it takes to be held for dead

        wait_for_writers(self.source.using, self.guard.model._meta.db_table, sleep)

    def complete(self, waited: float) -> Report:
        """Scan, measure, publish; ``waited`` seconds were spent waiting before."""
        assert self._generation is not None
        assert self._mine is not None
        began = self._clock()
        rows = self._fill(self._generation, self._expected.count)
        self._generation.seal()
        measured = self._generation.measure_error_rate()
        self._publish(self._mine, rows)
        self.published = True
        layout = self._generation.layout
        return Report(
            guard=self.guard.name,
            generation=self._name,
            kind=layout.kind,
            rows=rows,
            capacity=layout.capacity,
            bytes=layout.total_bytes,
            error_rate=layout.error_rate,
            error_rate_measured=measured,
            seconds=self._seconds + self._clock() - began,
            waited_seconds=waited,
        )

    def withdraw(self) -> None:
        """Leave no litter of a build that stopped; what cannot be done now, the next build's sweep does."""
        if self.published or not self._name:
            return
        try:
            # The row itself knows how far we came: of a change that was cut off we have not heard.
            state = self.table.current(self.guard.name)
            if state.building == self._name:
                state = self.table.swap(state, building="", builder="") or state
            if self._name not in state.generations:
                self.store.drop(self.guard.name, self._name)
        except Exception as error:
            logger.warning("bloomguard left an unfinished generation of %s behind: %s", self.guard.name, error)

    def former(self) -> State | None:
        """The state row while it still names the generation before, if it does."""
        if not self.published:
            return None
        try:
            state = self.table.current(self.guard.name)
        except DatabaseError as error:
            self._left_behind(error)
            return None
        return state if state.active == self._name and self._replaces(state) else None

    def _replaces(self, state: State) -> bool:
        return bool(state.standby)

    def retire(self, state: State) -> None:
        """Drop the generation before, a settling time after publishing: nobody answers from it any more."""
        try:
            lying = self.store.names(self.guard.name)
            after = self.table.swap(state, standby="")
        except (DatabaseError, StoreError) as error:
            self._left_behind(error)
            return
        if after is not None:
            self._sweep(lying, after)

    def _left_behind(self, error: Exception) -> None:
        """What is left over costs space and nothing else: the next build's sweep takes it."""
        logger.warning("bloomguard could not clear away an old generation of %s: %s", self.guard.name, error)

    def beat(self) -> None:
        """Say now and then that this builder is alive."""
        if self._mine is not None and not self.published and self._clock() - self._beaten_at >= _BEAT_SECONDS:
            self._beaten_at = self._clock()
            self.table.beat(self._mine)

    def _announce(self, seen: State) -> State:
        """Name the new generation in the row: from its next look at the row on, every writer writes to it as well."""
        changes = {
            "building": self._name,
            "builder": f"{socket.gethostname()}/{os.getpid()}",
            "builder_seen_at": timezone.now(),
        }
        identity = self.store.identity
        if seen.identity != identity:
            # Another store, or another life of it: what it was trusted for is not here.
            changes |= {"identity": identity, "active": "", "standby": "", "status": FENCED}
            if seen.active:
                changes |= {"fenced_at": timezone.now(), "reason": "the store was replaced"}
        mine = self.table.swap(seen, **changes)
        if mine is None:
            raise BuilderBusy(f"{self.guard.name}: somebody else changed its state row at the same moment")
        return mine

    def _refuse_if_alive(self, seen: State) -> None:
        host, _, pid = seen.builder.rpartition("/")
        row = GuardState.objects.using(self.table.connection.alias).get(name=seen.name)
        silent = timezone.now() - (row.builder_seen_at or timezone.now())
        dead = silent > timedelta(seconds=DEAD_AFTER_SECONDS)
        if host == socket.gethostname() and not _runs(int(pid)):
            dead = True
        if not dead:
            raise BuilderBusy(
                f"{seen.name} is being built by process {pid} on {host}, heard of {silent.total_seconds():.0f} s ago"
            )

    def _sweep(self, lying: Sequence[str], state: State) -> None:
        """Remove what builders have left: all of ``lying`` that the row does not name."""
        for name in lying:
            if name not in state.generations:
                try:
                    self.store.drop(self.guard.name, name)
                except StoreError as error:
                    self._left_behind(error)

    def _fill(self, generation: Generation, expected: int) -> int:
        """Scan and add, the next page being read while the last one is hashed; returns the number of rows."""
        rows = 0
        with ThreadPoolExecutor(1) as hasher:
            pending: Future[None] | None = None
            batch: list[Page] = []
            held = 0
            for page in self.source.pages():
                batch.append(page)
                held += page.rows
                rows += page.rows
                if held >= _BATCH_KEYS:
                    if pending is not None:
                        pending.result()
                    pending = hasher.submit(self._add, generation, batch)
                    batch, held = [], 0
                self._progress(rows, max(rows, expected))
                for one in self.companions:
                    one.beat()
            if pending is not None:
                pending.result()
            self._add(generation, batch)
        if rows < expected:
            self._progress(rows, rows)  # there were fewer than expected
        if rows > generation.layout.capacity:
            raise RebuildError(
                f"{self.guard.name}: {rows:,} rows where {expected:,} were expected, and there is room for "
                f"{generation.layout.capacity:,}; run it again, or set capacity"
            )
        return rows

    @staticmethod
    def _add(generation: Generation, batch: list[Page]) -> None:
        import numpy as np

        keys: list[Any] = [page.keys for page in batch]
        if not keys:
            return
        if isinstance(keys[0], np.ndarray):
            generation.add_many(np.concatenate(keys), more=True)
        elif isinstance(keys[0], bytes):
            generation.add_many(b"".join(keys), more=True)
        else:
            for some in keys:
                generation.add_many(some, more=True)

    def _publish(self, mine: State, rows: int) -> None:
        published = self.table.swap(
            mine,
            active=mine.building,
            standby=mine.active,
            building="",
            builder="",
            status=ARMED,
            rows=rows,
            published_at=timezone.now(),
            reason="",
        )
        if published is None:
            raise RebuildError(
                f"{self.guard.name}: its state row changed during the build (a fence, or another builder), so the new "
                "generation may lack a row and was not published; run it again"
            )


def run_all(rebuilds: Sequence[Rebuild], sleep: Callable[[float], None] = time.sleep) -> list[Report | RebuildError]:
    """Build several guards with one wait for all: a report or an error for each, in their order.

    One that fails stops no other. Whatever is raised, Ctrl-C included, every unfinished build is withdrawn first.
    """
    outcomes: dict[Rebuild, Report | RebuildError] = {}

    def each(step: Callable[[Rebuild], Report | None]) -> None:
        for one in rebuilds:
            if one in outcomes:
                continue
            try:
                done = step(one)
            except (RebuildError, ConfigurationError, StoreError, FilterError, DatabaseError) as error:
                one.withdraw()
                failed = error if isinstance(error, RebuildError) else RebuildError(f"{one.guard.name}: {error}")
                failed.__cause__ = error if failed is not error else error.__cause__
                outcomes[one] = failed
            else:
                if done is not None:
                    outcomes[one] = done

    try:
        for one in rebuilds:
            one.companions = rebuilds
        each(lambda one: one.prepare())
        each(lambda one: one.announce())
        began = time.monotonic()
        if len(outcomes) < len(rebuilds):
            sleep(SETTLE_SECONDS)
        each(lambda one: one.wait_for_writers())
        waited = time.monotonic() - began
        each(lambda one: one.complete(waited))
        replaced = [(one, state) for one in rebuilds if (state := one.former()) is not None]
        if replaced:
            sleep(SETTLE_SECONDS)
        for one, state in replaced:
            one.retire(state)
    except BaseException:
        for one in rebuilds:
            one.withdraw()
        raise
    return [outcomes[one] for one in rebuilds]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
