"""The Bloom filter, and all that the bits-and-blooms API has."""

import gc
import math
import mmap
import re
import threading

import numpy as np
import pytest

from bloomguard.filters import BloomFilter, CuckooFilter, InvalidShape, KeyHash, MismatchedFilters, bulk
from bloomguard.filters.codec import Frame

from .kinds import key


def words(count, start=0):
    return [f"word {number}".encode() for number in range(start, start + count)]


def filled(keys, **options):
    filter = BloomFilter(1_000, **options)
    filter.add_many(keys)
    return filter


def test_bits_lie_where_the_remainders_say():
    """Bit ``digest % size`` of each byte-aligned partition, from the high end of its byte, and no other bit."""
    filter = BloomFilter(1_000, 0.01, width=8)
    filter.add(key(7))
    digest = filter.digest(key(7)) & (1 << 60) - 1
    expected = set()
    start = 0
    for size in filter.layout.sizes:
        expected.add(start + digest % size)
        start += -(-size // 8) * 8

    bits = np.unpackbits(np.frombuffer(filter.body, np.uint8))

    assert set(np.flatnonzero(bits).tolist()) == expected == set(filter.locations(key(7)))
    assert len(expected) == 5


def test_locations_answer_as_keys_do():
    """Test by locations."""
    filter = filled(words(1_000))
    for word in words(50) + words(50, 10_000):
        assert filter.might_contain_at(filter.locations(word)) == filter.might_contain(word)


def test_test_and_add_always_writes_and_test_or_add_only_when_absent():
    """Both tell whether the key might have been in."""
    filter = BloomFilter(100)

    assert not filter.test_and_add(b"a")
    assert filter.test_and_add(b"a")
    assert not filter.test_or_add(b"b")
    assert filter.test_or_add(b"b")
    assert b"a" in filter
    assert b"b" in filter


def test_writes_are_what_add_changes():
    """The plan holds one byte for each bit that was clear, changes nothing, and is empty once the key is in."""
    filter = BloomFilter(100)
    plan = filter.writes(filter.digest(b"a"))
    assert not any(filter.body)
    filter._apply(plan)

    other = BloomFilter(100)
    other.add(b"a")
    assert filter == other
    assert filter.writes(filter.digest(b"a")) == []


def test_a_filter_by_shape():
    """``with_bits``: so many bits and hashes; the capacity is what fills half of them."""
    filter = BloomFilter.with_bits(10_000, 7)

    assert len(filter.layout.sizes) == 7
    assert 10_000 <= filter.layout.bits < 10_300
    assert filter.capacity == math.floor(filter.layout.bits / 7 * math.log(2))
    filter.add_many(words(filter.capacity))
    assert filter.fill == pytest.approx(0.5, abs=0.02)
    assert filter.measure_error_rate() == pytest.approx(2**-7, rel=0.25)


def test_a_filter_from_raw_words():
    """The bits of another filter and its partition sizes make it again; others are refused."""
    filter = filled(words(500))
    again = BloomFilter.from_words(bytes(filter.body), filter.layout.sizes)

    assert all(word in again for word in words(500))
    assert again.layout.sizes == filter.layout.sizes
    with pytest.raises(InvalidShape, match="10 bytes of bits; partitions of"):
        BloomFilter.from_words(b"0123456789", filter.layout.sizes)
    with pytest.raises(InvalidShape, match="distinct sizes are needed"):
        BloomFilter.from_words(b"", [7, 7])


def test_union_has_the_keys_of_both():
    """``union`` and ``|`` make a new filter, ``merge`` and ``|=`` change the first; all equal one filled at once."""
    a, b = filled(words(300)), filled(words(300, 300))
    both = filled(words(600))

    assert a.union(b) == a | b == both
    assert a != both
    a |= b
    assert a == both


def test_intersection_has_the_keys_in_both():
    """``intersection`` and ``&``: never without a shared key, and no more than either would admit."""
    a, b = filled(words(600)), filled(words(600, 300))
    shared = a & b

    assert shared == a.intersection(b)
    assert all(word in shared for word in words(300, 300))
    assert shared.fill < min(a.fill, b.fill)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: BloomFilter(1_100),
            "the partition sizes differ: {0.layout.sizes} here, {1.layout.sizes} in the other filter",
        ),
        (lambda: BloomFilter(1_000, hashes=4), "the partition sizes differ: {0.layout.sizes} here, {1.layout.sizes}"),
        (lambda: BloomFilter(1_000, width=8), "the key widths differ: None here, 8 in the other"),
        (lambda: BloomFilter(1_000, secret=b"x" * 16), "the secrets differ"),
        (lambda: CuckooFilter(1_000), "a BloomFilter and a CuckooFilter cannot be merged"),
    ],
)
def test_filters_that_differ_are_not_merged(other, message):
    """The error names what differs, with both values the right way round; nothing is changed."""
    filter = filled(words(10))
    before = bytes(filter.body)
    for merge in (filter.merge, filter.union, filter.intersection):
        with pytest.raises(MismatchedFilters, match=re.escape(message.format(filter, other()))):
            merge(other())

    assert bytes(filter.body) == before


def test_filters_are_equal_when_shape_hash_and_bits_are():
    assert filled(words(10)) == filled(words(10))
    assert filled(words(10)) != filled(words(11))
    assert filled(words(10)) != filled(words(10), secret=b"x" * 16)
    assert BloomFilter(10) != 10


@pytest.mark.parametrize("keys", [0, 10, 100, 500, 1_000, 2_000])
def test_the_size_is_estimated_from_the_fill(keys):
    """Within 5% or five keys of the truth, also beyond the capacity."""
    assert filled(words(keys)).approximate_size() == pytest.approx(keys, rel=0.05, abs=5)


