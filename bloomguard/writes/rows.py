"""The rows that a statement wrote: as ``RETURNING`` gives them, as the instances hold them, or read back.

``RETURNING`` is asked for the columns that a guard needs, if the instances may not hold what their new rows store. A
field of the project's own may store another value, and so may a column: PostgreSQL and MySQL cut spaces off the end of
a text that is too long, ``char(n)`` cuts or adds them, MySQL without strict mode cuts every text that is too long, and
decimals are rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import DatabaseError, connections, models
from django.db.models.constants import OnConflict

from ..guards.fields import (
    INSERTED,
    is_djangos_compiler,
    kind_of,
    makes_djangos_sql,
    own_methods,
    stores_as_given,
    value_field,
)
from ..guards.keys import unwrapped
from ..state.connection import fetch_uncounted, is_denied
from ..state.transactions import together
from . import discards, joined
from .consequences import may_be_rewritten
from .discards import Before
from .rights import may_read, may_return
from .tables import Fields, TrackedTable, folded_column

Values = Sequence[tuple[Any, ...]]


class WrittenRows(NamedTuple):
    """What is known of the rows that a statement wrote, one tuple a row.

    ``values`` are the key's own if ``link`` is empty; else the guard's rows are found by them, with the lookup
    ``link``. ``stored``: they come from the database, not from the instances.
    """

    values: Values
    link: str
    stored: bool


def returned_rows(fields: Fields, link: str, returned: Sequence[Any], rows: Values) -> WrittenRows | None:
    """Pick ``fields`` from ``rows``, whose columns are ``returned``; ``None`` if the database has not returned them."""
    if not all(field in returned for field in fields):
        return None
    places = [list(returned).index(field) for field in fields]
    if rows and len(rows[0]) <= max(places):
        return None  # only the last ID
    return WrittenRows(list(zip(*(map(itemgetter(place), rows) for place in places))), link, stored=True)


def read_back(tracked: TrackedTable, using: str, written: WrittenRows) -> WrittenRows | None:
    """Return the guard's rows that ``written`` links to, as they are now.

    ``None`` if a row has not the primary key that its instance had, or is not found by the one that it has, or if it
    cannot be read.
    """
    connection, guard = connections[using], tracked.guard
    if not may_read(connection, guard):
        return None  # the error would abort the transaction on PostgreSQL
    # Elsewhere an error leaves the transaction as it was.
    is_undone = tracked.historical and connection.vendor == "postgresql"
    try:
        with together(connection, undo=True) if is_undone else nullcontext():
            rows = joined.locking(models.QuerySet(guard.model, using=using), tracked)
            if rows is None:
                return None
            keys = [unwrapped(value) for value in written.values if None not in value]
            found = list(joined.rows_by(rows, written.link, keys, *guard._meta.attnames))
            has_each = len(found) == len(keys)  # a link to a parent is one to one
            is_lost = written.stored and not has_each and not discards.are_found(tracked.owner, using, keys)
    except DatabaseError as error:
        # In the middle of a migration a column may be missing, and MySQL needs no right to SELECT for an INSERT.
        if not tracked.historical and not is_denied(error):
            raise
        return None
    # MySQL may store one row of several under another primary key, and its `sql_select_limit` hides rows of an UPDATE;
    # elsewhere ON CONFLICT has left it out.
    is_mysql = connection.vendor == "mysql"
    least = len(written.values) if is_mysql else 1
    is_elsewhere = written.link == "pk" and (is_mysql or not written.stored) and len(found) < least
    if tracked.is_joined and written.link == "pk":  # the parent's row may be one that is not committed yet
        is_lost = is_lost or len(found) < len(keys)
    return None if is_elsewhere or is_lost else WrittenRows(found, "", stored=True)


# -- of an INSERT


def inserted(
    tracked: TrackedTable, compiler: Any, returned: Sequence[Any], rows: Values, before: Before, highest: Any = None
) -> WrittenRows | None:
    """Return the inserted rows; ``None`` if too little is known to make their keys.

    ``highest``: what :func:`highest_key` returned before the statement.
    """
    if has_no_returning(compiler.connection):
        return _unreturned(tracked, compiler, rows, highest)
    by_key, by_primary_key = (tracked.fields, tracked.link), (tracked.primary_key, tracked.link or "pk")
    if tracked in before and (written := _inserted_by(by_primary_key, tracked, compiler, returned, rows)):
        return discards.finish(before, tracked, compiler.using, written)
    return _inserted_by(by_key, tracked, compiler, returned, rows) or _inserted_by(
        by_primary_key, tracked, compiler, returned, rows
    )


def _inserted_by(
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


# -- of an INSERT on MySQL, which has no RETURNING

#: Whether a column gets the next number, and not what a default of the column makes.
_GENERATED = """SELECT extra LIKE '%%auto_increment%%' FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s"""


def has_no_returning(connection: Any) -> bool:
    """Whether the database is MySQL. Rows are then read back, as they need not store what the instances hold."""
    return connection.vendor == "mysql" and not connection.features.can_return_columns_from_insert


def highest_key(compiler: Any) -> int | None:
    """Return the highest primary key, if MySQL is to generate higher ones, and Django does not ask for the last one."""
    connection, meta = compiler.connection, compiler.query.model._meta
    if compiler.returning_fields or connection.needs_rollback or not isinstance(meta.pk, models.AutoField):
        return None
    # At SERIALIZABLE the SELECT would lock what others insert: two INSERTs would be a deadlock.
    if connection.isolation_level == "serializable" or any(each.pk is not None for each in compiler.query.objs):
        return None
    key, table = map(connection.ops.quote_name, (meta.pk.column, meta.db_table))
    sql = f"SELECT ({_GENERATED}), COALESCE(MAX({key}), 0) FROM {table}"  # noqa: S608
    try:
        generated, highest = fetch_uncounted(connection, sql, [meta.db_table, meta.pk.column])[0]
    except DatabaseError as error:
        if not is_denied(error):
            raise
        return None
    return int(highest) if generated else None


def _unreturned(tracked: TrackedTable, compiler: Any, rows: Values, highest: int | None) -> WrittenRows | None:
    """Return the primary keys of the inserted rows, by which they are read back.

    If the database has generated them, rows that others have inserted meanwhile may be among them.
    """
    query, fields, connection = compiler.query, tracked.primary_key, compiler.connection
    if fields is None or not is_djangos_compiler(compiler) or may_be_rewritten(compiler, "insert"):
        return None
    if query.on_conflict == OnConflict.UPDATE and (
        may_be_rewritten(compiler, "update") or not tracked.columns.isdisjoint(map(folded_column, query.update_fields))
    ):
        return None  # it may have updated other rows than those with these primary keys
    link, meta = tracked.link or "pk", query.model._meta
    if values := _primary_keys(compiler, fields):
        return WrittenRows(values, link, stored=False)
    if fields != (meta.pk,):
        return None
    if highest is None:
        # The last ID, which is 0 if MySQL has generated none.
        return WrittenRows(rows, link, stored=False) if rows and rows[0][0] else None
    key, table = map(connection.ops.quote_name, (meta.pk.column, meta.db_table))
    found = fetch_uncounted(connection, f"SELECT {key} FROM {table} WHERE {key} > %s", [highest])  # noqa: S608
    values = list(compiler.apply_converters(found, compiler.get_converters([meta.pk.get_col(meta.db_table)])))
    return WrittenRows(values, "" if tracked.fields == fields and not tracked.link else link, stored=True)


def _primary_keys(compiler: Any, fields: Fields) -> Values:
    """Return the primary keys that the instances have; none if one lacks it, or the INSERT may send another value."""
    if any(own_methods(field, INSERTED) for field in fields):
        return ()
    keys = [tuple(getattr(instance, field.attname) for field in fields) for instance in compiler.query.objs]
    return () if any(value is None or hasattr(value, "resolve_expression") for key in keys for value in key) else keys


def more_to_return(
    compiler: Any, tables: Sequence[TrackedTable], asked: Sequence[Any], counting: Sequence[TrackedTable]
) -> list[Any]:
    """Return the fields to add to ``RETURNING``: guards in use need them, and the instances may not have them."""
    if not _returns(compiler):
        return []
    more: list[Any] = []
    for tracked in tables:
        fields = (tracked.primary_key if tracked in counting else tracked.fields) or ()
        if all(field in asked or field in more for field in fields):
            continue
        # The instance does not show whether its row existed before.
        upserts = tracked in counting and compiler.query.on_conflict
        if upserts or not _instances_hold(tracked, compiler, fields):
            for some in (fields, tracked.primary_key or ()):  # by which the rows are read back
                missing = [field for field in some if field not in asked and field not in more]
                if _may_return_inserted(compiler, missing, reads=bool(asked)):
                    more += missing
                    break  # otherwise this guard is fenced
    return more if more and _ends_as_djangos(compiler, [*asked, *more]) else []


def _ends_as_djangos(compiler: Any, returned: Sequence[Any]) -> bool:
    """Whether no other package's compiler puts anything into the INSERT, as at its end; its values may differ."""
    if is_djangos_compiler(compiler):
        return True
    query = copy(compiler.query)
    query.objs, query.raw = query.objs[:1], True  # calls no `pre_save`, which may store files
    try:
        first = type(compiler)(query, compiler.connection, compiler.using)
        first.returning_fields = list(returned)
    except Exception:  # its compiler takes other arguments
        return False
    return makes_djangos_sql(first, text_only=True)


