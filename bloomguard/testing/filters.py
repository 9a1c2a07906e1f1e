"""Guards with their filters and state rows in the memory of a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from django.db import transaction

from ..filters.layout import Layout
from ..guards import Guard, registry, spot_checks
from ..guards.keys import OutOfRange, Unkeyable
from ..state.active_filter import ActiveFilter
from ..state.table import Rows, State, StateTable
from ..stores import Store
from ..stores.memory import MemoryStore

_GENERATION = "test"
#: Rows that a test may add; more rows cause false positives, but no false ABSENT.
_CAPACITY = 50_000
#: So small that a test that expects ABSENT does not fail because of a false positive.
_ERROR_RATE = 1e-7


class _Rows(StateTable):
    """State rows in memory instead of a database, so that no transaction of a test hides or locks them."""

    def __init__(self) -> None:
        super().__init__(connection=SimpleNamespace(alias="", close=lambda: None))  # type: ignore[arg-type]
        self.sleep = lambda seconds: self.forget()  # no other process to wait for: only drop our copy
        self.rows: Rows = {}

    def _read(self) -> Rows:
        return dict(self.rows)

    def holds(self, using: str) -> bool:
        return True

    def swap(self, seen: State, **changes: Any) -> State | None:
        if self.rows.get(seen.name, State(seen.name)) != seen:
            return None
        known = {name: value for name, value in changes.items() if hasattr(seen, name)}
        self.rows[seen.name] = after = replace(seen, version=seen.version + 1, **known)
        return after


class _TestFilter(ActiveFilter):
    """An active filter in its own memory store."""

    def __init__(self, guard: Guard, table: StateTable) -> None:
        super().__init__(
            guard.name,
            store_alias="test",
            definition=guard._meta.definition,
            width=guard._meta.keys.width,
            counted=guard._meta.discards,
            table=table,
        )
        self._store = MemoryStore("test")

    @property
    def store(self) -> Store:
        return self._store


@contextmanager
def guards_armed(*names: str) -> Iterator[None]:
    """Arm every guard, or those in ``names``, inside the block, with a filter of the rows that exist at its start.

    Reads all rows of the guards' tables once. Rows that the ORM writes in the block are added; raw SQL fences the
    guard, as in production. Raises :class:`ConfigurationError` if there is no such guard.
    """
    table = _Rows()
    with ExitStack() as block:
        block.enter_context(mock.patch.object(spot_checks, "drawn", spot_checks.never))
        for guard in _guards(names):
            made = _TestFilter(guard, table)
            _fill(guard, made, table)
            block.enter_context(_replaced(guard._runtime, "active_filter", made))
        yield


@contextmanager
def guards_off(*names: str) -> Iterator[None]:
    """Switch every guard, or those in ``names``, off inside the block: everything passes, as without bloomguard.

    Raises :class:`ConfigurationError` if there is no such guard.
    """
    table = _Rows()
    with ExitStack() as block:
        for guard in _guards(names):
            block.enter_context(_replaced(guard._runtime, "active_filter", _TestFilter(guard, table)))
            block.enter_context(_replaced(guard, "mode", "shadow"))
        yield


def _guards(names: Iterable[str]) -> list[Guard]:
    return [registry[name] for name in names] or list(registry)


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


def _fill(guard: Guard, made: _TestFilter, table: _Rows) -> None:
    keys = list(_keys(guard))
    key_id, key_hash = made.key_hashes()[0]
    layout = Layout.plan(
        key_hash=key_hash,
        capacity=max(_CAPACITY, 2 * len(keys)),
        error_rate=_ERROR_RATE,
        tag=0,
        key_id=key_id,
        kind="cuckoo" if guard._meta.discards else "bloom",
        shard_bytes=made.store.shard_bytes,
    )
    made.store.create(guard.name, _GENERATION, layout).add(keys)
    table.rows[guard.name] = State(guard.name, version=1, identity=made.store.identity, active=_GENERATION)
    table.forget()


def _keys(guard: Guard) -> Iterator[bytes]:
    using = guard._meta.database
    with transaction.atomic(using=using):  # keeps the cursor open during the loop
        rows = guard._meta.rows().using(using).order_by().values_list(*guard._meta.attnames)
        for values in rows.iterator(chunk_size=2_000):
            try:
                yield guard._meta.keys.key(values[0] if len(values) == 1 else values)
            except (Unkeyable, OutOfRange):
                continue  # such as NULL: no request can look it up
