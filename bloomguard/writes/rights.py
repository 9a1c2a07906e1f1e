"""What the database lets the role have of a table: a ``RETURNING``, the row once more, a lock on it.

On PostgreSQL an error would abort the project's transaction, so the catalogue is asked first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..guards import Guard
from ..state.transactions import is_aborted
from .consequences import current_cache
from .introspection import undisturbed

#: The events in ``pg_rewrite``; none that matters to a statement that only reads.
_EVENTS = {"update": "2", "insert": "3", "select": "0", "lock": "0"}
#: The rules for the event, row-level security if the statement itself reads nothing, no right to lock rows, and the
#: columns that the role may not read.
_REFUSALS = """
    SELECT '' FROM pg_rewrite WHERE ev_class = to_regclass(%s) AND ev_type = %s AND ev_enabled <> 'D'
    UNION ALL SELECT '' WHERE NOT %s AND row_security_active(to_regclass(%s))
    UNION ALL SELECT '' WHERE %s AND NOT has_any_column_privilege(to_regclass(%s), 'UPDATE')
    UNION ALL SELECT attname::text FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    AND NOT has_column_privilege(attrelid, attnum, 'SELECT')"""


def may_return(connection: Any, table: str, fields: Iterable[Any], verb: str, *, reads: bool) -> bool:
    """Whether ``verb`` on ``table``, ``insert``, ``update`` or ``select``, may return ``fields``.

    ``reads``: the statement reads the rows anyway. If it does not, it also writes rows that row-level security hides
    from the role; with a RETURNING, PostgreSQL would refuse these, or leave them as they are.
    """
    refused = _refused(connection, table, verb, reads)
    return not refused or ("" not in refused and refused.isdisjoint(field.column for field in fields))


def may_lock(connection: Any, guard: Guard) -> bool:
    """Whether the role may read and lock the guard's rows: for a lock it needs the right to UPDATE as well."""
    if connection.vendor != "postgresql":
        return True
    return not any(_refused(connection, table, "lock", True) for table in guard._meta.tables)


def _refused(connection: Any, table: str, verb: str, reads: bool) -> frozenset[str]:
    """Return the columns that cannot be had; an empty name for all."""
    if connection.vendor != "postgresql":
        return frozenset()
    if connection.needs_rollback or is_aborted(connection):
        return frozenset()  # Django, or the database, refuses the statement anyway
    cache = current_cache(connection.alias)
    refused = cache.refusals.get((table, verb, reads))
    if refused is None:
        name = connection.ops.quote_name(table)
        asked = (name, _EVENTS[verb], reads, name, verb == "lock", name, name)
        connection.ensure_connection()
        with connection.wrap_database_errors, undisturbed(connection) as fetch:
            refused = frozenset(column for (column,) in fetch(_REFUSALS, asked))
        cache.refusals[table, verb, reads] = refused
    return refused
