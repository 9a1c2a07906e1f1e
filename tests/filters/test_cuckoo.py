"""The cuckoo filter: it loses nothing, whatever fails, whoever reads meanwhile."""

import random
from collections import Counter

import numpy as np
import pytest

from bloomguard.filters import CuckooFilter, InvalidShape
from bloomguard.filters.bloom import BloomShape
from bloomguard.filters.cuckoo_table import HEAD, CuckooShape


def key(number):
    return number.to_bytes(8, "little")


def state(filter):
    """The multiset of (fingerprint, its pair of buckets) in a filter."""
    found = Counter()
    for bucket in range(filter.layout.buckets):
        for fingerprint in filter._bucket(bucket):
            if fingerprint:
                found[fingerprint, frozenset((bucket, filter.layout.other(fingerprint, bucket)))] += 1
    return found


def packed(seed=0):
    """A filter so full that the next key needs others to move, its keys, and a digest that moves two or more."""
    filter = CuckooFilter(2_000, fingerprint_bits=32, width=8)
    numbers = iter(range(seed * 10_000, (seed + 1) * 10_000))
    keys = []
    for number in numbers:
        writes = filter.writes(filter.digest(key(number)))
        if len(writes) >= 5:
            return filter, keys, key(number), writes
        filter._apply(writes)
        keys.append(key(number))
    raise AssertionError("no key needed room")


@pytest.mark.parametrize("buckets", [1, 2, 3, 10, 1023, 26_316])
def test_the_other_bucket_of_the_other_bucket_is_the_first(buckets):
    """The alternate bucket is its own inverse for any number of buckets, not only for powers of two."""
    shape = CuckooShape(1, 0.01, 32, buckets, BloomShape(1, 0.1, (11,)))
    for _ in range(200):
        fingerprint, first, second = shape.place(random.getrandbits(128))

        assert shape.other(fingerprint, second) == first
        assert 0 <= first < buckets
        assert 0 <= second < buckets


def test_planning_changes_nothing():
    """``writes`` and ``discard_writes`` say what would change; the body stays as it is until they are applied."""
    filter, keys, newcomer, _ = packed()
    before = bytes(filter.body)

    filter.writes(filter.digest(newcomer))
    filter.discard_writes(filter.digest(keys[0]))

    assert bytes(filter.body) == before


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_after_any_write_loses_no_key(seed):
    """After each single write of a plan, every fingerprint that was in is in: the path is walked from its free end."""
    filter, keys, newcomer, writes = packed(seed)
    for write in writes:
        filter._apply([write])

        assert all(map(filter.might_contain, keys))
    assert filter.might_contain(newcomer)


def test_writes_are_aligned_and_four_bytes_long():
    """A fingerprint of 32 bits is written in one aligned piece, so a reader sees the old one or the new one."""
    _, _, _, writes = packed()

    assert all(len(data) == 4 and offset % 4 == 0 for offset, data in writes)


