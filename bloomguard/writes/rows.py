"""The steps around an ORM statement: lock rows, send it, and add the keys of the written rows before the COMMIT."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError, DataError, Error, IntegrityError, ProgrammingError, connections, models

from ..guards import Guard
from ..guards.keys import NoScope, NotNormalized, OutOfRange, Unkeyable, unwrapped
from ..state.connection import has_begun, is_aborted
from . import fencing, unknown_guards
from .discards import Alive, Before
from .tables import Fields, TrackedTable, guard_of, tracked_tables
from .transactions import is_over, together
from .wrapping import rows_changed

if TYPE_CHECKING:
    from ..filters.base import RowKeys

Execute = Callable[..., Any]
Values = Sequence[tuple[Any, ...]]

_first = itemgetter(0)

#: Errors of a statement that certainly wrote nothing.
_REFUSED = (IntegrityError, DataError, ProgrammingError)
_COMMENTS = re.compile(r"(?:\s|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*\n)*(?:--[^\n]*)?")
#: How many rows are read back by one query: below every database's limit of parameters.
PAGE = 500


class WrittenRows(NamedTuple):
    """What is known of the rows that a statement wrote, one tuple a row.

    ``values`` are the key's own if ``link`` is empty; else the guard's rows are found by them, with the lookup
    ``link``. ``stored``: they come from the database, not from the instances.
    """

    values: Values
    link: str
    stored: bool


#: Returns the rows written to one tracked table; ``None`` if too little is known to make their keys.
WrittenTo = Callable[[TrackedTable], WrittenRows | None]


class BulkRows:
    """The rows that the statements of one ``bulk_create`` have written on ``using``, by table."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._rows: dict[tuple[TrackedTable, bool], list[tuple[Any, ...]]] = {}

    def collect(self, tracked: TrackedTable, using: str, written: WrittenRows) -> bool:
        """Keep the rows until :meth:`add`; return ``False`` for those of another database."""
        if using == self.using:
            self._rows.setdefault((tracked, written.stored), []).extend(written.values)
        return using == self.using

    def add(self) -> None:
        """Add the keys of all rows: it takes a third of the time that an add after each statement takes."""
        for (tracked, stored), values in self._rows.items():
            written = WrittenRows(values, "", stored)
            add(tracked, self.using, lambda _, written=written: written)  # type: ignore[misc]


# -- sending the statement


class _Running(threading.local):
    """What the ORM does in this thread."""

    #: The table that its statement writes.
    table: str | None = None
    #: The texts that its compiler has made, and that are not sent yet. All others are raw SQL, also inside of the
    #: statement: of a field's ``pre_save``, a converter or an ``execute_wrapper``.
    due: Sequence[str] = ()
    #: While it is in ``bulk_create``, the rows whose keys are added after the last of its statements.
    batch: BulkRows | None = None

    def own(self, sql: str) -> str:
        """Return the table if ``sql`` is due now, and empty for raw SQL; wrappers may have added comments to it."""
        if len(self.due) == 1 and self.due[0] == sql:  # nearly always
            self.due = ()
            return self.table or ""
        for text in self.due:
            if text == sql or (text in sql and _COMMENTS.fullmatch(sql.replace(text, "", 1))):
                left = list(self.due)
                left.remove(text)
                self.due = left
                return self.table or ""
        return ""


running = _Running()


def run(execute: Execute, compiler: Any, *arguments: Any) -> Any:
    """Execute a compiler's statement: what its ``as_sql`` returns is the ORM's, and not raw SQL."""
    outer, given, compile_sql = (running.table, running.due), vars(compiler).get("as_sql"), compiler.as_sql

    def as_sql(*args: Any, **kwargs: Any) -> Any:
        compiled = compile_sql(*args, **kwargs)
        running.due = [sql for sql, _ in compiled] if type(compiled) is list else [compiled[0]]
        return compiled

    compiler.as_sql = as_sql
    running.table, running.due = compiler.query.model._meta.db_table, ()
    try:  # as `rows_changed`, without a call
        before = getattr(compiler.connection.connection, "total_changes", 0)
    except Exception:
        before = -1
    try:
        return execute(compiler, *arguments)
    except Error:
        if rows_changed(compiler.connection) != before:  # of SQLite, for RAISE(FAIL) and ON CONFLICT FAIL
            for tracked in tracked_tables(compiler.query.model):
                fencing.fence(tracked.guard, compiler.using, "a statement failed, and left rows whose keys are unknown")
        raise
    finally:
        running.table, running.due = outer
        if given is None:
            del compiler.as_sql
        else:
            compiler.as_sql = given


