"""The guards that may have new keys after a statement, whose effects are followed through the catalogue."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..guards.places import may_reach, schemas
from ..guards.scopes import DATABASE
from ..models import GuardState
from ..process import is_within, own_lock, seconds
from ..state import table as states
from ..state.row import FENCED
from ..state.table import StateTable
from ..state.transactions import is_aborted, is_under_way
from . import fencing, unknown_guards
from .catalogue import EMPTIED, ROW, WRITES, Catalogue
from .introspection import acts_beyond_catalogue, load, with_remade
from .observer import TransactionObserver
from .sql.statement import ANYTHING, Effect
from .sql.tokens import bare, have_two_schemas
from .sql.words import NEVER_FUNCTIONS, SYSTEM_TABLES
from .tables import guarded_tables, keyless_when_null, tracked_columns

logger = logging.getLogger("bloomguard")

#: The table of the state rows.
STATE_ROWS = GuardState._meta.db_table
#: How many texts are cached, and how long one may be: ``bulk_create`` on SQLite sends up to 999 placeholders.
_MOST_TEXTS, _LONGEST_TEXT = 1_000, 6_000


class Definitions:
    """The changes that this process makes to the databases' definitions."""

    def __init__(self) -> None:
        #: Grows with each, and when a transaction with some ends. What was cached before is out of date then.
        self.stamp = 0
        #: Aliases of databases of which a connection has had actions that no catalogue has.
        self.beyond_catalogue: set[str] = set()
        #: The observers of open transactions with changes, which others do not see yet.
        self._open = weakref.WeakSet[TransactionObserver]()
        self._lock = own_lock(self, "_lock")  # held for microseconds

    def changed(self, connection: Any) -> None:
        """Drop all that is cached of them, after a statement on ``connection``; cache nothing before its COMMIT."""
        self.check_connection(connection)
        with self._lock:
            self._advance()
            if is_under_way(connection):
                observer = TransactionObserver.ensure(connection)
                observer.ended.append(partial(self._end, observer))
                self._open.add(observer)

    def check_connection(self, connection: Any) -> None:
        """Trust no catalogue of this database any more if the connection has actions of its own."""
        alias = connection.alias
        if alias not in self.beyond_catalogue and acts_beyond_catalogue(connection):
            self.beyond_catalogue.add(alias)
            logger.warning(
                "a connection to %s has a TEMP trigger, or an attached file with triggers or foreign keys that change "
                "rows, so each write disables the guards",
                alias,
            )

    def are_changing(self) -> bool:
        """Return whether a transaction with changes is still open, as far as its observer knows."""
        return bool(self._open)

    def _end(self, observer: TransactionObserver) -> None:
        with self._lock:
            self._open.discard(observer)
            self._advance()

    def _advance(self) -> None:
        """Drop the caches. One that another thread is just making has the old stamp, so it keeps no text."""
        self.stamp += 1
        caches.clear()
        schemas.forget()


definitions = Definitions()


