"""Guards that this process does not have, because it runs another version of the project than other processes.

It cannot make the keys of such a guard, so each of its statements that may write one fences the guard. The state row of
the guard names the tables, and has a hash of what a key means. The process may have a guard of that name, but with
another ``lookup`` or ``alive``. That one is not asked meanwhile: it could add nothing to a filter of other keys, and
its columns may not be there yet, as between a deploy and its migrations.

A process reads the state rows before it makes the plans of its first ORM write, and looks at each later copy of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

from django.apps import apps
from django.db import DatabaseError
from django.db.models import Model

from ..guards import Guard, registry
from ..guards.registry import Plans
from ..models import GuardState
from ..process import after_fork, is_within
from ..state import table as states

#: Why a guard is fenced: :func:`reason` begins with it.
REASON = "a process that runs a version of the project without this guard, or with other options, wrote to its table"

#: Seconds until the next read after one that failed.
AGAIN_SECONDS = 60.0


def reason(why: str = REASON) -> str:
    """Return why a guard is fenced, with this process, which may have to be stopped."""
    return f"{why} (process {os.getpid()} on {socket.gethostname()})"


class UnknownGuard(Guard):
    """Stands for such a guard at one of its tables. What its keys are is unknown, so all columns count."""

    lookup = ()


#: The last copy of the state rows that the plans were compared with.
compared_copy: object = None
#: Whether all ``guards.py`` are imported. Before that, a guard may only be unknown as yet, and
#: :func:`.raw_fences.record_early` records each write.
is_complete = False
#: The copy that there was when a read failed, and when it failed.
_failed: tuple[object, float] = None, float("-inf")
#: When this process was forked: it reads the rows again, as its parent may have read them days before.
_forked_at = float("-inf")


def _begin_as_child() -> None:
    global compared_copy, _failed, _forked_at
    _forked_at, compared_copy, _failed = states.table.clock(), None, (None, float("-inf"))
    registry.replan_writes()  # else no write would come to `read_once`


after_fork(_begin_as_child)


def compare_copy() -> None:
    """Begin new plans if the last copy of the state rows names other unknown guards than the plans were made for."""
    global compared_copy
    copy = states.table.copy
    if copy is not compared_copy:
        if _named() != registry.plans.named:
            registry.replan_writes()
        compared_copy = copy  # last: until the old plans are gone, other threads must not rely on them


def begin() -> None:
    """Look for unknown guards from now on: all ``guards.py`` are imported."""
    global is_complete, compared_copy
    is_complete, compared_copy = True, None
    compare_copy()


def were_read() -> bool:
    """Return whether this process has read the state rows, so that :func:`compare_copy` sees each later copy."""
    return is_complete and states.table.copy.read_at > _forked_at


def read_once() -> bool:
    """Read the state rows if this process never has, and has not just failed to; return whether it did. May wait."""
    global _failed
    table, (copy, failed_at) = states.table, _failed
    if not is_complete or were_read() or (copy is table.copy and is_within(AGAIN_SECONDS, failed_at, table.clock())):
        return False
    if not table.renew(after=_forked_at):
        _failed = table.copy, table.clock()
        return False
    if not len(registry) or not table.copy.rows:
        with suppress(DatabaseError):  # another thread uses it
            table.connection.close()  # this process may never read them again
    compare_copy()
    return True


def unknown_guards(plans: Plans) -> Iterator[tuple[str, UnknownGuard]]:
    """Yield the table and a stand-in for each table of a guard that this process does not have."""
    plans.named = named = _named()
    if not named:
        return
    models: dict[str, type[Model]] = {}
    for model in apps.get_models(include_auto_created=True):
        if not model._meta.proxy:
            models.setdefault(model._meta.db_table, model)
    for name, table in sorted(named):
        yield table, type("UnknownGuard", (UnknownGuard,), {"name": name})(models.get(table, GuardState))


def is_of_another_version(guard: Guard) -> bool:
    """Return whether the filter of this name has other keys, so that this process can add none to it."""
    definition, _ = (registry.plans.known or {}).get(guard.name, ("", frozenset()))
    return states.table.known(guard.name).definition not in ("", definition) and definition != ""


def why_not_added(guard: Guard) -> str:
    """Return the reason of an add that has just failed, for the log and the state row."""
    return reason() if is_of_another_version(guard) else reason(guard._runtime.active_filter.why_not_added())


def _named() -> frozenset[tuple[str, str]]:
    """Return the names and tables of the unknown guards; of one whose name this process has, also its tables here."""
    if not is_complete:
        return frozenset()
    plans, found = registry.plans, set[tuple[str, str]]()
    if plans.known is None:
        plans.known = {guard.name: (guard._meta.definition_hash, frozenset(guard._meta.tables)) for guard in registry}
    for name, row in states.table.copy.rows.items():
        tables = set(row.tables.split("\n")) if row.tables else set()
        definition, own = plans.known.get(name, (None, frozenset[str]()))
        # A guard with a mistake has no definition; each write of its tables fences it anyway.
        if definition in ("", row.definition):
            tables -= own
        elif tables:
            tables |= own
        found.update((name, table) for table in tables)
    return frozenset(found)
