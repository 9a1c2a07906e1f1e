"""What the guards did, as all processes counted it: by minute for a day, by hour for a month.

    series = figures.read(guards["city"], start, end, step=HOUR)
    series["blocked"], series.total("blocked"), series.times

Nothing here touches the database. A store that does not answer gives a series of zeros that says so in its ``error``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from .guards import Guard

MINUTE, HOUR, DAY = 60, 3_600, 86_400


@dataclass(frozen=True)
class Series:
    """One guard's figures in steps of ``step`` seconds, the first of which begins at ``start`` (Unix seconds).

    ``counts`` has a list with one number a step for each thing counted, by its name; what never happened is not there.
    """

    guard: str
    start: int
    step: int
    length: int
    counts: dict[str, list[int]] = field(default_factory=dict)
    error: str = ""

    def __getitem__(self, name: str) -> list[int]:
        """One number a step: a name of :data:`~bloomguard.counts.NAMES`, or ``"passed"``, ``"unknown"``, ``"avoided"``,
        ``"checks"``; zeros for what never happened."""
        return self.counts.get(name, [0] * self.length)

    def total(self, name: str) -> int:
        """The sum of :meth:`__getitem__`."""
        return sum(self[name])

    @property
    def times(self) -> list[datetime]:
        """When each step began, in UTC."""
        first = datetime.fromtimestamp(self.start, timezone.utc)
        return [first + timedelta(seconds=self.step * number) for number in range(self.length)]


def read(guard: Guard, start: datetime, end: datetime, step: int = MINUTE) -> Series:
    """One guard's figures from ``start`` to before ``end``, in steps of ``step`` seconds."""
    return read_many([guard], start, end, step)[guard.name]


def read_many(guards: Iterable[Guard], start: datetime, end: datetime, step: int = MINUTE) -> dict[str, Series]:
    """The figures of several guards by name, in one trip to each store."""
    length = -(-int(end.timestamp() - start.timestamp()) // step)
    return {guard.name: Series(guard.name, int(start.timestamp()), step, length) for guard in guards}
