"""Cache-aside in one call: the filter, then Django's cache, then one load for all who wait.

A *flight* is one load of one key; whoever comes meanwhile waits for it. Within a process flights are kept here;
between processes that share a cache, an entry made by ``cache.add`` says that somebody is loading.

- What is loaded is cached for ``timeout`` seconds, less up to a tenth, so that entries made together do not end
  together. ``None`` is nothing: it is not cached, so a flood of IDs that do not exist fills no cache.
- Nothing is the answer of a load for those alone who were there when it began: the row may have been made since. Who
  came later waits for the next load.
- An exception is nobody's result: it goes to the caller whose load it was, and the next one who waits tries itself.
- Nobody waits longer than twice ``patience``. A flight older than ``patience`` is given up: the next to come, or to
  lose patience, loads in its place. Who has waited twice as long loads for itself alone.
- A cache that fails is no cache: it is said once, and the value is loaded.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.exceptions import ObjectDoesNotExist

from ..conf import settings
from ..counting.counts import SPARED
from ..forks import after_fork
from ..log_once import LogOnce
from ..steps import Steps, arun, run
from ..verdicts import Decision, Verdict
from .steps import AsyncWaiter, Event, Waiter

if TYPE_CHECKING:
    from ..counting.counts import Tallies
    from ..keys import KeyMaker

#: Between two looks at the cache while another process loads, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.05
_MISSING: Any = object()
_log = LogOnce()


class Flight:
    """One load: ``done`` is set when it is over, and ``result`` is what came of it, if anything did."""

    __slots__ = ("began", "done", "result")

    def __init__(self, began: float, done: Event) -> None:
        self.began = began
        self.done = done
        self.result: Any = _MISSING


class Flights:
    """The loads that are under way in this process, by who can wait for them and cache key."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[Any, str], Flight] = {}
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._under_way = {}  # the parent's threads land nothing here

    def join(
        self, scope: Any, key: str, now: float, patience: float, event: Callable[[], Event]
    ) -> tuple[Flight, bool]:
        """The flight under way, or a new one; and whether it is new, so that the caller has to load."""
        with self._lock:
            flight = self._under_way.get((scope, key))
            if flight is not None and now - flight.began < patience:
                return flight, False
            flight = self._under_way[scope, key] = Flight(now, event())
            return flight, True

    def land(self, scope: Any, key: str, flight: Flight) -> None:
        """The load is over: let go all who wait for it."""
        with self._lock:
            if self._under_way.get((scope, key)) is flight:
                del self._under_way[scope, key]
        flight.done.set()


flights = Flights()


def get_or_load(key: str | None, waiter: Waiter, timeout: float | None, patience: float) -> Steps:
    """The cached value of ``key``, or what one load for all gives; ``None`` where there is nothing.

    Without a key nothing is cached, and nobody waits.
    """
    if key is None:
        return (yield from _load(None, timeout))
    found = yield from _cached(key)
    if found is not None:
        return found
    came = time.monotonic()
    deadline = came + 2 * patience
    while (now := time.monotonic()) < deadline:
        flight, mine = flights.join(waiter.scope, key, now, patience, waiter.event)
        if mine:
            try:
                flight.result = yield from _load_for_all(key, timeout, patience)
            finally:
                flights.land(waiter.scope, key, flight)
            return flight.result
        seconds = min(flight.began + patience, deadline) - now
        yield methodcaller("wait", flight.done, seconds)
        if flight.result is None:
            if flight.began >= came:
                return None
        elif flight.result is not _MISSING:
            # An object of one's own, where the cache has it: threads that share one would see each other's changes.
            found = yield from _cached(key)
            return flight.result if found is None else found
    return (yield from _load(key, timeout))


