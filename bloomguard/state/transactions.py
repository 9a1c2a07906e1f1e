"""The open transaction of a connection of the project, as its driver reports it: Django's own, or one begun by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any

from django.db import DatabaseError, Error, transaction

from .connection import IS_DURABLE, fetch_uncounted

#: What libpq reports without a transaction, as PQTRANS_IDLE, or as PQTRANS_UNKNOWN of a lost connection; and in error.
_NO_TRANSACTION, _IN_ERROR = (0, 4), 3
#: What MySQL takes in a transaction alone, and outside of one alone.
_OPEN = "SAVEPOINT bloomguard_open", "RELEASE SAVEPOINT bloomguard_open"
_NOT_OPEN = ("SET @@transaction_isolation = @@session.transaction_isolation",)
#: Whether one is open, by the error's number: there is no such savepoint, and no level can be set.
_ANSWERS = {1305: False, 1568: True}
_NAME = "bloomguard_write"
_numbers = itertools.count()


def has_begun(connection: Any) -> bool:
    """Return whether a transaction is open, begun by Django or by hand."""
    return connection.in_atomic_block or has_own_transaction(connection)


def has_own_transaction(connection: Any) -> bool:
    """Return whether a transaction is open outside ``atomic``: by ``set_autocommit(False)`` or a BEGIN statement.

    Or by ``SET autocommit = 0`` on MySQL and MariaDB, as the next statement begins one; the driver knows that.
    """
    if connection.connection is None or connection.in_atomic_block:
        return False
    if not connection.get_autocommit():
        return True
    is_on = getattr(connection.connection, "get_autocommit", None)
    return (is_on is not None and not is_on()) or bool(_reported(connection))


def rolls_back_if_marked(connection: Any) -> bool:
    """Return whether an ``atomic`` block is open that commits nothing once it is marked for rollback.

    Under ``set_autocommit(False)`` the outermost block ends nothing, and Django's ``commit()`` ignores its mark.
    """
    return connection.in_atomic_block and connection.commit_on_exit  # type: ignore[no-any-return]


def is_over(connection: Any) -> bool:
    """Return whether the driver reports that no transaction is open."""
    return _reported(connection) is False


def is_under_way(connection: Any) -> bool:
    """Return whether the driver has begun a transaction; on other databases than SQLite and PostgreSQL, by Django.

    An ``atomic`` block may be open before the driver sends its BEGIN.
    """
    if connection.vendor in ("sqlite", "postgresql"):
        return not is_over(connection)
    return has_begun(connection)


def _reported(connection: Any) -> bool | None:
    """Return whether an open transaction is reported; ``None`` if MySQL or MariaDB does not answer."""
    raw, vendor = connection.connection, connection.vendor
    if raw is None:
        return False
    if vendor == "sqlite":
        return bool(raw.in_transaction)
    if vendor == "postgresql":
        return raw.info.transaction_status not in _NO_TRANSACTION
    if vendor != "mysql":
        return None
    try:
        if connection.mysql_is_mariadb:
            return bool(_ask(raw, "SELECT @@in_transaction")[0][0])
        # Under autocommit MySQL forgets a savepoint at once. The SET changes nothing, but for a level that an earlier
        # one has set for the next transaction.
        for sql in _OPEN if connection.autocommit else _NOT_OPEN:
            _ask(raw, sql)
        return bool(connection.autocommit)
    except connection.Database.Error as error:
        return _ANSWERS.get(error.args[0]) if error.args else None


def _ask(raw: Any, sql: str) -> Any:  # a quicker :func:`fetch_uncounted`
    with closing(raw.cursor()) as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else ()


def is_aborted(connection: Any) -> bool:
    """Return whether PostgreSQL refuses all statements until a ROLLBACK."""
    raw = connection.connection
    return connection.vendor == "postgresql" and raw is not None and raw.info.transaction_status == _IN_ERROR


def may_go_on(connection: Any) -> bool:
    """Return whether the open transaction may still be committed after a database error."""
    return not (is_over(connection) or is_aborted(connection))


def is_durable(connection: Any) -> bool:
    """Return whether the open transaction of ``connection``, if it commits now, survives a crash of the server.

    Raises :class:`DatabaseError`: on PostgreSQL the COMMIT would then save nothing, and report no error.
    """
    if connection.vendor == "sqlite":
        return True  # only a crash of the host loses it, and the next boot changes the database's identity
    if connection.vendor != "postgresql":
        return False
    return bool(fetch_uncounted(connection, f"SELECT {IS_DURABLE}")[0][0])


#: The locks for which a reader or a writer of another connection waits, and those of a transaction with locked rows.
_WHOLE = ["ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"]
ROW_LOCKS = ["RowShareLock", "RowExclusiveLock"]
_LOCKS = """
    SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND relation = to_regclass(%s)
    AND mode = ANY (%s)"""


def locks_table(connection: Any, table: str, modes: Sequence[str] = _WHOLE) -> bool:
    """Return whether the open transaction on PostgreSQL has a lock of these modes on the table.

    By default, one on the whole table, as by TRUNCATE or LOCK TABLE.
    """
    if connection.vendor != "postgresql" or not is_under_way(connection) or is_aborted(connection):
        return False
    return bool(fetch_uncounted(connection, _LOCKS, (connection.ops.quote_name(table), list(modes))))


def lock_file(connection: Any, table: str) -> None:
    """Take SQLite's write lock before the first read: a transaction that has read may fail if it has to wait for it."""
    with connection.cursor():  # as for Django's statement: a closed connection has an error of its own
        connection.validate_no_broken_transaction()
    fetch_uncounted(connection, f"DELETE FROM {connection.ops.quote_name(table)} WHERE 0")  # noqa: S608


def together(connection: Any, *, undo: bool = False, alone: bool = False) -> AbstractContextManager[None]:
    """Commit what the block does as one, with the open transaction or in one of its own.

    After a database error the transaction is left to the project, as Django leaves it. After any other error, such as
    a refused write or Ctrl-C, the block's writes must not be committed: an ``atomic`` block is marked for rollback; in
    a transaction that the project began by hand, a savepoint is rolled back. With ``undo`` any error rolls back what
    the block did, and nothing else. ``alone``: Python's SQLite driver begins no transaction for the block's statement,
    so one that is begun here is ended here.
    """
    if not undo and connection.in_atomic_block and connection.commit_on_exit:  # as `rolls_back_if_marked`
        return _Joined(connection)
    connection.validate_no_broken_transaction()  # an outermost `atomic` block would forget that it is broken
    connection.ensure_connection()
    if undo if connection.in_atomic_block else not has_own_transaction(connection):
        return transaction.atomic(using=connection.alias, savepoint=undo)
    return _savepoint(connection, undo, alone)


class _Joined:
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
            if may_go_on(connection):
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
