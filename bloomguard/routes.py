"""Which guard guards this path.

All guarded patterns of a URLconf are sorted by their prefixes once. A request is held against those that its path may
belong to before Django resolves it, so an ID that may exist costs one regular expression and one filter check. Only
where a guard says ABSENT is it asked whether another pattern takes the path first: then the guard has nothing to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.http import HttpRequest
from django.urls import Resolver404, resolve

from .answers.shadow import Shadow
from .complaints import Complaints
from .exceptions import ConfigurationError
from .guards import AUTO, Guard, registry
from .keys import OutOfRange, Unkeyable
from .routing.access import Demand, demand
from .routing.discovery import NotFound, lookup_of
from .routing.patterns import Pattern, patterns, rivals
from .routing.reading import NO_ID, Between, pick, reader
from .routing.shortcut import LetsPass, shortcut
from .routing.spare import Lookup, spared
from .verdicts import MAYBE, SHADOW, Decision, Verdict

logger = logging.getLogger("bloomguard")


@dataclass(frozen=True, eq=False)
class GuardedRoute:
    """One URL pattern and the guard of the ID in it; ``kwargs`` carry the ID, in the order of the guard's fields.

    ``rivals`` are the patterns before it that may take one of its paths for themselves. ``by_view`` says that the view
    itself has to make the 404; ``demand`` is what it demands before it looks anything up.
    """

    guard: Guard
    pattern: Pattern
    kwargs: tuple[str, ...]
    methods: frozenset[str]
    rivals: tuple[Pattern, ...] = ()
    by_view: bool = False
    demand: Demand | None = None

    def takes(self, path: str) -> bool:
        """Whether Django certainly takes ``path`` to this route, with the ID that :attr:`read` has read."""
        return (
            self.is_plain
            and self.pattern.may_match(path)  # ``read`` takes for a number what ``int`` takes for one
            and not any(rival.may_match(path) for rival in self.rivals)
        )

    @property
    def is_early(self) -> bool:
        """Whether it may be answered before anybody knows who asks."""
        return not self.by_view and (self.demand is None or self.guard.before_login)

    @property
    def is_late(self) -> bool:
        """Whether it may be answered once it is known who asks, by the view or to those who are logged in."""
        return not self.is_early and (self.by_view or (self.demand is not None and self.demand.login_is_enough))

    @property
    def needs_login(self) -> bool:
        """Whether somebody has to see to it that who asks is logged in, because the view does not do so itself."""
        return self.demand is not None and (self.demand.by_middleware or not self.by_view)

    @cached_property
    def spared(self) -> Callable[..., Any]:
        """The view, with a look-up that finds nothing."""
        return spared(Lookup(self.guard, self.kwargs, self.by_view), self.pattern.callback)

    def value(self, captured: dict[str, Any]) -> Any:
        """The ID among a match's kwargs: one value, or a tuple for several fields; ``NO_ID`` where one is left out."""
        return pick(captured, self.kwargs)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the path alone says everything: what is read from it is what the view gets, in any language."""
        return not (self.pattern.by_language or self.pattern.fixed.intersection(self.kwargs))

    @cached_property
    def prefix(self) -> str:
        """What every path of the route begins with, up to a slash."""
        return self.pattern.literal[: self.pattern.literal.rindex("/") + 1]

    @cached_property
    def read(self) -> Callable[[str], Any]:
        """``read(path)``: the ID as the pattern captures it from ``path``, converted, or ``NO_ID``.

        A first look: Django may resolve the path to something else.
        """
        return reader(self.pattern, self.kwargs)

    @cached_property
    def lets_pass(self) -> LetsPass | None:
        """A shortcut for paths with :attr:`prefix`, if there is one."""
        between = Between.texts(self.pattern, self.kwargs)
        return shortcut(self.guard, between) if between is not None and between.before == self.prefix else None


def guarded_routes(guard: Guard, urlconf: Any = None) -> list[GuardedRoute]:
    """The patterns that ``guard`` guards; raises :class:`ConfigurationError` if it names one without an ID in it."""
    known = list(patterns(urlconf))
    if guard.routes == AUTO:
        return _found(guard, known)
    if isinstance(guard.routes, str):
        raise ConfigurationError(f"routes is the text {guard.routes!r}, neither a list of names nor {AUTO!r}")
    return [found for route in guard.routes for found in _named(guard, route, known)]


def _named(guard: Guard, route: str, known: list[Pattern]) -> list[GuardedRoute]:
    named = [place for place, pattern in enumerate(known) if pattern.is_named and pattern.view_name == route]
    if not named:
        raise ConfigurationError(f"there is no URL pattern named {route!r}")
    return [
        GuardedRoute(
            guard,
            known[place],
            guard.kwargs_for(route, known[place].captured),
            frozenset(guard.methods),
            rivals(known[place], known[:place]),
            demand=demand(known[place].callback),
        )
        for place in named
    ]


def _found(guard: Guard, known: list[Pattern]) -> list[GuardedRoute]:
    found = []
    for place, pattern in enumerate(known):
        try:
            lookup = lookup_of(guard, pattern)
        except NotFound:  # ``guard_routes`` tells the reason
            continue
        found.append(
            GuardedRoute(
                guard,
                pattern,
                lookup.kwargs,
                # What a view does with another method before it looks anything up, nobody has looked at.
                frozenset(guard.methods) & {"GET", "HEAD"},
                rivals(pattern, known[:place]),
                lookup.by_view,
                demand(pattern.callback),
            )
        )
    return found


class Index:
    """Routes by what their paths begin with."""

    def __init__(self, routes: list[GuardedRoute]) -> None:
        self._by_prefix: dict[str, list[GuardedRoute]] = {}
        for route in routes:
            self._by_prefix.setdefault(route.prefix, []).append(route)
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})

    def candidates(self, path: str) -> list[GuardedRoute]:
        """Routes that ``path`` may belong to: those whose prefix it has."""
        found: list[GuardedRoute] = []
        by_prefix, most = self._by_prefix, len(path)
        for length in self._lengths:
            if length > most:
                break
            prefix = path[:length]
            if prefix in by_prefix:
                found = [*found, *by_prefix[prefix]] if found else by_prefix[prefix]
        return found


class RouteTable:
    """All guarded routes of one URLconf, compiled for a first look."""

    def __init__(self, urlconf: Any) -> None:
        self.urlconf = urlconf
        routes: list[GuardedRoute] = []
        known = list(patterns(urlconf))
        for guard in registry:
            if guard.routes == AUTO:
                routes += _found(guard, known)
                continue
            for route in guard.routes:
                try:
                    routes += _named(guard, route, known)
                except ConfigurationError as error:
                    # The system checks say so loudly; a request is no place to. Another URLconf may lack the route.
                    logger.debug("bloomguard does not guard %s under %s: %s", route, urlconf, error)
        #: Every pattern, and every one that a guard names or finds, answered by it or not.
        self.patterns, self.guarded = known, routes
        #: Routes that are answered once their view is known, by that view.
        self.late: dict[Callable[..., Any], list[GuardedRoute]] = {}
        for found in routes:
            if found.is_late:
                self.late.setdefault(found.pattern.callback, []).append(found)
        self.early = routes = [found for found in routes if found.is_early]
        self.candidates = Index(routes).candidates
        self.methods = frozenset(method for route in routes for method in route.methods)
        self.by_language = any(pattern.by_language for pattern in known)


_tables: dict[Any, RouteTable] = {}
_complaints = Complaints()


def table_for(urlconf: Any = None) -> RouteTable:
    """The table of one URLconf, made when first asked for; of ``ROOT_URLCONF`` where it is ``None``."""
    table = _tables.get(urlconf)
    if table is None:
        version = registry.version
        table = table_for(settings.ROOT_URLCONF) if urlconf is None else RouteTable(urlconf)
        _tables[urlconf] = table
        if registry.version != version:  # by another thread, whose guard may not be in it
            _tables.clear()
    return table


def _follow_settings(*, setting: str, **kwargs: Any) -> None:
    if setting in ("ROOT_URLCONF", "MIDDLEWARE"):
        _tables.clear()
        _complaints.forget()


registry.listeners.append(_tables.clear)
setting_changed.connect(_follow_settings, dispatch_uid="bloomguard.routes")

Decide = Callable[[Guard, Any], Decision | None]


def absent(request: HttpRequest, decide: Decide, *, quickly: bool = False) -> Guard | Shadow | bool | None:
    """The guard that knows for certain that ``request`` asks for what does not exist; a shadow of it passes as well.

    ``None`` lets the request pass; ``False`` says that ``decide`` could not tell without the database. ``quickly`` does
    not ask ``decide`` where a :mod:`~bloomguard.routing.shortcut` says that the ID may exist. Never raises.
    """
    try:
        urlconf = getattr(request, "urlconf", None)
        table = _tables.get(urlconf) or table_for(urlconf)
        if request.method not in table.methods:
            return None
        if table.by_language and not hasattr(request, "LANGUAGE_CODE"):
            return None  # LocaleMiddleware has yet to choose the language, so nobody knows which pattern will match
        path = request.path_info
        for route in table.candidates(path):
            if quickly and route.lets_pass is not None and route.lets_pass(path):
                request.bloomguard_maybe = route  # type: ignore[attr-defined]
                continue
            asked = route.read(path)
            if asked is NO_ID:
                continue
            decision = decide(route.guard, asked)
            if decision is None:
                return False
            if decision is MAYBE:
                request.bloomguard_maybe = route  # type: ignore[attr-defined]
            elif decision.verdict is Verdict.ABSENT and _confirmed(request, table.urlconf, route, asked, decide):
                return route.guard
            if decision is SHADOW and _confirmed(request, table.urlconf, route, asked, decide):
                return Shadow(route.guard, asked)
    except Exception as error:
        _say_once(error)
    return None


def absent_in_view(
    request: HttpRequest, view: Any, kwargs: dict[str, Any], decide: Decide
) -> GuardedRoute | bool | None:
    """The same once Django has found ``view``: the route, if its view demands something or has to make the 404 itself.

    The caller sees to it that who asks is logged in, where :attr:`GuardedRoute.demand` says so.
    """
    try:
        urlconf = getattr(request, "urlconf", None)
        table = _tables.get(urlconf) or table_for(urlconf)
        for route in table.late.get(view, ()):
            value = route.value(kwargs)
            if value is NO_ID or request.method not in route.methods or not route.pattern.is_of(request.resolver_match):
                continue
            decision = decide(route.guard, value)
            if decision is None:
                return False
            if decision is MAYBE:
                request.bloomguard_maybe = route  # type: ignore[attr-defined]
            elif decision.verdict is Verdict.ABSENT and route.guard.applies(request):
                if route.by_view:
                    _ = route.spared  # made here, where an error passes the request
                return route
    except Exception as error:
        _say_once(error)
    return None


def _say_once(error: Exception) -> None:
    _complaints.say(error, "bloomguard passes requests because of an error of its own")


def _confirmed(request: HttpRequest, urlconf: Any, route: GuardedRoute, asked: Any, decide: Decide) -> bool:
    """Whether Django itself takes the path to this route, with an ID that is absent, for a request the guard minds.

    ``asked`` is a value that is known to be absent.
    """
    if request.method not in route.methods:
        return False
    path = request.path_info
    if not route.takes(path):
        try:
            match = resolve(path, urlconf)
        except Resolver404:
            return False
        value = route.value(match.kwargs)
        if not route.pattern.is_of(match) or value is NO_ID:
            return False
        if not _same_key(route.guard, value, asked):
            decision = decide(route.guard, value)
            if decision is None or (decision.verdict is not Verdict.ABSENT and decision is not SHADOW):
                return False
    return route.guard.applies(request)


def _same_key(guard: Guard, one: Any, other: Any) -> bool:
    """Whether an answer for one value is an answer for the other: asking a store again may cost a round trip."""
    try:
        return guard.keys.key(one) == guard.keys.key(other)
    except (Unkeyable, OutOfRange):
        return False
