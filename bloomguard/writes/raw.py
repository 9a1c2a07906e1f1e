"""Fencing for rows written past the ORM: by raw SQL, or by the database itself because of a statement.

:mod:`bloomguard.writes.sql.reader` finds out what a statement does, :mod:`bloomguard.writes.catalogue` what the
database does because of it: by views, partitions, triggers and foreign keys. Every statement that is not certainly
harmless fences, but for what the ORM's compilers, or a block of :func:`~bloomguard.writes.adding.adding`, add the keys
of. The texts of harmless statements are cached, and cost a microsecond or less.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from django.db import Error, connections

from ..guards import Guard, registry
from ..process import LogOnce
from ..state import table as states
from ..state.transactions import is_aborted, is_under_way, rolls_back_if_marked, together
from . import (
    adding,
    consequences,
    early,
    fencing,
    isolation,
    raw_transactions,
    state_rows,
    strays,
    unknown_guards,
)
from .consequences import STATE_ROWS, Cause, DatabaseCache, affected_guards, current_cache, definitions
from .idle import all_idle_since, catching_up, is_in_time
from .introspection import note_remade
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
#: How many characters of texts are kept until their COMMIT: one text may have megabytes of values.
_MOST_UNREAD = 1_000_000
#: Stands for those that are not kept: it reads as a statement that may have written anything.
_UNCLEAR = ("?", "")
#: Stands for a statement that the connection cannot compose: one that may write anything, and nothing if it fails.
_UNCOMPOSED = "MERGE"
_log = LogOnce()


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
        early.record_write(read(sql, connection).all_effects, connection.alias)
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
            _fence_after(affected_guards(read(text, connection).all_effects, connection, own), connection)
        elif fencing.may_write_later(connection):
            _Unread.of(connection).add(text, own)


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
    if not hasattr(sql, "as_string"):
        return str(sql)
    try:
        return str(sql.as_string(connection.connection))
    except connection.Database.Error:  # the driver raises it too, unless its cursor has dumpers of its own
        return _UNCOMPOSED


class _Unread:
    """Statements of a transaction in which all guards were idle: parsed only if a build has begun by the COMMIT."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._texts: set[tuple[str, str]] = set()
        self._size = 0

    @classmethod
    def of(cls, connection: Any) -> _Unread:
        """Return those of the open transaction."""
        fences = fencing.CommitFences.of(connection)
        if not isinstance(fences.find_more, cls):
            fences.find_more = cls(connection)
        return fences.find_more

    def add(self, text: str, own: str) -> None:
        """Record one. Texts are few, as they have placeholders for values.

        ``own``: the table of the ORM's statement. A build waits for the rows that the statement itself has written.
        """
        if (text, own) not in self._texts:
            self._size += len(text)
            self._texts.add((text, own) if self._size <= _MOST_UNREAD else _UNCLEAR)

    def __call__(self) -> dict[Guard, str]:
        """Return why each guard is fenced that may have new keys; none if no filter is built by now."""
        if current_cache(self._connection.alias).are_idle(self._connection):
            return {}
        definitions.changed(self._connection)  # by these texts, perhaps; another thread has read them before
        written: dict[Guard, Cause] = {}
        for text, own in self._texts:
            written |= affected_guards(read(text, self._connection).all_effects, self._connection, own)
        return _reasons(written)


# -- fencing


@contextmanager
def fencing_around(
    reading: Reading, connection: Any, *, apart: bool = False, many: bool = False, own: str = ""
) -> Iterator[bool | None]:
    """Around a statement: fence the guards that may have new keys after it, but for those in a block that adds them.

    Yield whether there certainly are none. ``apart``: put no transaction around it. ``many``: it is sent several times,
    by ``executemany``.
    """
    if not unknown_guards.is_complete:
        early.record_write(reading.all_effects, connection.alias)
    try:
        with _choose_fencing(reading, connection, own, apart=apart, many=many) as is_harmless:
            yield is_harmless
        note_remade(reading.effects, connection)
    finally:
        if reading.defines:
            definitions.changed(connection)


def _choose_fencing(
    reading: Reading, connection: Any, own: str, *, apart: bool, many: bool
) -> AbstractContextManager[bool | None]:
    """Choose when to fence: around the statement nothing may change what it does, nor which of its rows stay."""
    cache = current_cache(connection.alias)
    if not reading.all_effects or not cache.tables:
        return nullcontext(True)
    find = partial(affected_guards, reading.all_effects, connection, own)
    if (connection.needs_rollback and not apart) or (reading.head and is_aborted(connection)):
        # Django or PostgreSQL refuses it, with an error of its own if nothing of ours is sent before.
        return _fencing_after(find, connection)
    locks_state_rows = _may_lock_state_rows(connection)
    unread = cache.catalogue is None and connection.vendor == "sqlite" and is_under_way(connection)
    if unread and not (apart or locks_state_rows):
        # A read now would take a snapshot, and the write could fail with SQLITE_BUSY_SNAPSHOT.
        return _fencing_after(lambda: {} if cache.are_idle(connection) else find(), connection, many=many)
    written = find()
    if not written:
        return nullcontext(True)
    idle = all_idle_since(written, connection.alias)
    if idle is not None:
        return _fencing_if_late(written, idle, connection)
    is_other = connections[connection.alias] is not connection  # than the one on which `atomic` would begin
    apart = apart or is_other or locks_state_rows
    if apart or raw_transactions.is_sent_apart(reading, connection, many=many):
        return _fencing_before_and_after(written, reading, connection)
    if rolls_back_if_marked(connection):
        return _fencing_after(lambda: written, connection, many=many)
    return _fencing_together(written, reading, connection, many=many)