def lock_alive(compiler: Any, counting: Sequence[TrackedTable], lock: Callable[[Any, TrackedTable], Alive]) -> Before:
    """Lock and return the living rows that the statement is about to change, by ``lock``.

    ``counting`` are the tables that :func:`discards.counting` returned.
    """
    found: Before = {}
    for tracked in counting:
        try:
            with fencing.writing(tracked.guard, compiler.using):
                found[tracked] = run(lock, compiler, tracked)
        except DatabaseError:  # it may have ended the writer's transaction
            raise
        except Exception:  # the write goes on, and deleted keys stay in the filter
            found[tracked] = Alive()
    return found


# -- adding the keys


def run_idle(
    execute: Execute,
    compiler: Any,
    arguments: Sequence[Any],
    tables: Sequence[TrackedTable],
    idle: dict[Guard, float],
    written_to: Callable[[TrackedTable, Any], WrittenRows | None],
) -> Any:
    """:func:`run` a statement of idle guards, and add its rows if it took too long.

    ``written_to(tracked, result)`` returns them, as :data:`WrittenTo` does.
    """
    try:
        result = run(execute, compiler, *arguments)
    except BaseException as error:
        fence_if_late(tables, idle, compiler.using, error)
        raise
    add_if_late(tables, idle, compiler.using, lambda tracked: written_to(tracked, result))
    return result


def add_if_late(tables: Sequence[TrackedTable], idle: dict[Guard, float], using: str, written_to: WrittenTo) -> None:
    """After a statement sent while all guards were idle: add its keys if a scan that began meanwhile may miss its rows.

    Under autocommit the rows are visible by then, but the COMMIT is not acknowledged to anyone yet.
    """
    late = _late(tables, idle)
    if late:
        with fencing.catching_up(list(map(guard_of, late)), connections[using]):
            add_all(late, using, written_to)


def fence_if_late(tables: Sequence[TrackedTable], idle: dict[Guard, float], using: str, error: BaseException) -> None:
    """After a statement that failed while all guards were idle: fence them if a scan may have missed its rows.

    Under autocommit the database may have committed it all the same: the connection was lost, or the program was
    interrupted, before the answer came.
    """
    if isinstance(error, _REFUSED) or (isinstance(error, Error) and has_begun(connections[using])):
        return  # nothing of it is left
    fencing.fence_soon(map(guard_of, _late(tables, idle)))


def _late(tables: Sequence[TrackedTable], idle: dict[Guard, float]) -> list[TrackedTable]:
    return [tracked for tracked in tables if not fencing.was_idle(tracked.guard, idle[tracked.guard])]


def add_all(tables: Sequence[TrackedTable], using: str, written_to: WrittenTo) -> None:
    """:func:`add` for each of several guards."""
    for tracked in tables:
        add(tracked, using, written_to)


def add(tracked: TrackedTable, using: str, written_to: WrittenTo) -> None:
    """Add the keys of the rows just written; fence the guard if an add cannot be confirmed.

    An error of the filter does not stop the write. A database error is raised, as it may have ended the writer's
    transaction; if it has not, the rows may still be committed, so the guard is fenced first.
    """
    try:
        written = written_to(tracked)
        if written is not None and not written.link:
            if running.batch is not None and running.batch.collect(tracked, using, written):
                return
            if _add_leased(tracked.guard, using, written):
                return
        with fencing.writing(tracked.guard, using):
            if fencing.needs_no_add(tracked.guard, using):
                return
            problem = _problem(tracked, using, written)
    except DatabaseError:
        if not is_over(connections[using]) and not is_aborted(connections[using]):
            fencing.fence(tracked.guard, using, "written rows could not be read back")
        raise
    except Exception as error:
        problem = f"adding a written row failed with {type(error).__name__}"
    if problem:
        fencing.fence(tracked.guard, using, problem)


