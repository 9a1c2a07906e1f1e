"""The Redis store on a real Valkey server: what every store keeps to, and what can befall a server."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import threading
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redis
from django.core.cache import caches
from django.core.checks import run_checks

from bloomguard.exceptions import ConfigurationError, StoreError, StoreUnavailable, UnknownGeneration
from bloomguard.filters import CorruptFilter
from bloomguard.filters.codec import MAX_SHARDS, Frame, decode
from bloomguard.process import seconds
from bloomguard.stores import stores
from bloomguard.stores.base import Page
from bloomguard.stores.memory import MemoryStore
from bloomguard.stores.redis import RedisStore, commands
from bloomguard.stores.redis.commands import Server
from bloomguard.stores.redis.topology import find_servers
from tests.support import servers
from tests.support.patience import PATIENT

from .conftest import fill, find, key, load_beside_adds, make_layout, some


@pytest.fixture
def server():
    """The client of an administrator of the shared server, which is empty."""
    with redis.Redis.from_url(servers.valkey()) as client:
        client.flushall()
        yield client


@pytest.fixture
def make_store(server):
    """``make_store()``: the store as one more process comes to it."""
    made = []

    def make(**options):
        made.append(RedisStore("default", **{"url": servers.valkey(), **PATIENT, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def store(make_store):
    return make_store()


def test_what_is_added_is_found(store, make_store, layout):
    """Keys added one at a time while it is built, in bulk by the builder, and by others later: none is ever denied."""
    before, bulk, after, strangers = np.split(np.array(some(6_000)), [300, 3_500, 4_000])
    made = store.create("city", "a", layout)
    other = make_store().open("city", "a", find)
    other.add([key(number) for number in before.tolist()])
    made.add_many(bulk)

    made.seal()
    other.add_many(after[:300])
    made.add([key(number) for number in after[300:].tolist()])

    for generation in (made, other, make_store().open("city", "a", find)):
        assert all(generation.might_contain(key(number)) for number in [*before.tolist(), *bulk.tolist()])
        assert all(generation.might_contain(key(number)) for number in after.tolist())
    assert sum(other.might_contain(key(number)) for number in strangers.tolist()) < 0.03 * len(strangers)


def test_many_keys_are_asked_for_in_one_trip(store, layout):
    """A batch answers as its keys do one by one, in their order, whatever the number of shards; it trusts no more."""
    made = store.create("city", "a", layout)
    made.add_many(np.array(some(3_000)))
    keys = [key(number) for number in some(1_500, seed=2)]
    assert made.might_contain_many(keys[:20]) == [made.might_contain(each) for each in keys[:20]]
    made.seal()

    found = made.might_contain_many(keys)

    assert found == [made.might_contain(each) for each in keys]
    assert True in found
    assert False in found
    assert made.might_contain_many([]) == []
    store.drop("city", "a")
    with pytest.raises(CorruptFilter):
        made.might_contain_many(keys)


def test_what_the_builder_adds_in_bulk_is_found_once_it_is_sealed(store):
    """By every process; nobody asks a generation before it is published."""
    made = store.create("city", "a", make_layout())
    made.add_many(np.arange(100))
    other = store.open("city", "a", find)

    assert not other.might_contain(key(5))
    made.seal()
    assert made.might_contain(key(5))
    assert other.might_contain(key(5))


def test_the_bytes_are_those_of_other_stores(store, layout):
    """A shard copied from a server is, but for its tag and its checksum's history, what memory or a file holds."""
    numbers = np.array(some(2_000))
    made = store.create("city", "a", layout)
    made.add_many(numbers[:1_000])
    made.seal()
    made.add(list(map(key, numbers[1_000:].tolist())))
    twin = MemoryStore("other").create("city", "a", layout)
    twin.add_many(numbers)

    for shard in range(layout.header.shards):
        copied = made.read_shard(shard)
        assert copied.body == Frame.open(twin._buffers[shard]).body
        assert replace(decode(copied.buffer).header, tag=0) == replace(layout.headers[shard], tag=0)
    assert fill(store.open("city", "a", find)) == fill(twin)


def test_adds_during_the_load_are_kept(store, make_store, monkeypatch):
    """What other processes add while the builder brings its bits is in the filter afterwards."""
    made = store.create("city", "a", make_layout(capacity=10_000_000))
    made.add_many(np.arange(1_000_000, 1_500_000))
    other = make_store().open("city", "a", find)
    stop, added = threading.Event(), []

    def write():
        for number in range(100_000):
            if stop.is_set():
                return
            other.add([key(number)])
            added.append(number)

    thread = threading.Thread(target=write)
    load_beside_adds(monkeypatch, store, added, thread)
    thread.start()
    made.seal()
    stop.set()
    thread.join()

    assert added
    assert all(other.might_contain(key(number)) for number in added)
    assert all(other.might_contain(key(number)) for number in range(1_000_000, 1_500_000, 1_999))


