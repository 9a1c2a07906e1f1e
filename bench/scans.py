"""Bare scans: every id, or every slug, reaches this process, and nothing is done with it.

``BENCH_ROWS`` and ``BENCH_TEXTS`` set other numbers of rows.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

ROWS = int(os.environ.get("BENCH_ROWS", 5_000_000))
TEXTS = int(os.environ.get("BENCH_TEXTS", 10_000_000))
PAGE = 200_000  # for pages of any kind; 50,000 take as long
CHUNK = 50_000
TABLE = "shop_product"
UNCUT = "SET STATEMENT group_concat_max_len = 1073741824 FOR "


def pages(alias: str, gather: str, last_of: Callable[[Any], int]) -> Callable[[], None]:
    """Keyset pages, each gathered into one value by the database; the next one begins after the last id in it."""

    def scan() -> None:
        last, done = -(1 << 62), 0
        page = f"SELECT id FROM {TABLE} WHERE id > {{}} ORDER BY id LIMIT {PAGE}"
        while True:
            gathered, rows = one_row(alias, f"SELECT {gather}, count(*) FROM ({page.format(last)}) AS p")
            done += rows
            if rows < PAGE:
                break
            last = last_of(gathered)
        check(done)

    return scan


def ranges(alias: str, gather: str) -> Callable[[], None]:
    """The same with a range of ids a page, for dense ones."""

    def scan() -> None:
        done = 0
        for first in range(1, ROWS + 1, PAGE):
            where = f"id BETWEEN {first} AND {first + PAGE - 1}"
            done += one_row(alias, f"SELECT {gather}, count(*) FROM {TABLE} WHERE {where}")[1]
        check(done)

    return scan


def text_pages(alias: str) -> Callable[[], None]:
    """Keyset pages of slugs by primary key, each joined into one value by the database."""
    gather = "string_agg(slug, chr(1))" if alias == "postgresql" else "group_concat(slug, char(1))"

    def scan() -> None:
        last, done = 0, 0
        page = f"SELECT id, slug FROM shop_article WHERE id > {{}} ORDER BY id LIMIT {CHUNK}"
        while True:
            _, rows, last = one_row(alias, f"SELECT {gather}, count(*), max(id) FROM ({page.format(last)}) AS p")
            done += rows
            if rows < CHUNK:
                break
        check(done, TEXTS)

    return scan


def last_word(gathered: bytes) -> int:
    return int.from_bytes(gathered[-8:], "big")


def last_number(gathered: str) -> int:
    return int(gathered[gathered.rfind(",") + 1 :])


def one_row(alias: str, sql: str) -> Any:
    raw = raw_connection(alias)
    if alias == "postgresql":
        import psycopg

        return psycopg.Cursor(raw).execute(sql, binary=True).fetchone()
    cursor = raw.cursor()
    cursor.execute(f"{UNCUT}{sql}" if alias == "mariadb" else sql)
    return cursor.fetchone()


def raw_connection(alias: str) -> Any:
    from django.db import connections

    connections[alias].ensure_connection()
    return connections[alias].connection


def at_once(alias: str, gather: str) -> Callable[[], None]:
    """The whole table gathered into one value: no page, so no bound on its size either."""

    def scan() -> None:
        _, rows = one_row(alias, f"SELECT {gather}, count(*) FROM {TABLE}")
        check(rows)

    return scan


def orm_iterator(alias: str, texts: bool = False) -> Callable[[], None]:
    from tests.shop.models import Article

    def scan() -> None:
        slugs = Article.objects.using(alias).values_list("slug", flat=True)
        done = 0
        for _ in slugs.iterator() if texts else all_ids(alias):
            done += 1
        check(done, TEXTS if texts else ROWS)

    return scan


def all_ids(alias: str) -> Iterator[int]:
    from tests.shop.models import Product

    return Product.objects.using(alias).values_list("pk", flat=True).iterator()


def driver_cursor(alias: str, texts: bool = False) -> Callable[[], None]:
    """The driver's own cursor; on PostgreSQL one on the server."""
    sql = "SELECT slug FROM shop_article" if texts else f"SELECT id FROM {TABLE}"

    def scan() -> None:
        done = 0
        raw = raw_connection(alias)
        with ExitStack() as stack:
            if alias == "postgresql":
                stack.enter_context(raw.transaction())
                cursor = stack.enter_context(raw.cursor("bench"))
            else:
                cursor = raw.cursor(sqlite3.Cursor)
            cursor.execute(sql)
            while rows := cursor.fetchmany(CHUNK):
                done += len(rows)
        check(done, TEXTS if texts else ROWS)

    return scan


def copy_binary() -> None:
    done = 0
    sql = f"COPY (SELECT id FROM {TABLE}) TO STDOUT (FORMAT BINARY)"
    with raw_connection("postgresql").cursor() as cursor, cursor.copy(sql) as copy:
        copy.set_types(["int8"])
        for _ in copy.rows():
            done += 1
    check(done)


def unbuffered_cursor(texts: bool = False) -> Callable[[], None]:
    """MariaDB's, which keeps the rows on the server until they are fetched."""
    sql = "SELECT slug FROM shop_article" if texts else f"SELECT id FROM {TABLE}"

    def scan() -> None:
        from MySQLdb.cursors import SSCursor

        done = 0
        cursor = raw_connection("mariadb").cursor(SSCursor)
        cursor.execute(sql)
        while rows := cursor.fetchmany(CHUNK):
            done += len(rows)
        cursor.close()
        check(done, TEXTS if texts else ROWS)

    return scan


def pages_of_rows() -> None:
    last, done = -(1 << 62), 0
    cursor = raw_connection("mariadb").cursor()
    while cursor.execute(f"SELECT id FROM {TABLE} WHERE id > {last} ORDER BY id LIMIT {CHUNK}"):
        rows = cursor.fetchall()
        last = rows[-1][0]
        done += len(rows)
    check(done)


def check(rows: int, of: int = ROWS) -> None:
    if rows != of:
        raise SystemExit(f"a scan saw {rows:,} of {of:,} rows")


def scans(alias: str) -> dict[str, Callable[[], None]]:
    """The candidates, by name."""
    if alias == "postgresql":
        return {
            "pages of string_agg": pages(alias, "string_agg(int8send(id), ''::bytea)", last_word),
            "pages of array_agg": pages(alias, "array_send(array_agg(id))", last_word),
            "one string_agg of all": at_once(alias, "string_agg(int8send(id), ''::bytea)"),
            "server-side cursor": driver_cursor(alias),
            "COPY BINARY by rows": copy_binary,
            "iterator()": orm_iterator(alias),
        }
    if alias == "mariadb":
        return {
            "pages of group_concat": pages(alias, "group_concat(id)", last_number),
            "ranges of group_concat": ranges(alias, "group_concat(id)"),
            "ranges of hex(id)": ranges(alias, "group_concat(lpad(hex(id), 16, '0') SEPARATOR '')"),
            "one group_concat of all": at_once(alias, "group_concat(id)"),
            "SSCursor": unbuffered_cursor(),
            "pages of rows": pages_of_rows,
            "iterator()": orm_iterator(alias),
        }
    return {
        "pages of group_concat": pages(alias, "group_concat(id, ',')", last_number),
        "ranges of group_concat": ranges(alias, "group_concat(id, ',')"),
        "one group_concat of all": at_once(alias, "group_concat(id, ',')"),
        "sqlite3 cursor": driver_cursor(alias),
        "iterator()": orm_iterator(alias),
    }