def returned_rows(fields: Fields, link: str, returned: Sequence[Any], rows: Values) -> WrittenRows | None:
    """Pick ``fields`` from ``rows``, whose columns are ``returned``; ``None`` if the database has not returned them."""
    if rows and tuple(returned) == fields and len(rows[0]) == len(fields):  # nearly always
        return WrittenRows(rows, link, stored=True)
    if not all(field in returned for field in fields):
        return None
    places = [list(returned).index(field) for field in fields]
    if rows and len(rows[0]) <= max(places):
        return None  # only the last ID
    return WrittenRows(list(zip(*(map(itemgetter(place), rows) for place in places))), link, stored=True)


def _add_leased(guard: Guard, using: str, written: WrittenRows) -> bool:
    """Add the keys without reading the state rows; ``False`` if the adds are not confirmed, for any reason."""
    try:
        return guard._runtime.active_filter.add(_keys(guard, using, written), may_read=False)
    except Exception:
        return False  # `_problem` meets the same error


def _problem(tracked: TrackedTable, using: str, written: WrittenRows | None) -> str:
    """Add the keys; return why that could not be confirmed, or an empty text."""
    guard = tracked.guard
    if tracked.is_unknown:
        return unknown_guards.REASON
    if written is not None and written.link:
        written = _read_back(tracked, using, written)
    if written is None:
        return "rows were written whose keys the database did not return"
    try:
        keys = _keys(guard, using, written)
    except (Unkeyable, OutOfRange):
        return "a row was written whose key cannot be made"
    except NoScope as error:
        return str(error)
    if len(keys) and not guard._runtime.active_filter.add(keys, partial(fencing.drop_standby, guard, using)):
        return guard._runtime.active_filter.why_not_added()
    return ""


def _keys(guard: Guard, using: str, written: WrittenRows) -> RowKeys:
    """Return the keys of the rows that have one; raises :class:`Unkeyable`, :class:`OutOfRange`, :class:`NoScope`."""
    meta = guard._meta
    values: Sequence[Any] = list(map(_first, written.values)) if len(meta.fields) == 1 else written.values
    try:
        if guard.scope is None:
            return meta.keys.many(values)
        key = meta.key_written(using)
        return list(map(key, values))
    except Unkeyable:
        key, keys = meta.key_written(using), []
    for whole, value in zip(written.values, values):
        try:
            keys.append(key(value))
        except NotNormalized:
            continue  # a request for it has no key either, and passes
        except Unkeyable:
            if not written.stored and None not in whole:  # a stored value without a key cannot be looked up
                raise
    return keys


def _read_back(tracked: TrackedTable, using: str, written: WrittenRows) -> WrittenRows | None:
    """Read the key's values of the guard's rows that ``written`` links to, as they are now."""
    if not tracked.historical:
        return WrittenRows(_rows(tracked.guard, using, written), "", stored=True)
    try:
        with together(connections[using], undo=True):  # in the middle of a migration a column may be missing
            return WrittenRows(_rows(tracked.guard, using, written), "", stored=True)
    except DatabaseError:
        return None


def _rows(guard: Guard, using: str, written: WrittenRows) -> Values:
    rows: Any = models.QuerySet(guard.model, using=using).order_by()
    keys = [unwrapped(value) for value in written.values if None not in value]
    found: list[tuple[Any, ...]] = []
    for start in range(0, len(keys), PAGE):
        found += rows.filter(**{f"{written.link}__in": keys[start : start + PAGE]}).values_list(*guard._meta.attnames)
    return found
