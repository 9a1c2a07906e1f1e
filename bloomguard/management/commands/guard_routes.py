"""``manage.py guard_routes``: list the URL patterns that take an identifier, and where a guard answers for them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from ... import conf
from ...routes.explain import NOWHERE, rows_of_pattern
from ...routes.openness import ELSEWHERE, MISSING, guards_place, is_admin
from ...routes.table import table_for
from .. import UrlsCommand

#: What the list does not show if the middleware is at this place.
_NOTES = {
    MISSING: "MIDDLEWARE has no BloomGuardMiddleware, so only the door and @guarded answer",
    ELSEWHERE: "other middleware comes after BloomGuardMiddleware: what is listed as door or route is answered at the "
    "lookup, unless the site has a door",
}


class Command(UrlsCommand):
    """``manage.py guard_routes``."""

    help = "List the URL patterns that take an identifier, and where a guard answers: door, route, lookup or nowhere."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--unguarded", action="store_true", help="only patterns that no guard answers for")
        parser.add_argument("--admin", action="store_true", help="include the patterns of Django's admin")

    def run(self, options: dict[str, Any]) -> None:
        table = table_for(options["urlconf"])
        every = [pattern for pattern in table.patterns if pattern.takes_id]
        shown = [pattern for pattern in every if options["admin"] or not is_admin(pattern.callback)]
        listed = [
            row
            for pattern in shown
            for row in rows_of_pattern(table, pattern)
            if row.guard or set(pattern.captured) != {"format"}  # REST framework's, of a list
        ]
        guarded = {row.pattern for row in listed if row.answered != NOWHERE}
        rows = [row for row in listed if not (options["unguarded"] and row.pattern in guarded)]
        if options["json"]:
            self.stdout.write(json.dumps({"routes": [asdict(row) for row in rows]}))
            return
        width = max((len(row.pattern) for row in rows), default=0)
        for row in rows:
            where = f"{row.guard}: {row.answered}" if row.answered != NOWHERE else "nowhere"
            why = f" ({row.reason})" if row.reason else ""
            self.stdout.write(f"{row.pattern:<{width}}  {where}{why}")
        in_all = len({row.pattern for row in listed})
        sure = {row.pattern for row in listed if row.answered != NOWHERE and not row.reason.startswith("if ")}
        unsure = f", {len(guarded - sure)} of them if the view looks up the row" if guarded - sure else ""
        self.stdout.write(f"{len(guarded)} of {in_all} patterns that take an identifier are guarded{unsure}")
        if not conf.settings.is_enabled:
            self.stdout.write("BLOOMGUARD['ENABLED'] is not True, so no guard answers now")
        elif note := _NOTES.get(guards_place()):
            self.stdout.write(note)
        if len(shown) < len(every):
            self.stdout.write(f"{len(every) - len(shown)} routes of the admin are left out; --admin lists them")
