"""Fencing for rows written past the ORM: by raw SQL, or by the database itself because of a statement.

:mod:`.sql.reader` finds out what a statement does, :mod:`.catalogue` what the database does because of it. Every
statement that is not certainly harmless fences, but for what the ORM's compilers, or a block of :func:`.adding.adding`,
add the keys of. The texts of harmless statements are cached, and cost a microsecond or less.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ..guards import Guard, registry
from ..state import table as states
from . import consequences, fencing, isolation, state_rows, strays, unknown_guards
from .consequences import STATE_ROWS, Cause, DatabaseCache, affected_guards, current_cache, definitions
from .raw_fences import fence_after, fencing_around, is_t_string, reasons_for, record_early
from .sql import reader
from .sql.reader import Reading
from .sql.tokens import bare
from .statements import running

Execute = Callable[..., Any]

#: The usual beginning of a write, by the ORM, the schema editors and most people.
_USUAL = re.compile(
    r'(?:INSERT INTO|UPDATE|DELETE FROM) (?:(["`])([^"`.]+)\1|(\w+))(?: ?\(| SET | VALUES | SELECT | WHERE |$)',
    re.IGNORECASE,
)
#: What Django sends around writes; each savepoint has its own name, so these texts are not cached.
_BORDER = re.compile(r"BEGIN(?: [A-Z]+)?|(?:RELEASE |ROLLBACK TO )?SAVEPOINT [^\s;]+")
#: How many texts are kept until their COMMIT, and how many characters in all: some have megabytes of values.
_MOST_UNREAD, _MOST_CHARACTERS = 1_000, 1_000_000
#: A statement that may write anything, and that writes nothing if it fails: in place of all texts that are not kept,
#: and of what the connection cannot compose.
_UNREADABLE = "MERGE"


def watch(execute: Execute, sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Execute ``sql``, as an ``execute_wrapper``; if it may make a key that the ORM does not add, fence the guard.

    Each statement of the project comes here. Most of their texts are known, and cost one look-up.
    """
    cache = consequences.caches.get(context["connection"].alias)
    if type(sql) is str and cache is not None and cache.copy is states.table.copy and cache.plans is registry.plans:
        known = cache.texts.get(sql)
        if known == "":
            return execute(sql, params, many, context)
        own = running.own(sql)
        if own and known == own:
            return execute(sql, params, many, context)
    else:
        own = running.own(sql) if type(sql) is str else ""
    return _send(execute, sql, params, many, context, own)


def _send(execute: Execute, sql: Any, params: Any, many: bool, context: dict[str, Any], own: str) -> Any:
    """Execute ``sql`` that is not known; ``own``: the table of the ORM's statement, whose compiler adds its keys."""
    connection = context["connection"]
    if type(sql) is str and _BORDER.fullmatch(sql):
        if sql[0] == "B":
            isolation.note(sql, connection)
        return execute(sql, params, many, context)
    run = partial(execute, sql, params, many, context)
    if not unknown_guards.is_complete and not (type(sql) is str and reader.is_plain_read(sql)):
        record_early(read(sql, connection).all_effects, connection.alias)
    unknown_guards.read_once()
    cache, text = current_cache(connection.alias), text_of(sql, connection)
    _note_session(text, connection, cache)
    if _is_harmless(sql, own, cache, connection):
        return run()
    if cache.catalogue is None and cache.seem_idle(connection):
        return _run_while_idle(run, text, own, cache, connection)
    reading = read(text, connection)
    if not reading.effects and not reading.defines and (cache.trusts_names or not reading.known):
        cache.add(text)
        return run()
    if reading.several and connection.vendor == "sqlite":
        result = run()  # its driver refuses several statements, before it sends any
        with fencing_around(reading, connection, own=own):
            return result
    with fencing_around(reading, connection, own=own, many=many) as brings_none:
        # While another transaction changes the definitions, no catalogue is kept, nor what follows from it.
        is_certain = cache.catalogue is not None
        result = run()
    is_kept = type(sql) is str and (params or reader.is_plain_read(sql))  # else each text differs
    if brings_none and is_certain and is_kept and not (own or reading.defines):
        cache.add(sql)
    return result


