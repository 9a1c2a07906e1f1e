"""One simulated world: hosts with processes, two servers, a database; and the oracle, which knows what is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

from django.db import IntegrityError, OperationalError, connections

from bloomguard.exceptions import StoreError
from bloomguard.guards import Guard
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.table import EXPIRY_SECONDS, StateTable
from bloomguard.state.verdicts import MAYBE, Decision, Verdict
from bloomguard.writes import idle, statements
from bloomguard.writes.rows import WrittenRows
from tests.shop.models import Product
from tests.support.guarding import make_guard

from .database import ROWS, Database, SimulatedConnection, SimulatedSources, write_row
from .scheduler import PACES, START, TICK, Lock, Scheduler
from .servers import Network, Server, SimulatedStore

_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)

GUARD = make_guard(Product, name="simulated", filter="bloom")
make_key: Callable[[int], bytes] = GUARD._meta.keys.key
#: Few keys, so that the same come and go; and of a filter that counts, fewer cells.
KEYS = [make_key(number) for number in range(40)]
CELLS = 12


def _layout(counted: bool) -> Any:
    """What the code looks at of a layout."""
    return SimpleNamespace(
        kind="simulated",
        capacity=1_000,
        total_bytes=0,
        headers=(),
        error_rate=0.0,
        filter_class=SimpleNamespace(supports_discard=counted),
        cell=(lambda key: int.from_bytes(key, "little") % CELLS)
        if counted
        else (lambda key: int.from_bytes(key, "little")),
    )


EXACT, COUNTED = _layout(False), _layout(True)


def _first_row(active: str) -> GuardState:
    """The state row that a schedule begins with: all its columns, or one would be left of the schedule before."""
    row = GuardState(name=GUARD.name, identity="life0", database="database", active=active)
    if active:  # as a rebuild has left it
        row.source, row.tables = f"{ROWS}/", "\n".join(sorted(GUARD._meta.tables))
    return row


class FalseNotFound(Exception):
    """A guard said ABSENT of a row that was committed before it was asked."""


class _Tracked:
    """What the code looks at of a tracked table."""

    is_unknown = False

    def __init__(self, guard: Guard) -> None:
        self.guard = guard


def _written(keys: list[int]) -> WrittenRows:
    return WrittenRows([(key,) for key in keys], "", stored=False)


class SimulatedLive(ActiveFilter):
    """The real thing, with a simulated store."""

    simulated: SimulatedStore

    @property
    def store(self) -> SimulatedStore:
        return self.simulated

    def key_hashes(self) -> list[Any]:
        return [(0, None)]  # exact generations hash nothing


class Process:
    """One process of a host: its own copy of the state rows, its own store, its own clocks."""

    def __init__(self, world: World, host: str, pid: int) -> None:
        self.world = world
        self.host = host
        self.pid = pid
        self.dead = False
        self.asleep_until = self.slept = 0.0
        scheduler = world.scheduler
        self.pace = PACES[0] if world.swift else scheduler.rng.choice(PACES)
        self.offset = float(world.scheduler.rng.randrange(-500, 500))
        self.store = SimulatedStore(self, world.network)
        self.table = StateTable(SimulatedConnection(world.database), self.clock)
        self.table.sleep = self.sleep
        self.table._lock = Lock(scheduler)  # type: ignore[assignment]
        self.table.holds = lambda using: using == ROWS  # type: ignore[method-assign]
        self.guard: Guard = type(GUARD)(GUARD.model)
        live = SimulatedLive(
            GUARD.name,
            store_alias="simulated",
            definition="words",
            width=GUARD._meta.keys.width,
            counted=world.counts_adds(),
            table=self.table,
        )
        live.simulated = self.store
        for opener in (live, live.negative_cache):
            opener._lock = Lock(scheduler)  # type: ignore[assignment]
            opener._opening = Lock(scheduler)  # type: ignore[assignment]
        self.guard._runtime.__dict__["active_filter"] = live

    def clock(self) -> float:
        """Monotonic; a thread may be put aside just before it looks, for long."""
        scheduler = self.world.scheduler
        if scheduler.random() < 0.04:
            scheduler.hop()
        return scheduler.now + self.offset

    def clock_now(self) -> float:
        """The same, looked at as part of something that nothing else comes between."""
        return self.world.scheduler.now + self.offset

    def wall(self) -> datetime:
        """The host's idea of the time of day, which steps at times."""
        world = self.world
        return _EPOCH + timedelta(seconds=world.scheduler.now - START + world.wall.get(self.host, 0.0))

    def sleep(self, seconds: float) -> None:
        """What the code waits on purpose."""
        self.world.scheduler.sleep(seconds)

    def insert(self, keys: list[int]) -> None:
        """The order of a write: statement, add, COMMIT; a fence before the COMMIT if the add was not proved.

        While the guard is idle the statement is sent as it is, and looked at again when it is over.
        """
        database = self.world.database
        read_at = idle.all_idle_since([self.guard], ROWS)
        if read_at is None:
            with database.atomic():
                self.statement(keys)
                self.add(keys)
            return
        self.world.counts["idle"] += 1
        if self.world.rng.random() < 0.15:  # held up for as long as a rebuild takes, before the database knows of it
            self.sleep(self.world.rng.randrange(128) * TICK)
        if database.is_open():
            self.send_idle(keys, read_at)
            return
        number = database.new_number()
        database.unacknowledged.add(number)  # under autocommit: committed before we look again
        try:
            self.send_idle(keys, read_at, number)
        except (StoreError, OperationalError):
            self.world.scheduler.spawn(f"{self.host}.debt", self, self.await_fence, keys, number)
            raise
        database.unacknowledged.discard(number)

    def send_idle(self, keys: list[int], read_at: dict[Guard, float], number: int | None = None) -> None:
        """Send the statement of idle guards, then look again whether they still are, as the project's code does it."""
        database = self.world.database
        tracked: Any = _Tracked(self.guard)
        sent_idle = idle.IdleTables([tracked], read_at, ROWS)
        try:
            with database.atomic(number):
                self.statement(keys)
            database.lose_answer()
        except BaseException as error:
            sent_idle.fence_if_late(error)
            raise
        if not idle.is_in_time(self.guard, read_at[self.guard]):
            self.world.counts["idle too long"] += 1
        statements.add_if_late(sent_idle, lambda tracked: _written(keys))

    def await_fence(self, keys: list[int], number: int) -> None:
        """Ask for rows whose writer got an error, though they are there: once the fence is set, as for all others."""
        world = self.world
        world.counts["saved with an error"] += 1
        while self.table.overdue:
            self.sleep(TICK)
        self.sleep(EXPIRY_SECONDS)
        world.database.unacknowledged.discard(number)
        world.overdrawn.pop(number, None)
        while True:
            for process in list(world.processes.values()):
                world.scheduler.spawn(f"{process.host}.asker", process, world.ask, process, keys[-1])
            self.sleep(EXPIRY_SECONDS / 4)

    def statement(self, keys: list[int]) -> None:
        """INSERT. Raises :class:`IntegrityError` if a row is there, after whoever is writing it has ended."""
        self.world.scheduler.hop()
        database = self.world.database
        database.mine.wrote = True
        for key in keys:
            database.lock(key)
            if key in database.rows:
                raise IntegrityError(f"row {key} is there")
            database.mine.inserted.add(key)
        self.world.scheduler.note("INSERT", *keys)
        self.world.scheduler.hop()

    def add(self, keys: list[int]) -> None:
        """What follows an INSERT. Raises :class:`StoreError`: then it must not be committed."""
        tracked: Any = _Tracked(self.guard)
        written = _written(keys)
        statements.add_all([tracked], ROWS, lambda tracked: written)

    def delete(self, key: int) -> None:
        """DELETE, with a token for the generation that answers, which is redeemed after the COMMIT."""
        world, database = self.world, self.world.database
        generation = self.guard._runtime.active_filter.active() if world.counted else ""
        database.mine.wrote = True
        database.lock(key)
        if not self.finds(key):
            return
        world.scheduler.note("DELETE", key, "with a token for", generation)
        database.mine.deleted.add(key)
        world.scheduler.hop()
        number = database.rows.get(key)
        if generation and number is not None and number in database.unacknowledged:
            world.overdrawn.setdefault(number, set()).add(world.layout.cell(KEYS[key]))
        if generation:
            database.mine.on_commit.append(lambda: self.discard(key, generation))

    def finds(self, key: int) -> bool:
        """Whether the locked row is still there: of two that delete it, the second finds none."""
        return key in self.world.database.rows

    def discard(self, key: int, generation: str) -> None:
        """Redeem a token."""
        self.world.scheduler.hop()
        if self.world.rng.random() < 0.4:
            self.world.scheduler.sleep(self.world.rng.randrange(64) * TICK)  # other callbacks come first
        self.world.scheduler.note("discards", key, "from", generation)
        self.guard._runtime.active_filter.discard([KEYS[key]], generation)
        self.world.discarded(key)

    def rebuild(self, keep_standby: float) -> Rebuild:
        """A rebuild as the management command makes it, of the simulated rows."""
        made = Rebuild(self.guard, keep_standby=keep_standby, sleep=self.sleep, clock=self.clock)
        made.sources = SimulatedSources(self.world.database, make_key)
        return made


