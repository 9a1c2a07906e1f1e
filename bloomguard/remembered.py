"""False positives that were found: keys that the filter lets through and the database does not have.

Whoever has found one can replay it, and each replay costs a query. So a process remembers them, some thousands for a
minute, and its guard says ABSENT. That this is never a false 404 takes a second, small filter beside each generation,
shared as it is: the *recent* one. It is empty when the generation is announced, and every add to the generation goes
into it as well. A remembered key counts only under a valid lease, while the generation is the active one that let it
through, and only if it is not among the recent ones.

Why that holds. Let G be the generation. The key is remembered because a statement of its own, in no transaction, on the
database that G is built from, did not find the row, and began when G had been published. Say that a request begins
after the row was committed, and G is active and armed. What wrote the row last committed before the scan of G, or it
added to G (see :mod:`bloomguard.live`). In the first case the statement, later than the scan, would have seen the row,
or the row was gone by then and has been written again since, which is the second case. In the second case the key went
into the recent filter before the commit, and so before the request: the memory is not honoured. Another generation has
a memory of its own.

A database that loses a delete which it has acknowledged brings the row back without a commit. So nothing is remembered
where that could pass unnoticed: of rows in another database than the state rows, or while COMMITs do not wait for the
disk. A server that took over, or was recovered to a point in time, is another database: see
:mod:`bloomguard.sync.connection`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from .exceptions import StoreError
from .filters import FilterError
from .filters.codec import new_tag
from .filters.layout import Layout
from .stores import Generation, Store
from .stores.base import BESIDE
from .sync.state import StateTable
from .turns import turn
from .verdicts import MAYBE, REMEMBERED, Decision

logger = logging.getLogger("bloomguard")

#: How many keys a process remembers of one guard, and for how many seconds.
MOST_KEYS = 10_000
SECONDS = 60.0
#: The recent filter is made for an eighth of the generation's rows, between these.
_FEWEST, _MOST, _SHARE, _ERROR_RATE = 10_000, 1_000_000, 8, 0.01
#: A generation's name begins with this where it has a recent filter: one that it should have and has lost is no
#: generation to trust, one of a release that made none simply has no memory.
_MARK = "r"


def shelf(guard: str) -> str:
    """Under which name a store keeps the recent filters of ``guard``; no guard can be called so."""
    return f"{guard}{BESIDE}recent"


def has_recent(name: str) -> bool:
    """Whether the generation ``name`` was made with a recent filter."""
    return name.startswith(_MARK)


def new_name(token: str, here: str) -> str:
    """The name of a new generation that has a recent filter, and is built from the database ``here``."""
    return _of(here) + token


def is_of(name: str, here: str) -> bool:
    """Whether the generation ``name`` was built from the database ``here``; sites may share a store by mistake."""
    return name.startswith(_of(here))


def _of(here: str) -> str:
    lasting, _, _ = here.partition("@")  # what follows is another after a restart
    return _MARK + hashlib.sha256(lasting.encode()).hexdigest()[:8]


def create_recent(store: Store, guard: str, name: str, layout: Layout) -> None:
    """Make the recent filter of the generation ``name`` of this ``layout``; raises :class:`StoreError`."""
    small = Layout.plan(
        key_hash=layout.key_hash,
        capacity=min(max(layout.capacity // _SHARE, _FEWEST), _MOST),
        error_rate=_ERROR_RATE,
        tag=new_tag(),
        key_id=layout.key_id,
        shard_bytes=store.shard_bytes,
    )
    store.create(shelf(guard), name, small).seal()


class FoundOut:
    """The false positives that one process remembers of ``guard``, and the recent filters that it has opened.

    Keys are held as digests, under a secret of this object alone.

    ``table`` has the guard's state row. ``open_recent(name, identity)`` opens the recent filter of a generation, in the
    store that has this identity; it raises :class:`StoreError` and :class:`FilterError`.
    """

    def __init__(self, guard: str, table: StateTable, open_recent: Callable[[str, str], Generation]) -> None:
        self._guard = guard
        self._table = table
        self._open = open_recent
        self._secret = os.urandom(16)
        self._lock = threading.Lock()
        self._opening = threading.Lock()  # held while a disk or a server is waited for
        self._begin()

    def _begin(self) -> None:
        self._missing, self._asked = _Memory(self._clock), _Memory(self._clock)
        #: The ``hash`` of every key that is remembered. Of nearly all others it says so at a tenth of a digest's cost.
        self.marks = self._missing.marks
        self._recent: dict[str, Generation] = {}

    def _clock(self) -> float:
        return self._table.clock()

    # -- what is remembered

    def recall(self, key: bytes, name: str) -> Decision | None:
        """What is remembered of a key that the generation ``name`` lets through; ``None`` if a lease is needed."""
        if not self._missing.has(name, self._digest(key)):
            return MAYBE
        state = self._table.lease(self._guard)
        if state is None:
            return None
        return self.recalled(key, name) if state.is_answered_by(name) and state.may_forget else MAYBE

    def recalled(self, key: bytes, name: str) -> Decision:
        """The same where ``name`` is known, by a valid lease, to be what answers."""
        if hash(key) not in self.marks or not self._missing.has(name, self._digest(key)):
            return MAYBE
        return MAYBE if self.is_recent(name, key) else REMEMBERED

    async def arecall(self, key: bytes, name: str) -> Decision | None:
        """:meth:`recall` on an event loop, of a generation that ``awaits``."""
        if not self._missing.has(name, self._digest(key)):
            return MAYBE
        recent = self._recent.get(name)
        try:
            is_recent = recent is None or await recent.amight_contain(key)
        except (FilterError, StoreError) as error:
            is_recent = self._cannot_tell(error)
        state = self._table.lease(self._guard)  # that of now, after the wait
        if state is None:
            return None
        return REMEMBERED if state.is_answered_by(name) and state.may_forget and not is_recent else MAYBE

    def remember(self, key: bytes, name: str, using: str) -> None:
        """No row has ``key``: found out on ``using`` just now, by a statement that began when ``name`` had answered.

        The conditions stand above. Raises :class:`DatabaseError`.
        """
        if not self._table.holds(using):
            return
        state = self._table.answered_by(name, self._guard)
        if state is None or not state.may_forget or not self._table.is_published_for(using, self._guard, name):
            return
        if has_recent(name) and self._can_open(name, state.identity):
            with self._lock:
                self._missing.put(name, self._digest(key), hash(key))

    def worth_asking(self, key: bytes, name: str) -> bool:
        """Whether to ask the database for ``key``, to remember it if it is missing: once in a while. May wait."""
        state = self._table.answered_by(name, self._guard)
        if state is None or not state.may_forget or not has_recent(name):
            return False
        digest = self._digest(key)
        with self._lock:
            if self._asked.has(name, digest):
                return False
            self._asked.put(name, digest, 0)
        return self._can_open(name, state.identity) and not self.is_recent(name, key)

    def tidy(self, names: Sequence[str]) -> None:
        """Let go of all generations but ``names``."""
        with self._lock:
            self._recent = {name: recent for name, recent in self._recent.items() if name in names}
            self._missing.keep(names)
            self._asked.keep(names)

    def forget(self) -> None:
        """Begin anew, as after a fork."""
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._begin()

    # -- the recent filters

    def recent(self, name: str, identity: str) -> Generation | None:
        """What every add to the generation ``name`` goes into as well, if anything; raises what opening it raises."""
        return self._recent_of(name, identity) if has_recent(name) else None

    def is_recent(self, name: str, key: bytes) -> bool:
        """Whether ``key`` may have been added since ``name`` was announced, or nobody can tell. Never raises."""
        recent = self._recent.get(name)
        try:
            return recent is None or recent.might_contain(key)
        except (FilterError, StoreError) as error:
            return self._cannot_tell(error)

    @staticmethod
    def _cannot_tell(error: Exception) -> bool:
        logger.debug("bloomguard cannot tell which rows are recent: %s", error)
        return True

    def _can_open(self, name: str, identity: str) -> bool:
        """Open the recent filter now: a request that is answered from memory opens nothing."""
        try:
            self._recent_of(name, identity)
        except (FilterError, StoreError) as error:
            logger.debug("bloomguard remembers no false positives: %s", error)
            return False
        return True

    def _recent_of(self, name: str, identity: str) -> Generation:
        recent = self._recent.get(name)
        if recent is None:
            with turn(self._opening, "opening a filter"):
                recent = self._recent.get(name) or self._open(name, identity)
                with self._lock:
                    self._recent[name] = recent
        return recent

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=16).digest()


class _Memory:
    """Up to :data:`MOST_KEYS` keys, each of one generation, for :data:`SECONDS` from when it was put in last.

    :attr:`marks` has a number of each, which others may share: what is not in there is not remembered.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.until: OrderedDict[tuple[str, bytes], tuple[float, int]] = OrderedDict()
        self.marks: set[int] = set()

    def put(self, name: str, digest: bytes, mark: int) -> None:
        now = self._clock()
        self.until[name, digest] = now + SECONDS, mark
        self.until.move_to_end((name, digest))
        self.marks.add(mark)
        while len(self.until) > MOST_KEYS or next(iter(self.until.values()))[0] <= now:
            _, (_, oldest) = self.until.popitem(last=False)
            self.marks.discard(oldest)

    def has(self, name: str, digest: bytes) -> bool:
        until, _ = self.until.get((name, digest), _NEVER)
        return until > self._clock()

    def keep(self, names: Sequence[str]) -> None:
        self.until = OrderedDict((entry, until) for entry, until in self.until.items() if entry[0] in names)
        self.marks.intersection_update({mark for _, mark in self.until.values()})


_NEVER = float("-inf"), 0
