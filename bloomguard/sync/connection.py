"""The one database connection that reads and changes state rows: a process's own, always in autocommit.

A request or a command may be inside a transaction, whose snapshot can be older than the row's last change; and what
it writes is seen by nobody until it commits. So state rows are never touched through the caller's connection.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

from django.core import mail
from django.db import DatabaseError, InterfaceError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from ..forks import after_fork
from ..models import GuardState

_IN_ERROR = 3  # libpq's PQTRANS_INERROR


def is_locked(error: Exception) -> bool:
    """Whether SQLite has waited for a writer in vain: to try at once again would wait as long again."""
    return "locked" in str(error)


def has_own_transaction(connection: Any) -> bool:
    """Whether a transaction is open that Django did not begin: after ``set_autocommit(False)``, or a BEGIN by hand."""
    raw = connection.connection
    if raw is None or connection.in_atomic_block:
        return False
    if not connection.get_autocommit():
        return True
    if connection.vendor == "sqlite":
        return bool(raw.in_transaction)
    return connection.vendor == "postgresql" and bool(raw.info.transaction_status)


def is_aborted(connection: Any) -> bool:
    """Whether PostgreSQL refuses every statement of the transaction until its ROLLBACK."""
    raw = connection.connection
    return connection.vendor == "postgresql" and raw is not None and raw.info.transaction_status == _IN_ERROR


class StateConnection:
    """Runs one statement at a time for all threads of the process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._connection: BaseDatabaseWrapper | None = None
        self._abandoned: list[BaseDatabaseWrapper] = []
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        if self._connection is not None:
            # The socket is the parent's: closing it here would end the parent's session, so it is only put aside.
            self._abandoned.append(self._connection)
            self._connection = None

    @property
    def alias(self) -> str:
        """The database that holds the state rows."""
        return router.db_for_write(GuardState)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        """The rows and the row count of one statement, which is committed when this returns.

        A connection that went away while it lay idle is opened again, once. Raises :class:`DatabaseError`.
        """
        with self._lock:
            reused = self._connection is not None
            try:
                return self._run(sql, parameters)
            except (DatabaseError, InterfaceError) as error:
                if is_locked(error):
                    raise
                self.close()
                if not reused:
                    raise
                return self._run(sql, parameters)
            finally:
                self._let_go()

    def _let_go(self) -> None:
        if hasattr(mail, "outbox"):
            # Django's test runner is at work: a connection left open would keep it from dropping the database.
            self.close()

    def _run(self, sql: str, parameters: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        with self._open().cursor() as cursor:
            cursor.execute(sql, parameters)
            return (cursor.fetchall() if cursor.description else []), cursor.rowcount

    def _open(self) -> BaseDatabaseWrapper:
        configured = connections[self.alias].settings_dict
        current = self._connection
        if current is not None and current.settings_dict["NAME"] != configured["NAME"]:
            self.close()
            current = None
        if current is None:
            current = connections.create_connection(self.alias)
            current.settings_dict = copy.deepcopy(configured)
            current.settings_dict["AUTOCOMMIT"] = True
            current.settings_dict["OPTIONS"].pop("pool", None)
            current.inc_thread_sharing()
            self._connection = current
        return current

    def quote(self, name: str) -> str:
        """``name`` as the database quotes identifiers."""
        return connections[self.alias].ops.quote_name(name)

    def has_table(self, name: str) -> bool:
        """Whether the database has the table; raises :class:`DatabaseError`."""
        with self._lock:
            try:
                return name in self._open().introspection.table_names()
            finally:
                self._let_go()

    def adapt_datetime(self, value: Any) -> Any:
        """A point in time as the database takes it for a parameter."""
        return connections[self.alias].ops.adapt_datetimefield_value(value)

    def close(self) -> None:
        """Close the connection; the next statement opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
