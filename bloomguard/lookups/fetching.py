"""What a view asks of a guard: a verdict, which of many values may exist, a row or 404."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models, router
from django.http import Http404

from ..counting import counts
from ..counting.counts import SPARED
from ..keys import OutOfRange, Unkeyable
from ..verdicts import ERROR, Decision, Verdict
from .querysets import covers, finds_all, is_exact, lookup_of

if TYPE_CHECKING:
    from ..counting.counts import Tallies
    from ..keys import KeyMaker
    from ..live import LiveFilter

V = TypeVar("V")
Rows = models.QuerySet[Any] | models.Manager[Any]

#: What ``filter`` raises of a value that the field cannot hold.
_NO_VALUE = (TypeError, ValueError, ValidationError, KeyError)
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

    # -- rows

    def get_object_or_404(self, value: Any, queryset: Rows | None = None) -> Any:
        """The row with this value, by default of the rows that exist for the public; else raises ``Http404``.

        ``queryset`` says of which rows, and what comes with them. Where it may hold rows that the guard does not know,
        such as soft-deleted ones, the database alone answers. A value that the field cannot hold is not found.
        """
        rows = self._rows(queryset)
        if covers(self, rows) and self.verdict(value) is Verdict.ABSENT:
            self.tallies[SPARED]()
            raise self._not_found(rows)
        return self._fetch(value, rows)

    async def aget_object_or_404(self, value: Any, queryset: Rows | None = None) -> Any:
        """:meth:`get_object_or_404`, without a blocking call on the event loop."""
        rows = self._rows(queryset)
        if covers(self, rows) and await self.averdict(value) is Verdict.ABSENT:
            self.tallies[SPARED]()
            raise self._not_found(rows)
        return await sync_to_async(self._fetch)(value, rows)

    def _fetch(self, value: Any, rows: models.QuerySet[Any]) -> Any:
        answering = self.answered_last
        try:
            return rows.filter(**lookup_of(self, value)).get()
        except ObjectDoesNotExist as error:
            self.learn(value, rows, answering)
            raise self._not_found(rows) from error
        except _NO_VALUE as error:
            raise self._not_found(rows) from error

    @property
    def answered_last(self) -> str:
        """:attr:`LiveFilter.answered_last`, empty also for a guard that cannot work. Never raises."""
        try:
            return self.live.answered_last
        except Exception as error:
            self._say_once(error)
            return ""

    def learn(self, value: Any, rows: models.QuerySet[Any], answering: str) -> None:
        """A query of ``rows`` for ``value`` alone found nothing: remember that, if it proves anything. Never raises.

        ``answering`` is what :attr:`answered_last` was before the query. See :mod:`bloomguard.remembered`.
        """
        try:
            if answering and finds_all(self, rows) and is_exact(self, value):
                self.live.found_out.remember(self.keys.key(value), answering, rows.db)
        except (Unkeyable, OutOfRange):
            pass
        except Exception as error:
            self._say_once(error)

    def confirm_missing(self, value: Any) -> None:
        """Somebody looked for ``value`` in vain, nobody knows where: ask the database, and remember what it says.

        A query, but not for what was asked lately, was added lately, or is remembered. Nothing is asked where a
        transaction is open: what it sees is not what others see. Never raises.
        """
        try:
            answering, rows = self.live.answered_last, self.rows().using(self.database)
            if not answering or not finds_all(self, rows) or not is_exact(self, value):
                return
            key = self.keys.key(value)
            if self.live.ask(key).verdict is not Verdict.MAYBE or not self.live.found_out.worth_asking(key, answering):
                return
            if not rows.filter(**lookup_of(self, value)).exists():
                self.live.found_out.remember(key, answering, rows.db)
        except (Unkeyable, OutOfRange):
            pass
        except Exception as error:
            self._say_once(error)

    def _rows(self, queryset: Rows | None) -> models.QuerySet[Any]:
        return self.rows() if queryset is None else queryset.all()

    @staticmethod
    def _not_found(rows: models.QuerySet[Any]) -> Http404:
        """What Django's ``get_object_or_404`` raises."""
        return Http404(f"No {rows.model._meta.object_name} matches the given query.")


def _filled(decided: Sequence[Decision | None], answers: Sequence[Decision]) -> list[Decision]:
    """``decided``, with one of the ``answers`` after the other where there is none."""
    rest = iter(answers)
    return [next(rest) if decision is None else decision for decision in decided]


def _possible(values: Sequence[V], decided: Sequence[Decision]) -> list[V]:
    return [value for value, decision in zip(values, decided) if decision.verdict is not Verdict.ABSENT]
