"""Keeps filters in step with every statement that Django's ORM writes, inside the transaction that writes it.

The order is statement -> add -> COMMIT: before the commit nobody else sees the row, after it every filter has it, and
a rollback leaves one harmless false positive. Signals cannot give that: they know nothing of ``bulk_create``,
``QuerySet.update`` or historical models, and under autocommit ``post_save`` comes after the COMMIT. So the compilers
that insert and update are wrapped; a statement of a model without a guard costs one dictionary look-up.

Keys are taken from what ``RETURNING`` tells, or from the instances where those certainly hold what is stored; else the
rows are read back. What nobody can tell fences the guard.

While every guard of a table is idle its statements are sent as they are, see :func:`bloomguard.sync.fencing.all_idle`.
A filter that can discard has to be told what is new and what is gone, see :mod:`bloomguard.sync.discards`; any other
takes what it has already once more, and forgets at the next build.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial, wraps
from operator import itemgetter
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, models, transaction
from django.db.models.constants import OnConflict
from django.db.models.sql import compiler as compilers

from ..exceptions import StoreError
from ..models import GuardState
from . import discards, fencing, observer
from .connection import has_own_transaction
from .discards import Alive, Before
from .transactions import together
from .watches import Fields, Watch, watching
from .written import Told, Values, add, add_all

Execute = Callable[..., Any]

#: How many of the rows that an UPDATE returns are in memory at a time.
_ROWS_AT_ONCE = 2_000


class _Running(threading.local):
    """The table that this thread's compiled statement writes: its SQL is not raw."""

    table: str | None = None


running = _Running()


def connect() -> None:
    """Wrap the compilers; done once, for all databases."""
    insert: Any = compilers.SQLInsertCompiler
    update: Any = compilers.SQLUpdateCompiler
    delete: Any = compilers.SQLDeleteCompiler
    if not hasattr(insert.execute_sql, "of_bloomguard"):  # another package's wrapper may be there
        insert.execute_sql = _inserting(insert.execute_sql)
        insert.execute_sql.of_bloomguard = True
        update.execute_sql = _updating(update.execute_sql)
        if hasattr(update, "execute_returning_sql"):  # Django 6
            update.execute_returning_sql = _returning(update.execute_returning_sql)
        delete.execute_sql = _deleting(delete.execute_sql)
    observer.connect()


def _run(execute: Execute, compiler: Any, *arguments: Any) -> Any:
    outer, running.table = running.table, compiler.query.model._meta.db_table
    try:
        return execute(compiler, *arguments)
    finally:
        running.table = outer


def _unwatched(execute: Execute, compiler: Any, *arguments: Any) -> Any:
    if compiler.query.model is GuardState:
        fencing.before_state_rows_change(compiler.using)
    return execute(compiler, *arguments)


def _idle(watches: Sequence[Watch], using: str) -> dict[Any, float] | None:
    return fencing.all_idle([watch.guard for watch in watches], using)


def _look_again(
    watches: Sequence[Watch], idle: dict[Any, float], using: str, tell: Callable[[Watch], Told | None]
) -> None:
    """After a statement that was sent as it is: add its keys if it took so long that a scan may have missed its rows.

    Under autocommit the rows can be seen by then, but nobody was told of the COMMIT yet.
    """
    late = [watch for watch in watches if not fencing.was_idle(watch.guard, idle[watch.guard])]
    if not late:
        return
    connection: Any = connections[using]
    if connection.in_atomic_block:
        with transaction.atomic(using=using, savepoint=False):
            add_all(late, using, tell)
        return
    try:
        add_all(late, using, tell)
    except StoreError:
        if has_own_transaction(connection):
            connection.rollback()  # there is no other way to be sure that it is not committed
        raise


def _lock(compiler: Any, counting: Sequence[Watch], lock: Callable[[Any, Watch], Alive]) -> Before:
    return discards.before(counting, compiler.using, lambda watch: _run(lock, compiler, watch))


def _settle(before: Before, watch: Watch, using: str, told: Told | None) -> Told | None:
    """Of the rows written, those that are new to a filter which would count them twice."""
    if told is None or watch not in before:
        return told
    return Told(discards.settle(watch, using, before[watch], told.link, told.values), "", stored=True)


# -- INSERT


