"""The open transaction of a connection, as its driver reports it: Django's own, or one begun by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DatabaseError, Error, connections, transaction

from ..state.connection import has_own_transaction, is_aborted, mariadb_has_transaction

_NAME = "bloomguard_write"
_numbers = itertools.count()


def has_begun(connection: Any) -> bool:
    """Whether a transaction is open, begun by Django or by hand."""
    return connection.in_atomic_block or has_own_transaction(connection)


def is_over(connection: Any) -> bool:
    """Whether the driver reports that no transaction is open."""
    raw = connection.connection
    if raw is None:
        return True
    if connection.vendor == "sqlite":
        return not raw.in_transaction
    if connection.vendor == "mysql":  # after DDL, for example, which commits
        return mariadb_has_transaction(connection) is False
    return connection.vendor == "postgresql" and not raw.info.transaction_status


def is_under_way(connection: Any) -> bool:
    """Whether the driver has begun a transaction; for other databases than SQLite and PostgreSQL, by Django's state.

    An ``atomic`` block may be open before the driver sends its BEGIN.
    """
    if connection.vendor in ("sqlite", "postgresql"):
        return not is_over(connection)
    return has_begun(connection)


@contextmanager
def together(using: str, *, undo: bool = False) -> Iterator[None]:
    """Commit what the block does as one, with the open transaction or in one of its own.

    After a database error the transaction is left to the project, as Django leaves it. After any other error, such as
    a refused write or Ctrl-C, the block's writes must not be committed: an ``atomic`` block is marked for rollback; in
    a transaction that the project began by hand, a savepoint is rolled back. With ``undo`` any error rolls back what
    the block did, and nothing else.
    """
    connection: Any = connections[using]
    connection.ensure_connection()
    connection.validate_no_broken_transaction()  # an outermost `atomic` block would forget that it is broken
    if connection.in_atomic_block and not undo:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Error):  # database errors are left to Django's ORM
                transaction.set_rollback(True, using=using)
            raise
        return
    if not has_own_transaction(connection):
        with transaction.atomic(using=using, savepoint=undo):
            yield
        return
    if connection.vendor == "sqlite" and is_over(connection):
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
        raise
    _execute(connection, f"RELEASE SAVEPOINT {name}")


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
