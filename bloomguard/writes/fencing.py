"""Fencing: when an add cannot be confirmed, the guard is disabled until its next rebuild.

There are three moments: after the statement, :func:`fence` fences now; before the COMMIT,
:meth:`CommitFences.before_commit` fences again, if a build has begun meanwhile; after it,
:meth:`CommitFences.after_commit` fences if the COMMIT took too long.

Every process must know of the fence before the row becomes visible. So the row is committed no earlier than two leases
after the fence. If the writer's own transaction locks the state row, as on SQLite it always does, or if the server
takes no further connection, both are committed together, and :meth:`PendingFence.finish` waits after the COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import F

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard
from ..models import GuardState
from ..process import is_within, seconds_left
from ..state import table as states
from ..state.connection import fetch_uncounted
from ..state.row import FENCED, Rows, State
from ..state.table import EXPIRY_SECONDS, LEASE_SECONDS, StateTable
from ..state.transactions import ROW_LOCKS, has_begun, is_aborted, locks_table
from .isolation import reads_what_is_committed
from .observer import TransactionObserver, has_changed_rows, is_alone

#: Half a lease less, as clocks differ in speed.
IDLE_SECONDS = 1.5 * LEASE_SECONDS

_NOTHING = nullcontext()


class PendingFence:
    """A fence that is committed together with rows; ``before`` is the state row that other processes see until then."""

    def __init__(self, table: StateTable, name: str, before: State, reason: str) -> None:
        self.table = table
        self.name = name
        self.before = before
        self._reason = reason
        self._since = float("-inf")
        self._after: State | None = None

    def note_commit(self) -> None:
        """Note the time of the COMMIT and read the row as it is now, so that later writes need not wait anew."""
        self._since, self._after = self.table.clock(), None
        with suppress(DatabaseError, InterfaceError):
            self._after = self.table.current(self.name)

    def finish(self) -> None:
        """Wait until no process answers from an older state row, and log the fence; not if a savepoint undid it."""
        after = self._after
        if after is not None and after == self.before and after.version:
            return
        wait = seconds_left(EXPIRY_SECONDS, self._since, self.table.clock())
        if wait > 0:
            self.table.sleep(wait)
        if after is None or (after.status == FENCED and after.version > self.before.version):
            self.table.log_fenced(self.name, self._reason)


class CommitFences:
    """The fences at the COMMIT of a transaction on ``using``, for rows that it may write as late as then."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._since = float("-inf")
        #: Why each guard is fenced.
        self.reasons: dict[Guard, str] = {}
        #: Statements that were not parsed when they were sent, each with the table of the ORM's, if it is one; and the
        #: function that parses them, and returns more reasons.
        self.unread: set[tuple[str, str]] = set()
        self.find_more: Callable[[], Mapping[Guard, str]] = dict

    @classmethod
    def of(cls, connection: Any) -> CommitFences:
        """Return those of the open transaction."""
        observer = TransactionObserver.ensure(connection)
        observer.commit_fences = observer.commit_fences or cls(connection.alias)
        return observer.commit_fences

    def before_commit(self) -> None:
        """Fence the guards that take adds again. Raises :class:`StoreError`."""
        states.table.renew()
        self._since = states.table.copy.read_at  # before the fence: a build may begin while that waits
        fence({**self.find_more(), **self.reasons}, self._using)

    def after_commit(self) -> None:
        """Fence the guards if the COMMIT took so long that a build may have begun before it. Never raises."""
        table = states.table
        if not is_within(IDLE_SECONDS, self._since, table.clock()):
            is_read = table.renew(after=table.clock())
            guards = {**self.find_more(), **self.reasons}
            fence_soon(guard for guard in guards if not is_read or table_of(guard).known(guard.name).takes_adds)


def fence_at_commit(reasons: Mapping[Guard, str], connection: Any) -> None:
    """Fence the guards again before the COMMIT of the open transaction, if a build has begun by then.

    Only for a transaction that :func:`may_write_later`.
    """
    if reasons and may_write_later(connection):
        fences = CommitFences.of(connection)
        fences.reasons = {**reasons, **fences.reasons}


