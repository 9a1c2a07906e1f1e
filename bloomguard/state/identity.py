"""Which database an alias leads to: SQL for PostgreSQL, the file of SQLite. A copy or a restored one is another."""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..stores.disk import comparable_boot_id, file_id

#: SQL: which server of PostgreSQL, in which of its lives, and which of its databases.
SERVER = (
    "(SELECT system_identifier FROM pg_control_system())::text || ':' || "
    # Not the timeline in the control file: it is that of the last checkpoint, which may be the previous one.
    "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
)
NUMBER = "(SELECT oid FROM pg_database WHERE datname = current_database())::text"


def identity_of_file(connection: BaseDatabaseWrapper) -> str:
    """Return the identity of the file of a SQLite database, and of the host's boot; empty if it has none."""
    found = file_of(connection)
    return f"sqlite:{':'.join(map(str, found))}@{comparable_boot_id()}" if found else ""


def file_of(connection: BaseDatabaseWrapper) -> tuple[int, str] | None:
    """Identify the file that Django would open for a SQLite database now: another one may have replaced it."""
    if connection.vendor != "sqlite":
        return None
    try:
        name = path_of(str(connection.settings_dict["NAME"]))
        return os.stat(name).st_dev, file_id(name)
    except (OSError, ValueError):  # in memory
        return None


def path_of(name: str) -> str:
    """Return the path of a SQLite database, which may be a URI; empty if that says that it is in memory."""
    if "mode=memory" in urlsplit(name).query:
        return ""
    return unquote(urlsplit(name).path) if name.startswith("file:") else name


def are_one_file(alias: str, other: str) -> bool:
    """Return whether two aliases certainly lead to one SQLite file."""
    if not connections[alias].vendor == connections[other].vendor == "sqlite":
        return False
    names = [path_of(str(connections[each].settings_dict["NAME"])) for each in (alias, other)]
    with suppress(OSError, ValueError):  # in memory, or not there yet
        return os.path.samefile(*names)
    return False
