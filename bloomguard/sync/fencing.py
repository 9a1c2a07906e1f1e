"""What a writer does that could not prove its add: the guard answers nothing until it is rebuilt.

Every process must know before the row can be seen. So the row commits no earlier than two leases after the fence;
where the fence cannot be committed before it, both are committed together and nobody is told of the commit until then.

That is so where the writer itself keeps every other connection from changing the state row. On SQLite a writer locks
out all others, its own process's for the state rows too, so it also reads them by its own: nobody else can change them
meanwhile. On PostgreSQL its transaction may have changed or deleted the very row.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import F

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard
from ..models import GuardState
from . import state as states
from .observer import TransactionObserver
from .state import FENCED, LEASE_SECONDS, Rows, State, StateTable
from .transactions import has_begun

SETTLE_SECONDS = 2 * LEASE_SECONDS
#: Half a lease less, for clocks that do not run at the same speed.
IDLE_SECONDS = 1.5 * LEASE_SECONDS

_NOTHING = nullcontext()


class PendingFence:
    """A fence that is committed together with rows; ``before`` is the state row as others have it until then."""

    def __init__(self, table: StateTable, name: str, before: State, reason: str) -> None:
        self.table = table
        self.name = name
        self.before = before
        self._reason = reason
        self._since = float("-inf")

    def begin(self) -> None:
        """The COMMIT has come."""
        self._since = self.table.clock()

    def finish(self) -> None:
        """Wait until nobody answers from before it, and log it; neither if a savepoint had taken it back."""
        try:
            now = self.table.current(self.name)
        except (DatabaseError, InterfaceError):
            now = None
        if now is not None and now.version == self.before.version and now.version:
            return
        wait = self._since + SETTLE_SECONDS - self.table.clock()
        if wait > 0:
            self.table.sleep(wait)
        if now is not None and now.status == FENCED and now.version > self.before.version:
            self.table.say_fenced(self.name, self._reason)


def writing(guard: Guard, using: str) -> AbstractContextManager[None]:
    """Around whatever needs the state row after a statement on ``using`` that has not been committed yet."""
    table = table_of(guard)
    if _locks_out(table, using) and has_begun(connections[using]):
        return table.reading_by(partial(_committed, table, using))
    return _NOTHING


def takes_adds(state: State) -> bool:
    """Whether the row names a generation that answers, or may answer later: of a fenced one the build alone."""
    return bool(state.building if state.status == FENCED else state.generations)


def is_idle(guard: Guard, *, may_read: bool = False) -> bool:
    """Whether, by a copy of the state row that may be relied on, the guard has no generation.

    ``may_read``: a copy that is too old is read again first.
    """
    table = table_of(guard)
    state = table.renewed(guard.name) if may_read else table.lease(guard.name)
    return state is not None and not state.generations


def has_nothing_to_add_to(guard: Guard) -> bool:
    """The same, or what the guard has is fenced."""
    state = table_of(guard).lease(guard.name)
    return state is not None and not takes_adds(state)


def all_idle(guards: Iterable[Guard], using: str) -> dict[Guard, float] | None:
    """When the state row of each was asked for, if none has a generation to add to; else ``None``.

    A statement that comes now, and is over before :func:`was_idle` says no, needs nothing else: whatever generation
    there is by then was announced after that moment, so the scan that fills it begins two leases later at least, and
    after all transactions that are writing. Either the statement was committed by then, or its transaction is waited
    for. A fence is waited for here, before the statement, instead of before its COMMIT.
    """
    found: dict[Guard, float] = {}
    for guard in guards:
        since = _idle_since(guard, using)
        if since is None:
            return None
        found[guard] = since
    return found


def _idle_since(guard: Guard, using: str) -> float | None:
    table = table_of(guard)
    for _ in range(2):
        refresh(guard, using)
        since = table.read_at  # before the look: the copy may be a newer one
        state = table.lease(guard.name)
        if state is None:
            continue  # the copy has just become too old
        if takes_adds(state):
            return None
        if not state.generations:
            return since
        _heed(guard, state)  # which waits at most once, and then we look again
        if table.clock() - since < LEASE_SECONDS:
            return since
    return None


def refresh(guard: Guard, using: str) -> None:
    """Read the rows, if the copy is too old, by their own connection: the open transaction may keep it out, once."""
    table = table_of(guard)
    if table.lease(guard.name) is not None:
        return
    alone = _locks_out(table, using)
    observer = TransactionObserver.of(connections[using]) if alone else None
    if observer is not None and observer.is_alone:
        return
    if not table.renew() and alone and has_begun(connections[using]):
        TransactionObserver.over(connections[using]).is_alone = True


def was_idle(guard: Guard, since: float) -> bool:
    """Whether a statement that began after :func:`all_idle`, and is over now, came before every scan."""
    return table_of(guard).clock() - since < IDLE_SECONDS


def needs_nothing(guard: Guard, using: str) -> bool:
    """Whether rows just written need no add: the guard has no generation, or this very transaction fences it.

    Waits, once, for a fence that somebody else has set.
    """
    table = table_of(guard)
    for _ in range(2):
        state = table.renewed(guard.name)
        if state is None or takes_adds(state):
            break
        if not state.generations:
            return True
        _heed(guard, state)  # whatever is built next waits for us first
        now = table.lease(guard.name)
        if now is not None and now.version == state.version:
            return True
    return _fenced_within(table, guard.name, using)


def fence(guard: Guard, using: str, reason: str) -> bool:
    """Fence ``guard`` for rows written on ``using``, before they can be seen; ``False`` if it has no generation.

    To be called after the statement and before its COMMIT. Raises :class:`StoreError` if it fails: then the write
    must not be committed.
    """
    try:
        table = table_of(guard)
        with writing(guard, using):
            if needs_nothing(guard, using):
                state = table.lease(guard.name)
                return state is None or bool(state.generations)
            if _locks_out(table, using) or _holds_row(table, guard.name, using):
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


def before_state_rows_change(using: str) -> None:
    """Note what others have: the project is about to change state rows in its transaction."""
    table, connection = states.table, connections[using]
    if _locks_out(table, using) and has_begun(connection):
        known = TransactionObserver.over(connection).committed
        for name, state in table.visible_to(using).items():
            known.setdefault(name, PendingFence(table, name, state, ""))


def part_with_standby(guard: Guard, using: str, seen: State) -> bool:
    """Take the kept standby out of the row, so that an add which did not reach it may count; ``False`` if that fails.

    Whoever wants to go back to it compares and sets the row's version: either our add is known to it, or we hear of it.
    """
    table = table_of(guard)
    if _locks_out(table, using):
        return False  # it could be done by this transaction alone, and undone with it after others have relied on it
    try:
        return not _holds_row(table, guard.name, using) and table.swap(seen, standby="", standby_until=None) is not None
    except DatabaseError:
        return False


#: The fences that guards which cannot work have waited for.
_heeded: dict[str, Any] = {}


def _heed(guard: Guard, state: State) -> None:
    try:
        guard.live.heed_fence(state)
    except ConfigurationError:
        if _heeded.get(guard.name, "") != state.fenced_at:
            table_of(guard).sleep(SETTLE_SECONDS)
            _heeded[guard.name] = state.fenced_at


def table_of(guard: Guard) -> StateTable:
    """The state rows that the guard lives by, also of one that cannot work."""
    try:
        return guard.live.table
    except ConfigurationError:  # a guard that cannot work now may have a filter from before
        return states.table


def _locks_out(table: StateTable, using: str) -> bool:
    return connections[using].vendor == "sqlite" and table.connection.alias == using


def _holds_row(table: StateTable, name: str, using: str) -> bool:
    """Whether the open transaction on ``using`` has locked the state row, so that another connection waits for it."""
    connection: Any = connections[using]
    if (
        table.connection.alias != using
        or not has_begun(connection)
        or not connection.features.has_select_for_update_skip_locked
    ):
        return False
    quote = connection.ops.quote_name
    where = f"FROM {quote(GuardState._meta.db_table)} WHERE {quote('name')} = %s"
    free, _ = table.connection.execute(f"SELECT 1 {where} FOR UPDATE SKIP LOCKED", [name])
    if free or not table.current(name).version:
        return False
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 {where} FOR UPDATE SKIP LOCKED", [name])
        if cursor.fetchall():
            return True
        cursor.execute(f"SELECT 1 {where}", [name])
        return not cursor.fetchall()  # deleted by us; else it is another's, who is waited for no longer than any change


def is_pending(name: str, using: str) -> bool:
    """Whether the open transaction on ``using`` has fenced the guard ``name``, which nobody else sees yet."""
    return name in _pending(using)


def _pending(using: str) -> dict[str, Any]:
    """The fences of the open transaction."""
    observer = TransactionObserver.of(connections[using])
    return observer.committed if observer is not None else {}


def _fenced_within(table: StateTable, name: str, using: str) -> bool:
    """Whether the open transaction fences the guard, or has deleted its row, and no savepoint has taken that back."""
    if not is_pending(name, using):
        return False
    now = _visible_to(table, using).get(name)
    return now is None or (now.status == FENCED and not now.building)


def _visible_to(table: StateTable, using: str) -> Rows:
    """The state rows by the writer's connection, its own changes included."""
    if _locks_out(table, using):
        return table.visible_to(using)
    with connections[using].cursor() as cursor:
        cursor.execute(table.query)
        return {row[0]: State(*row) for row in cursor.fetchall()}


def _committed(table: StateTable, using: str) -> Rows:
    """The state rows by the writer's connection, as everybody else has them."""
    return table.visible_to(using) | {name: fence.before for name, fence in _pending(using).items()}


def _fence_within(table: StateTable, name: str, using: str, reason: str) -> None:
    connection = connections[using]
    if _locks_out(table, using):
        before = _committed(table, using).get(name) or State(name)
    else:
        before = table.current(name)
    rows = GuardState.objects.using(using).filter(name=name).exclude(active="", standby="", building="")
    changed = rows.update(version=F("version") + 1, **table.fencing(reason))
    pending = PendingFence(table, name, before, reason)
    if has_begun(connection):
        # Where nothing was changed the transaction has deleted the row, which others know no sooner than its COMMIT.
        TransactionObserver.over(connection).committed[name] = pending
    elif changed:
        pending.begin()
        pending.finish()
