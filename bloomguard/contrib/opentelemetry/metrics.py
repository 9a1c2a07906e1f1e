"""Figures as observable instruments of OpenTelemetry's API.

Needs ``opentelemetry-api``, as ``pip install bloomguard[opentelemetry]`` brings it; which SDK collects and exports is
the project's own choice. Everything is read when it is collected: a request pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from ... import __version__
from ...counting.counts import BLOCKED, FALSE_POSITIVE, MICROSECONDS, SPARED, TIMED, counts
from ...figures import VERDICTS
from ...guards import registry
from ...sync import state as states

if TYPE_CHECKING:
    Read = Callable[[CallbackOptions], Iterable[Observation]]

__all__ = ["install"]


def install(meter_provider: MeterProvider | None = None) -> None:
    """Make the instruments: those of the provider given, or of the one that the project sets for all."""
    meter = get_meter("bloomguard", __version__, meter_provider)

    def counter(name: str, read: Read, unit: str, what: str) -> None:
        meter.create_observable_counter(f"bloomguard.{name}", [read], unit, what)

    counter("verdicts", _verdicts, "{verdict}", "Verdicts, by what was said and why.")
    counter("requests.blocked", _sum(BLOCKED), "{request}", "Requests answered 404.")
    counter("lookups.avoided", _sum(BLOCKED, SPARED), "{lookup}", "Look-ups that were not made.")
    counter(
        "false_positives",
        _sum(FALSE_POSITIVE),
        "{request}",
        "Requests passed as maybe, and then answered 404 by a view.",
    )
    counter("checks.timed", _sum(TIMED), "{check}", "Checks that were timed, a sample.")
    counter("checks.duration", _sum(MICROSECONDS), "us", "What the timed checks took together.")
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
    for guard in registry:
        is_armed = states.table.is_armed(guard.name)
        if is_armed is not None:
            yield Observation(int(is_armed), {"guard": guard.name})
