"""Keys of text against bloomsieve, in memory and in a file that processes share; :mod:`bench.filters` runs it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from bloomguard.filters import BloomFilter, KeyHash
from bloomguard.filters.layout import Layout
from bloomguard.stores.file import FileStore

from .peers import RATE, loop_of, peer
from .report import Report, interleave, median, ratio

COUNT, LOOPS, ADDS = 200_000, 20_000, 5_000


def adding(add: Callable[[bytes], object]) -> Callable[[], None]:
    """A loop that adds keys which are new each time."""
    numbers = count()

    def loop() -> None:
        for _ in range(ADDS):
            add(b"new-%x" % next(numbers))

    return loop


def against_bloomsieve(report: Report) -> None:
    """Checks, adds and bulk builds: reported, without targets.

    Our shared file is a generation of the file store. Its adds also set the recent bits, update the checksum, and read
    back what was written; bloomsieve's set bits under a lock.
    """
    bloomsieve = peer(report, "bloomsieve", "comparisons with bloomsieve")
    if bloomsieve is None:
        return
    words = [b"article-%x-on-bloom-filters" % number for number in range(2 * COUNT)]
    members, strangers = words[:COUNT], words[COUNT:]

    def compare(what: str, ours: Callable[[], object], theirs: Callable[[], object], keys: int, rounds: int) -> None:
        taken = interleave({"ours": ours, "bloomsieve": theirs}, rounds)
        report.add(what, median(taken, "ours") / keys * 1e9, "ns")
        report.add(what, ratio(taken, "ours", "bloomsieve"), against="bloomsieve")

    with tempfile.TemporaryDirectory(prefix="bloomguard-bench-") as folder:
        layout = Layout.plan(key_hash=KeyHash(None, b"sixteen bytes ok"), capacity=COUNT, error_rate=RATE, key_id=1)
        shared = FileStore("bench", path=Path(folder) / "ours").create("words", "a", layout)
        shared.add_many(members)
        shared.seal()
        own = BloomFilter(COUNT, RATE)
        own.add_many(members)
        theirs = bloomsieve.BloomFilter(COUNT, RATE)
        mapped = bloomsieve.BloomFilter(COUNT, RATE, filepath=f"{folder}/theirs")
        for each in (theirs, mapped):
            each.add_many(members)
        for where, mine, their in (("", own, theirs), (", in a shared file", shared, mapped)):
            for kind, keys in (("miss", strangers[:LOOPS]), ("hit", members[:LOOPS])):
                compare(
                    f"check of a text, {kind}{where}",
                    loop_of(mine.might_contain, keys), loop_of(their.__contains__, keys), LOOPS, 15,
                )  # fmt: skip
        compare("add of a text", adding(own.add), adding(theirs.add), ADDS, 9)
        compare(
            "add of a text, in a shared file", adding(lambda word: shared.add([word])), adding(mapped.add), ADDS, 9,
        )  # fmt: skip
        compare(
            f"bulk build of {COUNT // 1_000}k texts",
            lambda: BloomFilter(COUNT, RATE).add_many(members),
            lambda: bloomsieve.BloomFilter(COUNT, RATE).add_many(members),
            COUNT, 5,
        )  # fmt: skip
