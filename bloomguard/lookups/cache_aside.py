"""Cache-aside in one call: ask the filter, then Django's cache, then load the value once for all waiting callers.

A caller that finds no value claims the key, by an entry that only one caller can ``add``, and loads. All others wait:
threads, tasks of an event loop, and other processes that share the cache. They ask the cache again until it has the
value, or until they can claim the key themselves.

- A loaded value is cached for ``timeout`` seconds minus up to a tenth, so that entries made together do not expire
  together. ``None`` is not cached, so a flood of IDs that do not exist does not fill the cache.
- After a load that returned ``None`` or raised, the next waiting caller loads: the row may have been created since, and
  an exception goes only to the caller that ran the load.
- Values that the filter has under one key, but that the database may tell apart, as with ``normalize``, each have an
  entry and loads of their own: what is loaded for one may be another row than that of the other.
- A claim ends after ``patience``, so one that hangs or has died is waited for no longer. A caller that has waited twice
  ``patience`` loads without a claim.
- If the cache fails, the error is logged once and the value is loaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.core.exceptions import ObjectDoesNotExist

from ..conf import settings
from ..guards import Guard, registry
from ..guards.counters import AVOIDED
from ..guards.fields import PLAIN
from ..process import LogOnce, seconds
from ..verdicts import Verdict
from .misses import confirm_missing

#: Seconds between two looks into the cache while another caller loads: each is twice as long as the one before.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
_WITHOUT = "bloomguard loads values without the cache because the cache failed"
_log = LogOnce()
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
    is raised in the caller that called it, and in no other.
    """
    guard = registry[name]
    decision = guard._runtime.decide(value)
    if decision.verdict is Verdict.ABSENT:
        guard._runtime.counters[AVOIDED]()
        return None
    found: T | None = _get(_Call(caches[cache], _key(guard, value), lambda: load(value), timeout, patience))
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
    found: T | None = await _aget(_Call(caches[cache], _key(guard, scoped), lambda: load(value), timeout, patience))
    if found is None and decision.verdict is Verdict.MAYBE:
        await sync_to_async(confirm_missing)(guard, scoped)
    return found


def _key(guard: Guard, value: Any) -> str | None:
    """Return the cache key of ``value``; ``None`` if only its class knows which row it means."""
    try:
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


@dataclass
class _Call:
    """One call: its cache and key, how to load, and how long to keep the value and to wait for others."""

    cache: Any
    key: str | None
    load: Callable[[], Any]
    timeout: float | None
    patience: float

    def __post_init__(self) -> None:
        #: The entry of the caller that loads, and what it contains if that is this one.
        self.claim, self.token = f"{self.key}:loading", secrets.token_hex(8)
        self._deadline, self._pause = seconds() + 2 * self.patience, _FIRST_PAUSE

    def is_out_of_patience(self) -> bool:
        """Return whether the caller has waited for twice ``patience``."""
        return seconds() >= self._deadline

    def next_pause(self) -> float:
        """Return the seconds until the cache is asked again."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause

    def jittered(self) -> float | None:
        """Return the timeout minus up to a tenth."""
        if self.timeout is None or self.timeout <= 0:
            return self.timeout
        return self.timeout - random.randint(0, int(self.timeout) // 10)  # noqa: S311  # no secret


# -- for threads; below, the same for tasks of an event loop


def _get(call: _Call) -> Any:
    """Return the cached value, or load it once for all callers; ``None`` if there is no value.

    Without a key, load without the cache and without waiting.
    """
    if call.key is None:
        return _load(call)
    found = _try(call.cache, "get", call.key)
    if found is not None:
        return found
    try:  # a caller that is interrupted while it claims may have made the claim
        while not _try(call.cache, "add", call.claim, call.token, call.patience, otherwise=True):
            if call.is_out_of_patience():
                return _load(call)
            time.sleep(call.next_pause())
            if (found := _try(call.cache, "get", call.key)) is not None:
                return found
        found = _try(call.cache, "get", call.key)  # another caller may have cached it before our claim
        return _load(call) if found is None else found
    finally:
        if _try(call.cache, "get", call.claim) == call.token:
            _try(call.cache, "delete", call.claim)


def _load(call: _Call) -> Any:
    try:
        value = call.load()
    except ObjectDoesNotExist:
        return None
    if value is not None and call.key is not None:
        _try(call.cache, "set", call.key, value, call.jittered())
    return value


def _try(cache: Any, operation: str, *args: Any, otherwise: Any = None) -> Any:
    """Call a method of the cache; return ``otherwise`` if it fails."""
    try:
        return getattr(cache, operation)(*args)
    except Exception as error:
        _log.error(error, _WITHOUT)
        return otherwise


# -- for tasks


async def _aget(call: _Call) -> Any:
    if call.key is None:
        return await _aload(call)
    found = await _atry(call.cache, "aget", call.key)
    if found is not None:
        return found
    try:
        while not await _atry(call.cache, "aadd", call.claim, call.token, call.patience, otherwise=True):
            if call.is_out_of_patience():
                return await _aload(call)
            await asyncio.sleep(call.next_pause())
            if (found := await _atry(call.cache, "aget", call.key)) is not None:
                return found
        found = await _atry(call.cache, "aget", call.key)
        return await _aload(call) if found is None else found
    finally:
        if await _atry(call.cache, "aget", call.claim) == call.token:
            await _atry(call.cache, "adelete", call.claim)


async def _aload(call: _Call) -> Any:
    try:
        value = await call.load()
    except ObjectDoesNotExist:
        return None
    if value is not None and call.key is not None:
        await _atry(call.cache, "aset", call.key, value, call.jittered())
    return value


async def _atry(cache: Any, operation: str, *args: Any, otherwise: Any = None) -> Any:
    try:
        return await getattr(cache, operation)(*args)
    except Exception as error:
        _log.error(error, _WITHOUT)
        return otherwise
