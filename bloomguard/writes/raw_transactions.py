"""Which raw statements get a transaction of ours around them, together with the fence.

Such a transaction must change nothing: neither whether the statement works, nor which of its rows stay after an error,
nor what a later COMMIT or ROLLBACK of the project's ends. So it is for single statements that begin with a word of
:data:`_STAYS_IN` alone. Every other text is sent apart, as it would be without bloomguard, and the guards are fenced
before it and after it. So nobody waits for the lock of a definition while its fence is waited for.
"""

from __future__ import annotations

from typing import Any

from ..state.connection import fetch_uncounted
from ..state.transactions import is_under_way, may_go_on, rolls_back_if_marked
from .sql.reader import Reading

_WRITES = frozenset({"delete", "insert", "merge", "update"})
#: First words of the statements that certainly work in a transaction, and neither commit nor roll back. Not so on
#: PostgreSQL a CALL, a DO, a COMMIT PREPARED or a CREATE SUBSCRIPTION; MySQL and MariaDB commit at definitions.
_STAYS_IN = {
    "postgresql": _WRITES | {"copy", "select", "table", "truncate", "values", "with"},
    "sqlite": _WRITES | {"alter", "create", "drop", "replace", "with"},
    "mysql": _WRITES | {"load", "replace", "with"},
}
#: Python's SQLite driver begins a transaction for these alone, unless under autocommit. Not for a WITH, for example.
DRIVER_BEGINS = frozenset({"delete", "insert", "replace", "update"})


def is_sent_apart(reading: Reading, connection: Any, many: bool) -> bool:
    """Whether no transaction can be put around the statement, or it may end the open one."""
    vendor = connection.vendor
    stays_in = reading.head in _STAYS_IN.get(vendor, _WRITES)
    if rolls_back_if_marked(connection):  # nothing is put around it
        return not stays_in and vendor != "sqlite"
    return not stays_in or (many and connection.get_autocommit() and not is_under_way(connection))


def has_attached(connection: Any) -> bool:
    """Whether the connection, of SQLite, has attached other files, which its statements may lock; also in doubt."""
    if connection.connection is None:
        return False
    try:
        return any(name not in ("main", "temp") for _, name, _ in fetch_uncounted(connection, "PRAGMA database_list"))
    except connection.Database.Error:
        return True


def rows_changed(connection: Any) -> int:
    """Return how many rows this connection has changed, as SQLite counts them; zero elsewhere."""
    if connection.vendor != "sqlite" or connection.connection is None:
        return 0
    try:
        return int(connection.connection.total_changes)
    except connection.Database.Error:
        return -1  # closed


def may_leave_rows(connection: Any, before: int, *, many: bool) -> bool:
    """Whether rows of a failed statement may stay; ``before``: what :func:`rows_changed` returned before it.

    SQLite keeps the rows before the error for OR FAIL, ON CONFLICT FAIL and RAISE(FAIL), and counts them.
    """
    if connection.vendor == "sqlite":
        return rows_changed(connection) != before
    return many and may_go_on(connection)
