"""Map the views of a URLconf to the guards that answer for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.urls import get_resolver
from django.utils.translation import gettext

from ..exceptions import ConfigurationError
from ..guards import AUTO, Guard, registry
from .discovery import Detail, NotFound, detail, find_kwargs, views_by_model
from .openness import allowed_methods, why_closed
from .patterns import Pattern, PatternIndex, patterns

logger = logging.getLogger("bloomguard")

#: By model, the patterns whose views show one row of its table.
Views = Mapping[Any, Sequence[Pattern]]

#: What a match has in place of an ID where an optional group of its expression is left out.
NO_ID: Any = object()


@dataclass(frozen=True, eq=False)
class GuardedRoute:
    """One URL pattern and the guard of the ID in it; ``kwargs`` carry the ID, in the order of the guard's fields.

    ``methods`` are those that both the guard and the view take. ``closed`` says why the guard must not answer before
    the view runs; where it is empty, the route is *open*. ``not_at_door`` says why the path alone does not decide it.
    """

    guard: Guard
    pattern: Pattern
    kwargs: tuple[str, ...]
    methods: frozenset[str]
    closed: str = ""
    not_at_door: str = ""

    def value(self, captured: dict[str, Any]) -> Any:
        """The ID among a match's kwargs: one value, or a tuple for several fields; :data:`NO_ID` if one is left out."""
        try:
            if len(self.kwargs) == 1:
                return captured[self.kwargs[0]]
            return tuple([captured[name] for name in self.kwargs])
        except KeyError:
            return NO_ID

    @cached_property
    def _shown(self) -> Detail | None:
        return detail(self.pattern)

    @property
    def message(self) -> str:
        """What the view's own ``Http404`` would say: a site's 404 page may show it."""
        if self._shown is not None:
            name = self._shown.model._meta.verbose_name
            return gettext("No %(verbose_name)s found matching the query") % {"verbose_name": name}
        return f"No {self.guard.model._meta.object_name} matches the given query."


class RouteTable:
    """All guarded routes of one URLconf.

    ``patterns`` are all that the URLconf has, and ``index`` finds them; ``guarded`` are those that a guard names or
    finds, ``open`` those of them that it may answer for.
    """

    def __init__(self, urlconf: Any) -> None:
        self.urlconf = urlconf
        self.resolver = get_resolver(urlconf)
        self.index = PatternIndex(patterns(urlconf))
        self.patterns = self.index.patterns
        self.guarded: list[GuardedRoute] = []
        views = views_by_model(self.patterns) if any(guard.routes == AUTO for guard in registry) else {}
        for guard in registry:
            self.guarded += _routes_of(guard, self.index, views, self._missing)
        self.open = [route for route in self.guarded if not route.closed]
        #: The open routes of each view.
        self.by_view: dict[Callable[..., Any], list[GuardedRoute]] = {}
        for route in self.open:
            self.by_view.setdefault(route.pattern.callback, []).append(route)

    def _missing(self, name: str, error: ConfigurationError) -> None:
        # The system checks say so loudly; a request is no place to. Another URLconf may lack the route.
        logger.debug("bloomguard does not guard %s under %s: %s", name, self.urlconf, error)


def guarded_routes(guard: Guard, urlconf: Any = None) -> list[GuardedRoute]:
    """The patterns that ``guard`` names or finds; raises :class:`ConfigurationError` if it names one without an ID."""

    def missing(name: str, error: ConfigurationError) -> None:
        raise error

    if isinstance(guard.routes, str) and guard.routes != AUTO:
        raise ConfigurationError(f"routes is the text {guard.routes!r}, neither a list of names nor {AUTO!r}")
    index = PatternIndex(patterns(urlconf))
    return _routes_of(guard, index, views_by_model(index.patterns) if guard.routes == AUTO else {}, missing)


