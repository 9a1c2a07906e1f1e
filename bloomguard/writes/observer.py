"""An observer of a transaction: whether it is committed, and which of its statements were rolled back before.

``on_commit`` is not enough. Django runs no hook for a COMMIT by hand, runs those of ``set_autocommit(False)`` long
after it, keeps those of a savepoint that was rolled back by hand, and runs them after a COMMIT that PostgreSQL has
answered by a rollback. So whatever depends on the outcome is added to an observer of the transaction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.db import Error

from ..guards.doubts import unadded
from ..state.transactions import has_begun, is_aborted, is_durable, is_over

if TYPE_CHECKING:
    from ..state.active_filter import ActiveFilter
    from .catalogue import Catalogue
    from .consequences import DatabaseCache
    from .fencing import CommitFences, PendingFence

#: A single statement that begins with one of these ends no transaction and undoes nothing, whatever else it contains.
_PLAIN = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|PRAGMA|SET|SHOW|WITH|SAVEPOINT|RELEASE)\b[^;]*(?:;\s*)?", re.IGNORECASE
)
#: Words by which any other one may, also in literals and quoted names, whose ends are not looked for here.
_CONTROL = re.compile(r"ROLLBACK|ABORT|COMMIT|BEGIN|\bEND\b|TRANSACTION|\bDO\b|\bCALL\b", re.IGNORECASE)
#: A rollback of the transaction, or to a savepoint.
_ROLLBACK = re.compile(r"\s*(?:ROLLBACK|ABORT)(?:\s+(?:WORK|TRANSACTION))?(?:\s+TO\b[^;]*)?\s*;?\s*", re.IGNORECASE)

#: Keys of deleted rows that a transaction keeps for each filter, so that it neither takes much memory nor ends late.
MOST_DELETES = 100_000
#: Vendors whose drivers report a transaction by themselves: MariaDB would have to be asked, and has no pending deletes.
_REPORTING = {"postgresql", "sqlite"}
#: The methods of a connection that an observer replaces, and its own in their place.
_REPLACED = {"_commit": "commit", "_rollback": "rollback", "_close": "close", "_set_autocommit": "set_autocommit"}


class TransactionObserver:
    """Follows one transaction from now on: as an ``execute_wrapper``, and in place of ``_commit`` and the like.

    Only of this connection, and until the transaction ends: transactions that need no observer pay nothing. Django's
    ``commit()`` and the like call those, whoever has got hold of them before, or has replaced them.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._own = {name: getattr(connection, name) for name in _REPLACED}
        self._replaced = {name: vars(connection)[name] for name in _REPLACED if name in vars(connection)}
        #: The keys of deleted rows, by the filter and generation to discard them from after a COMMIT that the database
        #: has acknowledged; dropped if an exception, such as Ctrl-C, leaves that open, or if their statements may have
        #: been rolled back.
        self.pending_deletes: dict[tuple[ActiveFilter, str], list[bytes]] = {}
        #: By the guard's name: finished after the COMMIT, before it returns to its caller.
        self.pending_fences: dict[str, PendingFence] = {}
        #: Those that have to hold at the COMMIT: the rows may be written, or become visible, only then.
        self.commit_fences: CommitFences | None = None
        #: Called when the transaction has ended, however it does.
        self.ended: list[Callable[[], object]] = []
        #: Whether the file (SQLite), or the table of the state rows (PostgreSQL), is locked against all others.
        self.is_alone = False
        #: Whether a statement has changed state rows, on MySQL and MariaDB, which show no transaction's locks.
        self.has_changed_rows = False
        #: What :mod:`.consequences` has read in it, and the cache for which; until a definition may be rolled back.
        self.catalogue: tuple[DatabaseCache, Catalogue | None] | None = None
        #: The tables that SQLite's schema editor has made anew in it. A rollback to a savepoint removes them as well.
        self.remade: set[str] = set()
        self._raw = connection.connection
        #: The process that began it. A child that was forked meanwhile has its session too, and a copy of this.
        self._pid = os.getpid()
        #: Whether the driver has reported it as open. An `atomic` block may be open before the driver sends its BEGIN.
        self._has_begun = connection.vendor in _REPORTING and not is_over(connection)

    @classmethod
    def of(cls, connection: Any) -> TransactionObserver | None:
        """Return the observer of the open transaction, if there is one."""
        for known in [known for known in connection.execute_wrappers if isinstance(known, cls)]:
            if not known.has_lost_connection and has_begun(connection):
                return known
            known._end(committed=False)  # its connection, or its transaction, has ended
        return None

    @classmethod
    def ensure(cls, connection: Any) -> TransactionObserver:
        """Return the observer of the open transaction; make one if there is none."""
        known = cls.of(connection)
        if known is None:
            known = cls(connection)
            for name, mine in _REPLACED.items():
                setattr(connection, name, getattr(known, mine))
            # At the bottom: `with connection.execute_wrapper(...)` removes the topmost one when it ends.
            connection.execute_wrappers.insert(0, known)
        return known

    @property
    def has_lost_connection(self) -> bool:
        """Whether Django has opened another connection since, or none is open: the transaction was rolled back."""
        return self._raw is not self.connection.connection

    def add_fence(self, fence: PendingFence) -> None:
        """Finish ``fence`` after the COMMIT; until then its guard passes all requests."""
        self.pending_fences[fence.name] = fence
        unadded.begin(self, [fence.name])

    def add_deletes(self, active: ActiveFilter, generation: str, keys: Sequence[bytes]) -> None:
        """Discard ``keys`` after the COMMIT, with those of other statements; too many stay, which is harmless."""
        pending = self.pending_deletes.setdefault((active, generation), [])
        pending += keys[: MOST_DELETES - len(pending)]

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Run one statement."""
        if self._has_ended_unseen():
            return execute(sql, params, many, context)
        fences = self.commit_fences
        if fences is not None and isinstance(sql, str) and (_PLAIN.fullmatch(sql) or _ROLLBACK.fullmatch(sql)):
            fences = None  # it never commits
        self._before_commit(fences)
        try:
            result = execute(sql, params, many, context)
        except BaseException as error:
            self._undo()  # some errors roll back all of it, and an interrupted statement may be done or not
            if fences is not None and (not isinstance(error, Error) or is_over(self.connection)):
                fences.after_commit()  # the database may have committed it, and its answer was lost
            raise
        self.note_executed(sql if isinstance(sql, str) else "; COMMIT")
        return result

    def note_executed(self, sql: str) -> None:
        """Note that ``sql`` was executed."""
        if not _PLAIN.fullmatch(sql) and _CONTROL.search(sql):
            self._undo()
        if is_over(self.connection):
            self._undo()
            self._end(committed=not _ROLLBACK.fullmatch(sql))
        else:
            self._has_begun = self.connection.vendor in _REPORTING

    def _has_ended_unseen(self) -> bool:
        """Return whether the transaction was ended past Django, or with its connection; then end this."""
        if self.has_lost_connection:
            self._end(committed=False)
        elif self._has_begun and is_over(self.connection):  # by a backend's own ``rollback``, or the driver's
            self._undo()
            self._end(committed=True)  # it may have been
        else:
            return False
        return True

    def _undo(self) -> None:
        """Forget all pending deletes, as some of them may be rolled back: a key that stays does no harm."""
        self.pending_deletes.clear()
        self.catalogue = None

    def _before_commit(self, fences: CommitFences | None) -> None:
        """Set the fences of the COMMIT, before each statement that may be one. Raises :class:`StoreError`."""
        if fences is not None and not is_aborted(self.connection):
            fences.before_commit()

    def commit(self) -> None:
        """Commit by the connection's own ``_commit``."""
        commit = self._own["_commit"]
        if self._has_ended_unseen():
            commit()
            return
        try:
            self._before_commit(self.commit_fences)
            self._committing()
        except BaseException:
            self.connection.rollback()  # as Django does if the COMMIT fails
            raise
        try:
            commit()
        except BaseException:  # the database may have committed it, and its answer was lost
            self._undo()
            if self.commit_fences is not None:
                self.commit_fences.after_commit()
            raise
        # As `commit()` does it next: whatever ends the wait now, such as Ctrl-C, the project's hooks are due.
        self.connection.run_commit_hooks_on_set_autocommit_on = True
        self._end(committed=True)

    def rollback(self) -> None:
        """Roll back by the connection's own ``_rollback``."""
        self._undo()  # first: if it raises an exception, it may be done
        self._own["_rollback"]()
        self._end(committed=False)

    def close(self) -> None:
        """Close by the connection's own ``_close``: the database rolls back."""
        self._end(committed=False)
        self._own["_close"]()

    def set_autocommit(self, autocommit: bool) -> None:
        """Call the connection's own ``_set_autocommit``: SQLite, MySQL and MariaDB commit when it is switched on."""
        if autocommit:
            self._undo()
        self._own["_set_autocommit"](autocommit)
        if autocommit and (self.connection.vendor == "mysql" or is_over(self.connection)):
            self._end(committed=True)

    def _committing(self) -> None:
        """Drop the pending deletes if the database will answer the COMMIT by a rollback, or may lose it.

        Also if another process may have ended the transaction: a child that ``sys.exit()`` takes out of an ``atomic``
        block rolls its parent's back. The driver learns that with the next answer of the server.
        """
        if self.pending_deletes and (
            self._pid != os.getpid()
            or is_aborted(self.connection)
            or not is_durable(self.connection)
            or is_over(self.connection)
        ):
            self.pending_deletes.clear()

    def _end(self, *, committed: bool) -> None:
        if self in self.connection.execute_wrappers:
            self.connection.execute_wrappers.remove(self)
        methods = vars(self.connection)
        for name, mine in _REPLACED.items():
            if methods.get(name) == getattr(self, mine):  # else the project has replaced it, and may put this one back
                del methods[name]
                if name in self._replaced:
                    methods[name] = self._replaced[name]
        ended, self.ended = self.ended, []
        for call in ended:
            call()
        deletes, self.pending_deletes = self.pending_deletes, {}
        pending, self.pending_fences = list(self.pending_fences.values()), {}
        fences, self.commit_fences = self.commit_fences, None
        try:
            if committed:
                if fences is not None:
                    fences.after_commit()
                for each in pending:
                    each.note_commit()
                for each in pending:
                    each.finish()
                for (active, generation), keys in deletes.items():
                    active.discard(keys, generation)
        finally:
            unadded.end(self)


def is_alone(connection: Any) -> bool:
    """Return whether the open transaction is known to keep all others from reading the state rows."""
    observer = TransactionObserver.of(connection)
    return observer is not None and observer.is_alone


def has_changed_rows(connection: Any) -> bool:
    """Return whether the open transaction is known to have changed state rows, and not by a fence."""
    observer = TransactionObserver.of(connection)
    return observer is not None and observer.has_changed_rows and not observer.pending_fences
