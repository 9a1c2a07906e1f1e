"""What a filter needs of the project's database backend, and no query can show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from django.db import Error

from ..state.pools import leave_pool
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
    fresh, seen = connection.copy(), []

    def note(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if sql != _PROBE:  # a backend's own, such as a SET search_path
            return execute(sql, params, many, context)
        return seen.append(many)  # nothing is sent

    leave_pool(fresh, "probe")
    with closing(fresh):
        fresh.ensure_connection()
        if watch not in fresh.execute_wrappers:
            return False
        with suppress(Error), fresh.execute_wrapper(note), fresh.cursor() as cursor:
            cursor.execute(_PROBE)
            cursor.executemany(_PROBE, [()])
    return seen == [False, True]