def test_the_size_of_a_full_filter_is_finite():
    """Where every bit is set the estimate is large, not infinite."""
    filter = BloomFilter(100)
    filter.body[:] = b"\xff" * len(filter.body)

    assert 100 < filter.approximate_size() < 10_000
    assert filter.fill == 1
    assert filter.expected_error_rate() == 1


def test_the_error_rate_is_measured_and_expected():
    """100,000 random probes agree with the fill, and both with the promise at capacity."""
    filter = BloomFilter(20_000, 0.01, width=8)
    filter.add_many(np.arange(20_000))

    assert filter.expected_error_rate() == pytest.approx(0.01, rel=0.06)
    assert filter.measure_error_rate() == pytest.approx(0.01, rel=0.15)


def test_capacity_and_hashes_can_be_asked():
    filter = BloomFilter(1_000, 0.001, hashes=9)

    assert (filter.capacity, filter.error_rate, len(filter.layout.sizes)) == (1_000, 0.001, 9)
    assert repr(filter) == "<BloomFilter of 1,000 keys at 0.001, 1808 bytes>".replace("1808", f"{len(filter.body):,}")


def test_bulk_ways_agree_whatever_the_share_of_keys():
    """Few keys in a large partition are set in place, many through flags: the bits are the same."""
    for count in (1, 10, 1_000, 50_000, 200_000):
        one, many = (BloomFilter(200_000, 0.01, width=8) for _ in range(2))
        numbers = np.arange(count)
        many.add_many(numbers)
        step = max(1, count // 97)
        for start in range(0, count, step):
            one.add_many(numbers[start : start + step])

        assert one == many


def test_threads_that_set_bits_in_place_lose_none(monkeypatch):
    """Few keys for a large filter are set by all threads, each in partitions of its own."""
    monkeypatch.setattr(bulk, "cores", lambda: 4)
    filter = BloomFilter(4_000_000, 0.01, width=8)
    numbers = np.arange(400_000)
    filter.add_many(numbers)

    assert filter.contains_many(numbers).all()


@pytest.mark.parametrize("count", [1, 2, 9, 10])
def test_threads_share_no_iterator(monkeypatch, count):
    """Without the interpreter lock, two threads that draw from one iterator may skip a block: its keys were missing."""
    monkeypatch.setattr(bulk, "cores", lambda: 4)
    parts = []
    bulk.spread(parts.append, range(0, 8 * count, 8), shared=True)

    assert all(isinstance(part, range) for part in parts)
    assert len(parts) == min(count, 4)
    assert sorted(start for part in parts for start in part) == list(range(0, 8 * count, 8))


@pytest.mark.parametrize("started", [0, 1])
def test_without_threads_all_is_done_by_one(monkeypatch, started):
    """A process at its limit of threads, or at its end, starts none, or fewer than it asks for."""
    monkeypatch.setattr(bulk, "cores", lambda: 4)
    filter, numbers = BloomFilter(400_000, 0.01, width=8), np.arange(400_000)
    start, threads = threading.Thread.start, []

    def limited(thread):
        if len(threads) == started:
            raise RuntimeError("can't start new thread")
        threads.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    filter.add_many(numbers)

    assert len(threads) == started
    assert filter.contains_many(numbers).all()


def test_a_page_of_a_rebuild_is_set_by_one_thread(monkeypatch):
    """The other cores read the next page meanwhile: more threads would take them from the scan."""
    from bloomguard.rebuild.source import PAGE_ROWS

    monkeypatch.setattr(bulk, "cores", lambda: 4)
    filter = BloomFilter(7_500_000, 0.001, width=8)
    low, _ = filter.digests(np.arange(PAGE_ROWS))
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", lambda threads: pytest.fail("threads were started"))
    filter.add_digests(low)
    monkeypatch.undo()

    assert filter.contains_many(np.arange(PAGE_ROWS)).all()


@pytest.mark.parametrize(("count", "bits"), [(1_000_000, 3), (3_000_000, 3)])
def test_bulk_memory_is_bounded(count, bits):
    """Adding many keys to a large filter takes at most 3 bits for each of its bits, beside it and the keys."""
    import tracemalloc

    BloomFilter(count, 0.01, width=8).add_many(np.arange(count))  # what is imported on the way stays
    filter = BloomFilter(count, 0.01, width=8)
    numbers = np.arange(count)
    tracemalloc.start()
    try:
        filter.add_many(numbers)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak <= bits * len(filter.body) + max(0, bulk.cores() - 2) * (3 << 20)  # more threads have more of their own


@pytest.mark.slow
def test_past_four_billion_bits(tmp_path):
    """A filter of 5 Gbit is built, written and mapped; keys whose bits lie past 2**32 are found, others denied."""
    filter = BloomFilter(520_000_000, 0.01, width=8)
    assert filter.layout.bits > 5e9
    numbers = np.arange(200_000)
    filter.add_many(numbers[:100_000])
    for number in range(100_000, 100_100):
        filter.add(key(number))
    with (tmp_path / "filter").open("wb") as file:
        filter.dump(file)
    del filter

    with (tmp_path / "filter").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        frame = Frame.open(memoryview(mapped))
        frame.verify()
        filter = BloomFilter.attach(frame.header, frame.body, KeyHash(8))

        assert max(max(filter.locations(key(number))) for number in range(100)) > 1 << 32
        assert filter.contains_many(numbers[:100_100]).all()
        assert all(key(number) in filter for number in range(99_000, 100_100))
        assert not filter.contains_many(numbers[100_100:]).any()
        del filter, frame
        gc.collect()  # before the map is closed
