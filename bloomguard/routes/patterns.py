"""Flatten the URL patterns of a URLconf: each pattern with its chain of includes and the literal prefix of its paths.

Django walks the URLconf for each request. Here the walk is done once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.conf import settings
from django.urls import ResolverMatch, URLPattern, URLResolver, get_resolver
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern

from ..guards.fields import is_djangos_method

Step = RoutePattern | RegexPattern | Any
Match = Callable[[str], "dict[str, Any] | None"]

#: The literal text at the start of an expression such as ``^cities/(?P<pk>``, up to the first special character.
_LITERAL = re.compile(r"\^?([\w/ ,;:=@%&!~'\"-]*)(?P<optional>[?*{])?")


@dataclass(frozen=True, eq=False)
class Pattern:
    """A URL pattern with the chain of patterns (``steps``) that leads to it.

    ``view_name`` is that of a ``ResolverMatch``; ``captured`` are the kwargs captured from the path, ``fixed`` the
    extra kwargs that the URLconf sets.
    """

    view_name: str
    is_named: bool
    steps: tuple[Step, ...]
    captured: tuple[str, ...]
    fixed: frozenset[str]
    callback: Callable[..., Any]

    @cached_property
    def text(self) -> str:
        """The pattern as written in the URLconf, such as ``/cities/<int:pk>/``."""
        return "/" + "".join(map(_text, self.steps[1:]))

    @property
    def takes_id(self) -> bool:
        """Whether it captures anything from its paths, named or unnamed."""
        return any(step.regex.groups for step in self.steps)

    @cached_property
    def by_language(self) -> bool:
        """Whether the active language changes which paths it matches."""
        return any(map(_by_language, self.steps))

    @cached_property
    def literal(self) -> str:
        """The literal prefix of all its paths, as far as the steps show it."""
        found = "/"
        for step in self.steps[1:]:
            if _is_plain(step):
                before, _, after = str(step).partition("<")
                found += before
                if after:
                    break
            elif isinstance(step, RegexPattern) and not _by_language(step):
                source = step.regex.pattern
                if source.startswith("^") and "|" not in source and not step.regex.flags & (re.IGNORECASE | re.VERBOSE):
                    match = _LITERAL.match(source)
                    assert match is not None
                    found += match[1][:-1] if match["optional"] else match[1]
                    if source in (f"^{match[1]}", f"^{match[1]}$"):
                        continue
                break
            else:
                break
        return found

    @cached_property
    def has_own_code(self) -> bool:
        """Whether code of the project's own matches or reads a path: a step, or a converter's ``to_python``.

        It may query, or follow what a middleware has set for the request.
        """
        return not all(
            type(step).__module__.startswith("django.")
            and all(is_djangos_method(each, "to_python") for each in getattr(step, "converters", {}).values())
            for step in self.steps
        )

    @cached_property
    def match(self) -> Match:
        """A function that returns the kwargs captured from a path; ``None`` if it does not match.

        Each step matches the rest of the path that the step before has left. The root step matches the leading slash.
        """
        matches = [step.match for step in self.steps[1:]]

        def match(path: str) -> dict[str, Any] | None:
            if path[:1] != "/":
                return None
            rest = path[1:]
            captured: dict[str, Any] = {}
            for match_step in matches:
                found = match_step(rest)
                if not found:
                    return None
                rest, _, kwargs = found
                captured.update(kwargs)
            return captured

        return match

    def is_of(self, match: ResolverMatch | None) -> bool:
        """Whether Django resolved a path to this pattern, or to one with the same view and the same name."""
        return (
            match is not None
            and match.func is self.callback
            and (not self.is_named or match.view_name == self.view_name)
        )


def root_urlconf() -> Any:
    """Return ``ROOT_URLCONF``; one without patterns if the settings have none, as those of a worker."""
    return getattr(settings, "ROOT_URLCONF", ())


def patterns(urlconf: Any = None) -> Iterator[Pattern]:
    """Yield every pattern of ``urlconf`` (default ``ROOT_URLCONF``) in Django's order, including those of includes."""

    def walk(
        resolver: URLResolver, steps: tuple[Step, ...], namespaces: tuple[str, ...], fixed: frozenset[str]
    ) -> Iterator[Pattern]:
        for entry in resolver.url_patterns:
            chain = (*steps, entry.pattern)
            if isinstance(entry, URLResolver):
                inner = (*namespaces, entry.namespace) if entry.namespace else namespaces
                yield from walk(entry, chain, inner, fixed | set(entry.default_kwargs))
            elif isinstance(entry, URLPattern):
                captured = tuple(name for step in chain for name in step.regex.groupindex)
                yield Pattern(
                    ":".join((*namespaces, entry.name or entry.lookup_str)),
                    bool(entry.name),
                    chain,
                    captured,
                    fixed | set(entry.default_args),
                    entry.callback,
                )

    root = get_resolver(root_urlconf() if urlconf is None else urlconf)
    yield from walk(root, (root.pattern,), (), frozenset())


