"""Which table the name of a guard's table means: the one that its filter was built from, or another one.

One name means several tables where each tenant has a schema, and one model several where it is in several databases. A
filter of the rows of one of them knows nothing of the others, so its ABSENT is trusted only for that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, router

from ..state.schemas import has_schemas, schemas

if TYPE_CHECKING:
    from django.db.models import Model

    from .guard import Guard


def databases_of(model: type[Model]) -> list[str]:
    """Return the aliases of the different databases in which the routers allow a table of ``model``."""
    found: dict[tuple[Any, ...], str] = {}
    for alias in connections:
        given = connections[alias].settings_dict
        if not given["TEST"].get("MIRROR") and router.allow_migrate_model(alias, model):
            found.setdefault(tuple(given[name] for name in ("ENGINE", "HOST", "PORT", "NAME")), alias)
    return list(found.values())


class Place:
    """The database and the PostgreSQL schema of a guard's table."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        table = guard.model._meta.db_table
        self._tables = [table, *sorted(guard._meta.tables - {table})]

    def source(self, alias: str) -> str:
        """Return the place as the state row of a filter names it that is built from ``alias`` now. May query."""
        schema = ",".join(sorted(schemas.of(alias, self._tables)[0])) if has_schemas(alias, self._tables[0]) else ""
        return f"{alias}/{schema}"

    def must_read(self) -> bool:
        """Return whether :meth:`is_certain` has to read the catalogue: once a minute, on PostgreSQL."""
        alias = self._guard._meta.database
        return has_schemas(alias, self._tables[0]) and schemas.is_due(alias, self._tables)

    def is_certain(self) -> bool:
        """Return whether the table that this process would read is the one that the filter was built from.

        So it is if the routers name the database that was scanned, and no other schema has a table of the name.
        """
        source, alias = (
            self._guard._runtime.active_filter.table.known(self._guard.name).source,
            self._guard._meta.database,
        )
        database, _, schema = source.rpartition("/")
        if source and database != alias:
            return False
        if not has_schemas(alias, self._tables[0]):
            return True
        found = schemas.of(alias, self._tables)
        return all(len(each) == 1 for each in found) and (not source or schema in found[0])
