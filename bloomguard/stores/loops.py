"""What belongs to one event loop, such as open connections, and goes when the loop goes: loops come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from ..forks import after_fork

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One ``make()`` for each event loop, made when first asked for.

    ``await close(it)`` is called when the loop is shut down, as ``asyncio.run`` and every server do it. What belonged
    to a loop that was closed without that is dropped when another loop comes.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._made: dict[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[None, None]]] = {}
        self._parents: list[Any] = []
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Kept, for to take it apart here would change the selector that a child shares with its parent.
        self._parents.append(self._made)
        self._made = {}

    async def here(self) -> T:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            for other in [other for other in list(self._made) if other.is_closed()]:
                self._made.pop(other, None)
            made = self._make()
            found = self._made[loop] = made, self._keep(loop, made)
            # A loop that is shut down closes the generators that have begun to run in it.
            await found[1].__anext__()
        return found[0]

    async def close(self) -> None:
        """Close that of the running loop, if there is one; the next to ask gets another."""
        found = self._made.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()

    async def _keep(self, loop: asyncio.AbstractEventLoop, made: T) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._made.pop(loop, None)
            await self._close(made)
