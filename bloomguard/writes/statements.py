"""An INSERT of the ORM, and the steps of every statement of the ORM: send it, and add its keys before the COMMIT.

The order is statement -> add -> COMMIT: before the COMMIT no other transaction sees the row, after it every filter has
the key, and a rollback leaves one harmless false positive. Signals cannot guarantee that order: ``bulk_create``,
``QuerySet.update`` and historical models send none, and under autocommit ``post_save`` comes after the COMMIT. So the
SQL compilers are wrapped. A statement of a model without a guard costs one dictionary lookup.

:mod:`bloomguard.writes.rows` finds out which rows a statement wrote; if it cannot, the guard is fenced. A filter that
supports discard needs to know which rows are new and which are gone, see :mod:`bloomguard.writes.discards`. Every other
one may get a key a second time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, Error, connections
from django.db.models.sql.compiler import SQLInsertCompiler

from ..guards import Guard, registry
from ..guards.keys import NoScope, NotNormalized, OutOfRange, Unkeyable
from ..state import table as states
from ..state.transactions import has_begun, may_go_on, together
from . import discards, fencing, unknown_guards
from .idle import NONE_IDLE, IdleTables, catching_up, find_idle
from .raw_fences import rows_changed
from .rows import Values, WrittenRows, has_no_returning, highest_key, inserted, more_to_return, read_back
from .tables import Fields, TrackedTable, guard_of, tracked_tables

if TYPE_CHECKING:
    from ..filters.base import RowKeys
    from .batches import BulkRows

Execute = Callable[..., Any]
#: Returns the rows written to one tracked table; ``None`` if too little is known to make their keys.
WrittenTo = Callable[[TrackedTable], WrittenRows | None]

_first = itemgetter(0)
#: What Django returns for a row that ``ignore_conflicts`` has skipped.
_SKIPPED = [None]
_COMMENTS = re.compile(r"(?:\s|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*\n)*(?:--[^\n]*)?")


def connect() -> None:
    """Wrap the compiler of INSERT for all databases, once."""
    wrap(SQLInsertCompiler, "execute_sql", sent_by(_insert))


def wrap(owner: Any, name: str, hooked: Callable[[Execute], Execute]) -> None:
    """Replace the method of a class, or function of a module, by ``hooked(method)``, once; keep it as an attribute."""
    if (kept := f"_bloomguard_{name}") not in vars(owner):  # another package's wrapper may be around ours
        execute = getattr(owner, name)
        setattr(owner, name, wraps(execute)(hooked(execute)))
        if hasattr(owner, "execute_sql"):  # by it, django-cachalot would take off our wrapper for its own
            del getattr(owner, name).__wrapped__
        setattr(owner, kept, execute)


def _refreshed(tables: Sequence[TrackedTable], compiler: Any) -> Sequence[TrackedTable]:
    """Return ``tables`` as the state rows are now, if one is of a guard that this process did not have.

    It may have it by now: a rebuild by this version of the project would be undone by a fence.
    """
    for tracked in tables:
        if tracked.is_unknown:
            fencing.refresh(tracked.guard, compiler.using)
            return tracked_tables(compiler.query.model)
    return tables


def sent_by(send: Callable[..., Any]) -> Callable[[Execute], Execute]:
    """Return what makes a compiler's method call ``send(method, compiler, tables, ...)`` for guarded tables."""

    def hooked(execute: Execute) -> Execute:
        def execute_sql(self: Any, *args: Any, **kwargs: Any) -> Any:
            model = self.query.model
            tables = registry.plans.tracked.get(model)  # mostly none, for this lookup
            if tables is None or states.table.copy is not unknown_guards.compared_copy:
                tables = tracked_tables(model)
            if not tables:
                return execute(self, *args, **kwargs)
            if self.using is None:  # made by `get_compiler(connection=...)`
                self.using = self.connection.alias
            return send(execute, self, _refreshed(tables, self) if registry.plans.named else tables, *args, **kwargs)

        return execute_sql

    return hooked


