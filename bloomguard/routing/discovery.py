"""Which guard could guard a URL pattern, found from what its view looks up: ``routes = "auto"``.

Taken is only what is certain. A view whose class does nothing of its own before it looks its object up is answered
with the site's 404 page. One that does (a permission, a queryset of its own) is run as it is, with a look-up that finds
nothing and asks nothing: see :mod:`bloomguard.routing.spare`. Of all others, the reason why not is told.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import Model, QuerySet
from django.views.generic.base import View
from django.views.generic.dates import BaseDateDetailView
from django.views.generic.detail import BaseDetailView, SingleObjectMixin
from django.views.generic.edit import BaseCreateView, BaseUpdateView

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..lookups.querysets import covers
from .access import demand, layers
from .patterns import Pattern
from .spare import Lookup

#: Each method of Django's whose own code alone runs before the object is looked up.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "setup": (View.setup,),
    "dispatch": (View.dispatch,),
    "get": (BaseDetailView.get, BaseUpdateView.get),
    "head": (None,),
    "get_queryset": (SingleObjectMixin.get_queryset,),
    "get_object": (SingleObjectMixin.get_object,),
}


class NotFound(Exception):
    """The view cannot be guarded without being told how; the message is the reason."""


@dataclass(frozen=True)
class Shown:
    """What a view shows one of: ``looked_up`` maps names of fields to the kwargs that their values come in.

    ``by_view`` says that the view has to run itself, so that its own code has its say.
    """

    model: type[Model]
    queryset: QuerySet[Any] | None
    looked_up: dict[str, str]
    by_view: bool


def shown(pattern: Pattern) -> Shown:
    """What the pattern's view shows; raises :class:`NotFound` with the reason where nobody can tell."""
    callback = pattern.callback
    cls = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    if cls is None:
        raise NotFound("its view is a function, and what it looks up is its own business")
    if not _is_bare(callback, cls):
        raise NotFound(f"{cls.__name__} is decorated, and what the decorator does first is its own business")
    given = {**getattr(callback, "initkwargs", {}), **getattr(callback, "view_initkwargs", {})}
    if issubclass(cls, SingleObjectMixin):
        return _of_django(cls, cls(**given), pattern)
    if issubclass(cls, getattr(sys.modules.get("rest_framework.generics"), "GenericAPIView", ())):
        return _of_rest_framework(cls, cls(**given), pattern)
    raise NotFound(f"{cls.__name__} is no view of one object")


def _of_django(cls: type, view: Any, pattern: Pattern) -> Shown:
    if cls.get_object not in (SingleObjectMixin.get_object, BaseDateDetailView.get_object):  # type: ignore[attr-defined]
        raise NotFound(f"{cls.__name__} has a get_object of its own")
    if cls.get_slug_field is not SingleObjectMixin.get_slug_field:  # type: ignore[attr-defined]
        raise NotFound(f"{cls.__name__} has a get_slug_field of its own")
    if getattr(cls, "get", None) in (None, BaseCreateView.get) or "get" not in view.http_method_names:
        raise NotFound(f"{cls.__name__} shows no object")
    by_view = any(getattr(cls, name, None) not in own for name, own in _PLAIN.items()) or bool(demand(pattern.callback))
    looked_up = {}
    has_pk = view.pk_url_kwarg in pattern.captured
    if has_pk:
        looked_up["pk"] = view.pk_url_kwarg
    if view.slug_url_kwarg in pattern.captured and (not has_pk or view.query_pk_and_slug):
        looked_up[view.get_slug_field()] = view.slug_url_kwarg
    return _shown(cls, view, looked_up, by_view, own_queryset=cls.get_queryset is not SingleObjectMixin.get_queryset)  # type: ignore[attr-defined]


def _of_rest_framework(cls: type, view: Any, pattern: Pattern) -> Shown:
    base = sys.modules["rest_framework.generics"].GenericAPIView
    if cls.get_object is not base.get_object:  # type: ignore[attr-defined]
        raise NotFound(f"{cls.__name__} has a get_object of its own")
    kwarg = view.lookup_url_kwarg or view.lookup_field
    looked_up = {view.lookup_field: kwarg} if kwarg in pattern.captured else {}
    # The body of its 404 is negotiated with the client, so the view has to make it.
    return _shown(cls, view, looked_up, by_view=True, own_queryset=cls.get_queryset is not base.get_queryset)  # type: ignore[attr-defined]


def _shown(cls: type, view: Any, looked_up: dict[str, str], by_view: bool, own_queryset: bool) -> Shown:
    if not looked_up:
        raise NotFound(f"{cls.__name__} takes none of the pattern's kwargs for a look-up")
    queryset = view.queryset
    if queryset is None and getattr(view, "model", None) is not None:
        queryset = view.model._default_manager.all()
    model = getattr(view, "model", None) if queryset is None else queryset.model
    if model is None:
        raise NotFound(f"{cls.__name__} names neither model nor queryset")
    return Shown(model, None if own_queryset else queryset, looked_up, by_view)


