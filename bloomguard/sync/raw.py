"""Fences guards whose rows are written by raw SQL: what keys it wrote, nobody tells.

``connection.execute_wrapper`` sees every statement that goes through a Django cursor, and psycopg's ``copy`` is seen by
a cursor class. Those of the ORM's own compilers tell their keys themselves, and every other table is nobody's: both are
let through within a microsecond or two. A DELETE or a TRUNCATE takes rows away, which harms nobody before the next
build. Who knows the keys adds them in a block of :func:`~bloomguard.sync.adding.adding`, and nothing is fenced.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from ..guards import Guard, registry
from . import adding, fencing, sqltext
from .statements import running
from .transactions import together
from .watches import columns, guarded_tables

logger = logging.getLogger("bloomguard")

Execute = Callable[..., Any]

#: How statements begin that write no rows: SELECT, SAVEPOINT, RELEASE, DELETE, ...
_HARMLESS = frozenset(
    {"SEL", "SAV", "REL", "ROL", "BEG", "COM", "DEL", "TRU", "DRO", "PRA", "SET", "SHO", "FET", "DEC", "CLO"}
)
#: How the ORM and the schema editors write.
_USUAL = re.compile(r'(?:INSERT INTO|UPDATE) (["`])([^"`.]+)\1 (?:\(|SET )')

Tables = dict[str, tuple[tuple[str, Guard], ...]]

#: Guarded tables, and texts that write to others: there are few, with marks for the values. To look at one takes a
#: microsecond, to find it here a twentieth. Both are made anew in one piece, for threads that look meanwhile.
_known: tuple[Tables, set[str]] = ({}, set())
_version = -1
_PASSED_TEXTS, _PASSED_LENGTH = 1_000, 1_000
_warned: set[tuple[str, str]] = set()


def connect() -> None:
    """Watch every connection of the project, those of before included."""
    connection_created.connect(_connected, dispatch_uid="bloomguard.sync.raw")
    for connection in connections.all(initialized_only=True):
        _connected(connection=connection)


def _connected(connection: Any, **kwargs: Any) -> None:
    if watch not in connection.execute_wrappers:
        # In front: `with connection.execute_wrapper(...)` takes off the last one when it ends.
        connection.execute_wrappers.insert(0, watch)
    if connection.vendor == "postgresql" and hasattr(getattr(connection.connection, "cursor_factory", None), "copy"):
        connection.connection.cursor_factory = _seeing_copy(connection.connection.cursor_factory, connection)


def _seeing_copy(factory: Any, connection: Any) -> Any:
    """psycopg's cursor class, whose ``copy`` goes past Django's wrappers."""
    factory = getattr(factory, "unwatched", factory)  # a pool's connection was another one's before

    class WatchedCursor(factory):  # type: ignore[misc]
        unwatched = factory

        @contextmanager
        def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            fencing = _fencing(_written(statement, connection), statement, connection)
            with fencing, super().copy(statement, *args, **kwargs) as copy:
                yield copy

    return WatchedCursor


def watch(execute: Execute, sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Let ``sql`` be executed; if it writes rows of a guard behind the ORM's back, fence the guard with it."""
    if _version != registry.version:
        _renew()
    tables, passed = _known
    if type(sql) is str:
        if ";" not in sql:
            if sql[:3] in _HARMLESS or sql in passed or sql.lstrip()[:3].upper() in _HARMLESS:
                return execute(sql, params, many, context)
            usual = _USUAL.match(sql)
            if usual is not None and usual[2].lower() not in tables:
                _pass(sql, passed)
                return execute(sql, params, many, context)
            if usual is not None and usual[2] == running.table:
                return execute(sql, params, many, context)
        lower = sql.lower()
        if not any(name in lower for name in tables):
            if params:  # without, each has another text
                _pass(sql, passed)
            return execute(sql, params, many, context)
    written = _written(sql, context["connection"])
    if not written:
        return execute(sql, params, many, context)
    with _fencing(written, sql, context["connection"]):
        return execute(sql, params, many, context)


