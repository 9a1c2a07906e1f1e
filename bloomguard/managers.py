"""A manager whose look-ups ask the guard before they ask the database.

    class City(models.Model):
        objects = GuardedManager()

``City.objects.get(pk=7)`` and ``in_bulk([7, 8])`` then cost no query for what certainly does not exist, and so do
``aget``, ``get_object_or_404(City, pk=7)`` and REST framework's ``get_object``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.db import models

from .counting.counts import SPARED
from .guards import registry
from .lookups.querysets import covers, guards_for
from .verdicts import Verdict

M = TypeVar("M", bound=models.Model, covariant=True)


class GuardedQuerySet(models.QuerySet[M]):
    """Asks a guard in ``get`` and ``in_bulk``, where the lookup is exactly the guard's; all else goes the usual way.

    So does every queryset that might give rows that the guard does not know: those of another database, or, where the
    guard has an ``alive``, those that are not filtered by it. A deleted row stays in reach of a manager that sees it.
    """

    def get(self, *args: Any, **kwargs: Any) -> M:
        """As Django's, without a query for what certainly does not exist."""
        asked = []
        for guard, names in guards_for(registry, self.model, tuple(kwargs)) if not args else ():
            value = kwargs[names[0]] if len(names) == 1 else [kwargs[name] for name in names]
            if guard.verdict(value) is Verdict.ABSENT and covers(guard, self):
                guard.tallies[SPARED]()
                missing: type[Exception] = self.model.DoesNotExist  # type: ignore[attr-defined]
                raise missing(f"{self.model._meta.object_name} matching query does not exist.")
            asked.append((guard, value, guard.answered_last))
        try:
            return super().get(*args, **kwargs)
        except self.model.DoesNotExist:  # type: ignore[attr-defined]
            for guard, value, answering in asked:
                guard.learn(value, self, answering)
            raise

    def in_bulk(self, id_list: Iterable[Any] | None = None, *, field_name: str = "pk") -> dict[Any, M]:
        """As Django's, without asking for what certainly does not exist."""
        if id_list is not None:
            id_list = list(id_list)
            for guard, _ in guards_for(registry, self.model, (field_name,)):
                if covers(guard, self):
                    id_list = guard.filter_existing(id_list)
        return super().in_bulk(id_list, field_name=field_name)


class GuardedManager(models.Manager.from_queryset(GuardedQuerySet)[M]):  # type: ignore[misc]
    """The manager of :class:`GuardedQuerySet`; a queryset class of your own may inherit from that instead."""
