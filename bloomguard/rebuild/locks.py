"""Wait for the builder and the writers that a rebuild must not overlap with.

The state row names the process that builds a generation, and when it sent its last heartbeat. A writer whose
transaction began before the generation was announced does not add to it, and its rows become visible only when it
commits, so the scan of a rebuild begins after the last of these transactions.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

from django.db import OperationalError, connections
from django.utils import timezone

from ..conf import PAGES
from ..exceptions import BuilderBusy, RebuildError
from ..process import is_within, start_thread
from ..state.own_connections import new_connection
from ..state.row import State
from ..state.table import StateTable
from ..state.transactions import has_begun
from .pages import Proof

logger = logging.getLogger("bloomguard")

#: A builder is dead if its last heartbeat is older than this, or as far ahead.
DEAD_AFTER_SECONDS = 60.0
#: A builder sends a heartbeat between its steps, such as the pages of a scan, if the last one is older than this.
HEARTBEAT_SECONDS = 10.0
#: During a step a thread sends it, if the last one is older than this.
LONG_STEP_SECONDS = 30.0
#: A step that takes longer is taken for one that never ends, as on a connection that hangs: no more are sent.
LONGEST_STEP_SECONDS = 3_600.0
#: How long a rebuild waits for the transactions of other processes.
MAX_WAIT_SECONDS = 3_600.0
#: After how long it says so.
_SILENT_SECONDS = 10.0
_POLL_SECONDS = 0.05
#: On MySQL and MariaDB: the locks that are tried in turn, and for how many seconds.
_WRITE_LOCK_SECONDS = 1
_TRIES = (("READ", 5), ("WRITE", _WRITE_LOCK_SECONDS))
_NO_PROOF = Proof()
_LOCK_WAIT_TIMEOUT, _DENIED = 1205, 1044  # the server's errors ER_LOCK_WAIT_TIMEOUT and ER_DBACCESS_DENIED_ERROR


@contextmanager
def beating(beats: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Call each of ``beats`` every ten seconds, in a thread, while the block runs: one statement may take minutes."""
    is_over, ended = threading.Event(), None

    def run() -> None:
        while not is_over.wait(HEARTBEAT_SECONDS):
            for beat in beats:
                beat()

    try:
        with suppress(RuntimeError):  # no thread can be started: heartbeats are sent between two steps only
            ended = start_thread(run)
        yield
    finally:
        is_over.set()
        if ended is not None:
            ended.wait(HEARTBEAT_SECONDS)  # a thread that finds no memory ends before it runs


def is_due(sent_at: float, stepped_at: float, now: float, *, in_step: bool) -> bool:
    """Return whether a builder has to send a heartbeat: between two steps, or ``in_step``, while one lasts.

    The times are those of its last heartbeat, of the beginning of its step, and now, by its own clock.
    """
    if in_step and not is_within(LONGEST_STEP_SECONDS, stepped_at, now):
        return False
    return not is_within(LONG_STEP_SECONDS if in_step else HEARTBEAT_SECONDS, sent_at, now)


def builder_id() -> str:
    """Return the name of this process as a builder: ``host/pid``."""
    return f"{socket.gethostname()}/{os.getpid()}"


def refuse_if_alive(table: StateTable, seen: State) -> None:
    """Raise :class:`BuilderBusy` if the builder named in ``seen`` is alive."""
    if is_alive(table, seen):
        host, _, pid = seen.builder.rpartition("/")
        raise BuilderBusy(
            f"{seen.name} is being built by process {pid} on {host}, last heartbeat "
            f"{_silence(table, seen).total_seconds():.0f} s ago; run it again later"
        )


def superseded(table: StateTable, name: str) -> RebuildError:
    """Return the error of a build that can no longer be published."""
    row = table.row(name)
    # A fence of this build leaves the builder's name; else the reason is an older one's.
    why = row.reason if row and row.builder and not row.building else "a fence, a roll-back or another builder"
    return RebuildError(
        f"{name}: its state row changed during the build ({why}), so the new generation may lack a row and was not "
        "published; run it again"
    )


def is_alive(table: StateTable, seen: State) -> bool:
    """Return whether the builder named in ``seen`` sent a heartbeat in the last minute and, if on this host, runs.

    Its clock may be a minute fast. If its heartbeat is further ahead, a clock was set back since.
    """
    host, _, pid = seen.builder.rpartition("/")
    is_dead = abs(_silence(table, seen)) > timedelta(seconds=DEAD_AFTER_SECONDS)
    return not is_dead and (host != socket.gethostname() or is_running(int(pid)))


def _silence(table: StateTable, seen: State) -> timedelta:
    row, now = table.row(seen.name), timezone.now()
    return now - (row.builder_seen_at or now) if row is not None else timedelta()


def is_running(pid: int) -> bool:
    """Return whether this host runs the process."""
    if os.name == "nt":
        return True  # its heartbeat decides: on Windows, signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, (ProcessLookupError, OverflowError))
    return True


