"""Which guard guards this path.

All guarded patterns of a URLconf are sorted by their prefixes once. A request is held against those that its path may
belong to before Django resolves it, so an ID that may exist costs one regular expression and one filter check. Only
where a guard says ABSENT is the path resolved as Django will resolve it: if another pattern takes it first, the guard
has nothing to say.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.http import HttpRequest
from django.urls import Resolver404, URLPattern, URLResolver, get_resolver, resolve
from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern

from .exceptions import ConfigurationError
from .guards import Guard, registry
from .keys import OutOfRange, Unkeyable
from .verdicts import Decision, Verdict

logger = logging.getLogger("bloomguard")

Step = RoutePattern | RegexPattern | Any

#: What a path that is not the route's has in place of an ID.
NO_ID: Any = object()


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

    @cached_property
    def expression(self) -> re.Pattern[str] | None:
        """One expression for the whole path, or ``None`` where a step depends on the request or is no ``path()``."""
        source = ""
        for step in self.steps:
            if _is_plain(step):
                source += step.regex.pattern.removeprefix("^").removesuffix(r"\Z").removesuffix(r"\z")
            elif isinstance(step, RegexPattern) and step.regex.pattern == "^/":
                source += "/"
            else:
                return None
        try:
            return re.compile(source + r"\Z")
        except re.error:  # two groups of one name, or a flag in a converter's expression, work only as they stand
            return None

    @cached_property
    def prefix(self) -> str:
        """What every path of the route begins with, up to a slash; empty where nobody can tell."""
        if self.expression is None:
            return ""
        literal = self.text.partition("<")[0]
        return literal[: literal.rindex("/") + 1]

    @cached_property
    def text(self) -> str:
        """The route as it is written, such as ``/cities/<int:pk>/``."""
        return "/" + "".join(str(step) for step in self.steps if _is_plain(step))

    @cached_property
    def read(self) -> Callable[[str], Any]:
        """``read(path)``: the ID as the pattern captures it from ``path``, converted, or ``NO_ID``.

        A first look: Django may resolve the path to something else.
        """
        if self.expression is None:
            return self._read_by_steps
        match, index = self.expression.match, self.expression.groupindex
        converters = {name: converter for step in self.steps for name, converter in step.converters.items()}
        groups = [(index[name], converters[name].to_python) for name in self.kwargs]
        if len(groups) > 1:

            def read_all(path: str) -> Any:
                found = match(path)
                if found is None:
                    return NO_ID
                try:
                    return tuple([convert(found[group]) for group, convert in groups])
                except ValueError:
                    return NO_ID

            return read_all

        [(group, convert)] = groups
        before, _, after = self.text.partition("<")
        after = after.partition(">")[2]
        kind = type(converters[self.kwargs[0]])
        if "<" not in after and kind in (IntConverter, SlugConverter, StringConverter, UUIDConverter):
            # The usual route is one ID between two texts. An expression costs more than all the rest.
            low, high = len(before), -len(after) or None

            def read_between(path: str) -> Any:
                text = path[low:high]
                if not text or "/" in text or not (path.startswith(before) and path.endswith(after)):
                    return NO_ID
                try:
                    return convert(text)
                except ValueError:
                    return NO_ID

            return read_between

        def read(path: str) -> Any:
            found = match(path)
            if found is None:
                return NO_ID
            try:
                return convert(found[group])
            except ValueError:
                return NO_ID

        return read

    def _read_by_steps(self, path: str) -> Any:
        captured: dict[str, Any] = {}
        for step in self.steps:
            matched = step.match(path)
            if not matched:
                return NO_ID
            path, _, kwargs = matched
            captured.update(kwargs)
        return self.value(captured)


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
        self._anywhere = [found for found in routes if not found.prefix]
        self._by_prefix: dict[str, list[GuardedRoute]] = {}
        for found in routes:
            if found.prefix:
                self._by_prefix.setdefault(found.prefix, []).append(found)
        self._depths = range(max((prefix.count("/") for prefix in self._by_prefix), default=0))
        self.methods = frozenset(method for route in routes for method in route.guard.methods)
        self.by_language = _depends_on_language(get_resolver(urlconf))

    def candidates(self, path: str) -> list[GuardedRoute]:
        """Routes that ``path`` may belong to: those whose prefix it has."""
        found = self._anywhere
        end = 0
        for _ in self._depths:
            end = path.find("/", end) + 1
            if not end:
                break
            if routes := self._by_prefix.get(path[:end]):
                found = [*found, *routes] if found else routes
        return found


def _is_plain(step: Step) -> bool:
    """Whether the step is a ``path()`` that is the same in every language."""
    return isinstance(step, RoutePattern) and isinstance(step._route, str)  # type: ignore[attr-defined]


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
            asked = route.read(path)
            if asked is NO_ID:
                continue
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
    if request.method not in route.guard.methods:
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
