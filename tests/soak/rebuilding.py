"""Rows are written at a steady rate, some in long transactions, while builders build and are killed at each step of it.

``python -m tests.soak.rebuilding '{"rounds": 20, ...}'`` prints what came of it as one JSON object. In each round one
builder is killed, and another one builds to the end. A journal in shared memory, one byte a row, tells which rows have
been acknowledged: those are asked for all the while, and after each round every one of them.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.support.child import STEPS, patch_step

from .crew import ABSENT_FROM, haste, keep_time, orphaned, shared

WRITERS, DAWDLERS = 4, 3
ROWS_A_WRITER = 1 << 18
FIRST_ROWS = 2_000
NUMBERS = ("writes", "straddled", "absents", "lost", "asked")

journal = mmap.mmap(-1, (WRITERS + DAWDLERS + 1) * ROWS_A_WRITER)
# Each is stored at once: `struct.pack_into` zeroes it first, so a kill, or a reader meanwhile, would find none.
_numbers = memoryview(mmap.mmap(-1, 8 * len(NUMBERS) * (WRITERS + DAWDLERS + 1))).cast("q")


def count(member: int, name: str, more: int = 1) -> None:
    """Each member counts in a place of its own."""
    _numbers[member * len(NUMBERS) + NUMBERS.index(name)] += more


def total(name: str) -> int:
    return sum(_numbers[place] for place in range(NUMBERS.index(name), len(_numbers), len(NUMBERS)))


def fork(run: Callable[..., Any], *arguments: Any) -> int:
    """``run`` in a process of its own, which ends with it; no connection of ours is open by then."""
    pid = os.fork()
    if pid:
        return pid
    try:
        random.seed(os.urandom(8))
        run(*arguments)
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def result_of(run: Callable[..., Any], *arguments: Any) -> Any:
    """What ``run`` returns in a process of its own."""
    read, write = os.pipe()
    pid = fork(lambda: os.write(write, json.dumps(run(*arguments)).encode()))
    os.close(write)
    with open(read) as said:
        found = said.read()
    os.waitpid(pid, 0)
    return json.loads(found)


# -- who writes and asks


def write(member: int, pause: float) -> None:
    """One write after another, each ``pause`` seconds after the one before: rows are made, by one or five, and go."""
    from tests.shop.models import Product

    due, pk = time.monotonic(), member * ROWS_A_WRITER or 1  # MariaDB takes no 0
    while not orphaned():
        due += pause
        time.sleep(max(due - time.monotonic(), 0))
        way = random.random()
        if way < 0.1 and pk > member * ROWS_A_WRITER:
            gone = random.randrange(member * ROWS_A_WRITER, pk)
            journal[gone] = 0
            Product.objects.filter(pk=gone).delete()
        else:
            rows = 5 if way < 0.2 else 1
            Product.objects.bulk_create([Product(pk=pk + number) for number in range(rows)])
            journal[pk : pk + rows] = b"\1" * rows
            pk += rows
        count(member, "writes")


def dawdle(member: int, longest: float) -> None:
    """Transactions that stay open for up to ``longest`` seconds; counts those across an announcement."""
    from django.db import transaction

    from bloomguard.state import table as state
    from tests.shop.models import Product

    def building() -> str:
        return state.table.current("product").building

    for pk in range(member * ROWS_A_WRITER, (member + 1) * ROWS_A_WRITER):
        if orphaned():
            return
        before = building()
        with transaction.atomic(using=Product.objects.db):
            Product.objects.create(pk=pk)
            time.sleep(random.uniform(0, longest))
            after = building()
        journal[pk] = 1
        count(member, "straddled", bool(after and after != before))


def ask() -> None:
    """Ask for acknowledged rows, the latest most often, and for what is not there."""
    from bloomguard.guards import registry
    from bloomguard.state.verdicts import Verdict

    guard, member = registry["product"], WRITERS + DAWDLERS
    while not orphaned():
        for first in range(0, member * ROWS_A_WRITER, ROWS_A_WRITER):
            last = journal.rfind(b"\1", first, first + ROWS_A_WRITER)
            for pk in {last, last - random.randrange(50), random.randrange(first, max(last, first + 1))}:
                if pk >= first and journal[pk]:
                    absent = guard.verdict(pk) is Verdict.ABSENT
                    count(member, "lost", absent and journal[pk])
                    count(member, "asked")
        count(member, "absents", guard.verdict(ABSENT_FROM + random.randrange(1 << 40)) is Verdict.ABSENT)
        time.sleep(0.005)


# -- who builds


def build() -> None:
    from bloomguard.guards import registry
    from bloomguard.rebuild import Rebuild

    Rebuild(registry["product"], progress=lambda done, total: time.sleep(0.002)).run()


def build_and_die(step: str, after: bool) -> None:
    """Until just before ``step``, or just after it."""

    def dying(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if after:
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    patch_step(STEPS[step], dying)
    build()


def start() -> None:
    from tests.shop.models import Product

    pks = range((WRITERS + DAWDLERS) * ROWS_A_WRITER, (WRITERS + DAWDLERS) * ROWS_A_WRITER + FIRST_ROWS)
    Product.objects.bulk_create([Product(pk=pk) for pk in pks])
    build()
    journal[pks.start : pks.stop] = b"\1" * FIRST_ROWS


def look() -> dict[str, Any]:
    """What answers now, whether it does, and how many of all acknowledged rows it denies."""
    from bloomguard.guards import registry
    from bloomguard.models import GuardState
    from bloomguard.state import table as state
    from bloomguard.state.row import ARMED
    from bloomguard.state.verdicts import Verdict

    guard = registry["product"]
    acknowledged = [found.start() for found in re.finditer(b"\1", journal)]
    denied = [pk for pk in acknowledged if guard.verdict(pk) is Verdict.ABSENT]
    row = state.table.current("product")
    return {
        "active": row.active,
        "armed": row.status == ARMED,
        "reason": GuardState.objects.get(name="product").reason or row.status,
        "answers": any(guard.verdict(ABSENT_FROM + number) is Verdict.ABSENT for number in range(9)),
        "denied": sum(journal[pk] for pk in denied),  # unless it was deleted since
    }


def kill_and_build(step: str, after: bool, before: dict[str, Any], lease: float) -> dict[str, Any]:
    """One round; ``busy`` if the machine was too busy for writers to prove their adds within a lease, so that they
    fenced the guard: that was no harm done by the kill."""
    shared.set(1, "late", max(shared.get(1, "late"), shared.get(0, "late")))
    shared.set(0, "late", 0.0)
    _, status = os.waitpid(fork(build_and_die, step, after), 0)
    now = result_of(look)
    published = step == "retiring" or (step == "publishing" and after)
    same = (now["active"] != before["active"]) if published else (now["active"] == before["active"])
    _, built = os.waitpid(fork(build), 0)
    then = result_of(look)
    wrong = {
        "the builder was not killed": not os.WIFSIGNALED(status),
        f"after the kill: {now['reason']}": not now["armed"],
        "nothing answered after the kill": not now["answers"],
        "another filter answered after the kill": not same,
        f"the next build failed: {then['reason']}": built != 0,
        f"after the next build: {then['reason']}": not then["armed"],
        "nothing answered after the next build": not then["answers"],
        "the next build published nothing": then["active"] == now["active"],
    }
    harm = [what for what, is_so in wrong.items() if is_so]
    is_busy = bool(harm) and shared.get(0, "late") > lease / 4
    return {"harm": harm, "busy": is_busy, "denied": now["denied"] + then["denied"], "then": then}


def rounds(first: int, number: int, lease: float) -> dict[str, Any]:
    """``harmed`` tells after which kills something did not answer as before, ``denied`` counts rows that were lost."""
    found: dict[str, Any] = {"rounds": 0, "harmed": {}, "busy": 0, "denied": 0, "steps": []}
    before = result_of(look)
    while found["rounds"] < number and found["busy"] < 2 * number:
        each = first + found["rounds"]
        step, after = list(STEPS)[each % len(STEPS)], each // len(STEPS) % 2 == 1
        came = kill_and_build(step, after, before, lease)
        found["denied"] += came["denied"]
        before = came["then"]
        if came["busy"]:
            found["busy"] += 1
            while not before["armed"] and found["busy"] < 2 * number:
                os.waitpid(fork(build), 0)
                before = result_of(look)
                found["busy"] += not before["armed"]
            continue
        found["rounds"] += 1
        found["steps"].append(name := f"{'after' if after else 'before'} {step}")
        if came["harm"]:
            found["harmed"][name] = came["harm"]
    return found


def main() -> None:
    import django

    wanted = json.loads(sys.argv[1])
    django.setup()
    from bloomguard.rebuild import source
    from tests.shop.guards import ProductGuard

    source.PAGE_ROWS = 200
    ProductGuard.capacity = 1 << 20  # a build on MariaDB may wait a minute for the dawdlers, while the table grows
    if wanted["lease"] != 1:
        haste(wanted["lease"])
    if os.waitpid(fork(start), 0)[1]:
        raise RuntimeError("the first build failed")
    began = time.monotonic()
    crew = [fork(write, member, WRITERS / wanted["writes_a_second"]) for member in range(WRITERS)]
    crew += [fork(dawdle, WRITERS + member, 3 * wanted["lease"]) for member in range(DAWDLERS)]
    crew += [fork(ask), fork(keep_time, 0)]
    time.sleep(0.2)
    try:
        found = rounds(wanted["first"], wanted["rounds"], wanted["lease"])
        seconds = time.monotonic() - began
        ended = [pid for pid in crew if os.waitpid(pid, os.WNOHANG)[0]]
    finally:
        for pid in crew:
            os.kill(pid, signal.SIGKILL)
    print(
        json.dumps(
            {
                **found,
                **{name: total(name) for name in NUMBERS},
                "seconds": round(seconds, 1),
                "writes_a_second": round(total("writes") / seconds),
                "ended_early": len(ended),
                "late": round(max(shared.get(0, "late"), shared.get(1, "late")), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
