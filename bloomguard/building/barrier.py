"""Waits until every transaction that was writing a guard's tables has ended.

A writer that began before a generation was announced knows nothing of it, and its rows show only when it commits. The
scan of a rebuild has to begin after the last of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from django.db import connections, transaction

from ..exceptions import RebuildError

_POLL_SECONDS = 0.05
#: How long a rebuild waits for others' transactions.
MOST_SECONDS = 3_600.0


def wait_for_writers(using: str, tables: Collection[str], sleep: Callable[[float], None] = time.sleep) -> None:
    """Return once no transaction of before the call holds a write on one of ``tables`` (unquoted) any more.

    Raises :class:`RebuildError` if that takes too long.

    PostgreSQL tells who holds the lock that every write takes. Elsewhere taking a write lock oneself, for a moment,
    comes after everybody who had it: SQLite has one for the whole file, MySQL one a table.
    """
    connection = connections[using]
    if connection.vendor == "postgresql":
        holders = _postgresql_writers(using, tables)
        polls = 0
        while holders:
            if polls * _POLL_SECONDS >= MOST_SECONDS:
                raise RebuildError(
                    f"a transaction that wrote {', '.join(sorted(tables))} has been open for {MOST_SECONDS / 3600:g} "
                    "hours; end it, then run rebuild_filter again"
                )
            polls += 1
            sleep(_POLL_SECONDS)
            holders &= _postgresql_writers(using, tables)
    elif connection.vendor == "sqlite":
        _sqlite_turn(using)
    elif connection.vendor == "mysql":
        locks = ", ".join(f"{connection.ops.quote_name(table)} WRITE" for table in sorted(tables))
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLES {locks}")
            cursor.execute("UNLOCK TABLES")


def _postgresql_writers(using: str, tables: Collection[str]) -> set[str]:
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted "
            "AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            # A prepared transaction has no pid.
            "AND relation = ANY(%s::regclass[]) AND pid IS DISTINCT FROM pg_backend_pid()",
            [[connection.ops.quote_name(table) for table in sorted(tables)]],
        )
        return {row[0] for row in cursor.fetchall()}


def _sqlite_turn(using: str) -> None:
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.in_atomic_block:
            raise transaction.TransactionManagementError("a barrier inside a transaction would wait for itself")
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("COMMIT")