def _insert(execute: Execute, compiler: Any, tables: Sequence[TrackedTable], returning_fields: Any = None) -> Any:
    asked = returned = tuple(returning_fields or ())
    used, idle = split_idle(tables, compiler)
    if not used:

        def written_to(tracked: TrackedTable, rows: Any) -> WrittenRows | None:
            return inserted(tracked, compiler, asked, () if rows == _SKIPPED else rows, {})

        return run_idle(execute, compiler, (returning_fields,), idle, written_to)
    counting: Sequence[TrackedTable] = ()
    for tracked in used:  # not by `any`, which would make an INSERT slower
        if tracked.counted or tracked.fields != asked:
            counting = _counting(used, compiler)
            returned = (*asked, *more_to_return(compiler, used, asked, counting))
            break
    connection = compiler.connection
    # As Django does first: without a database, or on an event loop, no `pre_save` stores files.
    connection.ensure_connection()
    # Before the transaction: a field's `pre_save` may store files, or change the values by which rows are locked.
    compiler.returning_fields = list(returned) or None
    statements = list(compiler.as_sql())
    with together(connection):
        before = discards.lock(compiler, counting) if counting else {}
        reads_back = connection.vendor == "mysql" and has_no_returning(connection)
        highest = highest_key(compiler) if reads_back else None
        rows = run(execute, compiler, compiler.returning_fields, statements=statements)
        if rows == _SKIPPED:
            rows = []
        are_complete = rows and len(rows[0]) == len(returned) and not (before or reads_back)

        def written(tracked: TrackedTable) -> WrittenRows | None:
            return inserted(tracked, compiler, returned, rows, before, highest)

        add_all(used, compiler.using, written, rows if are_complete else (), returned)
        if idle.tables:
            add_if_late(idle, written)
    if len(returned) == len(asked):
        return rows
    return [row[: len(asked)] for row in rows] if asked else []


def _counting(tables: Sequence[TrackedTable], compiler: Any) -> Sequence[TrackedTable]:
    """Return the tables whose filter counts its keys, if the INSERT alone does not show which keys are new.

    The inserted row may be not alive, may have existed before, or may be only the parent's part of the guard's row.
    """
    on_conflict = compiler.query.on_conflict
    unclear = [each for each in tables if each.counted and (each.guard.alive or on_conflict or each.link)]
    return discards.counting(unclear, compiler.using) if unclear else ()


# -- sending a statement


class _Running(threading.local):
    """What the ORM does in this thread."""

    #: The table that its statement writes, and the texts of its compiler that are not sent yet. All others are raw SQL,
    #: also inside of the statement: of a field's ``pre_save``, a converter or an ``execute_wrapper``.
    due: tuple[str, Sequence[str]] = ("", ())
    #: While it is in ``bulk_create``, the rows whose keys are added after the last of its statements.
    batch: BulkRows | None = None

    def own(self, sql: str) -> str:
        """Return the table if ``sql`` is due now, and empty for raw SQL; wrappers may have added comments to it."""
        table, due = self.due
        if len(due) == 1 and due[0] == sql:  # nearly always
            self.due = (table, ())
            return table
        for text in due:
            if text == sql or (text in sql and _COMMENTS.fullmatch(sql.replace(text, "", 1))):
                left = list(due)
                left.remove(text)
                self.due = (table, left)
                return table
        return ""


running = _Running()


def run(execute: Execute, compiler: Any, *arguments: Any, statements: Any = None) -> Any:
    """Execute a compiler's statement: what its ``as_sql`` returns is the ORM's, and not raw SQL.

    ``statements``: what it has returned already, in a list.
    """
    outer, table, connection = running.due, compiler.query.model._meta.db_table, compiler.connection
    if statements is None:
        running.due, compiler.as_sql = (table, ()), _noted(compiler.as_sql, table)
    else:
        running.due, compiler.as_sql = (table, list(map(_first, statements))), lambda *args, **kwargs: statements
    try:  # as `rows_changed`, without a call
        before = getattr(connection.connection, "total_changes", 0)
    except Exception:
        before = -1
    try:
        return execute(compiler, *arguments)
    except Error:
        if rows_changed(connection) != before:  # of SQLite, for RAISE(FAIL) and ON CONFLICT FAIL
            tables, reason = tracked_tables(compiler.query.model), "a statement failed, and left rows of unknown keys"
            fence_all(tables, compiler.using, reason)
        raise
    finally:
        running.due = outer
        del compiler.as_sql


def _noted(compile_sql: Callable[..., Any], table: str) -> Callable[..., Any]:
    def as_sql(*args: Any, **kwargs: Any) -> Any:
        compiled = compile_sql(*args, **kwargs)
        running.due = table, list(map(_first, compiled)) if type(compiled) is list else [compiled[0]]
        return compiled

    return as_sql


# -- of idle guards


def split_idle(
    tables: Sequence[TrackedTable], compiler: Any, choose: Callable[..., Sequence[TrackedTable]] | None = None
) -> tuple[Sequence[TrackedTable], IdleTables]:
    """Return the tables of guards in use, and those of idle guards. ``choose(tables, compiler)`` has chosen ``tables``.

    A statement returns nothing for an idle guard: its column may not be in the table yet.
    """
    for tracked in tables:
        state = states.table.lease(tracked.guard.name)
        if state is None or not state.takes_adds:
            found = find_idle(tables, compiler.using)
            if states.table.copy is unknown_guards.compared_copy:
                return found
            # The state rows were read again, and may name guards that this process does not have.
            tables = tracked_tables(compiler.query.model)
            return find_idle(choose(tables, compiler) if choose else tables, compiler.using)
    return tables, NONE_IDLE  # nearly always


