"""Helpers for the tests of projects: filters that follow the test's database, and assertions.

In a test run guards are cold: everything passes, as on a site before its first ``rebuild_filter``. To test guards, use
:func:`guards_armed`: inside its block each guard has a filter in memory, built from the rows that exist. Writes update
it through the same hooks as in production.

* ``django.test``: put :class:`GuardTestMixin` before ``TestCase``.
* pytest: request the fixture ``armed_guards``, which enables the database too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from django.core.cache import caches
from django.db import DatabaseError, connections
from django.test import Client

from ..exceptions import ConfigurationError
from ..guards import Guard
from ..routes.explain import explain
from ..signals import request_blocked
from .filters import guards_armed, guards_off

__all__ = ["GuardTestMixin", "assert_blocked", "assert_passes", "guards_armed", "guards_off"]

_ORDER = "put BloomGuardMiddleware last in MIDDLEWARE, or right before FetchFromCacheMiddleware"
_READS = ("get", "get_many", "has_key", "get_or_set", "aget", "aget_many", "ahas_key", "aget_or_set")


@dataclass
class _Activity:
    """The statements, cache reads and blocking guards of one request."""

    statements: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    blocked: list[Guard] = field(default_factory=list)


def assert_blocked(client: Client, path: str, **request: Any) -> Any:
    """Assert that a guard answers ``GET path`` with 404, without a statement or a cache read; return the response.

    ``request`` is passed to ``client.get``. Raises :class:`AssertionError` otherwise, which says what happened instead,
    and why.
    """
    with _recording() as did:
        response = client.get(path, **request)
    if not did.blocked:
        raise AssertionError(f"no guard blocked {path}; the response was {response.status_code}{_why(path)}")
    if response.status_code != 404:
        raise AssertionError(f"{path} was blocked, but a middleware changed the response to {response.status_code}")
    if did.statements:
        raise AssertionError(f"{path} was blocked after {len(did.statements)} statements: {_first(did.statements)}")
    if did.caches:
        raise AssertionError(f"{path} was blocked after a cache was read: {_first(did.caches)}; {_ORDER}")
    return response


def assert_passes(client: Client, path: str, **request: Any) -> Any:
    """Assert that no guard blocks ``GET path``; return the response, whatever its status.

    ``request`` is passed to ``client.get``. Raises :class:`AssertionError` if a guard blocks it.
    """
    with _recording() as did:
        response = client.get(path, **request)
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


@contextmanager
def _recording() -> Iterator[_Activity]:
    did = _Activity()

    def record_statement(execute: Any, sql: str, *rest: Any) -> Any:
        did.statements.append(sql)
        return execute(sql, *rest)

    def record_blocked(guard: Guard, **named: Any) -> None:
        did.blocked.append(guard)

    with ExitStack() as block:
        for alias in connections:
            block.enter_context(connections[alias].execute_wrapper(record_statement))
        for alias in caches:
            for name in _READS:
                block.enter_context(_recorded_read(caches[alias], name, did.caches, alias))
        request_blocked.connect(record_blocked)
        block.callback(request_blocked.disconnect, record_blocked)
        yield did


def _recorded_read(cache: Any, name: str, reads: list[str], alias: str) -> Any:
    method = getattr(cache, name)

    def reading(*args: Any, **kwargs: Any) -> Any:
        reads.append(f"{alias}.{name}")
        return method(*args, **kwargs)

    return mock.patch.object(cache, name, reading)


def _first(things: list[str]) -> str:
    return "; ".join(thing[:200] for thing in things[:3])


def _why(path: str) -> str:
    """Return the guards' verdicts on a path; empty if they cannot be determined."""
    try:
        found = explain(path.partition("?")[0])
    except (ConfigurationError, DatabaseError, ImportError):
        return ""
    if found.unguarded:
        return f": {found.unguarded}"
    return "".join(f"; the guard {each.guard!r} answers {each.verdict}: {each.meaning}" for each in found.guards)
