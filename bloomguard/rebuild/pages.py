"""Pages of keys that a scan reads, and adding them to a generation.

The database aggregates a page into one value; from MySQL and MariaDB it is read row by row, as aggregating takes them
longer than sending. A thread hashes one page while the next is read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..exceptions import RebuildError
from ..filters.bulk import np
from ..state.table import StateTable
from ..stores import Generation

if TYPE_CHECKING:
    from ..filters.base import Keys


@dataclass(frozen=True)
class Proof:
    """Proof that rows are read where they are written; ``sql`` is empty if none is needed.

    A rebuild reads by the project's connections. A pooler, or a ``HOST`` with several names, may lead each statement to
    another server than the state rows, or to a standby that lags behind: rows would be missing from the filter. So on
    PostgreSQL each statement says by the expression ``sql`` which server has answered it: it must be ``expected``.
    """

    sql: str = ""
    expected: str = ""

    @classmethod
    def of(cls, using: str, table: StateTable | None = None, database: str = "") -> Proof:
        """Return the proof for ``using``: it is no standby and, for the alias of the state rows, it is ``database``."""
        if connections[using].vendor != "postgresql":
            return cls()
        if table is not None and database and table.connection.alias == using:
            return cls(f"(SELECT here FROM (SELECT {table.connection.proofs}) AS proved)", database)  # noqa: S608
        return cls("CASE WHEN pg_is_in_recovery() THEN '' ELSE 'primary' END", "primary")

    def __bool__(self) -> bool:
        return bool(self.sql)

    def check(self, found: Any) -> None:
        """Raise :class:`RebuildError` if another server has answered."""
        if self.sql and found != self.expected:
            raise RebuildError(
                "rows would be read from a standby, or another server than the state rows. Let HOST, or a pooler, "
                "lead to the primary alone, and run it again"
            )

    def around(self, sql: str) -> str:
        """Return the query ``sql`` with two columns more, in one row at least: 1 if it is a row, and the proof."""
        return (
            f"SELECT page.*, server.proof FROM (SELECT {self.sql} AS proof) AS server LEFT JOIN "  # noqa: S608
            f"(SELECT each.*, 1 AS bloomguard_found FROM ({sql}) AS each) AS page ON TRUE"
        )


@dataclass(frozen=True)
class Scan:
    """How a page of keys is read as one value.

    ``gather`` is the SQL aggregate over ``bloomguard_key``; without one, rows are fetched while the server sends them,
    and the value is the list of what ``pack(rows)`` made of a few at a time. ``keys_of(value)`` returns the keys.

    Pages are in the order of the keys, and ``last(value)`` returns the key after which the next page begins: to find
    the greatest one would take the database a tenth of the scan. Each database gathers in the order of the page; if it
    did not, the next page would repeat rows, and none would be lost. With ``by_pk`` they are in the order of the
    primary key, an integer, and a page with a wrong number of keys is read by rows.
    """

    gather: str
    keys_of: Callable[[Any], Any]
    last: Callable[[Any], Any] | None = None
    pack: Callable[[Sequence[Any]], Any] = list
    by_pk: bool = False

    def unpack(self, value: Any, rows: int) -> Any:
        """Return the keys of ``rows``. Raises :class:`RebuildError` if their number differs."""
        keys = self.keys_of(value)
        if len(keys) != rows * (16 if isinstance(keys, bytes) else 1):
            raise RebuildError(f"{rows} rows of a page have another number of keys: the column has other values too")
        return keys


#: Rows that are Python objects at a time: more of them do not stay in the processor's cache.
_STREAMED = 2_000


def unbuffered_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return the class of the cursors of mysqlclient and PyMySQL that fetch while the server sends, or ``None``."""
    driver = getattr(connection, "Database", None)
    return getattr(getattr(driver, "cursors", None), "SSCursor", None)


def binary_cursor(connection: BaseDatabaseWrapper, sql: str, parameters: Any) -> Any:
    """Run the query with a cursor that receives ``bytea`` in binary form; return ``None`` without psycopg 3.

    Django's cursors bind parameters on the client and cannot receive binary data. A plain psycopg cursor can, if the
    parameters are bound by ``mogrify`` before.
    """
    raw: Any = connection.connection
    try:
        from psycopg import ClientCursor, Connection, Cursor
    except ImportError:
        return None
    if not isinstance(raw, Connection):
        return None
    return Cursor(raw).execute(ClientCursor(raw).mogrify(sql, parameters), binary=True)


def streamed(
    connection: BaseDatabaseWrapper, sql: str, parameters: Any, pack: Callable[[Sequence[Any]], Any]
) -> tuple[list[Any], int, Any]:
    """Return what ``pack`` makes of the rows, their number, and the last value of the last one.

    Closing the cursor reads what an exception has left: otherwise it would be in the way of the next statement.
    """
    packed, count, last = [], 0, None
    with (
        connection.wrap_database_errors,
        closing(connection.connection.cursor(unbuffered_cursor(connection))) as cursor,
    ):
        cursor.execute(sql, parameters)
        while rows := cursor.fetchmany(_STREAMED):
            packed.append(pack(rows))
            count += len(rows)
            last = rows[-1][-1]
    return packed, count, last