def detail_model(pattern: Pattern) -> type[Model] | None:
    """The model of which the pattern's view seems to show one by an ID in the path, be that certain or not."""
    callback: Any = pattern.callback
    cls = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    given = {**getattr(callback, "initkwargs", {}), **getattr(callback, "view_initkwargs", {})}

    def said(name: str) -> Any:
        return given.get(name, getattr(cls, name, None))

    if cls is None:
        return None
    if issubclass(cls, SingleObjectMixin):
        if getattr(cls, "get", None) in (None, BaseCreateView.get):
            return None
        kwargs = {said("pk_url_kwarg"), said("slug_url_kwarg")}
    elif issubclass(cls, getattr(sys.modules.get("rest_framework.generics"), "GenericAPIView", ())):
        kwargs = {said("lookup_url_kwarg") or said("lookup_field")}
    else:
        return None
    queryset = said("queryset")
    model: type[Model] | None = said("model") if queryset is None else getattr(queryset, "model", None)
    return model if kwargs.intersection(pattern.captured) else None


def _is_bare(callback: Callable[..., Any], cls: Any) -> bool:
    """Whether the view is what ``as_view()`` makes, without a decorator that runs before it."""
    if actions := getattr(callback, "actions", None):
        made = cls.as_view(actions, **callback.initkwargs)  # type: ignore[attr-defined]
    else:
        made = cls.as_view(**getattr(callback, "view_initkwargs", getattr(callback, "initkwargs", {})))
    return [layer.__code__ for layer in layers(callback)] == [layer.__code__ for layer in layers(made)]


def lookup_of(guard: Guard, pattern: Pattern) -> Lookup:
    """How ``guard`` could guard ``pattern``; raises :class:`NotFound` with the reason if it cannot."""
    if getattr(pattern.callback, "guarded_by", None):
        return _of_decorator(guard, pattern)
    found = shown(pattern)
    if found.model._meta.concrete_model is not guard.model._meta.concrete_model:
        raise NotFound(f"its view shows one {found.model._meta.label}")
    try:
        [field] = guard.fields
    except (ValueError, ConfigurationError):
        raise NotFound(f"its view looks up one field, the guard {guard.name!r} several") from None
    names = {"pk"} if field.primary_key else set()
    kwarg = next((found.looked_up[name] for name in (field.name, field.attname, *names) if name in found.looked_up), "")
    if not kwarg:
        raise NotFound(f"its view looks up {' and '.join(found.looked_up)}, the guard {guard.name!r} {field.name}")
    if found.queryset is not None and not covers(guard, found.queryset):
        raise NotFound(f"its view may show rows that the guard {guard.name!r} does not know")
    return Lookup(guard, (kwarg,), found.by_view)


def _of_decorator(guard: Guard, pattern: Pattern) -> Lookup:
    view: Any = pattern.callback
    if view.guarded_by != guard.name:
        raise NotFound(f"its view has @guarded({view.guarded_by!r})")
    if view.guarded_view is not view:
        raise NotFound(f"@guarded({guard.name!r}) answers in the view, after what stands on top of it")
    kwargs = kwargs_of_decorator(guard, pattern)
    if missing := set(kwargs) - set(pattern.captured):
        raise NotFound(f"the pattern captures no {' and no '.join(sorted(missing))}")
    return Lookup(guard, kwargs, by_view=False)


def kwargs_of_decorator(guard: Guard, pattern: Pattern) -> tuple[str, ...]:
    """Which kwargs of a view with ``@guarded`` carry the ID; raises :class:`NotFound` if that cannot be told."""
    arg = pattern.callback.guarded_arg  # type: ignore[attr-defined]
    try:
        if arg is None:
            return guard.kwargs_for(pattern.view_name, pattern.captured)
        named = {guard.fields[0].name: arg} if isinstance(arg, str) else arg
        return tuple(named[field.name] for field in guard.fields)
    except (ConfigurationError, KeyError) as error:
        raise NotFound(str(error)) from error


def reason_against(pattern: Pattern) -> str:
    """Why no guard could guard ``pattern`` by itself, for somebody who wonders."""
    reasons = []
    for guard in registry:
        try:
            lookup_of(guard, pattern)
        except NotFound as reason:
            reasons.append(str(reason))
        else:
            return f'the guard {guard.name!r} would, with routes = "auto"'
    kept = [reason for reason in dict.fromkeys(reasons) if not reason.startswith("its view shows one")]
    return "; ".join(kept) or (f"no guard is of what {reasons[0].removeprefix('its ')}" if reasons else "no guards")
