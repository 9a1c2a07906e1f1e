"""Past its capacity a filter errs more often, but never without bounds, and never by denying a member."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from bloomguard.filters import CuckooFilter
from bloomguard.filters.layout import Layout
from bloomguard.filters.sizing import GROWTH, WORSE

from .conftest import HASH, KEY_ID, find, key

CAPACITY = 2_000
PROBES = 50_000
KINDS = {
    "bloom": {},
    "bitmap": {"low": 1, "high": 2 * CAPACITY},  # every second number, as a table has after deletes
    "cuckoo": {},
    "cuckoo of 16 bits": {"fingerprint_bits": 16},
}


@pytest.fixture
def store(anywhere):
    return anywhere.store


def plan(kind, error_rate, shard_bytes=1 << 25):
    return Layout.plan(
        key_hash=HASH,
        capacity=CAPACITY,
        error_rate=error_rate,
        key_id=KEY_ID,
        kind=kind.split()[0],
        shard_bytes=shard_bytes,
        **KINDS[kind],
    )


def numbers_of(way, seed):
    """Twice as many different keys as the capacity says: the first half is what the plan knew, the rest comes later."""
    draw = np.random.default_rng(seed)
    first = np.sort(draw.choice(np.arange(1, 2 * CAPACITY + 1), CAPACITY, replace=False))
    if way == "sequential":
        return first, np.arange(2 * CAPACITY + 1, 3 * CAPACITY + 1)
    return first, draw.integers(1 << 32, 1 << 62, CAPACITY)


def strangers(members, way, seed):
    """Numbers that are no members: near them, right behind them, and anywhere."""
    draw = np.random.default_rng(seed + 1_000)
    near = draw.integers(1, 10 * CAPACITY, PROBES) if way == "sequential" else draw.integers(1 << 32, 1 << 62, PROBES)
    return np.setdiff1d(near, members)


def passing(generation, probes):
    return int(generation.layout.contains_many(list(generation.filters()), probes).sum())


def at_most(rate, probes):
    """So many of them may pass, four standard deviations allowed."""
    return rate * probes + 4 * math.sqrt(rate * probes)


def test_the_bounds_are_what_is_promised():
    assert (GROWTH, WORSE) == (2, 10)


@pytest.mark.parametrize(("error_rate", "shard_bytes"), [(0.01, 1 << 25), (0.001, 1 << 12)])
@pytest.mark.parametrize("way", ["random", "sequential"])
@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_keys_err_at_most_ten_times_as_often(store, kind, way, error_rate, shard_bytes):
    """At its capacity the promise holds; with twice as many keys at most ten times as many strangers pass."""
    made = store.create("city", "a", plan(kind, error_rate, shard_bytes))
    other = store.open("city", "a", find)
    first, later = numbers_of(way, 5)
    made.add_many(first)
    made.seal()

    probes = strangers(first, way, 5)
    assert passing(other, probes) <= at_most(error_rate, len(probes))

    other.add(list(map(key, later[: CAPACITY // 3].tolist())))
    for some in np.array_split(later[CAPACITY // 3 :], 10):
        made.add(list(map(key, some.tolist())))
    members = np.concatenate((first, later))
    probes = strangers(members, way, 6)

    assert passing(other, probes) <= at_most(WORSE * error_rate, len(probes))
    assert passing(other, members) == len(members)
    asked = [key(number) for number in np.concatenate((members[::17], probes[:200])).tolist()]
    assert [made.might_contain(each) for each in asked] == other.might_contain_many(asked)
    if other.supports_async:
        assert asyncio.run(asked_on_a_loop(other, asked)) == other.might_contain_many(asked)


async def asked_on_a_loop(generation, keys):
    return [await generation.amight_contain(each) for each in keys]


@pytest.mark.parametrize("kind", KINDS)
def test_far_past_its_capacity_no_member_is_denied(store, kind):
    """Five times as many keys as foreseen: the filter says MAYBE of more and more, and takes them all."""
    made = store.create("city", "a", plan(kind, 0.01))
    numbers = np.arange(-3 * CAPACITY, 2 * CAPACITY)
    made.add_many(numbers[: -CAPACITY // 2])
    made.seal()
    made.add_many(numbers[-CAPACITY // 2 :])
    made.add([key(1)] * 20)

    assert passing(made, numbers) == len(numbers)
    if made.layout.filter_class.supports_discard:
        made.discard(map(key, range(1, CAPACITY)))
        assert passing(made, numbers) == len(numbers)
    assert made.approximate_size() > GROWTH * made.layout.capacity


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_many_rows_share_builds(store, kind):
    """Ten rows a key, and one key of a hundred thousand rows: all are found, and the promise holds."""
    made = store.create("city", "a", plan(kind, 0.001))
    rows = np.concatenate((np.repeat(np.arange(1, 201), 10), np.full(100_000, 777), np.arange(1_000, 1_500)))
    made.add_many(rows)
    made.seal()
    opened = store.open("city", "a", find)

    probes = np.arange(10_000, 10_000 + PROBES)
    assert passing(opened, np.unique(rows)) == len(np.unique(rows))
    assert passing(opened, probes) <= at_most(0.001, len(probes))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_room_beside_is_what_the_rule_asks_for(bits):
    """What is set aside for twice the keys is no more than a Bloom filter at ten times the rate takes."""
    for error_rate in (0.05, 0.01, 0.001) if bits > 8 else (0.05,):
        shape = CuckooFilter.shape(1_000_000, error_rate, bits)
        least = 1.4427 * 1_000_000 * math.log2(1 / (WORSE * error_rate))

        assert 8 * shape.spill.body_bytes < (1.25 if bits == 8 else 1.04) * least
