"""Helpers for the tests of projects: filters that follow the test's database, and assertions.

In a test run guards are cold: everything passes, as on a site before its first ``rebuild_filter``. To test guards, use
:func:`guards_armed`: inside its block each guard has a filter in memory, built from the rows that exist. Writes update
it through the same hooks as in production.

* ``django.test``: put :class:`GuardTestMixin` before ``TestCase``.
* pytest: request the fixture ``armed_guards``, which enables the database too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock
from urllib.parse import unquote, urlsplit

from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.db import connections, transaction
from django.test import AsyncClient, Client

from .door.probes import collect_statements
from .exceptions import StoreError
from .filters.bulk import one_by_one
from .filters.hashing import KeyHash
from .filters.layout import Layout
from .guards import Guard, registry, spot_checks
from .guards.runtime import short_check
from .rebuild.sources import Sources
from .routes.explain import LOOKUP, GuardAnswer, explain
from .signals import request_blocked
from .state.active_filter import ActiveFilter
from .state.row import FENCED, Rows, State
from .state.table import StateTable
from .stores import Generation, Store
from .stores.base import FindKeyHash
from .stores.memory import MemoryStore

__all__ = ["GuardTestMixin", "assert_blocked", "assert_passes", "guards_armed", "guards_off"]

_ORDER = "put BloomGuardMiddleware last in MIDDLEWARE, or right before FetchFromCacheMiddleware and name the route"
_READS = ("get", "get_many", "has_key", "get_or_set", "aget", "aget_many", "ahas_key", "aget_or_set")
_GENERATION = "test"


@contextmanager
def guards_armed(*names: str) -> Iterator[None]:
    """Arm every guard, or those in ``names``, inside the block, with a filter of the rows that exist at its start.

    Reads all rows of the guards' tables once. Rows that the ORM writes in the block are added; raw SQL fences the
    guard, as in production. Without ``names``, a guard whose rows cannot be read stays as it is. Raises
    :class:`ConfigurationError` if there is no such guard.
    """
    with mock.patch.object(spot_checks, "drawn", spot_checks.never), _replaced_filters(names, _arm):
        yield


@contextmanager
def guards_off(*names: str) -> Iterator[None]:
    """Switch every guard, or those in ``names``, off inside the block: everything passes, as without bloomguard.

    Raises :class:`ConfigurationError` if there is no such guard.
    """
    with _replaced_filters(names, _switch_off):
        yield


@dataclass
class _Activity:
    """The statements, cache reads and blocking guards of one request."""

    statements: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    blocked: list[Guard] = field(default_factory=list)


def assert_blocked(client: Client | AsyncClient, path: str, **request: Any) -> Any:
    """Assert that a guard answers ``GET path`` with 404, without a statement or a cache read; return the response.

    ``request`` is passed to ``client.get``. Raises :class:`AssertionError` otherwise, which says what happened instead,
    and why. In an async test, call it by ``sync_to_async``.
    """
    with _recording() as did:
        response = _get(client, path, request)
    if not did.blocked:
        raise AssertionError(f"no guard blocked {path}; the response was {response.status_code}{_why(path)}")
    if response.status_code != 404:
        raise AssertionError(f"{path} was blocked, but a middleware changed the response to {response.status_code}")
    if did.statements:
        raise AssertionError(f"{path} was blocked after {len(did.statements)} statements: {_first(did.statements)}")
    if did.caches:
        raise AssertionError(f"{path} was blocked after a cache was read: {_first(did.caches)}; {_ORDER}")
    return response


def assert_passes(client: Client | AsyncClient, path: str, **request: Any) -> Any:
    """Assert that no guard blocks ``GET path``; return the response, whatever its status.

    ``request`` is passed to ``client.get``. Raises :class:`AssertionError` if a guard blocks it.
    """
    with _recording() as did:
        response = _get(client, path, request)
    if did.blocked:
        raise AssertionError(f"the guard {did.blocked[0].name!r} blocked {path}{_why(path)}")
    return response


class GuardTestMixin:
    """A mixin for ``TestCase`` and its relatives that arms the guards in every test, after ``setUpTestData``.

    Put it before ``TestCase`` among the bases.
    """

    client: Client

    def setUp(self) -> None:
        """Arm every guard until the end of the test."""
        super().setUp()  # type: ignore[misc]
        block = ExitStack()
        block.enter_context(guards_armed())
        self.addCleanup(block.close)  # type: ignore[attr-defined]

    def assert_blocked(self, path: str, **request: Any) -> Any:
        """Call :func:`assert_blocked` with the test's client."""
        return assert_blocked(self.client, path, **request)

    def assert_passes(self, path: str, **request: Any) -> Any:
        """Call :func:`assert_passes` with the test's client."""
        return assert_passes(self.client, path, **request)


