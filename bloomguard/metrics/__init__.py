"""Count verdicts, and read the counts of all processes as time series: by minute for a day, by hour for a month.

    found = read_series([registry["city"]], start, end)["city"]
    found["blocked"], found.total("blocked"), found.times

Nothing here queries the database. If a store does not respond, its series are zeros, with the reason in
:attr:`Series.error`. ``flush`` writes the counts of a process to the stores.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from math import ceil

from ..exceptions import BloomGuardError
from ..guards import Guard
from ..guards.counters import ABSENCES, AVOIDED, BLOCKED, FALSE_POSITIVE, MICROSECONDS, NAMES, TIMED, UNKNOWNS
from ..stores import stores
from ..stores.pages import COLUMNS, HOUR, KEPT_SECONDS, MINUTE, ROWS, Page, cells_of

__all__ = ["DAY", "HOUR", "MINUTE", "Series", "read_series"]

DAY = 24 * HOUR

#: Names of sums -> the names in :data:`~bloomguard.guards.counters.NAMES` that they add up.
SUMS = {
    "absent": ABSENCES,
    "unknown": UNKNOWNS,
    "passed": ("maybe", *UNKNOWNS),
    "checks": ("maybe", *UNKNOWNS, *ABSENCES),
    "avoided": (BLOCKED, AVOIDED),
}
#: Reason -> verdict.
VERDICTS = {reason: verdict for verdict in ("absent", "unknown") for reason in SUMS[verdict]} | {"maybe": "maybe"}


@dataclass(frozen=True)
class Series:
    """One guard's counts in steps of ``step`` seconds; the first step begins at ``start``, in Unix seconds.

    ``counts`` has a list of ``length`` numbers, one per step, for each name that was counted at least once. The names
    are on the page docs/monitoring.md; some are sums of others. ``error`` is why the store could not be read, if so.
    """

    guard: str
    start: int
    step: int
    length: int
    counts: dict[str, list[int]] = field(default_factory=dict)
    error: str = ""

    def __getitem__(self, name: str) -> list[int]:
        """Return one number per step for ``name``; zeros if it was never counted. Never raises."""
        summed = [self.counts[part] for part in SUMS.get(name, (name,)) if part in self.counts]
        return list(map(sum, zip(*summed))) if summed else [0] * self.length

    def total(self, name: str) -> int:
        """Return the sum over all steps for ``name``. Never raises."""
        return sum(sum(self.counts.get(part, ())) for part in SUMS.get(name, (name,)))

    def by_reason(self, name: str) -> dict[str, int]:
        """Return the parts of a total that are not 0, the largest first: ``absent`` by reason, for example."""
        totals = {part: sum(self.counts.get(part, ())) for part in SUMS.get(name, (name,))}
        return {part: totals[part] for part in sorted(totals, key=totals.__getitem__, reverse=True) if totals[part]}

    @property
    def times(self) -> list[datetime]:
        """The start of each step, in UTC."""
        first = datetime.fromtimestamp(self.start, timezone.utc)
        return [first + timedelta(seconds=self.step * number) for number in range(self.length)]

    @property
    def false_positive_rate(self) -> float | None:
        """The share of checked absent IDs that passed, 0 to 1; ``None`` if none was checked."""
        passed, absent = self.total(FALSE_POSITIVE), self.total("absent")
        return passed / (passed + absent) if passed + absent else None

    @property
    def mean_check_seconds(self) -> float | None:
        """The mean duration of the timed checks; ``None`` if none was timed."""
        timed = self.total(TIMED)
        return self.total(MICROSECONDS) / timed / 1e6 if timed else None


def read_series(guards: Iterable[Guard], start: datetime, end: datetime, step: int = MINUTE) -> dict[str, Series]:
    """Return the series of several guards, by name, from ``start`` until before ``end``: one round trip per store.

    ``step`` is in seconds, a multiple of a minute. Steps of whole hours are summed up from hours, which are kept for
    31 days, others from minutes, which are kept for a day. The first step begins at ``start``, rounded down to the full
    minute, or to the full hour in UTC. Counts arrive some seconds late. Raises :class:`ValueError` for another step.
    """
    if step <= 0 or step % MINUTE:
        raise ValueError(f"step is {step!r}; it must be a positive multiple of 60 (seconds)")
    unit = HOUR if step % HOUR == 0 else MINUTE
    first = int(start.timestamp()) // unit
    length = max(0, ceil((end.timestamp() - first * unit) / step))
    rows = range(first, first + length * step // unit)
    # Older rows are not kept, so their pages are not read.
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
            for page, kept in zip(wanted, stores[alias].read_metrics(wanted)):
                if kept:
                    _take(page, cells_of(kept), rows, counts[page.guard])
        except BloomGuardError as problem:
            error = str(problem)
        for guard in some:
            summed = {name: _steps(column, step // unit) for name, column in counts[guard.name].items()}
            found[guard.name] = Series(guard.name, first * unit, step, length, summed, error)
    return found


def _take(page: Page, cells: array[int], rows: range, found: dict[str, array[int]]) -> None:
    """Copy a page's part of ``rows`` to ``found``: one number per row for each name that was counted."""
    first = page.number * ROWS
    low, high = max(rows.start, first), min(rows.stop, first + ROWS)
    for column, name in enumerate(NAMES):
        counted = cells[(low - first) * COLUMNS + column : (high - first) * COLUMNS : COLUMNS]
        if any(counted):
            if name not in found:
                found[name] = array("I", bytes(cells.itemsize * len(rows)))
            found[name][low - rows.start : high - rows.start] = counted


def _steps(column: array[int], rows: int) -> list[int]:
    """Sum up ``column`` in steps of ``rows`` rows."""
    return column.tolist() if rows == 1 else list(map(sum, zip(*[iter(column)] * rows)))
