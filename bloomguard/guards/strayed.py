"""The aliases by which this process may read other rows than the filters were built from: no guard answers for them.

After some statements a connection reads another table, see :mod:`bloomguard.writes.strays`. And a project may let an
alias lead to another database while it runs, as for the tenant of each request. A filter belongs to the database that
the settings name when Django starts; what the name means on a server, the state rows tell.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from django.db import connections

from ..process import LogOnce


class Strayed:
    """``alias in strayed``: no guard may answer by it."""

    def __init__(self) -> None:
        self._noted: set[str] = set()
        #: Alias -> what named its database first.
        self._first: dict[str, tuple[Any, ...]] = {}
        self._log = LogOnce()

    def adopt_databases(self) -> None:
        """Remember the databases that the settings name now."""
        for alias in connections:
            self.is_switched(alias)

    def add(self, alias: str) -> None:
        """Let no guard answer by ``alias`` in this process."""
        self._noted.add(alias)

    def clear(self) -> None:
        """Forget what was added."""
        self._noted.clear()

    def __contains__(self, alias: str) -> bool:
        return alias in self._noted or self.is_switched(alias)

    def has(self, connection: Any) -> bool:
        """Return whether no guard may answer for the connection; a thread's may have settings of its own."""
        return connection.alias in self or self._leads_elsewhere(connection.alias, connection.settings_dict)

    def is_switched(self, alias: str) -> bool:
        """Return whether the settings of ``alias`` name another database than they did at first."""
        given = connections.settings.get(alias)
        return given is None or self._leads_elsewhere(alias, given)

    def _leads_elsewhere(self, alias: str, given: Mapping[str, Any]) -> bool:
        named = given["NAME"], given.get("HOST"), given.get("PORT")
        first = self._first.setdefault(alias, named)
        if named == first:
            return False
        if _is_test_run():  # which replaces the databases, and builds its filters later
            self._first[alias] = named
            return False
        self._log.warning(
            "bloomguard: the database of alias %r is another one than when Django started, so its guards pass every "
            "request; give each database an alias of its own, and the guards scope = 'database'",
            alias,
        )
        return True


def _is_test_run() -> bool:
    tests = sys.modules.get("django.test.utils")  # not imported here: a site does not need it
    return tests is not None and hasattr(tests._TestState, "saved_data")


strayed = Strayed()
