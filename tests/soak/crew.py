"""A crew of processes that write, ask and rebuild on one database and one store, and are killed all the while.

``python -m tests.soak.crew '{"operations": 20000, "kills": 10, ...}'`` prints what came of it as one JSON object. The
director forks the crew, kills members at random and puts new ones in their places. Some kill themselves: in the middle
of an add, around a change of the state row, or while a generation is written to the disk. A journal in shared memory,
one byte a row, tells which rows' ``bulk_create`` has returned; whoever reads 1 there and is then told ABSENT has found
a false 404.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

WRITERS = 4
ROWS_A_WRITER = 1 << 20
BATCH = 20
FIRST_ROWS = 5_000
ABSENT_FROM = 1 << 40
TRAPS = ("add", "kick", "swap", "flush")
#: Shorter leases than real ones, in seconds: more of everything in the same time.
LEASE = 0.25


_DIRECTOR = os.getpid()


def orphaned() -> bool:
    """Whether the process that forked this one is gone: then there is nobody left to end it."""
    return os.getppid() != _DIRECTOR


class Shared:
    """What the crew knows together, and every kill leaves behind: a journal, and a few numbers for each member."""

    _FIELDS = ("rows", "operations", "absents", "lost", "since", "longest", "failures", "late")

    def __init__(self) -> None:
        self.journal = mmap.mmap(-1, (WRITERS + 1) * ROWS_A_WRITER)
        # Each is stored at once: `struct.pack_into` zeroes it first, so a kill, or a reader meanwhile, would find none.
        self._numbers = memoryview(mmap.mmap(-1, 8 * len(self._FIELDS) * (WRITERS + 1))).cast("d")
        self._trapped = memoryview(mmap.mmap(-1, 8 * len(TRAPS))).cast("q")

    def _at(self, member: int, field: str) -> int:
        return member * len(self._FIELDS) + self._FIELDS.index(field)

    def get(self, member: int, field: str) -> float:
        return self._numbers[self._at(member, field)]

    def set(self, member: int, field: str, value: float) -> None:
        self._numbers[self._at(member, field)] = value

    def count(self, member: int, field: str, more: float = 1) -> None:
        self.set(member, field, self.get(member, field) + more)

    def total(self, field: str) -> int:
        return int(sum(self.get(member, field) for member in range(WRITERS + 1)))

    def trapped(self, name: str, more: int = 0) -> int:
        self._trapped[TRAPS.index(name)] += more
        return self._trapped[TRAPS.index(name)]

    @contextmanager
    def timed(self, member: int) -> Iterator[None]:
        """Notes since when the member has been inside bloomguard, and the longest that it ever was."""
        self.set(member, "since", time.monotonic())
        yield
        self.out(member)

    def out(self, member: int) -> None:
        since = self.get(member, "since")
        if since:
            self.set(member, "longest", max(self.get(member, "longest"), time.monotonic() - since))
        self.set(member, "since", 0.0)


shared = Shared()


def haste(lease: float = LEASE) -> None:
    """Make leases, and all that is waited for because of them, shorter in this process and those it forks."""
    from bloomguard.rebuild import rebuild, standby, verify
    from bloomguard.state import active_filter
    from bloomguard.state import table as state
    from bloomguard.writes import fencing, state_rows

    for module in (state, active_filter, verify, fencing):
        module.LEASE_SECONDS = lease
    fencing.IDLE_SECONDS = 1.5 * lease
    for module in (state, rebuild, standby, fencing, state_rows):
        module.EXPIRY_SECONDS = 2 * lease


# -- traps


def die(member: int, name: str) -> None:
    shared.trapped(name, 1)
    shared.out(member)  # the director may be in a failover, and see this death a second later
    os.kill(os.getpid(), signal.SIGKILL)


def set_trap(member: int, name: str, hits: int) -> None:
    """Make this process, which is ``member``, kill itself in the middle of the ``hits``-th of what ``name`` says."""
    from bloomguard.filters.codec import Frame
    from bloomguard.state.table import StateTable
    from bloomguard.stores.memory import FrameGeneration

    left = [hits]

    def due() -> bool:
        left[0] -= 1
        return left[0] == 0

    write, add_bits, write_bits = Frame.write, Frame.add_bits, Frame.write_bits
    swap, seal = StateTable.swap, FrameGeneration.seal

    def writing(self: Any, writes: Any) -> None:
        steps = list(writes)
        long_enough = len(steps) > (3 if name == "kick" else 1)  # a kick moves one fingerprint, or more, before

        def cut() -> Iterator[tuple[int, bytes]]:
            yield from steps[: len(steps) // 2]
            die(member, name)

        write(self, cut() if long_enough and due() else steps)

    def adding(self: Any, positions: Any) -> None:
        def cut() -> Iterator[int]:
            yield from positions[: len(positions) // 2]
            die(member, "add")

        add_bits(self, cut() if due() else positions)

    def adding_many(self: Any, positions: Any) -> None:
        if due():
            self._start()
            for position in positions[: len(positions) // 2]:
                self._data[position >> 3] |= 128 >> (position & 7)
            die(member, "add")
        write_bits(self, positions)

    def swapping(self: Any, seen: Any, **changes: Any) -> Any:
        mine = due()
        if mine and random.random() < 0.5:
            die(member, name)
        after = swap(self, seen, **changes)
        if mine:
            die(member, name)
        return after

    def flushing(self: Any) -> None:
        seal(self)
        if due():
            die(member, name)  # what is mapped has not been written to the disk, or half of it has

    if name == "kick":
        Frame.write = writing
    elif name == "add":
        Frame.write, Frame.add_bits, Frame.write_bits = writing, adding, adding_many
    elif name == "swap":
        StateTable.swap = swapping
    else:
        FrameGeneration.seal = flushing


# -- the crew


def write_and_ask(member: int, share_written: float) -> None:
    from bloomguard.guards import registry
    from bloomguard.state.active_filter import ActiveFilter
    from bloomguard.state.verdicts import Verdict
    from tests.shop.models import Product

    guard = registry["product"]
    add = ActiveFilter.add

    def timed_add(self: Any, *arguments: Any, **named: Any) -> bool:
        with shared.timed(member):
            return add(self, *arguments, **named)

    ActiveFilter.add = timed_add
    while not orphaned():
        if random.random() < share_written:
            first = int(shared.get(member, "rows"))
            shared.set(member, "rows", first + BATCH)  # whatever becomes of these, no other row gets their keys
            pks = range(member * ROWS_A_WRITER + first, member * ROWS_A_WRITER + first + BATCH)
            try:
                Product.objects.bulk_create([Product(pk=pk) for pk in pks])
            except Exception:
                shared.count(member, "failures")  # refused: these rows are not there
                continue
            shared.journal[pks.start : pks.stop] = b"\1" * BATCH
        else:
            for _ in range(BATCH - 1):
                other = random.randrange(WRITERS)
                rows = int(shared.get(other, "rows"))
                pk = other * ROWS_A_WRITER + random.randrange(max(rows, 1))
                if random.random() < 0.3:  # what was written last
                    pk = other * ROWS_A_WRITER + max(rows - random.randrange(1, 3 * BATCH), 0)
                if shared.journal[pk]:
                    with shared.timed(member):
                        verdict = guard.verdict(pk)
                    shared.count(member, "lost", verdict is Verdict.ABSENT)
            with shared.timed(member):
                verdict = guard.verdict(ABSENT_FROM + random.randrange(1 << 40))
            shared.count(member, "absents", verdict is Verdict.ABSENT)
        shared.count(member, "operations", BATCH)


def start_with(rows: int) -> None:
    """Rows, and a filter that has them."""
    from tests.shop.models import Product

    Product.objects.bulk_create([Product(pk=pk) for pk in range(rows)])
    build_at_last()
    shared.set(0, "rows", rows)
    shared.journal[:rows] = b"\1" * rows


def build_at_last() -> None:
    """Build as cron does: what fails, because the machine is too busy for a server to answer in time, comes again."""
    from bloomguard.exceptions import RebuildError
    from bloomguard.guards import registry
    from bloomguard.rebuild import Rebuild

    for left in reversed(range(10)):
        try:
            Rebuild(registry["product"]).run()
            return
        except RebuildError:
            if not left:
                raise
            time.sleep(0.5)


def build(member: int) -> None:
    from bloomguard.exceptions import RebuildError
    from bloomguard.guards import registry
    from bloomguard.rebuild import Rebuild

    while not orphaned():
        try:
            Rebuild(registry["product"]).run()
            shared.count(member, "rows")
        except RebuildError:
            shared.count(member, "failures")
            time.sleep(0.05)


def keep_time(member: int) -> None:
    """Note by how much a process that asks for nothing but to be woken up is woken too late: so busy is the machine."""
    while not orphaned():
        due = time.monotonic() + 0.005
        time.sleep(0.005)
        shared.set(member, "late", max(shared.get(member, "late"), time.monotonic() - due))


def fork(member: int, share_written: float, hits: int = 0) -> int:
    """A new member; with ``hits``, perhaps one that falls into a trap at one of its first so many adds."""
    pid = os.fork()
    if pid:
        return pid
    try:
        from bloomguard.state import table as state

        random.seed(os.urandom(8))
        sleep = state.table.sleep

        def outside(seconds: float) -> None:
            inside = shared.get(member, "since")
            shared.out(member)  # readers are given their time: nobody is stuck
            sleep(seconds)
            if inside:
                shared.set(member, "since", time.monotonic())

        state.table.sleep = outside
        builder = member == WRITERS
        if hits and random.random() < (0.9 if builder else 0.5):
            name = random.choice(("swap", "flush") if builder else ("add", "kick"))
            set_trap(member, name, random.randrange(1, 6 if builder else hits))
        if builder:
            build(member)
        else:
            write_and_ask(member, share_written)
    finally:
        os._exit(1)
    return 0


def direct(wanted: dict[str, Any], between: Callable[[int], None] = lambda kills: None) -> dict[str, Any]:
    """Fork the crew, kill and replace its members until there were enough operations and kills, and end it.

    ``between(kills)`` is called after every kill.
    """
    first = os.fork()
    if not first:
        start_with(FIRST_ROWS)
        os._exit(0)
    if os.waitpid(first, 0)[1]:
        raise RuntimeError("the first build failed")
    timekeeper = os.fork()
    if not timekeeper:
        keep_time(WRITERS)
        os._exit(0)
    began, kills, worst = time.monotonic(), 0, 0.0
    crew = {fork(member, wanted["written"]): member for member in range(WRITERS + 1)}
    pause = wanted["seconds"] / wanted["kills"]
    next_kill = time.monotonic() + pause
    deadline = began + wanted["patience"]
    while (
        kills < wanted["kills"]
        or shared.total("operations") < wanted["operations"]
        or shared.get(WRITERS, "rows") < wanted["builds"]
    ):
        if time.monotonic() > deadline:
            break
        now = time.monotonic()
        for member in range(WRITERS):
            since = shared.get(member, "since")
            worst = max(worst, now - since if since else 0.0)
        if now > next_kill and kills < wanted["kills"] and shared.total("absents"):  # all is well before the first
            next_kill = now + random.uniform(0.5, 1.5) * pause
            victim = random.choice([pid for pid in crew for _ in range(1 if crew[pid] == WRITERS else 2)])
            os.kill(victim, signal.SIGKILL)
            pid, status = os.waitpid(victim, 0)  # at once: seen after a failover, a death looks like a long call
        else:
            pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            if os.WTERMSIG(status) != signal.SIGKILL:
                raise RuntimeError(f"a member of the crew ended by itself: {status}")
            kills += 1
            member = crew.pop(pid)
            shared.out(member)
            crew[fork(member, wanted["written"], wanted["hits"])] = member
            between(kills)
        else:
            time.sleep(0.005)
    for pid in (*crew, timekeeper):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "kills": kills,
        "inside": {name: shared.trapped(name) for name in TRAPS},
        "operations": shared.total("operations"),
        "rows": shared.journal[:].count(1),
        "refused": sum(int(shared.get(member, "failures")) for member in range(WRITERS)),
        "absents": shared.total("absents"),
        "lost": shared.total("lost"),
        "builds": int(shared.get(WRITERS, "rows")),
        "longest": round(max(worst, *(shared.get(member, "longest") for member in range(WRITERS))), 2),
        "late": round(shared.get(WRITERS, "late"), 2),
    }


def judge(found: dict[str, Any]) -> dict[str, Any]:
    """Once all is quiet: build once more, and ask for every row that was acknowledged."""
    from bloomguard.guards import registry
    from bloomguard.state.verdicts import Verdict
    from tests.shop.models import Product

    guard = registry["product"]
    acknowledged = [pk for pk in range(len(shared.journal)) if shared.journal[pk]]
    denied = sum(guard.verdict(pk) is Verdict.ABSENT for pk in acknowledged)
    build_at_last()
    there = set(Product.objects.values_list("pk", flat=True))
    denied += sum(guard.verdict(pk) is Verdict.ABSENT for pk in acknowledged)
    unknown = [pk for pk in acknowledged if guard.verdict(pk) is Verdict.UNKNOWN]
    if unknown:  # a server may be late once
        time.sleep(2)
        unknown = [pk for pk in unknown if guard.verdict(pk) is Verdict.UNKNOWN]
    return found | {"not_stored": len(set(acknowledged) - there), "denied": denied, "unknown": len(unknown)}


def main() -> None:
    import django

    wanted = json.loads(sys.argv[1])
    django.setup()
    haste()
    from django.conf import settings

    from bloomguard.stores import stores
    from tests.shop.guards import ProductGuard

    ProductGuard.filter = wanted.get("filter", "bloom")
    if wanted.get("failovers"):
        from .failover import Servers

        servers = Servers(wanted["failovers"], wanted["kills"])
        settings.BLOOMGUARD = {
            "STORES": {"default": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": servers.url}}}
        }
        stores.reset()
        found = direct(wanted, servers.between)
        found["failovers"] = servers.done
    else:
        found = direct(wanted)
    print(json.dumps(judge(found)))


if __name__ == "__main__":
    main()
