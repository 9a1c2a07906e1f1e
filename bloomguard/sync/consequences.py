"""Which guards may have new keys because of a statement: what its text says, followed through the catalogue.

What is known of a database is kept until a guard, its generations or the database's definitions change.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections, router

from ..guards import Guard, registry
from . import fencing
from . import state as states
from .catalogue import Catalogue, load
from .effects import ANYTHING, Effect, bare
from .transactions import is_under_way
from .watches import columns, guarded_tables

logger = logging.getLogger("bloomguard")

#: Texts that are known by heart: how many, and how long they may be.
_PASSED_TEXTS, _PASSED_LENGTH = 1_000, 1_000


class Known:
    """What is known of one database, until a guard, its generations, or the database's definitions change."""

    def __init__(self) -> None:
        self.version = registry.version
        self.stamp = stamp
        self.read_at = float("-inf")
        self.generations: object = None
        self.tables: dict[str, list[tuple[str, Guard]]] = {}
        for table, guards in guarded_tables().items():
            self.tables.setdefault(bare(table), []).extend((table, guard) for guard in guards)
        self.guards = list(dict.fromkeys(guard for some in self.tables.values() for _, guard in some))
        #: Texts that write nothing of a guard: there are few, with marks for the values.
        self.passed: set[str] = set()
        self.catalogue: Catalogue | None = None
        #: Whether no statement on a table has consequences for a guard, but for the table's own.
        self.quiet: dict[str, bool] = {}

    def seem_idle(self, connection: Any) -> bool:
        """:meth:`are_idle`, where that can be told before a statement; SQLite's writers must not read first."""
        if connection.vendor == "sqlite" and is_under_way(connection):
            return all(map(fencing.is_idle, self.guards))
        return self.are_idle(connection)

    def are_idle(self, connection: Any) -> bool:
        """Whether no guard has a generation that a key could be missing in. May read the state rows."""
        with fencing.writing(self.guards[0], connection.alias):
            return all(fencing.is_idle(guard, may_read=True) for guard in self.guards)

    def follow(self) -> bool:
        """Take note of the state rows that were read last; whether the catalogue may still be relied on.

        A build that has begun asks for a new one: so this process knows what another one defined before the build.
        """
        self.read_at = states.table.read_at
        rows = [states.table.known(guard.name) for guard in self.guards]
        before, self.generations = self.generations, [(row.active, row.building) for row in rows]
        return before is None or before == self.generations

    def pass_by(self, sql: str) -> None:
        """Know ``sql`` by heart as a text that does nothing to a guard."""
        if len(sql) <= _PASSED_LENGTH:
            if len(self.passed) >= _PASSED_TEXTS:
                self.passed.clear()
            self.passed.add(sql)


class Cause(NamedTuple):
    """Why a guard is fenced: the table, and whether the statement itself names it."""

    table: str
    is_direct: bool


#: By alias; made anew in one piece, for threads that look meanwhile.
known_of: dict[str, Known] = {}
#: Counts what is defined.
stamp = 0
#: Connections in whose open transactions something was defined, which others do not see yet.
_defining: list[Any] = []


def renewed(alias: str) -> Known:
    """What is known of a database, from the start if anything that it depends on has changed."""
    known = known_of.get(alias)
    if known is not None and known.version == registry.version and known.stamp == stamp and known.follow():
        return known
    known = known_of[alias] = Known()
    known.follow()
    return known


def written(effects: Iterable[Effect], connection: Any, own: str = "") -> dict[Guard, Cause]:
    """The guards that may have new keys because of ``effects``, but for those on the table ``own`` itself."""
    direct = frozenset(effect for effect in effects if not own or effect.name != own)
    known = renewed(connection.alias)
    if not known.tables:
        return {}
    catalogue = _catalogue(known, connection)
    followed = {ANYTHING} if catalogue is None else catalogue.follow(effects)
    found: dict[Guard, Cause] = {}
    for effect in direct | followed:
        if effect.verb == "any":
            for guard in known.guards:
                if _lies_in(guard, connection):
                    found.setdefault(guard, Cause("", effect in direct))
        for table, guard in known.tables.get(effect.name, ()):
            if gives_keys(effect, guard, table):
                found[guard] = Cause(table, effect in direct and effect not in followed)
    return found


def gives_keys(effect: Effect, guard: Guard, table: str) -> bool:
    """Whether a row of the table may have a key after it that it had not before."""
    if effect.verb == "insert":
        return True
    if effect.verb not in ("update", "copy"):
        return False
    if effect.columns is None:
        return True
    minded = {column.lower() for column in columns(guard, table)}
    if effect.verb == "copy":
        return not minded <= effect.columns
    return bool((minded - _keyless(guard) if effect.nulls else minded) & effect.columns)


def _keyless(guard: Guard) -> set[str]:
    """The columns that take a row's key away, and do nothing else, when they become NULL."""
    if guard.alive or len(guard.tables) > 1 or any(getattr(field, "generated", False) for field in guard.fields):
        return set()
    return {str(field.column).lower() for field in guard.fields}


def _lies_in(guard: Guard, connection: Any) -> bool:
    """Whether the guard's rows lie in the database of ``connection``, by whatever alias."""
    other = connections[router.db_for_write(guard.model)].settings_dict
    names = ("ENGINE", "NAME", "HOST", "PORT")
    return all(other.get(name) == connection.settings_dict.get(name) for name in names)


def _catalogue(known: Known, connection: Any) -> Catalogue | None:
    """What the database does by itself; ``None`` if that cannot be read."""
    if known.catalogue is not None:
        return known.catalogue
    _forget_if_over()
    seen = stamp
    try:
        with connection.wrap_database_errors:
            connection.ensure_connection()
            catalogue = load(connection)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("bloomguard cannot read the catalogue of %s: %s", connection.alias, type(error).__name__)
        return None
    if not _defining and seen == stamp:
        known.quiet = _Quiet(known, catalogue)
        known.catalogue = catalogue
    return catalogue


class _Quiet(dict[str, bool]):
    """Table -> whether statements on it have no consequences for any guard, but those on the table itself."""

    def __init__(self, known: Known, catalogue: Catalogue) -> None:
        self.known = known
        self.catalogue = catalogue
        self.writers = [name for name in catalogue.functions if self._reaches({Effect("call", name)})]

    def _reaches(self, effects: Iterable[Effect]) -> bool:
        return any(
            effect.verb == "any" or (effect.name in self.known.tables and effect.verb in ("insert", "update"))
            for effect in self.catalogue.follow(effects)
        )

    def get(self, table: str, default: Any = None) -> bool:
        """Worked out once."""
        found = super().get(table)
        if found is None:
            every = {Effect(verb, bare(table)) for verb in ("insert", "update", "delete")}
            found = self[table] = not self.writers and not self._reaches(every)
        return found


def defined(connection: Any) -> None:
    """Forget all catalogues; and until the transaction ends, remember none."""
    global stamp
    stamp += 1
    if is_under_way(connection):
        _defining.append(weakref.ref(connection))


def _forget_if_over() -> None:
    """Let go of transactions that defined something and have ended: what they did is seen, or undone, from now on."""
    global stamp
    going_on = [each for each in _defining if (connection := each()) is not None and is_under_way(connection)]
    if len(going_on) != len(_defining):
        _defining[:] = going_on
        stamp += 1
