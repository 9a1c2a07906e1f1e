"""Rebuild: rows -> a new generation, measured, published as a whole.

    refuse what may not be armed -> create an empty generation -> announce it in the state row -> wait until every
    writer knows of it and every earlier writer has ended -> scan -> verify -> publish by compare-and-set -> drop the
    one before, or keep it

Until it is published the former generation answers; whatever stops the rebuild, it goes on answering. Only a refusal
fences it: what may not be armed now may deny rows already.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError, connections
from django.utils import timezone

from .building import growth, refusals, standby
from .building.barrier import wait_for_writers
from .building.builders import myself, refuse_if_alive
from .building.filling import fill
from .building.plans import Plan, Report, lay_out
from .building.proof import Proof
from .exceptions import BuilderBusy, ConfigurationError, RebuildError, StoreError
from .filters import FilterError
from .filters.choose import KeysSummary
from .filters.codec import new_tag
from .filters.layout import Layout
from .guards import Guard
from .models import GuardState
from .remembered import create_recent, new_name
from .signals import generation_published, tell
from .sources import Source
from .stores import Generation
from .sync.connection import has_own_transaction
from .sync.state import ARMED, FENCED, LEASE_SECONDS, State

logger = logging.getLogger("bloomguard")

#: Every process has read a row that was committed this long ago, or answers nothing.
SETTLE_SECONDS = 2 * LEASE_SECONDS
_BEAT_SECONDS = 10.0

Progress = Callable[[int, int], None]


class Rebuild:
    """One rebuild of one guard. ``progress(rows done, rows in all)`` is called after every page.

    The generation before is kept, and written to, for at least ``keep_standby`` seconds, for a roll-back.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        progress: Progress = lambda done, total: None,
        keep_standby: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guard = guard
        self.source = Source(guard)
        self.store = guard.live.store
        self.table = guard.live.table
        self._progress = progress
        self._keep_standby = keep_standby
        self._sleep = sleep
        self._clock = clock
        self._beaten_at = clock()
        self._name = ""
        self._replaced = ""  # the active generation of another store that we have fenced
        self._generation: Generation | None = None
        self._lying: Sequence[str] = ()
        self._seen: State | None = None
        self._mine: State | None = None
        self._seconds = 0.0
        self._expected = KeysSummary(count=0)
        self._proof: Proof | None = None
        self.published = False
        #: All builds that this process has announced: a long scan speaks for those that wait for their turn.
        self.companions: Sequence[Rebuild] = (self,)

    def plan(self) -> Plan:
        """What :meth:`run` would make; changes nothing. Raises :class:`RebuildError` if it cannot fit, with figures."""
        if refused := self._refusals():
            raise RebuildError(refused)
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
        return lay_out(self.guard, summary, tag=tag)

    def run(self) -> Report:
        """Build and publish; raises :class:`RebuildError`, and leaves what was served before as it was."""
        outcome = run_all([self], self._sleep)[0]
        if isinstance(outcome, RebuildError):
            raise outcome
        return outcome

    # The steps, in their order; `run_all` takes several guards through them side by side.

    def refuse(self) -> None:
        """Raise :class:`RebuildError` if a filter could deny rows that exist; fence the one that answers now."""
        self._refuse_transaction()
        if refused := self._refusals():
            self.table.fence(self.guard.name, refused.partition(": ")[2])
            raise RebuildError(refused)
        if denied := refusals.unreadable(self.guard, self.source.connection):
            raise RebuildError(f"{self.guard.name}: {denied}")

    def _refusals(self) -> str:
        found = [*refusals.declared(self.guard), *refusals.found(self.guard, self.source.connection)]
        return f"{self.guard.name}: {' '.join(map(str, found))}" if found else ""

    def prepare(self) -> None:
        """What takes long and can be done before anything is announced: here nothing."""

    def fence_replaced(self) -> bool:
        """Fence what another store or database answers, or another life of it; ``True`` if there is time to be given.

        Once the row names our store, writers no longer write to that one, and whoever still holds a lease on the row
        of before would answer from it: so a settling time has to be over before :meth:`announce`.
        """
        self._refuse_transaction()
        seen = self.table.current(self.guard.name)
        if not seen.active or (seen.is_ours and seen.identity == self.store.identity):
            return False
        if seen.building:
            refuse_if_alive(self.table, seen)
        # It may be fenced already, by somebody who was faster than we are by less than a lease: we wait in any case.
        self.table.fence(self.guard.name, self._takeover(seen))
        self._replaced = seen.active
        return True

    def _takeover(self, seen: State) -> str:
        here = socket.gethostname()
        if not seen.is_ours:
            return "the database was copied, restored or replaced"
        if self.store.waits or seen.host in ("", here):
            return "the store was replaced"
        return (
            f"{here} builds it in a store of its own, after {seen.host} did so; if both serve this site, each build "
            "undoes the other's: use a store that all hosts share"
        )

    def announce(self) -> None:
        """Create an empty generation and name it in the state row."""
        began = self._clock()
        if self._seen is None:
            self._create()
        assert self._seen is not None
        self._mine = self._announce(self._seen)
        standby.sweep(self.guard, self._lying, self._mine)
        self._seconds += self._clock() - began

    def _create(self) -> Generation:
        self._refuse_transaction()
        self._expected = self._summary()
        self._proof = Proof(self.source, self._sleep)
        layout = self._layout(self._expected, new_tag())
        # In this order: whoever sweeps lists what there is, then changes the row. What we create after reading the
        # row is either not on that list, or the row is no longer as we read it and we are the one to give way.
        seen = self.table.current(self.guard.name)
        if seen.building:
            refuse_if_alive(self.table, seen)
        self._seen, self._lying = seen, standby.lying(self.guard)
        self._name = new_name(secrets.token_hex(12), seen.here)
        self._generation = self.store.create(self.guard.name, self._name, layout)
        create_recent(self.store, self.guard.name, self._name, layout)
        return self._generation

    def wait_for_writers(self) -> None:
        """Return when nobody writes any more who does not know of it; a settling time has to be over before."""

        def sleep(seconds: float) -> None:
            self._sleep(seconds)
            for one in self.companions:
                one.beat()  # a writer may take longer than it takes to be held for dead

        wait_for_writers(self.source.using, self.guard.tables, sleep)

    def complete(self, waited: float) -> Report:
        """Scan, verify, publish; ``waited`` seconds were spent waiting before."""
        assert self._generation is not None
        assert self._proof is not None
        assert self._mine is not None
        began = self._clock()
        rows = self._fill(self._generation, self._expected.count)
        self._generation.seal()
        verified = self._proof.rows_held(self._generation)
        measured = self._proof.error_rate(self._generation)
        self._publish(self._mine, rows, measured)
        self.published = True
        layout = self._generation.layout
        return Report(
            guard=self.guard.name,
            generation=self._name,
            kind=layout.kind,
            rows=rows,
            rows_verified=verified,
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
                standby.drop(self.guard, self._name)
        except Exception as error:
            logger.warning("bloomguard left an unfinished generation of %s behind: %s", self.guard.name, error)

    def former(self) -> State | None:
        """The state row while what it names as active is what we have published."""
        if not self.published:
            return None
        try:
            state = self.table.current(self.guard.name)
        except DatabaseError as error:
            standby.left_behind(self.guard, error)
            return None
        return state if state.active == self._name else None

    def retire(self, state: State) -> None:
        """Drop the generation before, or keep it, a settling time after publishing: nobody answers from it any more."""
        standby.retire(self.guard, state, self._keep_standby)

    def beat(self) -> None:
        """Say now and then that this builder is alive."""
        if self._mine is not None and not self.published and self._clock() - self._beaten_at >= _BEAT_SECONDS:
            self._beaten_at = self._clock()
            self.table.beat(self._mine)

    def _announce(self, seen: State) -> State:
        """Name the new generation in the row: from its next look at the row on, every writer writes to it as well."""
        changes = {
            "building": self._name,
            "builder": myself(),
            "builder_seen_at": timezone.now(),
        }
        identity = self.store.identity
        if seen.identity != identity or not seen.is_ours:
            changes |= {"identity": identity, "host": socket.gethostname(), **self._replacing(seen)}
        mine = self.table.swap(seen, **changes)
        if mine is None:
            raise BuilderBusy(
                f"{self.guard.name}: somebody else changed its state row at the same moment; run it again later"
            )
        return mine

    def _replacing(self, seen: State) -> dict[str, Any]:
        """What else to change in a row that names another store or database, or another life of it."""
        if seen.active and (seen.status != FENCED or seen.active != self._replaced):
            raise BuilderBusy(f"{self.guard.name}: its store was replaced at this very moment; run it again later")
        # What it was trusted for is not here.
        return {"status": FENCED, "active": "", "standby": "", "standby_until": None}

    def _refuse_transaction(self) -> None:
        connection = connections[self.source.using]
        connection.ensure_connection()
        if connection.in_atomic_block or has_own_transaction(connection):
            raise RebuildError("a rebuild inside a transaction would not see what others commit; call it outside")

    def _fill(self, generation: Generation, expected: int) -> int:
        """Scan and add; returns the number of rows."""

        def read(done: int) -> None:
            self._progress(done, max(done, expected))
            for one in self.companions:
                one.beat()

        rows = fill(generation, self.source.pages(), read)
        if rows < expected:
            self._progress(rows, rows)  # there were fewer than expected
        if rows > generation.layout.capacity:
            raise RebuildError(
                f"{self.guard.name}: {rows:,} rows where {expected:,} were expected, and there is room for "
                f"{generation.layout.capacity:,}; run it again, or set capacity"
            )
        return rows

    def _publish(self, mine: State, rows: int, measured: float) -> None:
        assert self._generation is not None
        layout = self._generation.layout
        row = GuardState.objects.using(self.table.connection.alias).filter(name=mine.name).first()
        published = self.table.swap(
            mine,
            active=mine.building,
            # What was fenced lacks rows; and what answers nobody needs no time to be forgotten.
            standby=mine.active if mine.status == ARMED else "",
            standby_until=None,
            building="",
            builder="",
            status=ARMED,
            rows=rows,
            published_at=timezone.now(),
            kind=layout.kind,
            capacity=layout.capacity,
            bytes=layout.total_bytes,
            error_rate_measured=measured,
            reason="",
            **growth.kept(row),
        )
        if published is None:
            raise RebuildError(
                f"{self.guard.name}: its state row changed during the build (a fence, a roll-back, another builder), "
                "so the new generation may lack a row and was not published; run it again"
            )
        tell(generation_published, type(self.guard), guard=self.guard, generation=published.active, rows=rows)


def run_all(rebuilds: Sequence[Rebuild], sleep: Callable[[float], None] = time.sleep) -> list[Report | RebuildError]:
    """Build several guards with one wait for all: a report or an error for each, in their order.

    One that fails stops no other. Whatever is raised, Ctrl-C included, every unfinished build is withdrawn first.
    """
    outcomes: dict[Rebuild, Report | RebuildError] = {}
    replaced: list[Rebuild] = []

    def fence_replaced(one: Rebuild) -> None:
        if one.fence_replaced():
            replaced.append(one)

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
        each(lambda one: one.refuse())
        each(lambda one: one.prepare())
        each(fence_replaced)
        if replaced:
            sleep(SETTLE_SECONDS)
        each(lambda one: one.announce())
        began = time.monotonic()
        if len(outcomes) < len(rebuilds):
            sleep(SETTLE_SECONDS)
        each(lambda one: one.wait_for_writers())
        waited = time.monotonic() - began
        each(lambda one: one.complete(waited))
        retiring = [(one, state) for one in rebuilds if (state := one.former()) is not None]
        if any(state.standby for _, state in retiring):
            sleep(SETTLE_SECONDS)
        for one, state in retiring:
            one.retire(state)
    except BaseException:
        for one in rebuilds:
            one.withdraw()
        raise
    return [outcomes[one] for one in rebuilds]


def roll_back_all(guards: Sequence[Guard], sleep: Callable[[float], None] = time.sleep) -> list[State | RebuildError]:
    """Return to the generations before, with one wait for all: the row or an error for each guard, in their order."""
    outcomes: list[State | RebuildError] = []
    for guard in guards:
        try:
            outcomes.append(standby.roll_back(guard))
        except RebuildError as error:
            outcomes.append(error)
    _retire_after_all(list(zip(guards, outcomes)), sleep)
    return outcomes


def clear_away(guards: Sequence[Guard], sleep: Callable[[float], None] = time.sleep) -> None:
    """Drop the standbys of ``guards`` whose time is over, without a build."""
    states = [(guard, guard.live.table.current(guard.name)) for guard in guards]
    _retire_after_all([(guard, state) for guard, state in states if standby.is_over(guard, state)], sleep)


def _retire_after_all(states: Sequence[tuple[Guard, State | RebuildError]], sleep: Callable[[float], None]) -> None:
    retiring = [(guard, state) for guard, state in states if isinstance(state, State)]
    if retiring:
        sleep(SETTLE_SECONDS)
    for guard, state in retiring:
        standby.retire(guard, state)
