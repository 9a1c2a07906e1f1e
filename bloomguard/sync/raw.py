"""Fences guards whose rows are written behind the ORM's back: by raw SQL, or by the database because of a statement.

:mod:`bloomguard.sync.sqltext` reads what a statement does, :mod:`bloomguard.sync.catalogue` what the database does
because of it: by views, partitions, triggers and foreign keys. What is not certainly harmless fences. The ORM's
compilers add the keys of their own tables themselves. A text that was found harmless is known by heart, and costs a
microsecond or less.

Who knows the keys adds them in a block of :func:`~bloomguard.sync.adding.adding`, and nothing is fenced.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from ..guards import Guard, registry
from . import adding, consequences, early, fencing, sqltext
from . import state as states
from .consequences import Cause, Known, defined, renewed, written
from .effects import Reading, bare
from .statements import running
from .transactions import is_under_way, together

logger = logging.getLogger("bloomguard")

Execute = Callable[..., Any]

#: How the ORM, the schema editors and most people write.
_USUAL = re.compile(
    r'(?:INSERT INTO|UPDATE|DELETE FROM) (?:(["`])([^"`.]+)\1|(\w+))(?: ?\(| SET | VALUES | SELECT | WHERE |$)',
    re.IGNORECASE,
)
#: What Django sends around writes, each savepoint with a name of its own.
_BORDERS = ("BEGIN", "SAVEPOINT ", "RELEASE SAVEPOINT ", "ROLLBACK TO SAVEPOINT ")
_warned: set[tuple[str, str]] = set()


def watch(execute: Execute, sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Let ``sql`` be executed; if it may give a guard a new key behind the ORM's back, fence the guard with it."""
    connection = context["connection"]
    known = consequences.known_of.get(connection.alias)
    if (
        known is None
        or known.version != registry.version
        or known.stamp != consequences.stamp
        or known.read_at != states.table.read_at
    ):
        known = renewed(connection.alias)
    if early.is_early and not (type(sql) is str and sqltext.is_plain_read(sql)):
        early.note(read(text_of(sql, connection), connection).effects, connection.alias)
    if not known.tables:
        return execute(sql, params, many, context)
    if type(sql) is str:
        if sql in known.passed or (sql.startswith(_BORDERS) and ";" not in sql):
            return execute(sql, params, many, context)
        if sqltext.is_plain_read(sql):
            known.pass_by(sql)
            return execute(sql, params, many, context)
        usual = _USUAL.match(sql)
        if usual is not None and ";" not in sql and known.quiet.get((table := usual[2] or usual[3]).lower()):
            if table == running.table:
                return execute(sql, params, many, context)
            if bare(table) not in known.tables or sql[0] in "Dd":
                known.pass_by(sql)
                return execute(sql, params, many, context)
    return _consider(execute, sql, params, many, context, known)


def _consider(execute: Execute, sql: Any, params: Any, many: bool, context: dict[str, Any], known: Known) -> Any:
    connection = context["connection"]
    if known.catalogue is None and known.seem_idle(connection):
        try:
            return execute(sql, params, many, context)
        finally:
            if not known.are_idle(connection):  # a build has begun meanwhile
                _fence(_follow(read(text_of(sql, connection), connection), connection), connection)
    text = text_of(sql, connection)
    reading = read(text, connection)
    if not reading.effects and not reading.defines:
        known.pass_by(text)
        return execute(sql, params, many, context)
    if reading.several and connection.vendor == "sqlite":
        result = execute(sql, params, many, context)  # its driver refuses several at once, before it begins anything
        with following(reading, text, connection):
            return result
    with following(reading, text, connection) as fenced:
        result = execute(sql, params, many, context)
    if fenced == {} and not reading.defines and running.table is None and params and type(sql) is str:
        known.pass_by(sql)  # without parameters each has another text
    return result


def read(text: str, connection: Any) -> Reading:
    """What a statement does, in the dialect of its database."""
    return sqltext.read(text, connection.vendor)


def text_of(sql: Any, connection: Any) -> str:
    """A statement's text; psycopg composes some."""
    if isinstance(sql, str):
        return sql
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    as_string = getattr(sql, "as_string", None)
    return as_string(connection.connection) if as_string is not None else str(sql)


