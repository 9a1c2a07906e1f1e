"""The data of the admin page: each guard's state with the reason, its figures, and charts of the requests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db import DatabaseError
from django.utils import formats, timezone
from django.utils.functional import Promise
from django.utils.timesince import timesince
from django.utils.translation import gettext_lazy as _

from .. import metrics
from ..exceptions import StoreError
from ..filters import FilterError
from ..guards import Guard
from ..guards.counters import FALSE_ABSENCE, WOULD_BLOCK, WOULD_HARM
from ..metrics import HOUR, MINUTE, Series
from ..models import GuardState, GuardTask
from ..rebuild.plan import FULL, days_to_capacity, rows_a_day
from ..state.row import ARMED
from ..state.table import table
from ..state.verdicts import AMBIGUOUS, COLD, DISABLED, ERROR, FENCED, IDENTITY, LEASE, SHADOW, UNREACHABLE, UNTRUSTED
from ..stores import Generation
from .drawing import Bar, bars, scale_top, spark
from .operations import LOST_AFTER, REBUILD, command, is_under_way

#: Count the set bits of so many bytes of filters for one page; for other filters show the rows of the last build.
_COUNTED_BYTES = 16 << 20
#: Compute an error rate only from at least so many ABSENT verdicts in the period.
_ENOUGH = 1_000

#: State -> its label, and its explanation.
STATES: dict[str, tuple[str | Promise, str | Promise]] = {
    ARMED: (_("armed"), _("absent IDs are answered 404")),
    SHADOW.reason: (_("shadow"), _("requests pass, and what would have been answered 404 is counted")),
    COLD.reason: (_("cold"), _("it has no filter yet: requests pass until a rebuild")),
    FENCED.reason: (_("fenced"), _("requests pass until a rebuild")),
    IDENTITY.reason: (
        _("elsewhere"),
        _("its filter is in another store, or from before a restart of this host: requests pass until a rebuild"),
    ),
    UNREACHABLE.reason: (_("unreachable"), _("its store does not respond: requests pass until it does")),
    UNTRUSTED.reason: (
        _("untrusted"),
        _(
            "its filter is damaged, or was built with another SECRET_KEY or for another definition: requests pass "
            "until a rebuild"
        ),
    ),
    LEASE.reason: (_("unknown"), _("the database could not be read: requests pass until it can")),
    AMBIGUOUS.reason: (
        _("ambiguous"),
        _("several schemas or databases have its table: requests pass, see manage.py check --database default"),
    ),
    ERROR.reason: (_("misconfigured"), _("manage.py check shows the error: requests pass until it is fixed")),
    DISABLED.reason: (_("switched off"), _("BLOOMGUARD['ENABLED'] is not True: requests pass")),
}

_CURED_BY_REBUILD = {COLD.reason, FENCED.reason, IDENTITY.reason, UNTRUSTED.reason}


@dataclass(frozen=True)
class Period:
    """A period up to now: its name in URLs, its label and length, and the seconds that one bar stands for.

    It ends at the next full ``unit`` of local time. The axis gives a bar's time in ``formats``, one per line.
    """

    name: str
    label: str | Promise
    length: timedelta
    step: int
    unit: timedelta
    formats: tuple[str, ...]


_TIME_AND_DAY = ("TIME_FORMAT", "MONTH_DAY_FORMAT")
PERIODS = {
    period.name: period
    for period in (
        Period("hour", _("Hour"), timedelta(hours=1), MINUTE, timedelta(minutes=1), _TIME_AND_DAY),
        Period("day", _("Day"), timedelta(days=1), 15 * MINUTE, timedelta(hours=1), _TIME_AND_DAY),
        Period("month", _("Month"), timedelta(days=31), 6 * HOUR, timedelta(days=1), ("MONTH_DAY_FORMAT",)),
    )
}

#: The charts: the name of the counter, the title, and what it means.
DRAWN: tuple[tuple[str, str | Promise, str | Promise], ...] = (
    ("blocked", _("Blocked"), _("requests answered 404 because of a guard")),
    ("passed", _("Passed"), _("requests that continued to the cache or the database")),
    ("avoided", _("Queries avoided"), _("queries that were not sent")),
)


@dataclass(frozen=True)
class Chart:
    """The chart of one counter over a period."""

    name: str
    title: str | Promise
    meaning: str | Promise
    total: int
    top: int
    bars: list[Bar]
    marks: list[list[str]]


@dataclass(frozen=True)
class Line:
    """One guard's line, as the template shows it. What is unknown is ``None`` or empty.

    ``fill`` is the used share of the capacity, 0 to 1. ``blocked`` counts requests of the period, ``would_block`` those
    that only shadow mode let pass, ``would_harm`` those of them that the site answered with a page. ``built`` and
    ``seen`` are the times since the publication, and since the last progress of a task or builder.
    """

    guard: Guard
    state: str
    why: str | Promise
    row: GuardState
    task: GuardTask | None
    blocked: int
    would_block: int
    would_harm: int
    spark: str
    built: str
    seen: str
    error_rate: str
    error_rate_measured: str = ""
    measured_by_requests: bool = False
    kind: str = ""
    rows: int | None = None
    capacity: int = 0
    bytes: int = 0
    fill: float | None = None
    rows_a_day: float | None = None
    days_left: int | None = None

    @property
    def label(self) -> str | Promise:
        """The label of the state."""
        return STATES[self.state][0]

    @property
    def lookup(self) -> str:
        """The model and its lookup fields."""
        looked_up = self.guard.lookup if isinstance(self.guard.lookup, str) else ", ".join(self.guard.lookup)
        return f"{self.guard.model._meta.label}: {looked_up}"

    @property
    def is_healthy(self) -> bool:
        """Whether the guard is armed, or in shadow mode with a valid filter."""
        return self.state in (ARMED, SHADOW.reason)

    @property
    def is_nearly_full(self) -> bool:
        """Whether the filter needs a larger capacity soon."""
        return self.fill is not None and self.fill >= FULL

    @property
    def is_busy(self) -> bool:
        """Whether a task for the guard waits or runs."""
        return self.task is not None and is_under_way(self.task)

    @property
    def command(self) -> str:
        """The command that makes the guard answer again; empty if none does, or while one runs."""
        seen_at = self.row.builder_seen_at if self.row.building else None
        is_running = self.is_busy or (seen_at is not None and timezone.now() - seen_at < LOST_AFTER)
        return "" if is_running or self.state not in _CURED_BY_REBUILD else command(REBUILD, [self.guard])


@dataclass
class Overview:
    """What the page shows of ``guards`` over ``period``; the charts are of ``chosen``, or of all guards.

    Reads the state rows, the tasks, and the figures of each store once; changes nothing.
    """

    guards: Sequence[Guard]
    period: Period
    chosen: Guard | None = None
    now: datetime = field(default_factory=timezone.now)

    @cached_property
    def lines(self) -> list[Line]:
        """A line per guard: first the guards with problems, then the others, each sorted by name."""
        table.renew(after=table.clock())  # so that the page shows changes of a moment ago
        rows, tasks = dict[Any, GuardState](), dict[Any, GuardTask]()
        with suppress(DatabaseError):  # each line says that the database could not be read
            rows = GuardState.objects.using(table.connection.alias).in_bulk()
            tasks = GuardTask.objects.in_bulk()
        left, lines = _COUNTED_BYTES, list[Line]()
        for guard in self.guards:
            row, task = rows.get(guard.name) or GuardState(name=guard.name), tasks.get(guard.name)
            answers, counts = guard._runtime.answering(), self.series[guard.name]
            state = _state(guard, answers)
            line = Line(
                guard=guard,
                state=state,
                why=_why(state, row),
                row=row,
                task=task,
                blocked=counts.total("blocked"),
                would_block=counts.total(WOULD_BLOCK),
                would_harm=counts.total(WOULD_HARM),
                spark=spark(counts["blocked"]),
                built=_since(row.published_at),
                seen=_since(task.seen_at if task is not None else row.builder_seen_at),
                **_numbers(guard, row, answers, counts, left, self.now),
            )
            left -= line.bytes if isinstance(answers, Generation) and line.bytes <= left else 0
            lines.append(line)
        return sorted(lines, key=lambda line: (line.is_healthy, line.guard.name))

    @cached_property
    def series(self) -> dict[str, Series]:
        """The figures of the period by guard name: a day's in hours as long as there is less than a day of them."""
        found = self._read(self.period.step)
        first_hour = HOUR // self.period.step
        is_whole = any(any(counts[:first_hour]) for each in found.values() for counts in each.counts.values())
        return found if is_whole or self.period.name != "day" else self._read(HOUR)

    def _read(self, step: int) -> dict[str, Series]:
        local = datetime.fromtimestamp(self.now.timestamp(), timezone.get_current_timezone())
        since_midnight = local - local.replace(hour=0, minute=0, second=0, microsecond=0)
        end = self.now + -since_midnight % self.period.unit
        return metrics.read_series(self.guards, end - self.period.length, end, step)

    @property
    def problems(self) -> list[Line]:
        """The lines of guards that pass every request."""
        return [line for line in self.lines if not line.is_healthy]

    @property
    def errors(self) -> list[str]:
        """The errors of reading figures, without duplicates."""
        return list(dict.fromkeys(series.error for series in self._drawn if series.error))

    @property
    def false_absences(self) -> int:
        """How often a spot check found a row that the filter denied: a bug, or a write past the ORM."""
        return sum(series.total(FALSE_ABSENCE) for series in self._drawn)

    @property
    def _drawn(self) -> list[Series]:
        return [self.series[guard.name] for guard in ([self.chosen] if self.chosen else self.guards)]

    @cached_property
    def times(self) -> list[datetime]:
        """The start of each of the period's steps, in local time."""
        return [timezone.localtime(begun) for begun in self._drawn[0].times] if self._drawn else []

    @cached_property
    def _sums(self) -> list[list[int]]:
        return [list(map(sum, zip(*(series[name] for series in self._drawn)))) for name, *_rest in DRAWN]

    @property
    def steps(self) -> list[tuple[datetime, tuple[int, ...]]]:
        """The period's steps: the time of each, and its numbers for :data:`DRAWN`."""
        return list(zip(self.times, zip(*self._sums)))

    @cached_property
    def charts(self) -> list[Chart]:
        """One chart for each of :data:`DRAWN`; none if nothing was counted."""
        if not any(map(any, self._sums)):
            return []
        marks: list[list[str]] = []
        day: list[str] | None = None
        for when in (self.times[0], self.times[len(self.times) // 2], self.times[-1]):
            time, *date = (formats.date_format(when, line) for line in self.period.formats)
            marks.append([time] if date == day else [time, *date])  # a day is named where it begins
            day = date
        written = [formats.date_format(when, "DATETIME_FORMAT") for when in self.times]
        made = []
        for (name, title, meaning), values in zip(DRAWN, self._sums):
            numbers = (formats.number_format(value, 0, force_grouping=True) for value in values)
            words = [f"{when}: {number}" for when, number in zip(written, numbers)]
            made.append(Chart(name, title, meaning, sum(values), scale_top(values), bars(values, words), marks))
        return made


def _since(when: datetime | None) -> str:
    return timesince(when, depth=1) if when else ""


def _percent(share: float) -> str:
    return f"{formats.number_format(round(100 * share, 3), 3)}%"  # which alone would truncate


def _state(guard: Guard, answers: Any) -> str:
    if not isinstance(answers, Generation):
        return str(answers.reason)
    return SHADOW.reason if guard._runtime.is_shadow else ARMED


def _why(state: str, row: GuardState) -> str | Promise:
    if state == FENCED.reason and row.reason:
        return _("%(reason)s: requests pass until a rebuild") % {"reason": row.reason}
    return STATES[state][1]


def _numbers(guard: Guard, row: GuardState, answers: Any, series: Series, left: int, now: datetime) -> dict[str, Any]:
    """Return the filter's figures: of the generation that answers now, else of the last publication."""
    known: dict[str, Any] = {"error_rate": _percent(guard.error_rate)}
    measured = row.error_rate_measured
    if row.published_at is not None:
        known |= {"kind": row.kind, "rows": row.rows, "capacity": row.capacity, "bytes": row.bytes}
    counts = [(row.former_published_at, row.former_rows), (row.published_at, row.rows)]
    if isinstance(answers, Generation):
        layout = answers.layout
        known |= {"kind": layout.kind, "capacity": layout.capacity, "bytes": layout.total_bytes}
        known["error_rate"] = _percent(layout.error_rate)
        counts.append((now, _keys(guard, answers) if layout.total_bytes <= left else None))
        if series.total("absent") >= _ENOUGH and series.false_positive_rate is not None:
            measured = series.false_positive_rate
            known["measured_by_requests"] = True
    points = [(when, count) for when, count in counts if when is not None and count is not None]
    if points and known.get("capacity"):
        most, capacity = points[-1][1], known["capacity"]
        known["fill"] = most / capacity
        known["rows_a_day"] = rows_a_day(points)
        days = days_to_capacity(most, capacity, known["rows_a_day"])
        known["days_left"] = None if days is None else int(days)
    if measured is not None:
        known["error_rate_measured"] = _percent(measured)
    return known


def _keys(guard: Guard, generation: Generation) -> int | None:
    """Return the approximate number of keys, ``None`` for a remote store or an unreadable filter."""
    try:
        return None if guard._runtime.active_filter.store.is_remote else generation.approximate_size()
    except (StoreError, FilterError, DatabaseError):
        return None
