"""What the role of a connection may read: the project's statement must not fail by what bloomguard adds to it.

PostgreSQL is asked before, as an error would abort the transaction. So is MariaDB before an ``INSERT ... RETURNING``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import DatabaseError

from ..guards import Guard
from ..guards.meta import with_parents
from ..state.connection import fetch_uncounted, is_denied
from ..state.transactions import is_aborted
from . import isolation
from .consequences import current_cache
from .introspection import undisturbed

#: The events in ``pg_rewrite``; none that matters to a statement that only reads.
_EVENTS = {"update": "2", "insert": "3", "select": "0", "lock": "0"}
#: The rules for the event, row-level security if the statement itself reads nothing, a missing right to lock rows, and
#: the columns that the role may not read.
_REFUSALS = """
    SELECT '' FROM pg_rewrite WHERE ev_class = to_regclass(%s) AND ev_type = %s AND ev_enabled <> 'D'
    UNION ALL SELECT '' WHERE NOT %s AND row_security_active(to_regclass(%s))
    UNION ALL SELECT '' WHERE %s AND NOT has_any_column_privilege(to_regclass(%s), 'UPDATE')
    UNION ALL SELECT attname::text FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    AND NOT has_column_privilege(attrelid, attnum, 'SELECT')"""


def may_return(connection: Any, table: str, fields: Iterable[Any], verb: str, *, reads: bool) -> bool:
    """Whether ``verb`` on ``table``, ``insert``, ``update``, ``select`` or ``lock``, may return ``fields``.

    ``reads``: the statement reads the rows anyway. If it does not, it also writes rows that row-level security hides
    from the role; with a RETURNING, PostgreSQL would refuse these, or leave them as they are.
    """
    if connection.vendor == "sqlite":  # its RETURNING takes no column of a table with its schema, as "main"."city"."id"
        return '"."' not in connection.ops.quote_name(table)
    if connection.needs_rollback or is_aborted(connection):
        return True  # in a broken transaction Django, or the database, refuses the statement anyway
    cache, columns, role = current_cache(connection.alias), {field.column for field in fields}, ""
    connection.ensure_connection()
    if connection.vendor == "mysql":
        return _may_read_mysql(connection, table, columns, cache.refusals)
    if connection.alias in isolation.changed_roles:
        role = fetch_uncounted(connection, "SELECT current_user")[0][0]
    asked = table, verb, reads, role
    refused = cache.refusals.get(asked)
    if refused is None:
        refused = cache.refusals[asked] = _refusals(connection, table, verb, reads)
    return not refused or ("" not in refused and refused.isdisjoint(columns))


def may_read(connection: Any, guard: Guard, verb: str = "select") -> bool:
    """Whether the role may read the guard's rows by a statement of bloomguard's own, and ``lock`` them."""
    if connection.vendor != "postgresql":
        return True
    tables: dict[str, list[Any]] = {}
    keys = (field for model in with_parents(guard.model) for field in model._meta.pk_fields)
    for field in {*guard._meta.watched_fields, *keys}:
        tables.setdefault(field.model._meta.db_table, []).append(field)
    return all(may_return(connection, table, fields, verb, reads=True) for table, fields in tables.items())


def _refusals(connection: Any, table: str, verb: str, reads: bool) -> frozenset[str]:
    """Return the columns that cannot be returned; an empty name for all, also if the catalogue cannot be read."""
    name = connection.ops.quote_name(table)
    # A SELECT FOR UPDATE leaves out the rows that the role's policies for UPDATE hide.
    parameters = name, _EVENTS[verb], reads and verb != "lock", name, verb == "lock", name, name
    try:
        with connection.wrap_database_errors, undisturbed(connection) as fetch:
            return frozenset(column for (column,) in fetch(_REFUSALS, parameters))
    except DatabaseError:
        if connection.connection is None or connection.connection.closed or is_aborted(connection):
            raise
        return frozenset({""})


def _may_read_mysql(connection: Any, table: str, columns: set[str], known: dict[Any, frozenset[str]]) -> bool:
    """Whether a SELECT of these columns is not denied. It reads no row, so it begins no snapshot."""
    quote, asked = connection.ops.quote_name, (table, *sorted(columns))
    if asked not in known and columns:
        names = ", ".join(map(quote, asked[1:]))
        try:
            fetch_uncounted(connection, f"SELECT {names} FROM {quote(table)} WHERE FALSE")  # noqa: S608
            known[asked] = frozenset()
        except DatabaseError as error:
            if not is_denied(error):
                return True  # the statement meets it, too
            known[asked] = frozenset({""})
    return not known.get(asked)
