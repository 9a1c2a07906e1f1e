"""What the guards did, as all processes counted it: by minute for a day, by hour for a month.

    series = figures.read(guards["city"], start, end, figures.MINUTE)
    series["blocked"], series.total("blocked"), series.times

Nothing here asks the database. A store that does not answer gives zeros, with the reason in :attr:`Series.error`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from math import ceil

from .counting.counts import ABSENCES, BLOCKED, FALSE_POSITIVE, MICROSECONDS, NAMES, SPARED, TIMED, UNKNOWNS
from .exceptions import BloomguardError
from .guards import Guard
from .stores import stores
from .stores.pages import COLUMNS, HOUR, KEPT_SECONDS, MINUTE, ROWS, Page, cells_of

__all__ = ["DAY", "HOUR", "MINUTE", "Series", "read", "read_many"]

DAY = 24 * HOUR

#: What is summed up of several things that are counted.
SUMS = {
    "absent": ABSENCES,
    "unknown": UNKNOWNS,
    "passed": ("maybe", *UNKNOWNS),
    "checks": ("maybe", *UNKNOWNS, *ABSENCES),
    "avoided": (BLOCKED, SPARED),
}
#: What a verdict was, by its reason.
VERDICTS = {reason: verdict for verdict in ("absent", "unknown") for reason in SUMS[verdict]} | {"maybe": "maybe"}


@dataclass(frozen=True)
class Series:
    """One guard's figures in steps of ``step`` seconds, the first of which begins at ``start``, in Unix seconds.

    ``counts`` has ``length`` numbers, one a step, for each of
    :data:`bloomguard.counting.counts.NAMES` that was counted at all.
    """

    guard: str
    start: int
    step: int
    length: int
    counts: dict[str, list[int]] = field(default_factory=dict)
    error: str = ""

    def __getitem__(self, name: str) -> list[int]:
        """One number a step, of ``name`` or of one of :data:`SUMS`; zeros for what never happened."""
        summed = [self.counts[part] for part in SUMS.get(name, (name,)) if part in self.counts]
        return list(map(sum, zip(*summed))) if summed else [0] * self.length

    def total(self, name: str) -> int:
        """The sum over all steps, of ``name`` or of one of :data:`SUMS`."""
        return sum(sum(self.counts.get(part, ())) for part in SUMS.get(name, (name,)))

    def by_reason(self, name: str) -> dict[str, int]:
        """What the total of one of :data:`SUMS` consists of, without what never happened, the most frequent first."""
        totals = {part: sum(self.counts.get(part, ())) for part in SUMS.get(name, (name,))}
        return {part: totals[part] for part in sorted(totals, key=totals.__getitem__, reverse=True) if totals[part]}

    @property
    def times(self) -> list[datetime]:
        """When each step began, in UTC."""
        first = datetime.fromtimestamp(self.start, timezone.utc)
        return [first + timedelta(seconds=self.step * number) for number in range(self.length)]

    @property
    def false_positive_rate(self) -> float | None:
        """The share of absent IDs that passed, 0 to 1; ``None`` where nobody asked for one."""
        passed, absent = self.total(FALSE_POSITIVE), self.total("absent")
        return passed / (passed + absent) if passed + absent else None

    @property
    def mean_check_seconds(self) -> float | None:
        """What a check took, of those that were timed; ``None`` where none was."""
        timed = self.total(TIMED)
        return self.total(MICROSECONDS) / timed / 1e6 if timed else None


def read(guard: Guard, start: datetime, end: datetime, step: int = MINUTE) -> Series:
    """One guard's figures; see :func:`read_many`."""
    return read_many([guard], start, end, step)[guard.name]


def read_many(guards: Iterable[Guard], start: datetime, end: datetime, step: int = MINUTE) -> dict[str, Series]:
    """The figures of several guards, by name, from ``start`` to before ``end``: one trip to each store.

    ``step`` is in seconds, a multiple of a minute. Steps of whole hours are summed up from hours, which are kept for
    31 days, others from minutes, which are kept for a day. ``start`` goes back to the full minute, or the full hour in
    UTC, and steps are counted from there. Figures are some seconds late. Raises :class:`ValueError` for another step.
    """
    if step <= 0 or step % MINUTE:
        raise ValueError(f"step is {step!r}; it has to be a number of seconds that are whole minutes")
    unit = HOUR if step % HOUR == 0 else MINUTE
    first = int(start.timestamp()) // unit
    length = max(0, ceil((end.timestamp() - first * unit) / step))
    rows = range(first, first + length * step // unit)
    # Of what is older nothing is kept, however long the time that was asked for.
    oldest = max(rows.start, rows.stop - KEPT_SECONDS[unit] // unit - ROWS)
    numbers = range(oldest // ROWS, (rows.stop - 1) // ROWS + 1)
    by_store: dict[str, list[Guard]] = {}
    for guard in guards:
        by_store.setdefault(guard.store, []).append(guard)
    found = {}
    for alias, some in by_store.items():
        wanted = [Page(guard.name, unit, number) for guard in some for number in numbers]
        counts: dict[str, dict[str, array[int]]] = {guard.name: {} for guard in some}
        error = ""
        try:
            for page, kept in zip(wanted, stores[alias].read_figures(wanted)):
                if kept:
                    _take(page, cells_of(kept), rows, counts[page.guard])
        except BloomguardError as problem:
            error = str(problem)
        for guard in some:
            summed = {name: _steps(column, step // unit) for name, column in counts[guard.name].items()}
            found[guard.name] = Series(guard.name, first * unit, step, length, summed, error)
    return found


def _take(page: Page, cells: array[int], rows: range, found: dict[str, array[int]]) -> None:
    """Put a page's part of ``rows`` into ``found``: one number a row for each name that was counted."""
    first = page.number * ROWS
    low, high = max(rows.start, first), min(rows.stop, first + ROWS)
    for column, name in enumerate(NAMES):
        counted = cells[(low - first) * COLUMNS + column : (high - first) * COLUMNS : COLUMNS]
        if any(counted):
            if name not in found:
                found[name] = array("I", bytes(cells.itemsize * len(rows)))
            found[name][low - rows.start : high - rows.start] = counted


def _steps(column: array[int], rows: int) -> list[int]:
    """Summed up by so many rows a step."""
    return column.tolist() if rows == 1 else list(map(sum, zip(*[iter(column)] * rows)))
