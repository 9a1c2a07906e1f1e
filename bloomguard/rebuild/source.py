"""Fast scans of a guard's rows, as pages of keys.

PostgreSQL and SQLite aggregate integers, UUIDs and texts themselves and send one buffer per page: two to three times as
fast as fetching row by row. From MariaDB and MySQL they are fetched while the server sends them, without the ORM. Each
of these pages is a statement of its own, so no snapshot stays open for long. Other keys are made from rows of the ORM.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import islice
from typing import Any

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import ExpressionWrapper, F, Max, Min

from ..exceptions import ConfigurationError, RebuildError
from ..filters.layout import KeysSummary
from ..guards import Guard
from ..guards.fields import is_djangos, kind_of, own_conversions, python_type_of
from ..guards.keys import OutOfRange, Uncertain, Unkeyable, unwrapped
from ..state.fresh_rows import fresh_rows
from .pages import SCANS, KeyPage, Proof, Scan, binary_cursor, streamed, unbuffered_cursor

#: A page takes some 40 ms and 1.6 MB. Below 100,000 rows the round trips begin to cost; larger pages gain nothing.
PAGE_ROWS = 200_000
#: The page size for texts, and for rows that are fetched one by one, as Python objects.
_CHUNK_ROWS = 50_000
#: Fields of texts of up to so many characters are gathered: a page has at most 51 MB, and hardly ever more than 5.
_MOST_CHARACTERS = 255
#: A table with fewer rows than this, by the planner's statistics, is counted: that takes no time.
_COUNT_BELOW = 200_000
#: To tell whether a range of integers is dense: the number and length of the samples, and the share that must exist.
_STRETCHES, _STRETCH, _DENSE = 10, 2_000, 0.9
#: For random rows: the least number of places to read at, and the most rows to read at one place.
_PLACES, _RUN_ROWS = 40, 250
_random = random.SystemRandom()
#: The planner's own estimate: rows per page at the last ANALYZE, times the number of pages now.
_POSTGRESQL_ESTIMATE = (
    "SELECT reltuples::float8 / NULLIF(relpages, 0) * (pg_relation_size(oid) / current_setting('block_size')::int) "
    "FROM pg_class WHERE oid = %s::regclass"
)


class Source:
    """The keys of all rows that match the guard's ``alive``, read from the database that its writes go to."""

    scope = ""  # for a guard that has one, its name

    def __init__(self, guard: Guard, using: str | None = None) -> None:
        self.guard = guard
        try:
            self.using = using or guard._meta.database
            connections[self.using]
        except Exception as error:  # a router's own
            label = guard.model._meta.label
            raise ConfigurationError(f"without hints, the routers name no database of {label}: {error!r}") from error
        #: Of each statement that reads all rows.
        self.proof = Proof.of(self.using)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection that the scan uses."""
        return connections[self.using]

    def rows(self) -> models.QuerySet[Any]:
        """Return the rows to scan, unordered."""
        return self.guard._meta.rows().using(self.using)

    def entered(self) -> AbstractContextManager[None]:
        """Return the context in which all other methods are called."""
        return nullcontext()

    def marks(self) -> list[bytes]:
        """Return the keys that mark a filter as built from this source; empty without scopes."""
        return []

    def value(self, values: Sequence[Any]) -> Any:
        """Return the value that a row with these ``values`` of :attr:`GuardMeta.attnames` is looked up by."""
        return unwrapped(values)

    def key(self, values: Sequence[Any]) -> bytes | None:
        """Return the key of a row, ``None`` if no request can ask for it; raises :class:`RebuildError` in doubt."""
        try:
            return self.guard._meta.keys.key(self.value(values))
        except (Unkeyable, OutOfRange):  # NULL, or a value that no request is converted to
            return None
        except Uncertain as error:
            raise RebuildError(
                f"{self.guard.name}: no key can be made of a row: {error}. Let to_python return a plain value, and "
                "normalize() raise ValueError for a value that has no normal form; or look rows up by another field"
            ) from None

    def _all_rows(self) -> models.QuerySet[Any]:
        return models.QuerySet(self.guard.model, using=self.using)  # alive or not

    def summary(self) -> KeysSummary:
        """Return the approximate number of keys, and the range of integers and dates: they decide the filter's kind."""
        if self.guard._meta.keys.width != 8:
            return KeysSummary(count=self._count())
        # The ends of all rows are those of an index; for the alive rows alone it would take a scan. One query for each
        # end: SQLite scans for both together.
        rows, field = self._all_rows(), self.guard._meta.fields[0].attname
        keys = [self.key([rows.aggregate(end=end(field))["end"]]) for end in (Min, Max)]
        low, high = (int.from_bytes(key or b"", "little", signed=True) for key in keys)
        # The table has no rows, or only NULL, or numbers from 2**63 on in an unsigned column of MySQL.
        if None in keys or low > high:
            return KeysSummary(count=self._count())
        return KeysSummary(count=self._count(low, high), low=low, high=high)

    def _count(self, low: int = 0, high: int = 0) -> int:
        """Return the approximate number of rows: for a large table without ``alive`` by an estimate, else by COUNT."""
        if not self.guard.alive:
            if self.connection.vendor == "postgresql":
                table = self.connection.ops.quote_name(self.guard.model._meta.db_table)
                with self.connection.cursor() as cursor:
                    cursor.execute(_POSTGRESQL_ESTIMATE, [table])
                    tuples = int(cursor.fetchone()[0] or 0)
                if tuples > _COUNT_BELOW:
                    return tuples
            if self._is_dense(low, high):
                return high - low + 1
        return self.rows().count()

    def _is_dense(self, low: int, high: int) -> bool:
        """Return whether a large table has nearly every integer from ``low`` to ``high``, judged by samples.

        If so, the size of the range is a close upper bound on the number of rows; COUNT takes as long as a scan.
        """
        field, span = self.guard._meta.fields[0], high - low + 1
        if self.guard._meta.keys.kinds != ("integer",) or not field.unique or span <= _COUNT_BELOW:
            return False
        starts = [low + (span - _STRETCH) * number // (_STRETCHES - 1) for number in range(_STRETCHES)]
        stretches = [{f"{field.attname}__range": (start, start + _STRETCH - 1)} for start in starts]
        return sum(self.rows().filter(**stretch).count() for stretch in stretches) >= _DENSE * _STRETCHES * _STRETCH

    def end(self, order: str) -> Any:
        """Return the first primary key of all rows, alive or not, by its index; ``order`` is ``pk`` or ``-pk``."""
        return self._all_rows().filter(pk__isnull=False).order_by(order).values_list("pk", flat=True).first()

    def all_values(self, size: int, after: Any = None) -> Generator[tuple[Any, ...]]:
        """Yield the fields of all rows, or those with a primary key above ``after``; ``size`` are in memory at once."""
        names, end = self.guard._meta.attnames, after
        if not self._is_paged():
            yield from fresh_rows(self.rows().values_list(*names), size, self.proof)
            return
        rows, kind = self._rows_with_pk(), str(kind_of(self.guard.model._meta.pk))
        plain = str if kind == "uuid" and self.connection.vendor != "postgresql" else python_type_of(kind)
        pages = rows.order_by("bloomguard_pk").values_list(*names, "bloomguard_pk")
        while True:
            rest = pages if end is None else pages.filter(bloomguard_pk__gt=end)
            page = list(fresh_rows(rest[:size], 0, self.proof))
            if not page:
                break
            if type(page[-1][-1]) is not plain:
                # The column is of another type, or one of several of SQLite's, which has an order of its own.
                yield from (values[:-1] for values in fresh_rows(rest, size, self.proof))
                break
            yield from (values[:-1] for values in page)
            end = page[-1][-1]
            yield from self._at_end(end, page[-1][:-1])
        yield from self._values_without_pk()

    def _rows_with_pk(self) -> models.QuerySet[Any]:
        """Return the rows with a primary key, as ``bloomguard_pk``."""
        rows: models.QuerySet[Any] = self.rows().annotate(bloomguard_pk=_stored(self.guard.model._meta.pk))
        return rows.filter(pk__isnull=False)

    def _is_paged(self) -> bool:
        """Return whether rows are read in pages, in the order of the primary key, instead of by one statement.

        The driver of MySQL keeps the whole result of a statement in memory. On PostgreSQL a cursor of the server is
        lost, and left in the session of another client, if a pooler sends each statement to another session. On SQLite
        no process can commit before the statement has ended, unless the database has a write-ahead log.
        """
        pk = self.guard.model._meta.pk
        kind = None if own_conversions(pk) else kind_of(pk)
        return kind in ("integer", "text", "uuid") if self.connection.vendor == "sqlite" else kind is not None

    def _values_without_pk(self) -> Generator[tuple[Any, ...]]:
        """Yield the values of rows without a primary key, which no page has: a table may be older than its model."""
        rows = self.rows().filter(pk__isnull=True).values_list(*self.guard._meta.attnames)
        yield from fresh_rows(rows, 0, self.proof)

    def _at_end(self, pk: Any, last: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the values of all rows with the primary key of a page's last row, unless it is the only one.

        In a partitioned table several may have it, and the page may end between them. ``last`` is what the last row had
        on the page: if it has gone since, another one may be left.
        """
        same = self._rows_with_pk().filter(bloomguard_pk=pk).values_list(*self.guard._meta.attnames)
        found = list(fresh_rows(same, 0, self.proof))
        return [] if found == [last] else found

    def random_values(self, rows: int) -> Iterator[tuple[Any, ...]]:
        """Yield the values of the guard's fields for about that many random rows.

        If the primary key is an integer or a UUID, the rows are read at random places that are spread evenly over its
        range. The remaining rows, or all of them for other primary keys, are read from both ends.
        """
        names, left = self.guard._meta.attnames, rows
        for run in self._random_runs(rows):
            for values in run.values_list(*names):
                yield values
                left -= 1
        for order in ("pk", "-pk"):
            yield from self.rows().order_by(order).values_list(*names)[: left // 2]

    def _random_runs(self, rows: int) -> Iterator[models.QuerySet[Any]]:
        """Divide the range of the primary key into equal parts; yield a run of rows from a random place in each."""
        first, last = self.end("pk"), self.end("-pk")
        pk: Callable[[int], Any] = int
        kind = kind_of(self.guard.model._meta.pk)
        if kind == "uuid" and self.connection.vendor == "mysql":
            return  # MariaDB orders them by other bytes than the first
        if first is None or last is None:
            return  # no rows; or the table of a copy, which has lost its primary key
        if kind == "uuid":
            first, last, pk = first.int, last.int, lambda number: uuid.UUID(int=number)
        elif kind != "integer" or not type(first) is type(last) is int:  # SQLite takes other values too
            return
        places = min(max(_PLACES, rows // _RUN_ROWS), max(rows, 1))
        width = (last - first) // places + 1
        length = rows // places
        for start in range(first, last + 1, width):
            end = min(start + width - 1, last)
            # A part that is hardly longer than a run is read from its beginning.
            place = _random.randint(start, max(start, end - length + 1))
            yield self.rows().order_by("pk").filter(pk__gte=pk(place), pk__lte=pk(end))[:length]

    @property
    def is_gathered(self) -> bool:
        """Whether the keys of a page are integers, UUIDs or texts, from which the values can be read back."""
        return self._scan() is not None

    def pages(self) -> Iterator[KeyPage]:
        """Yield all keys, page by page. Rows written during the scan may be missed: their writers add them."""
        scan = self._scan()
        return self._gathered_pages(scan) if scan is not None else self._orm_pages()

    def _scan(self) -> Scan | None:
        """Return the fast scan for the field, if any: the field must be unique, so indexed, and not NULL."""
        field, vendor = self.guard._meta.fields[0], self.connection.vendor
        if not self._has_plain_field() or not field.unique or field.null:
            return None
        kind = str(self.guard._meta.keys.kinds[0])
        if kind == "text" and not self._is_short_text(field):
            return None
        if vendor == "mysql" and not unbuffered_cursor(self.connection):
            return None
        return SCANS.get((vendor, kind))

    def _is_short_text(self, field: models.Field[Any, Any]) -> bool:
        """Return whether all keys are short texts, of rows with an integer as primary key."""
        pk = self.guard.model._meta.pk
        if not self._is_plain_text() or not 0 < (field.max_length or 0) <= _MOST_CHARACTERS:
            return False
        if kind_of(pk) != "integer" or not is_djangos(pk):
            return False
        if self.connection.vendor != "sqlite":
            return True
        # SQLite takes bytes in a column of text, and orders them after all texts.
        return not isinstance(self._all_rows().aggregate(end=Max(field.attname))["end"], bytes)

    def _has_plain_field(self) -> bool:
        """Return whether there is one field, and Django's own: a custom one may store something else in its column."""
        fields = self.guard._meta.fields
        return len(fields) == 1 and is_djangos(fields[0])

    def _is_plain_text(self) -> bool:
        """Return whether a row's text is its key."""
        meta = self.guard._meta
        return self._has_plain_field() and meta.keys.kinds == ("text",) and not (meta.normalizes or self.guard.scope)

    def _gathered_pages(self, scan: Scan) -> Iterator[KeyPage]:
        field = self.guard._meta.fields[0]
        order = "bloomguard_pk" if scan.by_pk else "bloomguard_key"
        ordered = self.rows().values(bloomguard_key=_stored(field))
        if scan.by_pk:
            ordered = ordered.annotate(bloomguard_pk=_stored(self.guard.model._meta.pk)).filter(pk__isnull=False)
        ordered = ordered.order_by(order)
        size = min(PAGE_ROWS, _CHUNK_ROWS) if scan.by_pk else PAGE_ROWS
        last: Any = None
        while True:
            page = ordered if last is None else ordered.filter(**{f"{order}__gt": last})
            sql, parameters = page[:size].query.get_compiler(self.using).as_sql()
            gathered, rows, end = self._fetch(scan, sql, parameters)
            if rows and scan.by_pk:  # unpacked here: to hash texts takes longer than to read them
                keys = scan.keys_of(gathered)
                is_odd = len(keys) != rows or (rows == size and type(end) is not int)
                if is_odd or (rows == size and self._at_end(end, (keys[-1].decode(),))):
                    yield from self._orm_pages(last)
                    return
                yield KeyPage(rows, partial(list, keys))
            elif rows:
                yield KeyPage(rows, partial(scan.unpack, gathered, rows))
            if rows < size:
                break
            last = end if scan.last is None else scan.last(gathered)
            if self.guard._meta.discards and not scan.by_pk:
                yield from self._repeated(field.attname, last)
        if scan.by_pk:
            yield from self._pages_of(self._values_without_pk())

    def _repeated(self, field: str, value: Any) -> Iterator[KeyPage]:
        """Yield the key of ``value`` once more for each further row, if a page in the order of ``field`` ends with it.

        The next page begins with a greater value. So it may skip rows of a table whose column is not unique, and a
        filter that discards has to count each of them. One that is counted twice is a harmless false positive.
        """
        others = sum(1 for _ in fresh_rows(self.rows().filter(**{field: value}).values_list("pk"), 0, self.proof)) - 1
        key = self.key([value])
        if others > 0 and key is not None:
            yield KeyPage(others, partial(list, [key] * others))

    def _fetch(self, scan: Scan, sql: str, parameters: Any) -> tuple[Any, int, Any]:
        """Return the page's value, the number of rows, and the last one's primary key, if the page is in its order."""
        connection = self.connection
        connection.ensure_connection()
        if not scan.gather:
            return streamed(connection, sql, parameters, scan.pack)
        last = "max(bloomguard_pk)" if scan.by_pk else "NULL"
        proof = self.proof.sql or "NULL"
        sql = f"SELECT {scan.gather}, count(*), {last}, {proof} FROM ({sql}) AS page"  # noqa: S608
        with connection.wrap_database_errors:
            cursor = binary_cursor(connection, sql, parameters)
            if cursor is None:
                cursor = connection.cursor()
                cursor.execute(sql, parameters)
            with cursor:
                *page, found = cursor.fetchone()
        self.proof.check(found if isinstance(found, str) or found is None else bytes(found).decode())
        return tuple(page)

    def _orm_pages(self, after: Any = None) -> Iterator[KeyPage]:
        return self._pages_of(self.all_values(min(PAGE_ROWS, _CHUNK_ROWS), after))

    def _pages_of(self, values: Generator[tuple[Any, ...]]) -> Iterator[KeyPage]:
        size, is_text = min(PAGE_ROWS, _CHUNK_ROWS), self._is_plain_text()
        keyed = keyless = 0
        with closing(values) as found:
            while rows := list(islice(found, size)):
                if is_text:
                    yield KeyPage(len(rows), partial(self._keys_of_texts, rows))
                    continue
                keys = [key for key in map(self.key, rows) if key is not None]
                keyed += len(keys)
                keyless += sum(None not in values for values in rows) - len(keys)
                yield KeyPage(len(rows), partial(list, keys))
        if keyless and not keyed:
            raise RebuildError(
                f"{self.guard.name}: no key can be made of any of {keyless:,} rows, so nothing would be guarded. Check "
                "what normalize(), or the field's to_python, returns for a row's value"
            )

    def _keys_of_texts(self, rows: list[tuple[Any, ...]]) -> list[bytes]:
        """Return the keys of texts: at a fifth of the cost of :meth:`key`, which is for those that are none."""
        try:
            return [value.encode() for (value,) in rows if value is not None]
        except (AttributeError, UnicodeEncodeError):
            return [key for key in map(self.key, rows) if key is not None]


def _stored(field: models.Field[Any, Any]) -> Any:
    """Return the column of ``field``, whose values are read and compared as they are stored.

    For Django no row has an integer out of the range of its field, as in a column that was made larger: a page after
    such a number would be empty. UUIDs may be stored in another form than Django's.
    """
    return ExpressionWrapper(F(field.attname), models.Field())
