"""Wrappers of the ORM's UPDATE and DELETE: new keys of the changed rows are added before the COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import DatabaseError, Error, OperationalError, models
from django.db.models import Lookup, Transform, expressions
from django.db.models.sql.compiler import SQLDeleteCompiler, SQLUpdateCompiler
from django.db.models.sql.where import NothingNode, WhereNode

from ..guards.fields import is_djangos_compiler, makes_djangos_sql, parts_of
from ..guards.keys import unwrapped
from ..state.connection import is_denied
from ..state.fresh_rows import fresh_rows
from ..state.transactions import may_go_on, together
from . import discards, fencing, joined
from .consequences import may_be_rewritten
from .discards import Before
from .rights import may_return
from .rows import Values, WrittenRows, returned_rows
from .statements import Execute, add_all, add_if_late, fence_all, run, run_idle, running, sent_by, split_idle, wrap
from .tables import TrackedTable, folded_column, tracked_tables

#: Changed rows that are in memory at a time.
PIECE = 10_000


def connect() -> None:
    """Wrap the compilers of UPDATE and DELETE for all databases, once."""
    wrap(SQLUpdateCompiler, "execute_sql", sent_by(_update))
    if hasattr(SQLUpdateCompiler, "execute_returning_sql"):  # Django 6
        wrap(SQLUpdateCompiler, "execute_returning_sql", sent_by(_update_returning))
    wrap(SQLDeleteCompiler, "execute_sql", sent_by(_delete))


def _update(execute: Execute, compiler: Any, tables: Sequence[TrackedTable], result_type: Any) -> Any:
    touched = _touched(tables, compiler)
    if not touched:
        return run(execute, compiler, result_type)
    used, idle = split_idle(touched, compiler, _touched)
    if not used:
        return run_idle(execute, compiler, (result_type,), idle, _unknown)
    return _update_and_add(compiler, used, result_type, partial(add_if_late, idle, _unknown))


def _update_returning(execute: Execute, compiler: Any, tables: Sequence[TrackedTable], returning_fields: Any) -> Any:
    touched, connection, using = _touched(tables, compiler), compiler.connection, compiler.using
    if not returning_fields or not connection.features.can_return_rows_from_update:
        return execute(compiler, returning_fields)  # by `execute_sql`
    if not touched:
        return run(execute, compiler, returning_fields)
    used, idle = split_idle(touched, compiler, _touched)
    if not used:
        return run_idle(execute, compiler, (returning_fields,), idle, _unknown)
    counting = discards.counting(used, using)
    with together(connection):
        _lock_joined(compiler, used)
        before = discards.lock(compiler, counting)
        more = [field for field in _fields_to_return(used, before) if field not in returning_fields]
        if more and not may_return(connection, compiler.query.model._meta.db_table, more, "update", reads=True):
            more = []  # too little is known then, so the guards are fenced
        returned = [*returning_fields, *more]
        rows = run(execute, compiler, returned)
        add_all(used, using, lambda tracked: _updated(tracked, using, returned, rows, before))
        add_if_late(idle, _unknown)
    return [row[: len(returning_fields)] for row in rows]


def _unknown(tracked: TrackedTable, result: Any = None) -> None:
    """Return ``None``: the UPDATE of an idle guard was sent unchanged, so the rows that it changed are not known."""


def _touched(tables: Sequence[TrackedTable], compiler: Any) -> Sequence[TrackedTable]:
    """Return the tables where this UPDATE can make a new key: it sets a column of the key or of ``alive``.

    Or a trigger may set one.
    """
    found = _setting(tables, compiler)
    if len(found) < len(tables):
        # By the state rows as they are now, another version of the project may watch this column. Of a row that exists
        # a request may not have read them for hours.
        fencing.refresh(tables[0].guard, compiler.using)
        tables = tracked_tables(compiler.query.model)
        found = _setting(tables, compiler)
    return tables if len(found) < len(tables) and may_be_rewritten(compiler, "update") else found


def _setting(tables: Sequence[TrackedTable], compiler: Any) -> Sequence[TrackedTable]:
    written = _written_columns(compiler)
    return [tracked for tracked in tables if not written.isdisjoint(tracked.columns)]


def _written_columns(compiler: Any) -> set[str]:
    return {folded_column(field) for field, _, _ in compiler.query.values}


def _fields_to_return(tables: Sequence[TrackedTable], before: Before) -> list[Any]:
    fields = [tracked.primary_key if tracked in before else tracked.fields for tracked in tables]
    return list(dict.fromkeys(field for some in fields for field in some or ()))


def _updated(
    tracked: TrackedTable, using: str, returned: Sequence[Any], rows: Values, before: Before
) -> WrittenRows | None:
    fields, link = (tracked.primary_key, tracked.link or "pk") if tracked in before else (tracked.fields, tracked.link)
    if fields is None:
        return None
    return discards.finish(before, tracked, using, returned_rows(fields, link, returned, rows))


def _update_and_add(
    compiler: Any, tables: Sequence[TrackedTable], result_type: Any, catch_up: Callable[[], None]
) -> int:
    """Do what the compiler's own method does, and add the keys of the rows that it changed; then call ``catch_up``.

    ``RETURNING`` lists those rows. Without it the rows are locked before the UPDATE and looked up after it.
    """
    try:
        sql, parameters = compiler.as_sql()
    except EmptyResultSet:
        sql = ""
    changed: int | None = None
    if sql:
        with together(compiler.connection):
            changed = _send(compiler, tables, sql, parameters)
            catch_up()
    # As in Django, the parents' tables come next; under autocommit each has a transaction of its own.
    for query in compiler.query.get_related_updates():
        related = query.get_compiler(compiler.using).execute_sql(result_type)
        changed = related if changed is None and related else changed
    return changed or 0


def _send(compiler: Any, tables: Sequence[TrackedTable], sql: str, parameters: Any) -> int:
    """Send the UPDATE, add the keys of the changed rows, or fence; return the number of rows."""
    connection, using, keys = compiler.connection, compiler.using, None
    table = compiler.query.model._meta.db_table
    changed: int
    _lock_joined(compiler, tables)
    before = discards.lock(compiler, discards.counting(tables, using))
    is_djangos = is_djangos_compiler(compiler)  # another package's may change other rows, or take nothing at its end
    if connection.vendor not in ("postgresql", "sqlite"):
        if is_djangos and selects_the_same_again(compiler.query.where):
            keys = _locked(compiler)
    elif (
        connection.features.can_return_columns_from_insert  # not on SQLite before 3.35, see `database_refusals`
        and (returned := _fields_to_return(tables, before))
        and (is_djangos or makes_djangos_sql(compiler, (sql, parameters), text_only=True))
        and may_return(connection, table, returned, "update", reads=bool(compiler.query.where))
    ):
        try:
            return run(_execute_returning, compiler, tables, (sql, parameters), returned, before)  # type: ignore[no-any-return]
        except OperationalError as error:
            # A virtual table of SQLite has refused the statement as a whole: it is sent unchanged.
            if "RETURNING is not available" not in str(error):
                raise
    changed = run(_execute, compiler, sql, parameters)
    if keys is not None and changed != len(keys):
        keys = None  # at READ COMMITTED a locking read keeps no other row from coming to match
    add_all(tables, using, lambda tracked: _looked_up(tracked, compiler, keys, before))
    return changed


def _lock_joined(compiler: Any, tables: Sequence[TrackedTable]) -> None:
    """Lock the rows of all tables that the guards' keys are made of, if the UPDATE certainly changes the same rows."""
    due = [tracked for tracked in tables if tracked.is_joined]
    if due and selects_the_same_again(compiler.query.where):
        for tracked in due:
            joined.lock_rows(compiler, tracked, discards.MOST_ROWS + 1)


