"""Hooks into the project's connections: each statement is read, also if Django calls no ``execute_wrapper`` for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from sqlite3 import complete_statement
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper
from django.utils.connection import ConnectionDoesNotExist

from ..state.connection import fetch_uncounted
from . import strays
from .consequences import current_cache
from .observer import TransactionObserver
from .raw import read, text_of, watch
from .raw_fences import fencing_around
from .statements import wrap


def connect() -> None:
    """Hook into every connection of the project, also those that are open already."""
    connection_created.connect(_connected, dispatch_uid="bloomguard.writes.cursors")
    for connection in connections.all(initialized_only=True):
        _connected(connection=connection)
    wrap(CursorWrapper, "callproc", partial(_hooked_method, "callproc"))
    for name in _METHODS:
        if not hasattr(CursorWrapper, name):
            setattr(CursorWrapper, name, _DriverMethod(name))


def _connected(connection: Any, **kwargs: Any) -> None:
    if getattr(connection, "is_own", False):
        return  # it reads the state rows
    try:
        connections[connection.alias]
    except ConnectionDoesNotExist:
        return  # such as Django's own that creates and drops databases: no setting says which database this is
    if watch not in connection.execute_wrappers:
        # In front: `with connection.execute_wrapper(...)` removes the last one when it ends.
        connection.execute_wrappers.insert(0, watch)
    if connection.vendor == "postgresql":
        _hook_driver(connection)
    elif connection.vendor == "sqlite":
        from django.db.backends.sqlite3.base import SQLiteCursorWrapper

        wrap(SQLiteCursorWrapper, "executescript", _hook_script)


# -- what psycopg's cursors send without Django's wrappers


_DJANGOS: Any = CursorWrapper
#: Whose calls of the driver are not hooked: Django has called :func:`watch` before, or it is a read of bloomguard's.
_HOOKED_BEFORE = {function.__code__ for function in (_DJANGOS._execute, _DJANGOS._executemany, fetch_uncounted)}


def _send(many: bool, method: Any, connection: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a statement by the driver's cursor, through :func:`watch` unless Django's cursor has called that."""
    frame = sys._getframe(2)  # mostly this one; a package that traces statements may have some in between
    while frame is not None and frame.f_code not in _HOOKED_BEFORE:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None:
        return method(query, *args, **kwargs)

    def execute(*_: Any) -> Any:
        return method(query, *args, **kwargs)

    for wrapper in reversed(connection.execute_wrappers):
        if wrapper is watch or isinstance(wrapper, TransactionObserver):
            execute = partial(wrapper, execute)
    return execute(query, args[0] if args else kwargs.get("params"), many, {"connection": connection})


@contextmanager
def _copy(method: Any, connection: Any, statement: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    with fencing_around(read(statement, connection), connection), method(statement, *args, **kwargs) as copy:
        yield copy


def _stream(method: Any, connection: Any, query: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    # The caller may stop fetching early, and no other statement can be sent until the rows are fetched.
    with fencing_around(read(query, connection), connection, apart=True):
        yield from method(query, *args, **kwargs)


def _copy_from(method: Any, connection: Any, file: Any, table: str, *args: Any, **kwargs: Any) -> Any:
    text = f"COPY {connection.ops.quote_name(table)} FROM STDIN"  # it quotes the name too
    with fencing_around(read(text, connection), connection):
        return method(file, table, *args, **kwargs)


def _copy_expert(method: Any, connection: Any, sql: Any, *args: Any, **kwargs: Any) -> Any:
    with fencing_around(read(sql, connection), connection):
        return method(sql, *args, **kwargs)


def _callproc(method: Any, connection: Any, procname: Any, *args: Any, **kwargs: Any) -> Any:
    with fencing_around(read(f"CALL {text_of(procname, connection)}", connection), connection):
        return method(procname, *args, **kwargs)


#: The methods of psycopg 3 and 2 by which the driver's cursor sends what Django's does not -> what fences for them.
_METHODS = {
    "callproc": _callproc,
    "copy": _copy,
    "copy_expert": _copy_expert,
    "copy_from": _copy_from,
    "stream": _stream,
}
#: Those which the project may call by itself as well: as ``cursor.cursor`` or ``connection.connection.cursor()``.
_DRIVER_METHODS = _METHODS | {"execute": partial(_send, False), "executemany": partial(_send, True)}


def _hook_driver(connection: Any) -> None:
    """Hook :data:`_DRIVER_METHODS` of the cursors that the driver makes, and :data:`_METHODS` of Django's, too.

    What a backend takes for the connection may not use the factory, or a package may replace it later. A call that goes
    through both hooks does no harm.
    """
    for cursor in (connection.make_cursor(None), connection.make_debug_cursor(None)):
        for kind in type(cursor).__mro__[:-1]:
            for name in _METHODS.keys() & vars(kind).keys():
                if kind is not CursorWrapper:
                    wrap(kind, name, partial(_hooked_method, name))
    driver = connection.connection
    # A pool's object in its place keeps what is set on it for itself; the driver's cursor knows the driver's own.
    with suppress(AttributeError, connection.Database.Error), closing(driver.cursor()) as cursor:
        driver = cursor.connection
    factory: Any = getattr(driver, "cursor_factory", None)
    factory = getattr(factory, "unhooked", factory)  # a pool may have given this connection out before
    names = [name for name in _DRIVER_METHODS if hasattr(factory, name)]
    if not names:
        return  # of another driver

    def hooked(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _DRIVER_METHODS[name](getattr(super(made, self), name), connection, *args, **kwargs)

        return method

    made: Any = type("HookedCursor", (factory,), {"unhooked": factory, **{name: hooked(name) for name in names}})
    driver.cursor_factory = made


class _DriverMethod:
    """A driver's method that Django's cursor hands out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, cursor: Any, owner: object = None) -> Any:
        if cursor is None:
            raise AttributeError(self._name)
        return partial(_METHODS[self._name], getattr(cursor.cursor, self._name), cursor.db)


def _hooked_method(name: str, run: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _METHODS[name](partial(run, self), self.db, *args, **kwargs)

    return method


def _hook_script(run: Any) -> Any:
    """Hook SQLite's ``executescript``: it calls no wrapper of Django's, and commits the open transaction first."""

    def executescript(self: Any, script: str) -> Any:
        known = [each for each in connections.all(initialized_only=True) if each.vendor == "sqlite"]
        # A package may have put another object in place of Django's connection: then it may be any of them.
        owners = [each for each in known if each.connection is self.connection] or known

        def send(text: str) -> Any:
            observers = list(filter(None, map(TransactionObserver.of, owners)))
            try:
                return run(self, text)
            finally:
                for observer in observers:
                    observer.note_executed("COMMIT")

        complete_statement(script)  # raises the errors by which Python refuses a script, before the COMMIT
        send("")  # the COMMIT alone: a fence in it has to be known before the script begins another transaction
        with ExitStack() as stack:
            for owner in owners:
                strays.note(script, owner, current_cache(owner.alias).answered)
                stack.enter_context(fencing_around(read(script, owner), owner, apart=True))
            return send(script)

    return executescript
