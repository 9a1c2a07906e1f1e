"""``manage.py remove_guard NAME``: delete what is left of a guard that the project no longer has."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...conf import settings
from ...exceptions import StoreError, StoreUnavailable
from ...guards import registry
from ...guards.options import NAME
from ...models import GuardState, GuardTask
from ...rebuild.plan import EXPECTED
from ...rebuild.standby import prefix_of
from ...state.table import table
from ...stores import stores
from .. import JsonCommand, counted, refuse_unmigrated


def _names(alias: str, guard: str) -> list[str]:
    try:
        return stores[alias].patient.names(guard)
    except StoreUnavailable as error:
        raise StoreError(f"the store {alias!r} cannot be used: {error}") from error


class Command(JsonCommand):
    """``manage.py remove_guard``."""

    help = (
        "Delete the state row and the filters of a guard that the project no longer has. First stop all processes of "
        "versions that have it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the name of the former guard")
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="ask for no confirmation"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        if name in {guard.name for guard in registry}:
            raise CommandError(f"the project has the guard {name!r}: remove its class first")
        try:
            refuse_unmigrated()
            # Another site that shares a store in error may answer from those that were built from another database.
            there = {alias: _names(alias, name) for alias in settings.stores if NAME.fullmatch(name)}
            own = prefix_of(table.current(name).here)
            found = {alias: [each for each in names if each.startswith(own)] for alias, names in there.items()}
            rows = GuardState.objects.using(table.connection.alias)
            # Compared here: MySQL finds "city" for "City", and `current` no row of version 0.
            of_rows = set(rows.values_list("name", flat=True))
            has_row = name in of_rows
            if not (has_row or any(found.values())):
                former = sorted(of_rows - {guard.name for guard in registry})
                others = f"but of {', '.join(former)}" if former else "nor of another former one"
                raise CommandError(f"nothing is left of a guard {name!r}, {others}")
            if options["interactive"] and not self._is_confirmed(name):
                self.stderr.write("nothing was removed")
                return
            # The task first: if the role may not delete it, all can be done again.
            GuardTask._default_manager.filter(name=name).delete()
            rows.filter(name=name).delete()  # fences the guard, and waits for all processes
            for alias, names in found.items():
                for each in names:
                    stores[alias].patient.drop(name, each)
                if names == there[alias]:
                    stores[alias].forget(name)
        except EXPECTED as error:
            raise CommandError(f"{name}: {error}") from error
        left = sum(map(len, there.values())) - sum(map(len, found.values()))
        if options["json"]:
            self.stdout.write(json.dumps({"name": name, "generations": found, "left": left}))
        elif options["verbosity"]:
            of_others = f"; left {counted(left, 'filter')}, built from another database" if left else ""
            row = "its state row and " if has_row else ""
            self.stdout.write(f"{name}: removed {row}{counted(sum(map(len, found.values())), 'filter')}{of_others}")

    def _is_confirmed(self, name: str) -> bool:
        self.stderr.write(
            f"This deletes the state row and the filters of the guard {name!r}. A process that still has this guard "
            "must not run any more.\nType 'yes' to continue: ",
            ending="",
        )
        try:
            return input() == "yes"
        except EOFError:
            raise CommandError("nothing was removed, as nobody can be asked here: add --no-input") from None
        except KeyboardInterrupt:
            raise CommandError("nothing was removed", returncode=130) from None
