"""Who acts in a simulated world: writers, readers, builders, and whoever breaks things."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from django.db import DatabaseError, IntegrityError, OperationalError

from bloomguard.exceptions import BuilderBusy, RebuildError, StoreError
from bloomguard.rebuild import clear_away, roll_back_all
from bloomguard.state.row import State
from bloomguard.state.verdicts import MAYBE

from .database import Transaction
from .mishaps import Mishaps
from .scheduler import PACES, TICK
from .world import KEYS, Process, World

SECONDS = 24.0


class RolledBack(Exception):
    """A transaction that its own program gives up."""


def writer(world: World, process: Process) -> None:
    """Inserts rows for ever."""
    while True:
        world.scheduler.sleep(world.rng.randrange(20) * TICK)
        write(world, process)


def write(world: World, process: Process) -> None:
    """One transaction that inserts a row or two, or deletes one. Some dawdle, some are rolled back."""
    rng, database = world.rng, world.database
    touched = database.touched()
    free = [key for key in range(len(KEYS)) if key not in database.rows and key not in touched]
    deletes = rng.random() < (0.5 if world.counted else 0.4) and len(database.rows) > 3
    if not free and not deletes:
        return
    try:
        with database.atomic() if deletes or rng.random() < 0.6 else nullcontext():  # or in autocommit
            if rng.random() < 0.2:
                world.scheduler.hop()
            if deletes:
                going = [key for each in database.open.values() for key in each.deleted]
                process.delete(rng.choice(going if going and rng.random() < 0.6 else list(database.rows)))
            else:
                insert(world, process, sorted(rng.sample(free, min(len(free), rng.choice([1, 1, 2])))))
            if rng.random() < 0.1:
                world.scheduler.sleep(rng.randrange(64) * TICK)
            if rng.random() < 0.1:
                raise RolledBack
    except RolledBack:
        world.scheduler.note("ROLLBACK")
    except StoreError:
        world.counts["refused"] += 1
    except (IntegrityError, OperationalError) as error:
        world.scheduler.note("fails:", error)
        world.counts["failed"] += 1


def insert(world: World, process: Process, keys: list[int]) -> None:
    """An INSERT. In a transaction some go on after an error, as if nothing were."""
    try:
        process.insert(keys)
    except StoreError:
        if not world.database.is_open() or world.rng.random() < 0.5:
            raise


def reader(world: World, process: Process) -> None:
    """Asks for rows for ever, most often for one of the latest, and now and then for one that is not there."""
    rng, rows = world.rng, world.database.rows
    while True:
        world.scheduler.sleep(rng.randrange(20) * TICK)
        if rng.random() < 0.5:
            key = rng.randrange(len(KEYS))
            for _ in range(rng.choice([1, 2])):
                world.ask(process, key)
        keys = list(rows)
        if not keys:
            continue  # a dump from before the first row was restored
        if world.ask(process, keys[-1 - min(len(keys) - 1, int(rng.expovariate(0.5)))]) is not MAYBE:
            world.scheduler.sleep(rng.randrange(16) * TICK)  # out of service: nothing to see until that changes


class Curiosity:
    """Chance alone seldom brings together what belongs to a race. So others ask for a row as soon as it is committed;
    and as soon as the state row has changed somebody writes, and the one who changed it is held up, or dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.eager = world.rng.choice([0.4, 0.8])
        world.database.committed = self.committed
        world.database.changed = self.changed
        world.discarded = self.discarded

    def committed(self, done: Transaction) -> None:
        """Ask for what was inserted."""
        if done.inserted:
            self._ask(min(done.inserted))

    def discarded(self, key: int) -> None:
        """Ask for a row that shares its cell with what was discarded."""
        cell = self.world.layout.cell
        shared = [other for other in self.world.database.rows if cell(KEYS[other]) == cell(KEYS[key])]
        if shared:
            self._ask(shared[0])

    def _ask(self, key: int) -> None:
        for host in WEBS:
            if self.world.rng.random() < self.eager:
                self._spawn(self.world.processes[host], "asker", self.world.ask, key)

    def changed(self) -> None:
        """Write, in a process that has a copy of the row as it was, or in one that has just begun."""
        rng = self.world.rng
        if rng.random() < self.eager:
            if rng.random() < 0.4:
                process = self.world.processes[rng.choice(WEBS)]
            else:
                process = self.world.new_process("shell")
                self.world.network.route["shell"] = rng.randrange(2)
            self._spawn(process, "hasty", lambda process: write(self.world, process))
        chance = rng.random()
        if chance < 0.04:
            kill(self.world, self.world.running().host)
        elif chance < 0.35:
            self.world.scheduler.sleep(rng.randrange(4, 20) * TICK)

    def _spawn(self, process: Process, name: str, target: Callable[..., object], *arguments: object) -> None:
        delay = self.world.rng.choice([0, 0, 0, 1, 2, 4, 8]) * TICK
        self.world.scheduler.spawn(f"{process.host}.{name}", process, target, process, *arguments, delay=delay)


