"""Discarding of deleted rows' keys, from filters that support it, at most once for each add.

Such a filter counts how often a key was added. Two keys may share a fingerprint, so one discard too many would make the
other key's row a false 404, while one add too many is a harmless false positive. Hence:

* Before a statement, the living rows that it is about to change are read and locked; after it they are read again. New
  keys are added, keys that are gone are discarded, and the others stay untouched. But while a filter is being built,
  the key of each changed row is added. If two transactions delete the same row, the second one's read finds nothing.
* A key that is gone becomes a *pending delete*: the key with the generation that was active while the row existed. It
  is applied once, after the COMMIT, if that generation is still active; see :meth:`ActiveFilter.discard`.
* A pending delete is dropped if its statement was rolled back by any means, or may have been, see
  :mod:`bloomguard.writes.observer`. A transaction that was begun by hand has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections
from django.db.models import Q, QuerySet
from django.db.models.constants import OnConflict
from django.db.models.sql import DeleteQuery, InsertQuery

from ..guards import Guard
from ..guards.fields import kind_of, own_conversions
from ..guards.keys import NoScope, OutOfRange, Unkeyable, unwrapped
from ..guards.scopes import DATABASE
from ..state.fresh_rows import fresh_rows
from ..state.transactions import has_own_transaction, lock_file
from .fencing import reading_by_writer
from .idle import has_nothing_to_add_to
from .joined import lock_written, pages, rows_by, selected
from .observer import TransactionObserver
from .rights import may_read
from .tables import TrackedTable

if TYPE_CHECKING:
    from .rows import WrittenRows

#: Of a statement that changes more rows than this no list is kept, and the keys that it removes are not discarded.
MOST_ROWS = 100_000


def are_found(model: Any, using: str, keys: Iterable[Any]) -> bool:
    """Whether each of these primary keys finds its row, as Django sends it to the database.

    One that is stored in another form does not: a UUID with dashes, for example, where Django puts none.
    """
    if all(_has_one_form(each, connections[using].vendor) for each in model._meta.pk_fields):
        return True
    asked = set(keys)
    return len(set(rows_by(QuerySet(model, using=using), "pk", list(asked), "pk"))) == len(asked)


def _has_one_form(field: Any, vendor: str) -> bool:
    """Whether the column has one form of each value. SQLite and MySQL may store a UUID as a text, in several forms."""
    return kind_of(field) == "integer" or (vendor == "postgresql" and not own_conversions(field))


@dataclass(frozen=True)
class Alive:
    """Living rows locked before a statement: primary key -> looked-up values, and the generation that was active."""

    generation: str = ""
    rows: dict[Any, tuple[Any, ...]] = field(default_factory=dict)


#: The living rows found before a statement, for each guard that discards.
Before = dict[TrackedTable, Alive]


def counting(tables: Iterable[TrackedTable], using: str) -> list[TrackedTable]:
    """Return the tables whose guards need to know which rows are gone after the statement.

    Empty on a database where :func:`is_durable` is never true, so that nothing is discarded; and in a transaction that
    was begun by hand, as it may end by hand too. Without the guards whose rows the role may not lock: their keys stay.
    """
    connection = connections[using]
    if connection.vendor not in ("postgresql", "sqlite"):
        return []
    found = [tracked for tracked in tables if tracked.counted and not has_nothing_to_add_to(tracked.guard)]
    if found and has_own_transaction(connection):
        return []
    return [tracked for tracked in found if may_read(connection, tracked.guard, "lock")]


def lock(compiler: Any, tables: Iterable[TrackedTable]) -> Before:
    """Lock and return the living rows that the statement is about to change; ``tables`` are those of :func:`counting`.

    The model of the statement may have another primary key than the guard's.
    """
    choose = _conflicting if isinstance(compiler.query, InsertQuery) else selected
    found: Before = {}
    for tracked in tables:
        try:
            with reading_by_writer(tracked.guard, compiler.using):
                chosen = choose(compiler, [field.name for field in tracked.primary_key or ()])
                found[tracked] = _lock(compiler, tracked, chosen)
        except DatabaseError:  # it may have ended the writer's transaction
            raise
        except Exception:  # the write goes on, and deleted keys stay in the filter
            found[tracked] = Alive()
    return found


def _conflicting(compiler: Any, names: Sequence[str]) -> Iterable[Any]:
    """Return queries for the columns ``names`` of the rows that an INSERT updates: they have the same unique values."""
    query = compiler.query
    if query.on_conflict != OnConflict.UPDATE or not query.unique_fields:
        return ()  # MySQL names no unique fields: each row is then counted once more, which is harmless
    fields = [each.attname for each in query.unique_fields]
    unique = [tuple(getattr(row, name) for name in fields) for row in query.objs]
    every: Any = QuerySet(query.model, using=compiler.using).order_by().values(*names)
    return map(every.filter, (reduce(or_, (Q(**dict(zip(fields, each))) for each in some)) for some in pages(unique)))


def _lock(compiler: Any, tracked: TrackedTable, chosen: Iterable[Any]) -> Alive:
    """Lock the guard's living rows; each query of ``chosen`` selects primary keys of the statement's table."""
    if not chosen:
        return Alive()
    guard = tracked.guard
    # Without scopes, rebuilds read one database only: rows of another one are not discarded.
    at_home = guard.scope == DATABASE or compiler.using == guard._meta.place.home
    if compiler.connection.vendor == "sqlite":
        lock_file(compiler.connection, compiler.query.get_meta().db_table)  # it has no row locks
    # On SQLite no other connection can change the state rows now.
    generation = (
        guard._runtime.active_filter.active(compiler.using) if at_home and guard._meta.place.is_certain() else ""
    )
    rows: list[tuple[Any, ...]] = []
    # The lock of the statement itself. During an UPDATE others may still insert rows that refer to these; a DELETE that
    # waited for those with a lock of its own could deadlock with them.
    features = compiler.connection.features
    no_key = features.has_select_for_no_key_update and not isinstance(compiler.query, DeleteQuery)
    living = guard._meta.rows().using(compiler.using).select_for_update(no_key=no_key)
    for some in chosen:
        found = living.filter(**{f"{tracked.link or 'pk'}__in": some}).order_by()
        rows += fresh_rows(found.values_list("pk", *guard._meta.attnames)[: MOST_ROWS + 1])
        if len(rows) > MOST_ROWS:
            return Alive()
    if _share_keys(rows) or not are_found(guard.model, compiler.using, (row[0] for row in rows)):
        return Alive()
    if generation and guard.scope is not None and not guard._meta.scopes.has_written(compiler.using, generation):
        generation = ""  # it may not have the keys of these rows
    return Alive(generation, {row[0]: row[1:] for row in rows})


def _share_keys(rows: Sequence[tuple[Any, ...]]) -> bool:
    """Whether two rows have one primary key, as in a partitioned table: which is which cannot be told afterwards."""
    return len({row[0] for row in rows}) < len(rows)


def finish(before: Before, tracked: TrackedTable, using: str, written: WrittenRows | None) -> WrittenRows | None:
    """After the statement, return which of the written rows to add: of a filter that counts its keys, the new ones.

    For such a filter, ``written`` has the current primary keys of the rows. They and those of ``before`` are read
    again, so that a changed primary key is found as well. The keys that are gone become a pending delete.
    """
    if written is None or tracked not in before:
        return written
    guard, alive = tracked.guard, before[tracked]
    if any(None in value for value in written.values):
        return None  # by a NULL no row is found
    changed = dict.fromkeys(map(unwrapped, written.values))
    if not lock_written(tracked, using, written.link, changed):
        return None
    reads = [
        list(rows_by(guard._meta.rows().using(using), path, list(chosen), "pk", *guard._meta.attnames))
        for path, chosen in (("pk", alive.rows), (written.link, changed))
    ]
    found = {row[0] for row in reads[1]} if written.link == "pk" else ()
    if not are_found(tracked.owner, using, (key for key in changed if key not in found)):
        return None  # nor by one that is stored in another form
    if any(map(_share_keys, reads)):
        return written._replace(values=[row[1:] for some in reads for row in some], link="", stored=True)
    after = {row[0]: row[1:] for some in reads for row in some}
    was, now = Counter(alive.rows.values()), Counter(after.values())
    gone = _keys(guard, using, (was - now).elements()) if alive.generation else []
    if gone:
        observer = TransactionObserver.ensure(connections[using])
        observer.add_deletes(guard._runtime.active_filter, alive.generation, gone)
    new: Iterable[tuple[Any, ...]] = (now - was).elements()
    if guard._runtime.active_filter.may_be_building():
        # Its scan reads each page at another moment. A key that one row gives to another, or that moves with the row's
        # primary key, may leave a page that is still to be read for one that has been.
        new = (value for pk, value in after.items() if alive.rows.get(pk) != value)
    return written._replace(values=list(new), link="", stored=True)


def _keys(guard: Guard, using: str, values: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """Return the keys of rows that are gone. A row without a key was never added."""
    found: list[bytes] = []
    with suppress(NoScope):
        key = guard._meta.key_written(using)
        for value in values:
            with suppress(Unkeyable, OutOfRange):
                found.append(key(unwrapped(value)))
    return found
