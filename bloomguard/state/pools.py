"""How bloomguard's own connections are opened, whatever the project's database backend does for its own."""

from __future__ import annotations

import os
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError


def leave_pool(connection: Any, name: str) -> None:
    """Let ``connection`` never wait for the connections of the project, which may wait for it.

    Django's pool is an option, which goes. The pools of other packages are found by the alias. So while it connects it
    has another one, and with it a pool of its own: one for each ``name`` and process, as a fork may not use its
    parent's.
    """
    connection.settings_dict["OPTIONS"].pop("pool", None)
    alias, make = connection.alias, connection.get_new_connection

    def get_new_connection(parameters: Any) -> Any:
        connection.alias = f"{alias}:bloomguard-{name}-{os.getpid()}"
        try:
            return make(parameters)
        finally:
            connection.alias = alias

    connection.get_new_connection = get_new_connection


def connect(connection: Any) -> None:
    """Connect, if need be. Raises :class:`OperationalError` for all that a backend of the project's own may raise."""
    try:
        connection.ensure_connection()
    except (DatabaseError, InterfaceError, AssertionError):  # a test forbids queries by the last
        raise
    except Exception as error:
        raise OperationalError(f"cannot connect to the database of the state rows: {error!r}") from error
