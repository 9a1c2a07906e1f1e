"""What a writer does that could not prove its add: the guard answers nothing until it is rebuilt.

Every process must know before the row can be seen. So the row commits no earlier than two leases after the fence;
where the fence cannot be committed before it, both are committed together and nobody is told of the commit until then.

That is so on SQLite where the rows and the state rows lie in one file: a writer locks out every other connection, its
own process's for the state rows too. So it also reads them by its own; nobody else can change them meanwhile.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.models import F

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard
from ..models import GuardState
from . import state as states
from .state import FENCED, LEASE_SECONDS, Rows, State, StateTable

SETTLE_SECONDS = 2 * LEASE_SECONDS

_NOTHING = nullcontext()


class _Settle:
    """Waits when a fence has been committed together with rows; ``before`` is the state row as it is until then."""

    def __init__(self, table: StateTable, name: str, before: State) -> None:
        self.table = table
        self.name = name
        self.before = before

    def __call__(self) -> None:
        self.table.sleep(SETTLE_SECONDS)


def writing(guard: Guard, using: str) -> AbstractContextManager[None]:
    """Around whatever needs the state row after a statement on ``using`` that has not been committed yet."""
    table = table_of(guard)
    return table.reading_by(partial(_committed, table, using)) if _locks_out(table, using) else _NOTHING


def is_idle(guard: Guard) -> bool:
    """Whether, by a copy of the state row that may be relied on, the guard has no generation to add to."""
    state = table_of(guard).lease(guard.name)
    return state is not None and not state.generations


def needs_nothing(guard: Guard, using: str) -> bool:
    """Whether rows just written need no add: the guard has no generation, or this very transaction fences it."""
    table = table_of(guard)
    state = table.renewed(guard.name)
    return (state is not None and not state.generations) or _fenced_within(table, guard.name, using)


def fence(guard: Guard, using: str, reason: str) -> bool:
    """Fence ``guard`` for rows written on ``using``, before they can be seen; ``False`` if it has no generation.

    To be called after the statement and before its COMMIT. Raises :class:`StoreError` if it fails: then the write
    must not be committed.
    """
    try:
        table = table_of(guard)
        with writing(guard, using):
            if needs_nothing(guard, using):
                return not is_idle(guard)
            state = table.lease(guard.name)
            if state is not None and state.status == FENCED and not state.building:
                _heed(guard, state)  # whatever is built next waits for us first
            elif _locks_out(table, using):
                _fence_within(table, guard.name, using, reason)
            else:
                table.fence(guard.name, reason)
                table.sleep(SETTLE_SECONDS)
    except DatabaseError as error:
        raise StoreError(
            f"{guard.name}: a row could not be added to its filter, nor could the filter be taken out of use; the "
            "write is refused, for the row might be answered 404"
        ) from error
    return True


def part_with_standby(guard: Guard, using: str, seen: State) -> bool:
    """Take the kept standby out of the row, so that an add which did not reach it may count; ``False`` if that fails.

    Whoever wants to go back to it compares and sets the row's version: either our add is known to it, or we hear of it.
    """
    table = table_of(guard)
    if _locks_out(table, using):
        return False  # it could be done by this transaction alone, and undone with it after others have relied on it
    try:
        return table.swap(seen, standby="", standby_until=None) is not None
    except DatabaseError:
        return False


def _heed(guard: Guard, state: State) -> None:
    try:
        guard.live.heed_fence(state)
    except ConfigurationError:
        table_of(guard).sleep(SETTLE_SECONDS)


def table_of(guard: Guard) -> StateTable:
    """The state rows that the guard lives by, also of one that cannot work."""
    try:
        return guard.live.table
    except ConfigurationError:  # a guard that cannot work now may have a filter from before
        return states.table


def _locks_out(table: StateTable, using: str) -> bool:
    return connections[using].vendor == "sqlite" and table.connection.alias == using


def is_pending(name: str, using: str) -> bool:
    """Whether the open transaction on ``using`` has fenced the guard ``name``, which nobody else sees yet."""
    return any(fence.name == name for fence in _pending(using))


def _pending(using: str) -> list[_Settle]:
    """The fences of the open transaction."""
    hooks: list[Any] = connections[using].run_on_commit
    return [hook[1] for hook in hooks if isinstance(hook[1], _Settle)] if hooks else []


def _fenced_within(table: StateTable, name: str, using: str) -> bool:
    """Whether the open transaction fences the guard, and no savepoint has taken that back since."""
    if not is_pending(name, using):
        return False
    # Hooks know of `atomic` alone, and outlive a savepoint that was rolled back by hand: the row does not.
    now = table.visible_to(using).get(name)
    return now is not None and now.status == FENCED and not now.building


def _committed(table: StateTable, using: str) -> Rows:
    """The state rows by the writer's connection, as everybody else has them."""
    return table.visible_to(using) | {fence.name: fence.before for fence in _pending(using)}


def _fence_within(table: StateTable, name: str, using: str, reason: str) -> None:
    before = _committed(table, using).get(name) or State(name)
    rows = GuardState.objects.using(using).filter(name=name).exclude(active="", standby="", building="")
    if not rows.update(version=F("version") + 1, **table.fencing(reason)):
        return
    table.say_fenced(name, reason)
    transaction.on_commit(_Settle(table, name, before), using=using)
    hooks: list[Any] = connections[using].run_on_commit
    if hooks:  # before any other hook can tell of the commit; without a transaction it has been called already
        last = hooks.pop()
        others = [hook for hook in hooks if not (isinstance(hook[1], _Settle) and hook[1].name == name)]
        hooks[:] = [last, *others]
