"""The scans of a guard with a ``scope``: one for each database, or for each schema of PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

from django.db import connections

from ..exceptions import RebuildError
from ..filters.layout import KeysSummary
from ..guards import Guard
from ..guards.keys import NoScope, Scoped, head_of
from ..guards.places import schemas
from ..guards.scopes import DATABASE, SCHEMA, first_alias_of, no_schema
from ..stores import Generation
from .backends import identity_of, is_standby
from .pages import KeyPage
from .source import Source


class ScopedSource(Source):
    """The keys of the rows in one scope. Its methods are called inside :meth:`entered`."""

    def __init__(self, guard: Guard, scope: str) -> None:
        self._is_database = guard.scope == DATABASE
        super().__init__(guard, scope if self._is_database else None)
        self.scope: str = first_alias_of(scope) if self._is_database else scope
        self._marked: list[bytes] = []  # as the table was when it was first asked for

    def value(self, values: Sequence[Any]) -> Any:
        return Scoped(self.scope, super().value(values))

    @property
    def is_gathered(self) -> bool:
        return False  # the keys of its pages are no integers, nor UUIDs

    def pages(self) -> Iterator[KeyPage]:
        for page in super().pages():
            yield KeyPage(page.rows, partial(_keys_of, page, head_of(self.scope)))
        schemas.forget()
        if self.marks() != self._marked:
            raise RebuildError(f"{self.guard.name}: its table in {self.scope!r} was replaced meanwhile; run it again")

    def _check_schema(self) -> None:
        """Raise :class:`RebuildError` if the table's name does not mean the one in the schema."""
        try:
            meant = self.guard._meta.scopes.of_write(self.using)
        except NoScope:
            meant = ""
        if meant != self.scope:
            raise RebuildError(f"{self.guard.name}: the schema {self.scope!r} has no table for it; migrate it")

    def marks(self) -> list[bytes]:
        marks = self.guard._meta.scopes.marks(self.scope)
        if not marks:
            cure = "migrate it, or let scopes() leave it out"
            raise RebuildError(f"{self.guard.name}: {self.scope!r} has no table for it, or several; {cure}")
        self._marked = self._marked or marks
        return marks

    @contextmanager
    def entered(self) -> Iterator[None]:
        connection: Any = self.connection
        if self._is_database:
            try:
                yield
            finally:
                # The others may be read for hours, and a firewall forgets a connection that is idle for so long.
                if connection.vendor != "sqlite" and not connection.in_atomic_block:
                    connection.close()
            return
        tenant, include_public = connection.tenant, connection.include_public_schema
        connection.set_schema(self.scope)
        try:
            connection.cursor().close()  # which sets the search_path
            self._check_schema()
            yield
        finally:
            connection.set_tenant(tenant, include_public)


def _keys_of(page: KeyPage, head: bytes) -> list[bytes]:
    """Return the keys of a page, with ``head`` in front of integers and UUIDs that were gathered; runs in a thread."""
    keys: Any = page.keys
    if isinstance(keys, list):
        return keys
    width, data = (16, keys) if isinstance(keys, bytes) else (8, keys.astype("<i8").tobytes())
    return [head + data[start : start + width] for start in range(0, len(data), width)]


class Sources:
    """The scans that together read all rows of ``guard``: one, or one for each scope.

    Iterating enters the scope of each source. Raises :class:`RebuildError` if there is no scope, or if two of them lead
    to one database.
    """

    def __init__(self, guard: Guard) -> None:
        self._sources = [Source(guard)] if guard.scope is None else _scoped(guard)
        #: The databases that are read.
        self.aliases = list(dict.fromkeys(source.using for source in self._sources))

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Source]:
        for source in self._sources:
            with source.entered():
                yield source

    def marks(self) -> list[bytes]:
        """Return the marks of all scopes."""
        return [mark for source in self for mark in source.marks()]

    def summary(self) -> KeysSummary:
        """Return the summary of all keys, with the marks."""
        found = [(source.summary(), len(source.marks())) for source in self]
        if len(found) == 1 and not found[0][1]:
            return found[0][0]
        return KeysSummary(count=sum(summary.count + marks for summary, marks in found))

    def count(self) -> int:
        """Return the exact number of keys, with the marks."""
        return sum(source.rows().count() + len(source.marks()) for source in self)

    def pages(self) -> Generator[KeyPage]:
        """Yield the keys of all sources, page by page."""
        for source in self:
            yield from source.pages()

    def split(self, generation: Generation) -> tuple[Sources, list[str]]:
        """Return the sources that ``generation`` was built from, and the scopes that it was not."""
        read = copy(self)
        read._sources = [each for each in self if all(generation.might_contain_many(each.marks()))]
        return read, [each.scope for each in self._sources if each not in read._sources]


def _scoped(guard: Guard) -> list[Source]:
    schemas.forget()  # a tenant may have been added a moment ago
    if guard.scope == SCHEMA and (why := no_schema(connections[guard._meta.database])):
        raise RebuildError(f"{guard.name}: {'. '.join(why)}")
    scopes = list(guard.scopes())
    databases = scopes if guard.scope == DATABASE else []
    if unknown := set(databases) - set(connections):
        raise RebuildError(f"{guard.name}: scopes() names {min(unknown)!r}, which is not in DATABASES")
    if not scopes:
        raise RebuildError(f"{guard.name}: scopes() names none, so there is nothing to read; is its table made?")
    known: dict[Any, str] = {}
    for scope in databases:
        if is_standby(connections[scope]):
            raise RebuildError(f"{guard.name}: {scope!r} is a standby. Let scopes() leave it out")
        if (same := known.setdefault(identity_of(connections[scope]), scope)) != scope:
            raise RebuildError(
                f"{guard.name}: {same!r} and {scope!r} lead to one database. Let scopes() name one of them, or "
                "allow_migrate of your router allow one"
            )
    return [ScopedSource(guard, scope) for scope in scopes]