def _run_while_idle(run: Callable[[], Any], text: str, own: str, cache: DatabaseCache, connection: Any) -> Any:
    """Execute a statement unread while no guard has a filter, and fence if a build has begun by its end."""
    try:
        return run()
    finally:
        if not cache.are_idle(connection):
            definitions.changed(connection)  # by this text, perhaps; another thread has read them before
            fence_after(affected_guards(read(text, connection).all_effects, connection, own), connection)
        elif fencing.may_write_later(connection):
            _keep_unread(text, own, connection)


def _note_session(text: str, connection: Any, cache: DatabaseCache) -> None:
    """Record what a statement may do to the session and to the state rows, also if it brings no key."""
    strays.note(text, connection, cache.answered)
    isolation.note(text, connection)
    may_change_rows = connection.vendor in ("sqlite", "mysql") and STATE_ROWS in text.lower()
    if may_change_rows and any(effect.name == STATE_ROWS for effect in read(text, connection).effects):
        state_rows.before_change(connection.alias)


def _is_harmless(sql: Any, own: str, cache: DatabaseCache, connection: Any) -> bool:
    """Whether a glance at ``sql`` shows that it brings no key, or those of the ORM's statement alone; cache that."""
    if not cache.tables:
        if type(sql) is str and unknown_guards.were_read():
            cache.add(sql)
        return True
    if type(sql) is not str:
        return False
    trusts_names = cache.trusts_names or connection.vendor == "sqlite"
    if trusts_names and reader.is_plain_read(sql):
        cache.add(sql)
        return True
    usual = _USUAL.match(sql)
    if usual is None or ";" in sql or not cache.is_quiet((table := usual[2] or usual[3]).lower()):
        return False
    spellings = {spelling for spelling, _ in cache.tables.get(bare(table, connection.vendor), ())}
    if spellings <= {own} or sql[0] in "Dd":
        cache.add(sql, own if spellings else "")
        return True
    return False


def read(sql: Any, connection: Any) -> Reading:
    """Read what a statement does, in the dialect of its database."""
    return reader.read(text_of(sql, connection), connection.vendor)


def text_of(sql: Any, connection: Any) -> str:
    """Return a statement's text; psycopg has objects that compose it."""
    if isinstance(sql, str):
        return sql
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    if is_t_string(sql):
        with suppress(Exception):  # such as that of an older driver, which refuses the statement itself
            return str(connection.Database.sql.as_string(sql, connection.connection))
        return _UNREADABLE
    if not hasattr(sql, "as_string"):
        return str(sql)
    try:
        return str(sql.as_string(connection.connection))
    except connection.Database.Error:  # the driver raises it too, unless its cursor has dumpers of its own
        return _UNREADABLE


def _keep_unread(text: str, own: str, connection: Any) -> None:
    """Keep a statement of a transaction in which all guards were idle: parsed only if a build has begun by the COMMIT.

    ``own``: the table of the ORM's statement. A build waits for the rows that the statement itself has written.
    """
    fences = fencing.CommitFences.of(connection)
    fences.find_more = partial(_reasons_of_unread, connection, fences.unread)
    if (text, own) not in fences.unread:  # they are few, as they have placeholders for values
        size = len(text) + sum(len(other) for other, _ in fences.unread)
        is_kept = len(fences.unread) < _MOST_UNREAD and size <= _MOST_CHARACTERS
        fences.unread.add((text, own) if is_kept else (_UNREADABLE, ""))


def _reasons_of_unread(connection: Any, unread: set[tuple[str, str]]) -> dict[Guard, str]:
    """Return why each guard is fenced that may have new keys; none if no filter is built by now."""
    if current_cache(connection.alias).are_idle(connection):
        return {}
    definitions.changed(connection)  # by these texts, perhaps; another thread has read them before
    written: dict[Guard, Cause] = {}
    for text, own in unread:
        written |= affected_guards(read(text, connection).all_effects, connection, own)
    return reasons_for(written)
