"""The guards' counts in the stores: written every few seconds, read as time series of all processes.

Series are by the minute for a day, by the hour for a month::

    found = read_series([registry["city"]], start, end)["city"]
    found["blocked"], found.total("blocked"), found.times

Nothing here queries the database. If a store does not respond, its series are zeros, with the reason in
:attr:`Series.error`; counts for it are written when it does. The thread that writes starts with the first count. A
process that is killed loses its counts since the last flush. Counts of a process that works on a temporary database, as
in a test run, are not those of the site: there the thread does not start.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from math import ceil

from .exceptions import BloomGuardError
from .guards import Guard, registry
from .guards.counters import ABSENCES, AVOIDED, BLOCKED, FALSE_POSITIVE, MICROSECONDS, NAMES, TIMED, UNKNOWNS, counts
from .process import after_fork, log_once, start_thread
from .state.table import table
from .stores import Store, stores
from .stores.base import COLUMNS, HOUR, KEPT_SECONDS, MINUTE, ROWS, Page, cells_of

__all__ = ["DAY", "HOUR", "MINUTE", "Series", "read_series"]

logger = logging.getLogger("bloomguard")

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
        totals = Counter({part: sum(self.counts.get(part, ())) for part in SUMS.get(name, (name,))})
        return {part: total for part, total in totals.most_common() if total}

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


# -- writing

#: Mean seconds between two flushes.
FLUSH_SECONDS = 5.0
#: Seconds that an exiting process waits for its last flush.
_PATIENCE = 1.0

_COLUMN = {name: column for column, name in enumerate(NAMES)}

#: (guard, name) -> count since the last flush.
News = Mapping[tuple[str, str], int]


class Flusher:
    """Writes counts to the stores. ``clock`` returns Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        #: Called with the new counts of each flush, even if no store can be written.
        self.listeners: list[Callable[[News], None]] = []
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        """Reset; also in a forked child, because its parent flushes what was counted before."""
        self._lock = threading.Lock()
        self._started = threading.Lock()  # acquired once, to start the thread
        self._ended = threading.Event()
        self._finished: threading.Event | None = None  # of the thread
        self._heard: Mapping[tuple[str, str], int] = {}  # all counts at the last flush
        self._written: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)  # (guard, step) -> columns

    def start(self) -> None:
        """Start the thread, unless it runs or the database is temporary. After a :class:`RuntimeError`, call again."""
        if not table.connection.is_temporary and self._started.acquire(blocking=False):
            try:
                self._finished = start_thread(self._run)
            except RuntimeError:
                self._started.release()
                raise

    def stop(self) -> None:
        """Flush once more and end the thread; return within :data:`_PATIENCE` even if a store hangs."""
        self._ended.set()
        if self._finished is not None:
            self._finished.wait(_PATIENCE)

    def _run(self) -> None:
        has_ended = False
        while not has_ended:
            has_ended = self._ended.wait(FLUSH_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311  # spreads the workers
            try:
                self.flush()
            except Exception as error:
                log_once.error(error, "bloomguard could not write its counts, because of an internal error")

    def flush(self) -> None:
        """Write all new counts to the stores; those for a store that fails are part of the next flush."""
        with self._lock:
            counted, heard = counts.read(), self._heard
            self._heard = counted
            news = {key: number - heard.get(key, 0) for key, number in counted.items() if number > heard.get(key, 0)}
            for listener in self.listeners:
                try:
                    listener(news)
                except Exception as error:
                    log_once.error(error, "bloomguard could not pass its counts on to a listener")
            totals: dict[str, Counter[int]] = {}
            for (guard, name), number in counted.items():
                if name in _COLUMN:
                    totals.setdefault(guard, Counter())[_COLUMN[name]] = number
            self._write(totals)

    def _write(self, totals: Mapping[str, Counter[int]]) -> None:
        silent: set[str] = set()
        for name, columns in totals.items():
            guard = registry.get(name)
            if guard is None or (alias := guard.store) in silent:
                continue
            try:
                self._write_guard(name, columns, stores[alias])
            except BloomGuardError as error:
                silent.add(alias)
                logger.debug("bloomguard keeps its counts until the store %r can be written: %s", alias, error)
            except Exception as error:
                silent.add(alias)
                text = "bloomguard could not write its counts to the store %r, because of an internal error"
                log_once.error(error, text, alias)

    def _write_guard(self, guard: str, columns: Counter[int], store: Store) -> None:
        now = int(self.clock())
        for step in (MINUTE, HOUR):
            if news := columns - self._written[guard, step]:
                page, row = divmod(now // step, ROWS)
                store.add_metrics(
                    Page(guard, step, page), {row * COLUMNS + column: times for column, times in news.items()}
                )
                self._written[guard, step] = columns


flusher = Flusher()
