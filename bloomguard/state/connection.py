"""The database connection for state rows: one per process, always in autocommit.

The caller's connection may be in a transaction: its snapshot can be older than the row's last change, and others do not
see its writes until it commits.

Each use checks that the connection leads to the SQLite file that Django would open now, or to a server that is no
standby. The identity of the database is read with the rows, so that a copy is never taken for the original.
All waits have a time limit, after which the caller gets an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DEFAULT_DB_ALIAS

from ..models import GuardState
from ..process import after_fork, is_test_run, is_within, notice_fork, own_lock, seconds
from .identity import NUMBER, SERVER, file_of, identity_of_file
from .own_connections import TimedOut, cut_off, limited, new_connection

logger = logging.getLogger("bloomguard")

_PRIVILEGE = "42501"
#: SQLSTATEs if a hosted server lacks a function: insufficient privilege, undefined, not supported, wrong state.
_FUNCTION_REFUSED = {_PRIVILEGE, "42883", "0A000", "55000"}
#: SQLSTATEs of a statement that did nothing, as another one was committed first: where sessions are ``REPEATABLE READ``
#: or ``SERIALIZABLE`` by default, also without a transaction around it. And of a deadlock.
_CONFLICTS = {"40001", "40P01"}
#: SQL: a row if the table is there, or if some schema has it and the session's search_path was changed, which may hide
#: it: by another client of a pooler.
_IS_OR_MAY_BE_THERE = """SELECT 1 FROM pg_class WHERE relname = %s AND (pg_table_is_visible(oid)
    OR EXISTS (SELECT FROM pg_settings WHERE name = 'search_path' AND setting <> reset_val))"""
#: The error numbers of MySQL and MariaDB for a table and for a column that the login may not use.
_DENIED = ((1142,), (1143,))

#: SQL: does PostgreSQL write a COMMIT to its disk before it acknowledges it?
IS_DURABLE = "current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on'"


def fetch_uncounted(connection: Any, sql: str, *parameters: Sequence[Any]) -> Sequence[Any]:
    """Execute ``sql`` and return its rows by the driver's cursor. Raises Django's exceptions.

    Django's cursor would count and log it as a query of the project.
    """
    connection.close_if_health_check_failed()  # as Django's cursor does first
    connection.ensure_connection()
    with connection.wrap_database_errors, closing(connection.connection.cursor()) as cursor:
        cursor.execute(sql, *parameters)
        return cursor.fetchall() if cursor.description else ()


def is_denied(error: Exception) -> bool:
    """Return whether MySQL or MariaDB denied a table or column. They list no table to which the login has no right."""
    return error.__cause__ is not None and error.__cause__.args[:1] in _DENIED


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return PostgreSQL's code of an error of its driver; ``None`` for any other error."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # psycopg 3, psycopg 2


def is_locked(error: Exception) -> bool:
    """Return whether SQLite timed out waiting for a writer; an immediate retry would wait as long again."""
    return "locked" in str(error)


#: Time limits in seconds: to connect, for one read of the rows, for one change.
CONNECT_SECONDS, READ_SECONDS, CHANGE_SECONDS = 2, 2.0, 10.0
#: Seconds that a read waits for a writer of SQLite.
READ_PATIENCE = 0.25
#: Seconds after which an idle connection is replaced: a firewall may have dropped it silently.
IDLE_SECONDS = 30.0


class StateConnection:
    """Runs one statement at a time for all threads of the process."""

    pool = "state"

    def __init__(self, clock: Callable[[], float] = seconds) -> None:
        self.clock = clock
        self._used_at = float("-inf")
        self._file: tuple[int, str] | None = None
        self._hides_identity = False  # the server refuses to show its full identity
        self._lock = own_lock(self, "_lock")
        self._connection: BaseDatabaseWrapper | None = None
        self._abandoned: list[BaseDatabaseWrapper] = []
        #: The project's routers when they were asked, and the alias that they gave.
        self._named: tuple[Any, str] = None, ""
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        if self._connection is not None:
            # The socket is shared with the parent: to close it would end the parent's session. Keep it referenced.
            self._abandoned.append(self._connection)
            self._connection = None

    @property
    def alias(self) -> str:
        """The alias of the database that has the state rows.

        The routers are asked once: they may take a call for a write, and send the user's next reads to the primary.
        While they raise, it is the default one, so that no other statement fails for that.
        """
        try:
            return self.check_alias()
        except OperationalError:
            return DEFAULT_DB_ALIAS

    def check_alias(self) -> str:
        """Return :attr:`alias`. Raises :class:`OperationalError` if a router does: no state rows can be read then."""
        try:
            routers, alias = self._named
            if routers is not router.routers:
                alias = router.db_for_write(GuardState)
                connections[alias]  # raises if `DATABASES` does not have it
                self._named = router.routers, alias
            return alias
        except Exception as error:
            raise OperationalError(f"a router does not name the database of the state rows: {error!r}") from error

    @property
    def is_temporary(self) -> bool:
        """Whether the database may be dropped while this process runs, and its requests are not those of the site."""
        return is_test_run()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], int]:
        """Execute and commit one statement; return its rows and its row count.

        A reused connection that fails is opened again, once. A statement that another one was in the way of is sent
        again until the time limit. Raises :class:`DatabaseError`, also for a driver's ``InterfaceError``, if the server
        does not answer within the time limit, or if other threads hold the connection that long.
        """
        seconds = READ_SECONDS if sql.startswith("SELECT") else CHANGE_SECONDS
        with self._locked(seconds):
            reused, began = self._connection is not None, self.clock()
            while True:
                try:
                    return self._run(sql, parameters, seconds)
                except (DatabaseError, InterfaceError) as error:
                    if sqlstate_of(error.__cause__) in _CONFLICTS and is_within(seconds, began, self.clock()):
                        continue
                    if is_locked(error) or isinstance(error, IntegrityError):  # answers: the connection is sound
                        raise
                    self.close()
                    if not reused or isinstance(error, TimedOut):
                        raise
                    reused = False

    @contextmanager
    def _locked(self, seconds: float) -> Iterator[None]:
        """Hold the lock on the connection. Raises :class:`OperationalError` if other threads hold it too long."""
        notice_fork()
        if not self._lock.acquire(timeout=seconds + CONNECT_SECONDS):
            raise OperationalError("another thread has held the connection to the state rows for too long")
        try:
            try:
                yield
            finally:
                if self._connection is not None and self.is_temporary:
                    self.close()  # an open connection would keep PostgreSQL from dropping the database
        except InterfaceError as error:  # Django's is no DatabaseError
            raise OperationalError(str(error)) from error
        finally:
            self._lock.release()

    def _run(self, sql: str, parameters: Sequence[Any], seconds: float) -> tuple[list[tuple[Any, ...]], int]:
        connection = self._open()
        if connection.vendor == "sqlite":
            # A reader waits briefly only: the writer may be the caller's own transaction, which waits for this read.
            usual = connection.settings_dict["OPTIONS"].get("timeout", 5)
            patience = READ_PATIENCE if seconds == READ_SECONDS else usual
            with connection.wrap_database_errors:
                connection.connection.execute(f"PRAGMA busy_timeout = {int(1_000 * patience)}")
        with cut_off(connection, seconds), connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            found = list(cursor.fetchall() if cursor.description else ()), cursor.rowcount
        self._used_at = self.clock()
        return found

    def _open(self) -> BaseDatabaseWrapper:
        """Return the connection, open. Raises only Django's database errors, whatever the project's backend raises."""
        self.check_alias()
        configured = connections[self.alias].settings_dict
        current = self._connection
        if current is not None and (
            any(current.settings_dict.get(name) != configured.get(name) for name in ("NAME", "HOST", "PORT"))
            or not is_within(IDLE_SECONDS, self._used_at, self.clock())
            or self._file != file_of(current)
        ):
            self.close()
            current = None
        if current is None:
            current = new_connection(self.alias, self.pool)
            options = current.settings_dict["OPTIONS"]
            if current.vendor in ("postgresql", "mysql"):
                options.setdefault("connect_timeout", CONNECT_SECONDS)
            if current.vendor == "postgresql":
                options.setdefault("tcp_user_timeout", int(1_000 * CHANGE_SECONDS))
            current.inc_thread_sharing()
            self._connection = current
            self._used_at = self.clock()
            # Before the file is opened: if another file replaces it meanwhile, the next use notices.
            self._file = file_of(current)
        try:
            with limited(current, READ_SECONDS):
                current.ensure_connection()
        except (DatabaseError, InterfaceError, AssertionError):  # a test forbids queries by the last
            raise
        except Exception as error:
            raise OperationalError(f"cannot connect to the database of the state rows: {error!r}") from error
        return current

    @property
    def is_file(self) -> bool:
        """Whether the database is a file, which another process may not write while a statement reads it."""
        return connections[self.alias].vendor == "sqlite"

    @property
    def is_standby(self) -> str:
        """SQL expression: is the server a standby, whose rows may be old?"""
        # A replica of MySQL or MariaDB is to be read-only; newer servers give a word.
        found = {"postgresql": "pg_is_in_recovery()", "mysql": "@@read_only NOT IN ('0', 'OFF')"}
        return found.get(connections[self.alias].vendor, "0")

    @property
    def proofs(self) -> str:
        """SQL expressions: ``is_standby``, ``here``, the identity of the database, and ``is_durable``.

        ``is_durable``: the database cannot lose an acknowledged COMMIT without a change of its identity. The timeline
        changes with each promotion and each point-in-time recovery, the table's OID when a dump is restored.
        """
        vendor = connections[self.alias].vendor
        if vendor != "postgresql":
            # All servers of a cluster, and the next one after a failover, have the database by this name.
            here = "CONCAT('mysql:', DATABASE())" if vendor == "mysql" else "''"
            return f"{self.is_standby} AS is_standby, {here} AS here, {int(vendor == 'sqlite')} AS is_durable"
        table = self.quote(GuardState._meta.db_table).replace("'", "''")
        server, here = SERVER, f"{NUMBER} || ':' || '{table}'::regclass::oid::text"
        if self._hides_identity:
            server = "'?'"
        return (
            f"{self.is_standby} AS is_standby, "
            f"CASE WHEN pg_is_in_recovery() THEN '' ELSE 'postgresql:' || {server} || ':' || {here} END AS here, "
            f"({IS_DURABLE}) AND {not self._hides_identity} AS is_durable"
        )

    def omit_refused_function(self, error: Exception) -> bool:
        """Return whether the server refused a function of :attr:`proofs`, which omits it from now on."""
        code = sqlstate_of(error.__cause__)
        if self._hides_identity or code not in _FUNCTION_REFUSED:
            return False
        if code == _PRIVILEGE and GuardState._meta.db_table in str(error):
            return False  # it refused the rows, not a function
        self._hides_identity = True
        logger.warning("bloomguard cannot detect a restored database, so it discards no keys: %s", error)
        return True

    @property
    def here(self) -> str:
        """The identity of the SQLite database that Django would open now; it changes when the host boots.

        Empty for servers, which give theirs with the rows.
        """
        if connections[self.alias].vendor != "sqlite":
            return ""
        # A database in memory is copied by a fork, so its identity has the process ID.
        return identity_of_file(connections[self.alias]) or f"sqlite:memory@{os.getpid()}"

    def quote(self, name: str) -> str:
        """Quote the identifier ``name``."""
        return connections[self.alias].ops.quote_name(name)

    def has_table(self, name: str) -> bool:
        """Return whether the database has the table, or may have one. Raises :class:`DatabaseError`."""
        with self._locked(READ_SECONDS):
            connection = self._open()
            with cut_off(connection, READ_SECONDS), connection.cursor() as cursor:
                if connection.vendor == "postgresql" and not hasattr(connection, "set_schema"):  # of tenants
                    cursor.execute(_IS_OR_MAY_BE_THERE, [name])
                    return cursor.fetchone() is not None
                return name in connection.introspection.table_names(cursor)

    def adapt(self, value: Any) -> Any:
        """Convert a value, which may be a datetime, to a query parameter of the database."""
        is_moment = hasattr(value, "isoformat")
        return connections[self.alias].ops.adapt_datetimefield_value(value) if is_moment else value

    def close(self) -> None:
        """Close the connection; the next statement opens another."""
        with self._locked(READ_SECONDS):
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(DatabaseError):  # mysqlclient refuses to close what is closed already
                    connection.close()


class DatabaseConnection(StateConnection):
    """A connection of our own to the database ``alias``, with the same time limits.

    ``schema`` is that of a tenant, for a database backend that has them, such as the one of django-tenants.
    """

    pool = "catalogue"
    alias = ""

    def __init__(self, alias: str, schema: str = "") -> None:
        super().__init__()
        self.alias = alias
        self._schema = schema

    def _open(self) -> BaseDatabaseWrapper:
        connection: Any = super()._open()
        if self._schema:
            connection.set_schema(self._schema)
        return connection  # type: ignore[no-any-return]

    def identify(self) -> str:
        """Return which server and database of PostgreSQL this is; empty if it does not say. May query."""
        try:
            rows, _ = self.execute(f"SELECT {SERVER} || ':' || {NUMBER}")
        except DatabaseError as error:
            if sqlstate_of(error.__cause__) in _FUNCTION_REFUSED:
                return ""
            raise
        return str(rows[0][0])

    def check_alias(self) -> str:
        return self.alias