def builder(world: World, process: Process) -> None:
    """Rebuilds now and then, as cron does. Sometimes the generation before is kept, and somebody goes back to it."""
    pause = 32
    while True:
        world.scheduler.sleep(world.rng.randrange(pause) * TICK)
        pause = build(world, process)


def build(world: World, process: Process) -> int:
    """One rebuild and perhaps a roll-back; how many ticks to wait at most before the next."""
    rng = world.rng
    try:
        process.rebuild(keep_standby=rng.choice([0, 3600])).run()
        if rng.random() < 0.5:
            world.scheduler.sleep(rng.randrange(32) * TICK)
            world.scheduler.note("goes back")
            found = roll_back_all([process.guard], process.sleep)[0]
            world.counts["gone back"] += isinstance(found, State)
        elif rng.random() < 0.1:
            clear_away([process.guard], process.sleep)
    except RebuildError as error:
        world.counts["not published"] += 1
        world.scheduler.note("gives up:", error)
        return 64 if isinstance(error, BuilderBusy) else 16
    except DatabaseError:
        world.scheduler.note("cannot go back: the database is gone")
    return 32


WEB, CRON = {"writer": writer, "reader": reader}, {"builder": builder}
WEBS = ["web1", "web2"]
HOSTS = {"web1": WEB, "web2": WEB, "cron1": CRON, "cron2": CRON}


def start(world: World, host: str, delay: float = 0.0) -> None:
    """Start the process of a host with all its threads."""
    process = world.process(host)
    for name, agent in HOSTS[host].items():
        world.scheduler.spawn(f"{host}.{name}", process, agent, world, process, delay=delay)


def kill(world: World, host: str) -> None:
    """kill -9, and a supervisor that starts the process again."""
    world.processes[host].dead = True
    world.scheduler.note("kills", host)
    if host in HOSTS:
        start(world, host, delay=world.rng.randrange(32) * TICK)


_SPLIT = ["split", "split", "heal"]
_ALL = ["promote", "heal", "reroute", "cut", "flush", "evict", "restore", "save"]
_ALL += ["kill", "fill", "step_wall_clock", "lose_database"]
#: What may break in a schedule: one of these is drawn. A mutant may narrow them down to what it needs.
WEATHERS = [[], ["cut"], ["fill"], ["replicate", "reroute", "promote", "heal"], _SPLIT, _SPLIT]
WEATHERS += [["kill", "cut", "evict", "fill"], _ALL, _ALL]