def _get(client: Client | AsyncClient, path: str, request: dict[str, Any]) -> Any:
    get: Any = async_to_sync(client.get) if isinstance(client, AsyncClient) else client.get
    return get(path, **request)


@contextmanager
def _recording() -> Iterator[_Activity]:
    did = _Activity()

    def record_blocked(guard: Guard, **named: Any) -> None:
        did.blocked.append(guard)

    with ExitStack() as block:
        did.statements = block.enter_context(collect_statements())
        for alias in caches:
            for name in _READS:
                reading = _recorded(getattr(caches[alias], name), did.caches, f"{alias}.{name}")
                block.enter_context(mock.patch.object(caches[alias], name, reading))
        request_blocked.connect(record_blocked)
        block.callback(request_blocked.disconnect, record_blocked)
        yield did


def _recorded(method: Any, calls: list[str], name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return method(*args, **kwargs)

    return call


def _first(things: list[str]) -> str:
    return "; ".join(thing[:200] for thing in things[:3])


def _why(path: str) -> str:
    """Return the guards' verdicts on a path; empty if they cannot be determined."""
    try:
        found = explain(unquote(urlsplit(path).path))
    except Exception:  # also of a test that must not use the database of the state rows
        return ""
    if found.unguarded:
        return f": {found.unguarded}"
    return "".join(f"; the guard {each.guard!r} answers {each.verdict}: {_meaning(each)}" for each in found.guards)


def _meaning(answer: GuardAnswer) -> str:
    guard = registry[answer.guard]
    if answer.verdict == "unknown" and (unarmed := vars(guard._runtime).get("unarmed")):
        return f"{answer.meaning}; it could not be armed: {unarmed}"
    if answer.reason == "cold" and not isinstance(guard._runtime.active_filter, _TestFilter):
        return (
            "it is not armed: use the fixture armed_guards, guards_armed() or GuardTestMixin, and let a setUp of your "
            "own call super().setUp()"
        )
    if answer.answered == LOOKUP and guard._meta.discards and any(each.in_atomic_block for each in connections.all()):
        return f"{answer.meaning}; a cuckoo guard answers no query inside a transaction: take TransactionTestCase"
    return answer.meaning


# -- filters and state rows in the memory of a test


@lru_cache
def _layout(kind: str) -> Layout:
    """Return a layout of ``kind``, for what asks a generation about its filter; it allocates nothing."""
    return Layout.plan(key_hash=KeyHash(None, bytes(32)), capacity=1_000, error_rate=0.001, kind=kind)


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise StoreError("the guard is armed in this test, so it has no filter to build or verify; do so in another test")


class _Keys(Generation):
    """The keys of a guard in a dictionary, with their counts: made at no cost, and never wrong."""

    name = _GENERATION

    def __init__(self, kind: str) -> None:
        self.layout = _layout(kind)
        #: Those of the block around this one, which answer for the same rows again when this one ends.
        self.outer: _Keys | None = None
        self._counts: Counter[bytes] = Counter()
        self._lock = threading.RLock()
        self.might_contain = self._counts.__contains__

    def is_recent(self, key: bytes) -> bool:
        return True  # so no false positive is remembered

    def add(self, keys: Any, *, once: bool = False) -> None:
        if self.outer is not None:
            self.outer.add(keys, once=once)
        with self._lock:
            self._counts.update(key for key in one_by_one(keys) if not (once and key in self._counts))

    def add_many(self, keys: Any) -> None:
        with self._lock:
            self._counts.update(keys)

    def discard(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._counts[key] -= 1
                if self._counts[key] <= 0:
                    del self._counts[key]

    def approximate_size(self) -> int:
        return len(self._counts)

    filters = read_shard = merge = _refuse


class _TestStore(MemoryStore):
    """A store with the keys of one guard."""

    def __init__(self, keys: _Keys) -> None:
        super().__init__("test")
        self._keys = keys

    create = _refuse

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        return self._keys

    def names(self, guard: str) -> list[str]:
        return [_GENERATION]


class _Rows(StateTable):
    """State rows in memory instead of a database, so that no transaction of a test hides or locks them."""

    def __init__(self) -> None:
        connection: Any = SimpleNamespace(alias="", close=lambda: None, has_table=lambda name: True)
        super().__init__(connection)
        self.sleep = lambda seconds: self.forget()  # no other process to wait for: only drop our copy
        self.rows: Rows = {}
        self.outer: dict[str, _Rows] = {}  # guard name -> the rows of the block around this one

    def _read(self) -> Rows:
        return dict(self.rows)

    def holds(self, using: str) -> bool:
        return True

    def is_locked_by(self, using: str) -> bool:
        return False

    def visible_to(self, using: str) -> Rows:
        return dict(self.rows)

    def set_mode(self, name: str, mode: str) -> None:
        self.rows[name] = replace(self.rows.get(name, State(name)), mode=mode)

    def swap(self, seen: State, **changes: Any) -> State | None:
        if self.rows.get(seen.name, State(seen.name)) != seen:
            return None
        known = {name: value for name, value in changes.items() if hasattr(seen, name)}
        self.rows[seen.name] = after = replace(seen, version=seen.version + 1, **known)
        outer = self.outer.get(seen.name)
        if outer is not None and changes.get("status") == FENCED:  # its filter misses the same rows
            outer.swap(outer.current(seen.name), **changes)
            outer.forget()
        return after


class _TestFilter(ActiveFilter):
    """An active filter in its own memory store."""

    def __init__(self, guard: Guard, table: _Rows) -> None:
        super().__init__(
            guard.name,
            store_alias="test",
            definition="",
            width=guard._meta.keys.width,
            counted=guard._meta.discards,
            table=table,
        )
        self.rows = table
        self.keys = _Keys("cuckoo" if guard._meta.discards else "bloom")
        outer = guard._runtime.active_filter
        if isinstance(outer, _TestFilter):
            table.outer[guard.name], self.keys.outer = outer.rows, outer.keys
        self._store = _TestStore(self.keys)

    @property
    def store(self) -> Store:
        return self._store

    #: Empty, so no absence is remembered: the proof of one would be a state row in the database.
    answered_last = ""

    def arm(self) -> None:
        """Let the keys answer, and get the keys of written rows."""
        self.rows.rows[self.name] = State(self.name, version=1, identity=self.store.identity, active=_GENERATION)
        self.rows.forget()
        self.rows.renew()


@contextmanager
def _replaced_filters(
    names: Iterable[str], prepare: Callable[[Guard, _TestFilter, ExitStack], object]
) -> Iterator[None]:
    """Give each guard a filter in memory that ``prepare`` has prepared, until the end of the block."""
    table = _Rows()
    with ExitStack() as block:
        # What lookups have prepared for each model holds the filters of its guards, which have their own again by then.
        block.callback(lambda: registry.plans.lookups.clear())
        for guard in [registry[name] for name in names] or list(registry):
            try:
                made = _TestFilter(guard, table)
                prepare(guard, made, block)
            except Exception as error:  # such as a table that is not there, or a database that the test must not use
                if names:
                    raise
                block.enter_context(_replaced(guard._runtime, "unarmed", f"{type(error).__name__}: {error}"))
                continue
            block.enter_context(_replaced(guard._runtime, "active_filter", made))
            block.enter_context(_replaced(guard._runtime, "short", short_check(guard._runtime)))
        registry.plans.lookups.clear()
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a guard, or of its runtime, which may come from the class or not be computed yet."""
    is_set, before = name in owner.__dict__, owner.__dict__.get(name)
    owner.__dict__[name] = value
    try:
        yield
    finally:
        if is_set:
            owner.__dict__[name] = before  # at once: a thread of a live server may query the guard meanwhile
        else:
            del owner.__dict__[name]


def _arm(guard: Guard, made: _TestFilter, block: ExitStack) -> None:
    sources = Sources(guard)
    with ExitStack() as savepoints:
        for connection in map(connections.__getitem__, sources.aliases):
            if connection.vendor == "postgresql" and connection.in_atomic_block:  # it aborts all of it after an error
                savepoints.enter_context(transaction.atomic(connection.alias))
        made.keys.add_many(_keys(guard, sources))
    made.arm()


def _switch_off(guard: Guard, made: _TestFilter, block: ExitStack) -> None:
    block.enter_context(_replaced(guard, "mode", "shadow"))
    if made.keys.outer is not None:
        made.keys.might_contain = lambda key: True
        made.arm()  # so that writes add their keys, for the block around this one


def _keys(guard: Guard, sources: Sources) -> Iterator[bytes]:
    yield from sources.marks()
    for source in sources:
        # One SELECT: ``iterator()`` would need a transaction, or in one a savepoint.
        for values in source.rows().order_by().values_list(*guard._meta.attnames):
            if (key := source.key(values)) is not None:  # such as NULL: no request can look it up
                yield key
