"""The Redis store on event loops: the answers of threads, and what can befall a task, a loop, or the server."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import random
import select
import threading
import time
from functools import partial

import numpy as np
import pytest
import redis
from redis.asyncio.connection import RedisSSLContext

from bloomguard.exceptions import StoreError, StoreUnavailable
from bloomguard.filters import CorruptFilter
from bloomguard.stores.redis import RedisStore
from bloomguard.stores.redis.commands import PROBE_SECONDS
from tests.support import servers
from tests.support.patience import PATIENT

from .conftest import KINDS, RANGE, key, make_layout, reached, wait_at_most
from .test_redis_sentinel import stores as sentinel_stores
from .test_redis_sentinel import watched  # noqa: F401

NUMBERS = random.Random(1).sample(range(RANGE), 3_000)
#: Half of them were added.
ASKED = [*NUMBERS[:200], *range(RANGE, RANGE + 200)]


@pytest.fixture
def server(primary):
    return primary


@pytest.fixture
def make_store(server):
    """``make_store()``: the store, by default straight to the server and patient."""
    made = []

    def make(url=server.url, **options):
        made.append(RedisStore("default", url=url, **{**PATIENT, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def store(make_store):
    return make_store()


def built(store, kind="bloom", shard_bytes=1 << 25):
    """A sealed generation that holds :data:`NUMBERS`."""
    made = store.create("city", "a", make_layout(kind, shard_bytes))
    made.add_many(np.array(NUMBERS))
    made.seal()
    return made


def connections(server):
    """How many clients the server has, beside the one that asks."""
    with server.client() as admin:
        return len(admin.client_list()) - 1


async def unavailable(generation, number, times, why):
    """See that so many checks, one after the other, get no answer, and ``why``."""
    for _ in range(times):
        with pytest.raises(StoreUnavailable, match=why):
            await generation.amight_contain(key(number))


async def soon(condition):
    """Let the loop run until it is so: 60 s at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        await asyncio.sleep(0.005)


def lines(store):
    """The open and idle connections of the running loop."""
    found, _ = store._async_reads._made[asyncio.get_running_loop()]
    return found.idle


def leap(monkeypatch):
    """``leap(61)``: the running loop finds that it was held up for so many seconds."""
    loop, ahead = asyncio.get_running_loop(), [0.0]
    time_of = loop.time
    monkeypatch.setattr(loop, "time", lambda: time_of() + ahead[0])

    def by(seconds):
        ahead[0] += seconds

    return by


async def same(generation):
    """See that a loop gets the very answers that a thread gets."""
    keys = [key(number) for number in ASKED]
    wanted = generation.might_contain_many(keys)
    assert all(wanted[:200])
    assert not all(wanted)
    assert [await generation.amight_contain(each) for each in keys[150:250]] == wanted[150:250]


@pytest.mark.parametrize("shard_bytes", [1 << 25, 1 << 12])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_gets_the_answers_of_threads(store, kind, shard_bytes):
    """Every kind, in one shard and in many: as the same process asks without a loop."""
    asyncio.run(same(built(store, kind, shard_bytes)))


def test_a_failover_is_followed_and_nothing_from_before_is_trusted(watched):  # noqa: F811
    """The primary dies, Sentinel promotes the replica: a loop asks that one from then on, and believes nothing of what
    was built before."""
    primary, replica, sentinel = watched
    with replica.client() as admin:
        admin.config_set("replica-priority", 1)

    async def ask():
        made = []
        for number, store in enumerate(sentinel_stores(sentinel)):
            made.append((store, store.create("city", f"before-{number}", make_layout())))
            made[-1][1].seal()
            assert not await made[-1][1].amight_contain(key(1))
        servers.until(sentinel.knows_replica)
        primary.kill()
        sentinel.fail_over(replica)
        for number, (store, before) in enumerate(made):
            for _ in range(3):
                with pytest.raises(StoreError):
                    await before.amight_contain(key(1))
            servers.until(partial(_answers, store))
            after = store.create("city", f"after-{number}", make_layout())
            after.seal()
            assert not await after.amight_contain(key(1))
            with pytest.raises(StoreError):
                await before.amight_contain(key(1))
            store.close()

    asyncio.run(ask())


