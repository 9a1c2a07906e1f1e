"""Read rows as the database has them now, for keys that depend on them.

Packages put a cache of results in front of the ORM: django-cacheops replaces methods of ``QuerySet``, django-cachalot
``SQLCompiler.execute_sql``. What such a cache has kept may be older than the row that was just written, or than rows
that it was not told of; a view may live with that, a filter may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, models

#: Rows that are fetched at a time.
_ROWS = 2_000


def fresh_rows(rows: models.QuerySet[Any], size: int = 0, proof: Any = None) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a ``values_list()`` of fields, converted as Django does.

    With a ``size``, by a cursor of the server that sends so many at a time, as ``iterator()`` does. ``proof`` is a
    ``Proof`` of rebuild/pages.py: it is read with the rows, and its ``check`` raises if another server has answered.
    """
    connection: Any = connections[rows.db]
    compiler = rows.query.get_compiler(rows.db)
    try:
        sql, parameters = compiler.as_sql()
    except EmptyResultSet:
        return
    is_chunked = size and not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
    cursor = connection.chunked_cursor() if is_chunked else connection.cursor()
    # Without a size as Django's own queries: what closing a cursor raises is the driver's error.
    with connection.wrap_database_errors if is_chunked else nullcontext(), closing(cursor):
        cursor.execute(proof.around(sql) if proof else sql, parameters)
        yield from compiler.results_iter(_pages(cursor, size or _ROWS, proof), tuple_expected=True)


def _pages(cursor: Any, size: int, proof: Any) -> Iterator[Sequence[Any]]:
    while page := cursor.fetchmany(size):
        if proof:
            proof.check(page[0][-1])
            page = [row[:-2] for row in page if row[-2]]
        yield page