def may_write_later(connection: Any) -> bool:
    """Return whether a transaction is open that may get rows of a guard without a lock for which a build waits.

    On PostgreSQL deferred triggers write at the COMMIT, open cursors when they are fetched from, and an attached
    partition has rows already. On other databases a statement locks all tables that it may write.
    """
    return connection.vendor == "postgresql" and has_begun(connection)


def reading_by_writer(guard: Guard, using: str, *, after_statement: bool = False) -> AbstractContextManager[None]:
    """Return a block that reads the state row by the writer's connection ``using``, if no other one can.

    On servers only ``after_statement``: a query of ours must not be the first of a transaction, after which PostgreSQL
    refuses some of its settings.
    """
    table = table_of(guard)
    locks_all = table.is_locked_by(using) and has_begun(connections[using])
    if locks_all or (after_statement and needs_writers_connection(table, guard.name, using)):
        return table.within.reading_by(partial(_committed_rows, table, using))
    return _NOTHING


def refresh(guard: Guard, using: str) -> None:
    """Read the state rows if the copy is too old. They have their own connection; if a writer blocks it, try once."""
    table = table_of(guard)
    if table.lease(guard.name) is not None:
        return
    connection = connections[using]
    if not is_alone(connection) and not table.renew() and table.is_locked_by(using) and has_begun(connection):
        TransactionObserver.ensure(connection).is_alone = True


def fence_soon(guards: Iterable[Guard]) -> None:
    """Fence guards for rows that may be committed already, though their keys were not added. Does not wait."""
    for guard in guards:
        table_of(guard).fence_soon(guard.name, "a row was saved, and its key could not be added")


def needs_no_add(guard: Guard, using: str) -> bool:
    """Whether rows just written need no add: the guard has no generation, or this transaction has fenced it.

    Waits, once, for a fence that another writer has set.
    """
    table = table_of(guard)
    for _ in range(2):
        may_read = table.is_locked_by(using) or not is_alone(connections[using])
        state = table.renewed(guard.name) if may_read else table.lease(guard.name)
        if state is None or state.takes_adds:
            break
        if state.status != FENCED:
            return True
        table.wait_for_fence(state)  # the next build waits for this transaction
        now = table.lease(guard.name)
        if now is not None and now.version == state.version:
            return True
    return _has_fenced(table, guard.name, using)


def fence(reasons: Mapping[Guard, str], using: str) -> list[Guard]:
    """Fence guards for rows written on ``using``, before they become visible; return those that have a generation.

    Call it after the statement and before its COMMIT: it waits once for all of them. Raises :class:`StoreError` if one
    cannot be fenced: then the write must not be committed.
    """
    fenced: list[Guard] = []
    set_at: dict[StateTable, float] = {}
    committed: list[PendingFence] = []
    try:
        # An unknown guard has the row of the guard of its name, which needs no second fence, nor a wait for the first.
        for guard, reason in {(table_of(guard), guard.name): (guard, why) for guard, why in reasons.items()}.values():
            table = table_of(guard)
            with reading_by_writer(guard, using, after_statement=True):
                if needs_no_add(guard, using):
                    state = table.lease(guard.name)
                    if state is not None and not state.generations:
                        continue
                # Whether the fence has to be a statement of the writer's own transaction.
                # On SQLite a query of it that is not read to its end locks out the one for the state rows, too.
                elif table.within.read or table.is_locked_by(using) or has_locked_row(table, guard.name, using):
                    committed += _fence_within(table, guard.name, using, reason)
                else:
                    table.fence(guard.name, reason)
                    set_at[table] = table.clock()
            fenced.append(guard)
        for table, since in set_at.items():
            table.renew(after=since)  # a fence that was read before this wait needs no second one
            table.sleep(seconds_left(EXPIRY_SECONDS, since, table.clock()))
            table.renew()
        for pending in committed:
            pending.finish()
    except DatabaseError as error:
        raise StoreError(
            f"{guard.name}: {reason.rstrip('.')}, and the guard could not be fenced: {str(error).strip()}. The write "
            "is refused, as a request for the row might be answered 404. Write again when the state rows can be changed"
        ) from error
    return fenced