def _may_lock_state_rows(connection: Any) -> bool:
    """Whether a statement may lock the state rows in a file that the connection has attached: fence before it."""
    if connection.vendor != "sqlite" or fencing.is_lock_shared(states.table, connection.alias):
        return False
    return raw_transactions.has_attached(connection)


@contextmanager
def _fencing_after(find: Callable[[], dict[Guard, Cause]], connection: Any, *, many: bool = False) -> Iterator[None]:
    """Fence after the statement, and after an error if rows stay. A refused fence marks the transaction for rollback.

    ``find`` returns the guards, and is called after the statement.
    """
    before, stays = raw_transactions.rows_changed(connection), True
    try:
        yield
    except BaseException as error:
        # An exception of another kind may have come after the statement, as by a signal.
        stays = raw_transactions.may_leave_rows(connection, before, many=many or not isinstance(error, Error))
        raise
    finally:
        if stays:
            _fence_after(find(), connection)


@contextmanager
def _fencing_if_late(written: dict[Guard, Cause], idle: dict[Guard, float], connection: Any) -> Iterator[None]:
    """Fence idle guards only if a filter may be built by the end of the statement, or by the COMMIT."""
    try:
        yield
    finally:
        if not all(is_in_time(guard, since) for guard, since in idle.items()):
            _fence_after(written, connection)
        else:
            fencing.fence_at_commit(_reasons(written), connection)


@contextmanager
def _fencing_before_and_after(written: dict[Guard, Cause], reading: Reading, connection: Any) -> Iterator[None]:
    """Fence before the statement and after it: a filter may be built between the first fence and the statement."""
    _fence(written, connection)
    try:
        yield
    finally:
        # In an atomic block PostgreSQL lets no single statement commit, not even a CALL.
        stays = connection.vendor == "postgresql" and bool(reading.head) and rolls_back_if_marked(connection)
        _fence_after(written, connection, committed=not stays)


@contextmanager
def _fencing_together(written: dict[Guard, Cause], reading: Reading, connection: Any, *, many: bool) -> Iterator[None]:
    """Put the statement and the fence into one transaction; after an error the rows that stay are fenced too."""
    before, failure = raw_transactions.rows_changed(connection), None
    try:
        with together(connection, alone=reading.head not in raw_transactions.DRIVER_BEGINS):
            try:
                yield
            except BaseException as error:
                if not raw_transactions.may_leave_rows(connection, before, many=many):
                    raise
                failure = error  # without us, the rows before the error would be kept: so they are fenced and kept
            _fence(written, connection)
    except Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure


def _fence(written: dict[Guard, Cause], connection: Any) -> None:
    due: dict[Guard, str] = {}
    for guard, reason in _reasons(written).items():
        # The caller knows the rows of the statement itself, and no others.
        is_known = written[guard].table and not written[guard].is_active
        if not (is_known and adding.is_left_to_block(guard, connection.alias, reason)):
            due[guard] = reason
    for guard in fencing.fence(due, connection.alias):
        _log.warning(
            "bloomguard cannot find out new keys: %s. Its guards are disabled; run rebuild_filter after it", due[guard]
        )
    fencing.fence_at_commit(due, connection)


def _fence_after(written: dict[Guard, Cause], connection: Any, *, committed: bool = False) -> None:
    """Fence for a statement that is over; ``committed``: it may be, whatever Django says."""
    with catching_up(written, connection, committed=committed):
        _fence(written, connection)


def _reasons(written: dict[Guard, Cause]) -> dict[Guard, str]:
    site = _site() if written else ""
    return {guard: _reason(cause, site) for guard, cause in written.items()}


def _reason(cause: Cause, site: str) -> str:
    if not cause.table:
        return f"a statement that may have written anything was sent at {site}"
    if cause.is_direct:
        return f"raw SQL wrote to {cause.table} at {site}"
    return f"a view, partition, trigger or foreign key may have written to {cause.table} for the statement at {site}"


#: Modules that send the statements of a migration, some of them after its last operation; the migration's name there.
_MIGRATIONS = {"django.db.migrations.migration": "self", "django.db.migrations.executor": "migration"}


def _site() -> str:
    """Return the file and line that sent the statement: by the innermost frame that is no library's.

    Of an operation of a migration, which has no line, it is the migration's file.
    """
    frame = outermost = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (migration := frame.f_locals.get(_MIGRATIONS.get(module, ""))) is not None:
            found = sys.modules.get(type(migration).__module__)
            return getattr(found, "__file__", None) or f"the migration {migration}"
        is_library = module.partition(".")[0] in ("django", "bloomguard", "contextlib", "functools", "asgiref")
        # What takes a cursor, or a connection, and a statement only passes it on: the driver, or django-cachalot.
        # By their classes: a look into the caller's own object, as `request.user`, may load it, or raise anything.
        sender, sql = (frame.f_locals.get(name) for name in (*frame.f_code.co_varnames, "", "")[:2])
        is_sql = issubclass(type(sql), (str, bytes)) or hasattr(type(sql), "as_string")
        is_sender = hasattr(type(sender), "execute") and (hasattr(sender, "fetchone") or hasattr(sender, "cursor"))
        if not (is_library or (is_sql and is_sender)):  # a management command can `execute`, too
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        outermost, frame = frame, frame.f_back  # type: ignore[assignment]
    return f"{outermost.f_code.co_filename}:{outermost.f_lineno}"