def _pass(sql: str, passed: set[str]) -> None:
    if len(sql) <= _PASSED_LENGTH:
        if len(passed) >= _PASSED_TEXTS:
            passed.clear()
        passed.add(sql)


def _renew() -> None:
    global _known, _version
    version, tables = registry.version, Tables()
    for table, guards in guarded_tables().items():
        name = sqltext.bare(table)
        tables[name] = (*tables.get(name, ()), *((table, guard) for guard in guards))
        tables[f"new__{name}"] = tables[name]  # what SQLite's schema editor makes anew
    _known = tables, set()
    _version = version


def _written(sql: Any, connection: Any) -> dict[Guard, str]:
    """The guards that the statement may give a new key, and the table by which."""
    if _version != registry.version:
        _renew()
    tables, _ = _known
    if not isinstance(sql, str):
        sql = sql.decode(errors="replace") if isinstance(sql, bytes) else _composed(sql, connection)
    names = {sqltext.bare(table) for table in guarded_tables()}
    found: dict[Guard, str] = {}
    for write in sqltext.writes(sql, names, connection.vendor):
        for table, guard in tables[write.table]:
            if table == running.table:
                continue  # a statement of the ORM's own
            minded = columns(guard, table)
            if write.verb == "remake" and sqltext.keeps(sql, minded):
                continue
            if write.sets(minded):
                found[guard] = table
    return found


def _composed(sql: Any, connection: Any) -> str:
    """The text of psycopg's `sql.SQL` and the like."""
    as_string = getattr(sql, "as_string", None)
    return as_string(connection.connection) if as_string is not None else str(sql)


@contextmanager
def _fencing(written: dict[Guard, str], sql: Any, connection: Any) -> Iterator[None]:
    """Around a statement that writes: its guards are fenced with it, but for those whose keys somebody adds."""
    site = _site()

    def fence() -> None:
        for guard, table in written.items():
            reason = f"raw SQL wrote to {table} at {site}"
            if adding.is_left_to_block(guard, connection.alias, reason):
                continue
            if fencing.fence(guard, connection.alias, reason):
                _warn(table, site)

    idle = fencing.all_idle(written, connection.alias)
    if idle is not None:
        yield
        if not all(fencing.was_idle(guard, since) for guard, since in idle.items()):
            fence()
    elif connections[connection.alias] is not connection or _commits_by_itself(sql, connection):
        # No transaction can be put around it: what was built between the fence and the statement is fenced again.
        fence()
        yield
        fence()
    elif connection.in_atomic_block:
        yield
        with together(connection.alias):
            fence()
    else:
        with together(connection.alias):
            yield
            fence()


def _commits_by_itself(sql: Any, connection: Any) -> bool:
    """Whether the COMMIT does not come after the fence, though that is in the statement's transaction.

    Under autocommit SQLite commits a statement that returns rows when these have been fetched, and not before; MySQL
    commits an ALTER at once; several statements in one may bring a COMMIT along.
    """
    text = str(sql)
    if ";" in text and re.search(r"\b(?:COMMIT|END)\b", text, re.IGNORECASE):
        return True
    if connection.vendor == "sqlite" and not connection.in_atomic_block:
        return re.search(r"\bRETURNING\b", text, re.IGNORECASE) is not None
    return connection.vendor == "mysql" and re.search(r"\b(?:ALTER|RENAME|CREATE)\b", text, re.IGNORECASE) is not None


def _warn(table: str, site: str) -> None:
    if (table, site) not in _warned:
        _warned.add((table, site))
        logger.warning(
            "bloomguard cannot follow raw SQL: %s writes to %s, so its guards pass every request until rebuild_filter "
            "has run after it",
            site,
            table,
        )


def _site() -> str:
    """The file and line that sent the statement: the nearest outside of Django, its drivers and this package."""
    frame = outermost = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("django", "bloomguard", "contextlib", "functools", "asgiref"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        outermost, frame = frame, frame.f_back  # type: ignore[assignment]
    return f"{outermost.f_code.co_filename}:{outermost.f_lineno}"