def _follow(reading: Reading, connection: Any) -> dict[Guard, Cause]:
    """The guards that may have new keys; those of the table that the ORM writes just now are told of them."""
    return written(reading.effects, connection, own="" if running.table is None else bare(running.table))


# -- fencing


@contextmanager
def following(
    reading: Reading, text: str, connection: Any, *, apart: bool = False
) -> Iterator[dict[Guard, Cause] | None]:
    """Around a statement: the guards that may have new keys because of it are fenced with it.

    Those whose keys somebody adds are not. It gives the guards, if they are known before the statement. ``apart``: no
    transaction is put around it.
    """
    try:
        known = renewed(connection.alias)
        if not reading.effects or not known.tables:
            yield {}
        elif not apart and known.catalogue is None and connection.vendor == "sqlite" and is_under_way(connection):
            # To read first would take a snapshot that the write may be too late for.
            try:
                yield None
            finally:
                if not known.are_idle(connection):
                    _fence(_follow(reading, connection), connection)
        else:
            with _fencing(_follow(reading, connection), text, connection, apart=apart) as fenced:
                yield fenced
    finally:
        if reading.defines:
            defined(connection)


@contextmanager
def _fencing(written: dict[Guard, Cause], text: str, connection: Any, *, apart: bool) -> Iterator[dict[Guard, Cause]]:
    idle = fencing.all_idle(written, connection.alias) if written else {}
    if idle is not None:
        try:
            yield written
        finally:
            if not all(fencing.was_idle(guard, since) for guard, since in idle.items()):
                _fence(written, connection)
    elif apart or connections[connection.alias] is not connection or _commits_by_itself(text, connection):
        # No transaction can be put around it: what was built between the fence and the statement is fenced again.
        _fence(written, connection)
        try:
            yield written
        finally:
            _fence(written, connection)
    elif connection.in_atomic_block:  # whose savepoints are the project's: what fails here need not undo all of it
        yield written
        with together(connection.alias):  # what is refused has to
            _fence(written, connection)
    else:
        with together(connection.alias):
            yield written
            _fence(written, connection)


def _fence(written: dict[Guard, Cause], connection: Any) -> None:
    site = _site() if written else ""
    for guard, cause in written.items():
        reason = _reason(cause, site)
        if adding.is_left_to_block(guard, connection.alias, reason):
            continue
        if fencing.fence(guard, connection.alias, reason):
            _warn(cause, site)


def _reason(cause: Cause, site: str) -> str:
    if not cause.table:
        return f"a statement that may have written anything was sent at {site}"
    if cause.is_direct:
        return f"raw SQL wrote to {cause.table} at {site}"
    return f"a view, partition, trigger or foreign key may have written to {cause.table} for the statement at {site}"


def _commits_by_itself(text: str, connection: Any) -> bool:
    """Whether the COMMIT does not come after the fence, though that is in the statement's transaction.

    Under autocommit SQLite commits a statement that returns rows when these have been fetched, and not before; MySQL
    commits an ALTER at once; several statements in one may bring a COMMIT along.
    """
    if ";" in text and re.search(r"\b(?:COMMIT|END)\b", text, re.IGNORECASE):
        return True
    if connection.vendor == "postgresql" and not connection.in_atomic_block:
        return re.match(r"\s*(?:CALL|DO)\b", text, re.IGNORECASE) is not None  # a procedure may commit
    if connection.vendor == "sqlite" and not connection.in_atomic_block:
        return re.search(r"\bRETURNING\b|^\s*PRAGMA\b", text, re.IGNORECASE) is not None
    return connection.vendor == "mysql" and re.search(r"\b(?:ALTER|RENAME|CREATE)\b", text, re.IGNORECASE) is not None


def _warn(cause: Cause, site: str) -> None:
    if (cause.table, site) not in _warned:
        _warned.add((cause.table, site))
        logger.warning(
            "bloomguard cannot follow %s: %s %s %s, so its guards pass every request until rebuild_filter "
            "has run after it",
            "raw SQL" if cause.is_direct else "what the database does by itself",
            site,
            "writes to" if cause.is_direct and cause.table else "may write to",
            cause.table or "any table",
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