def _answers(store):
    try:
        return bool(store.identity)
    except StoreUnavailable:
        return False


def test_a_black_hole_is_waited_for_until_the_breaker_opens(make_store, proxy, redis_clock):
    """A server that answers nothing is asked by tasks until five of them have waited in vain, however many ask; then
    nobody connects, and after a while one looks whether it is back. What that costs: ``make bench-redis``."""
    store = make_store(proxy.url)
    made = built(store)

    breaker = store._reads.server.breaker

    async def fail(times, why=""):
        found = await asyncio.gather(
            *(made.amight_contain(key(number)) for number in range(times)), return_exceptions=True
        )
        assert all(isinstance(each, StoreUnavailable) and why in str(each) for each in found)
        return str(found[-1])

    async def ask():
        assert await made.amight_contain(key(NUMBERS[0]))
        proxy.mode = "hole"
        wait_at_most(store, 0.02)
        for failures in range(1, 5):
            while len(breaker._failures) < failures:  # no task blames a server while the loop itself is held up
                said = await fail(1)
            assert len(breaker._failures) == failures
            assert "did not answer in time" in said
        await fail(200)
        while breaker.allows():
            await fail(1)
        before = reached(proxy)
        await fail(100, "tried again")
        assert reached(proxy) == before + 1  # nobody but reached() itself
        proxy.mend()
        wait_at_most(store, 60)
        redis_clock.sleep(PROBE_SECONDS)
        assert await made.amight_contain(key(NUMBERS[0]))

    asyncio.run(ask())


def test_refused_and_reset_connections_are_unavailable(make_store, proxy, redis_clock):
    """Nobody there, or one who hangs up: unavailable, and there again when the server is."""
    store = make_store(proxy.url)
    made = built(store)

    async def ask():
        proxy.refuse()
        await unavailable(made, 1, 2, "no connection")
        proxy.mend()
        assert await made.amight_contain(key(NUMBERS[0]))
        proxy.reset()
        await unavailable(made, 1, 2, "no connection")
        proxy.mend()
        assert await made.amight_contain(key(NUMBERS[0]))

    asyncio.run(ask())


def test_a_replica_refuses_checks(store, server):
    """A primary that is demoted refuses checks on the connections that it keeps, and on new ones."""
    made, other = built(store), servers.Valkey()

    async def ask():
        assert await made.amight_contain(key(NUMBERS[0]))
        with server.client() as admin:
            admin.replicaof("127.0.0.1", other.port)
        await unavailable(made, NUMBERS[0], 3, "READONLY")

    try:
        asyncio.run(ask())
    finally:
        other.stop()


def test_another_server_is_not_believed(make_store, proxy, server):
    """Another server behind the same address, even with the same bytes, answers nothing that counts."""
    store = make_store(proxy.url)
    made, other = built(store), servers.Valkey()

    async def ask():
        assert await made.amight_contain(key(NUMBERS[0]))
        with server.client() as here, other.client() as there:
            there.set(made.keys[0], here.get(made.keys[0]))
        proxy._target = other.port
        proxy.cut()
        await soon(lambda: all(each._reader.at_eof() or each._writer.is_closing() for each in lines(store)))
        for _ in range(3):
            with pytest.raises(StoreError, match="another server answers"):
                await made.amight_contain(key(RANGE))

    try:
        asyncio.run(ask())
    finally:
        other.stop()