def run_idle(
    execute: Execute,
    compiler: Any,
    arguments: Sequence[Any],
    idle: IdleTables,
    written_to: Callable[[TrackedTable, Any], WrittenRows | None],
) -> Any:
    """:func:`run` a statement of idle guards, and add its rows if it took too long.

    ``written_to(tracked, result)`` returns them, as :data:`WrittenTo` does.
    """
    try:
        result = run(execute, compiler, *arguments)
    except BaseException as error:
        idle.fence_if_late(error)
        raise
    add_if_late(idle, lambda tracked: written_to(tracked, result))
    return result


def add_if_late(idle: IdleTables, written_to: WrittenTo) -> None:
    """After a statement: add its keys for the idle guards, if a build may have missed its rows."""
    late = idle.late()
    if late:
        with catching_up(list(map(guard_of, late)), connections[idle.using]):
            add_all(late, idle.using, written_to)


# -- adding the keys


def add_all(
    tables: Iterable[TrackedTable], using: str, written_to: WrittenTo, complete_rows: Values = (), returned: Fields = ()
) -> None:
    """Add the keys of the rows just written for each guard; fence those whose adds cannot be confirmed.

    ``complete_rows``: the rows, if the database has given the fields ``returned`` of each and no others. An error of a
    filter does not stop the write. A database error is raised, as it may have ended the writer's transaction; if it has
    not, the rows may still be committed, so it is raised after the adds and fences.
    """
    due: dict[Guard, str] = {}
    failure: DatabaseError | None = None
    for tracked in tables:
        guard = tracked.guard
        try:
            are_keys = complete_rows and tracked.fields == returned and not tracked.link
            if are_keys and _add_leased(tracked, using, complete_rows, stored=True):
                continue  # nearly always
            written = written_to(tracked)
            if (
                written is not None
                and not (written.link or are_keys)
                and _add_leased(tracked, using, written.values, stored=written.stored)
            ):
                continue
            with fencing.reading_by_writer(guard, using, after_statement=True):
                problem = "" if fencing.needs_no_add(guard, using) else _problem(tracked, using, written)
        except DatabaseError as error:
            if has_begun(connections[using]) and not may_go_on(connections[using]):
                raise
            problem, failure = "written rows could not be read back", failure or error
        except Exception as error:
            problem = f"adding a written row failed with {type(error).__name__}"
        if problem:
            due[guard] = problem
    if due:
        fencing.fence(due, using)
    if failure is not None:
        raise failure


def fence_all(tables: Iterable[TrackedTable], using: str, reason: str) -> None:
    """Fence the guards of the tables."""
    fencing.fence(dict.fromkeys(map(guard_of, tables), reason), using)


def _add_leased(tracked: TrackedTable, using: str, values: Values, *, stored: bool) -> bool:
    """Add the keys without reading the state rows, or leave that to the end of a ``bulk_create``.

    ``False`` if the adds are not confirmed, for any reason.
    """
    if running.batch is not None and running.batch.collect(tracked, using, values, stored=stored):
        return True
    guard = tracked.guard
    try:
        return guard._runtime.active_filter.add(_keys(guard, using, values, stored=stored), may_read=False)
    except Exception:
        return False  # `_problem` meets the same error


def _problem(tracked: TrackedTable, using: str, written: WrittenRows | None) -> str:
    """Add the keys; return why that could not be confirmed, or an empty text."""
    guard = tracked.guard
    if tracked.is_unknown:
        return unknown_guards.reason()
    if written is not None and written.link:
        written = read_back(tracked, using, written)
    if written is None:
        return "rows were written whose keys the database did not return"
    try:
        keys = _keys(guard, using, written.values, stored=written.stored)
    except (Unkeyable, OutOfRange):
        return "a row was written whose key cannot be made"
    except NoScope as error:
        return str(error)
    if len(keys) and not guard._runtime.active_filter.add(keys, partial(fencing.drop_standby, guard, using)):
        return unknown_guards.why_not_added(guard)
    return ""


def _keys(guard: Guard, using: str, values: Values, *, stored: bool) -> RowKeys:
    """Return the keys of the rows that have one; raises :class:`Unkeyable`, :class:`OutOfRange`, :class:`NoScope`."""
    meta = guard._meta
    each: Sequence[Any] = list(map(_first, values)) if len(meta.fields) == 1 else values
    try:
        if guard.scope is None:
            return [meta.keys.key(each[0])] if len(each) == 1 else meta.keys.many(each)
        key = meta.key_written(using)
        return list(map(key, each))
    except Unkeyable:
        key, keys = meta.key_written(using), []
    for whole, value in zip(values, each):
        try:
            keys.append(key(value))
        except NotNormalized:
            continue  # a request for it has no key either, and passes
        except Unkeyable:
            if not stored and None not in whole:  # a stored value without a key cannot be looked up
                raise
    return keys
