"""The aliases by which this process may read other rows than the filters were built from: no guard answers for them.

After some statements a connection reads another table, see :mod:`bloomguard.writes.strays`. And a project may let an
alias lead to another database while it runs, as for the tenant of each request. A filter belongs to the database that
the settings name when Django starts; what the name means on a server, the state rows tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from django.db import connections

from ..process import is_test_run, log_once

_NAMES = "NAME", "HOST", "PORT"
#: What names a database in its settings. Raises :class:`KeyError` if a project has added an alias without some.
named = itemgetter(*_NAMES)


class Strayed:
    """``alias in strayed``: no guard may answer by it."""

    def __init__(self) -> None:
        #: Alias -> what :data:`named` its database first; ``None``: no guard answers by it in this process.
        self.databases: dict[str, tuple[Any, ...] | None] = {}

    def adopt_databases(self) -> None:
        """Remember the databases that the settings name now."""
        for alias in connections:
            self.is_switched(alias)

    def add(self, alias: str) -> None:
        """Let no guard answer by ``alias`` in this process."""
        self.databases[alias] = None

    def __contains__(self, alias: str) -> bool:
        return self.databases.get(alias, alias) is None or self.is_switched(alias)

    def has(self, connection: Any) -> bool:
        """Return whether no guard may answer for the connection; a thread's may have settings of its own."""
        given = connection.settings_dict
        if (given["NAME"], given.get("HOST"), given.get("PORT")) == self.databases.get(connection.alias):
            return False  # nearly always
        return connection.alias in self or self._leads_elsewhere(connection.alias, given)

    def is_switched(self, alias: str) -> bool:
        """Return whether the settings of ``alias`` name another database than they did at first."""
        given = connections.settings.get(alias)
        return given is None or self._leads_elsewhere(alias, given)

    def _leads_elsewhere(self, alias: str, given: Mapping[str, Any]) -> bool:
        here = tuple(map(given.get, _NAMES))
        first = self.databases.setdefault(alias, here)
        if first is None or here == first:
            return False
        if is_test_run():  # which replaces the databases, and builds its filters later
            self.databases[alias] = here
            return False
        log_once.warning(
            "bloomguard: the database of alias %r is another one than when Django started, so its guards pass every "
            "request; give each database an alias of its own, and the guards scope = 'database'",
            alias,
        )
        return True


strayed = Strayed()
