"""Map the views of a URLconf to the guards that answer for them, and captured kwargs to IDs."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import models
from django.http import HttpRequest
from django.urls import URLResolver, get_resolver, resolvers

from ..exceptions import ConfigurationError
from ..guards import AUTO, Guard, registry
from ..guards.fields import is_foreign_key, kind_of, may_raise, may_raise_beside
from ..guards.guard import has_own_applies
from ..guards.places import is_in_one_database
from ..lookups.query import concrete
from ..process import own_lock
from .discovery import column_of, is_of_key, looked_up_by, why_another_lookup, why_not_found
from .openness import allowed_methods, layers, view_class_of, why_closed
from .patterns import Pattern, overlapping, patterns, patterns_named, root_urlconf

logger = logging.getLogger("bloomguard")

#: Stands for the ID of a match that lacks it, because an optional group of the regular expression did not match.
NO_ID: Any = object()


@dataclass(frozen=True, eq=False)
class GuardedRoute:
    """One URL pattern and its guard; ``kwargs`` carry the ID, in the order of the guard's fields.

    ``methods`` are those that both the guard and the view allow. ``closed`` is the reason why the guard must not answer
    before the view runs; if it is empty, the route is *open*. ``not_at_door`` is the reason why the door must not
    answer: the path alone does not decide.
    """

    guard: Guard
    pattern: Pattern
    kwargs: tuple[str, ...]
    methods: frozenset[str]
    closed: str = ""
    not_at_door: str = ""

    def value(self, captured: dict[str, Any]) -> Any:
        """Return the ID in ``captured``: a value, a tuple for several fields, or :data:`NO_ID` if it is missing."""
        try:
            if len(self.kwargs) == 1:
                return captured[self.kwargs[0]]
            return tuple([captured[name] for name in self.kwargs])
        except KeyError:
            return NO_ID

    def asked(self, request: HttpRequest, captured: dict[str, Any]) -> Any:
        """Return the ID in a request for the route's view; :data:`NO_ID` if the request is not one of this route."""
        pattern, match, names = self.pattern, request.resolver_match, self.kwargs
        # Hot path: `value(captured)` without its call. Other patterns may have the view too.
        if request.method in self.methods and match and match.route == (pattern.fixed_route or pattern.route()):
            return captured.get(names[0], NO_ID) if len(names) == 1 else self.value(captured)
        return NO_ID

    def may_raise(self, value: Any, captured: Mapping[str, Any]) -> bool:
        """Return whether the view's query for ``value`` may raise an error, which a 404 would hide."""
        if type(value) is int and not value >> 63 and len(captured) == 1:
            return False  # hot path: one number
        if may_raise(self.guard, value, captured.values(), by_link=self._by_link):
            return True
        return bool(self._beside) and any(may_raise_beside(field, captured.get(kwarg)) for kwarg, field in self._beside)

    @cached_property
    def _beside(self) -> tuple[tuple[str, Any], ...]:
        """What Django's own view compares beside the guard's fields, maybe with one of the guard's own kwargs."""
        if self.pattern.shown is None:
            return ()
        model, looked_up = self.pattern.shown.model, self.pattern.shown.looked_up
        columns = [(kwarg, column_of(model, name)) for name, kwarg in looked_up.items()]
        return tuple(
            (kwarg, column)
            for kwarg, column in columns
            if kwarg not in self.kwargs or not is_of_key(self.guard, model, column)
        )

    @cached_property
    def _by_link(self) -> bool:
        """Whether the view shows a child model, whose key is the link to its parent."""
        shown = self.pattern.shown
        return shown is not None and concrete(shown.model) is not concrete(self.guard.model)


class RouteTable:
    """All guarded routes of one URLconf.

    ``patterns`` are all patterns of the URLconf; ``guarded`` are the routes that guards name or match automatically,
    ``open`` those of them that a guard may answer before the view runs.
    """

    def __init__(self, urlconf: Any) -> None:
        self.urlconf = urlconf
        self.resolver = get_resolver(urlconf)
        self.patterns = tuple(patterns(urlconf))
        self.guarded = [route for guard in registry for route in _routes_of(guard, self)]
        self.open = [route for route in self.guarded if not route.closed]
        #: What the paths begin with that code of the project's own may read.
        self.read_by_project = tuple({each.literal for each in self.patterns if each.has_own_code})
        #: ``id`` of a view -> its open routes. A view may be an object that has no hash.
        self.by_view: dict[int, list[GuardedRoute]] = {}
        for route in self.open:
            self.by_view.setdefault(id(route.pattern.callback), []).append(route)


