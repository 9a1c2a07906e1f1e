"""Sees every statement of the project's connections: Django's wrappers, and what goes past them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper

from . import sqltext
from .raw import following, read, text_of, watch


def connect() -> None:
    """Watch every connection of the project, those of before included."""
    connection_created.connect(_connected, dispatch_uid="bloomguard.sync.cursors")
    for connection in connections.all(initialized_only=True):
        _connected(connection=connection)
    wrapper: Any = CursorWrapper
    if not hasattr(wrapper.callproc, "of_bloomguard"):
        wrapper.callproc = _seeing_procedures(wrapper.callproc)
        wrapper.callproc.of_bloomguard = True


def _connected(connection: Any, **kwargs: Any) -> None:
    if connection.alias == NO_DB_ALIAS or getattr(connection, "is_own", False):
        return  # one makes and drops whole databases, the other reads the state rows
    if watch not in connection.execute_wrappers:
        # In front: `with connection.execute_wrapper(...)` takes off the last one when it ends.
        connection.execute_wrappers.insert(0, watch)
    if connection.vendor == "postgresql" and hasattr(getattr(connection.connection, "cursor_factory", None), "copy"):
        connection.connection.cursor_factory = _seeing_copy(connection.connection.cursor_factory, connection)
    elif connection.vendor == "sqlite":
        _see_scripts()


def _seeing_copy(factory: Any, connection: Any) -> Any:
    """psycopg's cursor class, whose ``copy`` and ``stream`` go past Django's wrappers."""
    factory = getattr(factory, "unwatched", factory)  # a pool's connection was another one's before

    class WatchedCursor(factory):  # type: ignore[misc]
        unwatched = factory

        @contextmanager
        def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            text = text_of(statement, connection)
            with following(read(text, connection), text, connection), super().copy(statement, *args, **kwargs) as copy:
                yield copy

        def stream(self, query: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            text = text_of(query, connection)
            # Whoever fetches the rows may stop, and nothing else can be sent before that.
            with following(read(text, connection), text, connection, apart=True):
                yield from super().stream(query, *args, **kwargs)

    return WatchedCursor


def _seeing_procedures(callproc: Any) -> Any:
    @wraps(callproc)
    def seeing(self: Any, procname: Any, *args: Any, **kwargs: Any) -> Any:
        name = text_of(procname, self.db)
        with following(sqltext.called(name), f"CALL {name}", self.db):
            return callproc(self, procname, *args, **kwargs)

    return seeing


def _see_scripts() -> None:
    """SQLite's ``executescript`` goes past Django's wrappers, and commits what is open before it begins."""
    from django.db.backends.sqlite3.base import SQLiteCursorWrapper

    cursor: Any = SQLiteCursorWrapper
    if not hasattr(cursor.executescript, "of_bloomguard"):
        run = cursor.executescript

        @wraps(run)
        def executescript(self: Any, script: str) -> Any:
            owners = [each for each in connections.all(initialized_only=True) if each.connection is self.connection]
            if not owners:
                return run(self, script)
            with following(read(script, owners[0]), script, owners[0], apart=True):
                return run(self, script)

        executescript.of_bloomguard = True  # type: ignore[attr-defined]
        cursor.executescript = executescript
