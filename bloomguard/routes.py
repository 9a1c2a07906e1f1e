"""Which guard guards this path.

All guarded patterns of a URLconf are compiled once. A request is held against them before Django resolves it, so an
ID that may exist costs one regular expression and one filter check. Only where a guard says ABSENT is the path
resolved as Django will resolve it: if another pattern takes it first, the guard has nothing to say.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.http import HttpRequest
from django.urls import Resolver404, URLPattern, URLResolver, get_resolver, resolve
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern

from .exceptions import ConfigurationError
from .guards import Guard, registry
from .keys import OutOfRange, Unkeyable
from .verdicts import Decision, Verdict

logger = logging.getLogger("bloomguard")

Step = RoutePattern | RegexPattern | Any
Screen = Callable[[str], re.Match[str] | None]


@dataclass(frozen=True)
class GuardedRoute:
    """One URL pattern and the guard of the ID in it; ``kwargs`` carry the ID, in the order of the guard's fields."""

    guard: Guard
    view_name: str
    steps: tuple[Step, ...]
    kwargs: tuple[str, ...]

    def value(self, captured: dict[str, Any]) -> Any:
        """The ID among a match's kwargs: one value, or a tuple for several fields."""
        values = tuple(captured[name] for name in self.kwargs)
        return values[0] if len(values) == 1 else values

    def match(self, path: str) -> dict[str, Any] | None:
        """The kwargs that the pattern captures from ``path``, converted, or ``None``."""
        captured: dict[str, Any] = {}
        for step in self.steps:
            matched = step.match(path)
            if not matched:
                return None
            path, _, kwargs = matched
            captured.update(kwargs)
        return captured


@dataclass(frozen=True)
class Pattern:
    """A named URL pattern with the chain of patterns that leads to it."""

    view_name: str
    steps: tuple[Step, ...]
    captured: tuple[str, ...]


def patterns(urlconf: Any = None) -> Iterator[Pattern]:
    """Every named URL pattern of ``urlconf`` (by default ``ROOT_URLCONF``), through includes and namespaces."""

    def walk(resolver: URLResolver, steps: tuple[Step, ...], namespaces: tuple[str, ...]) -> Iterator[Pattern]:
        for entry in resolver.url_patterns:
            chain = (*steps, entry.pattern)
            if isinstance(entry, URLResolver):
                inner = (*namespaces, entry.namespace) if entry.namespace else namespaces
                yield from walk(entry, chain, inner)
            elif isinstance(entry, URLPattern) and entry.name:
                captured = tuple(name for step in chain for name in step.regex.groupindex)
                yield Pattern(":".join((*namespaces, entry.name)), chain, captured)

    root = get_resolver(urlconf)
    yield from walk(root, (root.pattern,), ())


def guarded_routes(guard: Guard, urlconf: Any = None) -> list[GuardedRoute]:
    """The patterns that ``guard`` names; raises :class:`ConfigurationError` if a name is unknown or has no ID in it."""
    if isinstance(guard.routes, str):
        raise ConfigurationError(f"routes is the text {guard.routes!r}, not a list of names")
    known = list(patterns(urlconf))
    return [found for route in guard.routes for found in _named(guard, route, known)]


def _named(guard: Guard, route: str, known: list[Pattern]) -> list[GuardedRoute]:
    named = [pattern for pattern in known if pattern.view_name == route]
    if not named:
        raise ConfigurationError(f"there is no URL pattern named {route!r}")
    return [GuardedRoute(guard, route, pattern.steps, guard.kwargs_for(route, pattern.captured)) for pattern in named]


class RouteTable:
    """All guarded routes of one URLconf, compiled for a first look."""

    def __init__(self, urlconf: Any) -> None:
        self.urlconf = urlconf
        self.registry_version = registry.version
        routes: list[GuardedRoute] = []
        known = list(patterns(urlconf))
        for guard in registry:
            for route in guard.routes:
                try:
                    routes += _named(guard, route, known)
                except ConfigurationError as error:
                    # The system checks say so loudly; a request is no place to. Another URLconf may lack the route.
                    logger.debug("bloomguard does not guard %s under %s: %s", route, urlconf, error)
        self._dynamic = [route for route in routes if _source(route) is None]
        self._static = [route for route in routes if _source(route) is not None]
        self._screens: dict[int, Screen] = {}
        self.methods = frozenset(method for route in routes for method in route.guard.methods)
        self.by_language = _depends_on_language(get_resolver(urlconf))

    def candidates(self, path: str) -> Iterator[GuardedRoute]:
        """Routes that ``path`` may belong to; hardly ever more than one."""
        yield from self._dynamic
        start = 0
        # An expression tells the first of several that match: another one is asked for those after it.
        while (matched := (self._screens.get(start) or self._screen(start))(path)) is not None:
            start += matched.lastindex or 0
            yield self._static[start - 1]

    def _screen(self, start: int) -> Screen:
        """Matches whole paths of the static routes from number ``start`` on, each with a group."""
        sources = [f"({_source(route)})" for route in self._static[start:]]
        screen = self._screens[start] = re.compile("|".join(sources) or r"(?!)").match
        return screen


