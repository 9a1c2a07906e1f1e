"""What figures cost: a request's counting, and a day of them in each store: ``make bench-figures``.

Counting is what ``GuardRuntime.decide``, the lookup and the middleware do for it, beside what they do anyway: the same
calls with it and without it, in turns. A day is written as one process after another flushes it, minute by minute,
with every reason in each; sizes are what the file system and the server themselves say.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench.report import Report, Seconds, interleave

CALLS = 20_000
GUARDS = [f"guard-{number}" for number in range(20)]
#: Some day, at midnight in UTC.
DAY_BEGINS = 20_513 * 86_400


class Thing:
    """Stands for a request, or for a guard: something with attributes."""

    counters: Any
    is_shadow: bool
    _runtime: Any


def counting() -> Seconds:
    """Seconds that ``CALLS`` calls take bare, and with what is done to count one request."""
    from bloomguard.guards import counters as counts
    from bloomguard.guards.counters import blocked, listeners
    from bloomguard.guards.runtime import GuardRuntime
    from bloomguard.lookups.context import LookupContext
    from bloomguard.state.verdicts import ABSENT, MAYBE, Decision

    guard, request = Thing(), Thing()
    guard._runtime = runtime = Thing()
    context = LookupContext(request)  # type: ignore[arg-type]
    runtime.counters = counts.Counts().of("city")
    runtime.is_shadow = False
    told = GuardRuntime._record

    def bare(decision: Decision) -> Decision:
        return decision

    def a_pass(decision: Decision) -> Decision:
        began = perf_counter_ns() if counts.drawn() else 0  # as GuardRuntime.decide does it
        if began:
            guard._runtime.counters.time(began)
        if decision is MAYBE and not listeners:
            guard._runtime.counters["maybe"]()
        return decision

    def a_block(decision: Decision) -> Decision:
        began = perf_counter_ns() if counts.drawn() else 0
        if began:
            guard._runtime.counters.time(began)
        decision = told(runtime, None, decision)  # type: ignore[arg-type]
        context.note_avoided(guard)  # type: ignore[arg-type]  # as a lookup does it
        *context.avoided, last = context.avoided  # and the middleware
        blocked(last, request)
        return decision

    def run(work: Callable[[Decision], Decision], decision: Decision) -> Callable[[], object]:
        def calls() -> None:
            for _ in repeat(None, CALLS):
                work(decision)

        return calls

    return interleave(
        {
            "bare": run(bare, MAYBE),
            "a request that passes": run(a_pass, MAYBE),
            "a request that is blocked": run(a_block, ABSENT),
        },
        rounds=50,
    )


def write(store: Any, step: int, times: range) -> float:
    """Write figures of all guards with every reason in each row; returns the seconds that a flush takes."""
    from bloomguard.guards.counters import NAMES
    from bloomguard.stores.base import COLUMNS, ROWS, Page

    began = time.perf_counter()
    for at in times:
        number = at // step
        cells = {number % ROWS * COLUMNS + column: 1_000 + column for column in range(len(NAMES))}
        for guard in GUARDS:
            store.add_metrics(Page(guard, step, number // ROWS), cells)
    return (time.perf_counter() - began) / len(times)


def on_disk(folder: Path) -> int:
    """Bytes of the blocks that the files below take."""
    return sum(512 * os.stat(file).st_blocks for file in folder.rglob("metrics-*"))


def read(alias: str, days: int, step: int) -> float:
    """Seconds to read all guards for so many days, at best of five times."""
    from datetime import datetime, timedelta, timezone

    from bloomguard import metrics as figures

    class Named:
        def __init__(self, name: str) -> None:
            self.name, self.store = name, alias

    end = datetime.fromtimestamp(DAY_BEGINS, timezone.utc) + timedelta(days=1)
    guards: Any = [Named(name) for name in GUARDS]
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        found = figures.read_series(guards, end - timedelta(days=days), end, step)
        taken.append(time.perf_counter() - began)
        assert all(series.total("blocked") for series in found.values())
    return min(taken)


def measure(report: Report, alias: str, size: Callable[[], int]) -> None:
    from bloomguard.stores import stores

    store, day = stores[alias], range(DAY_BEGINS, DAY_BEGINS + 86_400, 60)
    seconds = write(store, 60, day)
    write(store, 3_600, range(DAY_BEGINS, DAY_BEGINS + 86_400, 3_600))
    report.add(f"{alias}: a day of 20 guards", size() / 1e6, "MB", at_most=5)
    write(store, 3_600, range(DAY_BEGINS - 30 * 86_400, DAY_BEGINS, 3_600))
    report.add(f"{alias}: the day, and a month by hours", size() / 1e6, "MB")
    report.add(f"{alias}: one minute of 20 guards, a flush", seconds * 1e3, "ms")
    report.add(f"{alias}: reading the hours of a month, 20 guards", read(alias, 31, 6 * 3_600) * 1e3, "ms")


def main() -> int:
    import django
    from django.conf import settings

    from tests.support import servers

    folder = Path(tempfile.mkdtemp(prefix="bloomguard-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings.configure(
        SECRET_KEY="for a benchmark",
        BASE_DIR=folder,
        INSTALLED_APPS=["django.contrib.contenttypes", "bloomguard"],
        BLOOMGUARD={
            "STORES": {
                "files": {"BACKEND": "bloomguard.stores.file.FileStore"},
                "valkey": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": servers.valkey()}},
            }
        },
        LOGGING_CONFIG=None,
    )
    django.setup()
    import redis

    from bloomguard.stores import stores

    report = Report("figures", "Counting, and figures in stores")
    report.start()
    taken = counting()
    for who in ("a request that passes", "a request that is blocked"):
        # A tenth of a microsecond drowns in what else runs on the machine: the round that was disturbed least.
        cost = (min(taken[who]) - min(taken["bare"])) / CALLS * 1e6
        report.add(f"counting: {who}", cost, "us", at_most=0.3)
    for guard in GUARDS:
        stores["files"].prepare(guard)  # type: ignore[attr-defined]
    measure(report, "files", lambda: on_disk(folder))
    with redis.Redis.from_url(servers.valkey()) as client:
        client.flushall()
        measure(report, "valkey", lambda: sum(client.memory_usage(key) for key in client.scan_iter("*")))
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
