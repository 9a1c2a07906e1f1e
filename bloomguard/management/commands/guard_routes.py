"""``manage.py guard_routes``: every URL pattern that takes an identifier, who guards it, or why nobody does."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...routes import table_for
from ...routing.listing import rows_of


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
