"""Hooks into the project's connections: each statement is read, also if Django calls no ``execute_wrapper`` for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper

from .observer import TransactionObserver
from .raw import following, read, text_of, watch
from .sql import reader
from .statements import wrap


def connect() -> None:
    """Hook into every connection of the project, also those that are open already."""
    connection_created.connect(_connected, dispatch_uid="bloomguard.writes.cursors")
    for connection in connections.all(initialized_only=True):
        _connected(connection=connection)
    wrap(CursorWrapper, "callproc", _hook_callproc)


def _connected(connection: Any, **kwargs: Any) -> None:
    if connection.alias == NO_DB_ALIAS or getattr(connection, "is_own", False):
        return  # one creates and drops databases, the other reads the state rows
    if watch not in connection.execute_wrappers:
        # In front: `with connection.execute_wrapper(...)` removes the last one when it ends.
        connection.execute_wrappers.insert(0, watch)
    if connection.vendor == "postgresql":
        _hook_copies(connection)
    elif connection.vendor == "sqlite":
        from django.db.backends.sqlite3.base import SQLiteCursorWrapper

        wrap(SQLiteCursorWrapper, "executescript", _hook_script)


def _hook_copies(connection: Any) -> None:
    """Hook what psycopg's cursors send without Django's wrappers: ``copy`` and ``stream``, ``copy_from`` and the like.

    Another driver of PostgreSQL has its own ways, which are not known.
    """
    driver = connection.connection
    factory = getattr(driver, "cursor_factory", None)
    factory = getattr(factory, "unhooked", factory)  # a pool may have given this connection out before
    if hasattr(factory, "copy"):
        driver.cursor_factory = _cursor_of_psycopg_3(factory, connection)
    elif (psycopg_2 := sys.modules.get("psycopg2.extensions")) and isinstance(driver, psycopg_2.connection):
        driver.cursor_factory = _cursor_of_psycopg_2(factory or psycopg_2.cursor, connection)


def _cursor_of_psycopg_3(factory: Any, connection: Any) -> Any:
    class HookedCursor(factory):  # type: ignore[misc]
        unhooked = factory

        @contextmanager
        def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            with following(read(statement, connection), connection), super().copy(statement, *args, **kwargs) as copy:
                yield copy

        def stream(self, query: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            # The caller may stop fetching early, and no other statement can be sent until the rows are fetched.
            with following(read(query, connection), connection, apart=True):
                yield from super().stream(query, *args, **kwargs)

    return HookedCursor


def _cursor_of_psycopg_2(factory: Any, connection: Any) -> Any:
    class HookedCursor(factory):  # type: ignore[misc]
        unhooked = factory

        def copy_from(self, file: Any, table: str, *args: Any, **kwargs: Any) -> Any:
            text = f"COPY {connection.ops.quote_name(table)} FROM STDIN"  # it quotes the name too
            with following(read(text, connection), connection):
                return super().copy_from(file, table, *args, **kwargs)

        def copy_expert(self, sql: Any, *args: Any, **kwargs: Any) -> Any:
            with following(read(sql, connection), connection):
                return super().copy_expert(sql, *args, **kwargs)

    return HookedCursor


def _hook_callproc(callproc: Any) -> Any:
    def hooked(self: Any, procname: Any, *args: Any, **kwargs: Any) -> Any:
        with following(reader.read_call(text_of(procname, self.db)), self.db):
            return callproc(self, procname, *args, **kwargs)

    return hooked


def _hook_script(run: Any) -> Any:
    """Hook SQLite's ``executescript``: it calls no wrapper of Django's, and commits the open transaction first."""

    def executescript(self: Any, script: str) -> Any:
        owners = [each for each in connections.all(initialized_only=True) if each.connection is self.connection]
        if not owners:
            return run(self, script)
        observer = TransactionObserver.of(owners[0])
        with following(read(script, owners[0]), owners[0], apart=True):
            try:
                return run(self, script)
            finally:
                if observer is not None:
                    observer.follow("COMMIT")

    return executescript
