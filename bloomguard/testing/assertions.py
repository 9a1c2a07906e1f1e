"""What a test says of a request: a guard answers it, or lets it pass."""

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
from .filters import guards_armed


@dataclass
class _Seen:
    """What one request did: statements, caches that were asked, guards that blocked it."""

    statements: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    blocked: list[Guard] = field(default_factory=list)


def assert_blocked(client: Client, path: str, **request: Any) -> Any:
    """``GET path`` is answered 404 by a guard: no statement, no look at a cache. Returns the response.

    ``request`` goes to ``client.get``. Raises :class:`AssertionError` that says what happened instead, and why.
    """
    with _watching() as seen:
        response = client.get(path, **request)
    if not seen.blocked:
        raise AssertionError(f"no guard blocks {path}; it was answered {response.status_code}{_why(path)}")
    if response.status_code != 404:
        raise AssertionError(
            f"{path} was blocked, and then answered {response.status_code} by something on its way out"
        )
    if seen.statements:
        raise AssertionError(f"{path} was blocked after {len(seen.statements)} statements: {_some(seen.statements)}")
    if seen.caches:
        raise AssertionError(f"{path} was blocked after a cache was asked: {_some(seen.caches)}; {_ORDER}")
    return response


def assert_passes(client: Client, path: str, **request: Any) -> Any:
    """``GET path`` is answered by its view, whatever the answer. Returns the response.

    ``request`` goes to ``client.get``. Raises :class:`AssertionError` if a guard blocks it.
    """
    with _watching() as seen:
        response = client.get(path, **request)
    if seen.blocked:
        raise AssertionError(f"the guard {seen.blocked[0].name!r} blocks {path}{_why(path)}")
    return response


class GuardTestMixin:
    """For ``TestCase`` and its like: guards are armed in every test, after ``setUpTestData`` and before the test.

    Put it before ``TestCase`` among the bases.
    """

    client: Client

    def setUp(self) -> None:
        """Arm every guard for the time of the test."""
        super().setUp()  # type: ignore[misc]
        block = ExitStack()
        block.enter_context(guards_armed())
        self.addCleanup(block.close)  # type: ignore[attr-defined]

    def assert_blocked(self, path: str, **request: Any) -> Any:
        """:func:`assert_blocked` with the test's own client."""
        return assert_blocked(self.client, path, **request)

    def assert_passes(self, path: str, **request: Any) -> Any:
        """:func:`assert_passes` with the test's own client."""
        return assert_passes(self.client, path, **request)


_ORDER = "put BloomGuardMiddleware last in MIDDLEWARE, or right before FetchFromCacheMiddleware"
_READS = ("get", "get_many", "has_key", "get_or_set", "aget", "aget_many", "ahas_key", "aget_or_set")


@contextmanager
def _watching() -> Iterator[_Seen]:
    seen = _Seen()

    def note_statement(execute: Any, sql: str, *rest: Any) -> Any:
        seen.statements.append(sql)
        return execute(sql, *rest)

    def note_blocked(guard: Guard, **named: Any) -> None:
        seen.blocked.append(guard)

    with ExitStack() as block:
        for alias in connections:
            block.enter_context(connections[alias].execute_wrapper(note_statement))
        for alias in caches:
            for name in _READS:
                block.enter_context(_noting(caches[alias], name, seen.caches, alias))
        request_blocked.connect(note_blocked)
        block.callback(request_blocked.disconnect, note_blocked)
        yield seen


def _noting(cache: Any, name: str, noted: list[str], alias: str) -> Any:
    method = getattr(cache, name)

    def reading(*args: Any, **kwargs: Any) -> Any:
        noted.append(f"{alias}.{name}")
        return method(*args, **kwargs)

    return mock.patch.object(cache, name, reading)


def _some(things: list[str]) -> str:
    return "; ".join(thing[:200] for thing in things[:3])


def _why(path: str) -> str:
    """What the guards of a path say of it, as far as that can be told."""
    try:
        found = explain(path.partition("?")[0])
    except (ConfigurationError, DatabaseError, ImportError):
        return ""
    if found.unguarded:
        return f": {found.unguarded}"
    return "".join(f"; the guard {each.guard!r} says {each.verdict}: {each.meaning}" for each in found.guards)
