"""The cuckoo filter against its peers from PyPI; :mod:`bench.filters` runs it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bloomguard.filters import CuckooFilter

from .peers import CHECKS, N, key, loop_of, numbers, peer
from .report import Report, interleave, median, ratio


def cuckoos(report: Report) -> None:
    """Checks, builds and discards beside the peers' own, the load that is reached, and what is lost: nothing."""
    cuckoopy = peer(report, "cuckoopy", "comparisons with cuckoopy")
    cuckoo = peer(report, "cuckoo.filter", "comparisons with scalable-cuckoo-filter")
    probables = peer(report, "probables", "cuckoo filters of pyprobables")
    count = 40_000
    members = numbers(count).tolist()
    strangers = numbers(CHECKS // 2, seed=2).tolist()
    words = {number: str(number) for number in members + strangers}
    array = np.array(members)

    def ours() -> CuckooFilter:
        """As many slots as the peers have (2**16, of 32 bits), though ours could be filled to 0.95."""
        return CuckooFilter(62_250, fingerprint_bits=32, width=8)

    peers: dict[str, tuple[Callable[[], Any], str, str, str]] = {}
    if cuckoopy:
        peers["cuckoopy"] = (lambda: cuckoopy.CuckooFilter(1 << 14, fingerprint_size=4), "insert", "contains", "delete")
    if cuckoo:
        peers["scalable-cuckoo-filter"] = (lambda: cuckoo.CuckooFilter(1 << 16, 0.0001), "insert", "contains", "delete")
    if probables:
        peers["pyprobables"] = (lambda: probables.CuckooFilter(1 << 14, finger_size=4), "add", "check", "remove")

    def insert_all(filter: Any, method: str) -> Any:
        insert = getattr(filter, method)
        for number in members:
            insert(words[number])
        return filter

    filled = {name: insert_all(make(), add) for name, (make, add, _, _) in peers.items()}
    mine = ours()
    mine.add_many(array)
    half = [*members[: CHECKS // 2], *strangers]
    contestants = {"ours": loop_of(mine.might_contain, [key(number) for number in half])}  # as the peers: keys at hand
    for name, (_, _, check, _) in peers.items():
        contestants[name] = loop_of(getattr(filled[name], check), [words[number] for number in half])
    taken = interleave(contestants, 9)
    report.add("cuckoo check", median(taken, "ours") / len(half) * 1e9, "ns")
    for name in peers:
        report.add("cuckoo check", ratio(taken, "ours", name), against=name, at_most=0.25)

    contestants = {"ours": lambda: ours().add_many(array)}
    for name, (make, add, _, _) in peers.items():
        contestants[name] = lambda make=make, add=add: insert_all(make(), add)
    taken = interleave(contestants, 3)
    report.add("cuckoo bulk build of 40k in 64k slots", median(taken, "ours") / count * 1e9, "ns a key")
    for name in peers:
        report.add("cuckoo bulk build of 40k in 64k slots", ratio(taken, "ours", name), against=name, at_most=0.1)

    gone = members[:CHECKS]

    def discards(filter: Any, method: str, keys: Iterable[Any]) -> Callable[[], None]:
        """Half of the keys go and come back, so that each round finds the same filter."""

        def loop() -> None:
            discard = getattr(filter, method)
            for each in keys:
                discard(each)

        return loop

    taken = {}
    for _ in range(5):  # what was discarded is put back between the rounds, outside the time taken
        once = {"ours": discards(mine, "discard", [key(number) for number in gone])}
        for name, (_, _, _, remove) in peers.items():
            once[name] = discards(filled[name], remove, [words[number] for number in gone])
        for name, seconds in interleave_once(once).items():
            taken.setdefault(name, []).append(seconds)
        mine.add_many(array[:CHECKS])
        for name, (_, add, _, _) in peers.items():
            for number in gone:
                getattr(filled[name], add)(words[number])
    report.add("cuckoo discard", median(taken, "ours") / len(gone) * 1e9, "ns")
    for name in peers:
        report.add("cuckoo discard", ratio(taken, "ours", name), against=name, at_most=0.35)

    big = numbers(N)
    taken = interleave({"ours": lambda: CuckooFilter(N, fingerprint_bits=32, width=8).add_many(big)}, 3)
    report.add("cuckoo bulk build of 1M to load 0.95", median(taken, "ours"), "s")
    reached = 0
    for seed in range(100):
        filter = CuckooFilter(100_000, fingerprint_bits=32, width=8)
        filter.add_many(numbers(100_000, seed))
        reached += filter.fill >= 0.9499 and len(filter) == 100_000
    report.add("cuckoo load 0.95 reached at 100k keys", reached, "of 100 seeds", at_least=100)
    report.add("cuckoo false negatives after 1M operations at 0.95", mixed_operations(), "keys", at_most=0)


def interleave_once(contestants: dict[str, Callable[[], None]]) -> dict[str, float]:
    taken = {}
    for name in random.Random(len(contestants)).sample(list(contestants), len(contestants)):
        start = time.perf_counter()
        contestants[name]()
        taken[name] = time.perf_counter() - start
    return taken


def mixed_operations(operations: int = 1_000_000, capacity: int = 100_000) -> int:
    """Discards and adds in turn at load 0.95; how many members are denied, in bulk and one at a time."""
    rng = random.Random(0)
    filter = CuckooFilter(capacity, fingerprint_bits=16, width=8)
    alive = list(range(capacity))
    filter.add_many(np.array(alive))
    for number in range(capacity, capacity + operations // 2):
        at = rng.randrange(capacity)
        filter.discard(key(alive[at]))
        filter.add(key(number))
        alive[at] = number
    denied = sum(not filter.might_contain(key(number)) for number in alive)
    return denied + int((~filter.contains_many(np.array(alive))).sum())
