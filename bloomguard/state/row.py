"""The state rows as a process has read them: which generation answers, which ones get adds, which store has them.

Also the rows that are gone, as far as a process remembers them, and the fences that it still has to set.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

from ..conf import settings
from ..exceptions import ConfigurationError, StoreError
from ..models import GuardState
from ..process import own_lock
from ..stores import Store, stores

ARMED, FENCED = GuardState.Status.ARMED.value, GuardState.Status.FENCED.value
#: The reason of a fence begins with this if a user has set it, in the admin or by a command.
BY_HAND = "fenced by "

_READ_ALONG = {"read_along": True}


def held_by_hand(row: GuardState | None) -> str:
    """Return who has fenced a guard by hand, maybe during its first build; empty if nobody has."""
    return row.reason if row is not None and row.status == FENCED and row.reason.startswith(BY_HAND) else ""


def new_token() -> str:
    """Return a new :attr:`State.token`."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class State:
    """One guard's row as it was read; ``version`` 0 if there is no row.

    Each INSERT reads the properties several times, so they are computed once.
    """

    name: str
    version: int = 0
    status: str = ARMED
    identity: str = ""
    active: str = ""
    standby: str = ""
    building: str = ""
    builder: str = ""
    host: str = ""
    mode: str = ""
    database: str = field(default="", compare=False)  # that the generations were built from
    source: str = field(default="", compare=False)  # of their rows: see bloomguard.guards.places
    tables: str = field(default="", compare=False)  # of their rows: see bloomguard.writes.unknown_guards
    definition: str = field(default="", compare=False)  # of their keys: see bloomguard.guards.meta
    #: Random, new with each version: a restored database uses the same version numbers again.
    token: str = field(default="", compare=False)
    #: Raw database values, only tested for equality and presence: which fence it is, and whether the standby is kept.
    fenced_at: Any = field(default=None, compare=False)
    standby_until: Any = field(default=None, compare=False)
    #: No columns: the database that the row was read from, and whether it can lose no COMMIT unnoticed.
    here: str = field(default="", compare=False, metadata=_READ_ALONG)
    is_durable: bool = field(default=True, compare=False, metadata=_READ_ALONG)

    @cached_property
    def change(self) -> tuple[int, str]:
        """Identifies this version of the row."""
        return self.version, self.token

    @cached_property
    def is_ours(self) -> bool:
        """Whether the generations were built from this database, not from one that it is a copy of."""
        return self.database == self.here or not self.generations

    def is_in(self, identity: str) -> bool:
        """Return whether the store with ``identity`` holds the generations. No store is known by an empty one."""
        return bool(identity) and self.identity == identity

    def describe_location(self, store: Store) -> str:
        """Return where the filter is if it is not in ``store``, and the cure."""
        here = socket.gethostname()
        if not self.is_ours:
            return (
                "its filter was built from another database: this one is a copy of that, or was restored, or another "
                "server took over; run rebuild_filter"
            )
        if store.is_of_one_process:
            return (
                f"its filter is not in the memory of this process, where the store {store.alias!r} keeps filters; let "
                "the process of the site call call_command('rebuild_filter'), or use another store"
            )
        # A remote store is the same one for both hosts.
        if self.host not in ("", here) and not store.is_remote:
            return (
                f"its filter is in a store of the host {self.host}, and {here} has another of its own; if both serve "
                "this site, use a store that all hosts share, else run rebuild_filter"
            )
        other, this = (f"another store than {store.place}", "host") if store.place else ("another store", "one")
        return f"its filter was built in {other}, or before this {this} was restarted; run rebuild_filter"

    @property
    def kept(self) -> str:
        """The standby if it is kept for a roll-back: complete, gets adds, checked by no process any more."""
        return self.standby if self.standby_until else ""

    @cached_property
    def generations(self) -> tuple[str, ...]:
        """All generations that get adds."""
        return tuple(name for name in (self.active, self.standby, self.building) if name)

    @cached_property
    def takes_adds(self) -> bool:
        """Whether it names a generation that answers, or may answer later; if fenced, only the one being built."""
        return bool(self.building if self.status == FENCED else self.generations)

    def is_answered_by(self, generation: str) -> bool:
        """Return whether ``generation`` is the one that may answer ABSENT."""
        return self.active == generation and self.status == ARMED and self.is_ours

    @property
    def answers(self) -> bool:
        """Whether it names a generation that may answer ABSENT."""
        return bool(self.active) and self.is_answered_by(self.active)

    def may_forget(self, generation: str) -> bool:
        """Return whether keys of deleted rows may be discarded from ``generation``, or its false positives be cached.

        It has to be the one that answers, and a database that loses the delete has to change its identity.
        """
        return self.is_answered_by(generation) and self.is_durable

    def is_covered_by(self, earlier: State) -> bool:
        """Return whether adds to all generations of ``earlier`` have reached all generations of this row."""
        same = (self.is_in(earlier.identity) or not self.generations) and self.is_ours
        return same and set(self.generations) <= set(earlier.generations)


