"""One simulated world: hosts with processes, two servers, a database; and the oracle, which knows what is committed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

from django.db import connections

from bloomguard.guards import Guard
from bloomguard.live import LiveFilter
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.sync import statements
from bloomguard.sync.state import StateTable
from bloomguard.verdicts import Decision, Verdict
from tests.guarding import make_guard
from tests.shop.models import Product

from .database import ROWS, Database, SimulatedConnection, SimulatedSource
from .scheduler import PACES, START, Lock, Scheduler
from .servers import Network, Server, SimulatedStore

_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)

GUARD = make_guard(Product, name="simulated", filter="bloom")
make_key: Callable[[int], bytes] = GUARD.keys.key
KEYS = [make_key(number) for number in range(1_000)]
LAYOUT: Any = SimpleNamespace(kind="exact", capacity=len(KEYS), total_bytes=0, error_rate=0.0)


class FalseNotFound(Exception):
    """A guard said ABSENT of a row that was committed before it was asked."""


class SimulatedLive(LiveFilter):
    """The real thing, with a simulated store."""

    simulated: SimulatedStore

    @property
    def store(self) -> SimulatedStore:
        return self.simulated

    def key_hashes(self) -> list[Any]:
        return [(0, None)]  # exact generations hash nothing


class Process:
    """One process of a host: its own copy of the state rows, its own store, its own clocks."""

    layout = LAYOUT

    def __init__(self, world: World, host: str, pid: int) -> None:
        self.world = world
        self.host = host
        self.pid = pid
        self.dead = False
        scheduler = world.scheduler
        self.pace = scheduler.rng.choice(PACES)
        self._offset = float(world.scheduler.rng.randrange(-500, 500))
        self.store = SimulatedStore(self, world.network)
        self.table = StateTable(SimulatedConnection(world.database), self.clock)
        self.table.sleep = scheduler.sleep
        self.table._lock = Lock(scheduler)  # type: ignore[assignment]
        self.guard: Guard = copy.copy(GUARD)
        live = SimulatedLive(
            GUARD.name, store_alias="simulated", definition="words", width=GUARD.keys.width, table=self.table
        )
        live.simulated = self.store
        live._lock = Lock(scheduler)  # type: ignore[assignment]
        self.guard.__dict__["live"] = live

    def clock(self) -> float:
        """Monotonic; a thread may be put aside just before it looks, for long."""
        scheduler = self.world.scheduler
        if scheduler.random() < 0.04:
            scheduler.hop()
        return scheduler.now + self._offset

    def clock_now(self) -> float:
        """The same, looked at as part of something that nothing else comes between."""
        return self.world.scheduler.now + self._offset

    def wall(self) -> datetime:
        """The host's idea of the time of day, which steps at times."""
        world = self.world
        return _EPOCH + timedelta(seconds=world.scheduler.now - START + world.wall.get(self.host, 0.0))

    def insert(self, keys: list[int]) -> None:
        """What the ORM does for ``bulk_create`` or ``save``: the wrapped compiler, in a transaction."""
        database, world = self.world.database, self.world

        def execute(compiler: Any, returning_fields: Any) -> list[Any]:
            world.scheduler.hop()
            mine = database.open[world.scheduler.current]
            mine.wrote = True
            mine.inserted.update(keys)
            world.scheduler.note("INSERT", *keys)
            world.scheduler.hop()
            return []

        statements._inserting(execute)(_compiler(keys), None)

    def rebuild(self) -> Rebuild:
        """A rebuild as the management command makes it, of the simulated rows."""
        made = Rebuild(self.guard, sleep=self.world.scheduler.sleep, clock=self.clock)
        made.source = SimulatedSource(self.world.database, make_key)  # type: ignore[assignment]
        return made


def _compiler(keys: list[int]) -> Any:
    """What the wrapper looks at of a compiler."""
    return SimpleNamespace(
        query=SimpleNamespace(
            get_meta=lambda: Product._meta,
            fields=[Product._meta.pk],
            objs=[SimpleNamespace(id=key) for key in keys],
        ),
        using=ROWS,
        connection=SimpleNamespace(features=SimpleNamespace(can_return_rows_from_bulk_insert=True)),
    )


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
        self._pids = 100
        self._names = 0
        self._lives = 0
        first = set(self.rng.sample(range(len(KEYS)), 4))
        self.database.rows.update(dict.fromkeys(first, START))
        for server in self.servers:
            server.generations["g0"] = {KEYS[key] for key in first}
        raw = connections["default"].connection
        raw.execute("UPDATE bloomguard_guardstate SET version=1, status='armed', identity='life0', active='g0', "
                    "standby='', building='', builder='', builder_seen_at=NULL, fenced_at=NULL, reason=''")

    def process(self, host: str) -> Process:
        """The host's process; a new one if the last was killed."""
        process = self.processes.get(host)
        if process is None or process.dead:
            self._pids += 1
            process = self.processes[host] = Process(self, host, self._pids)
        return process

    def running(self) -> Process:
        """The process of the agent that runs."""
        process: Process = self.scheduler.current.process
        return process

    def new_name(self) -> str:
        self._names += 1
        return f"g{self._names}"

    def new_life(self) -> str:
        self._lives += 1
        return f"life{self._lives}"

    def ask(self, process: Process, key: int) -> Decision:
        """Ask for ``key`` as a request does, and hold the answer against what was committed when it began."""
        committed = self.database.rows.get(key)
        self.scheduler.note("asks for", key)
        decision = process.guard.live.ask(KEYS[key])
        self.scheduler.note("hears of", key, decision.reason)
        self.counts[decision.reason] += 1
        if decision.verdict is Verdict.ABSENT and committed is not None and self.database.rows.get(key) == committed:
            raise FalseNotFound(f"row {key}, committed at {committed - START:.4f}, was answered 404")
        return decision


def prepare() -> None:
    """The table of state rows with the guard's row, in memory; once a process."""
    connection = connections["default"]
    connection.ensure_connection()
    with connection.schema_editor() as editor:
        editor.create_model(GuardState)
    GuardState.objects.create(name=GUARD.name)
