"""``manage.py guard_routes``: every URL pattern that takes an identifier, who guards it, or why nobody does."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...discovery import reason_against
from ...patterns import Pattern
from ...routes import GuardedRoute, RouteTable, table_for

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


class Command(BaseCommand):
    help = "List every URL pattern that takes an identifier: guarded by whom, or not, and why."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--urlconf", help="another one than ROOT_URLCONF")
        parser.add_argument("--unguarded", action="store_true", help="only those that nobody guards")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            table = table_for(options["urlconf"] or settings.ROOT_URLCONF)
        except ImportError as error:
            raise CommandError(f"there is no URLconf {options['urlconf']!r}: {error}") from error
        rows = [row for row in rows_of(table) if not (options["unguarded"] and row.answered)]
        if options["json"]:
            self.stdout.write(json.dumps({"routes": [asdict(row) for row in rows]}))
            return
        width = max((len(row.pattern) for row in rows), default=0)
        for row in rows:
            said = f"{row.guard}, answered {row.answered}" if row.answered else f"not guarded: {row.reason}"
            why = f" ({row.reason})" if row.answered and row.reason else ""
            self.stdout.write(f"{row.pattern:<{width}}  {said}{why}")
        every, guarded = {row.pattern for row in rows}, {row.pattern for row in rows if row.answered}
        self.stdout.write(f"{len(guarded)} of {len(every)} patterns that take an identifier are guarded")


def rows_of(table: RouteTable) -> list[Row]:
    """The table's patterns that take an identifier, in Django's order; one row for each guard of a pattern."""
    rows = []
    for pattern in table.patterns:
        if not pattern.captured:
            continue
        found = [_guarded(pattern, route) for route in table.guarded if route.pattern is pattern]
        in_view = getattr(pattern.callback, "guarded_by", "")
        if in_view and in_view not in [row.guard for row in found]:
            found.append(_row(pattern, in_view, IN_VIEW))
        rows += found or [_row(pattern, reason=reason_against(pattern))]
    return rows


def _guarded(pattern: Pattern, route: GuardedRoute) -> Row:
    reason = route.demand.reason if route.demand else ""
    if route.is_early:
        return _row(pattern, route.guard.name, EARLY, reason)
    return _row(pattern, route.guard.name, (LATE if route.by_view else EARLY) if route.is_late else PASSES, reason)


def _row(pattern: Pattern, guard: str = "", answered: str = "", reason: str = "") -> Row:
    return Row(pattern.text, pattern.view_name, guard, answered, reason)
