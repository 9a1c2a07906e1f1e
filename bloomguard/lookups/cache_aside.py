"""Cache-aside in one call: ask the filter, then Django's cache, then load the value once for all waiting callers.

A *flight* is one load of one key; other callers for that key wait for it (single-flight). Within a process, the flights
are kept here. Between processes that share a cache, an entry made by ``cache.add`` marks a key that is being loaded.

- A loaded value is cached for ``timeout`` seconds minus up to a tenth, so that entries made together do not expire
  together. ``None`` is not cached, so a flood of IDs that do not exist does not fill the cache.
- A load that returns ``None`` answers only the callers that were waiting when it began, because the row may have been
  created since. Later callers wait for the next load. In a transaction it answers its own caller alone. A caller in a
  transaction loads for itself, because that may see a row that the others do not.
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
import os
import random
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.core.exceptions import ObjectDoesNotExist
from django.db import connections, router

from ..conf import settings
from ..guards import Guard, registry
from ..guards.counters import AVOIDED
from ..guards.fields import PLAIN
from ..guards.places import in_a_thread, needs_orm_thread
from ..process import is_within, log_once, own_lock, seconds
from ..state.transactions import has_begun
from ..state.verdicts import Verdict
from .misses import confirm_missing

#: Seconds between two reads of the cache while another process loads.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.05
_MISSING: Any = object()
T = TypeVar("T")


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
    load: Callable[[Any], T],
    timeout: float | None = 300,
    *,
    cache: str = "default",
    patience: float = 5.0,
) -> T | None:
    """Return the cached data for ``value``, or call ``load(value)`` once for all callers that wait for it.

    Returns ``None`` if the guard ``name`` answers ``ABSENT``, or if ``load`` returns ``None`` or raises
    ``DoesNotExist``; none of these is cached. ``timeout`` is the timeout of Django's cache, in seconds; ``patience`` is
    how many seconds to wait for another caller's load before loading instead. A value has one entry in a cache, also if
    two callers pass different ``load`` functions.

    Raises :class:`ConfigurationError` if there is no such guard. Any other exception than ``DoesNotExist`` of ``load``
    is raised in the caller that called it, and in no other; a ``StopIteration`` arrives as a ``RuntimeError``.
    """
    guard = registry[name]
    decision = guard._runtime.decide(value)
    if decision.verdict is Verdict.ABSENT:
        guard._runtime.counters[AVOIDED]()
        return None
    call = _Call(caches[cache], cache, _key(guard, value), lambda: load(value), timeout, patience, is_async=False)
    try:
        _fetch(call).send(None)  # runs to its end, as nothing suspends it
    except StopIteration as returned:
        found: T | None = returned.value
    if found is None and decision.verdict is Verdict.MAYBE:
        # The loader may have looked anywhere, so its None proves nothing: query the database.
        confirm_missing(guard, value)
    return found


async def aget_or_load(
    name: str,
    value: Any,
    load: Callable[[Any], Awaitable[T]],
    timeout: float | None = 300,
    *,
    cache: str = "default",
    patience: float = 5.0,
) -> T | None:
    """Async :func:`get_or_load` with an async ``load``; never blocks the event loop. Raises the same exceptions."""
    guard = registry[name]
    (scoped,) = await guard._runtime.ascoped([value])
    decision = await guard._runtime.adecide(scoped)
    if decision.verdict is Verdict.ABSENT:
        guard._runtime.counters[AVOIDED]()
        return None
    scope = cache, asyncio.get_running_loop()
    key = await in_a_thread(_key)(guard, scoped) if needs_orm_thread() else _key(guard, scoped)
    call = _Call(caches[cache], scope, key, lambda: load(value), timeout, patience, is_async=True)
    found: T | None = await _fetch(call)
    if found is None and decision.verdict is Verdict.MAYBE:
        await sync_to_async(confirm_missing)(guard, scoped)
    return found


def _key(guard: Guard, value: Any) -> str | None:
    """Return the cache key of ``value``; ``None`` if only its class, or the routers, know which row it means."""
    try:
        if guard.scope is None and router.routers and not guard._meta.place.reads(router.db_for_read(guard.model)):
            return None  # another database than the guard's, with rows of its own
        key, own, definition = guard._meta.keys.key(value), b"", guard._runtime.active_filter.definition.encode()
        if not guard._meta.is_exact(value):
            values = list(guard._meta.conditions(value).values())
            if not all(type(each) in PLAIN for each in values):
                return None
            own = b"\0" + repr(values).encode()
    except Exception:
        return None
    digest = hashlib.blake2b(definition, key=settings.secrets[0], person=b"bloomguard.cache", digest_size=16)
    digest.update(b"\0" + key + own)
    return f"bloomguard:{guard.name}:{digest.hexdigest()}"


# -- one load for all callers


class _Flight(NamedTuple):
    """One load. ``done`` is a future of threads or of an event loop; without a value its result is ``_MISSING``."""

    began: float
    done: Any


#: (process, scope, cache key) -> the load under way. A forked child does not run the threads of its parent.
_flights: dict[tuple[int, Any, str | None], _Flight] = {}
_lock = own_lock(sys.modules[__name__], "_lock")


@dataclass
class _Call:
    """One call: its cache and key, how to load, and how long to keep the value and to wait for others.

    Callers of one ``scope`` can wait for each other: threads, or the tasks of one event loop. The scope has the alias
    of the cache too, because two caches may get different values for one key.

    The algorithm below is written once. Only these methods differ: for a thread they block, and never suspend.
    """

    cache: Any
    scope: Any
    key: str | None
    load: Callable[[], Any]
    timeout: float | None
    patience: float
    is_async: bool

    async def ask(self, operation: str, *args: Any, otherwise: Any = None) -> Any:
        """Call a method of the cache; return ``otherwise`` if it fails."""
        try:
            if self.is_async:
                return await getattr(self.cache, f"a{operation}")(*args)
            return getattr(self.cache, operation)(*args)
        except Exception as error:
            log_once.error(error, "bloomguard loads values without the cache because the cache failed")
            return otherwise

    def join(self, now: float) -> tuple[_Flight, bool]:
        """Return the flight under way or a new one, and ``True`` if it is new: then the caller has to load."""
        place = os.getpid(), self.scope, self.key
        with _lock:
            flight = _flights.get(place)
            if flight is not None and now - flight.began < self.patience:
                return flight, False
            done: Any = asyncio.get_running_loop().create_future() if self.is_async else futures.Future()
            flight = _flights[place] = _Flight(now, done)
            return flight, True

    def land(self, flight: _Flight, result: Any) -> None:
        """End the flight and wake all callers that wait for it."""
        place = os.getpid(), self.scope, self.key
        with _lock:
            if _flights.get(place) is flight:
                del _flights[place]
        flight.done.set_result(result)

    async def load_and_cache(self) -> Any:
        try:
            value = await self.load() if self.is_async else self.load()
        except ObjectDoesNotExist:
            return None
        if value is not None and self.key is not None:
            timeout = self.timeout
            if timeout is not None and timeout > 0:
                timeout -= random.randint(0, int(timeout) // 10)  # noqa: S311  # no secret
            await self.ask("set", self.key, value, timeout)
        return value

    async def wait(self, done: Any, timeout: float) -> None:
        if self.is_async:
            await asyncio.wait([done], timeout=timeout)
        else:
            futures.wait([done], timeout)

    async def sleep(self, pause: float) -> None:
        if self.is_async:
            await asyncio.sleep(pause)
        else:
            time.sleep(pause)

    async def is_in_transaction(self) -> bool:
        """Return whether a load may see other rows than those of other callers: an older snapshot, own writes."""

        def has_any() -> bool:
            return any(map(has_begun, connections.all(initialized_only=True)))

        return await sync_to_async(has_any)() if self.is_async else has_any()


async def _fetch(call: _Call) -> Any:
    """Return the cached value, or load it once for all callers; ``None`` if there is no value.

    Without a key, load without the cache and without waiting.
    """
    if call.key is None:
        return await call.load_and_cache()
    if (found := await call.ask("get", call.key)) is not None:
        return found
    arrived = seconds()
    deadline = arrived + 2 * call.patience
    while is_within(2 * call.patience, arrived, now := seconds()):
        flight, is_mine = call.join(now)
        if is_mine:
            shared = _MISSING
            try:
                found = await _load_for_all(call)
                if found is not None or not await call.is_in_transaction():
                    shared = found
            finally:
                call.land(flight, shared)
            return found
        await call.wait(flight.done, min(flight.began + call.patience, deadline) - now)
        result = flight.done.result() if flight.done.done() else _MISSING
        if result is None and flight.began >= arrived and not await call.is_in_transaction():
            return None
        if result is not None and result is not _MISSING:
            # Read a copy from the cache if it has one: threads that share an object would see each other's changes.
            found = await call.ask("get", call.key)
            return result if found is None else found
    return await call.load_and_cache()


async def _load_for_all(call: _Call) -> Any:
    """Load, unless another process is loading: then wait up to ``patience`` for the value that it caches."""
    token, claim = secrets.token_hex(8), f"{call.key}:loading"
    began, pause = seconds(), _FIRST_PAUSE
    try:  # a task that is cancelled while it claims may have made the claim
        while not await call.ask("add", claim, token, call.patience, otherwise=True):
            if not is_within(call.patience, began, seconds()):
                return await call.load_and_cache()
            await call.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if (found := await call.ask("get", call.key)) is not None:
                return found
        found = await call.ask("get", call.key)  # another process may have cached it before our claim
        return await call.load_and_cache() if found is None else found
    finally:
        if await call.ask("get", claim) == token:
            await call.ask("delete", claim)
