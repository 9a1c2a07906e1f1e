"""Workers of a site under a storm, each a process: ``python -m tests.stores.crew write|read FOLDER NUMBER``.

Writers save rows and note in FOLDER what was committed, once that was acknowledged. Readers ask for noted rows through
the whole middleware: whatever is not 200 then is a false 404 or an error. A reader whose guard answers an ID that never
was lets a file of its own grow by a byte. All stop when FOLDER has the file ``stop`` and print what they saw. With
``BLOOMGUARD_SPEED`` leases and settling times pass that many times as fast.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


def hurry(table: Any, speed: float) -> None:
    """Let a state table's time pass ``speed`` times as fast as real time."""
    table.clock = lambda: time.monotonic() * speed
    table.sleep = lambda seconds: time.sleep(seconds / speed)


class Log:
    """Primary keys of rows whose commit was acknowledged, in a file that all writers append to."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "committed", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._read = 0
        self.rows: list[int] = []

    def note(self, *rows: int) -> None:
        os.write(self._fd, b"".join(b"%d\n" % row for row in rows))

    def follow(self) -> list[int]:
        """All rows that were noted until now."""
        data = os.pread(self._fd, 1 << 20, self._read)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        self.rows += map(int, whole.split())
        return self.rows


def answers(folder: Path, number: int) -> Path:
    """The file of reader ``number`` that has a byte for each of its questions that the guard answered."""
    return folder / f"answers-{number}"


def write(log: Log, number: int, stop: Path) -> dict[str, Any]:
    """Save rows in the ways that sites do, one by one, in bulk and in transactions."""
    from django.db import transaction

    from tests.shop.models import Product

    seen: Counter[str] = Counter()
    errors: list[str] = []
    numbers = itertools.count(1_000_000 * (number + 1))
    while not stop.exists():
        rows = [next(numbers) for _ in range(3)]
        try:
            Product.objects.create(pk=rows[0])
            log.note(rows[0])
            with transaction.atomic():
                Product.objects.bulk_create([Product(pk=rows[1]), Product(pk=rows[2])])
            log.note(*rows[1:])
            seen["written"] += len(rows)
        except Exception as error:
            errors.append(repr(error))
    return {**seen, "errors": errors}


def read(log: Log, number: int, stop: Path) -> dict[str, Any]:
    """Ask for rows that were committed, most often for the latest, and for some that never were."""
    from django.test import Client

    from bloomguard.guards import registry

    guard, client, rng = registry["product"], Client(raise_request_exception=False), random.Random(number)
    seen: Counter[str] = Counter()
    wrong: list[tuple[int, int]] = []
    answered = answers(stop.parent, number).open("ab", buffering=0)
    while not stop.exists():
        rows = log.follow()
        for _ in range(3):
            pk = rng.choice(rows[-20:] if rng.random() < 0.8 else rows)
            status = client.get(f"/products/{pk}/", HTTP_HOST="localhost").status_code
            seen["found"] += 1
            if status != 200:
                wrong.append((pk, status))
            if rng.random() < 0.3:
                rows = log.follow()
        absent = 10**12 + rng.randrange(10**9)
        reason = guard._runtime.decide(absent).reason
        seen[reason] += 1
        if reason == "absent":
            answered.write(b".")
        status = client.get(f"/products/{absent}/", HTTP_HOST="localhost").status_code
        if status != 404:
            wrong.append((absent, status))
    return {**seen, "errors": wrong}


def main() -> None:
    import django

    django.setup()
    from bloomguard.state import table as state

    what, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.nice(5)  # servers and the test itself go first
    hurry(state.table, float(os.environ.get("BLOOMGUARD_SPEED", "1")))
    log = Log(folder)
    print("ready", flush=True)
    act = {"write": write, "read": read}[what]
    print(json.dumps(act(log, number, folder / "stop")), flush=True)


if __name__ == "__main__":
    main()