class PatternIndex:
    """The patterns of a URLconf in Django's order, indexed by name and by literal prefix.

    A site may have thousands of patterns and dozens of guards: no method loops over all patterns.
    """

    def __init__(self, known: Iterable[Pattern]) -> None:
        self.patterns = tuple(known)
        self._by_name: dict[str, list[Pattern]] = {}
        #: ``id`` of a view -> its patterns.
        self._by_view: dict[int, list[Pattern]] = {}
        #: Literal prefix -> positions of its patterns in `patterns`.
        self._by_literal: dict[str, list[int]] = {}
        self._places = {pattern: place for place, pattern in enumerate(self.patterns)}
        self._overlapping: dict[Pattern, tuple[Pattern, ...]] = {}
        for pattern, place in self._places.items():
            if pattern.is_named:
                self._by_name.setdefault(pattern.view_name, []).append(pattern)
            self._by_view.setdefault(id(pattern.callback), []).append(pattern)
            self._by_literal.setdefault(pattern.literal, []).append(place)
        self._literals = sorted(self._by_literal)

    def named(self, name: str) -> Sequence[Pattern]:
        """Return the patterns with this full name (``"namespace:name"``)."""
        return self._by_name.get(name, ())

    def alike(self, of: Pattern) -> Iterator[Pattern]:
        """Yield the other patterns whose requests look like those of ``of``: :meth:`Pattern.is_of` holds for both."""
        for each in self._by_view.get(id(of.callback), ()):
            if each is not of and (not of.is_named or each.view_name == of.view_name):
                yield each

    def overlapping(self, of: Pattern) -> tuple[Pattern, ...]:
        """Return the patterns before ``of`` that may match one of its paths."""
        if of not in self._overlapping:
            places = sorted(place for place in self._beginning_alike(of.literal) if place < self._places[of])
            self._overlapping[of] = tuple(self.patterns[place] for place in places)
        return self._overlapping[of]

    def _beginning_alike(self, mine: str) -> Iterator[int]:
        """Yield the positions of the patterns whose literal is a prefix of ``mine`` or starts with ``mine``."""
        for length in range(len(mine)):
            yield from self._by_literal.get(mine[:length], ())
        for number in range(bisect_left(self._literals, mine), len(self._literals)):
            if not self._literals[number].startswith(mine):
                break
            yield from self._by_literal[self._literals[number]]


def _text(step: Step) -> str:
    if isinstance(step, LocalePrefixPattern):
        return "<language>/"
    return str(step) if _is_plain(step) else str(step).removeprefix("^").removesuffix("$")


def _is_plain(step: Step) -> bool:
    """Whether the step is a ``path()`` that matches the same in every language."""
    return isinstance(step, RoutePattern) and not _by_language(step)


def _by_language(step: Step) -> bool:
    """Whether the step depends on the active language: ``i18n_patterns``, or a translated route."""
    return isinstance(step, LocalePrefixPattern) or not isinstance(
        getattr(step, "_route", getattr(step, "_regex", "")), str
    )
