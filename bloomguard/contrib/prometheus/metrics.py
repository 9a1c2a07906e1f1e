"""Figures as counters of ``prometheus_client``, and which guards are armed as a collector.

Needs ``prometheus_client``, as ``pip install bloomguard[prometheus]`` brings it. The counters are plain ones of that
library, brought up to date every few seconds by the thread that flushes figures, so a request pays nothing for them,
and they add up over the processes of a host by ``PROMETHEUS_MULTIPROC_DIR`` as all others do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from ...counting.counts import BLOCKED, FALSE_POSITIVE, MICROSECONDS, SPARED, TIMED
from ...counting.flushing import News, flusher
from ...figures import VERDICTS
from ...guards import registry as guards
from ...sync import state as states

__all__ = ["Metrics", "StateCollector", "install"]


class Metrics:
    """The counters of one process; :meth:`update` adds the news of a flush."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"bloomguard_{name}", what, ["guard", *labels], registry=registry)

        self._verdicts = counter("verdicts", "Verdicts, by what was said and why.", "verdict", "reason")
        avoided = counter("avoided_lookups", "Look-ups that were not made.")
        blocked = counter("blocked_requests", "Requests answered 404.")
        wrong = counter("false_positives", "Requests passed as maybe, and then answered 404 by a guarded view.")
        timed = counter("timed_checks", "Checks that were timed, a sample.")
        seconds = counter("timed_check_seconds", "What the timed checks took together.")
        self._others: dict[str, list[tuple[Counter, float]]] = {
            BLOCKED: [(blocked, 1), (avoided, 1)],
            SPARED: [(avoided, 1)],
            FALSE_POSITIVE: [(wrong, 1)],
            TIMED: [(timed, 1)],
            MICROSECONDS: [(seconds, 1e-6)],
        }

    def update(self, news: News) -> None:
        """Add what was counted since the last time."""
        for (guard, name), number in news.items():
            if name in VERDICTS:
                self._verdicts.labels(guard, VERDICTS[name], name).inc(number)
            for counter, unit in self._others.get(name, ()):
                counter.labels(guard).inc(number * unit)


class StateCollector:
    """``bloomguard_guard_armed``: 1 where a guard has a filter that may answer, 0 where every request passes.

    Asks the database for all state rows, at most once a second. With ``PROMETHEUS_MULTIPROC_DIR``, register it in the
    registry that has the ``MultiProcessCollector``.
    """

    def describe(self) -> list[Any]:
        """Nothing ahead of a scrape: no database is asked when it is registered."""
        return []

    def collect(self) -> Iterator[Any]:
        """The gauge, without a sample where the database does not answer."""
        gauge = GaugeMetricFamily(
            "bloomguard_guard_armed", "Whether the guard has a filter that may answer.", labels=["guard"]
        )
        for guard in guards:
            is_armed = states.table.is_armed(guard.name)
            if is_armed is not None:
                gauge.add_metric([guard.name], float(is_armed))
        yield gauge


def install(registry: CollectorRegistry = REGISTRY) -> Metrics:
    """Register everything in ``registry``, and keep it up to date from now on."""
    metrics = Metrics(registry)
    registry.register(StateCollector())  # type: ignore[arg-type, unused-ignore]  # it asks for no more than this
    flusher.listeners.append(metrics.update)
    return metrics
