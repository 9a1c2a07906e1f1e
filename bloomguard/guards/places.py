"""Find out whether a query reads the table that a guard's filter was built from.

If each tenant has a schema, several tables have one name; if a model is in several databases, it has several tables. A
filter with the rows of one table says nothing about the others, so its ABSENT is trusted for that table only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections, router

from ..state.connection import fetch_uncounted
from ..state.schemas import has_schemas, schemas

#: Schema and OID of the tables that these names mean on this connection. Without joins, which take twice as long.
_MEANT = (
    "SELECT (SELECT (SELECT nspname FROM pg_namespace WHERE oid = relnamespace)::text FROM pg_class "
    "WHERE oid = to_regclass(asked.name)), to_regclass(asked.name)::oid::bigint "
    "FROM unnest(%s::text[]) WITH ORDINALITY AS asked (name, number) ORDER BY number"
)

#: An event loop may be held up for so long between two lines.
_NEXT_SECONDS = 0.1

if TYPE_CHECKING:
    from django.db.models import Model

    from .guard import Guard


def name_of_database(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what names a database in the settings ``given``."""
    return tuple(given[name] for name in ("ENGINE", "HOST", "PORT", "NAME"))


def databases_of(model: type[Model]) -> list[str]:
    """Return the aliases of the different databases in which the routers allow a table of ``model``; no replicas."""
    found: dict[tuple[Any, ...], str] = {}
    replica = {router.db_for_read(model)} - {router.db_for_write(model)}
    for alias in connections:
        given = connections[alias].settings_dict
        is_replica = alias in replica or given["TEST"].get("MIRROR")
        if not is_replica and router.allow_migrate_model(alias, model):
            found.setdefault(name_of_database(given), alias)
    return list(found.values())


class Place:
    """The database and the PostgreSQL schema of a guard's table."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        table = guard.model._meta.db_table
        self._tables = [table, *sorted(guard._meta.tables - {table})]

    def _loose(self, alias: str) -> list[str]:
        """Return the guard's tables whose schema the ``search_path`` decides."""
        return [table for table in self._tables if has_schemas(alias, table)]

    def source(self, alias: str) -> str | None:
        """Return what the state row has as ``source`` if a filter is built from ``alias`` now. May query.

        ``None`` if the catalogue cannot be read.
        """
        loose = self._loose(alias)
        found = schemas.of(alias, loose)
        return f"{alias}/{','.join(sorted(found[0])) if found else ''}" if all(found) else None

    def must_read(self) -> bool:
        """Return whether :meth:`certain_alias`, called next, may read the catalogue: once a minute, on PostgreSQL."""
        alias = self._guard._meta.database
        return schemas.is_due(alias, self._loose(alias), ahead=_NEXT_SECONDS)

    def certain_alias(self, source: str) -> str:
        """Return the alias of the guard's database if its queries certainly read the table of ``source``, else ``""``.

        They do if the routers choose the database that was scanned, and no other schema has a table of that name.
        """
        alias = self._guard._meta.database
        database, _, schema = source.rpartition("/")
        if source and database != alias:
            return ""
        loose = self._loose(alias)
        found = schemas.of(alias, loose) if loose else []
        if not all(len(each) == 1 for each in found):
            return ""
        return alias if not found or not source or schema in found[0] else ""

    def is_certain(self) -> bool:
        """Return whether this process would read the table that the guard's filter was built from. May query."""
        return bool(self.certain_alias(self._guard._runtime.active_filter.table.known(self._guard.name).source))

    def was_asked(self, using: str, key: bytes) -> bool:
        """Return whether a query for ``key``, just sent by ``using``, read that table. Queries the catalogue."""
        if not self.is_certain() or using != self._guard._meta.database:
            return False
        loose = self._loose(using)
        if not loose:
            return True
        meant = zip(self._meant(using), schemas.of(using, loose), strict=True)
        return all(schema in each for (schema, _), each in meant)

    def _meant(self, using: str) -> Sequence[tuple[str | None, int | None]]:
        """Return schema and OID of each of the guard's tables, as PostgreSQL resolves their names on ``using`` now."""
        connection: Any = connections[using]
        names = [connection.ops.quote_name(table) for table in self._loose(using)]
        if not names:
            return ()
        with connection.wrap_database_errors:
            return fetch_uncounted(connection, _MEANT, [names])
