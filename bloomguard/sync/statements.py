"""Keeps filters in step with every statement that Django's ORM writes, inside the transaction that writes it.

The order is statement -> add -> COMMIT: before the commit nobody else sees the row, after it every filter has it, and
a rollback leaves one harmless false positive. Signals cannot give that: they know nothing of ``bulk_create``,
``QuerySet.update`` or historical models, and under autocommit ``post_save`` comes after the COMMIT. So the compilers
that insert and update are wrapped; a statement on a table without a guard costs one dictionary look-up.

A filter that can discard has to be told what is new and what is gone, see :mod:`bloomguard.sync.discards`; any other
takes what it has already once more, and forgets at the next build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import compiler as compilers
from django.db.models.sql.constants import NO_RESULTS

from ..guards import Guard, registry
from ..keys import OutOfRange, Unkeyable
from . import discards, fencing

Execute = Callable[..., Any]

_guards_of: dict[str, tuple[Guard, ...]] = {}
_version = -1


def guards_of(table: str) -> tuple[Guard, ...]:
    """The guards whose keys, or whose living rows, depend on ``table``."""
    global _version
    if _version != registry.version:
        _guards_of.clear()
        for guard in registry:
            if guard.sync == "statements":
                for each in guard.tables:
                    _guards_of[each] = (*_guards_of.get(each, ()), guard)
        _version = registry.version
    return _guards_of.get(table, ())


def connect() -> None:
    """Wrap the compilers; done once, for all databases."""
    insert: Any = compilers.SQLInsertCompiler
    update: Any = compilers.SQLUpdateCompiler
    delete: Any = compilers.SQLDeleteCompiler
    wrapper: Any = BaseDatabaseWrapper
    if not hasattr(insert.execute_sql, "__wrapped__"):
        insert.execute_sql = _inserting(insert.execute_sql)
        update.execute_sql = _updating(update.execute_sql)
        if hasattr(update, "execute_returning_sql"):  # Django 6
            update.execute_returning_sql = _returning(update.execute_returning_sql)
        delete.execute_sql = _deleting(delete.execute_sql)
        wrapper.commit = discards.watched(wrapper.commit)


def _inserting(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, returning_fields: Any = None) -> Any:
        guards = guards_of(self.query.get_meta().db_table)
        if not guards:
            return execute(self, returning_fields)
        with transaction.atomic(using=self.using, savepoint=False):
            wanted = list(returning_fields or ())
            primary_key = self.query.get_meta().pk
            many = self.connection.features.can_return_rows_from_bulk_insert
            counting = [guard for guard in guards if guard.discards]
            before = {guard: discards.lock_conflicting(guard, self) for guard in counting}
            if (
                (primary_key not in self.query.fields or counting)
                and primary_key not in wanted
                and (many or len(self.query.objs) == 1)
            ):
                wanted.append(primary_key)  # asked for by us alone: `ignore_conflicts` does not tell its keys
            # A single row that `ignore_conflicts` left out is returned as None.
            rows = [row for row in execute(self, wanted or None) if row is not None]
            told = [row[wanted.index(primary_key)] for row in rows] if primary_key in wanted else None
            for guard in guards:
                # Not every row that was sent need be alive, or new, or all of its guard's row.
                partial = guard.alive or self.query.on_conflict or len(guard.tables) > 1
                if guard in before and partial and told is not None:
                    _add(guard, self.using, discards.settle(guard, self.using, before[guard], told))
                else:
                    _add(guard, self.using, _inserted(guard, self, wanted, rows))
        asked = len(returning_fields or ())
        return [row[:asked] for row in rows] if asked else []

    return execute_sql


def _inserted(guard: Guard, compiler: Any, returned: Sequence[Any], rows: Sequence[Any]) -> Iterable[Any] | None:
    """The guard's values of the rows that were inserted; ``None`` if nobody can say what they are."""
    written = {field.attname for field in compiler.query.fields}
    column = {field.attname: index for index, field in enumerate(returned)}
    if all(name in column for name in guard.attnames):
        return [_one(tuple(row[column[name]] for name in guard.attnames)) for row in rows]
    found = []
    for index, instance in enumerate(compiler.query.objs):
        row = rows[index] if len(rows) == len(compiler.query.objs) else None
        values = []
        for name in guard.attnames:
            value = row[column[name]] if row is not None and name in column else getattr(instance, name, None)
            if hasattr(value, "resolve_expression"):
                return _stored(guard, compiler, returned, rows)
            if value is None and name not in written:
                return _stored(guard, compiler, returned, rows)
            values.append(value)
        found.append(_one(tuple(values)))
    return found


def _stored(guard: Guard, compiler: Any, returned: Sequence[Any], rows: Sequence[Any]) -> Iterable[Any] | None:
    """The same, read back by primary key: the database worked a value out by itself."""
    primary_key = compiler.query.get_meta().pk
    if primary_key in returned and rows:
        keys = [row[list(returned).index(primary_key)] for row in rows]
    else:
        keys = [getattr(instance, primary_key.attname, None) for instance in compiler.query.objs]
        if any(key is None or hasattr(key, "resolve_expression") for key in keys):
            return None
    return _by_primary_key(guard, compiler.using, keys)


