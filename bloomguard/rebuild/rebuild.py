"""Rebuild: build a new generation from the rows, verify it, and publish it.

    refuse guards that may deny rows -> create a generation -> announce it in the state row -> wait until every writer
    has read the row and every earlier writer has ended -> scan -> verify -> publish by compare-and-set -> drop the old

The previous generation stays active until the publication, also if the rebuild fails or is killed. It is fenced before
only if the guard is refused, because it may already deny rows, or by the announcement, if that names another store or
database: one row cannot name both.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from traceback import clear_frames
from typing import Any

from django.db import DatabaseError
from django.utils import timezone

from ..exceptions import BuilderBusy, RebuildError, StoreError
from ..filters.layout import Layout
from ..guards import Guard
from ..signals import generation_published, send
from ..state.row import ARMED, FENCED, State, held_by_hand
from ..state.table import EXPIRY_SECONDS, StateTable
from ..stores import Generation, Store
from . import refusals, standby
from .locks import beating, builder_id, is_due, refuse_if_alive, refuse_transaction, superseded, wait_for_writers
from .pages import Proof, fill
from .plan import Plan, Report, failure, growth_baseline, missing_table, plan_layout
from .sources import Sources
from .verify import PROBES, Progress, PublishCheck, check_error_rate

logger = logging.getLogger("bloomguard")


class Rebuild:
    """One rebuild of one guard. ``progress(rows done, rows in all)`` is called after every page.

    For a roll-back, the previous generation is kept, and written to, for at least ``keep_standby`` seconds.
    ``unless_held``: refuse if a user has fenced the guard by hand, maybe since the decision to rebuild it.
    ``probes`` keys measure the error rate.

    :func:`run_all` calls :meth:`refuse`, :meth:`prepare`, :meth:`announce`, :meth:`wait_for_writers`, :meth:`complete`
    and :meth:`retire`, in this order, and :meth:`withdraw` if one of them fails.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        progress: Progress = lambda done, total: None,
        keep_standby: float = 0.0,
        unless_held: bool = False,
        probes: int = PROBES,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guard, self._progress = guard, progress
        self._keep_standby, self._unless_held, self._probes = keep_standby, unless_held, probes
        self._sleep, self._clock = sleep, clock
        #: The generation, since :meth:`prepare` or :meth:`announce`; what the store had before, and the rows expected.
        self._name = ""
        self._generation: Generation | None = None
        self._names_before: Sequence[str] = ()
        self._expected_rows = 0
        self._checks: list[PublishCheck] = []
        #: The state row as it was then; since :meth:`announce` and since the publication, as that has left it.
        self._row = State(guard.name)
        self._last_heartbeat, self._stepped_at, self._seconds = clock(), clock(), 0.0
        self.published = self.is_retired = self._is_lost = False
        self._retires_at = float("inf")  # since the publication, a time by the clock
        #: All rebuilds of this run: a long scan sends the heartbeats of those that wait for their turn.
        self.companions: Sequence[Rebuild] = (self,)

    @cached_property
    def store(self) -> Store:
        """The guard's own store; raises :class:`ConfigurationError`."""
        return self.guard._runtime.active_filter.store.patient

    @cached_property
    def table(self) -> StateTable:
        """The state rows; raises :class:`ConfigurationError`."""
        return self.guard._runtime.active_filter.table

    @cached_property
    def sources(self) -> Sources:
        """What is read; raises :class:`RebuildError`."""
        return Sources(self.guard)

    @property
    def is_building(self) -> bool:
        """Whether the generation is announced, and not published yet."""
        return self._name != "" and self._row.building == self._name and not self.published

    def plan(self) -> Plan:
        """Return what :meth:`run` would make. Raises :class:`RebuildError`, with figures, if it does not fit."""
        self._check_refusals(fence=False)
        rows, layout = self._plan()
        return Plan.of(layout, guard=self.guard.name, rows=rows, shards=layout.header.shards)

    def _plan(self) -> tuple[int, Layout]:
        """Return the expected number of rows, and the layout of a generation for them."""
        summary = self.sources.summary()
        return summary.count, plan_layout(self.guard, summary)

    def run(self) -> Report:
        """Build and publish. Raises :class:`RebuildError`; then the previous generation stays active."""
        outcome = run_all([self], self._sleep)[0]
        if isinstance(outcome, RebuildError):
            raise outcome
        return outcome

    def refuse(self) -> None:
        """Raise :class:`RebuildError`, and fence the guard, if a filter could deny rows that exist."""
        refuse_transaction(self.sources.aliases)
        self._check_refusals(fence=True)
        for source in self.sources:
            if denied := refusals.unreadable_columns(self.guard, source.connection):
                raise RebuildError(f"{self.guard.name}: {denied}")

    def _check_refusals(self, *, fence: bool) -> None:
        found = list(refusals.declaration_refusals(self.guard))
        for source in self.sources:
            self._send_heartbeats()  # each takes some 10 ms, and there may be thousands
            found += refusals.database_refusals(self.guard, source.connection)
        if found := list(dict.fromkeys(found)):
            if fence:
                self.table.fence(self.guard.name, "; ".join(each.reason for each in found))
            raise RebuildError(f"{self.guard.name}: {' '.join(map(str, found))}")

    def prepare(self) -> None:
        """Do what takes long and can be done before the announcement: nothing here."""

    def announce(self) -> None:
        """Create an empty generation and name it in the state row, so that every writer adds to it.

        If the active generation is in another store, or of other rows or keys, the same change of the row fences it.
        """
        began = self._clock()
        if self._generation is None:
            made = self._create()
            if marks := self.sources.marks():
                made.add(marks)  # no process has opened it yet
        self._last_heartbeat = self._clock()
        self._row = self._name_generation(self._row)
        standby.sweep(self.guard, self._names_before, self._row)
        self._seconds += self._clock() - began

    def _create(self) -> Generation:
        refuse_transaction(self.sources.aliases)
        self._expected_rows, layout = self._plan()
        self._checks = [PublishCheck(source, self._sleep, len(self.sources)) for source in self.sources]
        # In this order: another builder lists the store, changes the row, then sweeps. If its list has what we create
        # after reading the row, the row has changed since we read it, and our announcement fails.
        row = self.table.current(self.guard.name)
        if row.building:
            refuse_if_alive(self.table, row)
        whole = self.table.row(self.guard.name)  # not later: the project's own connection may be idle for hours then
        self._baseline, held = growth_baseline(whole), held_by_hand(whole) if self._unless_held else ""
        if held:  # if it is fenced after this, the announcement fails
            raise BuilderBusy(f"{self.guard.name}: stays disabled: {held}")
        self._row, self._names_before = row, self.store.names(self.guard.name)
        self._name = standby.new_name(row.here)
        self._generation = self.store.create(self.guard.name, self._name, layout)
        return self._generation

    def _name_generation(self, before: State) -> State:
        """Name the generation in the row; return the new row. Raises :class:`BuilderBusy` if it is not as ``before``.

        For a lease some process still answers by the row ``before``: if this is a fence, no writer commits till then.
        """
        if not (identity := self.store.identity):
            raise StoreError(f"the store {self.store.alias!r} has no identity, so no filter in it could be trusted")
        if self._generation is not None and self._generation.identity not in ("", identity):
            # The connection that created it still leads to the server from before a failover.
            raise RebuildError(f"{self.guard.name}: the store was replaced at the same moment; run it again")
        meta, source, reason = self.guard._meta, self._source(), ""
        built_for = {"tables": "\n".join(sorted(meta.tables)), "definition": meta.definition_hash}
        changes: dict[str, Any] = {
            "building": self._name,
            "builder": builder_id(),
            "builder_seen_at": timezone.now(),
            **built_for,
        }
        is_of_others = any(getattr(before, name) not in ("", value) for name, value in built_for.items())
        if is_of_others or not before.is_in(identity) or not before.is_ours or before.source != source:
            if before.active and before.status != FENCED:
                reason = self._why_fenced(before)
            fence = self.table.fenced_values(reason)
            if not reason:  # if it is fenced already, that reason stays, which may be a user's
                del fence["reason"]
            place = {"active": "", "identity": identity, "host": socket.gethostname(), "source": source}
            changes = {**fence, **place, **changes}
        after = self.table.swap(before, **changes)
        if after is None:
            raise BuilderBusy(f"{self.guard.name}: its state row changed at the same moment; run it again later")
        if reason:
            self._log_fenced(reason)
        return after

    def _source(self) -> str:
        if (found := self.guard._meta.place.source(self.sources.aliases[0])) is not None:
            return found
        why = missing_table(self.guard) or "cannot find out which schema its table is in; see the log"
        raise RebuildError(f"{self.guard.name}: {why}")

    def _why_fenced(self, before: State) -> str:
        if not before.is_ours or not before.is_in(self.store.identity):
            return before.describe_location(self.store)
        return "the guard's options have changed, or the database, schema or table of its rows"

    def _log_fenced(self, reason: str) -> None:
        self.table.log_fenced(self.guard.name, reason)

    def wait_for_writers(self) -> None:
        """Wait for transactions from before the announcement; call it :data:`EXPIRY_SECONDS` after that."""

        def sleep(seconds: float) -> None:
            self._sleep(seconds)
            self._send_heartbeats()  # a writer may take longer than the time after which a builder counts as dead

        for source in self.sources:
            source.proof = Proof.of(source.using, self.table, self._row.database)
            for _ in [*self.guard._meta.tables][:2]:  # twice: a writer of another one may not see what these wrote
                wait_for_writers(source.using, self.guard._meta.tables, sleep, source.proof)

    def complete(self) -> Report:
        """Scan, verify and publish."""
        assert self._generation is not None
        began = self._clock()
        self.refuse()  # again: only since the announcement does a change of the table fence this build
        rows = self._fill(self._generation, self._expected_rows)
        self._generation.seal()
        verified = 0
        for check in self._checks:
            try:
                verified += check.verify_rows(self._generation)
            except RebuildError:
                if not self.table.heartbeat(self._row):  # rows are missing because of a fence, which has a reason
                    raise superseded(self.table, self.guard.name) from None
                raise
            self._send_heartbeats()
        measured = check_error_rate(self.guard, self._generation, self._probes)
        self._publish(self._generation.layout, rows, measured)
        self.published, ended = True, self._clock()
        self._retires_at = ended + EXPIRY_SECONDS
        return Report.of(
            self._generation.layout,
            guard=self.guard.name,
            generation=self._name,
            rows=rows,
            rows_verified=verified,
            error_rate_measured=measured,
            seconds=self._seconds + ended - began,
        )

    def withdraw(self) -> None:
        """Remove an unfinished generation; if that fails, the next build's sweep does it."""
        if self.published or not self._name:
            return
        try:
            # Read the row: we got no result of a change that was interrupted.
            state = self.table.current(self.guard.name)
            if state.building == self._name:
                state = self.table.swap(state, building="", builder="") or state
            if self._name not in state.generations:
                self.store.drop(self.guard.name, self._name)
        except Exception as error:
            logger.warning("bloomguard left an unfinished generation of %s behind: %s", self.guard.name, error)

    def row_published(self) -> State | None:
        """Return the state row as it is now, if its active generation is the one that this rebuild has published."""
        if not self.published:
            return None
        try:
            state = self.table.current(self.guard.name)
        except DatabaseError as error:
            standby.log_not_removed(self.guard, error)
            return None
        return state if state.active == self._name else None

    def retire(self, state: State) -> bool:
        """Drop or keep the previous generation, :data:`EXPIRY_SECONDS` after publishing; see :func:`standby.retire`."""
        return standby.retire(self.guard, state, self._keep_standby)

    def heartbeat(self, *, in_step: bool = False) -> None:
        """Renew this builder's heartbeat in the state row, if it is due. ``in_step``: in a thread. Never raises."""
        times = self._last_heartbeat, self._stepped_at, self._clock()
        # No other process can write a file while a statement reads it, nor read it while the heartbeat waits for that.
        if self.is_building and is_due(*times, in_step=in_step) and not (in_step and self.table.connection.is_file):
            self._last_heartbeat = self._clock()
            try:
                self._is_lost = not self.table.heartbeat(self._row)
            except DatabaseError as error:  # if another builder has taken over meanwhile, the publication fails
                logger.info("bloomguard could not record that the build of %s is running: %s", self.guard.name, error)

    def _send_heartbeats(self) -> None:
        """Renew those of this run. Raises :class:`RebuildError` if this build can be published no more."""
        for one in self.companions:
            one._stepped_at = one._clock()
            one.heartbeat()
            if one._clock() >= one._retires_at:  # at once: this build may take hours
                one._retires_at, one.is_retired = float("inf"), one.retire(one._row)
        if self._is_lost:
            raise superseded(self.table, self.guard.name)

    def _fill(self, generation: Generation, expected: int) -> int:
        def read(done: int) -> None:
            self._progress(done, max(done, expected))
            self._send_heartbeats()

        rows = fill(generation, self.sources.pages(), read)
        if rows < expected:
            self._progress(rows, rows)  # there were fewer than expected
        if rows > generation.layout.capacity:
            raise RebuildError(
                f"{self.guard.name}: {rows:,} rows where {expected:,} were expected, and there is room for "
                f"{generation.layout.capacity:,}; run it again, or set capacity"
            )
        return rows

    def _publish(self, layout: Layout, rows: int, measured: float) -> None:
        changes = {
            "active": self._name,
            "standby": self._row.active if self._row.status == ARMED else "",  # a fenced one lacks rows
            "standby_until": None,
            "building": "",
            "builder": "",
            "status": ARMED,
            "rows": rows,
            "published_at": timezone.now(),
            "kind": layout.kind,
            "capacity": layout.capacity,
            "bytes": layout.total_bytes,
            "error_rate_measured": measured,
            "reason": "",
            **self._baseline,
        }
        published = self.table.swap(self._row, **changes)
        if published is None:
            raise superseded(self.table, self.guard.name)
        self._row = published
        send(generation_published, type(self.guard), guard=self.guard, generation=published.active, rows=rows)


