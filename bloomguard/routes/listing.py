"""List for each URL pattern which guard answers and where: for ``guard_routes`` and ``explain_guard``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..exceptions import ConfigurationError
from ..guards import AUTO, Guard, registry
from ..lookups.query import RowLookup, concrete
from ..lookups.select import answers_queries
from .discovery import NotFound, column_of, detail, find_kwargs, reason_against
from .openness import layers
from .patterns import Pattern
from .table import AmbiguousKwargs, GuardedRoute, RouteTable, kwargs_for, kwargs_of_view

#: The place where a guard answers; the door answers only if the project calls ``shield()``.
DOOR, ROUTE, LOOKUP, NOWHERE = "door", "route", "lookup", ""


@dataclass(frozen=True)
class Row:
    """One pattern and one guard, or an empty ``guard``. ``reason`` says why the guard does not answer earlier."""

    pattern: str
    name: str
    guard: str
    answered: str
    reason: str


def takes_id(pattern: Pattern) -> bool:
    """Whether the pattern captures anything from its paths, named or unnamed."""
    return any(step.regex.groups for step in pattern.steps)


def is_admin(pattern: Pattern) -> bool:
    """Whether the pattern belongs to Django's admin."""
    owners = [getattr(layer, "__self__", None) for layer in layers(pattern.callback)]
    if hasattr(pattern.callback, "model_admin") or hasattr(pattern.callback, "admin_site"):
        return True
    return any(base.__module__.startswith("django.contrib.admin.") for owner in owners for base in type(owner).__mro__)


def rows_of_pattern(table: RouteTable, pattern: Pattern) -> list[Row]:
    """Return one row for each guard of ``pattern``; if it has no guard, one row with the reason."""
    rows = [_of_route(route) for route in table.guarded if route.pattern is pattern]
    in_view = getattr(pattern.callback, "guarded_by", "")
    if in_view and in_view not in [row.guard for row in rows]:
        rows.append(_of_decorator(pattern, in_view))
    rows += [
        _row(pattern, guard.name, LOOKUP, reason)
        for guard, reason in _of_lookups(pattern, is_known=bool(rows))
        if guard.name not in [row.guard for row in rows]
    ]
    return rows or [_row(pattern, reason=reason_against(pattern))]


def _of_decorator(pattern: Pattern, name: str) -> Row:
    if (guard := registry.get(name)) is not None:
        with suppress(ConfigurationError):  # a check, or the log, reports it
            try:
                kwargs_of_view(guard, pattern.callback, pattern.captured)
            except AmbiguousKwargs as problem:
                return _closed(guard, pattern, problem)
    return _row(pattern, name, ROUTE, "by @guarded, at its place among the view's decorators")


def _of_route(route: GuardedRoute) -> Row:
    guard, pattern = route.guard, route.pattern
    if not route.closed:
        return _row(pattern, guard.name, ROUTE if route.not_at_door else DOOR, route.not_at_door)
    return _closed(guard, pattern, route.closed)


def _closed(guard: Guard, pattern: Pattern, why: object) -> Row:
    return _row(pattern, guard.name, LOOKUP if answers_queries(guard) else NOWHERE, f"not before the view: {why}")


def _of_lookups(pattern: Pattern, *, is_known: bool) -> Iterator[tuple[Guard, str]]:
    """Yield the guards that check the view's own query, with a reason.

    The view's class decides, or else the names of the captured kwargs. Names alone are weak evidence: they are ignored
    if another guard of the pattern ``is_known``.
    """
    shown, admin = detail(pattern), getattr(pattern.callback, "model_admin", None)
    for guard in registry:
        if not answers_queries(guard):
            continue
        if admin is not None:
            if "object_id" in pattern.captured and RowLookup(guard, admin.model).compares(admin.model._meta.pk):
                yield guard, "the admin's own query"
        elif shown is None and not is_known:
            why = ""
            try:
                kwargs_for(guard, pattern.view_name, pattern.captured)
            except AmbiguousKwargs as problem:
                if guard.routes != AUTO and pattern.view_name in guard.routes:
                    why = f"; not before the view: {problem}"
            except ConfigurationError:
                continue
            yield guard, f"if its view looks up one {guard.model._meta.label} by {_fields(guard)}{why}"
        elif shown is not None and issubclass(shown.model, concrete(guard.model)):
            lookup: Any = RowLookup(guard, shown.model)
            if len(guard._meta.fields) == 1 and any(
                lookup.compares(column_of(shown.model, name)) for name in shown.looked_up
            ):
                yield guard, f"its view's own query{_why_not_auto(guard, pattern)}"


def _why_not_auto(guard: Guard, pattern: Pattern) -> str:
    """Return why ``routes = "auto"`` did not take the pattern; empty if the guard does not look for routes."""
    try:
        if guard.routes == AUTO:
            find_kwargs(guard, pattern)
    except NotFound as reason:
        return f"; not before the view: {reason}"
    except Exception as error:  # the view's own error
        return f"; not before the view: reading it raises {type(error).__name__}"
    return ""


def _fields(guard: Guard) -> str:
    return " and ".join(field.name for field in guard._meta.fields)


def _row(pattern: Pattern, guard: str = "", answered: str = NOWHERE, reason: str = "") -> Row:
    return Row(pattern.text, pattern.view_name, guard, answered, reason)