def guarded_routes(guard: Guard, urlconf: Any = None) -> list[GuardedRoute]:
    """Return the routes of ``guard``. Raises :class:`ConfigurationError` if it names one that has no ID."""
    return _routes_of(guard, table_for(urlconf), strict=True)


def _routes_of(guard: Guard, table: RouteTable, *, strict: bool = False) -> list[GuardedRoute]:
    """Return the routes of ``guard`` among the patterns of ``table``. ``strict``: raise for a missing one."""
    is_auto = guard.routes == AUTO
    find: Callable[..., list[GuardedRoute]] = _auto_routes if is_auto else _routes_named
    entries: Iterable[Any] = table.patterns if is_auto else guard.routes
    routes = []
    for entry in entries:
        try:
            routes += find(guard, entry, table)
        except Exception as error:  # also one of the view's own
            if strict and not is_auto:
                raise
            # The system checks report it; here only debug, because this URLconf may lack the route on purpose.
            logger.debug("bloomguard does not guard %s: %r", entry.text if is_auto else entry, error)
    return routes


def _routes_named(guard: Guard, name: str, table: RouteTable) -> list[GuardedRoute]:
    found = patterns_named(table.patterns, name)
    if not found:
        raise ConfigurationError(f"there is no URL pattern named {name!r}")
    routes = []
    for pattern in found:
        try:
            kwargs = kwargs_for(guard, name, (*pattern.captured, *pattern.fixed))
        except ConfigurationError as error:
            if len(found) == 1:
                raise
            texts = " and ".join(each.text for each in found)
            raise ConfigurationError(f"{texts} have one name, and for {pattern.text}, {error}") from error
        reason = why_another_lookup(guard, pattern, kwargs) or _why_another_view(pattern, name, table)
        routes.append(_make_route(guard, pattern, kwargs, table, reason))
    return routes


def _why_another_view(pattern: Pattern, name: str, table: RouteTable) -> str:
    """Return why the guard's ``name`` may not mean the view of ``pattern``; empty if it does.

    It means what it does in ``ROOT_URLCONF``, if it is there: each host's URLconf may have a view of that name.
    """
    if table.urlconf != root_urlconf():
        views = [_view_with_options(each) for each in patterns_named(table_for().patterns, name)]
        if views and _view_with_options(pattern) not in views:
            return f"{name!r} is the name of another view in ROOT_URLCONF"
    return ""


def _view_with_options(pattern: Pattern) -> tuple[Any, Any]:
    *_, view = layers(pattern.callback)
    return view_class_of(view) or view, getattr(view, "view_initkwargs", None)


def _auto_routes(guard: Guard, pattern: Pattern, table: RouteTable) -> list[GuardedRoute]:
    if pattern.shown is None or why_not_found(guard, pattern):  # `guard_routes` shows the reason
        return []
    # One: the view may look up the primary key twice, under both of its names.
    return [_make_route(guard, pattern, tuple(looked_up_by(guard, pattern.shown).values())[:1], table)]


def _make_route(
    guard: Guard, pattern: Pattern, kwargs: tuple[str, ...], table: RouteTable, reason: str = ""
) -> GuardedRoute:
    """Return the route of ``pattern``. ``reason``: why what its view looks up closes it; empty if it does not."""
    allowed, methods = allowed_methods(pattern.callback), frozenset(guard.methods)
    methods = methods if allowed is None else methods & allowed
    closed = reason or why_closed(guard, pattern.callback)
    not_at_door = closed or _why_not_at_door(guard, pattern, kwargs, methods, table)
    return GuardedRoute(guard, pattern, kwargs, methods, closed, not_at_door)


def _why_not_at_door(
    guard: Guard, pattern: Pattern, kwargs: tuple[str, ...], methods: frozenset[str], table: RouteTable
) -> str:
    if not methods & {"GET", "HEAD"}:
        return "its guard and its view have neither GET nor HEAD in common"
    if has_own_applies(guard):
        return f"{type(guard).__name__}.applies needs the request"
    if guard.scope is not None:
        return f"the {guard.scope} that the view reads is not in the path"
    if not is_in_one_database(guard.model):
        # It answers before any middleware of the project has set for a router which one this request reads.
        return "the routers may choose one of several databases by the request"
    if pattern.fixed.intersection(kwargs):
        return "the URLconf sets the ID, not the path"
    for each in (pattern, *overlapping(table.patterns, pattern)):
        if each.by_language:
            return f"{each.text} matches other paths in another language"
        if each.has_own_code:
            return f"code of the project's own reads the paths of {each.text}"
    return ""


#: `get_resolver`, a call nearer.
_resolver: Callable[[Any], URLResolver] = getattr(resolvers, "_get_cached_resolver", get_resolver)

