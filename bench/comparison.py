"""bloomguard beside what else answers for absent IDs: ``make bench-comparison`` (some minutes).

One process looks rows up by primary key in PostgreSQL, in ways that take turns: with nothing before the query; with
null caching in Valkey; with a filter of bloomsieve in a mapped file, asked by hand; and with bloomguard, in files and
in Valkey. Then each way is asked for rows that were created past it, and for rows after its data was lost.
``BF.EXISTS`` is measured only if the server has it: set ``BLOOMGUARD_TEST_REDIS_URL`` to one that does. The benchmark
flushes that server.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count, repeat
from pathlib import Path
from typing import Any

from .report import Report, interleave, median, ratio
from .requests import set_up

ROWS = 10_000
BATCH, ROUNDS = 20, 60
TRIALS = 1_000
ERROR_RATE = 0.001
NOTHING = "nothing"
#: How null caching says that there is no row; ``None`` is what a cache says of a key that it does not have.
NO_ROW = "no row"

#: Takes a primary key; returns whether a row was found.
Find = Callable[[int], bool]


class Ways:
    """The ways to find a row. Rows have odd IDs, so each absent one has two neighbours."""

    def __init__(self, folder: Path, url: str) -> None:
        import redis
        from bloomsieve import BloomFilter
        from django.contrib.auth.models import Group

        from tests.shop.models import Product

        self.product, self.group = Product, Group
        self.client = redis.Redis.from_url(url)
        self.sieve = BloomFilter(ROWS, ERROR_RATE, filepath=str(folder / "sieve"))
        self.sieve.add_many(str(pk) for pk in self.existing(ROWS))
        self.finds: dict[str, Find] = {
            NOTHING: self.query,
            "null caching": self.null_caching,
            "bloomsieve, by hand": self.by_hand,
            "bloomguard, files": self.query,
            "bloomguard, Valkey": self.query_group,
        }
        if has_module(self.client):
            self.client.execute_command("BF.RESERVE", "bf", ERROR_RATE, ROWS)
            self.client.execute_command("BF.MADD", "bf", *self.existing(ROWS))
            self.finds["BF.EXISTS, by hand"] = self.by_module

    @staticmethod
    def existing(number: int) -> Iterator[int]:
        return iter(range(1, 2 * number, 2))

    def query(self, pk: int) -> bool:
        return self._finds(self.product, pk)

    def query_group(self, pk: int) -> bool:
        return self._finds(self.group, pk)

    @staticmethod
    def _finds(model: Any, pk: int) -> bool:
        try:
            model.objects.get(pk=pk)
        except model.DoesNotExist:
            return False
        return True

    def null_caching(self, pk: int) -> bool:
        from django.core.cache import cache

        found = cache.get(f"product:{pk}")
        if found is None:
            found = self.product.objects.filter(pk=pk).first() or NO_ROW
            cache.set(f"product:{pk}", found)
        return bool(found != NO_ROW)

    def by_hand(self, pk: int) -> bool:
        return str(pk) in self.sieve and self.query(pk)

    def by_module(self, pk: int) -> bool:
        return bool(self.client.execute_command("BF.EXISTS", "bf", pk)) and self.query(pk)

    def scope(self, way: str) -> Any:
        """Guards answer where a request would be; elsewhere, each query is sent."""
        from bloomguard.lookups import guarded_lookups

        return guarded_lookups() if way.startswith("bloomguard") else nullcontext()

    def count_found(self, way: str, pks: Iterator[int]) -> int:
        with self.scope(way):
            return sum(self.finds[way](pk) for pk in pks)


def has_module(client: Any) -> bool:
    import redis

    try:
        client.execute_command("BF.EXISTS", "none", "none")
    except redis.ResponseError as error:
        if "unknown command" not in str(error).lower():
            raise
        return False
    return True


def measure(report: Report, ways: Ways) -> None:
    """Seconds of a look-up: of IDs that never come twice, and of one that comes again and again."""

    def run(way: str, pks: Iterator[int], found: bool) -> Callable[[], None]:
        def batch() -> None:
            with ways.scope(way):
                for _ in range(BATCH):
                    assert ways.finds[way](next(pks)) is found

        return batch

    kinds: dict[str, tuple[bool, Callable[[], Iterator[int]]]] = {
        "an absent ID, once": (False, lambda: (2 * number for number in count(1))),
        "an absent ID, again": (False, lambda: repeat(10 * ROWS)),
        "a row, once": (True, lambda: (2 * (number * 7919 % ROWS) + 1 for number in count())),
        "a row, again": (True, lambda: repeat(1)),
    }
    for what, (found, pks) in kinds.items():
        taken = interleave({way: run(way, pks(), found) for way in ways.finds}, rounds=ROUNDS)
        report.add(f"{what}: {NOTHING}", median(taken, NOTHING) / BATCH * 1e6, "us")
        for way in list(ways.finds)[1:]:
            report.add(f"{what}: {way}", ratio(taken, way, NOTHING), against=NOTHING)


def memory(report: Report, ways: Ways) -> None:
    """Bytes that each absent ID takes in null caching, and each row in a filter."""
    from bloomguard.models import GuardState

    before = ways.client.info("memory")["used_memory"]
    for pk in range(10**6, 10**6 + 2 * TRIALS, 2):
        ways.null_caching(pk)
    taken = ways.client.info("memory")["used_memory"] - before
    report.add("memory: null caching", taken / TRIALS, "bytes an absent ID")
    report.add("memory: bloomsieve, by hand", ways.sieve.byte_size / ROWS, "bytes a row")
    for way, name in (("bloomguard, files", "product"), ("bloomguard, Valkey", "groups")):
        report.add(f"memory: {way}", GuardState.objects.get(name=name).bytes / ROWS, "bytes a row")


def guards() -> Any:
    from bloomguard.guards import registry

    return registry


def past(report: Report, ways: Ways) -> None:
    """Rows of ``bulk_create``, which sends no signal, that are answered "not found"."""
    pks = range(3 * ROWS, 3 * ROWS + TRIALS)
    for way in ways.finds:
        ways.count_found(way, iter(pks))  # somebody has asked for them before
    ways.product.objects.bulk_create(ways.product(pk=pk, name="a product") for pk in pks)
    ways.group.objects.bulk_create(ways.group(pk=pk, name=f"group {pk}") for pk in pks)
    for way in ways.finds:
        missing = TRIALS - ways.count_found(way, iter(pks))
        report.add(f"rows of bulk_create not found: {way}", missing, f"of {TRIALS}")


def lost(report: Report, ways: Ways, folder: Path) -> None:
    """Rows that are answered "not found" after files and Valkey lost what they held, and processes began anew."""
    from bloomsieve import BloomFilter

    ways.client.flushall()
    ways.sieve.close()
    (folder / "sieve").unlink()
    ways.sieve = BloomFilter(ROWS, ERROR_RATE, filepath=str(folder / "sieve"))
    shutil.rmtree(folder / ".bloomguard")
    for guard in guards():
        guard._runtime.active_filter.forget()
    for way in ways.finds:
        missing = TRIALS - ways.count_found(way, ways.existing(TRIALS))
        report.add(f"rows not found after a loss: {way}", missing, f"of {TRIALS}")


def main() -> int:
    from tests.support import servers

    folder = Path(tempfile.mkdtemp(prefix="bloomguard-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    url = servers.valkey()
    set_up(
        folder,
        servers.postgresql(),
        CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}},
        BLOOMGUARD={
            "STORES": {
                "default": {"BACKEND": "bloomguard.stores.file.FileStore"},
                "valkey": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": url}},
            }
        },
    )
    from django.core.management import call_command

    from bloomguard import Guard, register
    from bloomguard.rebuild import Rebuild

    call_command("migrate", verbosity=0, run_syncdb=True)
    ways = Ways(folder, url)

    @register(ways.group)
    class GroupGuard(Guard):
        name = "groups"
        store = "valkey"

    ways.product.objects.bulk_create(ways.product(pk=pk, name="a product") for pk in ways.existing(ROWS))
    ways.group.objects.bulk_create(ways.group(pk=pk, name=f"group {pk}") for pk in ways.existing(ROWS))
    for name in ("product", "groups"):
        Rebuild(guards()[name]).run()

    report = Report("comparison", "bloomguard beside null caching, bloomsieve and Redis' own filters")
    report.start()
    measure(report, ways)
    if "BF.EXISTS, by hand" not in ways.finds:
        server = ways.client.info("server")
        version = server.get("valkey_version") or server["redis_version"]
        report.missing("an absent ID, once", "BF.EXISTS", f"the server of the tests, {version}, has no such command")
        report.missing("an absent ID, once", "CF.EXISTS", f"the server of the tests, {version}, has no such command")
    memory(report, ways)
    past(report, ways)
    lost(report, ways, folder)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