class Faults:
    """Breaks things in storms, with a calm after each. Each schedule has a weather of its own: some kinds of faults."""

    dead = False
    host = "elsewhere"
    asleep_until = 0.0
    pace = PACES[0]

    def __init__(self, world: World) -> None:
        self.world = world
        rng = world.rng
        self.kinds = [getattr(self, kind) for kind in rng.choice(WEATHERS) if rng.random() < 0.7]
        if rng.random() < 0.15:
            world.database.lossy = world.network.lossy = 0.04
        if rng.random() < 0.3:
            world.database.slow = 0.2  # for web hosts: their copies of the row grow old on the way

    def run(self) -> None:
        rng, scheduler = self.world.rng, self.world.scheduler
        while self.kinds:
            scheduler.sleep(rng.randrange(112) * TICK)
            for _ in range(rng.choice([1, 1, 2, 3, 6])):
                if rng.random() < 0.5:
                    self.replicate()
                rng.choice(self.kinds)()
                scheduler.sleep(rng.choice([0, 1, 4, 8, 16]) * TICK)
            if rng.random() < 0.8:
                self.repair()

    def repair(self) -> None:
        """Somebody sees to it that every host reaches the newest primary."""
        servers = self.world.servers
        primaries = [number for number, server in enumerate(servers) if server.primary and server.alive]
        if primaries:
            newest = max(primaries, key=lambda number: int(servers[number].identity[4:]))
            self.world.network.route = dict.fromkeys(HOSTS, newest)
            self.world.network.cut.clear()

    def _roles(self) -> tuple[int, int] | None:
        """Who is the primary and who the replica, if it is one of each."""
        a, b = self.world.servers
        if a.primary == b.primary:
            return None
        return (0, 1) if a.primary else (1, 0)

    def replicate(self) -> None:
        """The replica catches up, long after its primary acknowledged."""
        roles = self._roles()
        if roles and self.world.servers[roles[0]].alive:
            source, sink = (self.world.servers[role] for role in roles)
            sink.generations = source.copy()

    def promote(self) -> None:
        """The replica becomes a primary. The old one lives on beside it, or dies."""
        roles = self._roles()
        if not roles:
            return
        old, new = (self.world.servers[role] for role in roles)
        if self.world.scheduler.now - new.demoted_at < 0.5:
            return
        new.primary, new.identity, new.alive = True, self.world.new_life(), True
        old.alive = self.world.rng.random() < 0.5
        self.world.scheduler.note(f"promotes {new.name} to {new.identity}; {old.name} lives: {old.alive}")
        if self.world.rng.random() < 0.7:
            for host in HOSTS:
                if self.world.rng.random() < (0.4 if host in WEBS else 0.9):
                    self.world.network.route[host] = roles[1]

    def split(self) -> None:
        """The replica becomes a primary that some hosts reach, others do not; somebody rebuilds at once."""
        world, roles = self.world, self._roles()
        if (
            not roles
            or not world.servers[roles[0]].alive
            or world.scheduler.now - world.servers[roles[1]].demoted_at < 0.5
        ):
            return
        new = world.servers[roles[1]]
        new.primary, new.identity, new.alive = True, world.new_life(), True
        world.network.route = {host: world.rng.choice(roles) if host in WEBS else roles[1] for host in HOSTS}
        world.scheduler.note(f"promotes {new.name} to {new.identity} beside the other")
        world.scheduler.spawn("cron1.hurry", world.processes["cron1"], build, world, world.processes["cron1"])

    def heal(self) -> None:
        """A split brain ends: the older primary becomes a replica of the newer, its connections stay."""
        a, b = self.world.servers
        if a.primary and b.primary:
            new, old = (a, b) if int(a.identity[4:]) > int(b.identity[4:]) else (b, a)
            if not new.alive:
                return
            old.primary, old.alive, old.generations = False, True, new.copy()
            old.demoted_at = self.world.scheduler.now
            self.world.scheduler.note(f"makes {old.name} a replica of {new.name}")

    def reroute(self) -> None:
        """A host reaches another server, the wrong one perhaps."""
        host = self.world.rng.choice(list(HOSTS))
        self.world.network.route[host] = self.world.rng.randrange(2)

    def cut(self) -> None:
        """A host is cut off from the servers, or comes back."""
        self.world.network.cut.symmetric_difference_update({self.world.rng.choice(list(HOSTS))})

    def flush(self) -> None:
        """FLUSHALL."""
        server = self.world.rng.choice(self.world.servers)
        server.generations = {}
        self.world.scheduler.note("flushes", server.name)

    def evict(self) -> None:
        """A server short of memory lets a generation go."""
        server = self.world.rng.choice(self.world.servers)
        if server.generations:
            name = self.world.rng.choice(sorted(server.generations))
            del server.generations[name]
            self.world.scheduler.note("evicts", name, "from", server.name)

    def fill(self) -> None:
        """The server has no memory left: a generation takes no more keys."""
        server = self.world.rng.choice(self.world.servers)
        if server.generations:
            name = self.world.rng.choice(sorted(server.generations))
            server.full.add(name)
            self.world.scheduler.note("fills", name, "of", server.name)

    def save(self) -> None:
        """A server writes a snapshot."""
        server = self.world.rng.choice(self.world.servers)
        server.snapshot = server.copy()

    def restore(self) -> None:
        """A primary restarts from its last snapshot: with less than it acknowledged."""
        server = self.world.rng.choice(self.world.servers)
        if server.primary:
            server.generations = {name: cells.copy() for name, cells in server.snapshot.items()}
            server.identity, server.alive = self.world.new_life(), True
            server.life += 1
            self.world.scheduler.note("restarts", server.name, "from an old snapshot as", server.identity)

    def kill(self) -> None:
        """Any process dies."""
        kill(self.world, self.world.rng.choice(list(HOSTS)))

    def step_wall_clock(self) -> None:
        """A host's time of day jumps, by more than it takes to be held for dead."""
        host = self.world.rng.choice(list(HOSTS))
        self.world.wall[host] = self.world.rng.choice([-100.0, 0.0, 100.0])

    def lose_database(self) -> None:
        """The database does not answer for a while."""
        self.world.database.down_until = self.world.scheduler.now + self.world.rng.randrange(40) * TICK


def run(seed: int, trace: list[str] | None = None) -> World:
    """One schedule. Raises :class:`FalseNotFound`."""
    world = World(seed, trace)
    for host in HOSTS:
        start(world, host)
    Curiosity(world)
    faults = Faults(world)
    world.scheduler.spawn("faults", faults, faults.run)
    mishaps = Mishaps(world, seed)
    if mishaps.kinds:
        world.scheduler.spawn("mishaps", mishaps, mishaps.run)
    world.scheduler.run(SECONDS)
    world.counts["commits"] += world.database.commits
    world.counts["published"] += world.database.published
    world.counts["events"] += world.scheduler.events
    return world
