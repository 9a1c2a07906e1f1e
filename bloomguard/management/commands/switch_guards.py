"""``manage.py switch_guards``: switch all guards, or the named ones, off and on, without a deploy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from getpass import getuser
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import translation

from ...dashboard.operations import ENFORCE, FENCE, SWITCHES, switch
from ...guards import Guard
from ...rebuild.plan import EXPECTED
from ...writes.fencing import table_of
from .. import GuardsCommand, refuse_unmigrated


class Command(GuardsCommand):
    """``manage.py switch_guards``."""

    help = (
        "Switch all guards, or the named ones: to shadow (all requests pass, also after rebuilds), enforce (the "
        "opposite), or fence (all pass until a user rebuilds the filter). Every process follows within a second."
    )
    purpose = "switch"
    asks_stores = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=SWITCHES, help="what to switch to")
        super().add_arguments(parser)

    def run(self, guards: Sequence[Guard], options: dict[str, Any]) -> None:
        refuse_unmigrated()
        action, done = options["action"], []
        try:
            for guard in guards:
                with translation.override(None):
                    outcome = switch(guard, action, f"{_user()} with switch_guards")
                state = table_of(guard).current(guard.name)
                if action == ENFORCE and not state.answers:
                    outcome = f"It answers nothing before rebuild_filter {guard.name}."
                elif action == FENCE:
                    outcome = f"Fenced: requests pass until rebuild_filter {guard.name}, without --if-needed."
                done.append({"name": guard.name, "outcome": outcome})
                self.write(f"{guard.name}: {outcome}")
        except (*EXPECTED, KeyboardInterrupt) as error:
            switched = ", ".join(each["name"] for each in done) or "none"
            if isinstance(error, KeyboardInterrupt):
                self.interrupted = f"interrupted (switched before: {switched})"
                raise
            raise CommandError(f"{error} (switched before: {switched})") from error
        if options["json"]:
            self.stdout.write(json.dumps({"guards": done}))


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"
