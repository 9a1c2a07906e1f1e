"""Cuckoo filters on a real Valkey server: the script against the Python implementation, byte by byte."""

from __future__ import annotations

import random
import threading
from collections import Counter

import numpy as np
import pytest
import redis

from bloomguard.exceptions import StoreError
from bloomguard.filters import CorruptFilter
from bloomguard.filters.codec import Frame, decode
from bloomguard.filters.layout import Layout
from bloomguard.stores.redis import RedisStore
from tests.support import servers
from tests.support.patience import PATIENT

from .conftest import HASH, KEY_ID, fill, find, key, load_beside_adds, make_layout


@pytest.fixture
def server():
    """The client of an administrator of the shared server, which is empty."""
    with redis.Redis.from_url(servers.valkey()) as client:
        client.flushall()
        client.script_flush()
        yield client


@pytest.fixture
def store(server):
    made = RedisStore("default", url=servers.valkey(), **PATIENT)
    yield made
    made.close()


def small(bits, capacity=120):
    """A layout so small that fingerprints have to make room for each other."""
    return Layout.plan(
        key_hash=HASH,
        capacity=capacity,
        error_rate=0.05,
        key_id=KEY_ID,
        kind="cuckoo",
        fingerprint_bits=bits,
    )


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("seed", range(4))
def test_the_script_does_what_python_does(store, bits, seed):
    """Over random adds and discards, up to a full filter and past it, the bytes are those of ``CuckooFilter``."""
    layout, draw = small(bits), random.Random(seed)
    made = store.create("city", "a", layout)
    made.seal()
    twin = layout.attach(Frame.format(layout.header, memoryview(bytearray(layout.header.frame_bytes))))
    held, moved, kept = [], 0, 0

    for step in range(600):
        number = draw.choice(held) if held and draw.random() < 0.1 else draw.randrange(1_000_000)
        if held and draw.random() < (0.15 if step < 300 else 0.4):
            number = held.pop(draw.randrange(len(held)))
            made.discard([key(number)])
            kept += not twin.discard(key(number))
        else:
            writes = twin.writes(twin.digest(key(number)))
            twin._apply(writes)
            made.add([key(number)])
            held.append(number)
            moved += len(writes) > 1
        if step % 20 == 0:
            assert made.read_shard(0).body == twin.body

    assert made.read_shard(0).body == twin.body
    assert all(made.might_contain_many([key(number) for number in held]))
    assert moved
    assert kept  # for they had spilled


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_script_does_it_with_twins_too(store, bits):
    """Keys made to have few fingerprints and few buckets spill, and stay, as they do in ``CuckooFilter``."""
    layout, draw = small(bits, 12), random.Random(bits)
    made = store.create("city", "a", layout)
    made.seal()
    twin = layout.attach(Frame.format(layout.header, memoryview(bytearray(layout.header.frame_bytes))))
    digests = [f << (128 - bits) | salt << 60 | bucket for f in (5, 6, 200) for bucket in range(4) for salt in (0, 1)]
    held = Counter()

    for _ in range(400):
        digest = draw.choice(digests)
        if held[digest] and draw.random() < 0.5:
            twin._apply(twin.discard_writes(digest))
            made._change([made._kind.discards(0, [digest])])
            held[digest] -= 1
        else:
            twin._apply(twin.writes(digest))
            made._change([made._kind.adds(0, [digest])])
            held[digest] += 1
        members = [each for each, count in held.items() if count]
        checks = made._kind.checks(0, digests)
        found = checks.read(made._store.read(checks.commands, made.identity))
        assert found == [twin.might_contain_digest(each) for each in digests]
        assert all(map(twin.might_contain_digest, members))

    assert made.read_shard(0).body == twin.body
    assert twin.spill.approximate_size() >= 3


def test_a_key_too_often_added_stays(store):
    """Once a key is in more often than can be counted, adds and discards of it change nothing, and it has no slot."""
    made = store.create("city", "a", small(8))
    made.seal()
    made.add([key(1)] * 20)
    full = made.read_shard(0).body.tobytes()

    made.discard([key(1)] * 20)
    made.add([key(1)])

    assert made.might_contain(key(1))
    assert made.read_shard(0).body == full
    assert fill(made) == 0


@pytest.mark.parametrize("shard_bytes", [1 << 25, 1 << 12])
def test_a_cuckoo_filter_counts(store, shard_bytes):
    """What was added twice is there until it is discarded twice, through whichever hold; nothing else goes with it."""
    made = store.create("city", "a", make_layout("cuckoo", shard_bytes))
    made.seal()
    opened = store.open("city", "a", find)
    numbers = random.Random(1).sample(range(20_000), 600)
    made.add(list(map(key, numbers)))
    opened.add(list(map(key, numbers[:400])))

    opened.discard(map(key, numbers[:300]))
    made.discard(map(key, numbers[500:]))
    made.discard([key(1_000_000)])

    assert [made.might_contain(key(number)) for number in numbers] == [True] * 500 + [False] * 100
    assert sum(each.size() for each in map(store.open("city", "a", find).layout.attach, frames(made))) == 600


