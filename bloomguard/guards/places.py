"""Find out whether a query reads the table that a guard's filter was built from.

If each tenant has a schema, several tables have one name; if a model is in several databases, it has several tables. A
filter with the rows of one table says nothing about the others, so its ABSENT is trusted for that table only.

On PostgreSQL the ``search_path`` decides which of several schemas is meant. A process reads which ones have the table
when it is about to answer ABSENT, at most every :data:`SECONDS`, by a connection of its own, and after it has changed
definitions. The copy may be older than a CREATE TABLE of another process: rows of a table that was created after the
scan of a filter are in the filter, because their writers have added them. But a filled table that another program moves
into a schema, or grants, is overlooked for that long.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from operator import eq
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, router

from ..process import log_once, own_lock, seconds
from ..state.connection import CONNECT_SECONDS, READ_SECONDS, DatabaseConnection, fetch_uncounted
from ..state.identity import identity_of_file, path_of
from .doubts import strayed

if TYPE_CHECKING:
    from django.db.models import Model

    from .guard import Guard

P = ParamSpec("P")
R = TypeVar("R")

SECONDS = 60.0
#: Seconds until the next read after one that failed.
AGAIN_SECONDS = 1.0

#: The tables of these quoted names, in schemas that the login may use, or a role that it can SET; temporary ones are in
#: none. A name of more than 63 bytes is stored without its end.
SQL = (
    "SELECT asked.name, nspname::text, pg_class.oid FROM unnest(%s::text[]) AS asked (name) "
    "JOIN pg_class ON relname = (parse_ident(asked.name, false))[1]::name "
    "JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname !~ '^pg_' "
    "AND nspname <> 'information_schema' "
    "AND EXISTS (SELECT FROM pg_roles WHERE pg_has_role(session_user, pg_roles.oid, 'MEMBER') "
    "AND has_schema_privilege(pg_roles.oid, pg_namespace.oid, 'USAGE')) ORDER BY 1, 2"
)
#: Schema and OID of the tables that these names mean on this connection. Without joins, which take twice as long.
_MEANT = (
    "SELECT (SELECT (SELECT nspname FROM pg_namespace WHERE oid = relnamespace)::text FROM pg_class "
    "WHERE oid = to_regclass(asked.name)), to_regclass(asked.name)::oid::bigint "
    "FROM unnest(%s::text[]) WITH ORDINALITY AS asked (name, number) ORDER BY number"
)

#: What tells databases apart. PostgreSQL's values are the same by every alias, through every pooler, after each
#: failover, and in a clone.
_LASTING = {
    "postgresql": "SELECT system_identifier::text, oid::text FROM pg_control_system(), pg_database "
    "WHERE datname = current_database()",
    # One of them is enough: the name of a server is another one after a failover, and whoever is connected to a server
    # may write to each of its databases.
    "mysql": "SELECT LOWER(DATABASE()), CONCAT(@@hostname, ':', @@port)",
}

#: An event loop may be held up for so long between two lines.
_NEXT_SECONDS = 0.1


def needs_orm_thread() -> bool:
    """Return whether async code may ask the routers in the ORM's thread alone: they may follow a variable of it."""
    return bool(router.routers)