#: Held while a table is built, which takes seconds on a large site. Waiting ends after `_PATIENCE` seconds. A forked
#: child has its own: the thread that holds its parent's is not there.
_building, _PATIENCE = own_lock(sys.modules[__name__], "_building"), 10.0


def table_for(urlconf: Any = None) -> RouteTable:
    """Return the table of one URLconf, by default ``ROOT_URLCONF``; it is built at the first call."""
    plans = registry.plans
    table: RouteTable | None = plans.routes.get(urlconf)
    if table is not None and table.resolver is _resolver(table.urlconf):
        return table
    if table is not None and plans is registry.plans:
        registry.replan()  # the URLs were reloaded: `clear_url_caches` sends no signal
    root = root_urlconf() if urlconf is None else urlconf
    lock = _building
    is_locked = lock.acquire(timeout=_PATIENCE)
    try:
        routes = registry.plans.routes
        table = routes.get(root) or routes.setdefault(root, RouteTable(root))
        routes[urlconf] = table  # also under `None`: reading the settings costs each request 1 µs
        return table
    finally:
        if is_locked:
            lock.release()


# -- which kwargs of a pattern, or arguments of a view, carry the values of a lookup


class UnclearKwargs(ConfigurationError):
    """The kwarg with the ID has to be named: several may carry it, or ``arg`` leaves out a field."""


def kwargs_for(guard: Guard, route: str, captured: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the ``captured`` kwargs with the lookup's values, in the order of the lookup's fields.

    Raises :class:`ConfigurationError` if a field has no such kwarg, or if ``routes`` names another field, and
    :class:`UnclearKwargs` if a field has several.
    """
    captured = tuple(dict.fromkeys(captured))
    where = route if route.startswith("@") else f"route {route!r}"
    named = guard.routes.get(route, {}) if isinstance(guard.routes, Mapping) else {}
    if isinstance(named, str):
        named = {guard._meta.fields[0].name: named}
    names = [field.name for field in guard._meta.fields]
    if odd := set(named).difference(names):
        raise ConfigurationError(
            f"routes names the field {min(odd)!r} for {route!r}, which is not in lookup; the fields are "
            f"{', '.join(names)}"
        )
    chosen = []
    for field in guard._meta.fields:
        wanted, similar = ([named[field.name]], []) if field.name in named else _usual_kwargs(guard, field)
        found = [name for name in captured if name in wanted]
        if not found:
            raise ConfigurationError(
                f"{where} captures {', '.join(captured) or 'nothing'}; expected {' or '.join(wanted)}"
            )
        if others := [name for name in captured if name in (*wanted, *similar) and name != found[0]]:
            raise UnclearKwargs(
                f"{where} captures {' and '.join((found[0], *others))}, and each may be the {field.name} of "
                f"{guard.model._meta.label}"
            )
        # For a foreign key to a number, `may_raise` lets texts pass.
        is_clear = field.name in named or found[0] == field.attname or kind_of(field) == "integer"
        if is_foreign_key(field) and not is_clear:
            raise UnclearKwargs(
                f"{where} captures {found[0]}, which may be another column of what {field.name} refers to"
            )
        chosen.append(found[0])
    return tuple(chosen)


def kwargs_of_view(
    guard: Guard, view: Any, captured: Iterable[str], arg: str | Mapping[str, str] | None
) -> tuple[str, ...]:
    """Return the arguments of ``view``, under ``@guarded(arg=...)``, with the values of the lookup's fields.

    Raises as :func:`kwargs_for` does, and :class:`UnclearKwargs` if ``arg`` has none for a field.
    """
    if arg is None:
        arguments = [name for name in inspect.signature(view).parameters if name != "request"]
        return kwargs_for(guard, f"@guarded({guard.name!r})", (*captured, *arguments))
    named = {guard._meta.fields[0].name: arg} if isinstance(arg, str) else arg
    if missing := [field.name for field in guard._meta.fields if field.name not in named]:
        raise UnclearKwargs(f"@guarded({guard.name!r}): arg is {arg!r}; add the arguments for {missing}")
    return tuple(named[field.name] for field in guard._meta.fields)


def _usual_kwargs(guard: Guard, field: models.Field[Any, Any]) -> tuple[list[str], list[str]]:
    """Return the names of kwargs that usually carry ``field``, and of those that may carry it beside one of them."""
    model_name = str(guard.model._meta.model_name)
    names, similar = [field.name, field.attname], [f"{model_name}_{field.name}"]
    if len(guard._meta.fields) == 1:
        similar.append(model_name)  # beside other fields of the guard, it may be the name of one of them
        if field.primary_key or field is guard.model._meta.pk:
            names = ["pk", *names, f"{model_name}_pk", f"{model_name}_id"]
    return list(dict.fromkeys(names)), similar
