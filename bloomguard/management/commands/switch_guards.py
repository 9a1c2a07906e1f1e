"""``manage.py switch_guards``: switch all guards, or the named ones, off and on, without a deploy."""

from __future__ import annotations

import json
from getpass import getuser
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import translation

from ...dashboard.operations import ENFORCE, SWITCHES, switch
from ...exceptions import ConfigurationError
from ...writes.fencing import table_of
from ..output import chosen


class Command(BaseCommand):
    """``manage.py switch_guards``."""

    help = (
        "Switch all guards, or the named ones: to shadow (all requests pass, also after rebuilds), enforce (the "
        "opposite), or fence (all pass until a user rebuilds the filter). Every process follows within a second."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=SWITCHES, help="what to switch to")
        parser.add_argument("names", nargs="*", metavar="name", help="guards to switch (default: all)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        action, done = options["action"], []
        try:
            for guard in chosen(options["names"], "switch"):
                with translation.override(None):
                    outcome = switch(guard, action, f"{_user()} by switch_guards")
                state = table_of(guard).current(guard.name)
                if action == ENFORCE and not (state.active and state.is_answered_by(state.active)):
                    outcome = f"It answers nothing before rebuild_filter {guard.name}."
                done.append({"name": guard.name, "outcome": outcome})
                if options["verbosity"] and not options["json"]:
                    self.stdout.write(f"{guard.name}: {outcome}")
        except (ConfigurationError, DatabaseError) as error:
            switched = ", ".join(each["name"] for each in done) or "none"
            raise CommandError(f"{error} (switched before: {switched})") from error
        if options["json"]:
            self.stdout.write(json.dumps({"guards": done}))


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"
