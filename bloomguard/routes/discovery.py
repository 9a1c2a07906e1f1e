"""Find the guard of a URL pattern by what its view looks up: ``routes = "auto"``.

Taken is only what is certain: a generic view of Django's whose own code looks up one object by the guard's field. For
all others the reason is given.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Model
from django.views.generic.base import View
from django.views.generic.detail import SingleObjectMixin
from django.views.generic.edit import BaseCreateView

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..lookups.query import RowLookup, is_plain
from .openness import layers, why_class_is_closed
from .patterns import Pattern

logger = logging.getLogger("bloomguard")


class NotFound(Exception):
    """The view's lookup is not known; the message is the reason."""


@dataclass(frozen=True)
class Detail:
    """A class-based view of one object: ``looked_up`` maps names of fields to the kwargs that their values come in."""

    cls: type[View]
    model: type[Model]
    queryset: Any
    looked_up: dict[str, str]


_DETAIL = "_bloomguard_detail"


def detail(pattern: Pattern) -> Detail | None:
    """The class-based view of one object behind ``pattern``, by its class attributes; ``None`` if it is no such view.

    Nothing of the view is called: a ``model`` that is a property, or set per request, is not known here.
    """
    if _DETAIL not in pattern.__dict__:  # each guard asks
        pattern.__dict__[_DETAIL] = _detail(pattern)
    found: Detail | None = pattern.__dict__[_DETAIL]
    return found


def _detail(pattern: Pattern) -> Detail | None:
    view: Any = list(layers(pattern.callback))[-1]
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if not isinstance(cls, type):
        return None
    given = {**getattr(view, "initkwargs", {}), **getattr(view, "view_initkwargs", {})}

    def attribute(name: str) -> Any:
        return given.get(name, getattr(cls, name, None))

    looked_up: dict[Any, Any] = {}
    if issubclass(cls, SingleObjectMixin):
        if getattr(cls, "get", None) in (None, BaseCreateView.get):
            return None
        has_pk = attribute("pk_url_kwarg") in pattern.captured
        if has_pk:
            looked_up["pk"] = attribute("pk_url_kwarg")
        if attribute("slug_url_kwarg") in pattern.captured and (not has_pk or attribute("query_pk_and_slug")):
            looked_up[attribute("slug_field")] = attribute("slug_url_kwarg")
    elif issubclass(cls, getattr(sys.modules.get("rest_framework.generics"), "GenericAPIView", ())):
        kwarg = attribute("lookup_url_kwarg") or attribute("lookup_field")
        if kwarg in pattern.captured:
            looked_up[attribute("lookup_field")] = kwarg
    queryset = attribute("queryset")
    model = getattr(queryset, "model", None) or attribute("model")
    if not looked_up or not (isinstance(model, type) and issubclass(model, Model)):
        return None
    return Detail(cls, model, queryset, looked_up)


def views_by_model(patterns: Iterable[Pattern]) -> dict[type[Model], list[Pattern]]:
    """By model, the patterns whose views show one row of its table, or of a child's."""
    found: dict[type[Model], list[Pattern]] = {}
    for pattern in patterns:
        try:
            shown = detail(pattern)
        except Exception as error:  # an odd view is left alone, and so are all other routes
            logger.debug("bloomguard does not guard %s: its view cannot be read: %r", pattern.text, error)
            continue
        if shown is not None:
            for model in _table(shown.model).__mro__:
                if issubclass(model, Model):
                    found.setdefault(model, []).append(pattern)
    return found


def find_kwargs(guard: Guard, pattern: Pattern) -> tuple[str, ...]:
    """The kwargs by which ``guard`` can guard ``pattern``; raises :class:`NotFound` with the reason if it cannot."""
    shown = detail(pattern)
    if shown is None:
        raise NotFound("its view is no generic view of one object")
    if not issubclass(shown.cls, SingleObjectMixin):
        raise NotFound("REST framework makes its own 404")
    if not issubclass(_table(shown.model), _table(guard.model)):
        raise NotFound(f"its view shows one {shown.model._meta.label}")
    if closed := why_class_is_closed(shown.cls):
        raise NotFound(closed)
    if shown.cls.get_object is not SingleObjectMixin.get_object:
        raise NotFound(f"{shown.cls.__name__} looks for more than one field")
    try:
        [field] = guard.fields
    except (ValueError, ConfigurationError):
        raise NotFound(f"its view looks up one field, the guard {guard.name!r} several") from None
    lookup = RowLookup(guard, shown.model)
    kwargs = [kwarg for name, kwarg in shown.looked_up.items() if lookup.compares(column_of(shown.model, name))]
    if not kwargs:
        raise NotFound(f"its view looks up {' and '.join(shown.looked_up)}, the guard {guard.name!r} {field.name}")
    query = (shown.model._default_manager.all() if shown.queryset is None else shown.queryset).query
    if not is_plain(query) or query.is_sliced or not lookup.is_alive(query):
        raise NotFound(f"its view may show rows that the guard {guard.name!r} does not know")
    return (kwargs[0],)


def column_of(model: type[Model], name: str) -> Any:
    """The field that ``filter(**{name: ...})`` compares; ``None`` for a look-up through a relation."""
    try:
        return model._meta.pk if name == "pk" else model._meta.get_field(name)
    except FieldDoesNotExist:
        return None


def reason_against(pattern: Pattern) -> str:
    """Why no guard finds ``pattern`` by itself."""
    reasons = []
    for guard in registry:
        try:
            find_kwargs(guard, pattern)
        except NotFound as reason:
            reasons.append(str(reason))
        except Exception as error:  # an odd view: the reason belongs to it alone
            reasons.append(f"its view cannot be read ({type(error).__name__})")
        else:
            return f'the guard {guard.name!r} would, with routes = "auto"'
    kept = [reason for reason in dict.fromkeys(reasons) if not reason.startswith("its view shows one")]
    return "; ".join(kept) or (f"no guard is of what {reasons[0].removeprefix('its ')}" if reasons else "no guards")


def _table(model: type[Model]) -> type[Model]:
    return model._meta.concrete_model or model
