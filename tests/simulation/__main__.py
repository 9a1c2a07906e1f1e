"""``python -m tests.simulation``: see ``--help``. What it prints for programs is one JSON object."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

#: A mutant that survives so many schedules is not caught; a rare one may survive more.
MOST_SCHEDULES = 2_000
MOST_SCHEDULES_OF_RARE = 20_000
#: So often a long run says how far it is, to who reads its stderr: it may be stopped before it ends.
SCHEDULES_OF_A_REPORT = 1_000


def trace(seed: int, mutant: str | None = None) -> list[str]:
    """One schedule, line by line, up to the false 404 if there is one."""
    from .agents import run
    from .mutants import mutated
    from .world import FalseNotFound

    lines: list[str] = []
    with mutated(mutant):
        try:
            run(seed, lines)
        except FalseNotFound as error:
            lines.append(f"FALSE 404: {error}")
    return lines


def digests(seeds: Iterable[int]) -> dict[int, str]:
    """A digest of the trace of each schedule, which are run in this order."""
    return {seed: hashlib.sha256("\n".join(trace(seed)).encode()).hexdigest()[:16] for seed in seeds}


def schedules(first: int, number: int) -> dict[str, Any]:
    """What happened in the schedules from ``first`` on; ``false_404s`` are the seeds of those that had one."""
    from .agents import run
    from .world import FalseNotFound

    counts: Counter[str] = Counter()
    found: list[int] = []
    for done, seed in enumerate(range(first, first + number), start=1):
        try:
            counts.update(run(seed).counts)
        except FalseNotFound:
            found.append(seed)
        if done % SCHEDULES_OF_A_REPORT == 0:
            print(f"{done:,} schedules from {first} to {seed}, false 404s: {found}", file=sys.stderr, flush=True)
    return {"schedules": number, "false_404s": found, **counts}


def side_by_side(first: int, number: int, processes: int) -> dict[str, Any]:
    """The same, dealt out to processes."""
    each = -(-number // processes)
    starts = range(first, first + number, each)
    command = [sys.executable, "-m", "tests.simulation", "--schedules"]
    running = [
        subprocess.Popen([*command, str(min(each, first + number - start)), "--first", str(start)], stdout=-1)
        for start in starts
    ]
    total: Counter[str] = Counter()
    found: list[int] = []
    for process in running:
        said, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a process of the simulation ended with {process.returncode}")
        part = json.loads(said)
        found += part.pop("false_404s")
        total.update(part)
    return {"false_404s": found, **total}


def mutants(rare: bool) -> dict[str, int | None]:
    """For each mutant the seed of the first schedule that caught it, or ``None``; for the rare ones only if asked."""
    from .agents import run
    from .mutants import MUTANTS, mutated
    from .world import FalseNotFound

    caught: dict[str, int | None] = {}
    for name, mutant in MUTANTS.items():
        if mutant.rare and not rare:
            continue
        caught[name] = None
        with mutated(name):
            for seed in (mutant.first, *range(MOST_SCHEDULES_OF_RARE if mutant.rare else MOST_SCHEDULES)):
                try:
                    run(seed)
                except FalseNotFound:
                    caught[name] = seed
                    break
    return caught


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate the protocol.")
    parser.add_argument("seed", nargs="?", type=int, help="print what happens in this one schedule")
    parser.add_argument("--mutant", help="in that schedule, without this rule")
    parser.add_argument("--mutants", action="store_true", help="find a schedule that catches each mutant")
    parser.add_argument("--rare", action="store_true", help="also of those that few schedules catch")
    parser.add_argument("--schedules", type=int, default=1_000, help="run so many schedules")
    parser.add_argument("--digests", action="store_true", help="of them, print a digest of the trace of each")
    parser.add_argument("--backwards", action="store_true", help="and run the last one first")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--processes", type=int, default=1, help="by so many processes")
    wanted = parser.parse_args()
    if wanted.processes > 1:
        print(json.dumps(side_by_side(wanted.first, wanted.schedules, wanted.processes)))
        return

    from . import seams

    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    seams.configure()
    seams.install()

    from .world import prepare

    prepare()
    if wanted.seed is not None:
        print("\n".join(trace(wanted.seed, wanted.mutant)))
    elif wanted.digests:
        seeds = range(wanted.first, wanted.first + wanted.schedules)
        print(json.dumps(digests(reversed(seeds) if wanted.backwards else seeds)))
    else:
        print(json.dumps(mutants(wanted.rare) if wanted.mutants else schedules(wanted.first, wanted.schedules)))


if __name__ == "__main__":
    main()
