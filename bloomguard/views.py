"""Class-based views that ask a guard before they fetch their object.

class CityDetail(GuardedObjectMixin, DetailView):
    model = City
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest
from django.utils.translation import gettext
from django.views.generic.detail import SingleObjectMixin

from .complaints import Complaints
from .counting.counts import SPARED
from .guards import Guard, registry
from .lookups.querysets import covers, guards_for
from .verdicts import Verdict

_complaints = Complaints()

if TYPE_CHECKING:
    Base = SingleObjectMixin[Model]
else:
    Base = SingleObjectMixin


class GuardedObjectMixin(Base):
    """``get_object`` raises ``Http404`` without a query where a guard of the model knows that there is no such object.

    Stands before the view's own class. The guards are those of the model whose lookup is the view's: the primary key,
    or ``slug_field``. They answer for their ``methods``, where ``applies(request)``, and in place of querysets without
    rows that they do not know, such as soft-deleted ones. Whatever goes wrong is logged once, and the view answers.
    """

    request: HttpRequest
    kwargs: dict[str, Any]

    def get_object(self, queryset: QuerySet[Model] | None = None) -> Model:
        """As Django's, ``Http404`` and its message too."""
        if queryset is None:
            queryset = self.get_queryset()
        lookup = {"pk": self.kwargs.get(self.pk_url_kwarg)}
        if lookup["pk"] is None or self.query_pk_and_slug:
            lookup[self.get_slug_field()] = self.kwargs.get(self.slug_url_kwarg)
        if is_absent(self.request, queryset.model, lookup, lambda: queryset):
            name = queryset.model._meta.verbose_name
            raise Http404(gettext("No %(verbose_name)s found matching the query") % {"verbose_name": name})
        asked = _asked(queryset.model, lookup)
        try:
            return super().get_object(queryset)
        except Http404:
            # A get_object of the project's own may have other reasons.
            is_djangos = super().get_object.__func__ is SingleObjectMixin.get_object  # type: ignore[attr-defined]
            for guard, value, answering in asked:
                if is_djangos:
                    guard.learn(value, queryset, answering)
                guard.confirm_missing(value)  # no query if that was proof
            raise


def is_absent(
    request: HttpRequest, model: type[Model], lookup: Mapping[str, Any], rows: Callable[[], QuerySet[Any]]
) -> bool:
    """Whether a guard of ``model`` knows that none of ``rows()`` has one of these values; never raises of its own.

    ``lookup`` is ``{field name: value}``, ``None`` where the URL has none; each stands for itself. ``rows`` is called
    only where a guard says ABSENT, and may raise what it likes.
    """
    guard = _sure(request, model, lookup)
    if guard is None:
        return False
    queryset = rows()
    try:
        if not covers(guard, queryset):
            return False
        guard.tallies[SPARED]()
        return True
    except Exception as error:
        _say_once(error, model)
        return False


def _sure(request: HttpRequest, model: type[Model], lookup: Mapping[str, Any]) -> Guard | None:
    """The guard that says ABSENT of one of the values, for a request that it minds."""
    try:
        for name, value in lookup.items():
            for guard, _ in guards_for(registry, model, (name,)) if value is not None else ():
                if guard.verdict(value) is Verdict.ABSENT and request.method in guard.methods:
                    return guard if guard.applies(request) else None
    except Exception as error:
        _say_once(error, model)
    return None


def _asked(model: type[Model], lookup: Mapping[str, Any]) -> list[tuple[Guard, Any, str]]:
    """The guards that could learn from a query for this alone, with the value and what answers now. Never raises."""
    given = [(name, value) for name, value in lookup.items() if value is not None]
    try:
        return [
            (guard, value, guard.live.answered_last)
            for name, value in given
            for guard, _ in guards_for(registry, model, (name,))
            if len(given) == 1
        ]
    except Exception as error:
        _say_once(error, model)
        return []


def confirm_missing(model: type[Model], name: str, value: Any) -> None:
    """A view answered 404 for the row whose ``name`` is ``value``: find out whether there is none. Never raises."""
    for guard, one, _ in _asked(model, {name: value}):
        guard.confirm_missing(one)


def _say_once(error: Exception, model: type[Model]) -> None:
    _complaints.say(error, "bloomguard passes requests to views of %s because of an error", model._meta.label)