def drop_standby(guard: Guard, using: str, seen: State) -> bool:
    """Remove the standby from the state row, so that an add which did not reach it counts; ``False`` if that fails.

    A rollback to the standby compares and sets the row's version too: of it and this change, the second one fails.
    """
    table = table_of(guard)
    if table.is_locked_by(using):
        return False  # only this transaction could do it, and its rollback would undo it after others relied on it
    try:
        return (
            not has_locked_row(table, guard.name, using)
            and table.swap(seen, standby="", standby_until=None) is not None
        )
    except DatabaseError:
        return False


def table_of(guard: Guard) -> StateTable:
    """Return the table of the guard's state row, also for a guard with a configuration error."""
    try:
        return guard._runtime.active_filter.table
    except ConfigurationError:  # it may have a filter from before the error
        return states.table


#: SQL: does a statement of the open transaction see the state rows as they are committed by now?
_SEES_COMMITTED = """
    SELECT left(current_setting('transaction_isolation'), 5) = 'read ' AND (%s OR NOT EXISTS (SELECT FROM pg_locks
    WHERE pid = pg_backend_pid() AND relation = to_regclass(%s) AND mode <> 'AccessShareLock'))"""


def needs_writers_connection(table: StateTable, name: str, using: str) -> bool:
    """Return whether only the writer's own connection can read the state rows and fence the guard.

    So it is on a server that takes no further connection. The writer's transaction must not have an older snapshot,
    nor have changed state rows itself.
    """
    connection: Any = connections[using]
    if table.connection.alias != using or connection.vendor == "sqlite" or table.lease(name) is not None:
        return False
    if is_aborted(connection) or is_alone(connection) or table.renew(after=table.clock()):
        return False
    if not has_begun(connection):
        return True
    if connection.vendor != "postgresql":  # each of its statements reads what is committed by then
        return reads_what_is_committed(connection) and not has_changed_rows(connection)
    parameters = bool(_pending_fences(using)), connection.ops.quote_name(GuardState._meta.db_table)
    return bool(fetch_uncounted(connection, _SEES_COMMITTED, parameters)[0][0])


def has_locked_row(table: StateTable, name: str, using: str) -> bool:
    """Return whether the open transaction on ``using`` has locked the state row, so that all others wait for it."""
    connection: Any = connections[using]
    if (
        table.connection.alias != using
        or not has_begun(connection)
        or not connection.features.has_select_for_update_skip_locked
    ):
        return False
    if locks_table(connection, GuardState._meta.db_table):
        TransactionObserver.ensure(connection).is_alone = True
        return True
    is_asked = connection.vendor == "postgresql" and not is_aborted(connection)
    if is_asked and not locks_table(connection, GuardState._meta.db_table, ROW_LOCKS):
        return False  # so a role without rights to the state rows, as of a SET ROLE, is not asked for them
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
        return not cursor.fetchall()  # deleted here; else another transaction has the lock


def _pending_fences(using: str) -> dict[str, Any]:
    """Return the fences of the open transaction, which others do not see yet."""
    observer = TransactionObserver.of(connections[using])
    return observer.pending_fences if observer is not None else {}


def _has_fenced(table: StateTable, name: str, using: str) -> bool:
    """Whether the open transaction has fenced the guard, or deleted its row, and no savepoint has undone that."""
    if name not in _pending_fences(using):
        return False
    now = table.visible_to(using).get(name)
    return now is None or (now.status == FENCED and not now.building)


def _committed_rows(table: StateTable, using: str) -> Rows:
    """Return the state rows by the writer's connection, as they are committed."""
    return table.visible_to(using) | {name: fence.before for name, fence in _pending_fences(using).items()}


def _fence_within(table: StateTable, name: str, using: str, reason: str) -> list[PendingFence]:
    """Fence by the writer's connection; return what is to be waited for now: a fence outside of a transaction."""
    connection = connections[using]
    if table.within.read or table.is_locked_by(using):
        before = _committed_rows(table, using).get(name) or State(name)
    else:
        before = table.known(name) if is_alone(connection) else table.current(name)
    rows = GuardState.objects.using(using).filter(name=name).exclude(active="", standby="", building="")
    changed = rows.update(version=F("version") + 1, **table.fenced_values(reason))
    pending = PendingFence(table, name, before, reason)
    if has_begun(connection):
        # If no row was changed, this transaction has deleted it, which others see only after its COMMIT.
        TransactionObserver.ensure(connection).add_fence(pending)
        return []
    pending.note_commit()
    return [pending] if changed else []