def _routes_of(
    guard: Guard, known: PatternIndex, views: Views, missing: Callable[[str, ConfigurationError], None]
) -> list[GuardedRoute]:
    """``views`` are needed for :data:`AUTO` alone."""
    if guard.routes == AUTO:
        table = guard.model._meta.concrete_model or guard.model
        return [route for pattern in views.get(table, ()) for route in _found(guard, pattern, known)]
    routes = []
    for name in guard.routes:
        try:
            routes += _named(guard, name, known)
        except ConfigurationError as error:
            missing(name, error)
    return routes


def _named(guard: Guard, name: str, known: PatternIndex) -> list[GuardedRoute]:
    named = known.named(name)
    if not named:
        raise ConfigurationError(f"there is no URL pattern named {name!r}")
    return [
        _route(guard, pattern, guard.kwargs_for(name, pattern.captured), frozenset(guard.methods), known)
        for pattern in named
    ]


def _found(guard: Guard, pattern: Pattern, known: PatternIndex) -> Iterator[GuardedRoute]:
    try:
        kwargs = find_kwargs(guard, pattern)
        # What a view does with another method before it looks anything up is not known.
        yield _route(guard, pattern, kwargs, frozenset(guard.methods) & {"GET", "HEAD"}, known)
    except NotFound:  # `guard_routes` gives the reason
        pass
    except Exception as error:  # an odd view is left alone, and so are all other routes
        logger.debug("bloomguard does not guard %s: its view cannot be read: %r", pattern.text, error)


def _route(
    guard: Guard, pattern: Pattern, kwargs: tuple[str, ...], methods: frozenset[str], known: PatternIndex
) -> GuardedRoute:
    allowed = allowed_methods(pattern.callback)
    methods = methods if allowed is None else methods & allowed
    closed = why_closed(guard, pattern.callback)
    return GuardedRoute(
        guard, pattern, kwargs, methods, closed, closed or _why_not_at_door(guard, pattern, kwargs, methods, known)
    )


def _why_not_at_door(
    guard: Guard, pattern: Pattern, kwargs: tuple[str, ...], methods: frozenset[str], known: PatternIndex
) -> str:
    if not methods & {"GET", "HEAD"}:
        return "its guard and its view share neither GET nor HEAD"
    if type(guard).applies is not Guard.applies:
        return f"{type(guard).__name__}.applies needs the request"
    if pattern.fixed.intersection(kwargs):
        return "the URLconf gives the ID, not the path"
    for each in (pattern, *known.rivals(pattern)):
        if each.by_language:
            return f"{each.text} is another path in another language"
        if not each.is_of_django:
            return f"{each.text} is matched by a class of the project's own"
    return ""


_tables: dict[Any, RouteTable] = {}
#: Held while a table is made, which takes seconds on a large site; not waited for longer than this.
_making, _PATIENCE = threading.RLock(), 10.0


def table_for(urlconf: Any = None) -> RouteTable:
    """The table of one URLconf, of ``ROOT_URLCONF`` where it is ``None``: made when first asked for.

    It is made anew when the URLs are reloaded (``clear_url_caches``) and when the registry or the settings change.
    """
    table = _tables.get(urlconf)
    if table is None or table.resolver is not get_resolver(table.urlconf):
        root = settings.ROOT_URLCONF if urlconf is None else urlconf
        table = _made(root)
        if _tables.get(root) is table:
            _tables[urlconf] = table  # by `None`, too: a look at the settings takes a request a microsecond
    return table


def _made(urlconf: Any) -> RouteTable:
    is_mine = _making.acquire(timeout=_PATIENCE)  # nobody may be there to release it after a fork
    try:
        table = _tables.get(urlconf)
        if table is None or table.resolver is not get_resolver(urlconf):
            version = registry.version
            table = _tables[urlconf] = RouteTable(urlconf)
            if registry.version != version:  # by another thread, whose guard may not be in it
                _tables.clear()
        return table
    finally:
        if is_mine:
            _making.release()


def _follow_settings(*, setting: str, **kwargs: Any) -> None:
    if setting in ("ROOT_URLCONF", "MIDDLEWARE"):
        _tables.clear()


registry.listeners.append(_tables.clear)
setting_changed.connect(_follow_settings, dispatch_uid="bloomguard.routes")
