"""Metrics as observable instruments of OpenTelemetry's API.

Needs ``opentelemetry-api``: ``pip install bloomguard[opentelemetry]``. The project chooses the SDK that collects and
exports. Values are read at collection time, so they cost a request nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from ... import __version__
from ...guards.counters import AVOIDED, BLOCKED, FALSE_POSITIVE, MICROSECONDS, TIMED, counts
from ...metrics import VERDICTS
from ..health import armed_guards

if TYPE_CHECKING:
    Read = Callable[[CallbackOptions], Iterable[Observation]]

__all__ = ["install"]


def install(meter_provider: MeterProvider | None = None) -> None:
    """Create the instruments with ``meter_provider``; by default with the project's global provider."""
    meter = get_meter("bloomguard", __version__, meter_provider)

    def counter(name: str, read: Read, unit: str, what: str) -> None:
        meter.create_observable_counter(f"bloomguard.{name}", [read], unit, what)

    counter("verdicts", _verdicts, "{verdict}", "Verdicts, by verdict and reason.")
    counter("requests.blocked", _sum(BLOCKED), "{request}", "Requests answered 404.")
    counter("lookups.avoided", _sum(BLOCKED, AVOIDED), "{lookup}", "Queries avoided.")
    counter("false_positives", _sum(FALSE_POSITIVE), "{query}", "Queries that passed as maybe and found no row.")
    counter("checks.timed", _sum(TIMED), "{check}", "Checks whose duration was measured (a sample).")
    counter("checks.duration", _sum(MICROSECONDS), "us", "Total duration of the timed checks.")
    meter.create_observable_gauge("bloomguard.guard.armed", [_armed], "1", "Whether the guard's filter may answer.")


def _verdicts(options: CallbackOptions) -> Iterable[Observation]:
    for (guard, name), number in counts.read().items():
        if name in VERDICTS:
            yield Observation(number, {"guard": guard, "verdict": VERDICTS[name], "reason": name})


def _sum(*names: str) -> Read:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        sums: dict[str, int] = {}
        for (guard, name), number in counts.read().items():
            if name in names:
                sums[guard] = sums.get(guard, 0) + number
        for guard, total in sums.items():
            yield Observation(total, {"guard": guard})

    return read


def _armed(options: CallbackOptions) -> Iterable[Observation]:
    for guard, is_armed in armed_guards().items():
        yield Observation(int(is_armed), {"guard": guard})
