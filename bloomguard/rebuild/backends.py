"""What a filter needs of the project's database backend, and no query can show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from django.db import Error

from ..state.connection import new_connection
from ..writes.raw import watch

_PROBE = "SELECT 1 AS bloomguard"


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
