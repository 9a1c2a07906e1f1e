"""Spot checks: compare some ABSENT verdicts with the database, one in 1,000 and at most one per second and process.

They find rows that were written without the ORM and without any hook, before a user misses them. Then the guard is
fenced until the next rebuild, and the request passes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ..process import is_within, log_once, own_lock
from ..signals import false_negative_found, send
from ..state.connection import DatabaseConnection
from ..state.verdicts import ABSENT, CAUGHT, Decision
from .counters import one_in
from .fields import value_field
from .keys import plain, scope_of
from .scopes import SCHEMA

if TYPE_CHECKING:
    from .guard import Guard

EVERY = 1_000
SECONDS = 1.0

#: ``drawn()`` returns whether to check this ABSENT; tests put :func:`never` here.
drawn: Callable[[], bool] = one_in(EVERY)


def never() -> bool:
    """Check nothing: a value of :data:`drawn`."""
    return False


class SpotChecks:
    """Checks of one ABSENT at a time; a thread that finds a check running skips its own."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._turn = own_lock(self, "_turn")

    def is_due(self, guard: Guard) -> bool:
        """Return whether the last check was at least ``SECONDS`` ago."""
        return not is_within(SECONDS, self._last, guard._runtime.active_filter.table.clock())

    def check(self, guard: Guard, value: Any) -> Decision:
        """Return ``CAUGHT`` if the row exists, else ``ABSENT``, also if the check fails. Never raises."""
        if not self._turn.acquire(blocking=False):
            return ABSENT
        try:
            if not self.is_due(guard):
                return ABSENT
            active = guard._runtime.active_filter
            self._last = active.table.clock()
            key = guard._meta.keys.key(value)
            if not is_denied(lambda: _exists(guard, value, key), lambda: active.ask(key) is ABSENT):
                return ABSENT
            reason = "a spot check found a row that the filter does not have, so a request would have been answered 404"
            active.table.fence_soon(guard.name, reason)
            send(false_negative_found, type(guard), guard=guard, value=plain(value))
            return CAUGHT
        except Exception as error:
            # Without the error's text, which may name the value.
            log_once.warning("bloomguard could not spot-check the guard %s: %s", guard.name, type(error).__name__)
            return ABSENT
        finally:
            self._turn.release()


def is_denied(exists: Callable[[], bool], denies: Callable[[], bool]) -> bool:
    """Return whether the row ``exists`` and the filter still ``denies`` it.

    The filter has denied it once already. A row that was created since is in the filter before it can be seen, so the
    filter is queried again after the database. Both are done twice: in between the row may be deleted, and leave it.
    """
    return all(exists() and denies() for _ in range(2))


def _exists(guard: Guard, value: Any, key: bytes) -> bool:
    """Query the database that writes go to, in the scope of ``key`` if the guard has one, on a new connection.

    The request's own connection may be in a failed transaction, or in one that sees an old snapshot.
    """
    alias = guard._meta.database_of(key)
    wanted = {
        name: value_field(field).to_python(each)
        for field, (name, each) in zip(guard._meta.fields, guard._meta.conditions(value).items())
    }
    rows = guard._meta.rows().using(alias).order_by().filter(**wanted).values_list("pk")[:1]
    sql, parameters = rows.query.get_compiler(alias).as_sql()
    with closing(DatabaseConnection(alias, scope_of(key) if guard.scope == SCHEMA else "")) as connection:
        found, _ = connection.execute(sql, parameters)
    return bool(found)


checks = SpotChecks()