def run_all(rebuilds: Sequence[Rebuild], sleep: Callable[[float], None] = time.sleep) -> list[Report | RebuildError]:
    """Run several rebuilds with one wait for all; return a report or an error for each, in their order.

    If one fails, even by the project's own code, the others go on. On Ctrl-C unfinished generations are removed first.
    """
    outcomes: dict[Rebuild, Report | RebuildError] = {}

    def each(step: Callable[[Rebuild], object]) -> None:
        """Take the step with each rebuild that goes on."""
        for one in rebuilds:
            if one in outcomes:
                continue
            try:
                one._send_heartbeats()  # those of the others too: each step may take long
                done = step(one)
            except Exception as error:
                one.withdraw()
                outcomes[one] = failure(one.guard, error)
            else:
                if isinstance(done, Report):
                    outcomes[one] = done

    try:
        for one in rebuilds:
            one.companions = rebuilds
        with beating([partial(one.heartbeat, in_step=True) for one in rebuilds]):
            each(lambda one: one.refuse())
            each(lambda one: one.prepare())
            each(lambda one: one.announce())
            began = time.monotonic()
            if len(outcomes) < len(rebuilds):
                sleep(EXPIRY_SECONDS)
            each(lambda one: one.wait_for_writers())
            waited = time.monotonic() - began
            each(lambda one: one.complete())
        due = [one for one in rebuilds if not one.is_retired]
        retiring = [(one, state) for one in due if (state := one.row_published()) is not None]
        if any(state.standby for _, state in retiring):
            sleep(EXPIRY_SECONDS)
            waited += EXPIRY_SECONDS
        for one, state in retiring:
            one.retire(state)
    except BaseException as error:
        clear_frames(error.__traceback__)  # while a cursor in one reads, SQLite refuses to change the state row
        for one in rebuilds:
            one.withdraw()
        raise
    found = (outcomes[one] for one in rebuilds)
    return [replace(done, waited_seconds=waited) if isinstance(done, Report) else done for done in found]