def test_the_count_of_moves_rises_between_a_copy_and_the_loss_of_its_original():
    """No slot in use is overwritten unless the count of moves rose since its fingerprint was copied."""
    _, _, _, writes = packed()
    kinds = ["moves" if offset == 0 else "slot" for offset, _ in writes]

    assert kinds == ["slot", "moves"] * (len(writes) // 2) + ["slot"]


def test_a_reader_that_a_move_overtook_looks_again():
    """A fingerprint that goes from the bucket read second to the one read first, between the reads, is still found."""
    filter = CuckooFilter(1_000, fingerprint_bits=32, width=8)
    digest = filter.digest(key(1))
    fingerprint, first, second = filter.layout.place(digest)
    filter._apply([filter._put(second, 0, fingerprint)])
    unpack = filter._unpack

    class Overtaken:
        """Looks like ``unpack``; after its first call a writer moves the fingerprint."""

        calls = 0

        def __call__(self, table, offset):
            slots = unpack(table, offset)
            self.calls += 1
            if self.calls == 1:
                filter._apply(
                    [filter._put(first, 0, fingerprint), (0, b"\1\0\0\0"), filter._put(second, 0, 0)],
                )
            return slots

    filter._unpack = overtaken = Overtaken()
    filter._compile()

    assert filter.might_contain_digest(digest)
    assert overtaken.calls > 2


def test_endless_moves_give_the_safe_answer():
    """A reader that is overtaken all the time says MAYBE in the end, not ABSENT."""
    filter = CuckooFilter(1_000, fingerprint_bits=32, width=8)
    unpack = filter._unpack

    def busy(table, offset):
        filter._apply([(0, bytes([filter.body[0] + 1 & 255, 0, 0, 0]))])
        return unpack(table, offset)

    filter._unpack = busy
    filter._compile()

    assert filter.might_contain(key(1))


def test_the_bytes_do_not_depend_on_the_machine(monkeypatch):
    """Where integers begin with their high byte, a filter is the same, and works."""
    made = []
    for order in ("little", "big"):
        monkeypatch.setattr("sys.byteorder", order)
        filter = CuckooFilter(64, fingerprint_bits=32)
        for number in range(60):
            filter.add(key(number))
        for _ in range(9):
            filter.add(key(100))
        assert filter.discard(key(1))
        assert not filter.might_contain(key(1))
        assert all(filter.might_contain(key(number)) for number in (0, *range(2, 60), 100))
        made.append(bytes(filter.body))

    assert made[0] == made[1]


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_bulk_and_single_adds_hold_the_same_multiset(bits):
    """However fingerprints were moved, each lies in its own pair of buckets, once for each time it was added."""
    one, many = (CuckooFilter(3_000, 0.04, fingerprint_bits=bits, width=8) for _ in range(2))
    numbers = np.arange(3_000)
    for number in numbers.tolist():
        one.add(key(number))
    many.add_many(numbers)

    assert state(one) == state(many)


def test_discard_takes_one_copy():
    """The filter is a multiset: what went in twice has to be discarded twice."""
    filter = CuckooFilter(100)
    filter.add(b"a")
    filter.add(b"a")

    assert filter.discard(b"a")
    assert b"a" in filter
    assert filter.discard(b"a")
    assert b"a" not in filter
    assert not filter.discard(b"a")


def test_discarding_a_stranger_changes_nothing():
    """A key whose fingerprint is not there is not discarded, and nothing else is."""
    filter = CuckooFilter(100, fingerprint_bits=32)
    filter.add(b"a")
    before = bytes(filter.body)

    assert not filter.discard(b"b")
    assert bytes(filter.body) == before


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_planned_discard_is_the_discard(bits):
    """Both ways take out the same copy, for members, strangers and keys that spilled, and leave the same bytes."""
    planned, direct = (CuckooFilter(5_000, 0.04, fingerprint_bits=bits, width=8) for _ in range(2))
    for filter in (planned, direct):
        filter.add_many(list(range(400)) + [7] * 10)
    for number in (*range(0, 500, 3), 7):
        plan = planned.discard_writes(planned.digest(key(number)))
        planned._apply(plan)

        assert direct.discard(key(number)) == bool(plan)
        assert planned == direct


def test_two_keys_with_one_fingerprint_are_kept_apart_by_their_number():
    """Plain adds, once a key, and discards, once a key: a collision costs nothing (add-unique would lose a key)."""
    filter = CuckooFilter(1_000, 0.04, fingerprint_bits=8, width=8)
    places = {}
    for number in range(100_000):
        place = filter.layout.place(filter.digest(key(number)))
        if place in places:
            break
        places[place] = number
    twin = places[place]
    filter.add(key(number))
    filter.add(key(twin))

    filter.discard(key(number))

    assert key(twin) in filter


def test_add_unique_update_clear_and_size():
    """The rest of the published interface: add-unique, update (discard and add), reset, size, is-empty."""
    filter = CuckooFilter(100, fingerprint_bits=32)

    assert filter.is_empty()
    assert filter
    assert filter.add_unique(b"a")
    assert not filter.add_unique(b"a")
    assert filter.update(b"a", b"b")
    assert not filter.update(b"a", b"c")
    assert (b"a" in filter, b"b" in filter, b"c" in filter, len(filter)) == (False, True, False, 1)
    filter.clear()
    assert filter.is_empty()
    assert b"b" not in filter
    for _ in range(9):
        filter.add(b"a")
    assert not filter.is_empty()
    filter.clear()
    assert filter.is_empty()
    assert not filter.has_spilled(b"a")


@pytest.mark.parametrize(("rate", "bits"), [(0.04, 8), (0.03, 8), (0.02, 16), (0.0002, 16), (0.0001, 32), (1e-8, 32)])
def test_fingerprints_are_as_wide_as_the_rate_asks(rate, bits):
    """Fingerprints of 8, 16 and 32 bits give rates of 3.0e-2, 1.2e-4 and 1.8e-9."""
    assert CuckooFilter.shape(1_000, rate).bits == bits


def test_a_rate_below_32_bits_is_refused():
    """The message names the rate and the least that can be had."""
    with pytest.raises(InvalidShape, match=r"error_rate is 1e-12; fingerprints of 32 bits reach 1.8e-9"):
        CuckooFilter(1_000, 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_capacity_is_reached_at_load_95(seed):
    """As many keys as the capacity says go in, for small and large tables, and the body is no larger than they need."""
    for capacity in (1, 10, 1_000, 100_000):
        filter = CuckooFilter(capacity, fingerprint_bits=32, width=8)
        filter.add_many(np.random.default_rng(seed).integers(0, 1 << 62, capacity))

        assert len(filter) == capacity
    assert filter.fill > 0.9499
    assert filter.layout.spill_offset <= HEAD + 4 * 100_000 / 0.95 + 32


@pytest.mark.parametrize("length", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_no_false_negative_after_mixed_operations_at_full_load(length):
    """Adds and discards at load 0.95, in any order: what is in is found, and the size is right."""
    rng = random.Random(length)
    capacity = length // 10
    filter = CuckooFilter(capacity, fingerprint_bits=16, width=8)
    alive = list(range(capacity))
    filter.add_many(np.array(alive))
    for number in range(capacity, capacity + length // 2):
        at = rng.randrange(capacity)
        assert filter.discard(key(alive[at]))
        filter.add(key(number))
        alive[at] = number

    assert filter.contains_many(np.array(alive)).all()
    assert len(filter) == capacity
