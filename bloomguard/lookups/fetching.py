"""What a view asks of a guard: a verdict, which of many values may exist, a row or 404."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models, router
from django.http import Http404

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
        return (await self._adecide(value)).verdict

    async def _adecide(self, value: Any) -> Decision:
        decision = self.decide_now(value)
        if decision is None:
            decision = await sync_to_async(self.decide, thread_sensitive=False)(value)
        return decision

    def decide_many(self, values: Sequence[Any]) -> list[Decision]:
        """The verdict on each of ``values`` with its reason, in their order and in one trip to the store."""
        keys: list[bytes] = []
        decided: list[Decision | None] = []  # None where the store has to be asked
        for value in values:
            try:
                keys.append(self.keys.key(value))
                decided.append(None)
            except Exception as error:
                decided.append(self._undecided(error))
        try:
            answers = iter(self.live.ask_many(keys))
        except Exception as error:
            self._say_once(error)
            answers = iter([ERROR] * len(keys))
        decisions = [next(answers) if decision is None else decision for decision in decided]
        return [self._concluded(value, decision) for value, decision in zip(values, decisions)]

    def filter_existing(self, values: Iterable[V]) -> list[V]:
        """Those of ``values`` that may exist, in their order; all of them where nothing can be said. Never raises."""
        values = list(values)
        decided = self.decide_many(values)
        return [value for value, decision in zip(values, decided) if decision.verdict is not Verdict.ABSENT]

    async def afilter_existing(self, values: Iterable[V]) -> list[V]:
        """:meth:`filter_existing`, in a thread."""
        found: list[V] = await sync_to_async(self.filter_existing, thread_sensitive=False)(values)
        return found

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