def _inserting(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, returning_fields: Any = None) -> Any:
        watches = watching(self.query.model)
        if not watches:
            return _unwatched(execute, self, returning_fields)
        asked = list(returning_fields or ())
        idle = _idle(watches, self.using)
        if idle is not None:
            rows = _run(execute, self, returning_fields)
            _look_again(watches, idle, self.using, lambda watch: _inserted(watch, self, asked, _present(rows), {}))
            return rows
        counting = discards.counting([watch for watch in watches if _is_partial(watch, self)], self.using)
        returned = [*asked, *_more_to_return(self, watches, asked, counting)]
        with _compiled(self, returned), together(self.using):
            before = _lock(self, counting, discards.lock_conflicting)
            rows = _present(_run(execute, self, returned or None))
            for watch in watches:
                add(watch, self.using, lambda watch: _inserted(watch, self, returned, rows, before))
        if len(returned) == len(asked):
            return rows
        return [row[: len(asked)] for row in rows] if asked else []

    return execute_sql


def _present(rows: Any) -> Any:
    """Without the single row that `ignore_conflicts` left out, which is returned as None."""
    return [row for row in rows if row is not None]


@contextmanager
def _compiled(compiler: Any, returned: Sequence[Any]) -> Iterator[None]:
    """Compile an INSERT now: its fields' ``pre_save`` may store files, or ask for what a transaction cannot give."""
    compiler.returning_fields = returned or None
    statements = compiler.as_sql()
    compiler.as_sql = lambda *args, **kwargs: statements
    try:
        yield
    finally:
        del compiler.as_sql


def _is_partial(watch: Watch, compiler: Any) -> bool:
    """Whether not every row that is sent need be alive, or new, or all of its guard's row."""
    return bool(watch.guard.alive or compiler.query.on_conflict or watch.link)


def _more_to_return(
    compiler: Any, watches: Sequence[Watch], asked: Sequence[Any], counting: Sequence[Watch]
) -> list[Any]:
    """The fields that have to be asked for besides: whose values the instances do not tell, for guards in use."""
    more: list[Any] = []
    if _returns(compiler):
        for watch in watches:
            fields = watch.primary_key if watch in counting else watch.fields
            missing = [field for field in fields or () if field not in asked and field not in more]
            if fields is None or not missing or fencing.has_nothing_to_add_to(watch.guard):
                continue
            # Of a row that was there already, the instance does not tell so.
            if _instances_tell(compiler.query, fields) and not (watch in counting and compiler.query.on_conflict):
                continue
            more += missing
    return more if _converts(compiler, more) else []


def _returns(compiler: Any) -> bool:
    features = compiler.connection.features
    if len(compiler.query.objs) == 1:
        return bool(features.can_return_columns_from_insert)
    return bool(features.can_return_columns_from_insert and features.can_return_rows_from_bulk_insert)


def _converts(compiler: Any, fields: Sequence[Any]) -> bool:
    """Django 5 stumbles over converting the one row that `ignore_conflicts` left out."""
    if compiler.query.on_conflict != OnConflict.IGNORE or len(compiler.query.objs) > 1:
        return True
    return not compiler.get_converters([field.get_col(compiler.query.model._meta.db_table) for field in fields])


def _inserted(watch: Watch, compiler: Any, returned: Sequence[Any], rows: Values, before: Before) -> Told | None:
    """What is known of the rows inserted; ``None`` if it is not enough to have their keys."""
    by_key, by_primary_key = (watch.fields, watch.link), (watch.primary_key, watch.link or "pk")
    if watch in before and (told := _told(by_primary_key, compiler, returned, rows)):
        return _settle(before, watch, compiler.using, told)
    return _told(by_key, compiler, returned, rows) or _told(by_primary_key, compiler, returned, rows)


def _told(chosen: tuple[Fields | None, str], compiler: Any, returned: Sequence[Any], rows: Values) -> Told | None:
    fields, link = chosen
    if fields is None:
        return None
    known = all(field in returned for field in fields) and (rows or _returns(compiler))
    if known and (told := _of_rows(fields, link, returned, rows)):
        return told
    if not _instances_tell(compiler.query, fields):
        return None
    names = [field.attname for field in fields]
    values = [tuple(getattr(instance, name) for name in names) for instance in compiler.query.objs]
    return Told(values, link, stored=False)