class DatabaseCache:
    """Cached facts about one database, until a guard, its generations, or the database's definitions change."""

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self.plans = registry.plans
        self.stamp = definitions.stamp
        self.copy: object = None  # of the state rows
        self.generations: tuple[tuple[str, str], ...] | None = None
        self.tables: dict[str, list[tuple[str, Guard]]] = {}
        for table, guards in guarded_tables().items():
            self.tables.setdefault(bare(table, vendor), []).extend((table, guard) for guard in guards)
        #: The tables of all guards of this process, also of those that follow signals, as :func:`bare` gives them.
        self.answered = {bare(table, vendor) for guard in registry for table in guard._meta.tables}
        self.guards = list(dict.fromkeys(guard for some in self.tables.values() for _, guard in some))
        #: Texts that need no second look: they have placeholders for values, so they are few. One by which the ORM
        #: writes to a guarded table, and nothing else -> the table; one that writes nothing of a guard -> empty.
        # On MySQL and MariaDB a BEGIN is the project's own: see :mod:`.isolation`.
        self._usual = {} if vendor == "mysql" else {"BEGIN": ""}
        self.texts: dict[str, str] = dict(self._usual)
        self.catalogue: Catalogue | None = None
        #: When it could not be read, in monotonic seconds: each read would otherwise wait for its time limit again.
        self.failed_at = float("-inf")
        #: What a connection has read while the transaction of another one changes definitions, which it does not see.
        self.beside: Catalogue | None = None
        #: Whether the names of SQL's functions and of columns certainly stand for no writing function of the database.
        self.trusts_names = False
        #: The columns that the role may not read, see :mod:`.rights`.
        self.refusals: dict[tuple[Any, ...], frozenset[str]] = {}
        self._writers: list[str] = []
        self._quiet: dict[str, bool] = {}

    def seem_idle(self, connection: Any) -> bool:
        """Return :meth:`are_idle`, in a transaction of SQLite without reading: a writer there must not read first."""
        return self.are_idle(connection, may_read=connection.vendor != "sqlite" or not is_under_way(connection))

    def are_idle(self, connection: Any, *, may_read: bool = True) -> bool:
        """Whether no guard has a generation, so that no key can be missing. May read the state rows."""
        try:  # no call for each guard: a site may have hundreds. In a test some have a table of their own.
            tables = [guard._runtime.active_filter.table for guard in self.guards]
        except ConfigurationError:
            tables = list(map(fencing.table_of, self.guards))
        with fencing.reading_by_writer(self.guards[0], connection.alias) if may_read else nullcontext():
            rows = {table: _leased(table, may_read=may_read) for table in set(tables)}
        unknown_guards.compare_copy()
        if None in rows.values() or self.plans is not registry.plans:  # what was read may name further guards
            return False
        known = [rows[table][guard.name] for guard, table in zip(self.guards, tables) if guard.name in rows[table]]
        return not any(row.status == FENCED or row.generations for row in known)

    def note_rows(self) -> bool:
        """Note the state rows that were read last; return whether the catalogue is valid: no build has begun since.

        Another process may have changed the definitions before the build.
        """
        if self.copy is states.table.copy:
            return True
        self.copy = states.table.copy
        rows = [states.table.known(guard.name) for guard in self.guards]
        before, self.generations = self.generations, tuple((row.active, row.building) for row in rows)
        return before is None or before == self.generations

    def keep(self, catalogue: Catalogue) -> None:
        """Keep the database's catalogue. Other threads use what it gives from the last assignment on."""
        self._writers = [name for name in catalogue.functions if self._reaches({Effect("call", name)}, catalogue)]
        self.trusts_names = not catalogue.of_rows.union(NEVER_FUNCTIONS).intersection(self._writers)
        self.catalogue = catalogue

    def is_quiet(self, table: str) -> bool:
        """Return whether statements on ``table`` certainly affect no guard beyond those of the table itself."""
        if self.catalogue is None:
            return False
        found = self._quiet.get(table)
        if found is None:
            name = bare(table, self.vendor)
            every = {Effect(verb, name) for verb in WRITES}
            is_own = SYSTEM_TABLES.fullmatch(name) is None
            found = self._quiet[table] = is_own and not self._writers and not self._reaches(every, self.catalogue)
        return found

    def _reaches(self, effects: Iterable[Effect], catalogue: Catalogue) -> bool:
        return any(
            effect.verb == "any" or (effect.name in self.tables and effect.verb in ROW)
            for effect, _ in catalogue.follow(effects)
        )

    def add(self, sql: str, own: str = "") -> None:
        """Cache ``sql`` as a text that writes nothing of a guard, but for what the ORM writes to the table ``own``.

        Not one that may change state rows: see :func:`.state_rows.before_change`.
        """
        if len(sql) <= _LONGEST_TEXT and self.stamp == definitions.stamp and STATE_ROWS not in sql.lower():
            if len(self.texts) >= _MOST_TEXTS:
                self.texts = dict(self._usual)
            self.texts[sql] = own


def _leased(table: StateTable, *, may_read: bool) -> Any:
    """Return the state rows while the lease on them is valid, else ``None``."""
    rows = table.leased_rows()
    if rows is None and may_read:
        table.renew()
        rows = table.leased_rows()
    return rows


class Cause(NamedTuple):
    """Why a guard is fenced: the table, empty for any, and whether the statement itself names it.

    ``is_active``: the rows are not the statement's own, but those of a trigger, a function or the like.
    """

    table: str
    is_direct: bool
    is_active: bool


#: By alias. A cache is replaced in one assignment, as other threads read it. The texts of one that is here are valid
#: as long as its ``plans`` and ``copy`` are.
caches: dict[str, DatabaseCache] = {}


def current_cache(alias: str) -> DatabaseCache:
    """Return the cache of a database; make a new one if anything that it depends on has changed."""
    unknown_guards.compare_copy()
    cache = caches.get(alias)
    if cache is not None and cache.plans is registry.plans and cache.stamp == definitions.stamp and cache.note_rows():
        return cache
    cache = caches[alias] = DatabaseCache(connections[alias].vendor)
    cache.note_rows()
    return cache


