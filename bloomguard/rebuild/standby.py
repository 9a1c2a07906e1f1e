"""The standby: the previous generation, which is dropped soon, or kept for some time for a roll-back.

For two leases after a publication some process may still answer from the standby. After that none does, and the standby
is dropped or marked as kept. A kept standby is as complete as the active generation, because an add that does not reach
it first removes it from the state row, as a fence does. So a roll-back is one compare-and-set of the row.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError
from django.utils import timezone

from ..exceptions import RebuildError, StoreError
from ..filters import FilterError
from ..guards import Guard
from ..signals import generation_published, send
from ..state.row import ARMED, State
from ..state.table import EXPIRY_SECONDS
from .locks import is_alive, is_running
from .plan import attempt, open_active

logger = logging.getLogger("bloomguard")

#: A live builder has dropped the standby itself by then.
_BUILDER_DIES_AFTER = timedelta(minutes=1)


def prefix_of(here: str) -> str:
    """Return how the names of all generations begin that are built from ``here``: other sites do not remove those."""
    lasting, _, _ = here.partition("@")  # the rest changes with a restart
    return "r" + hashlib.sha256(lasting.encode()).hexdigest()[:8]


def new_name(here: str) -> str:
    """Return a name for a generation that this process builds from the database ``here``."""
    return f"{prefix_of(here)}{os.getpid():08x}{secrets.token_hex(8)}"


def _is_foreign(name: str, here: str) -> bool:
    """Return whether another database was its source: all those in memory have one prefix, and each process its own."""
    prefix = prefix_of(here)
    if not name.startswith(prefix):
        return True
    if not here.startswith("sqlite:memory@"):
        return False
    builder = int(name[len(prefix) :][:8], 16)
    return builder != os.getpid() and is_running(builder)


def sweep(guard: Guard, there: Sequence[str], state: State) -> None:
    """Remove the generations in ``there`` that the state row does not name and that were built from this database.

    Another site may answer from those that were built from another database: a rebuild warns of them when it begins.
    """
    store = guard._runtime.active_filter.store
    unnamed = [name for name in there if name not in state.generations]
    foreign = [name for name in unnamed if _is_foreign(name, state.here)]
    for name in unnamed:
        if name not in foreign:
            try:
                store.drop(guard.name, name)
            except StoreError as error:
                log_not_removed(guard, error)
    if state.building and foreign:
        logger.warning(
            "bloomguard did not remove filters of %s that were built from another database: %s. Sites that share a "
            "store each need their own prefix or path; after a failover or a restore these filters can be deleted",
            guard.name,
            ", ".join(store.location(guard.name, name) for name in foreign),
        )


def log_not_removed(guard: Guard, error: Exception) -> None:
    """Log that a generation was not removed: it only takes space until the next build's sweep."""
    logger.warning("bloomguard could not remove an old generation of %s: %s", guard.name, error)


def retire(guard: Guard, state: State, keep_seconds: float = 0.0) -> bool:
    """Drop the standby or mark it as kept, two leases after it was replaced: no process answers from it; then sweep.

    Return whether the row was still as ``state``; else nothing was done. With a scope none is kept: its schema or
    database may have another name by the time of a roll-back.
    """
    until = timezone.now() + timedelta(seconds=keep_seconds)
    keep = keep_seconds and guard.scope is None
    changes: dict[str, Any] = {"standby_until": until} if keep else {"standby": "", "standby_until": None}
    return _change_and_sweep(guard, state, changes if state.standby else {})


def _change_and_sweep(guard: Guard, state: State, changes: dict[str, Any]) -> bool:
    """Sweep the store if the row is still as ``state``; else a generation in it may be one that another has begun."""
    active_filter = guard._runtime.active_filter
    try:
        there = active_filter.store.patient.names(guard.name)
        after = active_filter.table.swap(state, **changes)
    except (DatabaseError, StoreError) as error:
        log_not_removed(guard, error)
        return False
    if after is not None:
        sweep(guard, there, after)
    return after is not None


def roll_back(guard: Guard) -> State:
    """Make the kept generation active again; return the new state row, for :func:`retire` after two leases.

    Until then writers add to the replaced generation too, then it is dropped. A rebuild that runs now will fail to
    publish. Raises :class:`RebuildError` with the reason if no generation was kept.
    """
    table = guard._runtime.active_filter.table
    seen = table.current(guard.name)
    if not seen.kept or seen.status != ARMED:
        raise RebuildError(
            f"{guard.name}: there is no previous generation to roll back to: none was kept (rebuild_filter "
            "--keep-standby 1h), its time is over, or an add did not reach it. Run rebuild_filter"
        )
    try:
        kept = open_active(guard, seen, name=seen.kept)
        for _ in kept.filters():  # reads and checks all of it
            pass
    except (StoreError, FilterError) as error:
        raise RebuildError(f"{guard.name}: the previous generation cannot be trusted: {error}") from error
    after = table.swap(seen, active=seen.kept, standby=seen.active, standby_until=None, published_at=timezone.now())
    if after is None:
        raise RebuildError(f"{guard.name}: its state row changed at the same moment, so nothing was done; try again")
    send(generation_published, type(guard), guard=guard, generation=after.active, rows=None)
    return after


def is_over(guard: Guard, state: State) -> bool:
    """Return whether there is a standby to drop: its time is over, or its builder died before it could drop it."""
    row = guard._runtime.active_filter.table.row(guard.name)
    if row is None or row.version != state.version or not row.standby:
        return False
    until = row.standby_until or (row.published_at or timezone.now()) + _BUILDER_DIES_AFTER
    return until <= timezone.now()


def roll_back_all(guards: Sequence[Guard], sleep: Callable[[float], None] = time.sleep) -> list[State | RebuildError]:
    """Roll several guards back with one wait for all; return the state row or an error for each, in their order."""
    outcomes = [attempt(guard, partial(roll_back, guard)) for guard in guards]
    rolled_back = [(guard, state) for guard, state in zip(guards, outcomes) if isinstance(state, State)]
    _after_all_know([partial(retire, guard, state) for guard, state in rolled_back], sleep)
    return outcomes


def clear_away(guards: Sequence[Guard], sleep: Callable[[float], None] = time.sleep) -> None:
    """Drop the standbys whose time is over, and the unfinished generations of builders that have died."""
    steps: list[Callable[[], object]] = []
    for guard in guards:
        table = guard._runtime.active_filter.table
        try:
            state = table.current(guard.name)
            if state.building and not is_alive(table, state):
                after = table.swap(state, building="", builder="")
                if after is not None:
                    steps.append(partial(_change_and_sweep, guard, after, {}))
            elif is_over(guard, state):
                steps.append(partial(retire, guard, state))
        except DatabaseError as error:
            log_not_removed(guard, error)
    _after_all_know(steps, sleep)


def _after_all_know(steps: Sequence[Callable[[], object]], sleep: Callable[[float], None]) -> None:
    """Take the steps when every process has read the state rows as they are now."""
    if steps:
        sleep(EXPIRY_SECONDS)
    for step in steps:
        step()
