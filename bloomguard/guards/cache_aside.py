"""Cache-aside in one call: ask the filter, then Django's cache, then load the value once for all waiting callers.

A *flight* is one load of one key; other callers for that key wait for it (single-flight). Within a process, the flights
are kept here. Between processes that share a cache, an entry made by ``cache.add`` marks a key that is being loaded.

- A loaded value is cached for ``timeout`` seconds minus up to a tenth, so that entries made together do not expire
  together. ``None`` is not cached, so a flood of IDs that do not exist does not fill the cache.
- A load that returns ``None`` answers only the callers that were waiting when it began, because the row may have been
  created since. Later callers wait for the next load. In a transaction it answers its own caller alone.
- Values that the filter has under one key, but that the database may tell apart, as with ``normalize``, each have an
  entry and loads of their own: what is loaded for one may be another row than that of the other.
- An exception goes only to the caller that ran the load. The next waiting caller tries again itself.
- No caller waits longer than twice ``patience``. A flight older than ``patience`` is abandoned: the next caller to
  arrive, or to run out of patience, loads instead. A caller that has waited twice ``patience`` loads for itself alone.
- If the cache fails, the error is logged once and the value is loaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.core.exceptions import ObjectDoesNotExist
from django.db import connections

from ..conf import settings
from ..process import LogOnce, after_fork
from ..state.transactions import has_begun
from ..stores.steps import Steps, arun, run
from ..verdicts import Decision, Verdict
from .counters import AVOIDED
from .fields import PLAIN
from .guard import Guard
from .misses import confirm_missing
from .registry import registry

Event = threading.Event | asyncio.Event

#: Seconds between two reads of the cache while another process loads.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.05
_MISSING: Any = object()
_log = LogOnce()


class Waiter:
    """The I/O of a load, done in a thread; see :mod:`bloomguard.stores.steps`.

    Callers of one ``scope`` can wait for each other's ``event``. The scope has the alias of the cache, because two
    caches may get different values for one key.
    """

    event: Callable[[], Event] = threading.Event

    def __init__(self, cache: str, load: Callable[[], Any]) -> None:
        self._cache: Any = caches[cache]
        self.load = load
        self.scope: Any = cache

    def cache(self, operation: str, *args: Any) -> Any:
        """Call a method of the cache."""
        return getattr(self._cache, operation)(*args)

    def sleep(self, seconds: float) -> Any:
        """Sleep for ``seconds``."""
        return time.sleep(seconds)

    def wait(self, event: Any, seconds: float) -> Any:
        """Wait until ``event`` is set, at most ``seconds``."""
        return event.wait(seconds)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function that queries the database."""
        return function()


class AsyncWaiter(Waiter):
    """The I/O of a load, awaited in a task of an event loop."""

    event = asyncio.Event

    def __init__(self, cache: str, load: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(cache, load)
        self.scope = cache, asyncio.get_running_loop()

    def cache(self, operation: str, *args: Any) -> Any:
        return getattr(self._cache, f"a{operation}")(*args)

    def sleep(self, seconds: float) -> Any:
        return asyncio.sleep(seconds)

    async def wait(self, event: Any, seconds: float) -> Any:
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)  # `wait_for` can lose a cancellation before Python 3.12
        finally:
            waiting.cancel()

    def call(self, function: Callable[[], Any]) -> Any:
        return sync_to_async(function)()


def _is_in_transaction() -> bool:
    """Return whether a load in this thread may miss a row that others see: by an older snapshot, or a delete."""
    return any(map(has_begun, connections.all(initialized_only=True)))


@dataclass(eq=False)
class Flight:
    """One load. ``done`` is set when it ends; ``result`` is its value, or ``_MISSING`` if it failed."""

    began: float
    done: Event
    result: Any = _MISSING


