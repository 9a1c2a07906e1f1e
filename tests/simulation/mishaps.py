"""What befalls hosts and the database besides: a host sleeps, a connection ends at a standby, a dump is loaded.

Drawn apart from everything else, and in a third of the schedules alone, so that the others stay what they were.
"""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Any

from django.db import connections

from bloomguard.models import GuardState
from bloomguard.writes import state_rows

from .scheduler import TICK
from .world import World

_COLUMNS = [field.column for field in GuardState._meta.concrete_fields]


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
        self.dump: tuple[Any, ...] = self._row()

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

    def lag(self) -> None:
        """The standby catches up, or hosts find it in place of the primary, or no longer."""
        database, rng = self.world.database, self.rng
        if rng.random() < 0.4:
            self._write(connections["rows"].connection, self._row())
        elif database.behind and rng.random() < 0.5:
            database.behind.clear()
        else:
            database.behind.add(rng.choice(["web1", "web2"]))
        self.world.scheduler.note("reads of the standby:", *sorted(database.behind))

    def load(self) -> None:
        """A dump of the state row is made, or loaded again, as ``loaddata`` does it."""
        if self.rng.random() < 0.6:
            self.dump = self._row()
            return
        row = GuardState(**dict(zip(_COLUMNS, self.dump)))
        state_rows._loaded(row, using="default", raw=True)
        values = [getattr(row, column) for column in _COLUMNS]
        plain = tuple(str(value) if hasattr(value, "isoformat") else value for value in values)
        self._write(connections["default"].connection, plain)
        self.world.counts["loaded"] += 1
        self.world.scheduler.note("loads a dump")

    def _row(self) -> tuple[Any, ...]:
        sql = f"SELECT {', '.join(_COLUMNS)} FROM bloomguard_guardstate"
        return tuple(connections["default"].connection.execute(sql).fetchone())

    @staticmethod
    def _write(raw: Any, row: tuple[Any, ...]) -> None:
        marks = ", ".join(f"{column} = ?" for column in _COLUMNS)
        raw.execute(f"UPDATE bloomguard_guardstate SET {marks}", row)