def test_a_failover_behind_an_unused_connection_is_noticed(make_store, server, redis_clock):
    """Demoted and promoted again while nobody asked: the open connection's identity is read again."""
    store = make_store()
    made, other = built(store), servers.Valkey()

    async def ask():
        assert await made.amight_contain(key(NUMBERS[0]))
        with server.client() as admin:
            admin.replicaof("127.0.0.1", other.port)
            servers.until(lambda: admin.info("replication").get("master_link_status") == "up")
            admin.replicaof("NO", "ONE")
        redis_clock.sleep(1)
        with pytest.raises(StoreError, match="another server answers"):
            await made.amight_contain(key(RANGE))

    try:
        asyncio.run(ask())
    finally:
        other.stop()


def test_a_shard_that_is_gone_is_not_trusted(store, server):
    """A missing shard is corrupt, and no empty one."""
    made = built(store)
    with server.client() as admin:
        admin.flushall()

    async def ask():
        with pytest.raises(CorruptFilter):
            await made.amight_contain(key(1))

    asyncio.run(ask())


@pytest.mark.parametrize("waits_for", ["a connection", "a reply"])
def test_a_cancelled_task_leaves_no_reply_behind(make_store, proxy, waits_for):
    """Whoever is cancelled hangs up, at whatever it waits for: the next to ask gets no answer of another question."""
    store = make_store(proxy.url)
    made = built(store)
    there, gone = key(NUMBERS[0]), key(RANGE + 1)
    assert [made.might_contain(each) for each in (there, gone)] == [True, False]

    async def ask():
        if waits_for == "a reply":
            assert await made.amight_contain(there)
        for _ in range(2):
            proxy.mode, before = "late", proxy.received
            tasks = [asyncio.create_task(made.amight_contain(there)) for _ in range(5)]
            await soon(lambda before=before: proxy.received >= before + 5)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in ended] == [asyncio.CancelledError] * 5
            proxy.mode = "pass"
            asked = [gone, there] * 10
            assert [await made.amight_contain(each) for each in asked] == [False, True] * 10
            assert await asyncio.gather(*map(made.amight_contain, asked)) == [False, True] * 10

    asyncio.run(ask())
    assert not store._reads.server.breaker._failures


def test_no_connection_is_made_under_wait_for(store, monkeypatch):
    """Before Python 3.12 ``asyncio.wait_for`` can lose a cancellation: the task would wait for its timeout."""
    made = built(store)
    monkeypatch.setattr(asyncio, "wait_for", lambda *args, **kwargs: pytest.fail("wait_for was used"))

    assert asyncio.run(made.amight_contain(key(NUMBERS[0])))


def test_a_loop_takes_its_connections_with_it(store, server):
    """Loops that come and go: each has connections of its own, and none is left when it is gone."""
    made = built(store)
    store.close()
    before = connections(server)

    async def ask():
        assert all(await asyncio.gather(*(made.amight_contain(key(number)) for number in NUMBERS[:50])))
        assert connections(server) > before

    for _ in range(3):
        asyncio.run(ask())
        servers.until(lambda: connections(server) == before)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_connections_of_a_loop_that_was_just_closed_are_dropped(store, server):
    """A loop that nobody shut down leaves nothing that another loop would use, and nothing that stays."""
    made = built(store)
    store.close()
    before = connections(server)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(made.amight_contain(key(NUMBERS[0])))
        loop.close()

    assert asyncio.run(made.amight_contain(key(NUMBERS[0])))

    assert not store._async_reads._made
    del loop
    gc.collect()
    servers.until(lambda: connections(server) == before)


def test_many_tasks_take_few_connections(store, server):
    """A thousand tasks at once share a few connections, and all get their answers."""
    made = built(store)
    before = connections(server)
    keys = [key(number) for number in [*NUMBERS[:500], *range(RANGE, RANGE + 500)]]

    async def ask():
        found = await asyncio.gather(*map(made.amight_contain, keys))
        assert 1 < connections(server) - before <= 16
        return found

    assert asyncio.run(ask()) == made.might_contain_many(keys)
    assert not store._reads.server.breaker._failures


