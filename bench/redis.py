"""The Redis store against bare commands, and against the database: ``make bench-redis`` (two minutes).

Everything runs against a Valkey 9 server on this host. Ratios are medians over rounds in which all contestants run
one after the other, with the same redis-py and hiredis, each through a pool of its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import numpy as np
import redis
import redis.asyncio
from asgiref.sync import sync_to_async

from . import spread
from .report import Report, interleave, median, ratio

sys.path.insert(0, "example_project")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.db import connections  # noqa: E402
from django.test import Client, override_settings  # noqa: E402

from bloomguard.exceptions import StoreError  # noqa: E402
from bloomguard.filters import KeyHash  # noqa: E402
from bloomguard.filters.layout import Layout  # noqa: E402
from bloomguard.guards import registry  # noqa: E402
from bloomguard.models import GuardState  # noqa: E402
from bloomguard.rebuild import Rebuild  # noqa: E402
from bloomguard.state.verdicts import Verdict  # noqa: E402
from bloomguard.stores import stores  # noqa: E402
from bloomguard.stores.file import FileStore  # noqa: E402
from bloomguard.stores.redis import RedisStore  # noqa: E402
from bloomguard.stores.redis.generation import RedisGeneration  # noqa: E402
from tests.shop.models import Product  # noqa: E402
from tests.support import database  # noqa: E402
from tests.support.proxy import Proxy  # noqa: E402
from tests.support.servers import Valkey  # noqa: E402

LOOPS = 500
ROWS = 20_000

report = Report("redis", "bloomguard.stores.redis on Valkey")


def plan(capacity: int, error_rate: float, shard_bytes: int) -> Layout:
    return Layout.plan(
        key_hash=KeyHash(8, b"0123456789abcdef"),
        capacity=capacity,
        error_rate=error_rate,
        shard_bytes=shard_bytes,
    )


def generation(store: RedisStore, name: str, capacity: int, error_rate: float = 0.01) -> RedisGeneration:
    made = store.create("bench", name, plan(capacity, error_rate, store.shard_bytes))
    assert isinstance(made, RedisGeneration)
    return made


def times(count: int, act: Callable[[int], object]) -> Callable[[], None]:
    def run() -> None:
        for number in range(count):
            act(number)

    return run


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def products() -> None:
    """The table that ``.exists()`` asks, in a PostgreSQL of our own."""
    database.current = "postgresql"
    connection = connections["postgresql"]
    with connection.schema_editor() as editor:
        if Product._meta.db_table not in connection.introspection.table_names():
            editor.create_model(Product)
    Product.objects.all().delete()
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, ROWS))


def single(server: Valkey, store: RedisStore) -> None:
    """One check and one add beside what they are made of, and beside the query that they save."""
    products()
    made = generation(store, "single", 1_000_000)
    made.add_many(np.arange(1_000_000))
    made.seal()
    shard, admin = made.keys[0], server.client()
    absent = [key(10_000_000 + number) for number in range(LOOPS)]
    hundred = absent[:100]
    taken = interleave(
        {
            "check": times(LOOPS, lambda i: made.might_contain(absent[i])),
            "GETRANGE": times(LOOPS, lambda i: admin.getrange(shard, 64 * i, 64 * i + 63)),
            "add": times(LOOPS, lambda i: made.add([absent[i]])),
            "SETBIT": times(LOOPS, lambda i: admin.setbit(shard, 3_000 + 640 * i, 1)),
            "batch": times(LOOPS // 100, lambda i: made.might_contain_many(hundred)),
            "exists": times(LOOPS, lambda i: Product.objects.filter(pk=10_000_000 + i).exists()),
        },
        rounds=21,
    )
    taken["batch"] = [100 * seconds for seconds in taken["batch"]]  # as many batches as there are single checks
    report.add("a check with its whole proof", ratio(taken, "check", "GETRANGE"), against="GETRANGE", at_most=1.2)
    report.add("an add, proved", ratio(taken, "add", "SETBIT"), against="SETBIT", at_most=1.4)
    report.add(
        "a batch of 100 checks",
        ratio(taken, "batch", "check"),
        against="one check",
        at_most=5,
        reason="500 bits are 1,500 words of one command: reading and answering those takes the server as long as four "
        "checks take in all; hashing, putting them together and reading replies takes as long as another five",
    )
    for name, what in (("check", "a check"), ("add", "an add"), ("batch", "a batch of 100 checks")):
        report.add(what, ratio(taken, name, "exists"), against="one .exists(), PostgreSQL")
    for name in ("check", "GETRANGE", "add", "SETBIT", "exists"):
        report.add(f"one {name}", median(taken, name) / LOOPS * 1e6, "us")
    report.add("a batch of 100 checks, time", median(taken, "batch") / LOOPS * 1e6, "us")

    batch(made, admin, hundred)
    on_a_loop(made, server, absent)

    for name, act in (("check", made.might_contain), ("add", lambda each: made.add([each]))):
        admin.config_resetstat()
        for each in absent:
            act(each)
        usec = admin.info("commandstats")["cmdstat_bitfield"]["usec_per_call"]
        report.add(f"server time of one {name}", usec, "us")
        report.add(f"processor time that a server spends on one {name}", processor(admin, act, absent) * 1e6, "us")
    admin.close()


def batch(made: RedisGeneration, admin: redis.Redis, hundred: list[bytes]) -> None:
    """What a batch is made of: hashing, the command, and what the server has to do for it."""
    digests = [digest for _, digest in map(made.layout.locate, hundred)]
    taken = interleave(
        {
            "hashed": times(100, lambda _: list(map(made.layout.locate, hundred))),
            "made": times(100, lambda _: made._kind.checks(0, digests)),
        },
        rounds=21,
    )
    report.add("a batch of 100 checks: hashing", median(taken, "hashed") / 100 * 1e6, "us")
    report.add("a batch of 100 checks: the command, made", median(taken, "made") / 100 * 1e6, "us")
    spent = processor(admin, lambda _: made.might_contain_many(hundred), hundred)
    report.add("a batch of 100 checks: processor time of the server", spent * 1e6, "us")


def on_a_loop(made: RedisGeneration, server: Valkey, absent: list[bytes]) -> None:
    """A check that an event loop awaits, beside a bare command of the same client, and beside a check in a thread."""
    loop, client = asyncio.new_event_loop(), redis.asyncio.Redis(port=server.port)
    in_thread = sync_to_async(made.might_contain, thread_sensitive=False)

    def awaiting(act: Callable[[int], Awaitable[object]]) -> Callable[[], None]:
        async def all_of_them() -> None:
            for number in range(LOOPS):
                await act(number)

        return lambda: loop.run_until_complete(all_of_them())

    taken = interleave(
        {
            "check": awaiting(lambda i: made.amight_contain(absent[i])),
            "GETRANGE": awaiting(lambda i: client.getrange(made.keys[0], 64 * i, 64 * i + 63)),
            "thread": awaiting(lambda i: in_thread(absent[i])),
        },
        rounds=21,
    )
    for name, against in (("GETRANGE", "GETRANGE, redis.asyncio"), ("thread", "one in a thread")):
        report.add("an awaited check with its whole proof", ratio(taken, "check", name), against=against)
    for name, what in (("check", "an awaited check"), ("GETRANGE", "GETRANGE of redis.asyncio")):
        report.add(f"one {what.removeprefix('an ')}", median(taken, name) / LOOPS * 1e6, "us")
    loop.run_until_complete(client.aclose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def processor(admin: redis.Redis, act: Callable[[bytes], object], keys: list[bytes]) -> float:
    """Seconds of all threads of the server for one command, reading and writing its socket included."""

    def used() -> float:
        figures = admin.info("cpu")
        return float(figures["used_cpu_user"] + figures["used_cpu_sys"])

    before = used()
    for _ in range(20):
        for each in keys:
            act(each)
    return (used() - before) / (20 * len(keys))


def load(store: RedisStore) -> None:
    """Ten million ints, after hashing: setting bits on the client, sending them, joining them on the server."""
    numbers = np.arange(10_000_000)
    made = generation(store, "ten million", len(numbers))
    start = time.perf_counter()
    made.layout.key_hash.digests(numbers)
    hashing = time.perf_counter() - start
    start = time.perf_counter()
    made.add_many(numbers)
    made.seal()
    taken = time.perf_counter() - start
    report.add(
        "bulk load of 10M ints after hashing, a key",
        (taken - hashing) / len(numbers) * 1e6,
        "us",
        at_most=0.15,
        reason="the machine was busy, or has few cores: bits are set on all of them",
    )
    report.add("bulk load of 10M ints, in all", taken, "s")
    store.drop("bench", "ten million")


@contextmanager
def watched(server: Valkey) -> Iterator[list[float]]:
    """The longest that another client waits for a reply, in seconds, while the block runs and so far."""
    worst, stop = [0.0], threading.Event()

    def ask() -> None:
        with server.client() as client:
            client.ping()
            while not stop.is_set():
                start = time.perf_counter()
                client.getbit("bench", 1)
                worst[0] = max(worst[0], time.perf_counter() - start)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield worst
    finally:
        stop.set()
        thread.join()


def stall(server: Valkey, store: RedisStore) -> None:
    """What another client notices of 120 MB that load, are joined, and are freed."""
    with watched(server) as worst:
        time.sleep(0.5)
        idle, worst[0] = worst[0], 0.0
        start = time.perf_counter()
        made = generation(store, "large", 100_000_000)
        made._draft.frames[0].body[0] = 1  # type: ignore[union-attr]
        made.seal()
        taken = time.perf_counter() - start
        store.drop("bench", "large")
    report.add("largest load, bytes", made.layout.total_bytes, "bytes")
    report.add("largest load, made and brought", taken, "s")
    report.add("the longest stall of another client without load", idle * 1e3, "ms")
    report.add(
        "the longest stall of another client during the load",
        worst[0] * 1e3,
        "ms",
        at_most=30,
        reason="client, server and loader share the cores of this machine",
    )


def copying(server: Valkey, store: RedisStore) -> None:
    """The same bytes from a file: brought, read back whole, and freed."""
    with tempfile.TemporaryDirectory() as folder, watched(server) as worst:
        files = FileStore("bench", path=Path(folder) / "filters")
        planned = plan(100_000_000, 0.01, files.shard_bytes)
        original = files.create("bench", "original", planned)
        original.add_many(np.arange(1_000_000))
        worst[0], start = 0.0, time.perf_counter()
        made = store.create("bench", "copy", planned)
        for shard in range(planned.header.shards):
            made.merge(shard, original.read_shard(shard).body)
        made.seal()
        brought = time.perf_counter() - start
        missing = sum(made.merge(shard, original.read_shard(shard).body) for shard in range(planned.header.shards))
        taken = time.perf_counter() - start
        store.drop("bench", "copy")
    assert not missing
    report.add("largest copy from a file, bytes", planned.total_bytes, "bytes")
    report.add("that copy, brought", brought, "s")
    report.add("that copy, brought and read back", taken, "s")
    report.add("the longest stall of another client during the copy", worst[0] * 1e3, "ms")


def black_hole(server: Valkey) -> None:
    """What a check costs while the server takes everything and answers nothing."""
    proxy = Proxy(server.port)
    store = RedisStore("bench", url=proxy.url)
    made = generation(store, "hole", 1_000)
    made.might_contain(key(1))
    proxy.mode = "hole"
    taken = []
    for number in range(25):
        start = time.perf_counter()
        try:
            made.might_contain(key(number))
        except StoreError:
            taken.append(time.perf_counter() - start)
    report.add("a check of a black-holed server", statistics.median(taken[:5]) * 1e3, "ms", at_most=55)
    report.add("the same once the breaker is open", statistics.median(taken[5:]) * 1e3, "ms", at_most=0.1)
    store.close()
    proxy.mode = "pass"
    asyncio.run(black_hole_of_a_loop(proxy))
    proxy.close()


async def black_hole_of_a_loop(proxy: Proxy) -> None:
    """The same for tasks of an event loop, one after the other and many at once."""
    store = RedisStore("bench", url=proxy.url)
    made = generation(store, "loop", 1_000)

    async def seconds(*checks: Coroutine[Any, Any, bool]) -> float:
        start = time.perf_counter()
        for found in await asyncio.gather(*checks, return_exceptions=True):
            assert isinstance(found, StoreError)
        return time.perf_counter() - start

    await made.amight_contain(key(1))
    proxy.mode = "hole"
    waiting = [await seconds(made.amight_contain(key(number))) for number in range(4)]
    flood = await seconds(*(made.amight_contain(key(number)) for number in range(200)))
    passing = [await seconds(made.amight_contain(key(number))) for number in range(100)]
    report.add("an awaited check of a black-holed server", statistics.median(waiting) * 1e3, "ms", at_most=55)
    report.add("two hundred of them at once", flood * 1e3, "ms", at_most=150)
    report.add("an awaited check once the breaker is open", statistics.median(passing) * 1e3, "ms", at_most=0.1)
    store.close()


def outage(server: Valkey) -> None:
    """What whole requests for a row that exists cost while the server is black-holed, beyond what they cost before."""
    proxy, client, guard = Proxy(server.port), Client(HTTP_HOST="localhost"), registry["product"]
    connection = connections["postgresql"]
    with connection.schema_editor() as editor:
        if GuardState._meta.db_table not in connection.introspection.table_names():
            editor.create_model(GuardState)
    store = {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": proxy.url}}

    def request() -> float:
        start = time.perf_counter()
        assert client.get("/products/7/").status_code == 200
        return time.perf_counter() - start

    with override_settings(BLOOMGUARD={"STORES": {"default": store}}):
        Rebuild(guard).run()
        assert guard.verdict(10**9) is Verdict.ABSENT
        before = [request() for _ in range(500)]
        proxy.mode = "hole"
        waiting = [request() for _ in range(5)]
        after = [request() for _ in range(500)]
        stores["default"].close()  # type: ignore[attr-defined]
    proxy.close()
    # The quickest ones: before and after are not measured in turns, and what else the machine does would tell.
    usual = min(before)
    report.add("a request for a row, guarded by a server", usual * 1e6, "us")
    report.add("the same to a black-holed server, beyond that", (min(waiting) - usual) * 1e3, "ms", at_most=55)
    report.add("the same once the breaker is open, beyond that", (min(after) - usual) * 1e3, "ms", at_most=0.1)


def main() -> None:
    report.start()
    server = Valkey()
    # Patient: what else the machine does may hold up a process for longer than a request would wait.
    store = RedisStore("bench", url=server.url, connect_timeout=1, read_timeout=1)
    single(server, store)
    load(store)
    stall(server, store)
    copying(server, store)
    black_hole(server)
    outage(server)
    spread.rows(report)
    store.close()
    report.finish()


if __name__ == "__main__":
    main()
