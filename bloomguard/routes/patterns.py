"""Flatten the URL patterns of a URLconf: each with its chain of includes, its paths' literal prefix, and its view.

Django walks the URLconf for each request. Here the walk is done once.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.conf import settings
from django.db.models import Model
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern
from django.views.generic.base import View
from django.views.generic.detail import SingleObjectMixin
from django.views.generic.edit import BaseCreateView

from ..guards.fields import is_djangos_method
from .openness import layers, view_class_of

logger = logging.getLogger("bloomguard")

Step = RoutePattern | RegexPattern | Any

#: The literal text at the start of an expression such as ``^cities/(?P<pk>``, up to the first special character.
_LITERAL = re.compile(r"\^?([\w/ ,;:=@%&!~'\"-]*)(?P<optional>[?*{])?")


@dataclass(frozen=True)
class Detail:
    """A class-based view of one object: ``looked_up`` maps field names to the URL kwargs that carry their values."""

    cls: type[View]
    model: type[Model]
    queryset: Any
    looked_up: dict[str, str]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A URL pattern with the chain of patterns (``steps``) that leads to it, without the root's.

    ``view_name`` is that of a ``ResolverMatch``; ``captured`` are the kwargs from the path, ``fixed`` the extra ones.
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
        return "/" + "".join(map(_text, self.steps))

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
        for step in self.steps:
            text, is_all = _literal_of(step)
            found += text
            if not is_all:
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
    def shown(self) -> Detail | None:
        """The one object that its class-based view shows; ``None`` if its view is of another kind.

        Only class attributes are read: a ``model`` that is a property, or that is set per request, is ignored.
        """
        try:
            return _detail(self)
        except Exception as error:
            logger.debug("bloomguard does not guard %s: reading its view raises %r", self.text, error)
            return None

    def match(self, path: str) -> dict[str, Any] | None:
        """Return the kwargs captured from a path; ``None`` if it does not match.

        Each step matches the rest of the path that the step before has left.
        """
        if path[:1] != "/":
            return None
        rest = path[1:]
        captured: dict[str, Any] = {}
        for step in self.steps:
            found = step.match(rest)
            if not found:
                return None
            rest, _, kwargs = found
            captured.update(kwargs)
        return captured

    @cached_property
    def fixed_route(self) -> str:
        """The ``route`` of a ``ResolverMatch``; empty if it depends on the active language: see :meth:`route`."""
        return "" if self.by_language else self.route()

    def route(self) -> str:
        """Return the ``route`` of a ``ResolverMatch`` in the active language: the steps joined as Django joins them."""
        found = ""
        for step in reversed(self.steps):
            found = f"{step}{found.removeprefix('^')}" if str(step) else found
        return found


def _detail(pattern: Pattern) -> Detail | None:
    *_, view = layers(pattern.callback)
    cls = view_class_of(view)
    if cls is None:
        return None
    given = {**getattr(view, "initkwargs", {}), **getattr(view, "view_initkwargs", {})}

    def attribute(name: str) -> Any:
        return given.get(name, getattr(cls, name, None))

    queryset = attribute("queryset")
    model = getattr(queryset, "model", None) or attribute("model")
    if not (isinstance(model, type) and issubclass(model, Model)):
        return None
    looked_up: dict[Any, Any] = {}
    kwargs = {*pattern.captured, *pattern.fixed}  # a value that the URLconf sets is looked up too
    if issubclass(cls, SingleObjectMixin):
        if getattr(cls, "get", None) in (None, BaseCreateView.get):
            return None
        has_pk = attribute("pk_url_kwarg") in kwargs
        if has_pk:
            looked_up["pk"] = attribute("pk_url_kwarg")
        if attribute("slug_url_kwarg") in kwargs and (not has_pk or attribute("query_pk_and_slug")):
            # The primary key may be looked up twice, under both of its names.
            name = model._meta.pk.name if attribute("slug_field") == "pk" else attribute("slug_field")
            looked_up[name] = attribute("slug_url_kwarg")
    elif issubclass(cls, getattr(sys.modules.get("rest_framework.generics"), "GenericAPIView", ())):
        kwarg = attribute("lookup_url_kwarg") or attribute("lookup_field")
        if kwarg in kwargs:
            looked_up[attribute("lookup_field")] = kwarg
    return Detail(cls, model, queryset, looked_up) if looked_up else None


def root_urlconf() -> Any:
    """Return ``ROOT_URLCONF``; one without patterns if the settings have none, as those of a worker."""
    return getattr(settings, "ROOT_URLCONF", ())


def patterns(urlconf: Any = None) -> Iterator[Pattern]:
    """Yield every pattern of ``urlconf`` (default ``ROOT_URLCONF``) in Django's order, including those of includes."""
    yield from _patterns_in(get_resolver(root_urlconf() if urlconf is None else urlconf), (), (), frozenset())


def _patterns_in(
    resolver: URLResolver, steps: tuple[Step, ...], namespaces: tuple[str, ...], fixed: frozenset[str]
) -> Iterator[Pattern]:
    for entry in resolver.url_patterns:
        chain = (*steps, entry.pattern)
        if isinstance(entry, URLResolver):
            inner = (*namespaces, entry.namespace) if entry.namespace else namespaces
            yield from _patterns_in(entry, chain, inner, fixed | set(entry.default_kwargs))
        elif isinstance(entry, URLPattern):
            yield Pattern(
                view_name=":".join((*namespaces, entry.name or entry.lookup_str)),
                is_named=bool(entry.name),
                steps=chain,
                captured=tuple(name for step in chain for name in step.regex.groupindex),
                fixed=fixed | set(entry.default_args),
                callback=entry.callback,
            )


def patterns_named(all_patterns: Iterable[Pattern], name: str) -> list[Pattern]:
    """Return the patterns with this full name (``"namespace:name"``)."""
    return [each for each in all_patterns if each.is_named and each.view_name == name]


def overlapping(all_patterns: Sequence[Pattern], pattern: Pattern) -> list[Pattern]:
    """Return the patterns before ``pattern`` that may match one of its paths."""
    start, before = pattern.literal, all_patterns[: all_patterns.index(pattern)]
    return [each for each in before if each.literal.startswith(start) or start.startswith(each.literal)]


def _text(step: Step) -> str:
    if isinstance(step, LocalePrefixPattern):
        return "<language>/"
    return str(step) if _is_plain(step) else str(step).removeprefix("^").removesuffix("$")


def _literal_of(step: Step) -> tuple[str, bool]:
    """Return the literal text with which all that the step matches begins, and whether it matches nothing else."""
    if _is_plain(step):
        before, _, after = str(step).partition("<")
        return before, not after
    if isinstance(step, RegexPattern) and not _by_language(step):
        source = step.regex.pattern
        if source.startswith("^") and "|" not in source and not step.regex.flags & (re.IGNORECASE | re.VERBOSE):
            match = _LITERAL.match(source)
            assert match is not None
            return match[1][:-1] if match["optional"] else match[1], source in (f"^{match[1]}", f"^{match[1]}$")
    return "", False


def _is_plain(step: Step) -> bool:
    """Whether the step is a ``path()`` that matches the same in every language."""
    return isinstance(step, RoutePattern) and not _by_language(step)


def _by_language(step: Step) -> bool:
    """Whether the step depends on the active language: ``i18n_patterns``, or a translated route."""
    return isinstance(step, LocalePrefixPattern) or not isinstance(
        getattr(step, "_route", getattr(step, "_regex", "")), str
    )
