"""Takes the keys of rows that are gone out of the filters that can forget them, without ever taking one too many.

Such a filter counts: a key is in as often as it was added. Two keys may share a fingerprint, so one discard too many
would make the other one's row a false 404, while one add too many is a harmless false positive. Hence:

* The rows that a statement is about to change are read and locked before it, those that are alive; and read again
  after it. What is new is added, what is gone is discarded, what stayed is left alone. Of two that delete one row, the
  second one's read finds none.
* What is gone becomes a *token*, the key with the generation that answered when the row was still there. It is redeemed
  once, after the COMMIT, if that generation still answers; see :meth:`bloomguard.live.LiveFilter.discard`.
* A token is void if its statement was rolled back by any means, or if that is not certain, see
  :mod:`bloomguard.sync.observer`. In a transaction that was begun by hand there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from django.db import DatabaseError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, QuerySet
from django.db.models.constants import OnConflict
from django.db.models.sql import Query

from ..guards import Guard
from ..keys import OutOfRange, Unkeyable
from . import fencing
from .connection import has_own_transaction
from .observer import TransactionObserver
from .watches import Watch

#: Of a statement that changes more rows than this no keys are known: they would take too much memory, and time.
MOST_ROWS = 100_000
_AT_ONCE = 500  # primary keys in one question: below every database's limit of parameters


@dataclass(frozen=True)
class Alive:
    """Rows that are alive and locked before a statement: primary key -> looked-up values, and what answers for them."""

    generation: str = ""
    rows: dict[Any, tuple[Any, ...]] = field(default_factory=dict)


#: What a statement found alive, for each of the guards that discard.
Before = dict[Watch, Alive]


def counting(watches: Iterable[Watch], using: str) -> list[Watch]:
    """Those of ``watches`` that have to know afterwards which rows are gone.

    None in a transaction that was begun by hand: Django calls no hook after its COMMIT.
    """
    found = [watch for watch in watches if watch.counted and not fencing.has_nothing_to_add_to(watch.guard)]
    return [] if found and has_own_transaction(connections[using]) else found


def before(counting: Iterable[Watch], using: str, lock: Callable[[Watch], Alive]) -> Before:
    """What ``lock`` finds for each of :func:`counting`."""
    found: Before = {}
    for watch in counting:
        try:
            with fencing.writing(watch.guard, using):
                found[watch] = lock(watch)
        except DatabaseError:  # which may have ended the writer's transaction
            raise
        except Exception:  # the write goes on, and what is gone stays in the filter
            found[watch] = Alive()
    return found


def lock(compiler: Any, watch: Watch) -> Alive:
    """The guard's living rows that the UPDATE or DELETE of ``compiler`` is about to change, locked.

    They are found by the statement's own WHERE, so whoever comes second waits here, and then finds what is left.
    """
    chosen = compiler.query.chain(klass=Query)
    chosen.clear_ordering(force=True)
    chosen.extra = {}
    chosen.select = ()
    chosen.add_fields([each.name for each in _primary_key(chosen.get_meta())])
    return _lock(compiler, watch, [chosen])


def lock_conflicting(compiler: Any, watch: Watch) -> Alive:
    """The same for an INSERT: the rows that it updates because a row with their unique values is there."""
    query = compiler.query
    if query.on_conflict != OnConflict.UPDATE or not query.unique_fields:
        return Alive()  # MySQL does not say what is unique: each row is then counted once more, which is harmless
    names = [each.attname for each in query.unique_fields]
    each_row = [Q(**{name: getattr(row, name) for name in names}) for row in query.objs]
    every: Any = QuerySet(query.model, using=compiler.using).order_by()
    chunks = [each_row[start : start + _AT_ONCE] for start in range(0, len(each_row), _AT_ONCE)]
    return _lock(compiler, watch, [every.filter(reduce(or_, some)).values("pk") for some in chunks])


def _primary_key(meta: Any) -> Sequence[Any]:
    return getattr(meta, "pk_fields", None) or [meta.pk]


def _lock(compiler: Any, watch: Watch, chosen: Iterable[Any]) -> Alive:
    """``chosen`` are queries for primary keys of the statement's table."""
    guard = watch.guard
    # Rows of another database than the one that rebuilds read are nobody's to discard.
    at_home = compiler.using == router.db_for_write(guard.model)
    if compiler.connection.vendor == "sqlite":
        # It locks no rows, and a transaction that read first could not wait for its turn to write: so write first.
        table = compiler.connection.ops.quote_name(compiler.query.get_meta().db_table)
        with compiler.connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {table} WHERE 0")  # noqa: S608
    # On SQLite nobody else can change the state rows by now.
    generation = guard.live.active(compiler.using) if at_home else ""
    rows: dict[Any, tuple[Any, ...]] = {}
    # Rows of other tables may go on pointing to these, as they may during the statement itself.
    no_key = compiler.connection.features.has_select_for_no_key_update
    living = guard.rows().using(compiler.using).select_for_update(no_key=no_key)
    for some in chosen:
        rows |= _values(guard, living.filter(**{f"{watch.link or 'pk'}__in": some}))
        if len(rows) > MOST_ROWS:
            return Alive()
    return Alive(generation, rows)


def settle(
    watch: Watch, using: str, before: Alive, link: str, told: Iterable[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """After the statement: the values to add; what is gone from ``before`` becomes a token.

    ``told`` are the primary keys of the rows that it wrote, as they are now, which the guard's rows are found by
    through ``link``. What is left of both together tells what it did, whichever of the rows it changed, their primary
    keys included.
    """
    guard = watch.guard
    written = [value[0] if len(value) == 1 else value for value in told]
    after: dict[Any, tuple[Any, ...]] = {}
    for path, chosen in (("pk", list(before.rows)), (link, written)):
        for start in range(0, len(chosen), _AT_ONCE):
            some = chosen[start : start + _AT_ONCE]
            after |= _values(guard, guard.rows().using(using).filter(**{f"{path}__in": some}))
    was, now = Counter(before.rows.values()), Counter(after.values())
    gone = [key for value in (was - now).elements() for key in _key(guard, value)]
    if gone and before.generation:
        Token.issue(guard, gone, before.generation, connections[using])
    return list((now - was).elements())


def _values(guard: Guard, rows: QuerySet[Any]) -> dict[Any, tuple[Any, ...]]:
    """Primary key -> looked-up values, of at most one row more than ``MOST_ROWS``."""
    return {row[0]: row[1:] for row in rows.order_by().values_list("pk", *guard.attnames)[: MOST_ROWS + 1]}


def _key(guard: Guard, value: tuple[Any, ...]) -> Sequence[bytes]:
    """The row's key, if it has any: what has none was never added."""
    with suppress(Unkeyable, OutOfRange):
        return [guard.keys.key(value[0] if len(value) == 1 else value)]
    return []


@dataclass(eq=False)
class Token:
    """The right to discard ``keys`` from ``generation`` once, after the COMMIT of what is going on now."""

    guard: Guard
    keys: list[bytes]
    generation: str
    connection: BaseDatabaseWrapper
    void: bool = False

    @classmethod
    def issue(cls, guard: Guard, keys: list[bytes], generation: str, connection: BaseDatabaseWrapper) -> None:
        """Register a token for the open transaction of ``connection``, which Django has begun."""
        token = cls(guard, keys, generation, connection)
        TransactionObserver.over(connection).add(token)
        transaction.on_commit(token, using=connection.alias)

    def __call__(self) -> None:
        """Redeem it: called once, by Django."""
        if not self.connection.in_atomic_block and not self.void:  # a test runs them and then rolls back
            self.guard.live.discard(self.keys, self.generation)
