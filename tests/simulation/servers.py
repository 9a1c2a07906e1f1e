"""Simulated servers that fail over, lose what they acknowledged, come back from old snapshots and forget generations;
and the store through which a process reaches them, which proves who answers as the store for Redis does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bloomguard.exceptions import StoreError, StoreUnavailable, UnknownGeneration
from bloomguard.filters import CorruptFilter, FilterError
from bloomguard.filters.layout import Layout
from bloomguard.process import is_within
from bloomguard.stores import Generation, Store
from bloomguard.stores.base import FindKeyHash

from .scheduler import Scheduler

#: For how long a connection's proof of who answers is taken for good; losing an acknowledged write and being the
#: primary again takes a server longer.
PROVED_SECONDS = 0.25


#: What a generation holds: how often it holds each cell, a key of its own or one that several keys share; and for
#: ``("recent", key)`` how often the key was added by a write.
Cells = Counter[Any]
#: A cell that was counted this often counts no more.
SATURATED = 6


class Server:
    """One server: ``generations`` by name. ``life`` changes whenever connections to it break."""

    def __init__(self, number: int, identity: str, *, primary: bool) -> None:
        self.name = "ab"[number]
        self.identity = identity
        self.primary = primary
        self.alive = True
        self.life = 0
        self.demoted_at = float("-inf")
        self.generations: dict[str, Cells] = {}
        self.snapshot: dict[str, Cells] = {}
        self.full: set[str] = set()

    def copy(self) -> dict[str, Cells]:
        return {name: cells.copy() for name, cells in self.generations.items()}

    def held(self, name: str) -> Cells:
        """What a generation holds. One that is missing is not empty: its tags are not there."""
        try:
            return self.generations[name]
        except KeyError:
            raise CorruptFilter(f"{name} is gone") from None

    def add(self, name: str, keys: Sequence[bytes], cell: Callable[[bytes], int], once: bool) -> None:
        """Count the keys in a generation; raises :class:`StoreUnavailable` if it has no memory for them."""
        if name in self.full:
            raise StoreUnavailable(f"no memory is left for {name}")
        held = self.held(name)
        held.update(("recent", key) for key in keys)
        held.update(cell(key) for key in keys if not (once and held[cell(key)]))


class Network:
    """Which server each process reaches at the moment."""

    def __init__(self, scheduler: Scheduler, servers: list[Server]) -> None:
        self.scheduler = scheduler
        self.servers = servers
        self.route: dict[str, int] = {}
        self.cut: set[str] = set()
        self.lossy = 0.0  # the share of replies that are lost

    def server(self, host: str) -> Server | None:
        server = self.servers[self.route.get(host, 0)]
        return server if server.alive and host not in self.cut else None


class _Connection:
    def __init__(self, server: Server, identity: str, at: float) -> None:
        self.server, self.life, self.identity, self.at = server, server.life, identity, at


class SimulatedStore(Store):
    """One process's way to the servers. Each thread has a connection of its own for each kind of trip."""

    is_remote = True  # type: ignore[misc]

    def __init__(self, process: Any, network: Network) -> None:
        super().__init__("simulated")
        self._process = process
        self._network = network
        self._scheduler = network.scheduler
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._identity = ("", float("-inf"))

    def trip(self, kind: str, action: Any, identity: str | None = None) -> tuple[str, Any]:
        """Run ``action(server)`` there, as one atomic command: who answered, and its result."""
        scheduler, key = self._scheduler, (self._scheduler.current.name, kind)
        scheduler.hop()  # the command is on its way
        server = self._network.server(self._process.host)
        connection = self._connections.get(key)
        if connection is not None and server is not None and self._process.host not in self._network.cut:
            server = connection.server if connection.server.alive else None
        if server is None or (connection is not None and connection.life != server.life):
            self._connections.pop(key, None)
            raise StoreUnavailable("no connection to the server")
        if not server.primary:
            self._connections.pop(key, None)
            raise StoreUnavailable("the server refuses commands: READONLY")
        now = self._process.clock_now()
        if connection is None:
            connection = self._connections[key] = _Connection(server, server.identity, now)
        elif not is_within(PROVED_SECONDS, connection.at, now):
            connection.identity, connection.at = server.identity, now
        try:
            reply: Any = action(server)
        except FilterError as error:
            reply = error
        found = connection.identity
        scheduler.hop()  # the reply is
        if scheduler.random() < self._network.lossy:
            self._connections.pop(key, None)
            raise StoreUnavailable("the server did not answer in time")
        if not self.proves(found, identity):
            raise StoreError("another server answers than the one that the filter was built in, or it was restarted")
        if isinstance(reply, FilterError):
            raise reply
        return found, reply

    def proves(self, found: str, expected: str | None) -> bool:
        """Whether the server ``found`` is the one that was built in."""
        return expected is None or found == expected

    @property
    def identity(self) -> str:
        known, at = self._identity
        if not is_within(PROVED_SECONDS, at, self._process.clock()):
            known = self.read(lambda server: server.identity)
        return known

    def read(self, action: Any, identity: str | None = None) -> Any:
        found, reply = self.trip("read", action, identity)
        self._identity = found, self._process.clock()
        return reply

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        found, _ = self.trip("bulk", lambda server: server.generations.setdefault(name, Counter()))
        return SimulatedGeneration(self, name, layout, found, draft=Counter())

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        identity = identity or self.identity
        if not self.read(lambda server: self.has(server, name), identity):
            raise UnknownGeneration(f"{name} is not there")
        return SimulatedGeneration(self, name, self._process.world.layout, identity)

    def has(self, server: Server, name: str) -> bool:
        return name in server.generations

    def drop(self, guard: str, name: str) -> None:
        self._scheduler.note("drops", name)
        self.trip("bulk", lambda server: server.generations.pop(name, None))

    def names(self, guard: str) -> list[str]:
        found: list[str] = self.read(lambda server: list(server.generations))
        return sorted(found)

    def free_bytes(self) -> int | None:
        return None