def _packed_integers(rows: Sequence[Any]) -> Any:
    try:
        return np.fromiter(chain.from_iterable(rows), np.int64, len(rows))
    except OverflowError:  # from 2**63 on, in an unsigned column: a key is the same 64 bits without a sign
        return np.fromiter(chain.from_iterable(rows), np.uint64, len(rows)).view(np.int64)
    except TypeError:  # NULL
        raise RebuildError("a page holds other values than integers: the column has other values too") from None


def _decimal_integers(gathered: str) -> Any:
    try:
        numbers: Any = np.fromstring(gathered, np.int64, sep=",")
    except (ValueError, DeprecationWarning):
        numbers = []
    # Older versions of numpy only warn, and return the part that they could parse.
    whole = len(numbers) > 0 and gathered.rpartition(",")[2] == str(numbers[-1])
    return numbers if whole else numbers[:-1]


def _last_integer(gathered: str) -> int:
    try:
        return int(gathered[gathered.rfind(",") + 1 :])
    except ValueError:
        raise RebuildError("a page of integers ends otherwise: the column has other values too") from None


def _hexadecimal_uuids(gathered: str) -> bytes:
    digits = gathered.replace("-", "")
    if digits[32::33].strip():  # one of another length, after which all keys would be of other bytes
        return b""
    try:
        return bytes.fromhex(digits)  # which skips the spaces
    except ValueError:
        return b""


def _last_stored(gathered: str) -> str:
    """Return the last UUID of a page as it is stored: that is what the next page is compared with."""
    return gathered.rpartition(" ")[2]


#: What is between two texts of a page, and stands for NULL. A page with more of them, and so with more texts than rows,
#: is read by rows.
_SEPARATOR = "\x01"


def _texts(gathered: str) -> list[bytes]:
    return gathered.encode().split(_SEPARATOR.encode())


SCANS = {
    ("postgresql", "integer"): Scan(
        "string_agg(int8send(bloomguard_key::int8), ''::bytea)",
        lambda gathered: np.frombuffer(gathered, ">i8").astype(np.int64),
        lambda gathered: int.from_bytes(gathered[-8:], "big", signed=True),
    ),
    ("sqlite", "integer"): Scan("group_concat(bloomguard_key, ',')", _decimal_integers, _last_integer),
    ("mysql", "integer"): Scan("", lambda packed: np.concatenate(packed), pack=_packed_integers),
    ("postgresql", "uuid"): Scan(
        "string_agg(uuid_send(bloomguard_key), ''::bytea)",
        bytes,
        lambda gathered: uuid.UUID(bytes=bytes(gathered[-16:])),
    ),
    ("sqlite", "uuid"): Scan("group_concat(bloomguard_key, ' ')", _hexadecimal_uuids, _last_stored),
    ("mysql", "uuid"): Scan(
        "",
        lambda packed: _hexadecimal_uuids(" ".join(packed)),
        pack=lambda rows: " ".join(text or "" for (text,) in rows),
    ),
    ("postgresql", "text"): Scan("string_agg(coalesce(bloomguard_key::text, chr(1)), chr(1))", _texts, by_pk=True),
    ("sqlite", "text"): Scan("group_concat(coalesce(bloomguard_key, char(1)), char(1))", _texts, by_pk=True),
    ("mysql", "text"): Scan(
        "",
        lambda packed: list(chain.from_iterable(packed)),
        pack=lambda rows: [text.encode() for text, _ in rows if type(text) is str],
        by_pk=True,
    ),
}


@dataclass(frozen=True)
class KeyPage:
    """The number of some rows, and ``make``, which returns their keys."""

    rows: int
    make: Callable[[], Keys]

    @cached_property
    def keys(self) -> Keys:
        """The keys in a form that :meth:`KeyHash.digests` takes, unpacked by the first thread that reads them."""
        return self.make()


def overlapped(work: Callable[[Any], Any], items: Iterable[Any]) -> Generator[Any]:
    """Yield ``work(item)`` of each item, done in a thread while the next item is read."""
    with ThreadPoolExecutor(1) as thread:
        pending: Future[Any] | None = None
        for item in items:
            if pending is not None:
                yield pending.result()
            pending = thread.submit(work, item)
        if pending is not None:
            yield pending.result()


def fill(generation: Generation, pages: Generator[KeyPage], progress: Callable[[int], None]) -> int:
    """Add all pages to ``generation``; return the number of rows. ``progress(rows so far)`` is called after each."""

    def add(page: KeyPage) -> int:
        generation.add_many(page.keys)
        return page.rows

    rows = 0
    # Close the pages here, not when they are collected: their connection may be closed by then.
    with closing(pages), closing(overlapped(add, pages)) as added:
        for more in added:
            rows += more
            progress(rows)
    return rows