def in_a_thread(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return ``function``, which may query and ask the routers, for async code: it runs in the ORM's thread if it must.

    Otherwise in any thread, so that no request waits for another one's queries.
    """
    return sync_to_async(function, thread_sensitive=needs_orm_thread())


#: Schema -> the OID of its table, which is another one if the table is dropped and made anew.
Tables = Mapping[str, int]
#: When the copy of a database is to be read again, name -> tables, and the database's identity: ``None`` if it was not
#: asked for, empty if it is not known.
Copy = tuple[float, dict[str, Tables], str | None]
#: In place of a copy that cannot be read.
_NO_COPY: Copy = float("-inf"), {}, None


class Schemas:
    """One process's copy for all tables that it was asked for. ``clock`` returns monotonic seconds."""

    def __init__(self) -> None:
        self.clock = seconds
        #: By alias. Replaced as a whole.
        self._copies: dict[str, Copy] = {}
        #: The databases whose identity is read: all but that of the state rows.
        self._identified: set[str] = set()
        self._lock = own_lock(self, "_lock")

    def forget(self) -> None:
        """Drop the copy."""
        self._copies = {}

    def is_due(self, alias: str, tables: Sequence[str], *, ahead: float = 0.0) -> bool:
        """Return whether :meth:`of` will have to read the catalogue in ``ahead`` seconds; never for no ``tables``."""
        return bool(tables) and self._kept(alias, tables, ahead) is None

    def of(self, alias: str, tables: Sequence[str]) -> list[Tables]:
        """Return the schemas that have each table, none if they cannot be read. May wait. Never raises."""
        found = self._copy(alias, tables)[1] if tables else {}
        return [found.get(table, {}) for table in tables]

    def identity(self, alias: str, tables: Sequence[str]) -> str:
        """Return the identity of the database, read along with :meth:`of`; empty if it is not known. May wait."""
        self._identified.add(alias)
        return self._copy(alias, tables)[2] or ""

    def _kept(self, alias: str, tables: Sequence[str], ahead: float = 0.0) -> Copy | None:
        """Return the copy; ``None`` if it is old, or lacks one of the ``tables`` or the identity."""
        until, found, identity = copy = self._copies.get(alias, _NO_COPY)
        left = until - self.clock() - ahead  # more than it can be if the clock went back
        lacks = (identity is None and alias in self._identified) or any(table not in found for table in tables)
        return copy if 0 < left <= SECONDS and not lacks else None

    def _copy(self, alias: str, tables: Sequence[str]) -> Copy:
        """Return the copy, read again if it has to be; what is returned stays whole if another thread forgets it."""
        if (kept := self._kept(alias, tables)) is not None:
            return kept
        if not self._lock.acquire(timeout=CONNECT_SECONDS + READ_SECONDS):
            return _NO_COPY
        try:  # another thread may have read it meanwhile
            return self._kept(alias, tables) or self._read(alias, tables)
        finally:
            self._lock.release()

    def _read(self, alias: str, tables: Sequence[str]) -> Copy:
        copies = self._copies  # a read that is under way while it is forgotten is not kept
        names = sorted({*tables, *copies.get(alias, _NO_COPY)[1]})
        identity = "" if alias in self._identified else None
        try:
            with closing(DatabaseConnection(alias)) as connection:
                rows, _ = connection.execute(SQL, [names])
                if identity is not None:
                    identity = connection.identify()
            until = self.clock() + SECONDS
        except Exception as error:
            log_once.error(error, "bloomguard cannot read which schemas have a table, so requests pass")
            rows, until = [], self.clock() + AGAIN_SECONDS
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for table, schema, oid in rows:
            found[table][schema] = oid
        copy: Copy = until, dict(found), identity
        copies[alias] = copy
        return copy


schemas = Schemas()


#: Options of the drivers of PostgreSQL and MySQL that name a server or a database.
_NAMING = ("service", "read_default_file", "read_default_group", "host", "port", "dbname", "database", "db")


def name_of_database(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what names a database in the settings ``given``; a project may have added an alias without some."""
    options = given.get("OPTIONS") or {}
    return (*map(given.get, ("ENGINE", "HOST", "PORT", "NAME")), *(str(options.get(name, "")) for name in _NAMING))


def mirror_of(alias: str) -> str | None:
    """Return the alias that ``alias`` is a replica of, or another way to, as the settings say."""
    mirrored: str | None = connections.settings.get(alias, {}).get("TEST", {}).get("MIRROR")
    return mirrored


def may_reach(one: str, other: str) -> bool:
    """Return whether what is sent by one alias may write to the database of the other; also in doubt.

    They may lead to one database by different settings, such as the name and the address of a host, or through a pooler
    and past it; or to two of one server of MySQL or MariaDB. A rebuild needs the opposite, which never takes two
    databases for one: ``identity_of`` in rebuild/backends.py. May query. Never raises.
    """
    try:
        connection, second = connections[one], connections[other]
        if connection.vendor != second.vendor:
            return False
        if name_of_database(connection.settings_dict) == name_of_database(second.settings_dict):
            return True
        suffices = any if connection.vendor == "mysql" else all
        return suffices(map(eq, _lasting_identity(one), _lasting_identity(other)))
    except Exception:  # a test may forbid queries, and a role the function
        return True


def _lasting_identity(alias: str) -> tuple[Any, ...]:
    connection = connections[alias]
    if connection.vendor == "sqlite":
        about = os.stat(path_of(str(connection.settings_dict["NAME"])))
        return about.st_dev, about.st_ino
    with closing(DatabaseConnection(alias)) as own:
        rows, _ = own.execute(_LASTING[connection.vendor])
    return rows[0]


def leads_to(alias: str, home: str) -> bool:
    """Return whether ``alias`` is ``home``, or by the settings a mirror of it: a replica, or another way to it."""
    return home in (alias, mirror_of(alias))


def databases_of(model: type[Model]) -> list[str]:
    """Return the aliases of the different databases in which the routers allow a table of ``model``; no replicas."""
    found: dict[tuple[Any, ...], str] = {}
    replica = {router.db_for_read(model)} - {router.db_for_write(model)}
    # Not of connections, which each thread would have to make. Meanwhile another thread may add a database.
    for alias, given in list(connections.settings.items()):
        if alias not in replica and not mirror_of(alias) and router.allow_migrate_model(alias, model):
            found.setdefault(name_of_database(given), alias)
    return list(found.values())


def is_in_one_database(model: type[Model]) -> bool:
    """Return whether no router can choose between databases with a table of ``model``; ``False`` if one raises."""
    try:
        return not router.routers or len(databases_of(model)) < 2
    except Exception:
        return False


def _listed(found: Sequence[Tables]) -> str:
    """Return the first table's schemas and all tables' OIDs for a ``source``; a ``/`` stands before them alone.

    A table that another program restores from a dump may have rows again that the filter has forgotten.
    """
    schemas = ",".join(sorted(found[0])).replace("%", "%25").replace("/", "%2F")
    return ":".join([schemas, *(str(oid) for tables in found for oid in sorted(tables.values()))])


class Place:
    """The database and the PostgreSQL schema of a guard's table."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        table = guard.model._meta.db_table
        self._tables = [table, *sorted(guard._meta.tables - {table})]
        self._names: dict[tuple[str, Any], list[str]] = {}

    def _loose(self, alias: str) -> list[str]:
        """Return the guard's tables, quoted, whose schema the ``search_path`` decides: on PostgreSQL, without one."""
        # For each task of an event loop, Django would make a connection object anew.
        place = alias, connections.settings.get(alias, {}).get("ENGINE")
        names = self._names.get(place)
        if names is None:
            connection = connections[alias]
            tables = self._tables if connection.vendor == "postgresql" else ()
            names = [name for name in map(connection.ops.quote_name, tables) if '"."' not in name]
            self._names[place] = names
        return names

    def _schemas(self, alias: str) -> list[Tables]:
        """Return the schemas that have each of these tables. May query."""
        return schemas.of(alias, self._loose(alias))

    def source(self, alias: str) -> str | None:
        """Return what the state row has as ``source`` if a filter is built from ``alias`` now. May query.

        ``None`` if the catalogue cannot be read, or the alias does not lead to the database of the settings any more.
        """
        if strayed.is_switched(alias):
            return None
        schemas.forget()  # the copy may be older than the database
        found = self._schemas(alias)
        return f"{alias}/{_listed(found) if found else ''}{self.identity(alias)}" if all(found) else None

    def identity(self, alias: str) -> str:
        """Return, as the end of a ``source``, which database ``alias`` leads to now. May query.

        Empty for the database of the state rows, which each read of them proves. Of MySQL and MariaDB only the name is
        known.
        """
        if self._guard._runtime.active_filter.table.holds(alias):
            return ""
        connection = connections[alias]
        if connection.vendor == "sqlite":
            found = identity_of_file(connection)
        else:
            loose = self._loose(alias)
            found = schemas.identity(alias, loose) if loose else connection.settings_dict["NAME"]
        return f"@{hashlib.sha256(found.encode()).hexdigest()[:16]}"

    # A request must not ask for ``db_for_write`` if it can do without: a router may take that for a write, and send the
    # user's next reads to the primary. And only absent IDs would have that effect.

    @property
    def home(self) -> str:
        """The alias of the database that the guard's filter was built from; without one, of its model's writes."""
        source = self._guard._runtime.active_filter.table.known(self._guard.name).source
        alias = source.rpartition("/")[0]
        return alias if alias in connections.settings else self._guard._meta.database

    def reads(self, alias: str) -> bool:
        """Return whether queries by ``alias`` read the rows of :attr:`home`.

        Of an alias that is no mirror of it, the routers have to say so: they read from it, and write to the home.
        """
        model, home = self._guard.model, self.home
        return leads_to(alias, home) or (alias == router.db_for_read(model) and router.db_for_write(model) == home)

    def must_read(self) -> bool:
        """Return whether :meth:`certain_alias`, called next, may read the catalogue: once a minute, on PostgreSQL."""
        home = self.home
        return schemas.is_due(home, self._loose(home), ahead=_NEXT_SECONDS)

    def certain_alias(self, source: str) -> str:
        """Return the alias that queries go to, if they certainly read the table of ``source``, else ``""``.

        They do if the routers choose the database that was scanned, and no other schema has a table of that name.
        """
        alias = self._certain_alias(source)
        home, _, schema = source.rpartition("/")
        found = self._schemas(home or alias) if alias else ()
        if not all(len(each) == 1 for each in found):
            return ""
        return alias if not found or not source or schema == _listed(found) + self.identity(home) else ""

    def _certain_alias(self, source: str) -> str:
        """Do :meth:`certain_alias` for databases alone."""
        if not source:
            return self._guard._meta.database
        alias, home = router.db_for_read(self._guard.model), source.rpartition("/")[0]
        # A router that chooses one of several replicas may name another one now.
        is_home = leads_to(alias, home) or router.db_for_write(self._guard.model) == home
        return alias if is_home and alias not in strayed and source.endswith(self.identity(home)) else ""

    def is_certain(self) -> bool:
        """Return whether this process would read the table that the guard's filter was built from. May query."""
        return bool(self.certain_alias(self._guard._runtime.active_filter.table.known(self._guard.name).source))

    def was_asked(self, using: str, key: bytes) -> bool:
        """Return whether a query for ``key``, just sent by ``using``, read that table. Queries the catalogue."""
        if using != self.home or not self.is_certain():
            return False
        meant = zip(self._meant(using), self._schemas(using), strict=True)
        return all(schema in each for (schema, _), each in meant)

    def _meant(self, using: str) -> Sequence[tuple[str | None, int | None]]:
        """Return schema and OID of each of the guard's tables, as PostgreSQL resolves their names on ``using`` now."""
        connection: Any = connections[using]
        names = self._loose(using)
        if not names:
            return ()
        return fetch_uncounted(connection, _MEANT, [names])
