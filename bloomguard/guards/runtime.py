"""The part of a guard that answers in this process: its filter, its counters, its verdicts with their reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections, router

from ..conf import settings
from ..exceptions import ConfigurationError
from ..process import log_once
from ..state import table as states
from ..state.active_filter import ActiveFilter
from ..state.connection import CONNECT_SECONDS, READ_SECONDS
from ..state.row import Copy, State
from ..state.verdicts import ABSENT, AMBIGUOUS, DISABLED, ERROR, LEASE, MAYBE, SHADOW, WRITING, Decision, Verdict
from ..stores import Generation
from . import spot_checks
from .counters import counts, drawn, listeners, notify
from .doubts import named, strayed, unadded
from .keys import decision_for
from .places import in_a_thread, leads_to, needs_orm_thread

if TYPE_CHECKING:
    from .guard import Guard

#: What the guards of one request have decided: guard and key -> decision. ``None`` in place of a key: it has none.
Known = dict[tuple["Guard", "bytes | None"], Decision]
#: Limit of known decisions: a request checks few keys, but a block of guarded lookups may run for hours.
MOST_KNOWN = 1_000
#: ``check(known, value, absent)`` returns MAYBE, ABSENT or ``None``, and keeps the decision in ``known``.
ShortCheck = Callable[..., "Decision | None"]


class GuardRuntime:
    """``guard._runtime``. An async method has the prefix ``a``, and never blocks the event loop.

    A value is a field's value, or for several fields a sequence or mapping of values; converted or as in a URL.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        #: What the last ABSENT rested on: :attr:`ActiveFilter.last_check`, the leased state row, the database to read.
        self.last_absent: tuple[Any, State | None, str] = (None, None, "")
        #: The counters of this process.
        self.counters = counts.of(guard.name)

    @cached_property
    def active_filter(self) -> ActiveFilter:
        """This process's view of the guard's active filter.

        Raises only :class:`ConfigurationError`: after that, queries and writes go on as without an answer.
        """
        guard = self._guard
        try:
            return ActiveFilter(
                guard.name,
                store_alias=guard.store,
                definition=guard._meta.definition,
                width=guard._meta.keys.width,
                counted=guard._meta.discards,
            )
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(f"what its keys mean cannot be read: {type(error).__name__}") from error

    @property
    def mode(self) -> str:
        """The guard's mode, as set in the admin or by a command, else as declared."""
        return self.active_filter.mode or self._guard.mode

    @property
    def is_shadow(self) -> bool:
        """Whether the guard is in shadow mode."""
        return self.mode != "enforce"

    def answering(self) -> Generation | Decision:
        """Return the generation that answers now, or why every request passes. May wait. Never raises."""
        if not settings.is_enabled:
            return DISABLED
        try:
            answering = self.active_filter.answering()
            if isinstance(answering, Generation) and not self._guard._meta.place.is_certain():
                return AMBIGUOUS
            return answering
        except Exception:  # the guard is misconfigured: a system check reports it
            return ERROR

    # -- one value

    @cached_property
    def short(self) -> ShortCheck:
        """The short check, which decides most values."""
        return short_check(self)

    def decide(self, value: Any) -> Decision:
        """Return the verdict on ``value`` with its reason.

        May read the state rows, at most once per second and process. Never raises.
        """
        return self.short({}, value) or self.decide_in_full(value)

    def decide_in_full(self, value: Any, key: bytes | None = None) -> Decision:
        """Do :meth:`decide` after the short check decided nothing; pass the ``key`` if you have made it already."""
        if not settings.is_enabled:
            return DISABLED
        began = perf_counter_ns() if drawn() else 0
        try:
            if key is None:
                key = self.key(value)
            decision = self.ask(key)
            if decision is ABSENT and self._guard.mode == "enforce" and self._guard.scope is None:
                self._keep_absent(key)
        except Exception as error:
            decision = self._decision_for(error)
        if began:
            self.counters.time(began)
        if decision is ABSENT and self._is_check_due():
            decision = spot_checks.checks.check(self._guard, value)
        return self._record(value, decision)

    def key(self, value: Any) -> bytes:
        """Return the key of ``value``. Raises what the key maker does, but first what :attr:`active_filter` does.

        Without a filter, the guard does not know its mode: so not even a number out of range is ABSENT.
        """
        self.active_filter  # noqa: B018
        return self._guard._meta.keys.key(value)

    def ask(self, key: bytes) -> Decision:
        """Return the decision on ``key``, without a count and without a spot check. May read the state rows."""
        active = self.active_filter
        copy = active.table.copy
        decision = active.ask(key)
        return decision if decision is MAYBE else self._placed([decision], copy, [key])[0]

    def _keep_absent(self, key: bytes) -> None:
        """Store what an ABSENT rests on, for the short check: the generation's check, and the leased row that names it.

        Not for a store on a server, where a check that decides nothing would be a round trip.
        """
        active = self.active_filter
        asked, row = active.last_check, active.table.lease(self._guard.name)
        if asked is not None and row is not None and row.mode in ("", "enforce") and not active.store.is_remote:
            is_absent = active.ask_leased(key) is ABSENT
            if is_absent and active.last_check is asked and active.table.lease(self._guard.name) is row:
                alias = self._guard._meta.place.certain_alias(row.source)
                if alias and leads_to(alias, row.source.rpartition("/")[0]):  # whatever the routers write to
                    self.last_absent = asked, row, alias

    async def adecide(self, value: Any, key: bytes | None = None) -> Decision:
        """Async :meth:`decide`: await the store's network calls, and query the database in a thread."""
        if not settings.is_enabled:
            return DISABLED
        began = perf_counter_ns() if drawn() else 0
        try:
            if key is None:
                if self._guard.scope is not None:
                    (value,) = await self.ascoped([value])
                key = self.key(value)
            active = self.active_filter
            copy = active.table.copy
            decision = active.ask_now(key) or await active.aask(key)
            if decision is None and active.last_check is not None and active.table.lease(self._guard.name) is None:
                await _arenew(active.table)
                if active.table.lease(self._guard.name) is None:
                    decision = LEASE
                else:
                    copy = active.table.copy
                    decision = active.ask_now(key) or await active.aask(key)
            if decision is None:  # a filter must be read, or at the start the state rows
                decision = await in_a_thread(self.ask)(key)
            elif decision.verdict is Verdict.ABSENT:
                row = active.table.lease(self._guard.name)
                if row is None or needs_orm_thread() or self._guard._meta.place.must_read():
                    (decision,) = await in_a_thread(self._placed)([decision], copy, [key])
                else:
                    (decision,) = self._placed([decision], copy, [key], row)
        except Exception as error:
            decision = self._decision_for(error)
        if began:
            self.counters.time(began)
        if decision is ABSENT and self._is_check_due():
            decision = await in_a_thread(spot_checks.checks.check)(self._guard, value)
        return self._record(value, decision)

    # -- many values

    def decide_many(self, values: Sequence[Any]) -> list[Decision]:
        """Return a verdict with its reason for each of ``values``, in their order, in one round trip to the store."""
        if not settings.is_enabled:
            return [DISABLED] * len(values)
        found: list[Decision] = []
        keys: dict[int, bytes] = {}
        for place, value in enumerate(values):
            try:
                keys[place] = self.key(value)
                found.append(MAYBE)
            except Exception as error:
                found.append(self._decision_for(error))
        asked = list(keys.values())
        try:
            copy = self.active_filter.table.copy
            answers = self._placed(self.active_filter.ask_many(asked), copy, asked)
        except Exception as error:
            answers = [self._decision_for(error)] * len(asked)
        for place, answer in zip(keys, answers):
            if answer is ABSENT and self._is_check_due():
                answer = spot_checks.checks.check(self._guard, values[place])
            found[place] = answer
        return [self._record(value, decision) for value, decision in zip(values, found)]

    async def adecide_many(self, values: Sequence[Any]) -> list[Decision]:
        """Async :meth:`decide_many`, in a thread: to make many keys would hold up the event loop."""
        if not settings.is_enabled:
            return [DISABLED] * len(values)
        return await in_a_thread(self.decide_many)(await self.ascoped(values))

    # -- from the filter's answer to the decision

    async def ascoped(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return ``values``, each with its scope if the guard has one: only the thread of the ORM knows it."""
        if self._guard.scope is None:
            return values
        return await sync_to_async(lambda: [self._guard._meta.scopes.at(value) for value in values])()

    def _decision_for(self, error: Exception) -> Decision:
        """Map an exception to a decision; log one that is not expected."""
        decision = decision_for(error)
        if decision is ERROR:
            self.log_once(error)
        return decision

    def _placed(
        self, decisions: list[Decision], copy: Copy, keys: Sequence[bytes], row: State | None = None
    ) -> list[Decision]:
        """Replace each ABSENT if the filter may belong to another table, or may lack a row that this process wrote.

        ``copy`` is the process's copy of the state rows from before the check: the filter may have been replaced since.
        ``row`` is a lease from after the check; without it, the state rows may be read.
        """
        if not any(each.verdict is Verdict.ABSENT for each in decisions):
            return decisions
        row = row or self.active_filter.table.renewed(self._guard.name)
        doubt = self._doubt(copy.rows.get(self._guard.name), row)
        if row is None or doubt is not None:
            return [doubt or LEASE if each.verdict is Verdict.ABSENT else each for each in decisions]
        if self._guard.scope is None:
            return decisions
        covers = self._guard._meta.scopes.covers
        return [
            AMBIGUOUS if each.verdict is Verdict.ABSENT and not covers(row, key) else each
            for each, key in zip(decisions, keys)
        ]

    def _doubt(self, before: State | None, row: State | None) -> Decision | None:
        """Return the decision that replaces each ABSENT of a check between these two reads of the state row, if any."""
        if unadded.writers and unadded.may_have(self._guard.name):
            return WRITING
        if row is None or (before is not None and before.source != row.source):
            return LEASE
        if self._guard.scope is not None and (before is None or before.change != row.change):
            return LEASE  # another generation, built from other scopes, may have given the answer
        return None if self._guard._meta.place.certain_alias(row.source) else AMBIGUOUS

    def _is_check_due(self) -> bool:
        """Return whether to compare an ABSENT with the database; in shadow mode all are, as far as time allows."""
        return spot_checks.checks.is_due(self._guard) if self.is_shadow else spot_checks.drawn()

    def _record(self, value: Any, decision: Decision) -> Decision:
        """Count a decision and call the listeners; in shadow mode ABSENT becomes ``SHADOW``."""
        if decision.verdict is Verdict.ABSENT and self.is_shadow:
            decision = SHADOW
        self.counters[decision.reason]()
        if listeners:
            notify(self._guard, value, decision)
        return decision

    def log_once(self, error: Exception) -> None:
        """Log an error of a type that this guard has not logged yet."""
        log_once.error(error, "bloomguard: guard %s passes requests because of an internal error", self._guard.name)


def short_check(runtime: GuardRuntime) -> ShortCheck:
    """Return the check of one value that decides nearly every request, by what this process has.

    That is the generation that was checked last, in memory or on its disk, and for ABSENT what the last ABSENT rested
    on. In any other case it decides nothing, and the guard is asked in full. It never raises; with ``absent=False`` it
    decides nothing but MAYBE. ABSENT may query the database, for a spot check. So it is not for an event loop.

    Hot path: the rest of the request has filled the processor's caches, so each call and each object on the way costs
    a microsecond: all of them are bound here. MAYBE needs no lease (:mod:`bloomguard.state.active_filter`). Of a guard
    with a ``scope`` it knows nothing: the key depends on the connection.
    """
    guard = runtime._guard
    try:
        active, counters, key_of = runtime.active_filter, runtime.counters, guard._meta.keys.key
    except ConfigurationError:  # a system check reports it, or it is over at the next check

        def begin_again(known: Known, value: Any, absent: bool = True) -> None:
            vars(runtime).pop("short", None)

        return begin_again
    if guard.scope is not None:
        return lambda known, value, absent=True: None
    cache, model = active.negative_cache, guard.model

    def check(known: Known, value: Any, absent: bool = True) -> Decision | None:
        asked = active.last_check
        if asked is None or active.is_remote or listeners or not settings.is_enabled:
            return None
        try:
            key = key_of(value)
            place = guard, key
            decision = known.get(place)
            if decision is not None:
                return MAYBE if decision is MAYBE else None
            began = perf_counter_ns() if drawn() else 0
            if asked[1](key):
                if hash(key) in cache.marks:
                    return None
                decision = MAYBE
            elif absent:
                # All that the last ABSENT rested on is the same. The lease is checked after the filter.
                last, row, alias = runtime.last_absent
                if (
                    last is not asked
                    or guard.mode != "enforce"
                    or active.table.lease(guard.name) is not row
                    or router.db_for_read(model) != alias
                    or named(connections.settings[alias]) != strayed.databases.get(alias)
                    or (unadded.writers and unadded.may_have(guard.name))
                ):
                    return None
                decision = ABSENT
            else:
                return None
        except Exception:  # the full check meets the same error, and handles it
            return None
        if began:
            counters.time(began)
        if decision is ABSENT and spot_checks.drawn():
            decision = spot_checks.checks.check(guard, value)
        counters[decision.reason]()
        if len(known) < MOST_KNOWN:
            known[place] = decision
        return decision

    return check


#: The read of the state rows that is under way for each event loop.
_renewals: dict[tuple[asyncio.AbstractEventLoop, states.StateTable], asyncio.Task[bool]] = {}


async def _arenew(table: states.StateTable) -> None:
    """Read the state rows in one thread for all tasks of the loop; the others wait as another thread would.

    With a thread for each, none would be left for the project's own calls while the database hangs.
    """
    place, patience = (asyncio.get_running_loop(), table), states.RENEWAL_PATIENCE
    renewal = _renewals.get(place)
    if renewal is None:
        renewal = _renewals[place] = asyncio.create_task(in_a_thread(table.renew)())
        renewal.add_done_callback(lambda _: _renewals.pop(place, None))
        patience = CONNECT_SECONDS + READ_SECONDS
    await asyncio.wait({renewal}, timeout=patience)