def refuse_transaction(aliases: Iterable[str]) -> None:
    """Raise :class:`RebuildError` if this thread is inside a transaction of one of the databases."""
    for alias in aliases:
        connection = connections[alias]
        connection.ensure_connection()
        if has_begun(connection):
            raise RebuildError("a rebuild inside a transaction would not see what others commit; call it outside")


def wait_for_writers(
    using: str, tables: Collection[str], sleep: Callable[[float], None] = time.sleep, proof: Proof = _NO_PROOF
) -> None:
    """Return when every transaction that held a write lock on one of ``tables`` (unquoted) at the call has ended.

    Raises :class:`RebuildError` if one of them is still open after :data:`MAX_WAIT_SECONDS`, or if the ``proof`` fails.

    PostgreSQL lists the holders of the lock that every write takes. On other databases, this takes a lock for a moment
    that is granted after all earlier writers are done: SQLite has one for the file, MySQL and MariaDB one per table.
    """
    connection = connections[using]
    if connection.vendor == "postgresql":
        holders = _postgresql_writers(using, tables, proof)
        waited = 0.0
        while holders:
            waited = _wait(tables, waited, _POLL_SECONDS, sleep)
            holders &= _postgresql_writers(using, tables, proof)
        return
    refuse_transaction([using])  # SQLite would wait for itself, LOCK TABLES would commit it
    if connection.vendor == "sqlite":
        with connection.wrap_database_errors:  # in one call: no exception of a signal can leave the lock behind
            connection.connection.executescript("BEGIN IMMEDIATE; COMMIT")
        return
    own = new_connection(using, "barrier")  # the server ends its locks with it, whatever exception comes
    with closing(own), own.cursor() as cursor:
        # Without autocommit InnoDB locks the table too: a prepared transaction has no other lock.
        cursor.execute("SET autocommit = 0, innodb_table_locks = 1, innodb_lock_wait_timeout = 1")
        for table in sorted(tables):  # not all at once: whoever holds one lock while waiting for others may deadlock
            _wait_for_mysql_writers(cursor, table, sleep)


#: Who writes to a partition, or to a table that inherits, locks only that. A prepared transaction has no pid.
_POSTGRESQL_WRITERS = """
    WITH RECURSIVE family AS (SELECT unnest(%s::regclass[])::oid AS oid UNION
    SELECT inhrelid FROM pg_inherits JOIN family ON inhparent = family.oid)
    SELECT DISTINCT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted
    AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation IN (SELECT oid FROM family) AND pid IS DISTINCT FROM pg_backend_pid()"""


def _postgresql_writers(using: str, tables: Collection[str], proof: Proof) -> set[str]:
    connection = connections[using]
    names = [connection.ops.quote_name(table) for table in sorted(tables)]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ARRAY({_POSTGRESQL_WRITERS}), {proof.sql or 'NULL'}", [names])
        holders, found = cursor.fetchone()
    proof.check(found)
    return set(holders)


def _wait_for_mysql_writers(cursor: Any, table: str, sleep: Callable[[float], None]) -> None:
    """Take a lock that excludes all writers of ``table``, and release it.

    A waiting READ lock delays nobody, but is never granted while writers overlap. A waiting WRITE lock is granted
    before later statements, but delays all of these, and waits for readers too: it is tried for one second each time.
    """
    waited, quoted = 0.0, cursor.db.ops.quote_name(table)
    while not any(_is_locked(cursor, quoted, *each) for each in _TRIES):
        waited = _wait([table], waited, _POLL_SECONDS + sum(seconds for _, seconds in _TRIES), sleep)


def _is_locked(cursor: Any, table: str, kind: str, seconds: int) -> bool:
    """Lock and unlock ``table``; ``False`` if that took too long."""
    cursor.execute("SET lock_wait_timeout = %s", [seconds])
    try:
        cursor.execute(f"LOCK TABLES {table} {kind}")
    except OperationalError as error:
        if error.args[:1] == (_DENIED,):
            cause = error.args[1]
            raise RebuildError(f"{table} is locked briefly by a rebuild: GRANT LOCK TABLES ({cause})") from error
        if error.args[:1] != (_LOCK_WAIT_TIMEOUT,):
            raise
        return False
    cursor.execute("UNLOCK TABLES")
    return True


def _wait(tables: Collection[str], waited: float, step: float, sleep: Callable[[float], None]) -> float:
    """Sleep, and return ``waited + step``; log once that it takes long, and raise :class:`RebuildError` in the end."""
    names = ", ".join(sorted(tables))
    if waited >= MAX_WAIT_SECONDS:
        raise RebuildError(
            f"a transaction that wrote {names} has been open for {MAX_WAIT_SECONDS:,.0f} s; end it, then run "
            "rebuild_filter again"
        )
    if waited < _SILENT_SECONDS <= waited + step:
        logger.warning(
            "bloomguard: the rebuild waits for an open transaction that wrote %s, for %d s at most: see %s",
            names,
            MAX_WAIT_SECONDS,
            f"{PAGES}troubleshooting.md#rebuild_filter-fails",
        )
    sleep(_POLL_SECONDS)
    return waited + step
