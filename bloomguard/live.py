"""One guard's filter as this process lives with it: which generations there are, what they say, and what may be said.

Reading: a generation that says MAYBE needs no proof, even a stale one. One that says no is believed only under a valid
lease on the state row, as the active generation of an armed guard, in the very store that the row names, and only if it
was built from this very database.
Writing: every generation that the row names gets every key, and the add counts only if the same lease holds.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .awaited import Awaited
from .conf import settings
from .exceptions import ConfigurationError, StoreError, StoreUnavailable, UnknownGeneration
from .filters import CorruptFilter, FilterError, KeyHash
from .forks import after_fork
from .homes import all_stores, home_of, whereabouts
from .remembered import FoundOut, shelf
from .stores import Generation, Store, stores
from .sync import state as states
from .sync.state import ARMED, LEASE_SECONDS, State, StateTable
from .turns import turn
from .verdicts import ABSENT, COLD, ERROR, FENCED, IDENTITY, LEASE, MAYBE, UNREACHABLE, UNTRUSTED, Decision

logger = logging.getLogger("bloomguard")

#: No row has ever been read as this.
NONE = (0, "")
#: A generation that could not be opened for want of a file or a permission is tried again after this many seconds.
_REOPEN_SECONDS = 10.0


class LiveFilter(Awaited):
    """The filter of the guard ``name`` in the store ``store_alias``.

    ``definition`` says in words what a key stands for (table, columns, which rows); a generation that was built for
    other words, or with a secret that is no longer in the settings, is never asked. ``width`` is the keys' size in
    bytes, if they all have one. ``counted`` says that adds are counted, because :meth:`discard` takes them back.
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
        self._store_alias = store_alias
        self._definition = definition
        self._width = width
        self._counted = counted
        self._waits: bool | None = None  # whether the store's checks wait for a network, once that is known
        #: The generation that answered last, which is a published one, and its check. In one piece: threads replace it
        #: while others read it.
        self.last_check: tuple[str, Callable[[bytes], bool]] | None = None
        self._change = NONE  # of the row that the two below were last tidied for
        self._opened: dict[str, Generation] = {}
        self._refused: dict[str, float] = {}
        self._looked_at = float("-inf")
        self._warned = NONE
        #: The false positives that this process has found.
        self.found_out = FoundOut(name, self.table, self._open_recent)
        # The fence that this process saw last, and since when by our clock.
        self._fence: tuple[Any, float] = ("", float("-inf"))
        self._lock = threading.Lock()
        self._opening = threading.Lock()  # held while a disk or a server is waited for
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # What the parent opened may be a copy here, which nobody else writes to: a store in memory.
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self.forget()

    @property
    def store(self) -> Store:
        """The store; raises :class:`ConfigurationError`."""
        return stores[self._store_alias]

    def key_hashes(self) -> list[tuple[int, KeyHash]]:
        """Key id and hash for each of the settings' secrets, the one for new builds first."""
        made = []
        for secret in settings.secrets:
            key_id = hmac.new(secret, self._definition.encode(), hashlib.sha256).digest()[:8]
            made.append((int.from_bytes(key_id, "big"), KeyHash(self._width, secret)))
        return made

    def find_key_hash(self, key_id: int) -> KeyHash | None:
        """The hash that the generation with ``key_id`` was built with, if the settings still have its secret."""
        return dict(self.key_hashes()).get(key_id)

    # -- reading

    def ask(self, key: bytes) -> Decision:
        """What can be said of ``key`` now. May read the state rows, at most once a lease. Never raises on bad data."""
        return self.ask_leased(key) or self._renew_and_decide([key])[0]

    def ask_now(self, key: bytes) -> Decision | None:
        """The same without a look at database, disk or network; ``None`` if an answer needs one."""
        if self._waits is None:
            self._waits = self.store.waits
        return None if self._waits else self.ask_leased(key)

    def ask_many(self, keys: Sequence[bytes]) -> list[Decision]:
        """What can be said of each of ``keys``, in their order and in one trip to the store."""
        if not keys:
            return []
        if self.last_check is None and self.table.lease(self.name) is None and not self._worth_reading():
            return [COLD] * len(keys)
        return self._renew_and_decide(keys)

    def ask_leased(self, key: bytes) -> Decision | None:
        """What the copies of generation and row that this process has say of ``key``; ``None`` if they say nothing."""
        asked, name = self.last_check, ""
        if asked is not None:
            name, check = asked
            try:
                if check(key):
                    return self.found_out.recall(key, name) if hash(key) in self.found_out.marks else MAYBE
            except (CorruptFilter, StoreError) as error:
                return self._failed(error, name)
        state = self.table.lease(self.name)
        if state is not None:
            if self._denies(state, name):
                return ABSENT
            if state.active in self._opened or state.active in self._refused or not state.active:
                return self._decide(state, [key])[0]
            return None  # opening a generation reads all of it
        if asked is None and not self._worth_reading():
            return COLD
        return None

    def _denies(self, state: State, name: str) -> bool:
        """Whether the generation ``name``, if any, said no, and that still counts: no need to ask it again."""
        return bool(name) and state.is_answered_by(name) and state.change == self._change

    def _failed(self, error: Exception, name: str) -> Decision | None:
        """What is to be said where the generation ``name`` gave no answer; ``None`` if the row has to say it."""
        if not isinstance(error, StoreUnavailable):
            state = self.table.lease(self.name)
            if state is None or state.active != name:
                self.last_check = None  # it was replaced, perhaps, and dropped
                return None
        return self._doubted(error, name)

    def _doubted(self, error: Exception, name: str) -> Decision:
        """The same where the row names the generation."""
        if isinstance(error, StoreUnavailable):
            return UNREACHABLE
        self._distrust(error, name)
        return UNTRUSTED

    @property
    def mode(self) -> str:
        """What the state row, as it was read last, has in place of the guard's own mode; empty if it has nothing."""
        return self.table.known(self.name).mode

    @property
    def answered_last(self) -> str:
        """The generation that answered last, empty where none has: it has been published."""
        return self.last_check[0] if self.last_check is not None else ""

    def answering(self) -> Generation | Decision:
        """What answers now, or why nothing does: for people, who want to know before anybody asks. Never raises."""
        state = self.table.renewed(self.name)
        if state is None:
            return LEASE
        try:
            return self._answering(state)
        except (CorruptFilter, StoreError) as error:
            return self._doubted(error, state.active)
        except ConfigurationError:
            return ERROR

    def _worth_reading(self) -> bool:
        """Whether there is any generation that the rows could name: a guard without one asks the database nothing."""
        now = self.table.clock()
        if now - self._looked_at < LEASE_SECONDS:
            return False
        for store in all_stores(self.store):
            try:
                if store.names(self.name):
                    return True  # and so for whoever asks next: under ASGI the same request asks again, in a thread
            except StoreError as error:
                logger.debug("bloomguard cannot tell whether %s has a filter: %s", self.name, error)
        self._looked_at = now
        return False

    def _renew_and_decide(self, keys: Sequence[bytes]) -> list[Decision]:
        state = self.table.renewed(self.name)
        return [LEASE] * len(keys) if state is None else self._decide(state, keys)

    def _decide(self, state: State, keys: Sequence[bytes]) -> list[Decision]:
        try:
            generation = self._answering(state)
            if not isinstance(generation, Generation):
                return [generation] * len(keys)
            self.last_check = state.active, generation.might_contain
            found = [generation.might_contain(keys[0])] if len(keys) == 1 else generation.might_contain_many(keys)
            return [self.found_out.recalled(key, state.active) if might else ABSENT for key, might in zip(keys, found)]
        except (CorruptFilter, StoreError) as error:
            return [self._doubted(error, state.active)] * len(keys)

    def _answering(self, state: State) -> Generation | Decision:
        """The generation that may answer, or why none may."""
        answering = self._settled(state) or self._generation(state, state.active)
        if answering is None:
            return UNTRUSTED if state.active in self._refused else self._elsewhere(state)
        return answering

    def _settled(self, state: State) -> Generation | Decision | None:
        """The same as far as it takes neither a look at a store nor a lock; ``None`` if it takes one."""
        if not state.active:
            return COLD
        if state.status != ARMED:
            return FENCED
        if not state.is_ours:
            return self._elsewhere(state)
        if self._change != state.change:
            return None
        return UNTRUSTED if self._is_refused(state.active) else self._opened.get(state.active)

    def _is_refused(self, name: str) -> bool:
        return self._refused.get(name, 0) > self.table.clock()

    def _elsewhere(self, state: State) -> Decision:
        """The row names another store or database, or this one before it was restarted: say so once."""
        if self._warned != state.change:
            self._warned = state.change
            logger.warning("bloomguard passes every request to %s: %s", self.name, whereabouts(state, self.store))
        return IDENTITY

    def why_not_added(self) -> str:
        """Why an add failed just now, for the log and the state row."""
        state = self.table.lease(self.name)
        try:
            if state is not None and state.active and not (state.is_ours and state.identity == self.store.identity):
                return whereabouts(state, self.store)
        except StoreError:
            pass  # a store that does not answer says nothing of where it is
        return "a written row could not be added to its filter"

    def _distrust(self, error: Exception, name: str) -> None:
        """Say once what is wrong with a generation, and ask it no more until it is replaced."""
        with self._lock:
            self.last_check = None
            first = name not in self._refused
            self._opened.pop(name, None)
            forever = isinstance(error, (CorruptFilter, UnknownGeneration))
            self._refused[name] = self.table.clock() + (float("inf") if forever else _REOPEN_SECONDS)
        if first:
            logger.warning("bloomguard passes every request to %s until rebuild_filter mends it: %s", self.name, error)

    def _generation(self, state: State, name: str) -> Generation | None:
        """The opened generation, or ``None`` where it cannot be trusted (which has been said already)."""
        if not state.is_ours:
            return None
        if self._change != state.change:
            self._tidy(state)
        generation = self._opened.get(name)
        if generation is not None:
            return generation
        home = None if self._is_refused(name) else home_of(state.identity, self.store)
        if home is None:
            return None
        with turn(self._opening, "opening a filter"):
            generation = self._opened.get(name)
            if generation is None:
                generation = home.open(self.name, name, self.find_key_hash, state.identity)
                with self._lock:
                    self._waits = home.waits
                    self._opened[name] = generation
        return generation

    def _open_recent(self, name: str, identity: str) -> Generation:
        home = home_of(identity, self.store)
        if home is None:
            raise StoreError("the recent rows are in another store, or in another life of this one")
        return home.open(shelf(self.name), name, self.find_key_hash, identity)

    def _tidy(self, state: State) -> None:
        """Let go of generations that the row no longer names: a mapped file takes its disk space until then."""
        with self._lock:
            self._change = state.change
            self._opened = {name: opened for name, opened in self._opened.items() if name in state.generations}
            self._refused = {name: until for name, until in self._refused.items() if name in state.generations}
        self.found_out.tidy(state.generations)

    # -- writing

    def add(self, keys: Iterable[bytes], part_with_standby: Callable[[State], bool] = lambda state: False) -> bool:
        """Put ``keys`` into every generation that the state row names; ``True`` only if all of it is proved.

        Tried a second time with a fresh copy of the row before giving up. ``part_with_standby(state)`` is asked to take
        a standby that is kept for a roll-back out of the row if the keys do not reach it, and tells whether it did.
        """
        keys = list(keys)
        for _ in range(2):
            began = self.table.clock()
            state = self.table.renewed(self.name)
            if state is not None:
                self.heed_fence(state)
                if self._add(state, keys, part_with_standby):
                    return True
            self.table.renew(after=began)
        return False

    def heed_fence(self, state: State) -> None:
        """Let no row of ours be seen while a process may still answer from before the fence: two leases, once."""
        if state.status == ARMED or not state.active:
            return
        fence, since = self._fence
        if fence != state.fenced_at:  # we may not have looked at the row since the one before
            fence, since = self._fence = state.fenced_at, self.table.clock()
        wait = since + 2 * LEASE_SECONDS - self.table.clock()
        if wait > 0:
            self.table.sleep(wait)
            self.table.renew()

    def _add(self, state: State, keys: Sequence[bytes], part_with_standby: Callable[[State], bool]) -> bool:
        adds: list[tuple[Generation, Sequence[bytes]]] = []
        missed: list[str] = []
        for name in state.generations:
            if state.status != ARMED and name != state.building:
                continue  # it answers nobody, and never will again; what will answer next is being built
            try:
                generation = self._generation(state, name)
                if generation is not None:
                    recent = self.found_out.recent(name, state.identity)
                    adds.append((generation, keys if self._counted else self._new(generation, keys)))
                    adds += [(recent, keys)] if recent is not None else []
            except (FilterError, StoreError) as error:
                self._doubt(state, name, error)
                generation = None
            if generation is None:
                missed.append(name)
        if adds:
            for (generation, _), failed in zip(adds, adds[0][0].add_to_all(adds)):
                if failed is not None:
                    self._doubt(state, generation.name, failed)
                    missed.append(generation.name)
        # A standby that is not yet kept still answers those who have not read the row since it was replaced.
        if not all(name == state.kept and part_with_standby(state) for name in dict.fromkeys(missed)):
            return False
        # The copy was good when the adds began; it must still be when they are counted. Another thread may have
        # read a newer one meanwhile.
        now = self.table.lease(self.name)
        return now is not None and (now is state or now.names_no_more_than(state))

    def _doubt(self, state: State, name: str, error: Exception) -> None:
        """An add did not reach the generation: that of a sound one is tried again, another one is asked no more."""
        if name != state.standby and not isinstance(error, StoreUnavailable):
            self._distrust(error, name)

    @staticmethod
    def _new(generation: Generation, keys: Sequence[bytes]) -> Sequence[bytes]:
        """Of ``keys``, those that a filter which would count them lacks: every save of a row comes here.

        Right only because nothing is discarded: a key that seems to be there may be another one's.
        """
        if not generation.layout.filter_class.supports_discard:
            return keys
        return [key for key, there in zip(keys, generation.might_contain_many(keys)) if not there]

    def active(self, using: str | None = None) -> str:
        """The generation that answers now, empty where none does: what a later :meth:`discard` has to name.

        Also where the rows lie in a database ``using`` that may lose a delete while nobody sees that it did.
        """
        if using is not None and not self.table.holds(using):
            return ""
        state = self.table.renewed(self.name)
        return state.active if state is not None and state.is_answered_by(state.active) and state.may_forget else ""

    def discard(self, keys: Iterable[bytes], name: str) -> None:
        """Take keys of rows that are gone out of the generation ``name``, once each, if it still is the active one.

        Each key had a row when ``name`` was active, so it was added there. Of a generation that is being built nobody
        knows whether its scan came by before the row went. Never raises and never tries again: a key too many is a
        harmless false positive, and one too few a false 404.
        """
        try:
            state = self.table.answered_by(name, self.name)
            generation = self._generation(state, name) if state is not None and state.may_forget else None
            if generation is not None:
                generation.discard(keys)
        except (FilterError, StoreError) as error:
            logger.info("bloomguard left keys of deleted rows in the filter of %s: %s", self.name, error)

    def forget(self) -> None:
        """Close everything, as if the process had just started."""
        with self._lock:
            self.last_check = None
            self._opened = {}
            self._refused = {}
            self._change = self._warned = NONE
            self._looked_at = float("-inf")
            self._waits = None
        self.found_out.forget()
