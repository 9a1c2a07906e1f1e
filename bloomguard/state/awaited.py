"""Checks on an event loop: the round trips to the store are awaited, and nothing blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..exceptions import StoreError
from ..filters import CorruptFilter
from ..stores import Generation
from ..verdicts import ABSENT, MAYBE, Decision
from .negative_cache import NegativeCache
from .row import State
from .table import LEASE_SECONDS, StateTable


class Awaited:
    """The async part of :class:`~bloomguard.state.active_filter.ActiveFilter`.

    Its checks return ``None`` if they need the state rows or a store without async support: then check in a thread.
    """

    if TYPE_CHECKING:
        name: str
        table: StateTable
        negative_cache: NegativeCache
        last_check: tuple[str, Callable[[bytes], bool]] | None
        _opened: dict[str, Generation]
        _looked_at: float
        _looked: Decision

        def _is_current(self, state: State, name: str) -> bool: ...
        def _answering_now(self, state: State) -> Generation | Decision | None: ...
        def _fail(self, error: Exception, name: str) -> Decision | None: ...
        def _fail_current(self, error: Exception, name: str) -> Decision: ...

    async def aask(self, key: bytes) -> Decision | None:
        """Check ``key``, as :meth:`ActiveFilter.ask` does."""
        asked, name = self.last_check, ""
        if asked is not None:
            name, _ = asked
            generation = self._opened.get(name)
            if generation is None or not generation.supports_async:
                return None
            try:
                if await generation.amight_contain(key):
                    return (
                        await self.negative_cache.arecall(key, name)
                        if hash(key) in self.negative_cache.marks
                        else MAYBE
                    )
            except (CorruptFilter, StoreError) as error:
                return self._fail(error, name)
        state = self.table.lease(self.name)
        if state is None:
            looked = self.table.clock() - self._looked_at < LEASE_SECONDS
            return self._looked if asked is None and looked else None
        if self._is_current(state, name):
            return ABSENT
        decided = await self._adecide(state, [key])
        return decided[0] if decided else None

    async def aask_many(self, keys: Sequence[bytes]) -> list[Decision] | None:
        """Check ``keys`` in one round trip to the store; return their decisions in the same order."""
        state = self.table.lease(self.name)
        return None if state is None else await self._adecide(state, keys)

    async def _adecide(self, state: State, keys: Sequence[bytes]) -> list[Decision] | None:
        generation = self._answering_now(state)
        if generation is None:
            return None
        if not isinstance(generation, Generation):
            return [generation] * len(keys)
        if not generation.supports_async:
            return None
        self.last_check = state.active, generation.might_contain
        try:
            found = await generation.amight_contain_many(keys)
        except (CorruptFilter, StoreError) as error:
            return [self._fail_current(error, state.active)] * len(keys)
        decided: list[Decision | None] = []
        for key, might in zip(keys, found):
            if might and hash(key) in self.negative_cache.marks:
                decided.append(await self.negative_cache.arecall(key, state.active))
            else:
                decided.append(MAYBE if might else ABSENT)
        # The event loop may have been blocked meanwhile, so the lease on the same row has to be valid still.
        now = self.table.lease(self.name)
        if now is None or now.change != state.change:
            return None
        return None if None in decided else [each for each in decided if each is not None]
