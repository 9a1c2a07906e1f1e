"""The PostgreSQL schemas that have a table of one name: with several, the ``search_path`` decides which is meant.

A process reads them when it is about to answer ABSENT, at most every :data:`SECONDS`, by a connection of its own, and
after it has changed definitions. The copy may be older than a CREATE TABLE of another process: rows of a table that was
created after the scan of a filter are in the filter, because their writers have added them. But a filled table that
another program moves into a schema, or grants, is overlooked for that long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from django.db import connections

from ..forks import own_lock
from ..log_once import LogOnce
from .connection import CONNECT_SECONDS, READ_SECONDS, DatabaseConnection
from .table import seconds

SECONDS = 60.0
#: Seconds until the next read after one that failed.
AGAIN_SECONDS = 1.0

#: The tables of these names, in schemas that the login may use, or a role that it can SET; temporary ones are in none.
SQL = (
    "SELECT relname::text, nspname::text, pg_class.oid "
    "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE relname = ANY(%s) AND relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname !~ '^pg_' "
    "AND nspname <> 'information_schema' "
    "AND EXISTS (SELECT FROM pg_roles WHERE pg_has_role(session_user, pg_roles.oid, 'MEMBER') "
    "AND has_schema_privilege(pg_roles.oid, pg_namespace.oid, 'USAGE')) ORDER BY 1, 2"
)


def has_schemas(alias: str, table: str) -> bool:
    """Return whether the ``search_path`` decides which table the name means: on PostgreSQL, if it has no schema."""
    connection = connections[alias]
    return connection.vendor == "postgresql" and '"."' not in connection.ops.quote_name(table)


#: Schema -> the OID of its table, which is another one if the table is dropped and made anew.
Tables = Mapping[str, int]


class Schemas:
    """One process's copy for all tables that it was asked for. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = seconds) -> None:
        self.clock = clock
        #: By alias: when the copy is to be read again, and name -> tables. Each is replaced as a whole.
        self._copies: dict[str, tuple[float, dict[str, Tables]]] = {}
        self._log = LogOnce()
        self._lock = own_lock(self, "_lock")

    def forget(self) -> None:
        """Drop the copy."""
        self._copies = {}

    def is_due(self, alias: str, tables: Sequence[str], *, ahead: float = 0.0) -> bool:
        """Return whether :meth:`of`, so many seconds ``ahead``, has to read the catalogue; not for no ``tables``."""
        until, copy = self._copies.get(alias, (float("-inf"), {}))
        return bool(tables) and (self.clock() + ahead >= until or any(table not in copy for table in tables))

    def of(self, alias: str, tables: Sequence[str]) -> list[Tables]:
        """Return the schemas that have each table, none if they cannot be read. May wait. Never raises."""
        if self.is_due(alias, tables):
            if not self._lock.acquire(timeout=CONNECT_SECONDS + READ_SECONDS):
                return [{}] * len(tables)
            try:
                if self.is_due(alias, tables):  # another thread may have read it
                    self._read(alias, tables)
            finally:
                self._lock.release()
        _, copy = self._copies.get(alias, (0.0, {}))
        return [copy.get(table, {}) for table in tables]

    def _read(self, alias: str, tables: Sequence[str]) -> None:
        names = sorted({*tables, *self._copies.get(alias, (0.0, {}))[1]})
        connection = DatabaseConnection(alias)
        try:
            rows, _ = connection.execute(SQL, [names])
            until = self.clock() + SECONDS
        except Exception as error:
            self._log.error(error, "bloomguard cannot read which schemas have a table, so requests pass")
            rows, until = [], self.clock() + AGAIN_SECONDS
        finally:
            connection.close()
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for table, schema, oid in rows:
            found[table][schema] = oid
        self._copies[alias] = until, dict(found)


schemas = Schemas()
