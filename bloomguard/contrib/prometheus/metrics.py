"""Metrics as counters of ``prometheus_client``, and a collector that reports which guards are armed.

Needs ``prometheus_client``: ``pip install bloomguard[prometheus]``. The counters are plain ones of that library. The
thread that flushes the metrics updates them every few seconds, so they cost a request nothing. With
``PROMETHEUS_MULTIPROC_DIR`` they are summed over the processes of a host, like all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from ...guards import registry as guards
from ...guards.counters import AVOIDED, BLOCKED, FALSE_POSITIVE, MICROSECONDS, TIMED
from ...metrics import VERDICTS, News, flusher
from ...state.verdicts import CAUGHT
from ..health import armed_guards

__all__ = ["Metrics", "StateCollector", "install"]


class Metrics:
    """The counters of one process; :meth:`update` adds the counts of a flush."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"bloomguard_{name}", what, ["guard", *labels], registry=registry)

        self._verdicts = counter("verdicts", "Verdicts, by verdict and reason.", "verdict", "reason")
        for guard in guards:  # a series that begins with its first count has no increase
            self._verdicts.labels(guard.name, VERDICTS[CAUGHT.reason], CAUGHT.reason)
        avoided = counter("avoided_lookups", "Queries avoided.")
        blocked = counter("blocked_requests", "Requests answered 404.")
        wrong = counter("false_positives", "Queries that passed as maybe and found no row.")
        timed = counter("timed_checks", "Checks whose duration was measured (a sample).")
        seconds = counter("timed_check_seconds", "Total duration of the timed checks.")
        self._others: dict[str, list[tuple[Counter, float]]] = {
            BLOCKED: [(blocked, 1), (avoided, 1)],
            AVOIDED: [(avoided, 1)],
            FALSE_POSITIVE: [(wrong, 1)],
            TIMED: [(timed, 1)],
            MICROSECONDS: [(seconds, 1e-6)],
        }

    def update(self, news: News) -> None:
        """Add the counts since the last flush."""
        for (guard, name), number in news.items():
            if name in VERDICTS:
                self._verdicts.labels(guard, VERDICTS[name], name).inc(number)
            for counter, unit in self._others.get(name, ()):
                counter.labels(guard).inc(number * unit)


class StateCollector:
    """Collector of ``bloomguard_guard_armed``: 1 if the guard has a filter that may answer, 0 if every request passes.

    It asks each filter for one key, and reads all state rows, at most once per second. With
    ``PROMETHEUS_MULTIPROC_DIR``, register it in the registry that has the ``MultiProcessCollector``.
    """

    def describe(self) -> list[Any]:
        """Return no metrics, so that registering the collector does not query the database."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the gauge; it has no samples if the database does not answer."""
        gauge = GaugeMetricFamily(
            "bloomguard_guard_armed", "Whether the guard has a filter that may answer.", labels=["guard"]
        )
        for guard, is_armed in armed_guards().items():
            gauge.add_metric([guard], float(is_armed))
        yield gauge


def install(registry: CollectorRegistry = REGISTRY) -> Metrics:
    """Register counters and collector in ``registry``, and update the counters from now on.

    Raises :class:`ValueError` if they are registered already.
    """
    metrics = Metrics(registry)
    registry.register(StateCollector())  # type: ignore[arg-type, unused-ignore]  # describe() and collect() are all that it calls
    flusher.listeners.append(metrics.update)
    return metrics
