"""Read IDs from raw paths, and confirm how Django's resolver would resolve a path.

Most requests are for rows that exist, so the first read is fast and rough: a prefix, a slice, ``int()``. It may read an
ID from a path that Django would not match. Only if the ID is absent is the path confirmed: each step of the URL pattern
matches the rest of the path that the step before has left, as in ``URLResolver.resolve()``. One regular expression for
the whole path would be wrong: it can backtrack across an ``include()``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter
from django.urls.resolvers import RoutePattern

from ..guards import Guard
from ..routes.patterns import Pattern, overlapping
from ..routes.table import NO_ID, GuardedRoute


class DoorRoute:
    """A guarded route that the door may answer.

    ``read(path)`` is the fast first read of its ID: one value, a tuple for several fields, or :data:`NO_ID`.
    """

    def __init__(self, route: GuardedRoute, all_patterns: Sequence[Pattern]) -> None:
        self.guard: Guard = route.guard
        self.pattern = route.pattern
        self.kwargs = route.kwargs
        self._route = route
        self.methods = route.methods & {"GET", "HEAD"}
        start = route.pattern.literal
        self.prefix = start[: start.rindex("/") + 1]
        self.read: Callable[[str], Any] = _reader(route) or (lambda path: route.value(self._match(path) or {}))
        self._match = route.pattern.match
        #: The earlier patterns that may match one of its paths.
        self._overlapping = [(other.literal, other.match) for other in overlapping(all_patterns, route.pattern)]

    def captured(self, path: str) -> Any:
        """Return the ID that Django's resolver captures from ``path``, or :data:`NO_ID` if another pattern matches."""
        return self._route.value(self._resolved(path))

    def confirm(self, method: str, path: str, read: Any) -> bool:
        """Return whether the view would get the ID that was ``read``, and its query for that raises no error."""
        found = self._resolved(path) if method in self.methods else {}
        value = self._route.value(found)
        return type(value) is type(read) and value == read and not self._route.may_raise(value, found)

    def _resolved(self, path: str) -> dict[str, Any]:
        """Return the kwargs that Django's resolver captures from ``path``; none if another pattern matches."""
        captured = self._match(path)
        if captured is None:
            return {}
        for start, match in self._overlapping:
            if path.startswith(start) and match(path) is not None:
                return {}
        return captured


class Index:
    """Routes by the literal prefix of their paths."""

    def __init__(self, routes: Iterable[DoorRoute]) -> None:
        routes = list(routes)
        prefixes = sorted({route.prefix for route in routes}, key=len, reverse=True)
        #: The longest prefix of a path -> the routes with that prefix, and with each that it starts with.
        self._by_prefix = {
            longest: [route for route in routes if longest.startswith(route.prefix)] for longest in prefixes
        }
        self._longest = re.compile("|".join(map(re.escape, prefixes)) or "(?!)").match

    def candidates(self, path: str) -> Sequence[DoorRoute]:
        """Return the routes whose prefix ``path`` starts with."""
        longest = self._longest(path)
        return self._by_prefix[longest[0]] if longest else ()


def own_resolvers(urlconf: Any) -> Iterator[Any]:
    """Yield the entries of ``urlconf`` whose class overrides how paths are resolved."""
    entries = list(get_resolver(urlconf).url_patterns)
    for entry in entries:
        cls = type(entry)
        names = "resolve", "url_patterns", "urlconf_module"
        if isinstance(entry, URLResolver) and all(getattr(cls, name) is getattr(URLResolver, name) for name in names):
            entries += entry.url_patterns
        elif not (isinstance(entry, URLPattern) and cls.resolve is URLPattern.resolve):
            yield entry


# -- the fast first read


def _reader(route: GuardedRoute) -> Callable[[str], Any] | None:
    """Return ``read(path)`` if the pattern is a ``path()`` with one ID of Django's own converters, else ``None``."""
    pattern, names = route.pattern, route.kwargs
    before, _, after = pattern.text.partition("<")
    after = after.partition(">")[2]
    if "<" in after or len(names) != 1 or not all(type(step) is RoutePattern for step in pattern.steps):
        return None
    converter = next((step.converters[names[0]] for step in pattern.steps if names[0] in step.converters), None)
    convert = _CONVERT.get(type(converter))
    if convert is None:
        return None
    head, body = slice(len(before)), slice(len(before), -len(after) or None)
    tail = slice(-len(after), None) if after else slice(0)

    def read(path: str) -> Any:
        if path[head] != before or path[tail] != after:
            return NO_ID
        try:
            return convert(path[body])
        except ValueError:
            return NO_ID

    return read


def _segment(text: str) -> str:
    """Return ``text`` if it is one path segment. Raises :class:`ValueError` if it is empty or contains a slash."""
    if not text or "/" in text:
        raise ValueError("not one segment of a path")
    return text


#: `to_python` of Django's converters, without a check of their regular expressions.
_CONVERT: dict[type, Callable[[str], Any]] = {
    IntConverter: int,
    SlugConverter: _segment,
    StringConverter: _segment,
    UUIDConverter: UUID,
}
