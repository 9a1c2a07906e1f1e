"""URL patterns, flattened: each with the whole chain that leads to it, and what its paths look like.

Django walks a URLconf for each request. What that walk can find is known beforehand, so it is done once: which text
all paths of a pattern begin with, and one expression for the whole path where there is such a thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.urls import ResolverMatch, URLPattern, URLResolver, get_resolver
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern

Step = RoutePattern | RegexPattern | Any

#: The text that an expression such as ``^cities/(?P<pk>`` begins with, up to the first character that may mean more.
_LITERAL = re.compile(r"\^?([\w/ ,;:=@%&!~'\"-]*)(?P<optional>[?*{])?")


@dataclass(frozen=True, eq=False)
class Pattern:
    """A URL pattern with the chain of patterns that leads to it.

    ``view_name`` is what a ``ResolverMatch`` would say; ``captured`` are the kwargs that the path gives, ``fixed``
    those that the URLconf gives whatever the path.
    """

    view_name: str
    is_named: bool
    steps: tuple[Step, ...]
    captured: tuple[str, ...]
    fixed: frozenset[str]
    callback: Callable[..., Any]

    @cached_property
    def text(self) -> str:
        """The pattern as it is written, such as ``/cities/<int:pk>/``."""
        return "/" + "".join(map(_text, self.steps[1:]))

    @cached_property
    def by_language(self) -> bool:
        """Whether it matches other paths in another language."""
        return any(map(_by_language, self.steps))

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
    def literal(self) -> str:
        """What every path begins with, as far as anybody can tell."""
        found = "/"
        for step in self.steps[1:]:
            if _is_plain(step):
                before, _, after = str(step).partition("<")
                found += before
                if after:
                    break
            elif isinstance(step, RegexPattern) and not _by_language(step):
                source = step.regex.pattern
                if source.startswith("^") and "|" not in source and not step.regex.flags & re.IGNORECASE:
                    match = _LITERAL.match(source)
                    assert match is not None
                    found += match[1][:-1] if match["optional"] else match[1]
                    if source in (f"^{match[1]}", f"^{match[1]}$"):
                        continue
                break
            else:
                break
        return found

    def match(self, path: str) -> dict[str, Any] | None:
        """The kwargs that ``path`` gives, or ``None`` if it is no path of this pattern. May take any language."""
        captured: dict[str, Any] = {}
        for step in self.steps:
            matched = step.match(path)
            if not matched:
                return None
            path, _, kwargs = matched
            captured.update(kwargs)
        return captured

    def is_of(self, match: ResolverMatch | None) -> bool:
        """Whether this is the pattern, or one like it, that Django has taken a path to."""
        return (
            match is not None
            and match.func is self.callback
            and (not self.is_named or match.view_name == self.view_name)
        )

    def may_match(self, path: str) -> bool:
        """Whether Django could take ``path`` for this pattern; a ``True`` is no proof."""
        if self.expression is not None:
            return self.expression.match(path) is not None
        return self.match(path) is not None


def patterns(urlconf: Any = None) -> Iterator[Pattern]:
    """Every pattern of ``urlconf`` (by default ``ROOT_URLCONF``) in Django's order, through includes and namespaces."""

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

    root = get_resolver(urlconf)
    yield from walk(root, (root.pattern,), (), frozenset())


def rivals(of: Pattern, earlier: list[Pattern]) -> tuple[Pattern, ...]:
    """Those of ``earlier``, the patterns before ``of``, that may take one of its paths for themselves."""
    mine = of.literal
    return tuple(
        other for other in earlier if mine.startswith(other.literal) or other.literal.startswith(mine)
    )  # fmt: skip


def _text(step: Step) -> str:
    if isinstance(step, LocalePrefixPattern):
        return "<language>/"
    return str(step) if _is_plain(step) else str(step).removeprefix("^").removesuffix("$")


def _is_plain(step: Step) -> bool:
    """Whether the step is a ``path()`` that is the same in every language."""
    return isinstance(step, RoutePattern) and not _by_language(step)


def _by_language(step: Step) -> bool:
    """Whether the step is another one in another language: ``i18n_patterns``, or a route that is translated."""
    return isinstance(step, LocalePrefixPattern) or not isinstance(
        getattr(step, "_route", getattr(step, "_regex", "")), str
    )
