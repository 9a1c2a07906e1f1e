"""The open transaction of a connection, as its driver reports it: Django's own, or one begun by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from django.db import DatabaseError, Error, transaction

from ..state.connection import (
    NO_TRANSACTION,
    fetch_uncounted,
    has_begun,
    has_own_transaction,
    is_aborted,
    mariadb_has_transaction,
)

_NAME = "bloomguard_write"
_numbers = itertools.count()


def is_over(connection: Any) -> bool:
    """Whether the driver reports that no transaction is open."""
    raw = connection.connection
    if raw is None:
        return True
    if connection.vendor == "sqlite":
        return not raw.in_transaction
    if connection.vendor == "mysql":  # after DDL, for example, which commits
        return mariadb_has_transaction(connection) is False
    return connection.vendor == "postgresql" and raw.info.transaction_status in NO_TRANSACTION


def is_under_way(connection: Any) -> bool:
    """Whether the driver has begun a transaction; for other databases than SQLite and PostgreSQL, by Django's state.

    An ``atomic`` block may be open before the driver sends its BEGIN.
    """
    if connection.vendor in ("sqlite", "postgresql"):
        return not is_over(connection)
    return has_begun(connection)


#: The locks for which a reader or a writer of another connection waits.
_LOCKS = """
    SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND relation = to_regclass(%s)
    AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""


def locks_table(connection: Any, table: str) -> bool:
    """Return whether the open transaction on PostgreSQL has locked the whole table, as by TRUNCATE or LOCK TABLE."""
    if connection.vendor != "postgresql" or not is_under_way(connection) or is_aborted(connection):
        return False
    with connection.wrap_database_errors:
        return bool(fetch_uncounted(connection, _LOCKS, (connection.ops.quote_name(table),)))


def together(connection: Any, *, undo: bool = False, alone: bool = False) -> AbstractContextManager[None]:
    """Commit what the block does as one, with the open transaction or in one of its own.

    After a database error the transaction is left to the project, as Django leaves it. After any other error, such as
    a refused write or Ctrl-C, the block's writes must not be committed: an ``atomic`` block is marked for rollback; in
    a transaction that the project began by hand, a savepoint is rolled back. With ``undo`` any error rolls back what
    the block did, and nothing else. ``alone``: Python's SQLite driver begins no transaction for the block's statement,
    not even under ``set_autocommit(False)``; so one that is begun here is ended here.
    """
    connection.ensure_connection()
    connection.validate_no_broken_transaction()  # an outermost `atomic` block would forget that it is broken
    if connection.in_atomic_block and not undo:
        return _Within(connection)
    if not has_own_transaction(connection):
        return transaction.atomic(using=connection.alias, savepoint=undo)
    return _savepoint(connection, undo, alone)


class _Within:
    """A block in an open ``atomic`` block. A class, as a generator would add two microseconds to each INSERT."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, Error):  # database errors are left to Django's ORM
            self._connection.set_rollback(True)


@contextmanager
def _savepoint(connection: Any, undo: bool, alone: bool) -> Iterator[None]:
    """A savepoint in a transaction that the project began by hand, or would begin with the block's statement."""
    begins = connection.vendor == "sqlite" and is_over(connection)
    if begins:
        _execute(connection, "BEGIN")  # as Python's driver does before an INSERT; else the RELEASE would commit
    # MySQL and MariaDB drop a savepoint when another one gets its name, also if the second is inside the first.
    name = f"{_NAME}_{next(_numbers)}" if connection.vendor == "mysql" else _NAME
    _execute(connection, f"SAVEPOINT {name}")
    try:
        yield
    except BaseException as error:
        with suppress(DatabaseError):
            if undo or not isinstance(error, Error):
                _execute(connection, f"ROLLBACK TO SAVEPOINT {name}")
            if not is_over(connection) and not is_aborted(connection):
                _execute(connection, f"RELEASE SAVEPOINT {name}")
            if begins and alone and not is_over(connection):
                _execute(connection, "ROLLBACK")
        raise
    _execute(connection, f"RELEASE SAVEPOINT {name}")
    if begins and alone:
        try:
            _execute(connection, "COMMIT")
        except DatabaseError:
            _execute(connection, "ROLLBACK")
            raise


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