@pytest.mark.parametrize("number", [1, 3_000])
def test_what_is_added_is_recent(store, make_store, layout, number):
    """Adds before, during and after the load are recent for all who have it open; the load's keys are not."""
    numbers = some(3 * number + 2_000)
    built, added = numbers[:2_000], [numbers[start : start + number] for start in range(2_000, len(numbers), number)]
    made = store.create("city", "a", layout)
    made.add(list(map(key, added[0])))
    made.add_many(np.array(built))
    other = make_store().open("city", "a", find)
    other.add(list(map(key, added[1])))
    made.seal()
    made.add(list(map(key, added[2])))

    for each in (made, other):
        recent = [asyncio.run(recents(each, part)) for part in (*added, built)]
        assert [all(part) for part in recent] == [True, True, True, False]
        assert sum(recent[3]) < 0.03 * len(built)
        assert all(map(each.is_recent, map(key, added[1][:20])))
        assert not all(map(each.is_recent, map(key, built[:20])))


async def recents(generation, numbers):
    return [await generation.ais_recent(key(number)) for number in numbers[:300]]


def test_a_dropped_generation_is_gone_and_leaves_nothing(store, make_store, server, layout):
    """After a drop nothing is left on the server, whoever asks; a second drop is nothing."""
    store.create("city", "a", layout)
    assert make_store().names("city") == ["a"]

    make_store().drop("city", "a")
    store.drop("city", "a")

    assert store.names("city") == []
    assert server.dbsize() == 0


def test_sites_with_different_prefixes_do_not_meet(make_store):
    """Two sites that share a server see and sweep only their own."""
    one, other = make_store(prefix="one"), make_store(prefix="other")
    one.create("city", "a", make_layout())

    assert other.names("city") == []


def test_a_prefix_may_have_any_letters(make_store):
    """Commands count bytes, not letters."""
    made = make_store(prefix="söte").create("city", "a", make_layout())
    made.add([key(1)])

    assert made.might_contain_many([key(1), key(2)]) == [made.might_contain(key(1)), False]
    assert made.might_contain(key(1))


def flushed(server, keys):
    server.flushall()


def deleted(server, keys):
    server.delete(*keys)


def cut_short(server, keys):
    for each in keys:
        server.set(each, server.getrange(each, 0, 100))


def another_builds(server, keys):
    for each in keys:
        server.setrange(each, 8, b"\1" * 8)


def its_tail_lost(server, keys):
    for each in keys:
        server.setrange(each, server.strlen(each) - 8, bytes(8))


def zeroed(server, keys):
    for each in keys:
        server.set(each, bytes(server.strlen(each)))


@pytest.mark.parametrize("befall", [flushed, deleted, cut_short, another_builds, its_tail_lost, zeroed])
def test_a_shard_that_cannot_prove_itself_is_not_trusted(store, server, layout, befall):
    """Flushed, deleted, cut or replaced: no check says no, no add counts, and nothing is trusted later either."""
    made = store.create("city", "a", layout)
    made.add([key(1)])
    opened = store.open("city", "a", find)
    befall(server, server.keys("*:a:*[0-9]"))

    for generation in (made, opened):
        for number in (1, 2):
            with pytest.raises(CorruptFilter):
                generation.might_contain(key(number))
            with pytest.raises(CorruptFilter):
                generation.add([key(number)])
            with pytest.raises(CorruptFilter):
                generation.might_contain(key(number))


def test_the_location_of_a_generation_is_the_pattern_of_its_keys(store, server):
    """A warning of filters that a rebuild leaves names them so that a user can delete them."""
    store.create("city", "a", make_layout(shard_bytes=1 << 12)).seal()

    assert server.keys(store.location("city", "a")) == server.keys("*:a:*") != []


def test_one_deleted_shard_is_noticed_by_its_own_keys(store, server):
    """With one of several shards gone its keys are unknown, and the others go on answering."""
    layout = make_layout(shard_bytes=1 << 12)
    made = store.create("city", "a", layout)
    made.add_many(np.arange(1_000))
    made.seal()
    server.delete("bloomguard:city:a:1")

    unknown = 0
    for number in range(1_000):
        try:
            assert made.might_contain(key(number))
        except CorruptFilter:
            assert layout.locate(key(number))[0] == 1
            unknown += 1

    assert unknown == sum(layout.locate(key(number))[0] == 1 for number in range(1_000)) > 0


def test_a_load_into_a_shard_that_vanished_fails(store, server):
    """Bits are only brought to shards that are still there: the load raises, and nothing is trusted."""
    made = store.create("city", "a", make_layout())
    made.add_many(np.arange(100))
    server.flushall()

    with pytest.raises(CorruptFilter):
        made.seal()
    with pytest.raises(CorruptFilter):
        store.open("city", "a", find)


@pytest.mark.parametrize("shard_bytes", [1 << 25, 1 << 12])
def test_a_generation_that_is_not_whole_is_not_opened(store, server, shard_bytes):
    """Every shard's header and size are held against the first one's when it is opened."""
    store.create("city", "a", make_layout(shard_bytes=shard_bytes))
    last = max(server.keys("*:a:*"))
    spoils = (
        lambda: server.append(last, b"x"),
        lambda: server.setrange(last, 20, b"x"),
        lambda: server.delete(last),
    )
    for spoil in spoils:
        spoil()
        with pytest.raises((CorruptFilter, UnknownGeneration)):
            store.open("city", "a", find)


