"""Who guards which URL pattern, in words: what ``guard_routes`` lists and ``explain_guard`` tells of one path."""

from __future__ import annotations

from dataclasses import dataclass

from ..routes import GuardedRoute, RouteTable
from .discovery import reason_against
from .patterns import Pattern

#: How a route is answered.
EARLY, LATE, IN_VIEW, PASSES = "by the middleware", "by its view", "by @guarded", ""


@dataclass(frozen=True)
class Row:
    """One pattern and one guard; where nobody guards it, ``guard`` is empty and ``reason`` says why."""

    pattern: str
    name: str
    guard: str
    answered: str
    reason: str


def rows_of(table: RouteTable) -> list[Row]:
    """The table's patterns that take an identifier, in Django's order; one row for each guard of a pattern."""
    return [row for pattern in table.patterns if pattern.captured for row in rows_of_pattern(table, pattern)]


def rows_of_pattern(table: RouteTable, pattern: Pattern) -> list[Row]:
    """One row for each guard of one of the table's patterns; where there is none, one row with the reason."""
    found = [_guarded(pattern, route) for route in table.guarded if route.pattern is pattern]
    in_view = getattr(pattern.callback, "guarded_by", "")
    if in_view and in_view not in [row.guard for row in found]:
        found.append(_row(pattern, in_view, IN_VIEW))
    return found or [_row(pattern, reason=reason_against(pattern))]


def _guarded(pattern: Pattern, route: GuardedRoute) -> Row:
    reason = route.demand.reason if route.demand else ""
    if route.is_early:
        return _row(pattern, route.guard.name, EARLY, reason)
    return _row(pattern, route.guard.name, (LATE if route.by_view else EARLY) if route.is_late else PASSES, reason)


def _row(pattern: Pattern, guard: str = "", answered: str = "", reason: str = "") -> Row:
    return Row(pattern.text, pattern.view_name, guard, answered, reason)