def test_who_waits_too_long_for_a_connection_passes(make_store, proxy):
    """With a slow server and more tasks than connections, those that come last have no answer, and it is not the
    server that is blamed for it."""
    store = make_store(proxy.url)
    made = built(store)
    keys = [key(number) for number in NUMBERS[:64]]

    async def ask():
        proxy.mode, before = "late", proxy.received
        first = [asyncio.create_task(made.amight_contain(each)) for each in keys[:16]]
        await soon(lambda: proxy.received >= before + 16)  # all connections are waited for
        wait_at_most(store, 0.05)
        crowd = await asyncio.gather(*map(made.amight_contain, keys[16:]), return_exceptions=True)
        proxy.mode = "pass"
        return await asyncio.gather(*first), crowd

    found, crowd = asyncio.run(ask())

    assert found == [True] * 16
    assert ["were in use" in str(each) for each in crowd] == [True] * 48
    assert not store._reads.server.breaker._failures


def test_a_loop_that_was_held_up_still_reads_its_replies(make_store, proxy, monkeypatch):
    """A reply that came in time counts, however late the loop comes to read it."""
    store = make_store(proxy.url)
    made = built(store)

    async def held_up():
        assert await made.amight_contain(key(NUMBERS[0]))
        [line] = lines(store)
        reply = line._writer.get_extra_info("socket").fileno()
        sleep = leap(monkeypatch)
        proxy.mode, before = "late", proxy.received
        task = asyncio.create_task(made.amight_contain(key(NUMBERS[0])))
        await soon(lambda: proxy.received > before)
        proxy.mode = "pass"
        assert select.select([reply], [], [], 60)[0]  # this holds up the loop, and the reply comes meanwhile
        sleep(61)
        return await task

    assert asyncio.run(held_up())
    assert not store._reads.server.breaker._failures


def test_tls_is_prepared_off_the_loop(make_store, monkeypatch):
    """The certificates of the system are read in a thread: it takes about as long as a connection has time."""
    store, prepare, threads = make_store("rediss://127.0.0.1:1/0"), RedisSSLContext.get, []

    def noted(context):
        threads.append((context.context is None, threading.current_thread() is threading.main_thread()))
        return prepare(context)

    monkeypatch.setattr(RedisSSLContext, "get", noted)
    with pytest.raises(StoreUnavailable, match="no connection"):
        asyncio.run(store.aread([("", ("PING",))], "any"))

    assert threads == [(True, False), (False, True)]  # the loop has it then


def _ask_in_child(made, answers):
    answers.put(asyncio.run(made.amight_contain(key(NUMBERS[0]))))


def test_a_forked_child_connects_by_itself(store):
    """A child that is forked while a loop has connections open uses none of them, and does not disturb them."""
    made = built(store)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    async def ask():
        assert await made.amight_contain(key(NUMBERS[0]))
        child = context.Process(target=_ask_in_child, args=(made, answers))
        child.start()
        await asyncio.get_running_loop().run_in_executor(None, child.join)
        assert child.exitcode == 0
        assert [await made.amight_contain(key(number)) for number in (NUMBERS[1], RANGE + 1)] == [True, False]

    asyncio.run(ask())
    assert answers.get(timeout=60)


def test_connections_that_only_threads_can_make_stay_with_threads(server, settings):
    """A connection class of the project's own, or an option that an event loop's client does not take."""

    class Own(redis.Connection):
        pass

    for number, options in enumerate(
        ({"connection_class": Own}, {"redis_connect_func": lambda each: each.on_connect()})
    ):
        cache = {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"{server.url}?health_check_interval={number}",  # django-redis keeps pools by URL
            "OPTIONS": {"CONNECTION_POOL_KWARGS": options},
        }
        settings.CACHES = settings.CACHES | {f"own-{number}": cache}
        store = RedisStore("default", cache=f"own-{number}")

        assert not store.supports_async
        store.close()
    options = {"ssl_validate_ocsp": False}
    store = RedisStore("default", url="redis://mymaster/0", sentinels=[("127.0.0.1", 1)], sentinel_options=options)
    assert not store.supports_async
