"""What befalls hosts and the database besides: a host sleeps, a connection ends at a standby, a dump is loaded.

Drawn apart from everything else, and in a third of the schedules alone, so that the others stay what they were. In a
tenth, which is drawn apart too, clocks go back.
"""

from __future__ import annotations

from copy import copy
from datetime import datetime
from random import Random

from bloomguard.writes import state_rows

from .database import read_row, write_row
from .scheduler import TICK
from .world import World


class Mishaps:
    """An agent of its own; :attr:`kinds` is empty where nothing of this is to happen."""

    dead = False
    host = "elsewhere"
    asleep_until = 0.0
    pace = [0]

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = Random(f"mishaps of {seed}")
        kinds = [self.suspend, self.lag, self.load]
        self.kinds = [kind for kind in kinds if self.rng.random() < 0.6] if self.rng.random() < 0.34 else []
        self._checkpoints = Random(f"checkpoints of {seed}")
        if self._checkpoints.random() < 0.1:
            self.kinds.append(self.restore_elsewhere)
        self.dump = read_row("default")

    def wall(self) -> datetime:
        """The time of day, as who loads a dump has it."""
        return self.world.processes["web1"].wall()

    def run(self) -> None:
        rng, scheduler = self.rng, self.world.scheduler
        while self.kinds:
            scheduler.sleep(rng.randrange(96) * TICK)
            rng.choice(self.kinds)()

    def suspend(self) -> None:
        """A laptop is shut, a virtual machine moved: the process stands still, and time does not."""
        process = self.world.processes[self.rng.choice(sorted(self.world.processes))]
        seconds = self.rng.randrange(16, 160) * TICK
        process.asleep_until = self.world.scheduler.now + seconds
        process.slept += seconds
        self.world.scheduler.note("puts", process.host, "to sleep for", seconds)

    def restore_elsewhere(self) -> None:
        """A process goes on from a checkpoint, at once or later, on a host that was started after its own."""
        rng = self._checkpoints
        process = self.world.processes[rng.choice(sorted(self.world.processes))]
        process.asleep_until = self.world.scheduler.now + rng.choice([0, 0, rng.randrange(64)]) * TICK
        process.offset -= 1_000.0
        self.world.counts["restored elsewhere"] += 1
        self.world.scheduler.note("restores", process.host, "on a host with an earlier clock")

    def lag(self) -> None:
        """The standby catches up, or hosts find it in place of the primary, or no longer."""
        database, rng = self.world.database, self.rng
        if rng.random() < 0.4:
            write_row("rows", read_row("default"))
        elif database.behind and rng.random() < 0.5:
            database.behind.clear()
        else:
            database.behind.add(rng.choice(["web1", "web2"]))
        self.world.scheduler.note("reads of the standby:", *sorted(database.behind))

    def load(self) -> None:
        """A dump of the state row is made, or loaded again, as ``loaddata`` does it."""
        if self.rng.random() < 0.6:
            self.dump = read_row("default")
            return
        row = copy(self.dump)
        state_rows._loaded(row, using="default", raw=True)
        write_row("default", row)
        self.world.counts["loaded"] += 1
        self.world.scheduler.note("loads a dump")
