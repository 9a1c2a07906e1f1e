"""What this process doubts: the aliases by which it may read other rows than the filters were built from, and the rows
that it has written and that may be in no filter yet. Meanwhile no guard concerned answers ABSENT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from django.db import connections

from ..process import is_test_run, log_once, own_lock

_NAMES = "NAME", "HOST", "PORT"
#: What names a database in its settings. Raises :class:`KeyError` if a project has added an alias without some.
named = itemgetter(*_NAMES)


class Strayed:
    """``alias in strayed``: no guard may answer by it.

    After some statements a connection reads another table, see :mod:`bloomguard.writes.strays`. And a project may let
    an alias lead to another database while it runs, as for the tenant of each request. A filter belongs to the database
    that the settings name when Django starts; the state rows record which one it is on the server.
    """

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


class Unadded:
    """The writers of this process whose rows may be in no filter yet, each with the names of the guards.

    Only their own transaction sees such rows: in a block of ``adding`` before the keys are added, in ``bulk_create``
    between its statements, and in a transaction whose fence of the guard is not committed yet. Which thread asks is not
    compared: an async function asks in others for the same code. So meanwhile all requests of the process pass. A
    writer that is garbage-collected does not count any more.
    """

    def __init__(self) -> None:
        #: Empty nearly always: look here first, as a call costs each blocked request something.
        self.writers: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
        self._lock = own_lock(self, "_lock")

    def begin(self, writer: object, names: Iterable[str]) -> None:
        """Let the guards pass requests until :meth:`end` of ``writer``."""
        with self._lock:
            self.writers.setdefault(writer, set()).update(names)

    def end(self, writer: object) -> None:
        """All keys are added, or the rows are gone, or the fence is known to everyone."""
        with self._lock:
            self.writers.pop(writer, None)

    def may_have(self, name: str) -> bool:
        """Return whether there may be such a row of the guard ``name``."""
        with self._lock:
            return any(name in names for names in list(self.writers.values()))


strayed, unadded = Strayed(), Unadded()
