"""Per-process view of a guard's active filter.

Check: MAYBE needs no proof, not even a current generation. ABSENT needs a valid lease on the state row, and the active
generation of an armed guard, in the store that the row names, built from this database.
Add: each key goes into every generation that the row names. The add counts only if the lease is still valid then, or if
the row, read again, names no other generation.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..conf import settings
from ..exceptions import StoreError, StoreUnavailable, UnknownGeneration
from ..filters import CorruptFilter, FilterError, KeyHash
from ..process import LogOnce, after_fork, is_within, own_lock
from ..stores import Generation, Store, stores, turn
from . import table as states
from .negative_cache import NegativeCache
from .row import ARMED, State, all_stores, locate_store
from .table import LEASE_SECONDS, StateTable
from .verdicts import ABSENT, COLD, FENCED, IDENTITY, LEASE, MAYBE, UNREACHABLE, UNTRUSTED, Decision

if TYPE_CHECKING:
    from ..filters.base import RowKeys

logger = logging.getLogger("bloomguard")

#: The ``State.change`` that no row has.
_NO_CHANGE = (0, "")
#: Seconds until a generation is opened again after a file or a permission was missing.
_REOPEN_SECONDS = 10.0
#: Since when, and for how long, a generation is not opened again, and why.
_NOT_REFUSED = (0.0, 0.0, "")


class ActiveFilter:
    """The filter of the guard ``name`` in the store ``store_alias``.

    ``definition`` describes what a key stands for (table, columns, which rows). A generation that was built for another
    definition, or with a secret that is no longer in the settings, is never checked. ``width`` is the size of all keys
    in bytes, ``None`` if they differ. ``counted``: adds are counted, because :meth:`discard` removes them one by one.
    """

    def __init__(
        self,
        name: str,
        *,
        store_alias: str,
        definition: str,
        width: int | None,
        counted: bool = False,
        table: StateTable | None = None,
    ) -> None:
        self.name = name
        self.table = table or states.table
        self._store_alias, self.definition = store_alias, definition
        self._width, self._counted = width, counted
        self.is_remote: bool | None = None  # the store's, once known
        #: The generation that was checked last, and its check. One tuple: threads replace it concurrently.
        self.last_check: tuple[str, Callable[[bytes], bool]] | None = None
        self._change = _NO_CHANGE  # of the row for which the next two dicts were last tidied
        self._opened: dict[str, Generation] = {}
        self._refused: dict[str, tuple[float, float, str]] = {}
        self._failure = ""  # of the last add, for `why_not_added`
        self._none_found_at, self._none_found = float("-inf"), COLD  # see :meth:`_why_no_generation`
        #: The false positives that this process has found.
        self.negative_cache = NegativeCache(name, self.table, lambda name: self._opened.get(name))
        self._log = LogOnce()
        self._lock, self._opening = own_lock(self, "_lock"), own_lock(self, "_opening")  # the second is held during I/O
        # A generation in memory that the parent opened is a copy in a child: the writes of other processes miss it.
        after_fork(self.forget)

    @property
    def store(self) -> Store:
        """The store. Raises :class:`ConfigurationError`."""
        return stores[self._store_alias]

    def key_hashes(self) -> list[tuple[int, KeyHash]]:
        """Return key id and hash for each secret in the settings; new builds use the first."""
        made = []
        for secret in settings.secrets:
            key_id = hmac.new(secret, self.definition.encode(), hashlib.sha256).digest()[:8]
            made.append((int.from_bytes(key_id, "big"), KeyHash(self._width, secret)))
        return made

    def find_key_hash(self, key_id: int) -> KeyHash | None:
        """Return the hash that a generation with ``key_id`` uses; ``None`` if its secret left the settings."""
        return dict(self.key_hashes()).get(key_id)

    def ask(self, key: bytes) -> Decision:
        """Check ``key``. May read the state rows, at most once per lease. Never raises on bad data."""
        return self.ask_leased(key) or self.ask_many([key])[0]

    def ask_now(self, key: bytes) -> Decision | None:
        """Check ``key`` without I/O; return ``None`` if the check needs database, disk or network."""
        return self.ask_leased(key) if self.is_remote is False else None

    def ask_many(self, keys: Sequence[bytes]) -> list[Decision]:
        """Check ``keys`` in one round trip to the store; return their decisions in the same order."""
        if not keys:
            return []
        if self.last_check is None and self.table.lease(self.name) is None and (why := self._why_no_generation()):
            return [why] * len(keys)
        state = self.table.renewed(self.name)
        return [LEASE] * len(keys) if state is None else self._decide(state, keys)

    def ask_leased(self, key: bytes) -> Decision | None:
        """Check ``key`` with the rows and generations that this process has; ``None`` if it had to read others."""
        last, name = self.last_check, ""
        if last is not None:
            name, check = last
            try:
                if check(key):
                    return self.negative_cache.recall(key, name) if hash(key) in self.negative_cache.marks else MAYBE
            except (CorruptFilter, StoreError) as error:
                return self._fail(error, name)
        state = self.table.lease(self.name)
        if state is not None:
            if self._is_current(state, name):
                return ABSENT
            if self._answering_now(state) is not None:
                return self._decide(state, [key])[0]
        return None  # opening the generation reads all of it

    async def aask(self, key: bytes) -> Decision | None:
        """Do :meth:`ask_leased` on an event loop: await the store, without blocking; ``None``: ask in a thread."""
        last, name = self.last_check, ""
        if last is not None:
            name = last[0]
            generation = self._opened.get(name)
            if generation is None or not generation.supports_async:
                return None
            try:
                if await generation.amight_contain(key):
                    may_be_known = hash(key) in self.negative_cache.marks
                    return await self.negative_cache.arecall(key, name) if may_be_known else MAYBE
            except (CorruptFilter, StoreError) as error:
                return self._fail(error, name)
        state = self.table.lease(self.name)
        if state is None:
            return self._none_found_lately() if last is None else None
        if self._is_current(state, name):
            return ABSENT
        answering = self._answering_now(state)
        return answering if isinstance(answering, Decision) else None  # a thread begins with a new generation

    def _is_current(self, state: State, name: str) -> bool:
        """Return whether the generation ``name``, which was just checked without a hit, is the one to trust."""
        return bool(name) and state.is_answered_by(name) and state.change == self._change

    def _fail(self, error: Exception, name: str) -> Decision | None:
        """Map a failed check of the generation ``name`` to a decision; ``None`` if the row has to be read first."""
        state = self.table.lease(self.name)
        if state is None or state.active != name:  # replaced and removed, or lost with a node of a Cluster
            if not isinstance(error, StoreUnavailable):
                self.last_check = None
            return None
        return self._fail_current(error, name)

    def _fail_current(self, error: Exception, name: str) -> Decision:
        """Map a failed check of the generation ``name``, which the row names, to a decision."""
        if isinstance(error, StoreUnavailable):
            stores.log_outage(self._store_alias, error, self.table.clock())
            return UNREACHABLE
        self._stop_using(error, name)
        return UNTRUSTED

    @property
    def mode(self) -> str:
        """The mode that overrides the guard's own, from the last copy of the state row; empty if none does."""
        return self.table.known(self.name).mode

    @property
    def answered_last(self) -> str:
        """The published generation that was checked last; empty if none was."""
        return self.last_check[0] if self.last_check is not None else ""

    def answering(self) -> Generation | Decision:
        """Return the generation in use, after a check of one key, or why there is none. May wait.

        Raises :class:`ConfigurationError`.
        """
        state = self.table.renewed(self.name)
        if state is None:
            return LEASE
        try:
            answering = self._answering(state)
            if isinstance(answering, Generation):  # its store may have failed since it was opened
                answering.might_contain(bytes(self._width or 0))
            return answering
        except (CorruptFilter, StoreError) as error:
            return self._fail_current(error, state.active)

    def _why_no_generation(self) -> Decision | None:
        """Return why no store has a generation, so that the state rows are not read; ``None`` if one has."""
        if why := self._none_found_lately():
            return why
        now, found = self.table.clock(), COLD
        for store in all_stores(self.store):
            try:
                if store.names(self.name):
                    return None  # not cached: under ASGI the same request checks again, in a thread
            except StoreUnavailable as error:
                found = UNREACHABLE
                stores.log_outage(store.alias, error, now)
            except StoreError:
                return None  # if the state row names a filter, the attempt to open it is logged
        self._none_found_at, self._none_found = now, found
        return found

    def _none_found_lately(self) -> Decision | None:
        """Return what :meth:`_why_no_generation` found less than a lease ago; ``None`` if it has to look again."""
        return self._none_found if is_within(LEASE_SECONDS, self._none_found_at, self.table.clock()) else None

    def _decide(self, state: State, keys: Sequence[bytes]) -> list[Decision]:
        try:
            generation = self._answering(state)
            if not isinstance(generation, Generation):
                return [generation] * len(keys)
            self.last_check = state.active, generation.might_contain
            found = [generation.might_contain(keys[0])] if len(keys) == 1 else generation.might_contain_many(keys)
            marks, recall = self.negative_cache.marks, self.negative_cache.recall
            return [
                (hash(key) in marks and recall(key, state.active)) or MAYBE if might else ABSENT
                for key, might in zip(keys, found)
            ]
        except (CorruptFilter, StoreError) as error:
            return [self._fail_current(error, state.active)] * len(keys)

    def _answering(self, state: State) -> Generation | Decision:
        """Return the generation to check, or why there is none."""
        answering = self._answering_now(state) or self.generation(state, state.active)
        if answering is None:
            return UNTRUSTED if state.active in self._refused else self._log_elsewhere(state)
        return answering

    def _answering_now(self, state: State) -> Generation | Decision | None:
        """Do :meth:`_answering` without I/O and locks; ``None`` if it needs them."""
        if not state.active:
            return COLD
        if state.status != ARMED:
            return FENCED
        if not state.is_ours:
            return self._log_elsewhere(state)
        if self._change != state.change:
            return None
        return UNTRUSTED if self._is_refused(state.active) else self._opened.get(state.active)

    def _is_refused(self, name: str, *, for_good: bool = False) -> bool:
        since, duration, _ = self._refused.get(name, _NOT_REFUSED)
        return duration == float("inf") if for_good else is_within(duration, since, self.table.clock())

    def _log_elsewhere(self, state: State) -> Decision:
        """Log once that the row names another store or database, or this one before a restart."""
        where = state.describe_location(self.store)
        self._log.warning("bloomguard: guard %s passes every request: %s", self.name, where)
        return IDENTITY

    def why_not_added(self) -> str:
        """Return the reason of an add that has just failed, for the log and the state row."""
        state = self.table.lease(self.name)
        with suppress(StoreError):  # the identity of a store that does not respond is unknown
            # Without `here`, a writer has read the row by its own connection, which does not say which database it is.
            if state and state.active and state.here and not (state.is_ours and state.is_in(self.store.identity)):
                return state.describe_location(self.store)
        failure, self._failure = self._failure, ""
        return "a written row could not be added to its filter" + (f": {failure}" if failure else "")

    def _stop_using(self, error: Exception, name: str) -> None:
        """Stop using a generation, for good if it is corrupt or gone; log the error once."""
        with self._lock:
            self.last_check = None
            first = name not in self._refused
            self._opened.pop(name, None)
            forever = isinstance(error, (CorruptFilter, UnknownGeneration))
            self._refused[name] = self.table.clock(), float("inf") if forever else _REOPEN_SECONDS, str(error)
        if first:
            logger.warning("bloomguard: guard %s passes every request; rebuild_filter repairs it: %s", self.name, error)

    def generation(self, state: State, name: str, *, for_write: bool = False) -> Generation | None:
        """Return the generation, opened; ``None`` if it must not be used: the caller logs why.

        ``for_write``: also if it could not be opened a moment ago; a write that does not add to it has to fence it.
        """
        if not state.is_ours:
            return None
        if self._change != state.change:
            self._tidy(state)
        if (opened := self._opened.get(name)) is not None:
            return opened
        if self._is_refused(name, for_good=for_write) or (store := locate_store(state.identity, self.store)) is None:
            return None
        with turn(self._opening, "opening a filter"):
            generation = self._opened.get(name)
            if generation is None:
                generation = store.open(self.name, name, self.find_key_hash, state.identity)
                with self._lock:
                    self.is_remote = store.is_remote
                    # The handler of a signal may have opened it meanwhile.
                    generation = self._opened.setdefault(name, generation)
                    self._refused.pop(name, None)
                self._log.forget()  # found here again: if it moves once more, that is logged
        return generation

    def _tidy(self, state: State) -> None:
        """Release generations that the row no longer names: a mapped file occupies disk space until then."""
        with self._lock:
            self._change = state.change
            self.last_check = self.last_check if self.answered_last in state.generations else None
            self._opened = {name: each for name, each in list(self._opened.items()) if name in state.generations}
            self._refused = {name: each for name, each in list(self._refused.items()) if name in state.generations}
        self.negative_cache.tidy(state.generations)

    def add(
        self, keys: RowKeys, drop_standby: Callable[[State], bool] = lambda state: False, *, may_read: bool = True
    ) -> bool:
        """Add ``keys`` to every generation that the state row names; return whether all adds are confirmed.

        A failed add is repeated once, with a new copy of the row, but not with ``may_read=False``. If the keys do not
        reach a standby that is kept for a roll-back, ``drop_standby(state)`` removes it from the row, if it can.
        """
        if not may_read:
            copy = self.table.lease(self.name)
            return copy is not None and copy.status == ARMED and self._add(copy, keys, drop_standby, may_read=False)
        self._failure, began = "", self.table.clock()
        for _ in range(2):
            state = self.table.renewed(self.name)
            if state is not None:
                self.table.wait_for_fence(state)
                if self._add(state, keys, drop_standby, may_read=True):
                    self._failure = ""
                    return True
            self.table.renew(after=began)
        return False

    def _add(self, state: State, keys: RowKeys, drop_standby: Callable[[State], bool], *, may_read: bool) -> bool:
        opened = self._opened if state.change == self._change and state.is_ours else {}
        for name in state.generations:
            if state.status != ARMED and name != state.building:
                continue  # a fenced generation is never used again; the next one is being built
            try:
                if generation := opened.get(name) or self.generation(state, name, for_write=True):
                    # A guard that discards keys adds each one: one that seems to be there may be a false positive.
                    generation.add(keys, once=not self._counted)
                    continue
                self._failure = self._failure or self._refused.get(name, _NOT_REFUSED)[2]
            except (FilterError, StoreError) as error:
                self._failure = str(error)
                if isinstance(error, StoreUnavailable) or name != state.standby:
                    self._fail_current(error, name)
            # A standby that is not kept yet is still used by processes that have not read the row since.
            if name != state.kept or not drop_standby(state):
                return False
        # The lease was valid when the adds began, and one has to be valid now. Many keys outlast a lease: then the rows
        # are read again, and must name no generation that did not get them.
        now = self.table.renewed(self.name) if may_read else self.table.lease(self.name)
        if now is not state and now is not None and now.is_covered_by(state):
            self.table.wait_for_fence(now)  # between the two, a dump may have named another one
            return True
        return now is state

    def may_be_building(self) -> bool:
        """Return whether a generation may be being built, whose scan may have read some of the rows."""
        state = self.table.lease(self.name)
        return state is None or bool(state.building)

    def active(self, using: str | None = None) -> str:
        """Return the generation in use, for :meth:`discard`; empty if none is, or if ``using`` may lose a delete."""
        if using is not None and not self.table.holds(using):
            return ""
        state = self.table.renewed(self.name)
        return state.active if state is not None and state.may_forget(state.active) else ""

    def discard(self, keys: Iterable[bytes], name: str) -> None:
        """Remove the keys of deleted rows from the generation ``name``, once each, if it is still the active one.

        Each key had a row while ``name`` was active, so it was added there; the scan of a generation being built may
        have missed the row. Never raises or retries: a key kept is a false positive, one removed twice a false 404.
        """
        try:
            state = self.table.renewed(self.name)
            generation = self.generation(state, name) if state is not None and state.may_forget(name) else None
            if generation is not None:
                generation.discard(keys)
        except (FilterError, StoreError) as error:
            logger.info("bloomguard could not remove deleted rows from the filter of %s: %s", self.name, error)

    def forget(self) -> None:
        """Drop all cached state, as if the process had just started."""
        with self._lock:
            self.last_check, self.is_remote, self._none_found_at = None, None, float("-inf")
            self._opened, self._refused, self._change = {}, {}, _NO_CHANGE
        self.negative_cache.forget()
        self._log.forget()
