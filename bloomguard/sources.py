"""Where the true IDs come from: fast scans of a guard's rows.

Integers and UUIDs on PostgreSQL and SQLite are gathered by the database itself, a page at a time in key order, and
arrive as one buffer a page: two to three times as fast as a row at a time. Everything else goes through the ORM's
``iterator()`` and the guard's own key maker. A page is a statement of its own, so no snapshot is held open for long.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from django.db import connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Max, Min

from .exceptions import RebuildError
from .filters.choose import KeysSummary
from .guards import Guard
from .keys import OutOfRange, Uncertain, Unkeyable, kind_of, value_field

if TYPE_CHECKING:
    from .filters.base import Keys

#: A page takes some 40 ms and 1.6 MB; below 100,000 rows the questions begin to cost, above them nothing is gained.
PAGE_ROWS = 200_000
#: The same for rows that arrive one by one, as Python objects.
_CHUNK_ROWS = 50_000
#: A table whose planner statistics say fewer rows than this is counted: that takes no time.
_COUNT_BELOW = 200_000
#: Of a range of integers: how many stretches of how many are looked at, and the share that has to be there.
_STRETCHES, _STRETCH, _DENSE = 10, 2_000, 0.9
#: Of rows drawn at random: at how many places at least, and how many at most at one of them.
_PLACES, _RUN_ROWS = 40, 250
_random = random.SystemRandom()
#: As the planner does it: the rows a page of the last ANALYZE, times the pages that there are now.
_POSTGRESQL_ESTIMATE = (
    "SELECT reltuples::float8 / NULLIF(relpages, 0) * (pg_relation_size(oid) / current_setting('block_size')::int) "
    "FROM pg_class WHERE oid = %s::regclass"
)


@dataclass(frozen=True)
class Page:
    """Some rows, and ``make``, which gives their keys."""

    rows: int
    make: Callable[[], Keys]

    @cached_property
    def keys(self) -> Keys:
        """The keys in a form that :meth:`KeyHash.digests` takes, unpacked by the thread that asks for them first.

        Raises :class:`RebuildError` if they are not as many as the rows.
        """
        return self.make()


class Source:
    """The keys of all rows of ``guard`` that exist for the public, from the database that its writes go to."""

    def __init__(self, guard: Guard, using: str | None = None) -> None:
        self.guard = guard
        self.using = using or router.db_for_write(guard.model)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection that the scan runs on."""
        return connections[self.using]

    def rows(self) -> models.QuerySet[Any]:
        """The rows to scan, unordered."""
        return self.guard.rows().using(self.using)

    def _every(self) -> models.QuerySet[Any]:
        """All rows, alive or not."""
        return models.QuerySet(self.guard.model, using=self.using)

    def summary(self) -> KeysSummary:
        """About how many keys there are, and for integers and dates between which: what a filter is chosen by."""
        if self.guard.keys.width != 8:
            return KeysSummary(count=self._count())
        # Of all rows, alive or not: the two ends of an index, where the living ones would take a scan. One at a time:
        # SQLite finds either end at once, and both together by reading everything.
        every, field = self._every(), self.guard.fields[0].attname
        ends = [every.aggregate(end=end(field))["end"] for end in (Min, Max)]
        keys = [key_of_row(self.guard, [end]) for end in ends]
        low, high = (int.from_bytes(key or b"", "little", signed=True) for key in keys)
        # No rows, or nothing but NULL; or in an unsigned column of MySQL's numbers from 2**63 on.
        if None in keys or low > high:
            return KeysSummary(count=self._count())
        return KeysSummary(count=self._count(low, high), low=low, high=high)

    def _count(self, low: int = 0, high: int = 0) -> int:
        """About how many rows there are: statistics or the range of a large whole table, else a count."""
        if not self.guard.alive:
            if self.connection.vendor == "postgresql":
                with self.connection.cursor() as cursor:
                    cursor.execute(_POSTGRESQL_ESTIMATE, [self._table()])
                    tuples = int(cursor.fetchone()[0] or 0)
                if tuples > _COUNT_BELOW:
                    return tuples
            if self._dense(low, high):
                return high - low + 1
        return self.rows().count()

    def _dense(self, low: int, high: int) -> bool:
        """Whether a large table has nearly every integer from ``low`` to ``high``, by a look at some stretches.

        Their number is then a bound on the rows that is never too small, and close: a count takes as long as a scan.
        """
        field, span = self.guard.fields[0], high - low + 1
        if self.guard.keys.kinds != ("integer",) or not field.unique or span <= _COUNT_BELOW:
            return False
        starts = [low + (span - _STRETCH) * number // (_STRETCHES - 1) for number in range(_STRETCHES)]
        name = field.attname
        found = sum(
            self.rows().filter(**{f"{name}__gte": start, f"{name}__lt": start + _STRETCH}).count() for start in starts
        )
        return found >= _DENSE * _STRETCHES * _STRETCH

    def _table(self) -> str:
        return self.connection.ops.quote_name(self.guard.model._meta.db_table)

    def end(self, order: str) -> Any:
        """The primary key at one end of all rows, alive or not, found at once in its index; ``order`` is ``[-]pk``."""
        return self._every().order_by(order).values_list("pk", flat=True).first()

    def random_values(self, rows: int) -> Iterator[tuple[Any, ...]]:
        """What is looked up by, of about so many rows.

        They come from random places of the primary key where that is an integer or a UUID, evenly spread; those that
        are still lacking, from both ends of it.
        """
        names, left = self.guard.attnames, rows
        for run in self._runs(rows):
            for values in run.values_list(*names):
                yield values
                left -= 1
        for order in ("pk", "-pk"):
            yield from self.rows().order_by(order).values_list(*names)[: left // 2]

    def _runs(self, rows: int) -> Iterator[models.QuerySet[Any]]:
        """Runs of rows, one from a random place on in each of equal parts of the range: none reads beyond its part."""
        first, last = self.end("pk"), self.end("-pk")
        pk: Callable[[int], Any] = int
        kind = kind_of(self.guard.model._meta.pk)
        if kind == "uuid" and last is not None:
            first, last, pk = first.int, last.int, lambda number: uuid.UUID(int=number)
        elif kind != "integer" or last is None:
            return
        places = max(_PLACES, rows // _RUN_ROWS)
        width = (last - first) // places + 1
        length = rows // places
        for start in range(first, last + 1, width):
            end = min(start + width - 1, last)
            # In a part with hardly more numbers than a run takes, from its beginning.
            place = _random.randint(start, max(start, end - length + 1))
            yield self.rows().order_by("pk").filter(pk__gte=pk(place), pk__lte=pk(end))[:length]

    @property
    def is_gathered(self) -> bool:
        """Whether pages come as arrays of integers or as UUIDs in one piece, rather than as keys one by one."""
        return self._scan() is not None

    def pages(self) -> Iterator[Page]:
        """All keys, page by page. Rows that appear or vanish meanwhile may be missed: the sync sees to them."""
        scan = self._scan()
        return self._one_by_one() if scan is None else self._gathered(scan)

    def _scan(self) -> Scan | None:
        """The gathering scan that fits, if any: it walks the key's own index, so the key is unique and not NULL."""
        if len(self.guard.fields) != 1:
            return None
        field = self.guard.fields[0]
        if not field.unique or field.null or not type(value_field(field)).__module__.startswith("django.db.models."):
            return None  # a field of somebody's own may keep something else in its column
        return SCANS.get((self.connection.vendor, str(self.guard.keys.kinds[0])))

    def _gathered(self, scan: Scan) -> Iterator[Page]:
        field = self.guard.fields[0].attname
        ordered = self.rows().order_by(field).values(bloomguard_key=F(field))
        last: Any = None
        while True:
            page = ordered if last is None else ordered.filter(**{f"{field}__gt": last})
            sql, parameters = page[:PAGE_ROWS].query.sql_with_params()
            gathered, rows, last = self._fetch(
                f"SELECT {scan.gather}, count(*), {scan.last} FROM ({sql}) AS page",  # noqa: S608
                parameters,
            )
            if rows:
                yield Page(rows, partial(scan.unpack, gathered, rows))
            if rows < PAGE_ROWS:
                return
            if scan.find_last is not None:
                last = scan.find_last(gathered)

    def _fetch(self, sql: str, parameters: Any) -> tuple[Any, int, Any]:
        connection = self.connection
        connection.ensure_connection()
        binary = _binary_cursor(connection, sql, parameters)
        if binary is None:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                gathered, rows, last = cursor.fetchone()
        else:
            with connection.wrap_database_errors, binary() as cursor:
                gathered, rows, last = cursor.fetchone()
        return gathered, rows, last

    def _one_by_one(self) -> Iterator[Page]:
        guard, names = self.guard, self.guard.attnames
        size = min(PAGE_ROWS, _CHUNK_ROWS)
        keys: list[bytes] = []
        rows = keyed = keyless = 0
        for values in self.rows().order_by().values_list(*names).iterator(chunk_size=size):
            rows += 1
            key = key_of_row(guard, values)
            if key is not None:
                keys.append(key)
            elif None not in values:
                keyless += 1
            if rows == size:
                yield Page(rows, partial(list, keys))
                keyed += len(keys)
                keys, rows = [], 0
        if rows:
            yield Page(rows, partial(list, keys))
        if keyless and not keyed + len(keys):
            raise RebuildError(
                f"{guard.name}: no key can be made of any of {keyless:,} rows, so nothing would be guarded. See what "
                "normalize(), or the field's to_python, makes of a row's value"
            )


def key_of_row(guard: Guard, values: Sequence[Any]) -> bytes | None:
    """The key of a row with these ``values`` of :attr:`Guard.attnames`; ``None`` if no request can ask for it.

    Raises :class:`RebuildError` if that is not certain.
    """
    try:
        return guard.keys.key(values[0] if len(values) == 1 else values)
    except (Unkeyable, OutOfRange):  # NULL, or a value that no request converts to
        return None
    except Uncertain as error:
        raise RebuildError(
            f"{guard.name}: no key can be made of a row: {error}. Let to_python give a plain value for it, and "
            "normalize() raise ValueError for what has no form; or look rows up by another field"
        ) from None


def _binary_cursor(connection: BaseDatabaseWrapper, sql: str, parameters: Any) -> Callable[[], Any] | None:
    """Runs a query and receives ``bytea`` as bytes rather than as hexadecimal text: psycopg 3 can, psycopg2 cannot.

    Django's own cursors put the parameters in on this side, and cannot receive so; with the parameters put in first,
    a plain cursor of psycopg can.
    """
    raw: Any = connection.connection
    try:
        from psycopg import ClientCursor, Connection, Cursor
    except ImportError:
        return None
    if not isinstance(raw, Connection):
        return None

    def run() -> Any:
        return Cursor(raw).execute(ClientCursor(raw).mogrify(sql, parameters), binary=True)

    return run


@dataclass(frozen=True)
class Scan:
    """``gather`` is an SQL aggregate over ``bloomguard_key`` that holds a page in one value; ``unpack(value, rows)``
    gives the keys, and raises :class:`RebuildError` if some are missing. ``last`` is an aggregate that gives the
    greatest key, or ``find_last(value)`` finds it."""

    gather: str
    unpack: Callable[[Any, int], Any]
    last: str = "max(bloomguard_key)"
    find_last: Callable[[Any], Any] | None = None


def _integers(numbers: Any, rows: int) -> Any:
    if len(numbers) != rows:
        raise RebuildError(f"{rows} rows of a page hold {len(numbers)} integers: the column has other values too")
    return numbers


def _binary_integers(gathered: Any, rows: int) -> Any:
    import numpy as np

    return _integers(np.frombuffer(gathered, ">i8").astype(np.int64), rows)


def _decimal_integers(gathered: Any, rows: int) -> Any:
    import numpy as np

    try:
        numbers: Any = np.fromstring(gathered, np.int64, sep=",")
    except (ValueError, DeprecationWarning):
        numbers = []
    # Older versions of numpy only warn, and give what they could read.
    whole = len(numbers) > 0 and gathered.rpartition(",")[2] == str(numbers[-1])
    return _integers(numbers if whole else numbers[:-1], rows)


def _uuids(data: bytes, rows: int) -> bytes:
    if len(data) != 16 * rows:
        raise RebuildError(f"{rows} rows of a page hold {len(data)} bytes of UUIDs: the column has other values too")
    return data


def _greatest_uuid(data: bytes) -> uuid.UUID:
    import numpy as np

    words = np.frombuffer(data, ">u8").reshape(-1, 2)
    first = words[:, 0].max()
    second = words[words[:, 0] == first, 1].max()
    return uuid.UUID(int=int(first) << 64 | int(second))


SCANS = {
    ("postgresql", "integer"): Scan("string_agg(int8send(bloomguard_key::int8), ''::bytea)", _binary_integers),
    ("postgresql", "uuid"): Scan(
        "string_agg(uuid_send(bloomguard_key), ''::bytea)",
        lambda gathered, rows: _uuids(bytes(gathered), rows),
        last="NULL",  # max(uuid) came with PostgreSQL 18
        find_last=_greatest_uuid,
    ),
    ("sqlite", "integer"): Scan("group_concat(bloomguard_key, ',')", _decimal_integers),
    ("sqlite", "uuid"): Scan(
        "group_concat(bloomguard_key, '')", lambda gathered, rows: _uuids(bytes.fromhex(gathered), rows)
    ),
}
