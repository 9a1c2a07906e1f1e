"""Keys whose columns are in several tables: those of a model and its parents.

Of two transactions that each write one of these tables, neither sees what the other writes, so neither would add the
key that the row has in the end. Hence the rows of all tables are locked before an UPDATE, and before they are read back
after an UPDATE or an INSERT. For a guard that discards, the tables of ``alive`` count as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from django.db import DatabaseError, connections, models
from django.db.models.sql import Query

from ..state.connection import is_denied
from ..state.fresh_rows import fresh_rows
from ..state.transactions import has_own_transaction
from .isolation import reads_what_is_committed
from .rights import may_read
from .tables import TrackedTable

#: Rows that are in memory at a time while they are locked, on PostgreSQL.
_ROWS = 10_000
#: Values that one query looks rows up by: below every database's limit of parameters.
_PARAMETERS = 500
_T = TypeVar("_T")
#: Of MySQL and MariaDB, for a SELECT beyond ``max_join_size``, which holds for no UPDATE.
TOO_BIG = (1104,)


def selected(compiler: Any, names: Sequence[str]) -> Iterable[Any]:
    """Return the query for the columns ``names`` of the rows that an UPDATE or DELETE selects by its own WHERE."""
    chosen = compiler.query.chain(klass=Query)
    chosen.clear_ordering(force=True)
    chosen.extra = {}
    chosen.select_for_update = False  # no UPDATE has it: neither NOWAIT, nor an error for DISTINCT
    chosen.set_values(names)
    return [chosen]


def lock_rows(compiler: Any, tracked: TrackedTable, most: int) -> None:
    """Lock the rows of all tables that an UPDATE is about to change; on MySQL and MariaDB at most ``most``.

    Each UPDATE does so in the same order, so that two wait for each other, where the locks after them could deadlock.
    If this fails, those are tried all the same.
    """
    connection = compiler.connection
    if tracked.historical or not connection.features.has_select_for_update:
        return  # in the middle of a migration a column may be missing
    try:
        rows = locking(models.QuerySet(tracked.guard.model, using=compiler.using), tracked)
        if rows is None:
            return
        [chosen] = selected(compiler, [field.name for field in tracked.primary_key or ()])
        found = rows.filter(**{f"{tracked.link or 'pk'}__in": chosen}).order_by()
        found = found.values_list("pk", *tracked.guard._meta.attnames)
        # MySQL's driver fetches all rows at once; if they are more, the guard is fenced.
        for _ in fresh_rows(found[:most] if connection.vendor == "mysql" else found, _ROWS):
            pass  # they are read again after the UPDATE
    except DatabaseError as error:
        if not is_denied(error) and error.args[:1] != TOO_BIG:  # the transaction goes on after these
            raise
    except Exception:
        return


def lock_written(tracked: TrackedTable, using: str, path: str, keys: Iterable[Any]) -> bool:
    """Lock the guard's rows that have one of ``keys`` at ``path``, if that is needed; return whether it could be."""
    rows = locking(models.QuerySet(tracked.guard.model, using=using), tracked)
    if rows is None:
        return False
    if rows.query.select_for_update:
        for _ in rows_by(rows, path, list(keys), "pk", *tracked.guard._meta.attnames):
            pass
    return True


def locking(rows: Any, tracked: TrackedTable) -> Any:
    """Return ``rows``, of the guard's model, as a query that locks what it reads, if the table is joined.

    ``None`` if the login may not lock them, in a transaction that was begun by hand, or if the transaction has an older
    snapshot: a row that another one has linked to the written one is not seen then.
    """
    is_linked = tracked.is_joined or tracked.owner is not tracked.guard.model
    if is_linked and not reads_what_is_committed(connections[rows.db]):
        return None
    connection = connections[rows.db]
    features = connection.features
    if not tracked.is_joined or not features.has_select_for_update:
        return rows
    if connection.get_autocommit() and not connection.in_atomic_block:  # where Django refuses to lock
        return None if has_own_transaction(connection) else rows  # after the COMMIT, for a guard that follows signals
    if not may_read(connection, tracked.guard, "lock"):
        return None
    return rows.select_for_update(no_key=features.has_select_for_no_key_update)


# -- reading rows by their keys


def rows_by(rows: Any, path: str, values: Sequence[Any], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the columns ``names`` of those of ``rows`` that have one of ``values`` at ``path``, as they are now."""
    for some in pages(values):
        yield from fresh_rows(rows.filter(**{f"{path}__in": some}).order_by().values_list(*names))


def pages(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Split ``values``, by which rows are to be looked up, into those of one query each: a tuple has several."""
    size = _PARAMETERS // len(values[0]) if values and isinstance(values[0], tuple) else _PARAMETERS
    return (values[start : start + size] for start in range(0, len(values), size))