def _updating(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, result_type: Any) -> Any:
        guards = _touched(self.query)
        if not guards:
            return execute(self, result_type)
        with transaction.atomic(using=self.using, savepoint=False):
            return _update(self, guards, result_type)

    return execute_sql


def _returning(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_returning_sql(self: Any, returning_fields: Any) -> Any:
        guards = _touched(self.query)
        if not guards or not returning_fields or not self.connection.features.can_return_rows_from_update:
            return execute(self, returning_fields)
        with transaction.atomic(using=self.using, savepoint=False):
            primary_key = self.query.get_meta().pk
            before = {guard: discards.lock(guard, self) for guard in guards if guard.discards}
            rows = execute(self, [*returning_fields, primary_key])
            _follow(guards, self.using, before, [row[-1] for row in rows])
        return [row[:-1] for row in rows]

    return execute_returning_sql


def _touched(query: Any) -> list[Guard]:
    """The guards for which an UPDATE can bring up a new key: it sets the key, or what decides who is alive."""
    guards = guards_of(query.get_meta().db_table)
    if not guards:
        return []
    names = {field.attname for field, _, _ in query.values} | {field.name for field, _, _ in query.values}
    return [guard for guard in guards if not names.isdisjoint((*guard.attnames, *guard.alive_fields))]


def _update(compiler: Any, guards: Sequence[Guard], result_type: Any) -> Any:
    """Do what the compiler's own method does, and learn which rows it changed.

    ``RETURNING`` tells exactly. Where the database has none, the rows are locked first and looked up afterwards.
    """
    keys: list[Any] = []
    changed: int | None = None
    try:
        sql, parameters = compiler.as_sql()
    except EmptyResultSet:
        sql = ""
    if sql:
        connection, primary_key = compiler.connection, compiler.query.get_meta().pk
        before = {guard: discards.lock(guard, compiler) for guard in guards if guard.discards}
        with connection.cursor() as cursor:
            if connection.features.can_return_columns_from_insert and connection.vendor in ("postgresql", "sqlite"):
                column = connection.ops.quote_name(primary_key.column)
                cursor.execute(f"{sql} RETURNING {column}", parameters)
                rows = cursor.fetchall()
                columns = [primary_key.get_col(compiler.query.get_meta().db_table)]
                converters = compiler.get_converters(columns)
                if converters:
                    rows = list(compiler.apply_converters(rows, converters))
                keys = [row[0] for row in rows]
                changed = len(keys)
            else:
                keys = _locked(compiler)
                cursor.execute(sql, parameters)
                changed = cursor.rowcount
        _follow(guards, compiler.using, before, keys)
    for query in compiler.query.get_related_updates():
        related = query.get_compiler(compiler.using).execute_sql(result_type)
        changed = related if changed is None and related else changed
    return None if result_type == NO_RESULTS else changed or 0


def _follow(guards: Sequence[Guard], using: str, before: dict[Guard, discards.Alive], keys: Sequence[Any]) -> None:
    """Bring every guard up to date with an UPDATE of the rows that have these primary keys now."""
    for guard in guards:
        if guard in before:
            _add(guard, using, discards.settle(guard, using, before[guard], keys))
        else:
            _add(guard, using, _by_primary_key(guard, using, keys))


def _deleting(execute: Execute) -> Execute:
    @wraps(execute)
    def execute_sql(self: Any, *args: Any, **kwargs: Any) -> Any:
        guards = [guard for guard in guards_of(self.query.get_meta().db_table) if guard.discards]
        if not guards:
            return execute(self, *args, **kwargs)
        with transaction.atomic(using=self.using, savepoint=False):
            before = {guard: discards.lock(guard, self) for guard in guards}
            result = execute(self, *args, **kwargs)
            _follow(guards, self.using, before, ())
        return result

    return execute_sql


def _locked(compiler: Any) -> list[Any]:
    """The primary keys of the rows that an UPDATE will change, locked so that it changes no others."""
    rows = compiler.query.model._base_manager.using(compiler.using).select_for_update()
    rows.query.where = compiler.query.where
    return list(rows.order_by().values_list("pk", flat=True))


def _by_primary_key(guard: Guard, using: str, keys: Sequence[Any]) -> list[Any]:
    """The guard's values of the rows with these primary keys, which parents and children share, as they are now."""
    rows = guard.model._base_manager.using(using)
    found: list[Any] = []
    step = 500  # below every database's limit of parameters
    for start in range(0, len(keys), step):
        some = rows.filter(pk__in=keys[start : start + step]).values_list(*guard.attnames)
        found += [_one(values) for values in some]
    return found


def _one(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _add(guard: Guard, using: str, values: Iterable[Any] | None) -> None:
    """Add the rows' keys before they are committed; what cannot be proved fences the guard."""
    if values is None:
        fencing.fence(guard, using, "rows were written whose keys the database did not tell")
        return
    keys = []
    for value in values:
        try:
            keys.append(guard.keys.key(value))
        except (Unkeyable, OutOfRange):
            if value is not None and not (isinstance(value, tuple) and None in value):
                fencing.fence(guard, using, "a row was written whose key cannot be made")
                return
    if keys and not guard.live.add(keys):
        fencing.fence(guard, using, "a written row could not be added to its filter")
