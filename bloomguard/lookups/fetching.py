"""What a project asks of a guard: a verdict, and which of many values may exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, models, router

from ..counting import counts
from ..keys import OutOfRange, Unkeyable, value_field
from ..sync.connection import has_own_transaction
from ..verdicts import ERROR, Decision, Verdict

if TYPE_CHECKING:
    from ..counting.counts import Tallies
    from ..keys import KeyMaker
    from ..live import LiveFilter

V = TypeVar("V")
#: More values than these would hold up an event loop for longer than a millisecond.
_ON_LOOP = 500


class Fetching:
    """The part of :class:`~bloomguard.guards.Guard` that views use; every method has an async twin, ``a...``."""

    if TYPE_CHECKING:
        model: type[models.Model]
        tallies: Tallies

        @property
        def live(self) -> LiveFilter: ...
        @property
        def fields(self) -> tuple[models.Field[Any, Any], ...]: ...
        def decide(self, value: Any) -> Decision: ...
        def decide_now(self, value: Any) -> Decision | None: ...
        def _undecided(self, error: Exception) -> Decision: ...
        @property
        def keys(self) -> KeyMaker: ...
        def _concluded(self, value: Any, decision: Decision) -> Decision: ...
        def _owes(self, decision: Decision) -> bool: ...
        def _told(self, value: Any, decision: Decision) -> Decision: ...
        def _say_once(self, error: Exception) -> None: ...
        def rows(self) -> models.QuerySet[Any]: ...
        def normalize(self, value: str) -> str: ...

    @property
    def database(self) -> str:
        """The alias of the database whose rows the guard knows: the one that the model's writes go to."""
        return router.db_for_write(self.model)

    # -- verdicts

    def verdict(self, value: Any) -> Verdict:
        """What can be said of ``value``: a field's value, or for several fields a sequence or a mapping of them.

        Takes what a URL gives, converted or not. Never raises: what goes wrong is :attr:`Verdict.UNKNOWN`.
        """
        return self.decide(value).verdict

    async def averdict(self, value: Any) -> Verdict:
        """:meth:`verdict`, without a blocking call on the event loop."""
        return (await self.adecide(value)).verdict

    async def adecide(self, value: Any) -> Decision:
        """The verdict with its reason: what needs a network is awaited, what needs the database asked in a thread."""
        decision = self.decide_now(value)
        if decision is not None:
            return decision
        began = perf_counter_ns() if counts.drawn() else 0
        try:
            decision = await self.live.aask(self.keys.key(value))
        except Exception as error:
            decision = self._undecided(error)
        if decision is None:
            return await sync_to_async(self.decide, thread_sensitive=False)(value)
        if began:
            self.tallies.time(began)
        return await self._aconcluded(value, decision)

    async def _aconcluded(self, value: Any, decision: Decision) -> Decision:
        if self._owes(decision):
            return await sync_to_async(self._concluded, thread_sensitive=False)(value, decision)
        return self._told(value, decision)

    def decide_many(self, values: Sequence[Any]) -> list[Decision]:
        """The verdict on each of ``values`` with its reason, in their order and in one trip to the store."""
        keys, decided = self._keyed(values)
        try:
            answers = self.live.ask_many(keys)
        except Exception as error:
            answers = self._unanswered(keys, error)
        return [self._concluded(value, decision) for value, decision in zip(values, _filled(decided, answers))]

    async def adecide_many(self, values: Sequence[Any]) -> list[Decision]:
        """:meth:`decide_many` without a blocking call on the event loop; many values are dealt with in a thread."""
        if len(values) > _ON_LOOP:
            return await sync_to_async(self.decide_many, thread_sensitive=False)(values)
        keys, decided = self._keyed(values)
        try:
            answers = await self.live.aask_many(keys)
            if answers is None:
                answers = await sync_to_async(self.live.ask_many, thread_sensitive=False)(keys)
        except Exception as error:
            answers = self._unanswered(keys, error)
        return [await self._aconcluded(value, decision) for value, decision in zip(values, _filled(decided, answers))]

    def _keyed(self, values: Sequence[Any]) -> tuple[list[bytes], list[Decision | None]]:
        """The keys to ask the store for, and the decisions where there is none, with ``None`` in the others' places."""
        keys: list[bytes] = []
        decided: list[Decision | None] = []
        for value in values:
            try:
                keys.append(self.keys.key(value))
                decided.append(None)
            except Exception as error:
                decided.append(self._undecided(error))
        return keys, decided

    def _unanswered(self, keys: Sequence[bytes], error: Exception) -> list[Decision]:
        self._say_once(error)
        return [ERROR] * len(keys)

    def filter_existing(self, values: Iterable[V]) -> list[V]:
        """Those of ``values`` that may exist, in their order; all of them where nothing can be said. Never raises."""
        values = list(values)
        return _possible(values, self.decide_many(values))

    async def afilter_existing(self, values: Iterable[V]) -> list[V]:
        """:meth:`filter_existing`, without a blocking call on the event loop."""
        values = list(values)
        decided = await self.adecide_many(values)
        return _possible(values, decided)

    # -- the negative cache

    @property
    def answered_last(self) -> str:
        """:attr:`LiveFilter.answered_last`, empty also for a guard that cannot work. Never raises."""
        try:
            return self.live.answered_last
        except Exception as error:
            self._say_once(error)
            return ""

    def remember_missing(self, value: Any, generation: str, using: str) -> None:
        """A query for ``value`` alone found nothing in the database ``using``: remember that for a while. Never raises.

        ``generation`` is what :attr:`answered_last` was before the query. See :mod:`bloomguard.remembered`.
        """
        try:
            if self._is_exact(value):
                self.live.found_out.remember(self.keys.key(value), generation, using)
        except (Unkeyable, OutOfRange):
            pass
        except Exception as error:
            self._say_once(error)

    def confirm_missing(self, value: Any) -> None:
        """A loader found nothing for ``value``, wherever it looked: ask the database, and remember what it says.

        No query for what was asked lately, was added lately, or is remembered, nor in a transaction: what that sees is
        not what others see. Never raises.
        """
        try:
            generation, connection = self.live.answered_last, connections[self.database]
            if not generation or connection.in_atomic_block or has_own_transaction(connection):
                return
            key = self.keys.key(value)
            if self.live.ask(key).verdict is not Verdict.MAYBE or not self.live.found_out.worth_asking(key, generation):
                return
            rows = self.rows().using(self.database)
            if not rows.filter(**self._conditions(value)).exists():
                self.remember_missing(value, generation, rows.db)
        except (Unkeyable, OutOfRange):
            pass
        except Exception as error:
            self._say_once(error)

    def _is_exact(self, value: Any) -> bool:
        """Whether no two values that the database tells apart have the key of ``value``: then a miss is the key's own.

        A ``normalize``, or a field of somebody else's, may make one key of several values.
        """
        if not all(type(value_field(field)).__module__.startswith("django.") for field in self.fields):
            return False
        if type(self).normalize.__module__ != "bloomguard.guards":
            return False
        values = [field.to_python(each) for field, each in zip(self.fields, self._conditions(value).values())]
        return not any(isinstance(each, int) and abs(each) >> 63 for each in values)

    def _conditions(self, value: Any) -> dict[str, Any]:
        """``value``, of one field, or of several as a sequence or a mapping, as arguments for ``filter``."""
        if len(self.fields) == 1:
            return {self.fields[0].attname: value}
        if isinstance(value, Mapping):
            return {field.attname: value[field.name] for field in self.fields}
        return {field.attname: each for field, each in zip(self.fields, value, strict=True)}


def _filled(decided: Sequence[Decision | None], answers: Sequence[Decision]) -> list[Decision]:
    """``decided``, with one of the ``answers`` after the other where there is none."""
    rest = iter(answers)
    return [next(rest) if decision is None else decision for decision in decided]


def _possible(values: Sequence[V], decided: Sequence[Decision]) -> list[V]:
    return [value for value, decision in zip(values, decided) if decision.verdict is not Verdict.ABSENT]
