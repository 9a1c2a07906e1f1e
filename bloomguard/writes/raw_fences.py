"""Which guards a raw statement fences, and when. That changes neither what it does, nor which of its rows stay.

A single statement that begins with a word of :data:`_STAYS_IN` gets a transaction of ours around it, together with the
fence. That changes neither whether it works, nor which of its rows stay after an error, nor what a later COMMIT or
ROLLBACK of the project's ends. Every other text is sent apart, as it would be without bloomguard, and the guards are
fenced before it and after it. So nobody waits for the lock of a definition while its fence is waited for.

A statement that another app's ``ready()`` sends, before all guards are declared, is recorded and fences them later.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from django.db import DatabaseError, Error, connections

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard, registry
from ..process import LogOnce
from ..state import table as states
from ..state.connection import fetch_uncounted
from ..state.transactions import is_aborted, is_under_way, may_go_on, rolls_back_if_marked, together
from . import adding, fencing, unknown_guards
from .consequences import Cause, affected_guards, current_cache, definitions
from .idle import all_idle_since, catching_up, is_in_time
from .introspection import note_remade
from .sql.reader import Reading
from .sql.statement import Effect

_WRITES = frozenset({"delete", "insert", "merge", "update"})
#: First words of the statements that certainly work in a transaction, and neither commit nor roll back. Not so on
#: PostgreSQL a CALL, a DO, a COMMIT PREPARED or a CREATE SUBSCRIPTION; MySQL and MariaDB commit at definitions.
_STAYS_IN = {
    "postgresql": _WRITES | {"copy", "select", "table", "truncate", "values", "with"},
    "sqlite": _WRITES | {"alter", "create", "drop", "replace", "with"},
    "mysql": _WRITES | {"load", "replace", "with"},
}
#: Python's SQLite driver begins a transaction for these alone, unless under autocommit. Not for a WITH, for example.
_DRIVER_BEGINS = frozenset({"delete", "insert", "replace", "update"})
_log = LogOnce()


@contextmanager
def fencing_around(
    reading: Reading, connection: Any, *, apart: bool = False, many: bool = False, own: str = ""
) -> Iterator[bool | None]:
    """Around a statement: fence the guards that may have new keys after it, but for those in a block that adds them.

    Yield whether there certainly are none. ``apart``: put no transaction around it. ``many``: it is sent several times,
    by ``executemany``.
    """
    if not unknown_guards.is_complete:
        record_early(reading.all_effects, connection.alias)
    unknown_guards.read_once()
    try:
        with _choose_fencing(reading, connection, own, apart=apart, many=many) as is_harmless:
            yield is_harmless
        note_remade(reading.effects, connection)
    finally:
        if reading.defines:
            definitions.changed(connection)


def _choose_fencing(
    reading: Reading, connection: Any, own: str, *, apart: bool, many: bool
) -> AbstractContextManager[bool | None]:
    """Choose when to fence, and what is put around the statement."""
    cache = current_cache(connection.alias)
    if not reading.all_effects or not cache.tables:
        return nullcontext(True)
    find = partial(affected_guards, reading.all_effects, connection, own)
    if (connection.needs_rollback and not apart) or (reading.head and is_aborted(connection)):
        # Django or PostgreSQL refuses it, with an error of its own if nothing of ours is sent before.
        return _fencing_after(find, connection)
    locks_state_rows = _may_lock_state_rows(connection)
    unread = cache.catalogue is None and connection.vendor == "sqlite" and is_under_way(connection)
    if unread and not (apart or locks_state_rows):
        # A read now would take a snapshot, and the write could fail with SQLITE_BUSY_SNAPSHOT.
        return _fencing_after(lambda: {} if cache.are_idle(connection) else find(), connection, many=many)
    written = find()
    if not written:
        return nullcontext(True)
    idle = all_idle_since(written, connection.alias)
    if states.table.copy is not unknown_guards.compared_copy:  # it was read again, and may name further guards
        written = find()
        idle = all_idle_since(written, connection.alias)
    if idle is not None:
        return _fencing_if_late(written, idle, connection)
    is_other = connections[connection.alias] is not connection  # than the one on which `atomic` would begin
    apart = apart or is_other or locks_state_rows
    if apart or _is_sent_apart(reading, connection, many=many):
        return _fencing_before_and_after(written, reading, connection)
    if rolls_back_if_marked(connection):
        return _fencing_after(lambda: written, connection, many=many)
    return _fencing_together(written, reading, connection, many=many)


def _may_lock_state_rows(connection: Any) -> bool:
    """Whether a statement may lock the state rows in a file that SQLite has attached, also in doubt."""
    if connection.vendor != "sqlite" or connection.connection is None:
        return False
    if states.table.is_locked_by(connection.alias):
        return False
    try:
        return any(name not in ("main", "temp") for _, name, _ in fetch_uncounted(connection, "PRAGMA database_list"))
    except Error:
        return True


def _is_sent_apart(reading: Reading, connection: Any, *, many: bool) -> bool:
    """Whether no transaction can be put around the statement, or it may end the open one."""
    vendor = connection.vendor
    stays_in = reading.head in _STAYS_IN.get(vendor, _WRITES)
    if rolls_back_if_marked(connection):  # nothing is put around it
        return not stays_in and vendor != "sqlite"
    return not stays_in or (many and connection.get_autocommit() and not is_under_way(connection))


@contextmanager
def _fencing_after(find: Callable[[], dict[Guard, Cause]], connection: Any, *, many: bool = False) -> Iterator[None]:
    """Fence after the statement, and after an error if rows stay. A refused fence marks the transaction for rollback.

    ``find`` returns the guards, and is called after the statement.
    """
    before, stays = rows_changed(connection), True
    try:
        yield
    except BaseException as error:
        # An exception of another kind may have come after the statement, as by a signal.
        stays = _may_leave_rows(connection, before, many=many or not isinstance(error, Error))
        raise
    finally:
        if stays:
            fence_after(find(), connection)


@contextmanager
def _fencing_if_late(written: dict[Guard, Cause], idle: dict[Guard, float], connection: Any) -> Iterator[None]:
    """Fence idle guards only if a filter may be built by the end of the statement, or by the COMMIT."""
    try:
        yield
    finally:
        if not all(is_in_time(guard, since) for guard, since in idle.items()):
            fence_after(written, connection)
        else:
            fencing.fence_at_commit(reasons_for(written), connection)


@contextmanager
def _fencing_before_and_after(written: dict[Guard, Cause], reading: Reading, connection: Any) -> Iterator[None]:
    """Fence before the statement and after it: a filter may be built between the first fence and the statement."""
    _fence(written, connection)
    try:
        yield
    finally:
        # In an atomic block PostgreSQL lets no single statement commit, not even a CALL.
        stays = connection.vendor == "postgresql" and bool(reading.head) and rolls_back_if_marked(connection)
        fence_after(written, connection, committed=not stays)


@contextmanager
def _fencing_together(written: dict[Guard, Cause], reading: Reading, connection: Any, *, many: bool) -> Iterator[None]:
    """Put the statement and the fence into one transaction; after an error the rows that stay are fenced too."""
    before, failure = rows_changed(connection), None
    try:
        with together(connection, alone=reading.head not in _DRIVER_BEGINS):
            try:
                yield
            except BaseException as error:
                if not _may_leave_rows(connection, before, many=many):
                    raise
                failure = error  # without us, the rows before the error would be kept: so they are fenced and kept
            _fence(written, connection)
    except Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure


def rows_changed(connection: Any) -> int:
    """Return how many rows this connection has changed, as SQLite counts them; zero elsewhere."""
    if connection.vendor != "sqlite" or connection.connection is None:
        return 0
    try:
        return int(connection.connection.total_changes)
    except connection.Database.Error:
        return -1  # closed


def _may_leave_rows(connection: Any, before: int, *, many: bool) -> bool:
    """Whether rows of a failed statement may stay; ``before``: what :func:`rows_changed` returned before it.

    SQLite keeps the rows before the error for OR FAIL, ON CONFLICT FAIL and RAISE(FAIL), and counts them.
    """
    if connection.vendor == "sqlite":
        return rows_changed(connection) != before
    return many and may_go_on(connection)


def _fence(written: dict[Guard, Cause], connection: Any) -> None:
    due: dict[Guard, str] = {}
    for guard, reason in reasons_for(written).items():
        # The caller knows the rows of the statement itself, and no others.
        is_known = written[guard].table and not written[guard].is_active
        if not (is_known and adding.is_left_to_block(guard, connection.alias, reason)):
            due[guard] = reason
    for guard in fencing.fence(due, connection.alias):
        _log.warning(
            "bloomguard cannot find out new keys: %s. Its guards are disabled; run rebuild_filter after it", due[guard]
        )
    fencing.fence_at_commit(due, connection)


def fence_after(written: dict[Guard, Cause], connection: Any, *, committed: bool = False) -> None:
    """Fence for a statement that is over; ``committed``: it may be, whatever Django says."""
    with catching_up(written, connection, committed=committed):
        _fence(written, connection)


def reasons_for(written: dict[Guard, Cause]) -> dict[Guard, str]:
    """Return why each guard is fenced, for the log and its state row."""
    site = _site() if written else ""
    return {guard: _reason(cause, site) for guard, cause in written.items()}


def _reason(cause: Cause, site: str) -> str:
    if not cause.table:
        return f"a statement that may have written anything was sent at {site}"
    if cause.is_direct:
        return f"raw SQL wrote to {cause.table} at {site}"
    return f"a view, partition, trigger or foreign key may have written to {cause.table} for the statement at {site}"


#: Modules that send the statements of a migration, some of them after its last operation; the migration's name there.
_MIGRATIONS = {"django.db.migrations.migration": "self", "django.db.migrations.executor": "migration"}


def is_t_string(sql: object) -> bool:
    """Return whether it is a t-string of Python 3.14, which psycopg 3.3 takes as a statement."""
    return type(sql).__module__ == "string.templatelib"


def _site() -> str:
    """Return the file and line that sent the statement: by the innermost frame that is no library's.

    Of an operation of a migration, which has no line, it is the migration's file.
    """
    frame = outermost = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (migration := frame.f_locals.get(_MIGRATIONS.get(module, ""))) is not None:
            found = sys.modules.get(type(migration).__module__)
            return getattr(found, "__file__", None) or f"the migration {migration}"
        is_library = module.partition(".")[0] in ("django", "bloomguard", "contextlib", "functools", "asgiref")
        # What takes a cursor, or a connection, and a statement only passes it on: the driver, or django-cachalot.
        # By their classes: a look into the caller's own object, as `request.user`, may load it, or raise anything.
        sender, sql = (frame.f_locals.get(name) for name in (*frame.f_code.co_varnames, "", "")[:2])
        is_sql = issubclass(type(sql), (str, bytes)) or hasattr(type(sql), "as_string") or is_t_string(sql)
        is_sender = hasattr(type(sender), "execute") and (hasattr(sender, "fetchone") or hasattr(sender, "cursor"))
        if not (is_library or (is_sql and is_sender)):  # a management command can `execute`, too
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        outermost, frame = frame, frame.f_back  # type: ignore[assignment]
    return f"{outermost.f_code.co_filename}:{outermost.f_lineno}"


# -- writes in other apps' `ready()`: they fence the guards of their tables that are declared later

#: Database alias, effects of the statement, and the guards that were registered then.
_early: list[tuple[str, frozenset[Effect], frozenset[Guard]]] = []


def complete_early() -> None:
    """Fence the guards whose tables were written before; call it when all ``guards.py`` are imported."""
    unknown_guards.begin()
    if _early and _fence_early not in registry.listeners:
        registry.listeners.append(_fence_early)  # for guards that are declared elsewhere, later
    _fence_early()


def record_early(effects: frozenset[Effect], alias: str) -> None:
    """Record a statement with these effects, sent before :func:`complete_early`."""
    write = (alias, effects, frozenset(registry))
    if effects and write not in _early:
        _early.append(write)


def _fence_early() -> None:
    if not _early:
        return
    reasons: dict[str, dict[Guard, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Django warns of queries in ready()
        unknown_guards.read_once()
        for alias, effects, known in list(_early):
            for guard, cause in affected_guards(effects, connections[alias]).items():
                if guard not in known:
                    reason = f"{cause.table} was written before the guard was registered"
                    reasons.setdefault(alias, {})[guard] = reason
        for alias, new in reasons.items():  # waits once for all guards
            try:
                fencing.fence(new, alias)
            except (StoreError, ConfigurationError, DatabaseError):
                fencing.fence_soon(new)
    _early[:] = [(alias, effects, known | set(registry)) for alias, effects, known in _early]
