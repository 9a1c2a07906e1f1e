"""What the benchmarks share: contestants measured in turns, medians of ratios, a table, rows as JSON.

Machines are shared and noisy, so seconds mean little. All contestants run one after the other in each round, in
another order every time, and a comparison is the median over the rounds of ``ours / theirs``.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Seconds = dict[str, list[float]]


def interleave(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 15, clock: Callable[[], float] = time.perf_counter
) -> Seconds:
    """The seconds that each contestant took in each round; one round before is not counted, nor its ``prepare()``."""
    taken: Seconds = {name: [] for name in contestants}
    order = list(contestants)
    rng = random.Random(0)
    gc.collect()
    gc.disable()  # a collection would hit whoever is running
    try:
        for number in range(rounds + 1):
            rng.shuffle(order)
            for name in order:
                getattr(contestants[name], "prepare", _nothing)()
                start = clock()
                contestants[name]()
                seconds = clock() - start
                if number:
                    taken[name].append(seconds)
    finally:
        gc.enable()
    return taken


def _nothing() -> None:
    pass


def ratio(taken: Seconds, ours: str, theirs: str) -> float:
    """The median of ``ours / theirs`` over the rounds."""
    return statistics.median(a / b for a, b in zip(taken[ours], taken[theirs]))


def median(taken: Seconds, name: str) -> float:
    """The median seconds of one contestant."""
    return statistics.median(taken[name])


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that ``work`` held at once beyond what was there before, numpy's included."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


class Report:
    """The rows of one benchmark: ``name, value, unit, against, target, holds``, and the reason of a miss."""

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.rows: list[dict[str, Any]] = []

    def add(
        self,
        name: str,
        value: float,
        unit: str = "x",
        *,
        against: str = "",
        at_most: float | None = None,
        at_least: float | None = None,
        reason: str = "",
    ) -> None:
        """One figure. With ``at_most`` or ``at_least`` it has a target, and ``reason`` is kept if that is missed."""
        target, holds = "", None
        if at_most is not None:
            target, holds = f"<= {at_most:g}", value <= at_most
        if at_least is not None:
            target, holds = f">= {at_least:g}", value >= at_least
        row = {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "against": against}
        row |= {"target": target, "holds": holds}
        if reason and holds is False:
            row["reason"] = reason
        self.rows.append(row)
        print(_line(row), flush=True)

    def missing(self, name: str, against: str, reason: str) -> None:
        """A comparison that could not be made, and why."""
        self.rows.append(
            {"name": name, "value": None, "unit": "", "against": against, "target": "", "holds": None, "reason": reason}
        )
        print(_line(self.rows[-1]), flush=True)

    def start(self) -> None:
        """Print the head of the table, and on what it was measured."""
        print(f"{self.title}\nPython {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")
        print(f"{'what':<58} {'value':>10} {'unit':<12} {'against':<24} {'target':<9} holds")

    def finish(self) -> Path:
        """Write the rows to ``bench/results/<name>.json``, and print the reasons of what does not hold."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(self.rows, indent=1, ensure_ascii=False) + "\n")
        for row in self.rows:
            if row.get("reason"):
                print(f"\n{row['name']}: {row['reason']}")
        print(f"\n{sum(row['holds'] is True for row in self.rows)} targets hold, ", end="")
        print(f"{sum(row['holds'] is False for row in self.rows)} do not. Written to {path}")
        return path


def _line(row: dict[str, Any]) -> str:
    value = "-" if row["value"] is None else f"{row['value']:,g}"
    holds = {True: "yes", False: "NO", None: ""}[row["holds"]]
    return f"{row['name']:<58} {value:>10} {row['unit']:<12} {row['against']:<24} {row['target']:<9} {holds}"