def _returns(compiler: Any) -> bool:
    features, is_single = compiler.connection.features, len(compiler.query.objs) == 1
    return features.can_return_columns_from_insert and (is_single or features.can_return_rows_from_bulk_insert)


def _may_return_inserted(compiler: Any, fields: Sequence[Any], *, reads: bool) -> bool:
    table = compiler.query.model._meta.db_table
    if not may_return(compiler.connection, table, fields, "insert", reads=reads):
        return False
    if compiler.query.on_conflict != OnConflict.IGNORE or len(compiler.query.objs) > 1:
        return True
    # Django 5 fails on the None for a row skipped by `ignore_conflicts`.
    return not compiler.get_converters([field.get_col(table) for field in fields])


def _instances_hold(tracked: TrackedTable, compiler: Any, fields: Fields) -> bool:
    """Whether the instances hold the values of ``fields`` that the new rows store."""
    query = compiler.query
    if not is_djangos_compiler(compiler):
        return False  # its INSERT may write other values, or update an existing row
    if query.on_conflict == OnConflict.UPDATE or compiler.connection.vendor == "mysql":
        return False  # an updated row may have another key; MariaDB stores what fits, without strict mode or by IGNORE
    if not all(field in query.fields for field in fields):
        return False
    if tracked.guard._meta.normalizes and compiler.connection.vendor == "postgresql":
        return False  # the column may be of a type that cuts a text, as `name` does, or that the project has made
    held = [[getattr(each, field.attname) for each in query.objs] for field in fields]
    if not all(map(stores_unchanged, fields, held)):
        return False
    # Asked again after the statement: meanwhile the `pre_save` of another field may have changed them.
    if vars(compiler).setdefault("_bloomguard_held", {}).setdefault(fields, held) != held:
        return False
    return not may_be_rewritten(compiler, "insert")


# -- what an instance holds


def stores_unchanged(field: Any, values: Iterable[Any]) -> bool:
    """Return whether rows store each of ``values``, or what ``to_python`` returns for it, and no other value."""
    longest = _longest_text(field)
    if longest is None:
        return False
    for value in values:
        if value is None:
            if not field.null:
                return False  # refused, or replaced, as by SQLite in an integer primary key
        elif type(value) is not str:
            if hasattr(value, "resolve_expression") or longest >= 0:
                return False
        # The column may be shorter than its field says; but a space at the end is all that a strict database cuts.
        elif longest >= 0 and (len(value) > longest or value[-1:] == " "):
            return False
    return True


@lru_cache(maxsize=1000)
def _longest_text(field: Any) -> float | None:
    """Return the longest text that the column stores as it is, -1 for another exact type; ``None`` for all others."""
    kind = kind_of(field)
    if kind not in ("integer", "uuid", "date", "text") or not stores_as_given(field):
        return None
    if kind != "text":
        return -1
    length = value_field(field).max_length
    return float("inf") if length is None else length
