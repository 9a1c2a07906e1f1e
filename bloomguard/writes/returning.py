"""Whether a RETURNING clause may be added to a statement of the ORM.

PostgreSQL refuses it for a table with a rule, and to a role that may not read the columns. What was found is cached for
each table until a guard, its generations or the database's definitions change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..state.connection import fetch_uncounted, is_aborted
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
    if connection.vendor != "postgresql":
        return True
    if connection.needs_rollback or is_aborted(connection):
        return True  # Django, or the database, refuses the statement anyway
    cache = caches.get(connection.alias)
    if cache is None or not cache.is_current:
        cache = current_cache(connection.alias)
    refused = cache.refusals.get((table, verb))
    if refused is None:
        refused = cache.refusals[table, verb] = frozenset(_refusals(connection, table, verb))
    return not refused or ("" not in refused and refused.isdisjoint(field.column for field in fields))


def _refusals(connection: Any, table: str, verb: str) -> set[str]:
    """Return the columns that cannot be returned; an empty name for all."""
    name = connection.ops.quote_name(table)
    connection.ensure_connection()
    with connection.wrap_database_errors:
        was_under_way = is_under_way(connection)
        try:
            return {column for (column,) in fetch_uncounted(connection, _REFUSALS, (name, _EVENTS[verb], name))}
        finally:
            if not was_under_way and is_under_way(connection):
                connection.connection.rollback()  # so the project's transaction begins with its own statement