class SimulatedGeneration(Generation):
    """A generation that errs only where ``layout.cell`` gives two keys one cell, which filters that discard do."""

    def __init__(
        self, store: SimulatedStore, name: str, layout: Any, identity: str, draft: Cells | None = None
    ) -> None:
        self.name = name
        self.layout = layout
        self._store = store
        self.identity = self._identity = identity
        self._draft = draft  # what its builder has added in bulk, until it is sealed
        self._cell: Callable[[bytes], int] = layout.cell
        self.might_contain = self._might_contain

    def _might_contain(self, key: bytes) -> bool:
        cell = self._cell(key)
        found: bool = self._store.read(lambda server: server.held(self.name)[cell] > 0, self._identity)
        return found

    def might_contain_many(self, keys: Iterable[bytes]) -> list[bool]:
        cells = [self._cell(key) for key in keys]
        found: list[bool] = self._store.read(
            lambda server: [server.held(self.name)[cell] > 0 for cell in cells], self._identity
        )
        return found

    def is_recent(self, key: bytes) -> bool:
        return self.times_added(key) > 0

    def times_added(self, key: bytes) -> int:
        """How often the key was added by a write."""
        found: int = self._store.read(lambda server: server.held(self.name)["recent", key], self._identity)
        return found

    def add(self, keys: Iterable[bytes], *, once: bool = False) -> None:
        keys = list(keys)
        self._store.trip("add", lambda server: server.add(self.name, keys, self._cell, once), self._identity)

    def discard(self, keys: Iterable[bytes]) -> None:
        cells = [self._cell(key) for key in keys]

        def take_out(server: Server) -> None:
            held = server.held(self.name)
            for cell in cells:
                if 0 < held[cell] < SATURATED:
                    held[cell] -= 1

        self._store.trip("add", take_out, self._identity)

    def add_many(self, keys: Any) -> None:
        if self._draft is None:
            self.add(keys)
        else:
            self._draft.update(self._cell(key) for key in keys)

    def seal(self) -> None:
        if self._draft is not None:
            draft = self._draft
            self._store.trip("bulk", lambda server: server.held(self.name).update(draft), self._identity)
            self._draft = None

    def filters(self) -> Iterable[Any]:
        return []

    def read_shard(self, shard: int) -> Any:
        raise NotImplementedError("cells are no bytes")

    def merge(self, shard: int, body: memoryview) -> int:
        raise NotImplementedError("cells are no bytes")

    def measure_error_rate(self, probes: int = 100_000) -> float:
        return 0.0
