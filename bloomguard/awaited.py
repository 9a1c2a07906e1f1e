"""A guard's filter as an event loop asks it: the trips to the store are awaited, and nothing else waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .exceptions import StoreError
from .filters import CorruptFilter
from .remembered import FoundOut
from .stores import Generation
from .sync.state import LEASE_SECONDS, State, StateTable
from .verdicts import ABSENT, COLD, MAYBE, Decision


class Awaited:
    """The part of :class:`~bloomguard.live.LiveFilter` that event loops use.

    Where it takes the state rows, or a store that cannot be awaited, a thread has to ask: then it says ``None``.
    """

    if TYPE_CHECKING:
        name: str
        table: StateTable
        found_out: FoundOut
        last_check: tuple[str, Callable[[bytes], bool]] | None
        _opened: dict[str, Generation]
        _looked_at: float

        def _denies(self, state: State, name: str) -> bool: ...
        def _settled(self, state: State) -> Generation | Decision | None: ...
        def _failed(self, error: Exception, name: str) -> Decision | None: ...
        def _doubted(self, error: Exception, name: str) -> Decision: ...

    async def aask(self, key: bytes) -> Decision | None:
        """What can be said of ``key`` now: see :meth:`LiveFilter.ask`."""
        asked, name = self.last_check, ""
        if asked is not None:
            name, _ = asked
            generation = self._opened.get(name)
            if generation is None or not generation.awaits:
                return None
            try:
                if await generation.amight_contain(key):
                    return await self.found_out.arecall(key, name) if hash(key) in self.found_out.marks else MAYBE
            except (CorruptFilter, StoreError) as error:
                return self._failed(error, name)
        state = self.table.lease(self.name)
        if state is None:
            looked = self.table.clock() - self._looked_at < LEASE_SECONDS
            return COLD if asked is None and looked else None
        if self._denies(state, name):
            return ABSENT
        decided = await self._adecide(state, [key])
        return decided[0] if decided else None

    async def aask_many(self, keys: Sequence[bytes]) -> list[Decision] | None:
        """What can be said of each of ``keys``, in their order and in one trip to the store."""
        state = self.table.lease(self.name)
        return None if state is None else await self._adecide(state, keys)

    async def _adecide(self, state: State, keys: Sequence[bytes]) -> list[Decision] | None:
        generation = self._settled(state)
        if generation is None:
            return None
        if not isinstance(generation, Generation):
            return [generation] * len(keys)
        if not generation.awaits:
            return None
        self.last_check = state.active, generation.might_contain
        try:
            found = await generation.amight_contain_many(keys)
        except (CorruptFilter, StoreError) as error:
            return [self._doubted(error, state.active)] * len(keys)
        decided: list[Decision | None] = []
        for key, might in zip(keys, found):
            if might and hash(key) in self.found_out.marks:
                decided.append(await self.found_out.arecall(key, state.active))
            else:
                decided.append(MAYBE if might else ABSENT)
        # The loop may have been held up meanwhile, so the row that was relied on has to be one to rely on still.
        now = self.table.lease(self.name)
        if now is None or now.change != state.change:
            return None
        return None if None in decided else [each for each in decided if each is not None]
