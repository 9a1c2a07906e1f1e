"""What the steps of a load wait for, and how a thread and a task wait: see :mod:`bloomguard.steps`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.core.cache import caches

Event = threading.Event | asyncio.Event


class Waiter:
    """How a thread does things; those of one ``scope`` can wait for each other's ``event``.

    ``cache`` is the alias of a cache: what is loaded for another one may be something else.
    """

    event: Callable[[], Event] = threading.Event

    def __init__(self, cache: str, load: Callable[[], Any]) -> None:
        self._cache: Any = caches[cache]
        self.load = load
        self.scope: Any = cache

    def cache(self, operation: str, *args: Any) -> Any:
        """One operation of the cache."""
        return getattr(self._cache, operation)(*args)

    def sleep(self, seconds: float) -> Any:
        """Let ``seconds`` pass."""
        return time.sleep(seconds)

    def wait(self, event: Any, seconds: float) -> Any:
        """Until ``event`` is set, for ``seconds`` at most."""
        return event.wait(seconds)

    def call(self, function: Callable[[], Any]) -> Any:
        """Something that asks the database."""
        return function()


class AsyncWaiter(Waiter):
    """How a task of an event loop does the same: every step is awaited."""

    event = asyncio.Event

    def __init__(self, cache: str, load: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(cache, load)
        self.scope = cache, asyncio.get_running_loop()

    def cache(self, operation: str, *args: Any) -> Any:
        return getattr(self._cache, f"a{operation}")(*args)

    def sleep(self, seconds: float) -> Any:
        return asyncio.sleep(seconds)

    async def wait(self, event: Any, seconds: float) -> Any:
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return

    def call(self, function: Callable[[], Any]) -> Any:
        return sync_to_async(function)()
