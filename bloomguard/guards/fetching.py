"""The methods of a guard that views call: verdicts for one or many values, and what the database does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, models, router

from ..conf import settings
from ..state.connection import has_own_transaction
from ..verdicts import DISABLED, ERROR, Decision, Verdict
from . import tallies
from .keys import OutOfRange, Unkeyable, value_field

if TYPE_CHECKING:
    from ..state.active_filter import ActiveFilter
    from .keys import KeyMaker
    from .tallies import Tallies

V = TypeVar("V")
#: More values than this would block an event loop for longer than a millisecond; they go to a thread.
_ON_LOOP = 500


class Fetching:
    """The part of :class:`~bloomguard.guards.Guard` that views use; an async method has the prefix ``a``."""

    if TYPE_CHECKING:
        model: type[models.Model]
        tallies: Tallies

        @property
        def active_filter(self) -> ActiveFilter: ...
        @property
        def fields(self) -> tuple[models.Field[Any, Any], ...]: ...
        def decide(self, value: Any) -> Decision: ...
        def decide_now(self, value: Any) -> Decision | None: ...
        def _decision_for(self, error: Exception) -> Decision: ...
        @property
        def keys(self) -> KeyMaker: ...
        def _finish(self, value: Any, decision: Decision) -> Decision: ...
        def _is_check_due(self, decision: Decision) -> bool: ...
        def _record(self, value: Any, decision: Decision) -> Decision: ...
        def _log_once(self, error: Exception) -> None: ...
        def rows(self) -> models.QuerySet[Any]: ...
        def normalize(self, value: str) -> str: ...

    @property
    def database(self) -> str:
        """The alias of the database that the model's writes go to; the filter holds the keys of its rows."""
        return router.db_for_write(self.model)

    # -- verdicts

    def verdict(self, value: Any) -> Verdict:
        """Return the verdict on ``value``: a field's value, or for several fields a sequence or mapping of values.

        Accepts values from a URL, converted or not. Never raises: on an error it returns :attr:`Verdict.UNKNOWN`.
        """
        return self.decide(value).verdict

    async def averdict(self, value: Any) -> Verdict:
        """Async :meth:`verdict`; never blocks the event loop."""
        return (await self.adecide(value)).verdict

    async def adecide(self, value: Any) -> Decision:
        """Async :meth:`decide`: await the store's network calls, and query the database in a thread."""
        decision = self.decide_now(value)
        if decision is not None:
            return decision
        began = perf_counter_ns() if tallies.drawn() else 0
        try:
            decision = await self.active_filter.aask(self.keys.key(value))
        except Exception as error:
            decision = self._decision_for(error)
        if decision is None:
            return await sync_to_async(self.decide, thread_sensitive=False)(value)
        if began:
            self.tallies.time(began)
        return await self._afinish(value, decision)

    async def _afinish(self, value: Any, decision: Decision) -> Decision:
        if self._is_check_due(decision):
            return await sync_to_async(self._finish, thread_sensitive=False)(value, decision)
        return self._record(value, decision)

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
        """Async :meth:`decide_many`; never blocks the event loop. More than 500 values are checked in a thread."""
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

    def _errors(self, keys: Sequence[bytes], error: Exception) -> list[Decision]:
        self._log_once(error)
        return [ERROR] * len(keys)

    def filter_existing(self, values: Iterable[V]) -> list[V]:
        """Return the ``values`` that may exist, in their order; values with verdict UNKNOWN are kept. Never raises."""
        values = list(values)
        return _possible(values, self.decide_many(values))

    async def afilter_existing(self, values: Iterable[V]) -> list[V]:
        """Async :meth:`filter_existing`; never blocks the event loop."""
        values = list(values)
        decided = await self.adecide_many(values)
        return _possible(values, decided)

    # -- the negative cache

    @property
    def answered_last(self) -> str:
        """:attr:`ActiveFilter.answered_last`; empty if the guard is misconfigured. Never raises."""
        try:
            return self.active_filter.answered_last
        except Exception as error:
            self._log_once(error)
            return ""

    def remember_missing(self, value: Any, generation: str, using: str) -> None:
        """Put ``value`` into the negative cache, after a query for it alone found no row in the database ``using``.

        ``generation`` is the value of :attr:`answered_last` before the query. Never raises. See
        :mod:`bloomguard.state.negative_cache`.
        """
        try:
            if self._is_exact(value):
                self.active_filter.negative_cache.remember(self.keys.key(value), generation, using)
        except (Unkeyable, OutOfRange):
            pass
        except Exception as error:
            self._log_once(error)

    def confirm_missing(self, value: Any) -> None:
        """Query the database for ``value`` after a loader found nothing, and put a miss into the negative cache.

        Does not query if the value was queried or added recently or is in the negative cache, nor inside a transaction,
        which may see other rows than other connections do. Never raises.
        """
        try:
            generation, connection = self.active_filter.answered_last, connections[self.database]
            if not generation or connection.in_atomic_block or has_own_transaction(connection):
                return
            key = self.keys.key(value)
            active = self.active_filter
            if active.ask(key).verdict is not Verdict.MAYBE or not active.negative_cache.worth_asking(key, generation):
                return
            rows = self.rows().using(self.database)
            if not rows.filter(**self._conditions(value)).exists():
                self.remember_missing(value, generation, rows.db)
        except (Unkeyable, OutOfRange):
            pass
        except Exception as error:
            self._log_once(error)

    def _is_exact(self, value: Any) -> bool:
        """Return whether only values that the database treats as equal share the key of ``value``.

        Only then a miss holds for the key. An overridden ``normalize`` or a custom field may give one key to several
        values.
        """
        if not all(type(value_field(field)).__module__.startswith("django.") for field in self.fields):
            return False
        if self.keys.normalizes:
            return False
        values = [field.to_python(each) for field, each in zip(self.fields, self._conditions(value).values())]
        return not any(isinstance(each, int) and abs(each) >> 63 for each in values)

    def _conditions(self, value: Any) -> dict[str, Any]:
        """Return ``value``, or the values of several fields, as keyword arguments for ``filter``."""
        if len(self.fields) == 1:
            return {self.fields[0].attname: value}
        if isinstance(value, Mapping):
            return {field.attname: value[field.name] for field in self.fields}
        return {field.attname: each for field, each in zip(self.fields, value, strict=True)}


def _filled(decided: Sequence[Decision | None], answers: Sequence[Decision]) -> list[Decision]:
    """Return ``decided`` with each ``None`` replaced by the next of ``answers``."""
    rest = iter(answers)
    return [next(rest) if decision is None else decision for decision in decided]


def _possible(values: Sequence[V], decided: Sequence[Decision]) -> list[V]:
    return [value for value, decision in zip(values, decided) if decision.verdict is not Verdict.ABSENT]