def _execute(compiler: Any, sql: str, parameters: Any) -> int:
    """Execute the UPDATE and return its number of rows."""
    with compiler.connection.cursor() as cursor:
        running.due = compiler.query.model._meta.db_table, [sql]
        cursor.execute(sql, parameters)
        return cursor.rowcount  # type: ignore[no-any-return]


def _execute_returning(
    compiler: Any, tables: Sequence[TrackedTable], compiled: tuple[str, Any], returned: Sequence[Any], before: Before
) -> int:
    """Execute the UPDATE, add the keys of the changed rows and return their number."""
    connection, using, table = compiler.connection, compiler.using, compiler.query.model._meta.db_table
    quote = connection.ops.quote_name
    names = ", ".join(f"{quote(table)}.{quote(field.column)}" for field in returned)
    sql, parameters = compiled
    changed = 0
    with connection.cursor() as cursor:
        running.due = table, [sql := f"{sql} RETURNING {names}"]
        cursor.execute(sql, parameters)
        try:
            converters = compiler.get_converters([field.get_col(table) for field in returned])
            # Only all rows together show which keys are gone.
            while rows := cursor.fetchmany(discards.MOST_ROWS + 1 if before else PIECE):
                changed += len(rows)
                if changed > discards.MOST_ROWS:
                    before = dict.fromkeys(before, discards.Alive())
                converted = list(compiler.apply_converters(rows, converters)) if converters else rows
                written_to = partial(_updated, using=using, returned=returned, rows=converted, before=before)
                add_all(tables, using, written_to)
            return changed
        except Error:
            # No further row is read. The driver alone may refuse one, such as a date after the year 9999: then the
            # transaction can still be committed.
            if may_go_on(connection):
                fence_all(tables, using, "changed rows could not be read back")
            raise


