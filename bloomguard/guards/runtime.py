"""The part of a guard that answers in this process: its filter, its counters, its verdicts with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ..conf import settings
from ..log_once import LogOnce
from ..state.active_filter import ActiveFilter
from ..verdicts import ABSENT, DISABLED, ERROR, MAYBE, OUT_OF_RANGE, SHADOW, UNKEYABLE, Decision, Verdict
from . import counters, spot_checks
from .keys import KeyMaker, OutOfRange, Uncertain, Unkeyable
from .verdict_log import listeners, notify

if TYPE_CHECKING:
    from .guard import Guard

#: More values than this would block an event loop for longer than a millisecond; they go to a thread.
_ON_LOOP = 500


class GuardRuntime:
    """``guard._runtime``. An async method has the prefix ``a``, and never blocks the event loop.

    A value is a field's value, or for several fields a sequence or mapping of values; converted or as in a URL.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._check_due = False
        self._log = LogOnce()
        #: The counters of this process.
        self.counters = counters.counts.of(guard.name)

    @cached_property
    def keys(self) -> KeyMaker:
        """:attr:`GuardMeta.keys`, one attribute nearer."""
        return self._guard._meta.keys

    @cached_property
    def active_filter(self) -> ActiveFilter:
        """This process's view of the guard's active filter."""
        guard = self._guard
        return ActiveFilter(
            guard.name,
            store_alias=guard.store,
            definition=guard._meta.definition,
            width=self.keys.width,
            counted=guard._meta.discards,
        )

    @property
    def is_shadow(self) -> bool:
        """Whether the guard is in shadow mode: set in the admin, else by ``mode``."""
        return (self.active_filter.mode or self._guard.mode) != "enforce"

    def add(self, value: Any) -> bool:
        """Add a value that exists, or is about to; return ``False`` if the add could not be confirmed."""
        return self.active_filter.add([self.keys.key(value)])

    # -- one value

    def decide(self, value: Any, key: bytes | None = None) -> Decision:
        """Return the verdict on ``value`` with its reason; pass its ``key`` if you have made it already.

        May read the state rows, at most once per second and process. Never raises.
        """
        if not settings.is_enabled:
            return DISABLED
        began = perf_counter_ns() if counters.drawn() else 0
        try:
            active = self.active_filter
            if key is None:
                key = self.keys.key(value)
            decision = active.ask_leased(key) or active.ask(key)
        except Exception as error:
            decision = self._decision_for(error)
        if began:
            self.counters.time(began)
        if decision is MAYBE and not listeners:  # the most frequent case, kept short
            self.counters["maybe"]()
            return decision
        return self._finish(value, decision)

    def decide_now(self, value: Any) -> Decision | None:
        """Return what :meth:`decide` does, without I/O; ``None`` if the state rows or a filter must be read first."""
        if not settings.is_enabled:
            return DISABLED
        began = perf_counter_ns() if counters.drawn() else 0
        try:
            decision = self.active_filter.ask_now(self.keys.key(value))
        except Exception as error:
            decision = self._decision_for(error)
        if decision is None:
            return None
        if self._is_check_due(decision):
            return None
        if began:
            self.counters.time(began)
        return self._record(value, decision)

    async def adecide(self, value: Any) -> Decision:
        """Async :meth:`decide`: await the store's network calls, and query the database in a thread."""
        decision = self.decide_now(value)
        if decision is not None:
            return decision
        began = perf_counter_ns() if counters.drawn() else 0
        try:
            decision = await self.active_filter.aask(self.keys.key(value))
        except Exception as error:
            decision = self._decision_for(error)
        if decision is None:
            return await sync_to_async(self.decide, thread_sensitive=False)(value)
        if began:
            self.counters.time(began)
        return await self._afinish(value, decision)

    # -- many values

    def decide_many(self, values: Sequence[Any]) -> list[Decision]:
        """Return a verdict with its reason for each of ``values``, in their order, in one round trip to the store."""
        if not settings.is_enabled:
            return [DISABLED] * len(values)
        keys, decided = self._keyed(values)
        try:
            answers = self.active_filter.ask_many(keys)
        except Exception as error:
            answers = self._errors(keys, error)
        return [self._finish(value, decision) for value, decision in zip(values, _filled(decided, answers))]

    async def adecide_many(self, values: Sequence[Any]) -> list[Decision]:
        """Async :meth:`decide_many`. More than 500 values are checked in a thread."""
        if not settings.is_enabled:
            return [DISABLED] * len(values)
        if len(values) > _ON_LOOP:
            return await sync_to_async(self.decide_many, thread_sensitive=False)(values)
        keys, decided = self._keyed(values)
        try:
            answers = await self.active_filter.aask_many(keys)
            if answers is None:
                answers = await sync_to_async(self.active_filter.ask_many, thread_sensitive=False)(keys)
        except Exception as error:
            answers = self._errors(keys, error)
        return [await self._afinish(value, decision) for value, decision in zip(values, _filled(decided, answers))]

    def _keyed(self, values: Sequence[Any]) -> tuple[list[bytes], list[Decision | None]]:
        """Return the keys of ``values``, and a list with the decision for each value without a key, else ``None``."""
        keys: list[bytes] = []
        decided: list[Decision | None] = []
        for value in values:
            try:
                keys.append(self.keys.key(value))
                decided.append(None)
            except Exception as error:
                decided.append(self._decision_for(error))
        return keys, decided

    # -- from the filter's answer to the decision

    def _decision_for(self, error: Exception) -> Decision:
        """Map an exception to a decision."""
        if isinstance(error, (Unkeyable, Uncertain)):
            return UNKEYABLE
        if isinstance(error, OutOfRange):
            return OUT_OF_RANGE
        self.log_once(error)
        return ERROR

    def _errors(self, keys: Sequence[bytes], error: Exception) -> list[Decision]:
        self.log_once(error)
        return [ERROR] * len(keys)

    def _finish(self, value: Any, decision: Decision) -> Decision:
        """Count a decision, after a spot check of an ABSENT if one is due. May query the database."""
        if decision is ABSENT and (self.is_shadow or self._check_due or spot_checks.drawn()):
            self._check_due = False
            decision = spot_checks.checks.check(self._guard, value)
        return self._record(value, decision)

    async def _afinish(self, value: Any, decision: Decision) -> Decision:
        if self._is_check_due(decision):
            return await sync_to_async(self._finish, thread_sensitive=False)(value, decision)
        return self._record(value, decision)

    def _is_check_due(self, decision: Decision) -> bool:
        """Return whether a spot check is due; then the next caller that may do I/O has to run it."""
        if decision is not ABSENT:
            return False
        if not self._check_due:
            self._check_due = spot_checks.checks.is_due(self._guard) if self.is_shadow else spot_checks.drawn()
        return self._check_due

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
        self._log.error(error, "bloomguard passes requests to %s because of an internal error", self._guard.name)


def _filled(decided: Sequence[Decision | None], answers: Sequence[Decision]) -> list[Decision]:
    """Return ``decided`` with each ``None`` replaced by the next of ``answers``."""
    rest = iter(answers)
    return [next(rest) if decision is None else decision for decision in decided]
