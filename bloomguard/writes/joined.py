"""Keys whose columns are in several tables: those of a model and its parents.

Of two transactions that each update one of these tables, neither sees what the other writes, so neither would add the
key that the row has in the end. Hence the rows of all tables are locked before an UPDATE, and read by a query that
locks them after it; also after an INSERT, as the row of the parent's table may be an older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections, models

from ..state.fresh_rows import fresh_rows
from ..state.transactions import has_own_transaction
from .rights import may_read
from .tables import TrackedTable

#: Rows that are in memory at a time while they are locked.
_ROWS = 10_000


def lock_rows(compiler: Any, tables: Sequence[TrackedTable], chosen: Any) -> None:
    """Lock the rows of all tables of the guards' keys that an UPDATE is about to change.

    ``chosen``: returns queries for the columns of the given names of the rows that it selects. Where they cannot be
    locked, :func:`locking` returns ``None`` after it.
    """
    for tracked in tables:
        if tracked.primary_key is None or len(tracked.key_tables) < 2:
            continue
        rows = locking(models.QuerySet(tracked.guard.model, using=compiler.using), tracked)
        if rows is not None and connections[compiler.using].features.has_select_for_update:
            names = [field.name for field in tracked.primary_key]
            for some in chosen(names):
                found = rows.filter(**{f"{tracked.link or 'pk'}__in": some}).order_by()
                for _ in fresh_rows(found.values_list("pk", *tracked.guard._meta.attnames), _ROWS):
                    pass  # they are read again after the UPDATE


def locking(rows: Any, tracked: TrackedTable, *, is_new: bool = False) -> Any:
    """Return ``rows``, of the guard's model, as a query that locks what it reads, if the key needs that.

    ``None`` if the login may not lock them, or in a transaction that was begun by hand. ``is_new``: after an INSERT.
    """
    guard, connection = tracked.guard, connections[rows.db]
    is_in_parent = not tracked.key_tables <= {guard.model._meta.db_table}
    if not (len(tracked.key_tables) > 1 or (is_new and is_in_parent)):
        return rows
    if has_own_transaction(connection) or not may_read(connection, guard, "lock"):
        return None
    if not connection.in_atomic_block:
        return rows  # after the COMMIT: the last of several transactions reads what all have written
    return rows.select_for_update(no_key=connection.features.has_select_for_no_key_update)