class Flights:
    """The loads under way in this process, by scope and cache key."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[Any, str], Flight] = {}
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._under_way = {}  # the parent's threads do not run in this process

    def join(
        self, scope: Any, key: str, now: float, patience: float, event: Callable[[], Event]
    ) -> tuple[Flight, bool]:
        """Return the flight under way or a new one, and ``True`` if it is new: then the caller has to load."""
        with self._lock:
            flight = self._under_way.get((scope, key))
            if flight is not None and now - flight.began < patience:
                return flight, False
            flight = self._under_way[scope, key] = Flight(now, event())
            return flight, True

    def land(self, scope: Any, key: str, flight: Flight) -> None:
        """End the flight and wake all callers that wait for it."""
        with self._lock:
            if self._under_way.get((scope, key)) is flight:
                del self._under_way[scope, key]
        flight.done.set()


flights = Flights()


def _get_or_load(key: str | None, waiter: Waiter, timeout: float | None, patience: float) -> Steps:
    """Return the cached value of ``key``, or load it once for all callers; ``None`` if there is no value.

    Without a key, load without the cache and without waiting.
    """
    if key is None:
        return (yield from _load(None, timeout))
    found = yield from _cached(key)
    if found is not None:
        return found
    arrived = time.monotonic()
    deadline = arrived + 2 * patience
    while (now := time.monotonic()) < deadline:
        flight, mine = flights.join(waiter.scope, key, now, patience, waiter.event)
        if mine:
            try:
                found = yield from _load_for_all(key, timeout, patience)
                if found is not None or not (yield methodcaller("call", _is_in_transaction)):
                    flight.result = found
            finally:
                flights.land(waiter.scope, key, flight)
            return found
        seconds = min(flight.began + patience, deadline) - now
        yield methodcaller("wait", flight.done, seconds)
        if flight.result is None:
            if flight.began >= arrived:
                return None
        elif flight.result is not _MISSING:
            # Read a copy from the cache if it has one: threads that share an object would see each other's changes.
            found = yield from _cached(key)
            return flight.result if found is None else found
    return (yield from _load(key, timeout))


def _load_for_all(key: str, timeout: float | None, patience: float) -> Steps:
    """Load, unless another process is loading: then wait up to ``patience`` for the value that it caches."""
    token, claim = secrets.token_hex(8), f"{key}:loading"
    deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
    try:  # a task that is cancelled while it claims may have made the claim
        while not (yield from _try("add", claim, token, patience, otherwise=True)):
            if time.monotonic() >= deadline:
                return (yield from _load(key, timeout))
            yield methodcaller("sleep", pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            found = yield from _cached(key)
            if found is not None:
                return found
        found = yield from _cached(key)  # another process may have cached it before our claim
        return found if found is not None else (yield from _load(key, timeout))
    finally:
        if (yield from _try("get", claim, otherwise=None)) == token:
            yield from _try("delete", claim, otherwise=None)


def _load(key: str | None, timeout: float | None) -> Steps:
    try:
        value = yield methodcaller("load")
    except ObjectDoesNotExist:
        value = None
    if value is not None and key is not None:
        jittered = timeout
        if timeout is not None and timeout > 0:
            jittered = timeout - random.randint(0, int(timeout) // 10)  # noqa: S311  # no secret
        yield from _try("set", key, value, jittered, otherwise=None)
    return value


def _cached(key: str) -> Steps:
    return _try("get", key, otherwise=None)


def _try(operation: str, *args: Any, otherwise: Any) -> Steps:
    """Call a method of the cache; return ``otherwise`` if it fails."""
    try:
        return (yield methodcaller("cache", operation, *args))
    except Exception as error:
        _log.error(error, "bloomguard loads values without the cache because the cache failed")
        return otherwise


def cache_key(name: str, value: Any) -> str | None:
    """Return the key under which :func:`get_or_load` caches ``value`` of the guard ``name``; ``None`` if it has none.

    Use it to delete the entry when the row changes: ``cache.delete(cache_key("city", 7))``. With an overridden
    ``normalize`` or a custom field, each spelling of a value has an entry. The key contains a keyed hash, not the
    value itself. Raises :class:`ConfigurationError` if there is no such guard.
    """
    return _key(registry[name], value)


def get_or_load(
    name: str,
    value: Any,
    load: Callable[[Any], Any],
    timeout: float | None = 300,
    *,
    cache: str = "default",
    patience: float = 5.0,
) -> Any:
    """Return the cached data for ``value``, or call ``load(value)`` once for all callers that wait for it.

    Returns ``None`` if the guard ``name`` answers ``ABSENT``, or if ``load`` returns ``None`` or raises
    ``DoesNotExist``; none of these is cached. ``timeout`` is the timeout of Django's cache, in seconds; ``patience`` is
    how many seconds to wait for another caller's load before loading instead. A value has one entry in a cache, also if
    two callers pass different ``load`` functions.

    Raises :class:`ConfigurationError` if there is no such guard. Any other exception than ``DoesNotExist`` of ``load``
    is raised in the caller that called it, and in no other.
    """
    guard = registry[name]
    decision = guard._runtime.decide(value)
    if decision.verdict is Verdict.ABSENT:
        guard._runtime.counters[AVOIDED]()
        return None
    waiter = Waiter(cache, lambda: load(value))
    return run(_steps(guard, value, decision, waiter, timeout, patience), waiter)


async def aget_or_load(
    name: str,
    value: Any,
    load: Callable[[Any], Awaitable[Any]],
    timeout: float | None = 300,
    *,
    cache: str = "default",
    patience: float = 5.0,
) -> Any:
    """Async :func:`get_or_load` with an async ``load``; never blocks the event loop. Raises the same exceptions."""
    guard = registry[name]
    (scoped,) = await guard._runtime.ascoped([value])
    decision = await guard._runtime.adecide(scoped)
    if decision.verdict is Verdict.ABSENT:
        guard._runtime.counters[AVOIDED]()
        return None
    waiter = AsyncWaiter(cache, lambda: load(value))
    return await arun(_steps(guard, scoped, decision, waiter, timeout, patience), waiter)


def _key(guard: Guard, value: Any) -> str | None:
    """Return the cache key of ``value``; ``None`` if only its class knows which row it means."""
    try:
        key, own = guard._meta.keys.key(value), b""
        if not guard._meta.is_exact(value):
            values = list(guard._meta.conditions(value).values())
            if not all(type(each) in PLAIN for each in values):
                return None
            own = b"\0" + repr(values).encode()
    except Exception:
        return None
    digest = hashlib.blake2b(
        guard._meta.definition.encode(), key=settings.secrets[0], person=b"bloomguard.cache", digest_size=16
    )
    digest.update(b"\0" + key + own)
    return f"bloomguard:{guard.name}:{digest.hexdigest()}"


def _steps(
    guard: Guard, value: Any, decision: Decision, waiter: Waiter, timeout: float | None, patience: float
) -> Steps:
    found = yield from _get_or_load(_key(guard, value), waiter, timeout, patience)
    if found is None and decision.verdict is Verdict.MAYBE:
        # The loader may have looked anywhere, so its None proves nothing: query the database.
        yield methodcaller("call", partial(confirm_missing, guard, value))
    return found
