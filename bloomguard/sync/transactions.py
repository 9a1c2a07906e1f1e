"""The transaction that a statement is part of, by what the driver knows of it: Django's own, or one begun by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DatabaseError, Error, connections, transaction

from .connection import has_own_transaction, is_aborted

_NAME = "bloomguard_write"


def has_begun(connection: Any) -> bool:
    """Whether a transaction is open, whoever began it."""
    return connection.in_atomic_block or has_own_transaction(connection)


def is_over(connection: Any) -> bool:
    """Whether the driver knows that no transaction is open."""
    raw = connection.connection
    if raw is None:
        return True
    if connection.vendor == "sqlite":
        return not raw.in_transaction
    return connection.vendor == "postgresql" and not raw.info.transaction_status


def is_under_way(connection: Any) -> bool:
    """Whether the driver has begun a transaction, which Django may ask for before; by Django where no driver tells."""
    if connection.vendor in ("sqlite", "postgresql"):
        return not is_over(connection)
    return has_begun(connection)


@contextmanager
def together(using: str, *, undo: bool = False) -> Iterator[None]:
    """What the block does is committed as one, with the open transaction or by itself.

    An error of the database stays the project's. After any other one, be it a refused write or Ctrl-C, what the block
    wrote must not be committed: an ``atomic`` block is rolled back. A transaction that the project began by hand is not
    begun again: there the block has a savepoint, which is gone back to. With ``undo`` any error undoes what the block
    did, and nothing else.
    """
    connection: Any = connections[using]
    connection.ensure_connection()
    if connection.in_atomic_block and not undo:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Error):  # of the database: Django's ORM marks those as it does without us
                transaction.set_rollback(True, using=using)
            raise
        return
    if not has_own_transaction(connection):
        with transaction.atomic(using=using, savepoint=undo):
            yield
        return
    if is_over(connection) and connection.vendor == "sqlite":
        _execute(connection, "BEGIN")  # before an INSERT Python's driver would; a savepoint alone commits when it ends
    _execute(connection, f"SAVEPOINT {_NAME}")
    try:
        yield
    except BaseException as error:
        with suppress(DatabaseError):
            if undo or not isinstance(error, Error):
                _execute(connection, f"ROLLBACK TO SAVEPOINT {_NAME}")
            if not is_over(connection) and not is_aborted(connection):
                _execute(connection, f"RELEASE SAVEPOINT {_NAME}")
        raise
    _execute(connection, f"RELEASE SAVEPOINT {_NAME}")


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