def affected_guards(effects: Iterable[Effect], connection: Any, own: str = "") -> dict[Guard, Cause]:
    """Return the guards that may have new keys after ``effects``.

    ``own``: the table of the ORM's statement, as its model spells it. The compiler adds the keys for the guards of this
    table, but not for those of a model that spells it in another way. It is no table of that name in another schema.
    """
    cache = current_cache(connection.alias)
    if not cache.tables:
        return {}
    effects = with_remade(effects, connection)
    is_read, beside = all(effect.verb in ("known", "field") for effect in effects), cache.beside
    if is_read and beside is not None and not (TransactionObserver.of(connection) or any(map(beside.calls, effects))):
        return {}  # but what a function of the database's own does may change with the next COMMIT
    if is_read and cache.catalogue is None and is_within(unknown_guards.AGAIN_SECONDS, cache.failed_at, seconds()):
        return {}
    catalogue = _catalogue(cache, connection)
    if catalogue is None and is_read:
        return {}  # it is looked at again by the next write, and by a read after a minute
    if catalogue is None:
        followed, written = frozenset({(ANYTHING, True)}), effects
    else:
        followed, written = catalogue.follow(effects), list(map(catalogue.widened, effects))
    causes = [(effect, Cause(effect.name, is_direct=True, is_active=False)) for effect in written]
    causes += [(effect, Cause(effect.name, is_direct=False, is_active=active)) for effect, active in followed]
    # A partitioned table's new row is in a partition, and so in the table: the ORM's compiler adds it once.
    own_name = bare(own, cache.vendor)
    is_view = catalogue is None or own_name in catalogue.views
    found: dict[Guard, Cause] = {}
    for effect, cause in sorted(causes, key=lambda each: each[1].is_active):  # a later cause replaces an earlier one
        if effect.verb == "any":
            for guard in cache.guards:
                if connection.alias in definitions.beyond_catalogue or _may_be_in(guard, cache, connection.alias):
                    found[guard] = cause._replace(table="")
        for table, guard in cache.tables.get(effect.name, ()):
            is_added = table == own and (cause.is_direct or not (cause.is_active or is_view))
            is_elsewhere = cause.is_direct and effect.name == own_name and have_two_schemas(own, table)
            if not (is_added or is_elsewhere) and may_add_key(effect, guard, table):
                found[guard] = cause._replace(table=table)
    return found


def may_be_rewritten(compiler: Any, verb: str) -> bool:
    """Whether a BEFORE trigger may store other rows than the ORM's statement gives; also while that is not known."""
    connection = compiler.connection
    if connection.vendor == "sqlite":
        return False  # no trigger can; and a writer there must not read the catalogue first
    cache = current_cache(connection.alias)
    if not cache.tables or (cache.catalogue is None and cache.are_idle(connection)):
        return True  # nothing is added now
    catalogue, table = _catalogue(cache, connection), bare(compiler.query.model._meta.db_table, cache.vendor)
    return catalogue is None or (table, verb) in catalogue.rewritten


def may_add_key(effect: Effect, guard: Guard, table: str) -> bool:
    """Whether ``effect`` may give a row of ``table`` a new key."""
    if effect.verb == "insert":
        return True
    if effect.verb not in ("update", "alter", "copy"):
        return False
    if effect.columns is None:
        return True
    if isinstance(guard, unknown_guards.UnknownGuard):
        return True  # also of a column that no model of this process has
    if EMPTIED in effect.columns and effect.columns & keyless_when_null(guard, table):
        return False
    key_columns = tracked_columns(guard, table)
    if effect.verb == "copy":
        return not key_columns <= effect.columns
    return bool(key_columns & effect.columns)


def _may_be_in(guard: Guard, cache: DatabaseCache, alias: str) -> bool:
    """Whether the guard's rows may be in the database of ``cache``, to which ``alias`` leads; also in doubt."""
    if guard.scope == DATABASE:
        return True
    homes = {states.table.known(guard.name).source.rpartition("/")[0]} - {""}
    with suppress(Exception):  # a router may follow the request, or refuse without one
        homes.add(guard._meta.database)  # from which the next filter may be built
    return not homes or any(_may_be_one(home, alias, cache.generations) for home in homes)


@lru_cache(maxsize=100)
def _may_be_one(home: str, alias: str, generations: object) -> bool:
    """Cache :func:`may_reach` until the next build, which is needed once an alias leads to another server."""
    return may_reach(home, alias)


def _catalogue(cache: DatabaseCache, connection: Any) -> Catalogue | None:
    """Return the database's catalogue; ``None`` if it cannot be read."""
    if cache.catalogue is not None:
        return cache.catalogue
    if connection.alias in definitions.beyond_catalogue or is_aborted(connection):
        return None
    if not definitions.are_changing():
        return _load(cache, connection)
    # No thread keeps what it loads now, but for the rest of its own transaction.
    observer = TransactionObserver.of(connection)
    if observer is not None and observer.catalogue is not None and observer.catalogue[0] is cache:
        return observer.catalogue[1]
    catalogue = _load(cache, connection)
    if catalogue is not None and catalogue.is_complete:
        if observer is not None:
            observer.catalogue = cache, catalogue
        else:
            cache.beside = catalogue
    return catalogue


def _load(cache: DatabaseCache, connection: Any) -> Catalogue | None:
    """Load the database's catalogue, and keep it in ``cache`` unless its definitions are changing."""
    seen = definitions.stamp
    try:
        with connection.wrap_database_errors:
            connection.ensure_connection()
            catalogue = load(connection)
            definitions.check_connection(connection)
    except (DatabaseError, InterfaceError) as error:
        logger.warning(
            "bloomguard cannot read the catalogue of the database %s, so each write disables its "
            "guards; check the rights and time limits of its user: %s",
            connection.alias,
            error,
        )
        cache.failed_at = seconds()
        return None
    if connection.alias in definitions.beyond_catalogue:
        return None
    if catalogue.is_complete and not definitions.are_changing() and seen == definitions.stamp:
        cache.keep(catalogue)
    return catalogue
