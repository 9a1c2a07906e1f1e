"""What a rebuild has to know of a database and its backend, besides rows and columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from ..guards.places import name_of_database
from ..state.connection import DatabaseConnection
from ..state.identity import file_of
from ..state.own_connections import new_connection
from ..writes.raw import watch

_PROBE = "SELECT 1 AS bloomguard"
#: What is the same for all connections to one database. Two databases never have it in common, nor a server and its
#: standby; but a standby is refused.
_IDENTITIES = {
    "postgresql": "SELECT pg_postmaster_start_time()::text, current_database()",
    "mysql": "SELECT @@hostname, @@port, @@datadir, DATABASE()",
}


def doubts(connection: Any) -> Iterator[str]:
    """Yield what follows "the backend of the database ..." if it is not as Django's are; may connect once more."""
    if (how := getattr(connection, "operators", {}).get("exact", "= %s")) != "= %s":
        yield f"looks rows up by {how!r}, not by '= %s'"
    if not calls_wrappers(connection):
        yield "makes cursors that call no execute_wrapper, so raw SQL would be overlooked"


def calls_wrappers(connection: Any) -> bool:
    """Return whether each statement of a new connection, as another thread has one, is seen by :func:`watch`."""
    fresh, seen = new_connection(connection.alias, "probe", is_own=False), []

    def note(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if _PROBE not in str(sql):  # a backend's own, such as a SET search_path; a cursor may add a comment to ours
            return execute(sql, params, many, context)
        return seen.append(many)  # nothing is sent

    with closing(fresh):
        fresh.ensure_connection()
        if watch not in fresh.execute_wrappers:
            return False
        fresh.execute_wrappers.insert(0, note)  # before those of other packages: they may change the text
        with suppress(Error), fresh.cursor() as cursor:
            cursor.execute(_PROBE)
            cursor.executemany(_PROBE, [()])
    return seen == [False, True]


def is_standby(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the server is a standby, whose rows are those of another one."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {DatabaseConnection(connection.alias).is_standby}")
        return bool(int(cursor.fetchone()[0]))


def identity_of(connection: BaseDatabaseWrapper) -> Any:
    """Return what is the same for all aliases of one database, whatever their settings.

    Two databases never have it in common, but one may have another after a restart. See also
    :func:`bloomguard.guards.places.may_reach`.
    """
    found = file_of(connection)
    if connection.vendor in _IDENTITIES:
        with connection.cursor() as cursor:
            cursor.execute(_IDENTITIES[connection.vendor])
            found = cursor.fetchone()
    return found or name_of_database(connection.settings_dict)