def frames(generation):
    return [generation.read_shard(shard) for shard in range(len(generation.keys))]


def test_a_large_build_takes_what_others_add_meanwhile(store, server, monkeypatch):
    """Adds of others before and during the load are in the filter afterwards, and no journal is left."""
    made = store.create("city", "a", make_layout("cuckoo", 1 << 18, capacity=200_000))
    other = store.open("city", "a", find)
    other.add_many(np.arange(-30_000, -10_000))
    made.add_many(np.arange(1_000, 120_000))
    stop, added = threading.Event(), []

    def write():
        for number in range(-9_000, 0):
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
    for some in (added, range(-30_000, -10_000), range(1_000, 120_000, 97)):
        assert all(other.might_contain_many([key(number) for number in some]))
    assert server.keys("*:journal") == server.keys("*:load") == []
    for frame in frames(other):
        decode(frame.buffer)


def test_a_full_filter_takes_all_that_comes(store):
    """Far past its capacity, in one process, in a build and in what joins it, every key is found afterwards."""
    made = store.create("city", "a", small(32))
    made.add_many(np.arange(100))
    other = store.open("city", "a", find)
    other.add(list(map(key, range(100, 400))))
    made.seal()
    other.add(list(map(key, range(400, 500))))
    made.add_many(np.arange(500, 600))

    assert all(other.might_contain_many(map(key, range(600))))
    assert fill(other) > 0.9
    for frame in frames(other):
        decode(frame.buffer)


def test_what_only_seems_to_have_spilled_is_in_the_journal(store):
    """During a build the shard on the server, with its spill, is replaced: what that lets pass may be nowhere else."""
    made = store.create("city", "a", small(32))
    other = store.open("city", "a", find)
    for start in range(0, 2_000, 50):
        other.add(list(map(key, range(start, start + 50))), once=True)

    made.seal()

    assert all(other.might_contain_many(map(key, range(2_000))))


def test_a_server_that_forgot_the_script_is_told_it_again(store, server):
    """After ``SCRIPT FLUSH`` the next change sends the script in full, once; no change is lost or made twice."""
    made = store.create("city", "a", make_layout("cuckoo"))
    made.seal()
    made.add([key(1)])
    server.config_resetstat()
    made.add([key(2)])
    server.script_flush()

    made.add([key(3), key(3)])
    made.discard([key(1)])

    calls = {name: figures["calls"] for name, figures in server.info("commandstats").items()}
    assert calls["cmdstat_eval"] == 1
    assert [made.might_contain(key(number)) for number in (1, 2, 3)] == [False, True, True]
    assert fill(made) * made.layout.shape.slots == 3


def test_a_lost_journal_stops_the_build(store, server):
    """Without the list of what others have added meanwhile the gathered shard does not take the place of theirs."""
    made = store.create("city", "a", make_layout("cuckoo"))
    store.open("city", "a", find).add([key(1)])
    made.add_many(np.arange(100, 200))
    server.delete(*server.keys("*:journal"))

    with pytest.raises(CorruptFilter):
        made.seal()

    assert store.open("city", "a", find).might_contain(key(1))


def test_a_check_is_one_command(store, server):
    """A check is one ``BITFIELD``, however many slots a key may be in; an add is one script."""
    made = store.create("city", "a", make_layout("cuckoo"))
    made.seal()
    made.add([key(1)])
    made.might_contain(key(1))
    server.config_resetstat()
    for number in range(50):
        made.might_contain(key(number))
    made.might_contain_many(map(key, range(100)))
    made.add([key(5)])

    calls = {name: figures["calls"] for name, figures in server.info("commandstats").items()}
    assert calls["cmdstat_bitfield"] == 51
    assert calls["cmdstat_evalsha"] == 1


def test_shards_too_large_for_exact_numbers_are_refused(store):
    """The script's numbers are exact for 2**24 buckets a shard: a layout with more is refused, without a byte made."""
    layout = Layout.plan(
        key_hash=HASH,
        capacity=300_000_000,
        error_rate=0.05,
        kind="cuckoo",
        fingerprint_bits=8,
        shard_bytes=1 << 30,
    )

    with pytest.raises(StoreError, match="16,777,216"):
        store.create("city", "a", layout)

    assert store.names("city") == []