def _locked(compiler: Any) -> Values | None:
    """Lock the rows that the UPDATE will change, so that it changes no others; return their primary keys.

    ``None`` if they are more than ``MOST_ROWS``, or if the login may not read them.
    """
    model = compiler.query.model
    rows: Any = models.QuerySet(model, using=compiler.using).order_by()
    rows.query.where = compiler.query.where
    chosen = rows.values_list(*(field.attname for field in model._meta.pk_fields))[: discards.MOST_ROWS + 1]
    try:
        if compiler.connection.get_autocommit():  # a transaction begun by hand, in which Django refuses to lock rows
            sql, parameters = chosen.query.get_compiler(compiler.using).as_sql()
            with compiler.connection.cursor() as cursor:
                cursor.execute(f"{sql} FOR UPDATE", parameters)
                keys = list(cursor.fetchall())
        else:
            keys = list(fresh_rows(chosen.select_for_update()))
    except DatabaseError as error:
        if not is_denied(error) and error.args[:1] != joined.TOO_BIG:
            raise
        return None
    return keys if len(keys) <= discards.MOST_ROWS else None


def _are_all_there(compiler: Any, keys: Values) -> bool:
    """Whether each of the locked rows still has one of these primary keys."""
    rows: Any = models.QuerySet(compiler.query.model, using=compiler.using)
    return len(list(joined.rows_by(rows, "pk", list(map(unwrapped, keys)), "pk"))) == len(keys)


def _looked_up(tracked: TrackedTable, compiler: Any, keys: Values | None, before: Before) -> WrittenRows | None:
    # The statement's model may have another primary key than the guard's.
    if keys is None or tracked.primary_key != tuple(compiler.query.model._meta.pk_fields):
        return None
    if not _written_columns(compiler).isdisjoint(map(folded_column, tracked.primary_key)):
        return None
    if may_be_rewritten(compiler, "update") and not _are_all_there(compiler, keys):
        return None  # a trigger has changed primary keys
    return discards.finish(before, tracked, compiler.using, WrittenRows(keys, tracked.link or "pk", stored=True))


# -- DELETE


def _delete(execute: Execute, compiler: Any, tables: Sequence[TrackedTable], *args: Any, **kwargs: Any) -> Any:
    counted, using = [tracked for tracked in tables if tracked.counted], compiler.using
    for tracked in counted:
        fencing.refresh(tracked.guard, using)
    counting = discards.counting(counted, using) if counted and not _matches_nothing(compiler) else []
    if not counting:
        return execute(compiler, *args, **kwargs)
    with together(compiler.connection):
        before = discards.lock(compiler, counting)
        result = run(partial(execute, **kwargs), compiler, *args)
        nothing = WrittenRows((), "pk", stored=True)
        add_all(list(before), using, lambda tracked: discards.finish(before, tracked, using, nothing))
    return result


def _matches_nothing(compiler: Any) -> bool:
    """Whether Django knows that no row matches, and sends nothing."""
    try:
        compiler.as_sql()
    except EmptyResultSet:
        return True
    return False


# -- whether two statements in a row with one WHERE certainly select the same rows

# Without RETURNING, the rows that an UPDATE will change are selected before it, by its own WHERE. The UPDATE selects
# others if that depends on anything but locked rows and constants: on chance, the time, or the rows of a subquery. So
# each part has to be in a list of those that are known.

#: Of these modules of Django each function depends on its arguments alone, as each ``Transform`` of Django does.
_PURE = {"django.db.models.functions.comparison", "django.db.models.functions.text"}
#: Compared by their exact class, as a subclass may mean something else.
_EXPRESSIONS = """
    Case Col ColPairs CombinedExpression DurationExpression ExpressionList ExpressionWrapper NegatedExpression
    TemporalSubtraction Value When
"""
_KNOWN = {
    WhereNode,
    NothingNode,
    *(getattr(expressions, name) for name in _EXPRESSIONS.split() if hasattr(expressions, name)),
}


def selects_the_same_again(where: Any) -> bool:
    """Whether a WHERE depends on constants and on the columns of its row alone, as far as can be known."""
    return all(map(_is_known, parts_of(where)))


def _is_known(part: Any) -> bool:
    if getattr(part, "extra", None):
        return False  # such as the name of another function, or a template
    kind = type(part)
    if kind in _KNOWN or kind.__module__ in _PURE:
        return True
    return issubclass(kind, (Lookup, Transform)) and kind.__module__.startswith("django.db.models.")
