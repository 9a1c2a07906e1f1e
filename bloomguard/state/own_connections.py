"""Connections of bloomguard's own to the project's databases, and the time limit on what is sent by them.

Drivers have no time limit for a statement, and the server's own has no effect if the network is down.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from django.db import DatabaseError, OperationalError, connections

from ..process import start_thread


def new_connection(alias: str, pool: str, *, is_own: bool = True) -> Any:
    """Return another connection to ``alias``. It takes none from the project's pool: it would wait for the project.

    Django's pool is an option, which is left out. The pools of other packages are found by the alias, so while this
    connects it has an alias with the name ``pool`` and the process. ``is_own``: it changes no guard's rows.
    """
    own: Any = connections.create_connection(alias)
    given = connections[alias].settings_dict
    # Not a deep copy: of some values, such as an SSL context, there is none.
    options = {name: value for name, value in given["OPTIONS"].items() if name != "pool"}
    own.settings_dict = {**given, "AUTOCOMMIT": True, "OPTIONS": options}
    own.is_own, own.is_in_memory_db, make = is_own, lambda: False, own.get_new_connection  # else it is never closed

    def get_new_connection(parameters: Any) -> Any:
        own.alias = f"{alias}:bloomguard-{pool}-{os.getpid()}"
        try:
            return make(parameters)
        finally:
            own.alias = alias

    own.get_new_connection = get_new_connection
    return own


class TimedOut(OperationalError):
    """The server did not answer in time, and the connection was cut."""


@contextmanager
def limited(connection: Any, seconds: float) -> Iterator[None]:
    """:func:`cut_off` what Django, its backend and the project's receivers send by a connection that the block opens.

    The driver's own limit ends with the login, which a pooler may answer before it has a server.
    """
    if connection.connection is not None:
        yield
        return
    make = connection.get_new_connection
    with ExitStack() as limit:

        def get_new_connection(parameters: Any) -> Any:
            raw = make(parameters)
            limit.enter_context(cut_off(connection, seconds, raw))
            return raw

        connection.get_new_connection = get_new_connection
        try:
            yield
        finally:
            connection.get_new_connection = make


@contextmanager
def cut_off(connection: Any, seconds: float, raw: Any = None) -> Iterator[None]:
    """Cut the connection if the block takes longer than ``seconds``; raises :class:`TimedOut` then.

    ``raw``: the driver's, if Django has it not yet. A process that can start no thread, as at its end since Python
    3.12, has no limit: a write must not fail for that.
    """
    raw = raw or connection.connection
    if not hasattr(raw, "fileno"):  # SQLite, which has its own time limit
        yield
        return
    is_done, is_cut = threading.Event(), threading.Event()

    def cut() -> None:
        if is_done.wait(seconds):
            return
        is_cut.set()
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as link:
            link.shutdown(socket.SHUT_RDWR)

    with connection.wrap_database_errors:
        number = raw.fileno()
    try:  # from here on: a thread that is left behind might cut what has this number by then
        with suppress(RuntimeError):
            start_thread(cut)
        yield
    except DatabaseError as error:
        if is_cut.is_set():
            raise TimedOut(f"the database of the state rows has not answered for {seconds:g} s") from error
        raise
    finally:
        is_done.set()
