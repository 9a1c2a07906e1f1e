"""A model of a table whose rows come and go, and of its writers, around the real filter, leases and discards.

Every transaction is a generator that takes one step at a time; a seeded draw says whose turn it is. What the database
does is modelled (row locks, commits, rollbacks, a scan that sees what is committed); what bloomguard does is its own
:class:`ActiveFilter`, :class:`StateTable` and cuckoo filter. Keys are chosen to share fingerprints *and* buckets, so
that each class of them is one counter in the filter, full at eight.

``mode`` is ``"tokens"``, which does what :mod:`bloomguard.writes.discards` does, or one of :data:`NAIVE`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bloomguard.filters.layout import Layout
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.row import ARMED, State
from bloomguard.state.table import LEASE_SECONDS, StateTable
from bloomguard.state.verdicts import ABSENT, MAYBE

NAME = "tokens"
CLASSES, KEYS_A_CLASS = 4, 12
WRITERS = 6
CAPACITY = 60

#: What others do, and a word on why it loses rows.
NAIVE = {
    "by post_delete": "both of two that delete one row discard it",
    "insert if absent": "a twin's fingerprint stands for both, and goes with either",
    "of whatever answers": "the row was never added to the generation that was published meanwhile",
    "of what is being built": "the scan came by after the row had gone",
    "before the commit": "the transaction may be rolled back",
    "tried again": "the first attempt may have come through",
}

GONE, DEAD, ALIVE = "gone", "dead", "alive"
Steps = Iterator[None]


@dataclass(eq=False)
class Row:
    key: bytes
    kin: int  # its class
    state: str = GONE
    holder: Transaction | None = None


@dataclass(eq=False)
class Transaction:
    written: dict[Row, str] = field(default_factory=dict)
    held: list[Row] = field(default_factory=list)
    tokens: list[tuple[Row, str]] = field(default_factory=list)


class Rows(StateTable):
    """State rows in a dictionary that several processes share."""

    def __init__(self, rows: dict[str, State], clock: Any) -> None:
        super().__init__(clock=clock)
        self.rows = rows

    def _read(self) -> dict[str, State]:
        return dict(self.rows)

    def swap(self, seen: State, **changes: Any) -> State | None:
        if (self.rows.get(seen.name) or State(seen.name)).version != seen.version:
            return None
        known = {name: value for name, value in changes.items() if hasattr(seen, name)}
        after = self.rows[seen.name] = replace(seen, version=seen.version + 1, **known)
        return after


class World:
    """``run(operations)`` returns how often a row that was there was denied."""

    def __init__(self, mode: str, seed: int, clock: Any) -> None:
        self.mode, self.random, self.clock = mode, random.Random(seed), clock
        rows: dict[str, State] = {}
        self.processes = [
            ActiveFilter(NAME, store_alias="default", definition="", width=8, counted=True, table=Rows(rows, clock))
            for _ in range(2)
        ]
        for process in self.processes:
            process.table.sleep = clock.sleep
        self.table, self.store = self.processes[0].table, self.processes[0].store
        self.rows = [Row(key, kin) for kin, keys in enumerate(self._classes()) for key in keys]
        self.random.shuffle(self.rows)
        self.generations: dict[str, Any] = {}
        self.transactions: set[Transaction] = set()
        self.operations = self.denied = self.saturated = self.builds = self.discarded = self.schedules = 0

    def _layout(self) -> Layout:
        key_id, key_hash = self.processes[0].key_hashes()[0]
        return Layout.plan(
            key_hash=key_hash,
            capacity=CAPACITY,
            error_rate=0.05,
            key_id=key_id,
            kind="cuckoo",
            shard_bytes=1 << 20,
            fingerprint_bits=8,
        )

    def _classes(self) -> Sequence[Sequence[bytes]]:
        """Keys that nobody can tell apart: of one fingerprint, with the same two buckets, which no other class has."""
        layout, found = self._layout(), defaultdict(list)
        shape: Any = layout.shape
        full: list[list[bytes]] = []
        taken: set[int] = set()
        number = 0
        while len(full) < CLASSES:
            key = (number := number + 1).to_bytes(8, "little")
            fingerprint, *pair = shape.place(layout.locate(key)[1])
            kin = found[fingerprint, frozenset(pair)]
            kin.append(key)
            if len(kin) == KEYS_A_CLASS and pair[0] != pair[1] and taken.isdisjoint(pair):
                full.append(kin[:])
                taken.update(pair)
        return full

    def run(self, operations: int, *, patient: bool = True) -> int:
        """One schedule after the other until so many writes were made, or else the first row is denied."""
        while self.operations < operations and (patient or not self.denied):
            self._schedule()
        return self.denied

    def _schedule(self) -> None:
        """From a filter that is exact: writers and a builder take turns, until too much is in it to lose anything.

        Times differ: now hardly a row is alive, now nearly all, and a few rows of one class are what everybody wants.
        """
        self.schedules += 1
        self.crowd = self.random.choice([0.1, 0.3, 0.5, 0.9])
        kin = self.random.randrange(CLASSES)
        self.wanted = self.random.sample([row for row in self.rows if row.kin == kin], self.random.randint(2, 6))
        self.rests = self.random.choice([0, 50, 1_000])
        self.fails = self.random.choice([0, 0.02, 0.2])
        for row in self.rows:
            row.state, row.holder = ALIVE if self.random.random() < self.crowd else GONE, None
        self.transactions.clear()
        for _ in self._build():  # the first one has the world for itself
            self.clock.sleep(0.1)
        turns: list[Steps] = [self._build(), *(self._transact() for _ in range(WRITERS))]
        last = self.operations + 100
        while self.operations < last:
            self.clock.sleep(self.random.random() * 0.2)
            number = max(0, self.random.randrange(-3, len(turns)))  # a builder is quicker than a writer
            try:
                next(turns[number])
            except StopIteration:
                turns[number] = self._transact() if number else self._build()

    # -- a writer

    def _transact(self) -> Steps:
        live, mine = self.random.choice(self.processes), Transaction()
        self.transactions.add(mine)
        for _ in range(self.random.randint(1, 3)):
            row, generation = self._choose(), live.active()
            seen = self._state(row, mine)
            for _ in range(50):
                if row.holder in (None, mine):
                    break
                yield
            else:
                self._end(mine)  # a deadlock, perhaps: this one is its victim
                return
            if row.holder is None:
                row.holder = mine
                mine.held.append(row)
            if self.mode != "by post_delete":  # which goes by what it saw before it waited
                seen = self._state(row, mine)
            yield
            wanted = ALIVE if self.random.random() < self.crowd else self.random.choice([GONE, DEAD])
            mine.written[row] = wanted
            self.operations += 1
            yield
            if seen == ALIVE != wanted:
                mine.tokens.append((row, generation))
                if self.mode == "before the commit":
                    self._discard(live, row, generation)
            if wanted == ALIVE != seen:
                self._add(live, row)
            yield
        if self.random.random() < self.fails:
            self._end(mine)
            return
        for row, wanted in mine.written.items():
            row.state = wanted
        self._end(mine)
        for row, generation in mine.tokens:
            for _ in range(self.random.choice([1] * 9 + [60])):  # a process may be held up here for long
                yield
            if self.random.random() < self.fails / 4:
                return  # the process was killed
            if self.mode != "before the commit":
                self._discard(live, row, generation)
            if self.mode == "tried again" and self.random.random() < 0.3:
                self._discard(live, row, generation)

    def _choose(self) -> Row:
        return self.random.choice(self.wanted if self.random.random() < 0.8 else self.rows)

    def _state(self, row: Row, mine: Transaction) -> str:
        return mine.written.get(row, row.state)

    def _end(self, mine: Transaction) -> None:
        for row in mine.held:
            row.holder = None
        self.transactions.discard(mine)

    def _add(self, live: ActiveFilter, row: Row) -> None:
        if self.mode == "insert if absent" and live.ask(row.key) is MAYBE:
            return
        if not live.add([row.key]):
            self.table.fence(NAME, "it is full")
            self.clock.sleep(2 * LEASE_SECONDS)

    def _discard(self, live: ActiveFilter, row: Row, generation: str) -> None:
        if self.mode in ("of whatever answers", "of what is being built"):
            generation = live.active()
        held = self._opened(generation)
        if held is not None and next(iter(held.filters())).has_spilled(row.key):
            self.saturated += 1
        live.discard([row.key], generation)
        self.discarded += 1
        if self.mode == "of what is being built" and (building := self._opened(self.table.current(NAME).building)):
            building.discard([row.key])
        self._look(row.kin)

    def _opened(self, name: str) -> Any:
        return self.generations.get(name)

    def _look(self, kin: int | None = None) -> None:
        """Every row that is there has to be let through, also by a process that has not asked before."""
        reader = self.processes[0]
        for row in self.rows:
            if row.state == ALIVE and kin in (None, row.kin):
                reader.last_check = None  # the generation before may let through what the present one lacks
                self.denied += reader.ask(row.key) is ABSENT

    # -- a builder

    def _build(self) -> Steps:
        name = f"{self.random.getrandbits(64):016x}"
        generation = self.generations[name] = self.store.create(NAME, name, self._layout())
        seen = self.table.current(NAME)
        mine = self.table.swap(seen, building=name, identity=self.store.identity)
        assert mine is not None, "there is one builder"
        yield from self._wait()
        before = set(self.transactions)
        while before & self.transactions:  # the barrier
            yield
        for start in range(0, len(self.rows), 16):
            page = [row.key for row in self.rows[start : start + 16] if row.state == ALIVE]
            yield
            generation.add_many(page)
            yield
        generation.seal()
        after = self.table.swap(mine, active=name, standby=seen.active, building="", status=ARMED)
        if after is None:  # fenced meanwhile
            self._drop(name)
            return
        self.builds += 1
        self._look()
        yield from self._wait()
        while after.standby:
            last = self.table.swap(after, standby="")
            after = last or self.table.current(NAME)
        self._drop(seen.active)
        self._look()
        for _ in range(self.rests):
            yield

    def _drop(self, name: str) -> None:
        self.store.drop(NAME, name)
        self.generations.pop(name, None)

    def _wait(self) -> Steps:
        until = self.clock() + 2 * LEASE_SECONDS
        while self.clock() < until:
            yield
