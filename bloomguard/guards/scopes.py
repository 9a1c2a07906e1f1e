"""Scopes: the databases, or the schemas of PostgreSQL, that each have a table with rows of one guard.

A database is named by its alias. One filter has the keys of all scopes, each with the scope in front. An ABSENT is
trusted if both of these are certain:

- the scope that a query would read. It is the alias; or the schema that django-tenants' connection sets before each
  statement. What any other code may do to the ``search_path`` is not known without a query, so the request passes.
- that the filter has all rows of the scope. A build adds the marks of each scope that it is going to read, before it
  announces the generation: keys that no row has. So a tenant or a shard that is newer than the filter has no marks, and
  its requests pass until the next build. The marks contain the OID of the table: one that was made anew has others.

The key of a written row begins with the scope that it was written to; after the statement, PostgreSQL is asked to which
schema the table's name leads. The guard is fenced in three cases:

- The scope is not certain.
- The filter has no marks of the database's alias: two aliases may lead to one database.
- The schema was renamed after the build. When it gets its old name back, the filter would lack the row. Marks with the
  OIDs of the tables, but without a name, show that.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import connections, router

from ..exceptions import StoreError
from ..filters import FilterError
from ..state.row import ARMED, State
from .doubts import strayed
from .keys import MARKS, NoScope, Scoped, marks_of, scope_of
from .places import Place, databases_of, mirror_of, name_of_database

if TYPE_CHECKING:
    from ..stores import Generation
    from .guard import Guard

DATABASE, SCHEMA = "database", "schema"


def first_alias_of(alias: str) -> str:
    """Return the first alias with the settings of ``alias``: both lead to the same tables.

    Not one with another user or other options: these may lead to another schema of the same database.
    """

    def access(given: dict[str, Any]) -> tuple[Any, ...]:
        return (*name_of_database(given), given.get("USER"), given.get("OPTIONS"))

    every = connections.settings
    name, wanted = every[alias].get("NAME"), access(every[alias])
    # Each query asks. With hundreds of databases, comparing more than their names would take longer than the query.
    found = (each for each, given in list(every.items()) if given.get("NAME") == name and access(given) == wanted)
    return next(found)


def sets_schema(connection: Any) -> bool:
    """Return whether the connection itself sets the ``search_path`` before each statement, as django-tenants' does."""
    return hasattr(connection, "set_schema") and hasattr(connection, "search_path_set_schemas")


def no_schema(connection: Any) -> tuple[str, str] | None:
    """Return why no query of ``connection`` has a certain schema, and the cure; ``None`` if each has one."""
    if sets_schema(connection):
        return None
    if connection.vendor != "postgresql":
        return (
            f"scope is 'schema', but {connection.display_name} has no schemas within a database",
            "If each tenant has a database, set scope = 'database'.",
        )
    return (
        "scope is 'schema', but the database backend does not set the search_path before each statement",
        "Use django_tenants.postgresql_backend. Of whatever else sets the search_path, no guard can be certain.",
    )


def _answering(state: State) -> list[str]:
    """Return the generations that answer, or will."""
    return [name for name in (state.active if state.status == ARMED else "", state.building) if name]


def _text_of(schema: str, oids: Iterable[int]) -> str:
    return "\0".join([schema, *(f"{schema}:{oid}" for oid in oids)])


#: In place of the name, in marks of the OIDs alone. Fewer are enough: having them by chance only fences the guard.
_NAMELESS, _NAMELESS_MARKS = "", 16


