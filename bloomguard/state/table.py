"""State rows: read under a lease, changed by compare-and-set.

A process works with its own copy of all rows. It may answer ABSENT, or confirm an add, only if the read of that copy
*began* less than ``LEASE_SECONDS`` ago by its monotonic clock. So two leases after a commit, all processes apply it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.db import DEFAULT_DB_ALIAS, DatabaseError, IntegrityError, OperationalError, connections
from django.utils import timezone

from ..models import GuardState
from ..process import notice_fork, own_lock, seconds, seconds_left
from ..signals import guard_fenced, send
from .connection import StateConnection, fetch_uncounted, is_denied, is_locked
from .identity import are_one_file
from .row import ARMED, COLUMNS, FENCED, NEVER, Copy, OverdueFences, Rows, State, VanishedRows, Within, new_token

logger = logging.getLogger("bloomguard")

LEASE_SECONDS = 1.0
#: After this time every process has read a committed state row, or answers nothing.
EXPIRY_SECONDS = 2 * LEASE_SECONDS
#: SQL of PostgreSQL: does the quoted name mean a table here, and is there a table of this name in any schema?
_IS_THERE = "SELECT to_regclass(%s) IS NOT NULL, EXISTS (SELECT FROM pg_class WHERE relname = %s)"
#: MySQL's and MariaDB's error number for a table that is not there.
_NO_TABLE = (1146,)
#: SQLite's words for a lock in a database in memory, which this process holds itself.
_LOCKED_HERE = ("schema is locked", "table is locked")
#: Seconds to wait for another thread or task of this process that reads the rows.
RENEWAL_PATIENCE = 0.25


class StateTable:
    """One process's copy of all state rows. ``clock`` returns monotonic seconds."""

    def __init__(self, connection: StateConnection | None = None, clock: Callable[[], float] = seconds) -> None:
        self.connection = connection or StateConnection()
        self.clock = clock
        self.sleep: Callable[[float], None] = time.sleep
        #: The last copy. Replaced as a whole, by a later one or by :data:`NEVER`.
        self.copy = NEVER
        #: They are set before the rows are read again.
        self.overdue = OverdueFences()
        #: Guard name -> ``fenced_at`` of the last fence that was read, and when it was read first, by ``clock``.
        self.fences: dict[str, tuple[Any, float]] = {}
        self._failed_at, self._failed_for = float("-inf"), 0.0
        self._here = ""  # the identity of the database that was read last
        self._vanished = VanishedRows(lambda: self.clock())
        self._lock = own_lock(self, "_lock")
        self._keeping = own_lock(self, "_keeping")
        self.within = Within()

    def lease(self, name: str) -> State | None:
        """Return the row of ``name`` while the lease on the copy is valid, else ``None``. No I/O."""
        read_at, rows = self.copy
        within = self.within
        if within.read is not None and within.copy.read_at >= read_at:
            read_at, rows = within.copy
        if not 0.0 <= self.clock() - read_at < LEASE_SECONDS:
            return None
        return rows.get(name) or State(name, here=self._here)

    def leased_rows(self) -> Rows | None:
        """Return all rows as :meth:`lease` returns one, without the calls that it would take for each."""
        copy, within = self.copy, self.within
        if within.read is not None and within.copy.read_at >= copy.read_at:
            copy = within.copy
        return copy.rows if 0.0 <= self.clock() - copy.read_at < LEASE_SECONDS else None

    def renewed(self, name: str) -> State | None:
        """Return :meth:`lease`, after a new read of the rows if it expired. May wait."""
        state = self.lease(name)
        if state is None:
            self.renew()
            state = self.lease(name)
        return state

    def known(self, name: str) -> State:
        """Return the row of ``name`` from the copy, at any age. Not for verdicts."""
        return self.copy.rows.get(name) or State(name)

    def renew(self, *, after: float | None = None) -> bool:
        """Read the rows again, unless another thread just did; return ``False`` if they could not be read.

        ``after``: a copy whose read began later is recent enough; by default any copy with a valid lease is.
        """
        if self.within.read is not None:
            return self._renew_within(self.within.read, after)
        notice_fork()
        if self._lock._is_owned():
            return False  # by the handler of a signal, in the middle of a read
        is_mine = False
        try:
            is_mine = self._lock.acquire(timeout=RENEWAL_PATIENCE)
            if not is_mine:
                return False
            self._check_clock()
            now = self.clock()
            if self.copy.read_at > (now - LEASE_SECONDS if after is None else after) and not self.overdue:
                return True
            return not self._must_pause(now, after) and self._read_copy(now)
        finally:
            if is_mine or self._lock._is_owned():  # a time limit may have raised its exception in between
                self._lock.release()

    def _check_clock(self) -> None:
        """Drop all times if the clock went back, as in a container that another host restores from a checkpoint."""
        known = max(self.copy.read_at, self.within.copy.read_at, self._failed_at)
        if known > self.clock():  # asked last: other threads read rows, too
            self.copy, self.within.copy, self._failed_at = Copy(*NEVER), NEVER, float("-inf")
            self.fences.clear()
            self._vanished.restart_clock()

    def _must_pause(self, now: float, after: float | None) -> bool:
        """Return whether the last read failed less than a lease ago: a database in trouble is not to be overloaded."""
        pause = LEASE_SECONDS
        if after is not None and after >= self._failed_at:
            # For a writer that asks since then, only as long as the failure took: it would disable its guards.
            pause = min(pause, self._failed_for)
        return now - self._failed_at < pause

    def _read_copy(self, now: float) -> bool:
        """Set the overdue fences, then read the rows; return whether that worked. Logs the first of several errors."""
        try:
            if self.overdue:
                self.overdue.set_by(self.fence)
                now = self.clock()
            self._keep(Copy(now, self._read()))
        except Exception as error:  # also of a router, or of a backend that looks up a password
            if self._failed_at == float("-inf") and not any(words in str(error) for words in _LOCKED_HERE):
                logger.warning(
                    "bloomguard cannot read its state rows, so all guards pass every request: %s",
                    error,
                    exc_info=not isinstance(error, DatabaseError),
                )
            self._failed_at = self.clock()  # the failure itself may have taken longer than a lease
            self._failed_for = self._failed_at - now
            return False
        self._failed_at = float("-inf")
        return True

    def _renew_within(self, read: Callable[[], Rows], after: float | None) -> bool:
        self._check_clock()
        now = self.clock()
        read_at = max(self.copy.read_at, self.within.copy.read_at)
        if read_at <= (now - LEASE_SECONDS if after is None else after):
            try:
                rows = read()
            except DatabaseError:
                return False
            rows = self._vanished.added_to(rows, self._here, EXPIRY_SECONDS, known=self.copy.rows)
            self.within.copy = Copy(now, rows)
            self._note_fences(self.within.copy)
        return True

    def _keep(self, copy: Copy) -> None:
        self._note_fences(copy)
        with self._keeping:  # a thread whose read began first may come here last; what is known must not get older
            if not copy.read_at < self.copy.read_at <= self.clock():  # a later time would be that of another clock
                self.copy = copy
        if self.overdue:  # read after the assignment: `fence_soon`, in another thread, adds to it, then drops the copy
            self.copy = Copy(*NEVER)

    def _note_fences(self, copy: Copy) -> None:
        for state in copy.rows.values():
            if state.status == ARMED:
                self.fences.pop(state.name, None)  # a restored database may bring the same fence back
            else:
                self._fence_read_at(state)

    def _fence_read_at(self, state: State) -> float:
        known = self.fences.get(state.name)
        if known is None or known[0] != state.fenced_at:  # the fences in between may have been missed
            known = self.fences[state.name] = state.fenced_at, self.clock()
        return known[1]

    def wait_for_fence(self, state: State) -> None:
        """Wait before a row becomes visible: for two leases after a fence, some process may not have read it.

        Also for a fence without an active generation: a loaded dump may have replaced a row that had one.
        """
        if state.status != ARMED:
            wait = seconds_left(EXPIRY_SECONDS, self._fence_read_at(state), self.clock())
            if wait > 0:
                self.sleep(wait)
                self.renew()

    def current(self, name: str) -> State:
        """Read and return the row of ``name``. Raises :class:`DatabaseError`."""
        asked = self.clock()
        rows = self._read()
        self._keep(Copy(asked, rows))
        return rows.get(name) or State(name, here=self._here)

    def row(self, name: str) -> GuardState | None:
        """Return the whole state row, ``None`` if there is none. Raises :class:`DatabaseError`."""
        return GuardState.objects.using(self.connection.alias).filter(name=name).first()

    def forget(self) -> None:
        """Drop the copy and the connection, as if the process had just started."""
        self.copy = Copy(*NEVER)  # a new object: caches that compare the copy by identity are dropped too
        self._vanished.forget()
        self.fences.clear()
        self.overdue.clear()
        self._failed_at = float("-inf")
        self.connection.close()

    def missing(self) -> str:
        """Return that the table does not exist, and the cure; else an empty text. Raises :class:`DatabaseError`."""
        alias, name = self.connection.alias, GuardState._meta.db_table
        where = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
        cure = f"the database {alias!r} has no table {name} yet: run manage.py migrate bloomguard{where}"
        return "" if self.connection.has_table(name) else cure

    def holds(self, using: str) -> bool:
        """Return whether ``using`` is the alias of the state rows, or on SQLite another alias of their file.

        Then a recovery takes them back with the data.
        """
        return self.connection.alias == using or are_one_file(self.connection.alias, using)

    def is_locked_by(self, using: str) -> bool:
        """Return whether a write transaction on ``using`` keeps all others from changing state rows: on SQLite."""
        return connections[using].vendor == "sqlite" and self.holds(using)

    def visible_to(self, using: str) -> Rows:
        """Return the rows that this thread's connection ``using`` sees now. Raises :class:`DatabaseError`."""
        self.connection.check_alias()
        connection: Any = connections[using]
        quote, table = self.connection.quote, GuardState._meta.db_table
        query = f"SELECT {', '.join(map(quote, COLUMNS))} FROM {quote(table)}"  # noqa: S608
        if connection.vendor == "postgresql":  # where an error would end the project's transaction
            is_visible, exists = fetch_uncounted(connection, _IS_THERE, (quote(table), table))[0]
            if not exists:
                return {}  # not migrated yet
            if not is_visible:
                raise OperationalError(f"the search_path of the connection {using!r} hides the state rows")
        try:
            found = fetch_uncounted(connection, query)
        except DatabaseError as error:
            if "no such table" in str(error) or error.args[:1] == _NO_TABLE:
                return {}
            raise
        along: dict[str, Any] = {"here": self.connection.here}
        return {row[0]: State(*row, **along) for row in found}

    def _read(self) -> Rows:
        known, asked = self.copy.rows, self.clock()
        try:
            rows = self._fetch()
        except AssertionError as error:
            if _is_forbidden(error):
                return {}  # the guards of this test are cold
            raise
        # Fenced before the next read: meanwhile writers may have added nothing.
        put_back = self._vanished.put_back(known, rows, asked)
        if not self.connection.is_temporary:
            for name in put_back:
                self.overdue.add(name)
        return self._vanished.added_to(rows, self._here, EXPIRY_SECONDS)

    def _fetch(self) -> Rows:
        try:
            rows, _ = self.connection.execute(self._proved_query)
        except DatabaseError as error:
            if self.connection.omit_refused_function(error):
                return self._fetch()
            if is_locked(error) or is_denied(error) or self.connection.has_table(GuardState._meta.db_table):
                raise
            return {}  # not migrated yet, or no more
        is_standby, here, is_durable = rows[0][:3]
        if is_standby:
            self.connection.close()
            raise OperationalError("the state rows were read from a standby server, which may lag behind")
        self._here = here or self.connection.here
        along: dict[str, Any] = {"here": self._here, "is_durable": bool(is_durable)}
        return {row[3]: State(*row[3:], **along) for row in rows if row[3] is not None}

    @property
    def _proved_query(self) -> str:
        """The SELECT of all rows, with :attr:`StateConnection.proofs` before each one; of one row at least."""
        quote = self.connection.quote
        columns = ", ".join(f"found.{quote(column)}" for column in COLUMNS)
        return (
            f"SELECT server.is_standby, server.here, server.is_durable, {columns} "  # noqa: S608
            f"FROM (SELECT {self.connection.proofs}) server "
            f"LEFT JOIN {quote(GuardState._meta.db_table)} found ON 1 = 1"
        )

    def swap(self, seen: State, **changes: Any) -> State | None:
        """Change the row if it is still as in ``seen``; return the new state, or ``None`` if it has changed."""
        # A row's first generation, and each new ``building``, is bound to the database that ``seen`` was read from.
        if changes.get("building") or (changes.get("active") and not seen.generations):
            if not seen.here:  # ``seen`` was constructed, not read
                self._read()
            changes["database"] = seen.here or self._here
        changes["token"] = new_token()
        after = replace(seen, version=seen.version + 1, **{name: changes[name] for name in COLUMNS if name in changes})
        values = {**changes, "version": after.version}
        if seen.version == 0:
            self._insert(seen.name)
        quote = self.connection.quote
        # Or it is this change already: if the answer is lost, the statement is sent again.
        is_same = f"({quote('version')} = %s AND {quote('token')} = %s OR {quote('token')} = %s)"
        return after if self._update(seen.name, values, is_same, *seen.change, after.token) else None

    def _update(self, name: str, values: dict[str, Any], condition: str = "1 = 1", *parameters: Any) -> bool:
        """Change the row of ``name`` if the ``condition`` holds; return whether it did."""
        quote, table = self.connection.quote, self.connection.quote(GuardState._meta.db_table)
        assignments = ", ".join(f"{quote(column)} = %s" for column in values)
        statement = f"UPDATE {table} SET {assignments} WHERE {quote('name')} = %s AND {condition}"  # noqa: S608
        _, changed = self.connection.execute(
            statement, [*map(self.connection.adapt, values.values()), name, *parameters]
        )
        return changed == 1

    def _insert(self, name: str) -> None:
        """Insert a row of version 0, which stands for no row, unless there is one."""
        row, quote, fields = GuardState(name=name, version=0), self.connection.quote, GuardState._meta.concrete_fields
        columns = ", ".join(quote(str(field.column)) for field in fields)
        marks = ", ".join(["%s"] * len(fields))
        with suppress(IntegrityError):
            self.connection.execute(
                f"INSERT INTO {quote(GuardState._meta.db_table)} ({columns}) VALUES ({marks})",  # noqa: S608
                [getattr(row, field.attname) for field in fields],
            )

    def heartbeat(self, state: State) -> bool:
        """Update the builder's heartbeat, not the row's version; return whether the row still names the build."""
        is_mine = f"{self.connection.quote('building')} = %s"
        return self._update(state.name, {"builder_seen_at": timezone.now()}, is_mine, state.building)

    def set_mode(self, name: str, mode: str) -> None:
        """Override the guard's own mode with ``mode``; empty ends the override. Raises :class:`DatabaseError`."""
        # The version of the row stays, so a rebuild is not disturbed.
        while not self._update(name, {"mode": mode}) and not self.swap(State(name), mode=mode):
            pass

    def fence(self, name: str, reason: str) -> None:
        """Disable the guard in all processes, within one lease. Raises :class:`DatabaseError`."""
        while True:
            seen = self.current(name)
            if not seen.generations or (seen.status == FENCED and not seen.building):
                return
            if self.swap(seen, **self.fenced_values(reason)):
                self.log_fenced(name, reason)
                return

    def fence_soon(self, name: str, reason: str) -> None:
        """Disable the guard; if the database refuses, do it when it answers again. Does not wait, never raises.

        For rows that are committed already, though their keys could not be added.
        """
        self.overdue.add(name, reason)
        self.copy = Copy(*NEVER)  # so that the next lease needs a read, before which the fence is set
        try:
            self.overdue.set_by(self.fence)
        except DatabaseError as error:
            logger.error("bloomguard could not disable guard %s, and goes on trying: %s", name, error)

    @staticmethod
    def fenced_values(reason: str) -> dict[str, Any]:
        """Return what a fence changes in the row, except the version."""
        # The standby lacks the adds that are made while the guard is fenced.
        nothing = {"standby": "", "standby_until": None, "building": "", "token": new_token()}
        text = reason.encode("ascii", "backslashreplace").decode()  # a fence must not fail because of its own reason
        text = text if len(text) <= 200 else f"{text[:197]}..."
        return {**nothing, "status": FENCED, "fenced_at": timezone.now(), "reason": text}

    @staticmethod
    def log_fenced(name: str, reason: str) -> None:
        """Log that ``name`` is fenced, with the reason, and send ``guard_fenced``."""
        logger.error("bloomguard: guard %s passes every request until it is rebuilt: %s", name, reason)
        send(guard_fenced, GuardState, name=name, reason=reason)


def _is_forbidden(error: AssertionError) -> bool:
    """Return whether Django refused the connection, as the ``databases`` of the running test do not name the alias.

    No other error means that there are no rows: if one is taken for that, a write may miss a filter.
    """
    tests = sys.modules.get("django.test.testcases")  # not imported here: a site does not need it
    return tests is not None and isinstance(error, tests.DatabaseOperationForbidden)


table = StateTable()
