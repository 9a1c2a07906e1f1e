"""Now and then an absence is held against the database itself: one in a thousand, and at most one a second and process.

It finds what no sync can see, rows that were written past the ORM and past every hook, before a user does. The guard is
then taken out of use until it is rebuilt, and the request passes.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections, router

from .counting.counts import one_in
from .forks import after_fork
from .keys import value_field
from .signals import false_negative_found, tell
from .verdicts import ABSENT, CAUGHT, Decision

if TYPE_CHECKING:
    from .guards import Guard

logger = logging.getLogger("bloomguard")

EVERY = 1_000
SECONDS = 1.0

#: ``drawn()``: whether this absence is to be checked; tests put ``always`` or ``never`` here.
drawn: Callable[[], bool] = one_in(EVERY)


def never() -> bool:
    """For :data:`drawn`: check none."""
    return False


def always() -> bool:
    """For :data:`drawn`: check every one, within the limit of one a second."""
    return True


class SpotChecks:
    """Checks one absence at a time; threads that come meanwhile go on without one."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._turn = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._turn = threading.Lock()

    def is_due(self, guard: Guard) -> bool:
        """Whether the last check is a second ago."""
        return guard.live.table.clock() - self._last >= SECONDS

    def check(self, guard: Guard, value: Any) -> Decision:
        """``ABSENT`` if that holds, or cannot be told, and ``CAUGHT`` if a row is there. Never raises."""
        if not self._turn.acquire(blocking=False):
            return ABSENT
        try:
            if not self.is_due(guard):
                return ABSENT
            self._last = guard.live.table.clock()
            key = guard.keys.key(value)
            if not is_denied(lambda: _exists(guard, value), lambda: guard.live.ask(key) is ABSENT):
                return ABSENT
            self._fence(guard)
            tell(false_negative_found, type(guard), guard=guard, value=value)
            return CAUGHT
        except Exception as error:
            logger.warning("bloomguard could not check an absence of %s: %s", guard.name, type(error).__name__)
            return ABSENT
        finally:
            self._turn.release()

    @staticmethod
    def _fence(guard: Guard) -> None:
        reason = "a request for a row that exists would have been answered 404"
        try:
            guard.live.table.fence(guard.name, reason)
        except DatabaseError as error:
            logger.critical("bloomguard could not take %s out of use, though %s: %s", guard.name, reason, error)


def is_denied(exists: Callable[[], bool], denies: Callable[[], bool]) -> bool:
    """Whether a row that ``exists`` is one that a filter, asked before, still ``denies``.

    A row that was created after the filter said no is in the filter by the time that it can be seen, so it is asked
    once more; and all of it twice, for a row that was deleted in between and has left the filter.
    """
    return all(exists() and denies() for _ in range(2))


def _exists(guard: Guard, value: Any) -> bool:
    """Whether the row is in the database that writes go to: asked on a connection of its own.

    That of the request may be in a transaction that failed, or that sees the database as it was some time ago.
    """
    alias = router.db_for_write(guard.model)
    rows = guard.rows().using(alias).order_by().filter(**_wanted(guard, value)).values_list("pk")[:1]
    sql, parameters = rows.query.get_compiler(alias).as_sql()
    connection = connections.create_connection(alias)
    connection.settings_dict = copy.deepcopy(connections[alias].settings_dict)
    connection.settings_dict["AUTOCOMMIT"] = True
    connection.settings_dict["OPTIONS"].pop("pool", None)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchone() is not None
    finally:
        connection.close()


def _wanted(guard: Guard, value: Any) -> dict[str, Any]:
    if len(guard.fields) == 1:
        values = [value]
    elif isinstance(value, Mapping):
        values = [value[field.name] for field in guard.fields]
    else:
        values = value
    return {name: value_field(field).to_python(each) for name, field, each in zip(guard.attnames, guard.fields, values)}


checks = SpotChecks()