class Scopes(Place):
    """The places of the tables of a guard with a ``scope``."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard)
        self._is_by_database = guard.scope == DATABASE
        #: Generation -> text of marks -> whether it has them. It got its marks before any process opened it, so both
        #: answers last.
        self._known: WeakKeyDictionary[Generation, dict[str, bool]] = WeakKeyDictionary()

    def _state(self) -> State | None:
        return self._guard._runtime.active_filter.table.lease(self._guard.name)

    def found(self) -> Iterable[str]:
        """Return the scopes that have the guard's tables: databases, or schemas of its database. May query."""
        if self._is_by_database:
            return databases_of(self._guard.model)
        having = [set(each) for each in self._schemas(self._guard._meta.database)]
        return sorted(set.intersection(*having)) if having else []

    # -- the scope of a statement; all of these raise :class:`NoScope`

    def current(self) -> str:
        """Return the scope that a query of this thread, without ``using()``, would read now."""
        if _get_running_loop() is not None:
            raise NoScope("it is certain only in the thread of the request, not on an event loop")
        return self.of_query(connections[router.db_for_read(self._guard.model)])

    def of_query(self, connection: Any) -> str:
        """Return the scope that the next query of ``connection`` would read."""
        if not self._is_by_database:
            return self._next_schema(connection)
        if strayed.has(connection):
            raise NoScope("a connection to it may read another database")
        alias, model = connection.alias, self._guard.model
        written = router.db_for_write(model)
        if alias != written and alias == router.db_for_read(model) and self._is_replica(alias, written):
            alias = written
        return first_alias_of(alias)

    def _is_replica(self, alias: str, written: str) -> bool:
        """Return whether ``alias``, from which the routers only read now, is a replica of ``written``.

        Raises :class:`NoScope` if that is not sure: a router may read from one shard and write to another, for example
        while it moves rows.
        """
        from .guard import Guard

        if type(self._guard).scopes is not Guard.scopes:
            return alias not in self._guard.scopes()
        if not mirror_of(alias) and router.allow_migrate_model(alias, self._guard.model):
            raise NoScope(f"{alias!r} may be a replica of {written!r}, or a database with rows of its own")
        return True

    def at(self, value: Any, connection: Any = None) -> Scoped:
        """Return ``value`` with the scope of the next query of ``connection``, by default :meth:`current`.

        Never raises: the key of a value without a scope does.
        """
        if type(value) is Scoped:
            return value
        try:
            return Scoped(self.current() if connection is None else self.of_query(connection), value)
        except Exception:  # a router may fail too
            return Scoped(None, value)

    @staticmethod
    def _next_schema(connection: Any) -> str:
        name = connection.schema_name if sets_schema(connection) else None
        if not isinstance(name, str) or not name:
            raise NoScope("the database backend does not set the search_path before each statement")
        # It may have set the path long ago; since then raw SQL may have changed it.
        if connection.search_path_set_schemas and getattr(settings, "TENANT_LIMIT_SET_CALLS", False):
            raise NoScope("with TENANT_LIMIT_SET_CALLS the search_path was set before an earlier statement")
        return name

    def of_write(self, using: str) -> str:
        """Return the scope that the last statement sent by ``using`` has written or read. May query it."""
        if self._is_by_database:
            scope, state = first_alias_of(using), self._state()
            if state is None or not all(self._holds(state, name, scope) for name in _answering(state)):
                raise NoScope(f"its filter does not have the database {using!r}")
            return scope
        return self._schema_written(using)[0]

    def _schema_written(self, using: str) -> tuple[str, list[int]]:
        """Return the schema that the last statement sent by ``using`` has written or read, and the tables' OIDs."""
        meant = self._meant(using)
        names = {schema for schema, _ in meant}
        name = names.pop() if len(names) == 1 else None
        if name is None:
            raise NoScope("it is not certain in which schema a row was written")
        return name, [oid for _, oid in meant if oid is not None]

    def of_rows(self, using: str, *, by_orm: bool) -> str:
        """Return the scope for the keys of rows that the last statement sent by ``using`` has written.

        ``by_orm``: in the schema that the connection is set to, unless other code has changed that since.
        """
        if self._is_by_database:
            return self.of_write(using)
        if by_orm and getattr(connections[using], "search_path_set_schemas", True) is None:
            raise NoScope("after a row was written, other code sent statements in another schema, or undid some")
        name, oids = self._schema_written(using)
        if self._was_renamed(name, oids):
            raise NoScope(f"the schema {name!r} had another name when the filter was built")
        return name

    def _was_renamed(self, name: str, oids: Sequence[int]) -> bool:
        """Return whether a generation that will answer may have these tables in a schema of another name than ``name``.

        It answers for them again when they get that name back, and rows written meanwhile have keys of this one.
        """
        state = self._state()
        try:
            return state is not None and any(
                not self._has(state, each, _text_of(name, oids))
                and self._has(state, each, _text_of(_NAMELESS, oids), _NAMELESS_MARKS)
                for each in _answering(state)
            )
        except (FilterError, StoreError):
            return True

    # -- the scopes of a filter

    def marks(self, scope: str) -> list[bytes]:
        """Return the marks of ``scope``; empty if its tables cannot be found. May query the catalogue."""
        text = self._text(scope)
        if not text:
            return []
        if self._is_by_database:
            return marks_of(text)
        oids = [tables[scope] for tables in self._schemas(self._guard._meta.database) if scope in tables]
        return marks_of(text) + marks_of(_text_of(_NAMELESS, oids))[:_NAMELESS_MARKS]

    def _text(self, scope: str) -> str:
        """Return the text of the marks of ``scope``: its tables' schemas and OIDs; empty if they cannot be found."""
        alias = scope if self._is_by_database else self._guard._meta.database
        found = []
        for tables in self._schemas(alias):
            schema = next(iter(tables), "") if self._is_by_database else scope
            if schema not in tables or (self._is_by_database and len(tables) > 1):
                return ""
            found.append(f"{schema}:{tables[schema]}")
        if self._is_by_database:
            found.append(self.identity(alias))
        return "\0".join([scope, *found])

    def covers(self, state: State, key: bytes) -> bool:
        """Return whether the active generation of ``state`` was built from the scope of ``key`` too."""
        return self._holds(state, state.active, scope_of(key))

    def has_written(self, using: str, generation: str) -> bool:
        """Return whether ``generation``, the active one, was built from the scope of the last statement of ``using``.

        Raises :class:`NoScope`, and what a check of the generation raises.
        """
        by_database, state = self._is_by_database, self._state()
        text = self._text(self.of_write(using)) if by_database else _text_of(*self._schema_written(using))
        return state is not None and state.active == generation and bool(text) and self._has(state, generation, text)

    def _holds(self, state: State, name: str, scope: str) -> bool:
        text = self._text(scope)
        try:
            return bool(text) and self._has(state, name, text)
        except (FilterError, StoreError):  # a check or an add meets the same error, and handles it
            return False

    def _has(self, state: State, name: str, text: str, number: int = MARKS) -> bool:
        """Return whether the generation ``name`` has so many marks of ``text``."""
        generation = self._guard._runtime.active_filter.generation(state, name)
        if generation is None:
            return False
        known = self._known.setdefault(generation, {})
        if text not in known:
            known[text] = all(generation.might_contain_many(marks_of(text)[:number]))
        return known[text]

    # -- what a guard without a scope has too

    def source(self, alias: str) -> str | None:
        if any(map(strayed.is_switched, self._guard.scopes() if self._is_by_database else [alias])):
            return None
        return "*/*" if self._is_by_database else f"{alias}/*{self.identity(alias)}"

    def must_read(self) -> bool:
        return True

    def certain_alias(self, source: str) -> str:
        home, _, schema = source.rpartition("/")
        if source and (schema[:1] != "*" or self._is_by_database != (home == "*")):
            return ""  # built with another scope
        return home if home == "*" else self._certain_alias(source)

    def was_asked(self, using: str, key: bytes) -> bool:
        if not self.is_certain() or not (self._is_by_database or using == self.home):
            return False
        try:
            return self.of_write(using) == scope_of(key)
        except NoScope:
            return False
