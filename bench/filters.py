"""The filters against their peers from PyPI: ``python -m bench.filters`` (some minutes), or ``make bench-filters``.

Both sides of a single check start from the same Python object and get it into the form that they hash: for an int
``i.to_bytes(8, "little")`` on both sides, whose MurmurHash3 is taken inside our check and in the function that rbloom
is given, for it has no stable hash of its own. Bulk calls get the form that each side takes best: ours an array of
int64, as a scan of a table delivers it, the peers a list; a list on our side is reported, too.
"""

from __future__ import annotations

import gc
import importlib
import math
import mmap
import os
import random
import tempfile
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mmh3 import mmh3_x64_128_sintdigest

from bloomguard.filters import BloomFilter, CuckooFilter, ExactBitmap, KeyHash
from bloomguard.filters.codec import Frame

from .report import Report, interleave, median, peak_bytes, ratio

N = 1_000_000
CHECKS = 50_000
RATE = 0.01

report = Report("filters", "bloomguard.filters and its peers")


def peer(module: str, wanted_for: str) -> Any:
    """An optional package, or ``None`` and a row that says so."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        report.missing(wanted_for, module, f"not installed: {error}")
        return None


rbloom = peer("rbloom", "comparisons with rbloom")
fastbloom = peer("fastbloom_rs", "comparisons with fastbloom-rs")
pybloomfilter = peer("pybloomfilter", "comparisons with pybloomfiltermmap3")
pybloom_live = peer("pybloom_live", "comparisons with pybloom_live")
probables = peer("probables", "comparisons with pyprobables")
cuckoopy = peer("cuckoopy", "comparisons with cuckoopy")
cuckoo = peer("cuckoo.filter", "comparisons with scalable-cuckoo-filter")


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def numbers(count: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(0, 1 << 40, count)


# Checks, one key at a time. Each contestant is a loop over the same keys; the loop itself costs both sides the same.


def loop_of_ints(check: Callable[[bytes], bool], keys: list[int]) -> Callable[[], None]:
    def loop() -> None:
        for number in keys:
            check(number.to_bytes(8, "little"))

    return loop


def loop_of(check: Callable[[Any], object], keys: list[Any]) -> Callable[[], None]:
    def loop() -> None:
        for each in keys:
            check(each)

    return loop


def loop_in(filter: Any, keys: list[Any]) -> Callable[[], None]:
    def loop() -> None:
        for each in keys:
            each in filter  # noqa: B015

    return loop


def single_checks() -> None:
    members, strangers = np.split(numbers(2 * N), 2)
    probes = {"miss": strangers[:CHECKS].tolist(), "hit": members[:CHECKS].tolist()}
    ours = BloomFilter(N, RATE, width=8)
    ours.add_many(members)
    salted = BloomFilter(N, RATE, width=8, secret=b"sixteen bytes ok")
    salted.add_many(members)
    peers: dict[str, Callable[[list[int]], Callable[[], None]]] = {}
    if rbloom:
        rust = rbloom.Bloom(N, RATE, lambda number: mmh3_x64_128_sintdigest(number.to_bytes(8, "little")))
        rust.update(members.tolist())
        peers["rbloom"] = lambda keys: loop_in(rust, keys)
    if fastbloom:
        fast = fastbloom.FilterBuilder(N, RATE).build_bloom_filter()
        fast.add_int_batch(members.tolist())
        peers["fastbloom-rs"] = lambda keys: loop_of(fast.contains_int, keys)
    if pybloomfilter:
        mapped = pybloomfilter.BloomFilter(N, RATE)
        mapped.update(members.tolist())
        peers["pybloomfiltermmap3"] = lambda keys: loop_in(mapped, keys)
    if pybloom_live:
        live = pybloom_live.BloomFilter(N, RATE)
        for number in members.tolist():
            live.add(number)
        peers["pybloom_live"] = lambda keys: loop_in(live, keys)
    if probables:
        probable = probables.BloomFilter(est_elements=N, false_positive_rate=RATE)
        for number in members.tolist():
            probable.add(key(number))
        peers["pyprobables"] = lambda keys: loop_of_ints(probable.check, keys)
    targets = {"rbloom": {"miss": 0.75, "hit": 1.4}, "pybloom_live": 0.33, "pyprobables": 0.33}
    for what, keys in probes.items():
        mine = {"ours": loop_of_ints(ours.might_contain, keys), "secret": loop_of_ints(salted.might_contain, keys)}
        for name, make in peers.items():  # by pairs: a third filter would push both out of the cache
            taken = interleave({"ours": mine["ours"], name: make(keys)}, rounds=21)
            if name == next(iter(peers)):
                report.add(f"check of an int, {what}", median(taken, "ours") / CHECKS * 1e9, "ns")
            target: Any = targets.get(name)
            reason = "compiled code that hashes with a function of its own: reported, no target"
            if name == "rbloom":
                target = target[what]
                reason = (
                    "loop, conversion, MurmurHash3 and one call of Python take 130 of our 230 ns, and rbloom pays the "
                    "same in the function that it is given; what is left is 1.6 (miss) or 5 (hit) probes of 45 ns; "
                    "fewer probes would take more than 1.5 times the least memory"
                )
            report.add(
                f"check of an int, {what}", ratio(taken, "ours", name), against=name, at_most=target,
                reason=reason if target else "",
            )  # fmt: skip
        if rbloom:
            taken = interleave({"secret": mine["secret"], "rbloom": peers["rbloom"](keys)}, rounds=21)
            report.add(
                f"check of an int, {what}, keyed with a secret", ratio(taken, "secret", "rbloom"), against="rbloom"
            )


def single_checks_of(what: str, make: Callable[[int], Any], convert: Callable[[Any], bytes], width: int | None) -> None:
    """UUIDs and slugs: reported."""
    count = 200_000
    everything = [make(number) for number in range(2 * count)]
    members, strangers = everything[:count], everything[count:]
    ours = BloomFilter(count, RATE, width=width)
    ours.add_many([convert(each) for each in members])
    check = ours.might_contain
    peers: dict[str, tuple[Callable[[list[Any]], Callable[[], None]], float | None]] = {}
    if rbloom:
        rust = rbloom.Bloom(count, RATE, lambda each: mmh3_x64_128_sintdigest(convert(each)))
        rust.update(members)
        peers["rbloom"] = (lambda keys: loop_in(rust, keys), None)
    if pybloom_live:
        live = pybloom_live.BloomFilter(count, RATE)
        for each in members:
            live.add(each)
        peers["pybloom_live"] = (lambda keys: loop_in(live, keys), 0.33)
    if probables:
        probable = probables.BloomFilter(est_elements=count, false_positive_rate=RATE)
        for each in members:
            probable.add(convert(each))
        peers["pyprobables"] = (lambda keys: loop_of(lambda each: probable.check(convert(each)), keys), 0.33)
    for kind, keys in (("miss", strangers[:CHECKS]), ("hit", members[:CHECKS])):

        def loop(keys: list[Any] = keys) -> None:
            for each in keys:
                check(convert(each))

        taken = interleave({"ours": loop} | {name: run(keys) for name, (run, _) in peers.items()}, rounds=9)
        report.add(f"check of a {what}, {kind}", median(taken, "ours") / CHECKS * 1e9, "ns")
        for name, (_, target) in peers.items():
            report.add(
                f"check of a {what}, {kind}", ratio(taken, "ours", name), against=name, at_most=target,
                reason="most of it is BLAKE2b; faster hashes have collisions that hold for every seed",
            )  # fmt: skip


# Many keys at once.


def bulk_builds() -> None:
    for count, target, rounds in ((N, 0.95, 15), (10 * N, 0.4, 5)):
        array = numbers(count)
        listed = array.tolist()
        contestants: dict[str, Callable[[], object]] = {
            "ours": lambda array=array, count=count: BloomFilter(count, RATE, width=8).add_many(array),
            "ours, list": lambda listed=listed, count=count: BloomFilter(count, RATE, width=8).add_many(listed),
        }
        if fastbloom:
            contestants["fastbloom-rs"] = lambda listed=listed, count=count: (
                fastbloom.FilterBuilder(count, RATE).build_bloom_filter().add_int_batch(listed)
            )
        if rbloom and count == N:  # five times slower: one size tells it
            contestants["rbloom"] = lambda listed=listed, count=count: rbloom.Bloom(
                count, RATE, lambda number: mmh3_x64_128_sintdigest(number.to_bytes(8, "little"))
            ).update(listed)
        taken = interleave(contestants, rounds)
        size = f"{count // N}M ints"
        report.add(f"bulk build of {size}", median(taken, "ours") / count * 1e9, "ns a key")
        rust = [name for name in contestants if not name.startswith("ours")]
        if rust:
            best = min(rust, key=lambda name: median(taken, name))
            report.add(
                f"bulk build of {size}, best Rust peer", ratio(taken, "ours", best), against=best, at_most=target,
                reason=(
                    "numpy sets five bytes a key at random in a partition's flags, which are larger than a core's "
                    "cache; two cores share the work here, more were not measured"
                ),
            )  # fmt: skip
            report.add(
                f"bulk build of {size}, from a list on both sides", ratio(taken, "ours, list", best), against=best
            )
        filter = BloomFilter(count, RATE, width=8)
        report.add(
            f"bulk build of {size}, peak memory above the filter",
            peak_bytes(lambda filter=filter, array=array: filter.add_many(array)) / len(filter.body),
            "bits a bit",
            at_most=3,
            reason=(
                "two threads have flags of their own, a byte for each bit of a partition: 3.4 bits a bit themselves; "
                "flags that they share, in smaller batches, took 2.7 in all, and a fifth to a third more time"
            ),
        )
    members = os.urandom(16 * N)
    taken = interleave({"ours": lambda: BloomFilter(N, RATE, width=16).add_many(members)}, 7)
    report.add("bulk build of 1M UUIDs from one buffer", median(taken, "ours") / N * 1e9, "ns a key")
    words = [f"article-{number:x}-on-bloom-filters" for number in range(N // 5)]
    contestants = {"ours": lambda: BloomFilter(len(words), RATE).add_many(map(str.encode, words))}
    if fastbloom:
        contestants["fastbloom-rs"] = lambda: (
            fastbloom.FilterBuilder(len(words), RATE).build_bloom_filter().add_str_batch(words)
        )
    if rbloom:
        contestants["rbloom"] = lambda: rbloom.Bloom(
            len(words), RATE, lambda word: mmh3_x64_128_sintdigest(word.encode())
        ).update(words)
    taken = interleave(contestants, 7)
    report.add("bulk build of 200k strings (BLAKE2b, no secret)", median(taken, "ours") / len(words) * 1e9, "ns a key")
    for name in contestants:
        if name != "ours":
            report.add("bulk build of 200k strings", ratio(taken, "ours", name), against=name)


def bulk_checks() -> None:
    members, strangers = np.split(numbers(2 * N), 2)
    ours = BloomFilter(N, RATE, width=8)
    ours.add_many(members)
    probes = np.concatenate((members[:50_000], strangers[:50_000]))
    listed = probes.tolist()
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.contains_many(probes),
        "ours, list": lambda: ours.contains_many(listed),
    }
    if fastbloom:
        fast = fastbloom.FilterBuilder(N, RATE).build_bloom_filter()
        fast.add_int_batch(members.tolist())
        contestants["fastbloom-rs"] = lambda: fast.contains_int_batch(listed)
    if rbloom:
        rust = rbloom.Bloom(N, RATE, lambda number: mmh3_x64_128_sintdigest(number.to_bytes(8, "little")))
        rust.update(members.tolist())
        contestants["rbloom"] = lambda: [number in rust for number in listed]
    taken = interleave(contestants, 25)
    report.add("contains_many of 100k", median(taken, "ours") / len(probes) * 1e9, "ns a key")
    others = [name for name in contestants if not name.startswith("ours")]
    if others:
        best = min(others, key=lambda name: median(taken, name))
        report.add("contains_many of 100k, best peer", ratio(taken, "ours", best), against=best, at_most=1.05)
        report.add("contains_many of 100k, from a list on both sides", ratio(taken, "ours, list", best), against=best)


# Cuckoo.


def cuckoos() -> None:
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
    import time

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


# Size, rate and reach.


def sizes_and_rates() -> None:
    for rate in (0.01, 0.001):
        shape = BloomFilter.shape(10 * N, rate)
        limit = 10 * N * math.log2(1 / rate)
        report.add(f"size at {rate:.1%}", 8 * shape.body_bytes / limit, "x", against="information limit", at_most=1.5)
    shape_of_ids = ExactBitmap.shape(1, 10 * N, RATE)
    report.add("exact bitmap", 8 * shape_of_ids.bit_bytes / (10 * N), "bits an ID", against="its range", at_most=1)
    report.add(
        "exact bitmap, with its filter for what lies outside", 8 * shape_of_ids.body_bytes / (10 * N), "bits an ID",
        against="its range",
    )  # fmt: skip
    for rate in (0.01, 0.001):
        filter = BloomFilter(10 * N, rate, width=8)
        filter.add_many(np.arange(10 * N))
        probes, found = 50_000_000 if rate < 0.01 else 10_000_000, 0
        for start in range(10 * N, 10 * N + probes, 1_000_000):
            found += int(filter.contains_many(np.arange(start, start + 1_000_000)).sum())
        off = abs(found / probes / rate - 1)
        report.add(f"error rate of 10M keys, {rate:.1%} promised", found / probes * 100, "%")
        report.add(f"error rate of 10M keys, {rate:.1%} promised", off * 100, "% off", against="promise", at_most=3)


def past_four_billion_bits(keys: int = 20_000_000, capacity: int = 520_000_000) -> tuple[int, int]:
    """Build 5 Gbit, write them, map the file, check there: bits of the filter, and wrong answers."""
    filter = BloomFilter(capacity, RATE, width=8)
    bits = filter.layout.bits
    members = np.arange(keys)
    filter.add_many(members)
    wrong = 0
    with tempfile.TemporaryFile() as file:
        filter.dump(file)
        file.flush()
        del filter
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            frame = Frame.open(memoryview(mapped))
            frame.verify()
            again = BloomFilter.attach(frame.header, frame.body, KeyHash(8))
            wrong += int((~again.contains_many(members)).sum())
            wrong += sum(not again.might_contain(key(number)) for number in range(0, keys, 997))
            strangers = range(keys, keys + 100_000)
            wrong += sum(
                again.might_contain(key(number)) for number in strangers
            )  # at 4% of capacity: none to speak of
            wrong += max(max(again.locations(key(number))) for number in range(100)) < 1 << 32
            del again, frame
            gc.collect()  # before the map is closed
    return bits, wrong


def main() -> None:
    report.start()
    single_checks()
    single_checks_of("UUID", lambda number: uuid.UUID(int=number << 64 | number), lambda each: bytes(each.bytes), 16)
    single_checks_of("slug", lambda number: f"article-{number:x}-on-bloom-filters", str.encode, None)
    bulk_builds()
    bulk_checks()
    cuckoos()
    sizes_and_rates()
    bits, wrong = past_four_billion_bits()
    report.add("a filter past 2^32 bits: built, written, mapped", bits / 1e9, "Gbit", at_least=5)
    report.add("a filter past 2^32 bits: wrong answers", wrong, "of 20.1M", at_most=0)
    report.finish()


if __name__ == "__main__":
    main()