def _of_rows(fields: Fields, link: str, returned: Sequence[Any], rows: Values) -> Told | None:
    """What the returned rows tell; some databases tell the last ID and nothing else."""
    places = [list(returned).index(field) for field in fields]
    if rows and len(rows[0]) <= max(places):
        return None
    values = rows if rows and len(rows[0]) == 1 else list(zip(*(map(itemgetter(place), rows) for place in places)))
    return Told(values, link, stored=True)


def _instances_tell(query: Any, fields: Fields) -> bool:
    """Whether the instances hold, for each of ``fields``, what is stored in the rows that are new."""
    if query.on_conflict == OnConflict.UPDATE:
        return False  # the row that is changed may have another key than the one that was to be inserted
    if not all(_is_plain(field) and field in query.fields for field in fields):
        return False
    return not any(
        hasattr(getattr(instance, field.attname), "resolve_expression") for instance in query.objs for field in fields
    )


@lru_cache(maxsize=1000)
def _is_plain(field: Any) -> bool:
    """Whether a field stores what an instance holds, or what ``to_python`` makes of it."""
    if isinstance(field, models.DecimalField):
        return False  # it rounds
    methods = (getattr(field, name) for name in ("pre_save", "get_prep_value", "get_db_prep_value", "get_db_prep_save"))
    return all(method.__module__.startswith("django.") for method in methods)


# -- UPDATE


def _updating(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, result_type: Any) -> Any:
        watches = watching(self.query.model)
        if not watches:
            return _unwatched(execute, self, result_type)
        touched = _touched(watches, self.query)
        if not touched:
            return _run(execute, self, result_type)
        idle = _idle(touched, self.using)
        if idle is None:
            return _update(self, touched, result_type)
        changed = _run(execute, self, result_type)
        _look_again(touched, idle, self.using, lambda watch: None)
        return changed

    return execute_sql


