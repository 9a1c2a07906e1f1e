"""The standby: the previous generation, from which some process may answer for two leases after a publication.

After that none does, and it is dropped. What a builder leaves that dies before, the next one removes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from django.db import DatabaseError
from django.utils import timezone

from ..exceptions import StoreError
from ..guards import Guard
from ..state.row import State
from ..state.table import EXPIRY_SECONDS
from .locks import is_alive, is_running

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


def retire(guard: Guard, state: State) -> None:
    """Drop the standby, two leases after it was replaced, and sweep the store.

    Not if the row is no longer as ``state``: a generation in the store may be one that another builder has begun.
    """
    active_filter = guard._runtime.active_filter
    try:
        there = active_filter.store.patient.names(guard.name)
        after = active_filter.table.swap(state, standby="")
    except (DatabaseError, StoreError) as error:
        log_not_removed(guard, error)
        return
    if after is not None:
        sweep(guard, there, after)


def _is_over(guard: Guard, state: State) -> bool:
    """Return whether there is a standby whose builder died before it could drop it."""
    row = guard._runtime.active_filter.table.row(guard.name)
    if row is None or row.version != state.version or not row.standby:
        return False
    return (row.published_at or timezone.now()) + _BUILDER_DIES_AFTER <= timezone.now()


def clear_away(guards: Sequence[Guard], sleep: Callable[[float], None] = time.sleep) -> None:
    """Drop the standbys and the unfinished generations of builders that have died, when every process knows."""
    left: list[tuple[Guard, State]] = []
    for guard in guards:
        table = guard._runtime.active_filter.table
        try:
            state = table.current(guard.name)
            if state.building and not is_alive(table, state):
                after = table.swap(state, building="", builder="")
                if after is not None:
                    left.append((guard, after))
            elif _is_over(guard, state):
                left.append((guard, state))
        except DatabaseError as error:
            log_not_removed(guard, error)
    if left:
        sleep(EXPIRY_SECONDS)
    for guard, state in left:
        retire(guard, state)