@pytest.mark.parametrize("count", [10**9, 10**30, -1, b"many", b"", b"\xff", 1.5])
def test_a_count_of_shards_is_bounded(store, server, count):
    """What a list tells of is held against what there can be, before anything is done by it."""
    server.hset("bloomguard:city", "a", count)
    before = server.info("commandstats").get("cmdstat_unlink", {"calls": 0})["calls"]

    store.drop("city", "a")

    assert server.info("commandstats").get("cmdstat_unlink", {"calls": 0})["calls"] - before <= MAX_SHARDS
    assert store.names("city") == []


def test_a_header_that_was_not_made_here_is_not_believed(store, server):
    """A header that claims 60,000 shards is refused before one of them is asked for."""
    made = store.create("city", "a", make_layout())
    forged = replace(made.layout.header, shards=60_000)
    server.setrange("bloomguard:city:a:0", 0, forged.pack())

    with pytest.raises(CorruptFilter, match="belongs to another generation"):
        store.open("city", "a", find)


@pytest.mark.parametrize("key_of_other", ["bloomguard:town:a:0", "bloomguard:city:b:0", "other:city:a:0"])
def test_what_was_made_as_another_generation_is_not_trusted(make_store, server, key_of_other):
    """A key of another guard, another build or another site that is brought to this one's name is no filter here."""
    layout, mine = make_layout(), make_store()
    mine.create("city", "a", layout)
    prefix, guard, name, _ = key_of_other.split(":")
    make_store(prefix=prefix).create(guard, name, layout)

    server.copy(key_of_other, "bloomguard:city:a:0", replace=True)

    with pytest.raises(CorruptFilter, match="belongs to another generation"):
        mine.open("city", "a", find)


# -- passwords

SECRET = "s3cr3t-pa55"
#: Each is cut somewhere in the middle of its password, or before its host.
UNQUOTED = [
    "redis://:{}/rest@cache:6379/0", "redis://:{}#rest@cache:6379/0", "redis://:{}?rest@cache:6379/0",
    "redis://:{}[x@cache:6379/0", "redis://user:{}@cache:63x79/0", "redis://user:{}@cache:6379/0?db=x", "{}://cache/0",
    "redis://:83641/{}@cache/0", "redis://:83641#{}@cache/0", "redis://:83641?{}@cache/0",
]  # fmt: skip


def all_texts(error: BaseException | None) -> str:
    """All that a log, a page or a terminal could show of an error."""
    assert error is not None
    return repr(error) + "".join(traceback.format_exception(error))