def _returning(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_returning_sql(self: Any, returning_fields: Any) -> Any:
        touched = _touched(watching(self.query.model), self.query)
        if not touched or not returning_fields or not self.connection.features.can_return_rows_from_update:
            return execute(self, returning_fields)
        idle = _idle(touched, self.using)
        if idle is not None:
            rows = _run(execute, self, returning_fields)
            _look_again(touched, idle, self.using, lambda watch: None)
            return rows
        counting = discards.counting(touched, self.using)
        with together(self.using):
            before = _lock(self, counting, discards.lock)
            more = [field for field in _told_of(touched, before) if field not in returning_fields]
            returned = [*returning_fields, *more]
            rows = _run(execute, self, returned)
            add_all(touched, self.using, lambda watch: _updated(watch, self.using, returned, rows, before))
        return [row[: len(returning_fields)] for row in rows]

    return execute_returning_sql


def _touched(watches: Sequence[Watch], query: Any) -> list[Watch]:
    """Those for which an UPDATE can bring up a new key: it sets the key, or what decides who is alive."""
    if not watches:
        return []
    written = {field.column for field, _, _ in query.values}
    return [watch for watch in watches if not written.isdisjoint(watch.columns)]


def _told_of(watches: Sequence[Watch], before: Before) -> list[Any]:
    fields = [watch.primary_key if watch in before else watch.fields for watch in watches]
    return list(dict.fromkeys(field for some in fields for field in some or ()))


def _updated(watch: Watch, using: str, returned: Sequence[Any], rows: Values, before: Before) -> Told | None:
    fields, link = (watch.primary_key, watch.link or "pk") if watch in before else (watch.fields, watch.link)
    if fields is None:
        return None
    return _settle(before, watch, using, _of_rows(fields, link, returned, rows))


def _update(compiler: Any, watches: Sequence[Watch], result_type: Any) -> int:
    """Do what the compiler's own method does, and learn which rows it changed.

    ``RETURNING`` tells exactly. Where the database has none, the rows are locked first and looked up afterwards.
    """
    try:
        sql, parameters = compiler.as_sql()
    except EmptyResultSet:
        sql = ""
    changed: int | None = None
    if sql:
        with together(compiler.using):
            changed = _send(compiler, watches, sql, parameters)
    # As Django does it: the tables of the parents come after, each in a transaction of its own under autocommit.
    for query in compiler.query.get_related_updates():
        related = query.get_compiler(compiler.using).execute_sql(result_type)
        changed = related if changed is None and related else changed
    return changed or 0


def _send(compiler: Any, watches: Sequence[Watch], sql: str, parameters: Any) -> int:
    """Send the statement, add the keys of the rows that it changed, or fence if they are many; how many they are."""
    connection, using = compiler.connection, compiler.using
    before = _lock(compiler, discards.counting(watches, using), discards.lock)
    if connection.vendor not in ("postgresql", "sqlite") or not connection.features.can_return_columns_from_insert:
        keys = _locked(compiler)
        changed: int = _run(_execute_returning, compiler, sql, parameters, [], None)
        add_all(watches, using, lambda watch: _looked_up(watch, compiler, keys, before))
        return changed
    returned = _told_of(watches, before)
    if not returned:
        changed = _run(_execute_returning, compiler, sql, parameters, [], None)
        add_all(watches, using, lambda watch: None)
        return changed
    whole: dict[Watch, list[Any]] = {watch: [] for watch in before if before[watch].rows}

    def add_some(rows: Values) -> None:
        for watch in watches:
            if watch in whole:  # what is gone is known when all rows are
                whole[watch] += rows
            else:
                add(watch, using, partial(_updated, using=using, returned=returned, rows=rows, before=before))

    changed = _run(_execute_returning, compiler, sql, parameters, returned, add_some)
    if changed > discards.MOST_ROWS:
        for watch in watches:
            fencing.fence(watch.guard, using, f"more than {discards.MOST_ROWS:,} rows were changed by one UPDATE")
        return changed
    for watch, rows in whole.items():
        add(watch, using, partial(_updated, using=using, returned=returned, rows=rows, before=before))
    return changed


def _execute_returning(
    compiler: Any, sql: str, parameters: Any, returned: Sequence[Any], give: Callable[[Values], None] | None
) -> int:
    """How many rows there are. Those returned are given some at a time, and not all if they are too many."""
    connection, table = compiler.connection, compiler.query.model._meta.db_table
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        if give is None:
            cursor.execute(sql, parameters)
            return cursor.rowcount  # type: ignore[no-any-return]
        names = ", ".join(f"{quote(table)}.{quote(field.column)}" for field in returned)
        cursor.execute(f"{sql} RETURNING {names}", parameters)
        converters = compiler.get_converters([field.get_col(table) for field in returned])
        changed = 0
        while max(changed, cursor.rowcount) <= discards.MOST_ROWS:
            rows = cursor.fetchmany(_ROWS_AT_ONCE)
            if not rows:
                return changed
            changed += len(rows)
            give(list(compiler.apply_converters(rows, converters)) if converters else rows)
        changed = int(cursor.rowcount)
    if connection.vendor == "sqlite":  # which knows only when the cursor is closed
        with connection.wrap_database_errors:
            changed = connection.connection.execute("SELECT changes()").fetchone()[0]
    return changed


def _locked(compiler: Any) -> Values | None:
    """The primary keys of the rows that an UPDATE will change, locked so that it changes no others.

    ``None`` if they are too many to be kept.
    """
    model = compiler.query.model
    rows: Any = models.QuerySet(model, using=compiler.using).select_for_update()
    rows.query.where = compiler.query.where
    keys = rows.order_by().values_list(*(field.attname for field in model._meta.pk_fields))[: discards.MOST_ROWS + 1]
    return list(keys) if len(keys) <= discards.MOST_ROWS else None


def _looked_up(watch: Watch, compiler: Any, keys: Values | None, before: Before) -> Told | None:
    if (
        keys is None
        or watch.primary_key is None
        or any(field in watch.primary_key for field, _, _ in compiler.query.values)
    ):
        return None
    return _settle(before, watch, compiler.using, Told(keys, watch.link or "pk", stored=True))


# -- DELETE


def _deleting(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, *args: Any, **kwargs: Any) -> Any:
        watches = watching(self.query.model)
        if not watches:
            return _unwatched(partial(execute, **kwargs), self, *args)
        counted = [watch for watch in watches if watch.counted]
        for watch in counted:
            fencing.refresh(watch.guard, self.using)
        counting = discards.counting(counted, self.using)
        if not counting:
            return execute(self, *args, **kwargs)
        with together(self.using):
            before = _lock(self, counting, discards.lock)
            result = _run(partial(execute, **kwargs), self, *args)
            add_all(list(before), self.using, lambda watch: _settle(before, watch, self.using, Told((), "pk", True)))
        return result

    return execute_sql
