"""The generation before the active one: dropped soon, or kept for a while, so that a roll-back can return to it.

For two leases after a publication the standby may still answer some process. From then on it is asked by nobody: it is
dropped, or named as kept. A kept one is as complete as the active one, because every add reaches it or takes it out of
the row first, and so does a fence. So a roll-back is one change of the row, which fails if the row is not as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from django.db import DatabaseError
from django.utils import timezone

from ..exceptions import RebuildError, StoreError
from ..filters import FilterError
from ..guards import Guard
from ..models import GuardState
from ..remembered import is_of, shelf
from ..signals import generation_published, tell
from ..stores import Store
from ..sync.state import ARMED, State

logger = logging.getLogger("bloomguard")

#: Long enough for a builder that lives to have dropped the standby itself.
_BUILDER_DIES_AFTER = timedelta(minutes=1)


def lying(guard: Guard) -> list[str]:
    """The generations that lie in the store, or of which anything does; raises :class:`StoreError`."""
    store = guard.live.store
    return list({name: None for place in (guard.name, shelf(guard.name)) for name in store.names(place)})


def drop(guard: Guard, name: str, store: Store | None = None) -> None:
    """Remove a generation and what lies beside it, by default from the guard's store; raises :class:`StoreError`."""
    for place in (guard.name, shelf(guard.name)):
        (store or guard.live.store).drop(place, name)


def sweep(guard: Guard, there: Sequence[str], state: State) -> None:
    """Remove what this database's builders have left: all that is ``there`` and not named by the row.

    What another database's have built may be what another site answers from.
    """
    for name in there:
        if name not in state.generations and is_of(name, state.here):
            try:
                drop(guard, name)
            except StoreError as error:
                left_behind(guard, error)
    foreign = [name for name in there if name not in state.generations and not is_of(name, state.here)]
    if foreign:
        logger.warning(
            "bloomguard leaves filters of %s alone that were built from another database: %s. Sites that share a store "
            "need a prefix, or a path, each; after a failover or a restore they can be removed",
            guard.name,
            ", ".join(foreign),
        )


def left_behind(guard: Guard, error: Exception) -> None:
    """Warn of what costs space and nothing else: the next build's sweep takes it."""
    logger.warning("bloomguard could not clear away an old generation of %s: %s", guard.name, error)


def retire(guard: Guard, state: State, keep_seconds: float = 0.0) -> None:
    """Drop the standby, or name it as kept, two leases after it was replaced, and remove what no row names."""
    table = guard.live.table
    try:
        there = lying(guard)
        after: State | None = state
        if state.standby and keep_seconds:
            after = table.swap(state, standby_until=timezone.now() + timedelta(seconds=keep_seconds))
        elif state.standby:
            after = table.swap(state, standby="", standby_until=None)
    except (DatabaseError, StoreError) as error:
        left_behind(guard, error)
        return
    if after is not None:
        sweep(guard, there, after)


def roll_back(guard: Guard) -> State:
    """Let the kept generation answer again; the row as it is then, for :func:`retire` after two leases.

    What was active is written to until then, and lost; a build that is going on will not be published. Raises
    :class:`RebuildError` that says why there is nothing to go back to.
    """
    table, store = guard.live.table, guard.live.store
    seen = table.current(guard.name)
    if not seen.kept or seen.status != ARMED:
        raise RebuildError(
            f"{guard.name}: there is no former generation to go back to: none was kept (rebuild_filter --keep-standby "
            "1h), or its time is over, or an add did not reach it. Run rebuild_filter"
        )
    try:
        if seen.identity != store.identity or not seen.is_ours:
            raise StoreError("its store, or the database, was replaced since")
        store.open(guard.name, seen.kept, guard.live.find_key_hash, seen.identity).fill()  # which reads all of it
    except (StoreError, FilterError) as error:
        raise RebuildError(f"{guard.name}: the former generation cannot be trusted: {error}") from error
    after = table.swap(seen, active=seen.kept, standby=seen.active, standby_until=None, published_at=timezone.now())
    if after is None:
        raise RebuildError(f"{guard.name}: its state row changed at the same moment, so nothing was done; try again")
    tell(generation_published, type(guard), guard=guard, generation=after.active, rows=None)
    return after


def is_over(guard: Guard, state: State) -> bool:
    """Whether the standby, if there is one, is to go: its time is over, or its builder died before it could drop it."""
    rows = GuardState.objects.using(guard.live.table.connection.alias)
    row = rows.filter(name=guard.name, version=state.version).exclude(standby="").first()
    if row is None:
        return False
    until = row.standby_until or (row.published_at or timezone.now()) + _BUILDER_DIES_AFTER
    return until <= timezone.now()