def _source(route: GuardedRoute) -> str | None:
    """A regular expression without groups for the whole path, or ``None`` where a step depends on the request."""
    source = ""
    for step in route.steps:
        if isinstance(step, RoutePattern) and isinstance(step._route, str):  # type: ignore[attr-defined]
            source += step.regex.pattern.removeprefix("^").removesuffix(r"\Z").removesuffix(r"\z")
        elif isinstance(step, RegexPattern) and step.regex.pattern == "^/":
            source += "/"
        else:
            return None
    source = re.sub(r"\(\?P<\w+>", "(?:", source)
    try:
        return source + r"\Z" if re.compile(source).groups == 0 else None
    except re.error:  # a converter's expression that refers to its group, or sets a flag, works only as it stands
        return None


def _depends_on_language(resolver: URLResolver) -> bool:
    """Whether any pattern is another one in another language: ``i18n_patterns``, or a route that is translated."""
    for entry in resolver.url_patterns:
        pattern = entry.pattern
        if isinstance(pattern, LocalePrefixPattern):
            return True
        if not isinstance(getattr(pattern, "_route", getattr(pattern, "_regex", "")), str):
            return True
        if isinstance(entry, URLResolver) and _depends_on_language(entry):
            return True
    return False


_tables: dict[Any, RouteTable] = {}


def table_for(urlconf: Any) -> RouteTable:
    """The table of one URLconf, made when first asked for."""
    table = _tables.get(urlconf)
    if table is None or table.registry_version != registry.version:
        table = _tables[urlconf] = RouteTable(urlconf)
    return table


def _follow_settings(*, setting: str, **kwargs: Any) -> None:
    if setting == "ROOT_URLCONF":
        _tables.clear()


setting_changed.connect(_follow_settings, dispatch_uid="bloomguard.routes")

Decide = Callable[[Guard, Any], Decision | None]


def absent(request: HttpRequest, decide: Decide) -> Guard | bool | None:
    """The guard that knows for certain that ``request`` asks for what does not exist.

    ``None`` lets the request pass; ``False`` says that ``decide`` could not tell without the database. Never raises.
    """
    try:
        urlconf = getattr(request, "urlconf", None) or settings.ROOT_URLCONF
        table = table_for(urlconf)
        if request.method not in table.methods:
            return None
        if table.by_language and not hasattr(request, "LANGUAGE_CODE"):
            return None  # LocaleMiddleware has yet to choose the language, so nobody knows which pattern will match
        path = request.path_info
        for route in table.candidates(path):
            captured = route.match(path)
            if captured is None or request.method not in route.guard.methods:
                continue
            asked = route.value(captured)
            decision = decide(route.guard, asked)
            if decision is None:
                return False
            if decision.verdict is Verdict.ABSENT and _confirmed(request, urlconf, route, asked, decide):
                return route.guard
    except Exception:
        logger.exception("bloomguard passes a request because of an error of its own")
    return None


def _confirmed(request: HttpRequest, urlconf: Any, route: GuardedRoute, asked: Any, decide: Decide) -> bool:
    """Whether Django itself takes the path to this route, with an ID that is absent, for a request the guard minds.

    ``asked`` is a value that is known to be absent.
    """
    try:
        match = resolve(request.path_info, urlconf)
    except Resolver404:
        return False
    if match.view_name != route.view_name or any(name not in match.kwargs for name in route.kwargs):
        return False
    value = route.value(match.kwargs)
    if not _same_key(route.guard, value, asked):
        decision = decide(route.guard, value)
        if decision is None or decision.verdict is not Verdict.ABSENT:
            return False
    return route.guard.applies(request)


def _same_key(guard: Guard, one: Any, other: Any) -> bool:
    """Whether an answer for one value is an answer for the other: asking a store again may cost a round trip."""
    try:
        return guard.keys.key(one) == guard.keys.key(other)
    except (Unkeyable, OutOfRange):
        return False
