"""The one database connection that reads and changes state rows: a process's own, always in autocommit.

A request or a command may be inside a transaction, whose snapshot can be older than the row's last change; and what
it writes is seen by nobody until it commits. So state rows are never touched through the caller's connection.

The connection proves itself at each use: to the same SQLite file as Django opens now, and to a PostgreSQL server that
is no standby. Nothing waits for it without a limit: whoever holds a request, or a write, is told that it failed.
"""

from __future__ import annotations

import copy
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.core import mail
from django.db import DatabaseError, InterfaceError, OperationalError, connections, router
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


#: How long, in seconds, a connection may take to be made, and a read and a change of the rows may take.
CONNECT_SECONDS, READ_SECONDS, CHANGE_SECONDS = 2, 2.0, 10.0
#: How long a read waits for a writer of SQLite.
READ_PATIENCE = 0.25
#: A connection that was not used for so long is made anew: a firewall on the way may have forgotten it.
IDLE_SECONDS = 30.0


class StateConnection:
    """Runs one statement at a time for all threads of the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._used_at = float("-inf")
        self._file: tuple[int, int] | None = None
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

        A connection that went away while it lay idle is opened again, once. Raises :class:`DatabaseError`, also if the
        server has not answered in time, or if other threads have kept the connection that long.
        """
        seconds = READ_SECONDS if sql.startswith("SELECT") else CHANGE_SECONDS
        with self._turn(seconds):
            reused = self._connection is not None
            try:
                return self._run(sql, parameters, seconds)
            except (DatabaseError, InterfaceError) as error:
                if is_locked(error):
                    raise
                self.close()
                if not reused or isinstance(error, TimedOut):
                    raise
                return self._run(sql, parameters, seconds)
            finally:
                self._let_go()

    @contextmanager
    def _turn(self, seconds: float) -> Iterator[None]:
        """Keep other threads out; raises :class:`OperationalError` if they keep us out."""
        if not self._lock.acquire(timeout=seconds + CONNECT_SECONDS):
            raise OperationalError("another thread has kept the connection to the state rows for too long")
        try:
            yield
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        if hasattr(mail, "outbox"):
            # Django's test runner is at work: a connection left open would keep it from dropping the database.
            self.close()

    def _run(self, sql: str, parameters: Sequence[Any], seconds: float) -> tuple[list[tuple[Any, ...]], int]:
        connection = self._open()
        connection.ensure_connection()
        if connection.vendor == "sqlite":
            # A reader waits for nobody: the writer may be the caller's own transaction, which waits for the reader.
            patience = (
                READ_PATIENCE if seconds == READ_SECONDS else connection.settings_dict["OPTIONS"].get("timeout", 5)
            )
            with connection.wrap_database_errors:
                connection.connection.execute(f"PRAGMA busy_timeout = {int(1_000 * patience)}")
        with _cut_off(connection, seconds), connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            found = (cursor.fetchall() if cursor.description else []), cursor.rowcount
        self._used_at = self.clock()
        return found

    def _open(self) -> BaseDatabaseWrapper:
        configured = connections[self.alias].settings_dict
        current = self._connection
        if current is not None and (
            current.settings_dict["NAME"] != configured["NAME"]
            or self.clock() - self._used_at > IDLE_SECONDS
            or self._file != _file_of(current)
        ):
            self.close()
            current = None
        if current is None:
            current = connections.create_connection(self.alias)
            current.is_own = True  # type: ignore[attr-defined]  # what it sends concerns no guard's rows
            current.settings_dict = copy.deepcopy(configured)
            current.settings_dict["AUTOCOMMIT"] = True
            options = current.settings_dict["OPTIONS"]
            options.pop("pool", None)
            if current.vendor in ("postgresql", "mysql"):
                options.setdefault("connect_timeout", CONNECT_SECONDS)
            current.inc_thread_sharing()
            self._connection = current
            self._used_at = self.clock()
            # Before the file is opened: one that takes its place meanwhile is seen at the next use.
            self._file = _file_of(current)
        return current

    @property
    def is_standby(self) -> str:
        """An SQL expression: is the server a standby, whose rows may be old?"""
        return "pg_is_in_recovery()" if connections[self.alias].vendor == "postgresql" else "0"

    def quote(self, name: str) -> str:
        """``name`` as the database quotes identifiers."""
        return connections[self.alias].ops.quote_name(name)

    def has_table(self, name: str) -> bool:
        """Whether the database has the table; raises :class:`DatabaseError`."""
        with self._turn(READ_SECONDS):
            try:
                return name in self._open().introspection.table_names()
            finally:
                self._let_go()

    def adapt_datetime(self, value: Any) -> Any:
        """A point in time as the database takes it for a parameter."""
        return connections[self.alias].ops.adapt_datetimefield_value(value)

    def close(self) -> None:
        """Close the connection; the next statement opens another."""
        with self._turn(READ_SECONDS):
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


class TimedOut(OperationalError):
    """The server has not answered in time, and the connection was cut."""


@contextmanager
def _cut_off(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """In this block the connection is cut after ``seconds``, so that whoever waits for its server gets an error.

    No driver has a limit for one statement, and the server's own does not help where the server is not reached.
    """
    raw: Any = connection.connection
    if not hasattr(raw, "fileno"):  # SQLite, which has its own limit
        yield
        return
    is_cut = threading.Event()

    def cut() -> None:
        is_cut.set()
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as link:
            link.shutdown(socket.SHUT_RDWR)

    with connection.wrap_database_errors:
        number = raw.fileno()
    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except DatabaseError as error:
        if is_cut.is_set():
            raise TimedOut(f"the database of the state rows has not answered for {seconds:g} s") from error
        raise
    finally:
        timer.cancel()


def _file_of(connection: BaseDatabaseWrapper) -> tuple[int, int] | None:
    """Which file Django would open for a SQLite database now: another one may have taken its place and name."""
    if connection.vendor != "sqlite":
        return None
    try:
        found = os.stat(connection.settings_dict["NAME"])
    except (OSError, TypeError, ValueError):  # in memory, or a URI
        return None
    return found.st_dev, found.st_ino
