"""The statements of idle guards, which have no filter to add to, and the race of such a statement with a build.

It is sent unchanged, and needs no add if it ends within :data:`.fencing.IDLE_SECONDS` after its guards' state rows were
read. A generation that exists by then was announced after the read, so the scan that fills it begins at least two
leases later, and waits for all transactions that are writing. After a statement that ends too late the keys are added,
or the guards fenced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.db import DataError, Error, IntegrityError, ProgrammingError, connections

from ..exceptions import StoreError
from ..guards import Guard
from ..process import is_within
from ..state.row import FENCED
from ..state.table import LEASE_SECONDS
from ..state.transactions import has_begun, rolls_back_if_marked
from .fencing import IDLE_SECONDS, fence_soon, refresh, table_of
from .tables import TrackedTable, guard_of

#: Errors of a statement that certainly wrote nothing.
_REFUSED = (IntegrityError, DataError, ProgrammingError)


class IdleTables(NamedTuple):
    """The tables of a statement's idle guards, and when the state row of each of these was read."""

    tables: Sequence[TrackedTable]
    read_at: dict[Guard, float]
    using: str

    def late(self) -> list[TrackedTable]:
        """Return the tables of which a scan may have missed rows of the statement, which has ended."""
        return [tracked for tracked in self.tables if not is_in_time(tracked.guard, self.read_at[tracked.guard])]

    def fence_if_late(self, error: BaseException) -> None:
        """Fence the guards of the late tables after a statement that failed with ``error``.

        The database may have committed it before the connection was lost, or the program was interrupted.
        """
        late = self.late()
        if not late or isinstance(error, _REFUSED):
            return
        if isinstance(error, Error) and has_begun(connections[self.using]):
            return  # nothing of it is left
        fence_soon(map(guard_of, late))


#: Nearly always. It names no database.
NONE_IDLE = IdleTables((), {}, "")


def find_idle(tables: Sequence[TrackedTable], using: str) -> tuple[Sequence[TrackedTable], IdleTables]:
    """Return the tables of guards in use, and those of idle guards."""
    found = {tracked.guard: idle_since(tracked.guard, using) for tracked in tables}
    read_at = {guard: since for guard, since in found.items() if since is not None}
    unused = [tracked for tracked in tables if tracked.guard in read_at]
    return [tracked for tracked in tables if tracked.guard not in read_at], IdleTables(unused, read_at, using)


def all_idle_since(guards: Collection[Guard], using: str) -> dict[Guard, float] | None:
    """Return :func:`idle_since` of each guard, if all are idle; else ``None``."""
    found = {guard: since for guard in guards if (since := idle_since(guard, using)) is not None}
    return found if len(found) == len(guards) else None


def idle_since(guard: Guard, using: str) -> float | None:
    """Return when the state row of an idle guard was read; ``None`` if it has a generation to add to, or may have one.

    A fence is waited for here, before the statement, instead of before its COMMIT.
    """
    table = table_of(guard)
    for _ in range(2):
        since, state = table.copy.read_at, table.lease(guard.name)  # in this order: the copy may be a newer one
        if state is None:
            refresh(guard, using)
            since, state = table.copy.read_at, table.lease(guard.name)
        if state is None:
            continue  # it cannot be read, or has become too old just now
        if state.takes_adds:
            return None
        if state.status != FENCED:
            return since
        table.wait_for_fence(state)  # waits at most once; then read again
        if is_within(LEASE_SECONDS, since, table.clock()):
            return since
    return None


def is_in_time(guard: Guard, since: float) -> bool:
    """Return whether a statement that began after ``since``, and has ended now, came before every scan."""
    return is_within(IDLE_SECONDS, since, table_of(guard).clock())


def has_nothing_to_add_to(guard: Guard) -> bool:
    """Return whether a valid copy of the state row shows that the guard is idle. Reads nothing."""
    state = table_of(guard).lease(guard.name)
    return state is not None and not state.takes_adds


@contextmanager
def catching_up(guards: Collection[Guard], connection: Any, *, committed: bool = False) -> Iterator[None]:
    """Context manager for the add, or the fence, after a statement of idle guards that took too long.

    If the block fails, the statement must not be committed. If it may be committed already, as under autocommit, the
    guards are fenced now or, if the state rows cannot be reached, as soon as this process reaches them again. Until
    then other processes may answer 404 for the written rows; the writer gets the error. ``committed``: the statement
    may be committed, although Django reports an open transaction.
    """
    try:
        yield
    except BaseException as error:
        if committed or not has_begun(connection):
            fence_soon(guards)
            if isinstance(error, StoreError):
                names, why = ", ".join(guard.name for guard in guards), str(error.__cause__ or error).strip()
                raise StoreError(
                    f"{names}: rows were saved, but could not be added to the filter, and the guard could not be "
                    f"fenced in time: {why}. Requests for them may be answered 404 until this process "
                    "can change the state rows. Do not write them again"
                ) from error
        elif not isinstance(error, Error):  # after a database error the project decides, as in Django
            if connection.in_atomic_block:
                connection.set_rollback(True)
                if not rolls_back_if_marked(connection):
                    fence_soon(guards)
            else:
                connection.rollback()
        raise
