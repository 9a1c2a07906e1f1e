"""The one database connection that reads and changes state rows: a process's own, always in autocommit.

A request or a command may be inside a transaction, whose snapshot can be older than the row's last change; and what
it writes is seen by nobody until it commits. So state rows are never touched through the caller's connection.

The connection proves itself at each use: to the same SQLite file as Django opens now, and to a PostgreSQL server that
is no standby. Along with the rows it reads which database this is, so that a copy is never taken for the original.
Nothing waits for it without a limit: whoever holds a request, or a write, is told that it failed.
"""

from __future__ import annotations

import copy
import logging
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
from ..places import boot_id, file_id

logger = logging.getLogger("bloomguard")

_IN_ERROR = 3  # libpq's PQTRANS_INERROR
#: Insufficient privilege, undefined function, feature not supported, wrong state: of functions that a service left out.
_NOT_TOLD = {"42501", "42883", "0A000", "55000"}

#: Whether PostgreSQL has written a COMMIT to its disk before it says so.
_IS_DURABLE = "current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on'"


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


def is_durable(connection: Any) -> bool:
    """Whether what the open transaction of ``connection`` commits now will be there after a crash of the server."""
    if connection.vendor == "sqlite":
        return True  # with its host; another boot of that is another database
    if connection.vendor != "postgresql":
        return False
    try:
        # Past Django's cursor: this is no query of the project's, to be counted or logged as one.
        with connection.connection.cursor() as cursor:
            cursor.execute(f"SELECT {_IS_DURABLE}")
            return bool(cursor.fetchone()[0])
    except connection.Database.Error:
        return False


def identity_of_file(connection: BaseDatabaseWrapper) -> str:
    """Names the SQLite database that Django would open now, and this boot of its host."""
    found = _file_of(connection)
    # What lies in memory is a copy of its own in each forked child.
    return f"sqlite:{':'.join(map(str, found))}@{boot_id()}" if found else f"sqlite:memory@{os.getpid()}"


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
        self._file: tuple[int, str] | None = None
        self._told_less = False  # the server keeps some of what tells it from a copy to itself
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
            if current.vendor == "postgresql":
                options.setdefault("tcp_user_timeout", int(1_000 * CHANGE_SECONDS))
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

    @property
    def proofs(self) -> str:
        """SQL expressions: is the server a standby, which database is this, and can it not lose a COMMIT unnoticed?

        The timeline is another after each promotion and each recovery to a point in time. The table's own number is
        another where a dump was restored.
        """
        vendor = connections[self.alias].vendor
        if vendor != "postgresql":
            return f"{self.is_standby} AS is_standby, '' AS here, {int(vendor == 'sqlite')} AS is_durable"
        table = self.quote(GuardState._meta.db_table).replace("'", "''")
        number = "(SELECT oid FROM pg_database WHERE datname = current_database())::text"
        here = f"{number} || ':' || '{table}'::regclass::oid::text"
        server = (
            "(SELECT system_identifier FROM pg_control_system())::text || ':' || "
            # The control file has the timeline of the last checkpoint, which may be the one before.
            "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
        )
        if self._told_less:
            server = "'?'"
        return (
            f"{self.is_standby} AS is_standby, "
            f"CASE WHEN pg_is_in_recovery() THEN '' ELSE 'postgresql:' || {server} || ':' || {here} END AS here, "
            f"({_IS_DURABLE}) AND {not self._told_less} AS is_durable"
        )

    def tells_less(self, error: Exception) -> bool:
        """Whether :attr:`proofs` were too much to ask of the server, and are fewer from now on."""
        refused = getattr(error.__cause__, "sqlstate", None) in _NOT_TOLD
        if refused and not self._told_less:
            self._told_less = True
            logger.warning(
                "bloomguard cannot tell a recovered database from the one before, so it never forgets a key: %s", error
            )
            return True
        return False

    @property
    def here(self) -> str:
        """Which database this is, where its server does not say so itself."""
        connection = connections[self.alias]
        return identity_of_file(connection) if connection.vendor == "sqlite" else ""

    def quote(self, name: str) -> str:
        """``name`` as the database quotes identifiers."""
        return connections[self.alias].ops.quote_name(name)

    def has_table(self, name: str) -> bool:
        """Whether the database has the table; raises :class:`DatabaseError`."""
        with self._turn(READ_SECONDS):
            try:
                connection = self._open()
                connection.ensure_connection()
                with _cut_off(connection, READ_SECONDS):
                    return name in connection.introspection.table_names()
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


def _file_of(connection: BaseDatabaseWrapper) -> tuple[int, str] | None:
    """Which file Django would open for a SQLite database now: another one may have taken its place and name."""
    if connection.vendor != "sqlite":
        return None
    try:
        name = connection.settings_dict["NAME"]
        return os.stat(name).st_dev, file_id(name)
    except (OSError, TypeError, ValueError):  # in memory, or a URI
        return None