def _load_for_all(key: str, timeout: float | None, patience: float) -> Steps:
    """Load, unless another process is at it: then wait for what it caches, as long as patience lasts."""
    token, claim = secrets.token_hex(8), f"{key}:loading"
    deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
    while not (yield from _try("add", claim, token, patience, otherwise=True)):
        if time.monotonic() >= deadline:
            return (yield from _load(key, timeout))
        yield methodcaller("sleep", pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        found = yield from _cached(key)
        if found is not None:
            return found
    try:
        found = yield from _cached(key)  # somebody may have loaded it between our look and our claim
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
        jittered = timeout and timeout - random.randint(0, int(timeout) // 10)  # noqa: S311  # no secret
        yield from _try("set", key, value, jittered, otherwise=None)
    return value


def _cached(key: str) -> Steps:
    return _try("get", key, otherwise=None)


def _try(operation: str, *args: Any, otherwise: Any) -> Steps:
    """One operation of the cache; ``otherwise`` where that fails."""
    try:
        return (yield methodcaller("cache", operation, *args))
    except Exception as error:
        _log.error(error, "bloomguard loads without a cache, which fails")
        return otherwise


@lru_cache(maxsize=1)
def _secret(secret_key: str) -> bytes:
    """Made once as long as the setting is the same."""
    return settings.secrets[0]


class CacheAside:
    """The part of :class:`~bloomguard.guards.Guard` that caches what views load."""

    if TYPE_CHECKING:
        name: str
        tallies: Tallies

        @property
        def keys(self) -> KeyMaker: ...
        @property
        def definition(self) -> str: ...
        def decide(self, value: Any) -> Decision: ...
        async def adecide(self, value: Any) -> Decision: ...
        def confirm_missing(self, value: Any) -> None: ...

    def cache_key(self, value: Any) -> str | None:
        """The key under which what belongs to ``value`` is cached; ``None`` for what cannot be looked up.

        For ``cache.delete(guard.cache_key(7))`` when the row changes. It holds a keyed hash, not the value itself.
        """
        try:
            key = self.keys.key(value)
        except Exception:
            return None
        secret = _secret(django_settings.SECRET_KEY)
        digest = hashlib.blake2b(self.definition.encode(), key=secret, person=b"bloomguard.cache", digest_size=16)
        digest.update(b"\0" + key)
        return f"bloomguard:{self.name}:{digest.hexdigest()}"

    def get_or_load(
        self,
        value: Any,
        load: Callable[[Any], Any],
        timeout: float | None = 300,
        *,
        cache: str = "default",
        patience: float = 5.0,
    ) -> Any:
        """What belongs to ``value``: from the cache, or from ``load(value)``, called once for all who wait for it.

        ``None`` where the guard knows that there is no such row, and where ``load`` returns ``None`` or raises
        ``DoesNotExist``; neither is cached. Any other exception of ``load`` is its caller's alone. ``timeout`` is that
        of Django's cache, in seconds; ``patience`` is how long to wait for another's load before loading in its place.
        A value has one entry in a cache, whatever ``load`` makes of it.
        """
        decision = self.decide(value)
        if decision.verdict is Verdict.ABSENT:
            self.tallies[SPARED]()
            return None
        waiter = Waiter(cache, lambda: load(value))
        return run(self._steps(value, decision, waiter, timeout, patience), waiter)

    async def aget_or_load(
        self,
        value: Any,
        load: Callable[[Any], Awaitable[Any]],
        timeout: float | None = 300,
        *,
        cache: str = "default",
        patience: float = 5.0,
    ) -> Any:
        """:meth:`get_or_load` with an async ``load``, without a blocking call on the event loop."""
        decision = await self.adecide(value)
        if decision.verdict is Verdict.ABSENT:
            self.tallies[SPARED]()
            return None
        waiter = AsyncWaiter(cache, lambda: load(value))
        return await arun(self._steps(value, decision, waiter, timeout, patience), waiter)

    def _steps(self, value: Any, decision: Decision, waiter: Waiter, timeout: float | None, patience: float) -> Steps:
        found = yield from get_or_load(self.cache_key(value), waiter, timeout, patience)
        if found is None and decision.verdict is Verdict.MAYBE:
            # What the loader looked at is its own business, so it is no proof: the database has to say it.
            yield methodcaller("call", partial(self.confirm_missing, value))
        return found
