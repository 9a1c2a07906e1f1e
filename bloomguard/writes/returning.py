"""Whether a RETURNING clause may be added to a statement of the ORM.

PostgreSQL refuses it for a table with a rule, and to a role that may not read the columns; SQLite for virtual tables.
What was found is cached for each table until a guard, its generations or the database's definitions change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..state.connection import fetch_uncounted
from .consequences import caches, current_cache
from .transactions import is_under_way

#: The events in ``pg_rewrite``.
_EVENTS = {"update": "2", "insert": "3"}
#: The rules for the event, and the columns that the role may not read.
_REFUSALS = """
    SELECT '' FROM pg_rewrite WHERE ev_class = to_regclass(%s) AND ev_type = %s AND ev_enabled <> 'D'
    UNION ALL SELECT attname::text FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    AND NOT has_column_privilege(attrelid, attnum, 'SELECT')"""


def may_return(connection: Any, table: str, fields: Iterable[Any], verb: str) -> bool:
    """Whether ``verb`` on ``table``, ``insert`` or ``update``, may return ``fields``."""
    if connection.vendor not in ("postgresql", "sqlite"):
        return True
    cache = caches.get(connection.alias)
    if cache is None or not cache.is_current:
        cache = current_cache(connection.alias)
    refused = cache.refusals.get((table, verb))
    if refused is None:
        found = _refusals(connection, table, list(fields), verb)
        if found is None:
            return False
        refused = cache.refusals[table, verb] = frozenset(found)
    return not refused or ("" not in refused and refused.isdisjoint(field.column for field in fields))


def _refusals(connection: Any, table: str, fields: Sequence[Any], verb: str) -> set[str] | None:
    """Return the columns that cannot be returned; an empty name for all, ``None`` if SQLite cannot be asked now."""
    name = connection.ops.quote_name(table)
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        with connection.wrap_database_errors:
            was_under_way = is_under_way(connection)
            try:
                return {column for (column,) in fetch_uncounted(connection, _REFUSALS, (name, _EVENTS[verb], name))}
            finally:
                if not was_under_way and is_under_way(connection):
                    connection.connection.rollback()  # so the project's transaction begins with its own statement
    if verb == "insert":
        return set()
    column = connection.ops.quote_name(fields[0].column)
    try:
        # It is compiled only: a read in the writer's transaction would take a snapshot too early.
        sql = f"EXPLAIN UPDATE {name} SET {column} = {column} WHERE 0 RETURNING {column}"  # noqa: S608
        fetch_uncounted(connection, sql)
    except connection.Database.Error as error:
        return {""} if "RETURNING" in str(error) else None
    return set()