class World:
    """All of it, for one schedule."""

    current: World

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        World.current = self
        self.scheduler = Scheduler(seed, trace)
        self.rng = self.scheduler.rng
        self.database = Database(self.scheduler)
        self.servers = [Server(0, "life0", primary=True), Server(1, "", primary=False)]
        self.network = Network(self.scheduler, self.servers)
        self.processes: dict[str, Process] = {}
        self.wall: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        #: Transaction whose writer got an error, though its rows are there -> the cells of those of its rows that were
        #: deleted, so discarded, before the fence that is due. They were never added, so other rows of the cell may be
        #: denied until then: once in thousands of millions of times where cells have 32 bits, and often here.
        self.overdrawn: dict[int, set[Any]] = {}
        #: Called after each discard.
        self.discarded: Callable[[int], None] = lambda key: None
        self._pids = 100
        self._names = self._tokens = 0
        self._lives = 0
        #: Whether every host is quick; most races need one that is not, some need all.
        self.swift = self.rng.random() < 0.5
        #: Whether the guard's filter counts keys and can discard them.
        self.counted = self.rng.random() < 0.4
        self.layout = COUNTED if self.counted else EXACT
        first = self.rng.sample(range(len(KEYS)), 6)
        self.database.rows.update(dict.fromkeys(first, 0))
        for server in self.servers:
            server.generations["rg0"] = Counter(self.layout.cell(KEYS[key]) for key in first)
        #: Whether the guard has no filter yet.
        idle = self.rng.random() < 0.3
        for alias in ("default", "rows"):
            write_row(alias, _first_row("" if idle else "rg0"))

    def process(self, host: str) -> Process:
        """The host's process; a new one if the last was killed."""
        process = self.processes.get(host)
        if process is None or process.dead:
            process = self.new_process(host)
        return process

    def new_process(self, host: str) -> Process:
        """A process that knows nothing yet."""
        self._pids += 1
        made = self.processes[host] = Process(self, host, self._pids)
        return made

    def counts_adds(self) -> bool:
        """Whether a key that seems to be there is added all the same."""
        return self.counted

    def running(self) -> Process:
        """The process of the agent that runs."""
        process: Process = self.scheduler.current.process
        return process

    def new_name(self) -> str:
        self._names += 1
        return f"g{self._names}"

    def new_token(self) -> str:
        self._tokens += 1
        return f"t{self._tokens}"

    def new_life(self) -> str:
        self._lives += 1
        return f"life{self._lives}"

    def ask(self, process: Process, key: int) -> Decision:
        """Ask for ``key`` as a request does, and hold the answer against what was committed when it began."""
        committed = self.database.rows.get(key)
        acknowledged = committed is not None and committed not in self.database.unacknowledged
        self.scheduler.note("asks for", key)
        decision = process.guard._runtime.active_filter.ask(KEYS[key])
        self.scheduler.note("hears of", key, decision.reason)
        self.counts[decision.reason] += 1
        overdrawn = any(self.layout.cell(KEYS[key]) in cells for cells in self.overdrawn.values())
        acknowledged = acknowledged and not overdrawn
        if decision.verdict is Verdict.ABSENT and acknowledged and self.database.rows.get(key) == committed:
            raise FalseNotFound(f"row {key} was there all the time, and was answered 404")
        if decision is MAYBE:
            self.look_up(process, key)
        return decision

    def look_up(self, process: Process, key: int) -> None:
        """The query of a request that passed, from which the process learns if it finds nothing."""
        answering = process.guard._runtime.active_filter.answered_last
        self.scheduler.hop()
        there = key in self.database.rows
        self.scheduler.hop()
        if answering and not there:
            self.scheduler.note("finds no", key)
            cache = process.guard._runtime.active_filter.negative_cache
            if cache.is_in_use(answering) and cache.is_proved(answering, ROWS, "SELECT 1 WHERE %s", [key]):
                cache.remember(KEYS[key], answering)


def prepare() -> None:
    """The table of state rows with the guard's row, in memory, of a primary and of a standby; once a process."""
    for alias in ("default", "rows"):
        connection = connections[alias]
        connection.ensure_connection()
        connection.connection.create_function("pg_is_in_recovery", 0, lambda standby=(alias == "rows"): int(standby))
        with connection.schema_editor() as editor:
            editor.create_model(GuardState)
        GuardState.objects.using(alias).create(name=GUARD.name)