#: The columns that each read fetches, in the order of the fields of :class:`State`.
COLUMNS = tuple(field.name for field in fields(State) if not field.metadata)
#: The rows of all guards, by name.
Rows = dict[str, State]


class Copy(NamedTuple):
    """The rows as one read gave them; it began at ``read_at``, by the clock of the state table."""

    read_at: float
    rows: Rows


NEVER = Copy(float("-inf"), {})


class Within(threading.local):
    """How this thread reads the rows while only its own connection can, and its copy of them."""

    read: Callable[[], Rows] | None = None
    copy: Copy = NEVER

    @contextmanager
    def reading_by(self, read: Callable[[], Rows]) -> Iterator[None]:
        """In this block and thread, read by ``read``: it returns committed rows or raises :class:`DatabaseError`."""
        before, self.read = self.read, read
        try:
            yield
        finally:
            self.read = before
            if before is None:
                self.copy = NEVER


#: Why a guard is fenced whose row was put back: what was written meanwhile may not be in its filter.
PUT_BACK = "its state row was taken away and put back as it was before"


class OverdueFences:
    """The fences that a process still has to set: of each guard the last one."""

    def __init__(self) -> None:
        #: Guard name -> the reason, in a list that tells it from a later one of the same words.
        self._reasons: dict[str, list[str]] = {}
        self._lock = own_lock(self, "_lock")  # held for microseconds

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, name: str, reason: str = PUT_BACK) -> None:
        """Note a fence of the guard ``name``."""
        with self._lock:
            self._reasons[name] = [reason]

    def set_by(self, fence: Callable[[str, str], None]) -> None:
        """Call ``fence(name, reason)`` for each, and forget it, but not one that was noted during the call."""
        for name, reason in list(self._reasons.items()):
            fence(name, *reason)
            with self._lock:
                if self._reasons.get(name) is reason:
                    del self._reasons[name]

    def clear(self) -> None:
        """Forget all."""
        self._reasons.clear()


class VanishedRows:
    """What a process remembers of state rows that it has read and that are no longer there."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Name -> when the row was missed, and the row. Until there is another one.
        self._gone: dict[str, tuple[float, State]] = {}

    def _missed(self, known: Rows, rows: Rows) -> dict[str, tuple[float, State]]:
        now = self._clock()
        return {name: (now, before) for name, before in known.items() if name not in rows and before.generations}

    def added_to(self, rows: Rows, here: str, seconds: float, known: Rows | None = None) -> Rows:
        """Return ``rows``, and a fenced row for each that vanished less than so many ``seconds`` ago.

        Other processes may still answer by their copy of it. Later, writers add nothing for it. ``here``: the identity
        of the database. ``known``: rows of the last read, if the writer's transaction sees others. It may not see a
        first build, so what is missing there is not noted.
        """
        found, now = rows.copy(), self._clock()
        # A copy: another thread, which reads the rows too, may change it meanwhile.
        for name, (since, before) in {**self._gone, **self._missed(known or {}, rows)}.items():
            if name not in rows and now - since < seconds:
                fence = before.fenced_at if before.status == FENCED else f"vanished at {since}"
                tables, definition = before.tables, before.definition
                found[name] = State(name, 0, FENCED, fenced_at=fence, tables=tables, definition=definition, here=here)
        return found

    def put_back(self, known: Rows, rows: Rows, asked: float) -> list[str]:
        """Return the names of ``rows`` that had vanished, or are older than in ``known``, and name the same filter.

        A row that is older now may have been fenced before. ``known``: the rows of the last read. ``asked``: when this
        read began.
        """
        self._gone.update(self._missed(known, rows))
        found = []
        for name, row in rows.items():
            missed_at, before = self._gone.get(name, (asked, None))
            if before and row.generations and missed_at <= asked:
                self._gone.pop(name, None)
            else:
                before = known.get(name)
                if before is None or row.version >= before.version or row.here != before.here:
                    continue
            if not set(before.generations).isdisjoint(row.generations):
                found.append(name)
        return found

    def restart_clock(self) -> None:
        """Date all of it anew: the clock went back."""
        self._gone = {name: (self._clock(), before) for name, (_, before) in self._gone.items()}

    def forget(self) -> None:
        """Forget them, as in a new process."""
        self._gone.clear()


def all_stores(own: Store) -> Iterator[Store]:
    """Yield a guard's ``own`` store, then all others in the settings that can be created."""
    yield own
    for other in settings.stores:
        if other != own.alias:
            with suppress(ConfigurationError):  # a system check reports it
                yield stores[other]


def locate_store(identity: str, own: Store) -> Store | None:
    """Return the store with ``identity``: the guard's ``own`` or, while the guard moves, another one in the settings.

    Return ``None`` if no store has it. Raises :class:`StoreError` if a store that does not respond may have it.
    """
    unavailable: StoreError | None = None
    for store in all_stores(own):
        try:
            if identity and store.identity == identity:
                return store
        except StoreError as error:
            unavailable = unavailable or error
    if unavailable is not None:
        raise unavailable
    return None
