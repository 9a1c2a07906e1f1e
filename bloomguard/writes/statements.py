"""Wrappers of Django's SQL compilers: each write of the ORM adds its keys in its own transaction.

The order is statement -> add -> COMMIT: before the COMMIT no other transaction sees the row, after it every filter has
the key, and a rollback leaves one harmless false positive. Signals cannot guarantee that order: ``bulk_create``,
``QuerySet.update`` and historical models send none, and under autocommit ``post_save`` comes after the COMMIT. A
statement of a model without a guard costs one dictionary lookup.

Keys come from the columns that ``RETURNING`` gives, or from the instances if those certainly hold what is stored; else
the rows are read back. If a key cannot be found out, the guard is fenced.

While all guards of a table are idle, its statements are sent unchanged, see
:func:`bloomguard.writes.fencing.all_idle`.
A filter that supports discard needs to know which rows are new and which are gone, see
:mod:`bloomguard.writes.discards`. Every other filter may get a key a second time, and drops old keys at the next
rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

from django.db import connections, models
from django.db.models.constants import OnConflict
from django.db.models.sql import compiler as compilers

from ..guards.runtime import unadded
from ..models import GuardState
from . import discards, fencing, observer, state_rows
from .consequences import may_be_rewritten
from .discards import Before
from .instances import hold, may_be_trusted
from .returning import may_return
from .rows import (
    BulkRows,
    Execute,
    Values,
    WrittenRows,
    add,
    add_all,
    lock_alive,
    returned_rows,
    run,
    run_idle,
    running,
)
from .tables import Fields, TrackedTable, guard_of, tracked_tables
from .transactions import together
from .updates import wrap_update, wrap_update_returning

#: In place of :func:`_compiled` inside of the project's own transaction, where nothing can run before it.
_AS_IT_IS = nullcontext()


def connect() -> None:
    """Wrap the compilers of all databases, once."""
    insert: Any = compilers.SQLInsertCompiler
    update: Any = compilers.SQLUpdateCompiler
    delete: Any = compilers.SQLDeleteCompiler
    if not hasattr(insert.execute_sql, "of_bloomguard"):  # another package's wrapper may be there
        insert.execute_sql = _wrap_insert(insert.execute_sql)
        insert.execute_sql.of_bloomguard = True
        update.execute_sql = wrap_update(update.execute_sql)
        if hasattr(update, "execute_returning_sql"):  # Django 6
            update.execute_returning_sql = wrap_update_returning(update.execute_returning_sql)
        delete.execute_sql = _wrap_delete(delete.execute_sql)
        query_set: Any = models.QuerySet
        query_set._batched_insert = _wrap_batches(query_set._batched_insert)
    observer.connect()


# -- INSERT


def _wrap_insert(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, returning_fields: Any = None) -> Any:
        tables = tracked_tables(self.query.model)
        if not tables:
            if self.query.model is GuardState:
                state_rows.before_change(self.using)
            return execute(self, returning_fields)
        asked = list(returning_fields or ())
        idle = fencing.all_idle(map(guard_of, tables), self.using)
        if idle is not None:
            return run_idle(
                *(execute, self, (returning_fields,), tables, idle),
                lambda tracked, rows: _inserted(tracked, self, asked, _present(rows), {}),
            )
        counting = _counting(tables, self)
        returned = [*asked, *_more_to_return(self, tables, asked, counting)]
        is_alone = not self.connection.in_atomic_block
        with _compiled(self, returned) if is_alone or counting else _AS_IT_IS, together(self.connection):
            before = lock_alive(self, counting, discards.lock_conflicting) if counting else {}
            rows = run(execute, self, returned or None)
            if None in rows:
                rows = _present(rows)
            for tracked in tables:
                add(tracked, self.using, lambda tracked: _inserted(tracked, self, returned, rows, before))
        if len(returned) == len(asked):
            return rows
        return [row[: len(asked)] for row in rows] if asked else []

    return execute_sql


def _wrap_batches(insert: Execute) -> Execute:
    """Wrap the part of ``bulk_create`` that sends its statements, all of them in one transaction."""

    @wraps(insert)
    def _batched_insert(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracked_tables(self.model) or running.batch is not None or not connections[self.db].in_atomic_block:
            return insert(self, *args, **kwargs)
        batch, names = BulkRows(self.db), [tracked.guard.name for tracked in tracked_tables(self.model)]
        try:  # from here on: a batch that is left behind would swallow all later keys of this thread
            running.batch = batch
            unadded.begin(batch, names)
            return insert(self, *args, **kwargs)
        finally:  # after an error too: what was sent before it may be committed in a transaction begun by hand
            running.batch = None
            try:
                batch.add()
            finally:
                unadded.end(batch)

    return _batched_insert


def _present(rows: Any) -> Any:
    """Drop the None that Django returns for a single row skipped by `ignore_conflicts`."""
    return [row for row in rows if row is not None]


@contextmanager
def _compiled(compiler: Any, returned: Sequence[Any]) -> Iterator[None]:
    """Compile an INSERT before its transaction: a field's ``pre_save`` may store files, or must run outside it.

    And before rows are locked by values that ``pre_save`` may change.
    """
    compiler.returning_fields = returned or None
    statements = compiler.as_sql()
    compiler.as_sql = lambda *args, **kwargs: statements
    try:
        yield
    finally:
        del compiler.as_sql


def _counting(tables: Sequence[TrackedTable], compiler: Any) -> Sequence[TrackedTable]:
    """Return the tables whose filter counts its keys, if the INSERT alone does not show which keys are new.

    The inserted row may be not alive, may have existed before, or may be only the parent's part of the guard's row.
    """
    for tracked in tables:
        if tracked.counted:
            break
    else:
        return ()  # nearly always
    on_conflict = compiler.query.on_conflict
    unclear = [each for each in tables if each.counted and (each.guard.alive or on_conflict or each.link)]
    return discards.counting(unclear, compiler.using) if unclear else ()


def _more_to_return(
    compiler: Any, tables: Sequence[TrackedTable], asked: Sequence[Any], counting: Sequence[TrackedTable]
) -> list[Any]:
    """Return the fields to add to ``RETURNING``: guards in use need them, and the instances may not have them."""
    more: list[Any] = []
    for tracked in tables:
        fields = (tracked.primary_key if tracked in counting else tracked.fields) or ()
        for field in fields:
            if field not in asked:
                break
        else:
            continue  # nearly always: Django asks for the primary key
        if _returns(compiler):
            missing = [field for field in fields if field not in asked and field not in more]
            if not missing or fencing.has_nothing_to_add_to(tracked.guard):
                continue
            # The instance does not show whether its row existed before.
            upserts = tracked in counting and compiler.query.on_conflict
            # MySQL and MariaDB may store less than an instance holds: without strict mode, or by INSERT IGNORE.
            if compiler.connection.vendor != "mysql" and not upserts and _instances_hold(tracked, compiler, fields):
                continue
            more += missing
    if more and not may_return(compiler.connection, compiler.query.model._meta.db_table, more, "insert"):
        return []  # if the instances do not hold them, the guards are fenced
    return more if more and _converts(compiler, more) else []


def _returns(compiler: Any) -> bool:
    features = compiler.connection.features
    if len(compiler.query.objs) == 1:
        return bool(features.can_return_columns_from_insert)
    return bool(features.can_return_columns_from_insert and features.can_return_rows_from_bulk_insert)


def _converts(compiler: Any, fields: Sequence[Any]) -> bool:
    """Whether Django can convert these fields: Django 5 fails on the None for a row skipped by `ignore_conflicts`."""
    if compiler.query.on_conflict != OnConflict.IGNORE or len(compiler.query.objs) > 1:
        return True
    return not compiler.get_converters([field.get_col(compiler.query.model._meta.db_table) for field in fields])


def _inserted(
    tracked: TrackedTable, compiler: Any, returned: Sequence[Any], rows: Values, before: Before
) -> WrittenRows | None:
    """Return the inserted rows; ``None`` if too little is known to make their keys."""
    by_key, by_primary_key = (tracked.fields, tracked.link), (tracked.primary_key, tracked.link or "pk")
    if tracked in before and (written := _written_rows(by_primary_key, tracked, compiler, returned, rows)):
        return discards.finish(before, tracked, compiler.using, written)
    return _written_rows(by_key, tracked, compiler, returned, rows) or _written_rows(
        by_primary_key, tracked, compiler, returned, rows
    )


def _written_rows(
    chosen: tuple[Fields | None, str], tracked: TrackedTable, compiler: Any, returned: Sequence[Any], rows: Values
) -> WrittenRows | None:
    fields, link = chosen
    if fields is None:
        return None
    if (rows or _returns(compiler)) and (written := returned_rows(fields, link, returned, rows)):
        return written
    if not _instances_hold(tracked, compiler, fields):
        return None
    names = [field.attname for field in fields]
    values = [tuple(getattr(instance, name) for name in names) for instance in compiler.query.objs]
    return WrittenRows(values, link, stored=False)


def _instances_hold(tracked: TrackedTable, compiler: Any, fields: Fields) -> bool:
    """Whether the instances hold the values of ``fields`` that the new rows store."""
    query = compiler.query
    if query.on_conflict == OnConflict.UPDATE:
        return False  # the existing row that is updated may have another key than the instance
    if not all(field in query.fields for field in fields):
        return False
    if not may_be_trusted(tracked.guard, compiler.connection.vendor):
        return False
    held = [[getattr(each, field.attname) for each in query.objs] for field in fields]
    if not all(map(hold, fields, held)):
        return False
    # Asked again after the statement: meanwhile the `pre_save` of another field may have changed them.
    if vars(compiler).setdefault("_bloomguard_held", {}).setdefault(fields, held) != held:
        return False
    return not may_be_rewritten(compiler, "insert")


# -- DELETE


def _wrap_delete(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, *args: Any, **kwargs: Any) -> Any:
        tables = tracked_tables(self.query.model)
        if not tables:
            if self.query.model is GuardState:
                state_rows.before_change(self.using)
            return execute(self, *args, **kwargs)
        counted = [tracked for tracked in tables if tracked.counted]
        for tracked in counted:
            fencing.refresh(tracked.guard, self.using)
        counting = discards.counting(counted, self.using)
        if not counting:
            return execute(self, *args, **kwargs)
        with together(self.connection):
            before = lock_alive(self, counting, discards.lock)
            result = run(partial(execute, **kwargs), self, *args)
            nothing = WrittenRows((), "pk", stored=True)
            add_all(list(before), self.using, lambda tracked: discards.finish(before, tracked, self.using, nothing))
        return result

    return execute_sql