@pytest.mark.parametrize("url", UNQUOTED)
@pytest.mark.parametrize("of_cache", [False, True])
def test_a_url_that_is_none_is_refused_without_being_repeated(settings, url, of_cache):
    """What the client says of a URL that is cut in the middle of a password would have a part of it."""
    place = url.format(SECRET)
    options = {"url": place}
    if of_cache:
        settings.CACHES = {"shared": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": place}}
        options = {"cache": "shared"}
    store = {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": options}
    settings.BLOOMGUARD = {"STORES": {"default": store}}

    with pytest.raises(ConfigurationError) as raised:
        stores["default"]

    shown = all_texts(raised.value) + "".join(map(str, run_checks(tags=["bloomguard"])))
    assert SECRET not in shown
    assert "83641" not in shown


def test_a_url_in_the_place_of_a_caches_alias_is_not_repeated():
    """Somebody who mistakes ``cache`` for ``url`` hears of it, and nobody reads his password."""
    with pytest.raises(ConfigurationError) as raised:
        RedisStore("default", cache=f"redis://:{SECRET}@cache:6379/0")

    assert "the alias of one of CACHES" in str(raised.value)
    assert SECRET not in all_texts(raised.value)


URL = f"redis://:{SECRET}@cache:6379/0"
MISPLACED = [
    URL,
    {"STORES": URL},
    {"STORES": {"default": URL}},
    {"STORES": {"default": [URL]}},
    {"STORES": {"default": {"BACKEND": URL}}},
    {"STORES": {"default": {"BACKEND": [URL]}}},
    {"STORES": {"default": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": URL}}},
    {"STORES": {"default": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": {"default": URL}}}}},
    {
        "STORES": {
            "default": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": URL, "read_timeout": URL}}
        }
    },
]


@pytest.mark.parametrize("setting", MISPLACED, ids=map(str, range(len(MISPLACED))))
def test_a_url_in_the_place_of_another_value_is_not_repeated(settings, setting):
    """As with ``os.environ["REDIS_URL"]`` for a store: an error names the type, and never shows the value."""
    settings.BLOOMGUARD = setting

    with pytest.raises(ConfigurationError) as raised:
        stores["default"]

    shown = all_texts(raised.value) + "".join(map(str, run_checks(tags=["bloomguard"])))
    assert "W109" in shown
    assert SECRET not in shown


@pytest.fixture
def locked():
    """A server that demands a password, and the user ``site`` with another one."""
    server = servers.Valkey()
    with server.client() as administrator:
        administrator.config_set("requirepass", "adm1n")
    yield server
    server.stop()


def test_no_error_repeats_a_password(locked):
    """Whatever a server answers to a login: refused, no such user, or a command that it does not know."""
    with redis.Redis(port=locked.port, password="adm1n") as administrator:
        administrator.acl_setuser("site", enabled=True, passwords=[f"+{SECRET}"], commands=["+info"], keys=["*"])
    place = f"127.0.0.1:{locked.port}/0"
    for url in (f"redis://:{SECRET}@{place}", f"redis://nobody:{SECRET}@{place}", f"redis://site:{SECRET}@{place}"):
        with closing(RedisStore("default", url=url, **PATIENT)) as store:
            for use in (
                lambda: store.identity,
                lambda: store.names("city"),
                lambda: store.load([("", ("AUTH", SECRET))]),
            ):
                with pytest.raises(StoreError) as raised:
                    use()
                assert SECRET not in all_texts(raised.value)
            assert SECRET not in "".join(map(str, store.check_deployed()))
            assert SECRET not in repr(store) + repr(vars(store))


def test_a_login_that_a_server_repeats_is_taken_out():
    """Some proxies answer an unknown command with all of its words."""
    for text in (
        f"unknown command 'AUTH', with args beginning with: '{SECRET}'",
        f"bad: {SECRET}",
        f"redis://u:{SECRET}@h",
    ):
        inner = redis.ResponseError(text)
        outer = redis.ConnectionError(f"outer {text}")
        outer.__cause__ = inner
        server = Server(secrets=[SECRET] if text.startswith("bad") else [])

        assert SECRET not in str(server.failed(outer))
        assert SECRET not in all_texts(outer)


def test_what_servers_are_named_by_shows_no_password():
    """Neither one server, nor a service of Sentinels, nor a Cluster."""
    url, common = f"redis://user:{SECRET}@h:1/0", {"cache": None, "alias": "default"}
    for options in (
        {"cluster": False, "sentinels": None, "sentinel_options": None},
        {"cluster": False, "sentinels": [("h", 1)], "sentinel_options": {"password": SECRET}},
        {"cluster": True, "sentinels": None, "sentinel_options": None},
    ):
        assert SECRET not in repr(find_servers(url=url, **common, **options))


def answer(pipe, url):
    """Another process: opens the generation, and says of each key that it is sent whether it may be in."""
    other = RedisStore("default", url=url, **PATIENT).open("city", "a", find)
    for number in iter(pipe.recv, None):
        pipe.send(other.might_contain(key(number)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_processes_see_each_others_adds_at_once(store):
    """An add that returned is seen by the next check of another process: nobody keeps a copy of a no."""
    made = store.create("city", "a", make_layout())
    fork = multiprocessing.get_context("fork")
    pipe, theirs = fork.Pipe()
    process = fork.Process(target=answer, args=(theirs, servers.valkey()))
    process.start()

    def ask(number):
        pipe.send(number)
        return pipe.recv()

    denied = 0
    for number in range(500):
        denied += not ask(number)
        made.add([key(number)])
        assert ask(number)
    pipe.send(None)
    process.join(60)

    assert denied > 450
    assert process.exitcode == 0


def add_in_child(made, numbers):
    for number in numbers:
        made.add([key(number)])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_connects_by_itself(store):
    """A child uses no connection of its parent, nor does it disturb any."""
    made = store.create("city", "a", make_layout())
    made.add([key(0)])
    child = multiprocessing.get_context("fork").Process(target=add_in_child, args=(made, range(1, 400, 2)))
    child.start()
    add_in_child(made, range(0, 400, 2))
    child.join(60)

    assert child.exitcode == 0
    assert all(made.might_contain_many([key(number) for number in range(400)]))


def test_a_child_whose_fork_ran_no_hooks_connects_by_itself(store, server, monkeypatch):
    """As in uWSGI: the number of its process tells it from its parent, also if a connection was in use at the fork."""
    link = store._adds
    link.trip([("", ("PING",))])
    in_use = link.send([("", ("PING",))])
    monkeypatch.setattr("os.getpid", lambda: -1)
    in_use.identified()
    before = server.info("stats")["total_connections_received"]

    link.trip([("", ("PING",))])

    assert server.info("stats")["total_connections_received"] == before + 1


def test_after_a_lost_connection_all_others_are_checked(store, server, redis_clock):
    """A proxy that restarts closes all of them: a writer, which tries again once or twice, meets only one of these."""
    made = store.create("city", "a", make_layout())
    for call in [store._adds.send([("", ("PING",))]) for _ in range(5)]:
        call.identified()
    server.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreUnavailable, match="no connection"):
        made.add([key(1)])

    made.add([key(1)])

    assert made.might_contain(key(1))


def test_a_closed_store_leaves_no_place_in_its_pool_taken(store):
    """A pool of redis-py counts the connections in use."""
    for _ in range(3):
        store._adds.trip([("", ("PING",))])
        store.close()

    assert connected(store._adds)
    assert not store._adds.pool._in_use_connections


def test_each_of_many_threads_gets_a_connection(store):
    """A pool of redis-py 8 has 100 places by default. In a worker with 101 writers at once, one add would fail, and the
    guard be fenced."""
    made = store.create("city", "a", make_layout())
    calls = [store._adds.send([("", ("PING",))]) for _ in range(101)]

    made.add([key(1)])

    for call in calls:
        call.identified()


def test_many_threads_may_ask_a_sentinel_at_once(make_store):
    """Those that connect at the same time, as after a failover."""
    pool = make_store(url="redis://mymaster/0", sentinels=[("127.0.0.1", 1)])._adds.pool

    (sentinel,) = pool.sentinel_manager.sentinels
    assert sentinel.connection_pool.max_connections == pool.max_connections > 1_000


def test_a_connection_that_the_server_has_closed_is_replaced(store, server, redis_clock):
    """Unnoticed, if it was not used for a moment; otherwise by the next round trip after the one that fails."""
    made = store.create("city", "a", make_layout())
    made.add([key(0)])
    server.client_kill_filter(_type="normal", skipme=True)
    redis_clock.sleep(0.1)
    made.add([key(1)])
    server.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreUnavailable, match="no connection"):
        made.add([key(2)])
    made.add([key(2)])

    assert made.might_contain_many([key(number) for number in range(3)]) == [True] * 3


def test_an_identity_gets_old_while_the_host_sleeps(monkeypatch):
    """A server may be demoted and promoted again meanwhile, with other data, and the connection is still open.

    The clock of a container that another host restores from a checkpoint may go back by days.
    """
    assert commands.clock is seconds
    monkeypatch.setattr(commands, "clock", lambda: 1_000.0)
    proved = [1_000.0, 999.0, 90_000.0]
    assert [commands.ServerId("", "", at).is_old() for at in proved] == [False, True, True]


def test_a_late_reply_of_a_server_that_was_demoted_and_promoted_is_worth_nothing(store, server, redis_clock):
    """The process may stand still between two steps of a check: then the identity is read once more, after it."""
    store.create("city", "a", make_layout())
    identity = store.identity
    for late, changed in ((0.05, False), (0.2, False), (0.2, True)):
        call = store._reads.send([("", ("PING",))])
        before = server.info("stats")["total_commands_processed"]
        redis_clock.now += late
        if changed:
            server.replicaof("127.0.0.1", 1)
            server.replicaof("NO", "ONE")
            with pytest.raises(StoreError, match="another server answers"):
                call.identified(identity)
        else:
            assert call.identified(identity)[1] == [b"PONG"]
            assert server.info("stats")["total_commands_processed"] - before == 1 + (late > 0.09)


def test_checks_and_adds_are_each_one_command(store, server, redis_clock):
    """A check is one ``BITFIELD``, and so is an add to one shard; neither asks every time who the server is."""
    made = store.create("city", "a", make_layout())
    made.might_contain(key(1))
    server.config_resetstat()
    for number in range(100):
        made.might_contain(key(number))
    made.add([key(number) for number in range(50)])

    calls = calls_of(server)
    assert calls["cmdstat_bitfield"] == 101
    assert calls.get("cmdstat_info|replication", 0) + calls.get("cmdstat_info", 0) <= 10


def calls_of(server):
    return {name: figures["calls"] for name, figures in server.info("commandstats").items()}


@pytest.mark.parametrize(("number", "images"), [(100, 0), (3_000, 1)])
def test_many_keys_reach_a_small_shard_as_an_image(store, server, number, images):
    """Once its bytes are fewer than those of the commands that set the bits; what others have added stays."""
    made = store.create("city", "a", make_layout())
    before, keys, array = np.split(np.array(some(2 * number + 50)), [50, number + 50])
    made.add([key(each) for each in before.tolist()])
    server.config_resetstat()

    made.add([key(each) for each in keys.tolist()])
    made.add(array)

    assert calls_of(server).get("cmdstat_bitop", 0) == 2 * images
    assert server.keys("*:add:*") == []
    for each in (*before.tolist(), *keys.tolist(), *array.tolist()):
        assert made.might_contain(key(each))
        assert made.is_recent(key(each))


def test_a_large_shard_gets_no_image(store, server):
    """Other clients would have to wait for it."""
    made = store.create("city", "a", make_layout(capacity=1_000_000))
    server.config_resetstat()

    made.add(np.arange(40_000))

    assert "cmdstat_bitop" not in calls_of(server)


def test_an_image_for_a_shard_that_is_gone_is_no_add(store, server):
    """What it leaves has no tags: the add does not count, and nobody trusts the shard."""
    made = store.create("city", "a", make_layout())
    server.delete(*made.keys)

    with pytest.raises(CorruptFilter):
        made.add(np.arange(3_000))

    with pytest.raises(CorruptFilter):
        made.might_contain(key(1))


def test_an_image_that_the_server_evicts_is_no_add(store, server, monkeypatch):
    """It may be gone before its bits are in the shard."""
    made = store.create("city", "a", make_layout())
    write = store.write

    def evicting(commands, identity):
        first = write(commands[:1], identity)
        server.delete(*server.keys("*:add:*"))
        return first + write(commands[1:], identity)

    monkeypatch.setattr(store, "write", evicting)

    with pytest.raises(CorruptFilter, match="evicted"):
        made.add(np.arange(3_000))


def test_a_load_that_the_server_evicts_is_no_filter(store, server, monkeypatch):
    """It may be gone before its bits are in the shard; the shard itself then has its size and its tags."""
    made = store.create("city", "a", make_layout())
    made.add_many(np.arange(3_000))
    load = store.load

    def evicting(commands, identity=None):
        if any(words[0] == "BITOP" for _, words in commands if isinstance(words, tuple)):
            server.delete(*server.keys("*:load"))
        return load(commands, identity)

    monkeypatch.setattr(store, "load", evicting)

    with pytest.raises(CorruptFilter, match="evicted"):
        made.seal()


@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_a_load_of_which_the_server_evicts_a_piece_is_no_filter(store, server, monkeypatch, kind):
    """The next piece would begin the key again, with the bits of the others lost."""
    made = store.create("city", "a", make_layout(capacity=600_000, kind=kind))
    made.add_many(np.arange(3_000))
    load, pieces = store.load, []

    def evicting(commands, identity=None):
        pieces.extend(words for _, words in commands if words[0] == "APPEND")
        if len(pieces) == 2:
            server.delete(*server.keys("*:load"))
        return load(commands, identity)

    monkeypatch.setattr(store, "load", evicting)

    with pytest.raises(StoreError, match=r"where [\d,]+ were sent"):
        made.seal()
    assert len(pieces) > 2


def test_the_settings_name_one_server():
    """Neither or both of ``url`` and ``cache``, or a URL of something else, are configuration errors."""
    for options in ({}, {"url": "redis://h", "cache": "default"}, {"url": "ftp://h"}, {"cache": "nothing"}):
        with pytest.raises(ConfigurationError):
            RedisStore("default", **options)


def test_a_cache_of_django_redis_gives_the_address(settings, server):
    """A store by the alias of a django-redis cache talks to that cache's server, with its own timeouts."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "shared": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": servers.valkey(),
            "OPTIONS": {"IGNORE_EXCEPTIONS": True},
        },
    }
    store = RedisStore("default", cache="shared", **PATIENT)

    assert store.identity.endswith(server.info("server")["run_id"])
    store.create("city", "a", make_layout()).add([key(1)])
    assert server.exists("bloomguard:city:a:0")
    with pytest.raises(ConfigurationError, match="is not a django-redis cache"):
        RedisStore("default", cache="default")
    store.close()


def test_clearing_the_cache_deletes_the_filters_of_its_database(settings, make_store):
    """django-redis flushes it. The filters are missing then, and not empty; those in another database stay."""
    settings.CACHES = {"shared": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": servers.valkey()}}
    beside = make_store(url=None, cache="shared").create("city", "a", make_layout())
    apart = make_store(url=servers.valkey().removesuffix("/0") + "/1").create("city", "a", make_layout())

    caches["shared"].clear()

    with pytest.raises(CorruptFilter, match="missing"):
        beside.might_contain(key(1))
    assert not apart.might_contain(key(1))


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout", "add_timeout", "bulk_timeout"])
@pytest.mark.parametrize("seconds", [None, 0, -1, float("inf"), float("nan"), "50ms", True])
def test_every_timeout_is_a_number_of_seconds(name, seconds):
    """Without a timeout requests would wait for ever: the option, its number or its type, and the cure are named."""
    given = seconds if isinstance(seconds, (int, float)) else f"of type {type(seconds).__name__}"
    with pytest.raises(ConfigurationError, match=rf"{name} is {given}; it has to be a number of seconds above 0"):
        RedisStore("default", url="redis://127.0.0.1:1/0", **{name: seconds})


SHORT = {"SOCKET_TIMEOUT": 0.5, "SOCKET_CONNECT_TIMEOUT": 0.5}
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": f"{NOWHERE}?ssl_cert_reqs=none"}, "'ssl_cert_reqs'"),
        ({"url": [f"{NOWHERE}?ssl_cert_reqs=none"], "cluster": True}, "'ssl_cert_reqs'"),
        ({"url": f"{NOWHERE}?ssl_cert_reqs=none", "sentinels": [("127.0.0.1", 1)]}, "'ssl_cert_reqs'"),
        ({"url": "redis://mymaster/0", "sentinels": [("127.0.0.1", 1)], "sentinel_options": {"colour": 1}}, "'colour'"),
        ({"url": "rediss://127.0.0.1:1/0?ssl_cert_reqs=some"}, "some"),
        ({"cache": "shared"}, "'colour'"),
    ],
    ids=["url", "cluster", "service", "sentinels", "value", "cache"],
)
def test_an_option_that_the_client_does_not_take_is_a_mistake_in_the_settings(settings, options, why):
    """A plain check reports it, not the first connection: no server is asked."""
    settings.CACHES = {
        "shared": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:2/0",  # django-redis keeps a pool for each address
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"colour": "red"}},
        }
    }
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": options}}}

    (found,) = [each for each in run_checks(tags=["bloomguard"]) if each.id == "bloomguard.W109"]

    assert "the store 'default'" in found.msg
    assert why in found.msg


def share(settings, location=NOWHERE, **options):
    settings.CACHES = {"shared": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}}


@pytest.mark.parametrize(
    ("location", "options", "expected"),
    [
        (NOWHERE, SHORT, []),
        (NOWHERE, {}, ["bloomguard.W023"]),
        ([NOWHERE, NOWHERE], {}, ["bloomguard.W023"]),
        (NOWHERE, {"CONNECTION_POOL_KWARGS": {"socket_timeout": 1}}, []),
        (NOWHERE + "?socket_timeout=1", {}, []),
        (f"{NOWHERE},{NOWHERE}", {**SHORT, "IGNORE_EXCEPTIONS": True}, []),
        (NOWHERE, {**SHORT, "CLIENT_CLASS": "django_redis.client.HerdClient"}, []),
    ],
)
def test_a_cache_that_may_wait_without_a_limit_is_reported(settings, location, options, expected):
    """``manage.py check`` looks at the cache whose servers a store uses; none of them is asked."""
    share(settings, location, **options)

    found = RedisStore("default", cache="shared").check()

    assert [message.id for message in found] == expected
    assert all("CACHES['shared']" in message.msg and message.hint for message in found)


def test_a_client_class_that_spreads_keys_is_refused(settings):
    """``ShardClient`` has no one server to ask; one of Sentinels that is not set up is named as well."""
    for client, says in (("ShardClient", "is not .* of one server .* has django_redis.client.ShardClient"),
                         ("SentinelClient", "cannot be used: .*CONNECTION_POOL_CLASS")):  # fmt: skip
        share(settings, CLIENT_CLASS=f"django_redis.client.{client}")
        with pytest.raises(ConfigurationError, match=rf"CACHES\['shared'\] {says}"):
            RedisStore("default", cache="shared")


@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_the_rights_in_the_docs_suffice(server, make_store, kind):
    """An ACL user with the rights that the docs name can do all that a store does."""
    text = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    rights = re.search(r"\*\*Rights\*\*: an ACL user needs `([^`]*)`\s+\([^)]*\)\s+on\s+`([^`]*)`", text)
    granted, keys = " ".join(rights[1].split()), rights[2]
    server.execute_command("ACL", "SETUSER", "guards", "reset", "on", ">secret", keys, *granted.split())
    try:
        url = servers.valkey().replace("redis://", "redis://guards:secret@")
        with closing(RedisStore("default", url=url, **PATIENT)) as store:
            made = store.create("city", "a", make_layout(kind))
            made.add_many(np.arange(100))
            store.open("city", "a", find).add([key(101)])
            made.seal()
            opened = store.open("city", "a", find)
            opened.add([key(100)])

            assert opened.might_contain(key(101))
            assert opened.might_contain(key(5))
            assert store.names("city") == ["a"]
            assert store.check_deployed() == []
            opened.read_shard(0)
            store.drop("city", "a")
            store.add_metrics(Page("city", 60, 1), {0: 1})
            assert store.read_metrics([Page("city", 60, 1)]) != [b""]
    finally:
        server.execute_command("ACL", "DELUSER", "guards")


def test_free_bytes_are_those_below_maxmemory(store, server):
    """Without ``maxmemory`` nobody can tell; with it, what is left."""
    assert store.free_bytes() is None
    server.config_set("maxmemory", 100 << 20)
    try:
        assert 50 << 20 < store.free_bytes() < 100 << 20
    finally:
        server.config_set("maxmemory", 0)


def test_a_filter_that_does_not_fit_is_refused_and_leaves_nothing(store, server):
    """Over ``maxmemory`` the server refuses: the error tells the bytes, and what was made is freed."""
    server.config_set("maxmemory", 20 << 20)
    server.config_set("maxmemory-policy", "noeviction")
    layout = make_layout(capacity=50_000_000)
    try:
        with pytest.raises(StoreError, match=rf"{layout.total_bytes:,} bytes was created: the server refuses .*OOM"):
            store.create("city", "a", layout)
    finally:
        server.config_set("maxmemory", 0)

    assert server.dbsize() == 0


def test_over_maxmemory_checks_and_adds_get_no_answer(store, server):
    """A server over ``maxmemory`` refuses checks and adds: both say so, and both go on when there is room again."""
    made = store.create("city", "a", make_layout())
    server.config_set("maxmemory", 1)
    try:
        for act in (lambda: made.might_contain(key(1)), lambda: made.add([key(1)])):
            with pytest.raises(StoreUnavailable, match="OOM"):
                act()
    finally:
        server.config_set("maxmemory", 0)

    assert not made.might_contain(key(1))


def test_a_server_that_may_evict_filters_is_warned_of(store, server):
    """``check --deploy`` asks for ``maxmemory-policy``: one that evicts keys without an expiry is a warning."""
    found = {}
    try:
        for policy in ("noeviction", "volatile-lru", "allkeys-lru"):
            server.config_set("maxmemory-policy", policy)
            found[policy] = [message.id for message in store.check_deployed()]
    finally:
        server.config_set("maxmemory-policy", "noeviction")

    assert found == {"noeviction": [], "volatile-lru": [], "allkeys-lru": ["bloomguard.W022"]}


def test_a_server_that_does_not_answer_is_warned_of():
    """``check --deploy`` says so where nobody listens; a plain check asks no server."""
    store = RedisStore("default", url="redis://127.0.0.1:1/0")

    assert store.check() == []
    assert [message.id for message in store.check_deployed()] == ["bloomguard.W021"]


class NoToken(redis.CredentialProvider):
    """The project's own, which asks another service for a login."""

    def get_credentials(self):
        raise LookupError("the secret token cannot be had")


@pytest.mark.parametrize(
    ("location", "options", "why"),
    [
        (None, {"credential_provider": NoToken()}, "LookupError"),
        ("redis://a..b:6379/0", {}, "UnicodeE|idna"),
        (f"redis://{'a' * 64}.example:6379/0", {}, "UnicodeE|idna"),
    ],
    ids=["no login", "no name", "too long a name"],
)
def test_whatever_keeps_a_connection_from_being_made_is_an_outage(server, settings, location, options, why):
    """For threads, for event loops and for ``check --deploy``. The project's own message may have a secret."""
    settings.CACHES = {
        "shared": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location or servers.valkey().removesuffix("/0") + "/2",  # a pool of its own
            "OPTIONS": {"CONNECTION_POOL_KWARGS": options},
        }
    }
    with closing(RedisStore("default", cache="shared", **PATIENT)) as store:
        with pytest.raises(StoreUnavailable, match=why) as found:
            store.identity  # noqa: B018
        with pytest.raises(StoreUnavailable, match=why):
            asyncio.run(store.aread([("", ("PING",))], "any"))
        (message,) = store.check_deployed()

    assert "secret" not in str(found.value)
    assert (message.id, "secret" in message.msg) == ("bloomguard.W021", False)


def test_a_server_that_refuses_the_user_is_not_to_be_started(locked):
    """A wrong password and a missing right are reported as what they are, with the cure."""
    with redis.Redis(port=locked.port, password="adm1n") as administrator:
        administrator.acl_setuser("site", enabled=True, passwords=["+site"], commands=["+ping"], keys=["*"])
    for login, why in ((":wrong", "refused the login"), ("site:site", "no permissions to run the 'info' command")):
        with closing(RedisStore("default", url=f"redis://{login}@127.0.0.1:{locked.port}/0", **PATIENT)) as store:
            (found,) = store.check_deployed()

        assert found.id == "bloomguard.W021"
        assert why in found.msg
        assert "does not answer" not in found.msg
        assert "login and rights" in found.hint


def test_a_request_waits_for_50_ms_and_nothing_is_tried_twice(server):
    """The timeouts of the settings are those of the sockets; adds and builds have their own."""
    store = RedisStore("default", url=servers.valkey())
    found = {}
    for link in (store._reads, store._adds, store._bulk):
        servers.until(lambda link=link: connected(link))
        connection = link.pool.get_connection()
        found[link] = connection.socket_connect_timeout, connection._sock.gettimeout(), connection.retry._retries
        link.pool.release(connection)
    store.close()

    assert list(found.values()) == [(0.05, 0.05, 0), (0.05, 0.5, 0), (10, 10, 0)]


def connected(link):
    """Whether it got a connection: a busy machine may take longer than a request has time."""
    try:
        link.pool.release(link.pool.get_connection())
        return True
    except redis.RedisError:
        return False


def test_long_timeouts_are_warned_of():
    """Timeouts that would hold up requests are a warning."""
    store = RedisStore("default", url="redis://127.0.0.1:1/0", read_timeout=5)

    assert [message.id for message in store.check()] == ["bloomguard.W020"]


@pytest.mark.django_db
def test_deploy_checks_ask_every_store(settings, server):
    """``check --tag bloomguard --deploy`` reports what the servers of all stores say; a plain check asks none."""
    server.config_set("maxmemory-policy", "allkeys-lru")
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"},
            "shared": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": servers.valkey()}},
            "broken": {"BACKEND": "bloomguard.stores.redis.RedisStore"},
        }
    }
    plain = [message.id for message in run_checks(tags=["bloomguard"])]
    deployed = [message.id for message in run_checks(tags=["bloomguard"], include_deployment_checks=True)]
    server.config_set("maxmemory-policy", "noeviction")
    stores["shared"].close()

    assert "bloomguard.W109" in plain
    asked = set(deployed) - set(plain)
    assert asked - {"bloomguard.W030", "bloomguard.W045"} == {"bloomguard.W022"}  # no guard has a filter yet


@pytest.mark.parametrize("server", [b"run_id:", b"run_id:0000", b"run_id:a1"])
@pytest.mark.parametrize("replication", [b"master_replid:", b"master_replid:0000", b"master_replid:b2"])
def test_a_server_that_does_not_say_which_one_it_is_has_no_identity(server, replication):
    """As behind a proxy: its connections stay open when another server takes over, and all would have one identity."""
    replies = [b"# Server\r\n%s\r\n" % server, b"role:master\r\n%s\r\n" % replication]

    def read():
        return Server().read_greeting(replies, 0.0).identity

    if server.endswith(b"a1") and replication.endswith(b"b2"):
        assert read() == "redis:b2:a1"
    else:
        with pytest.raises(redis.ResponseError, match="a failover would go unnoticed"):
            read()
