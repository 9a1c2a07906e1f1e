"""Counting, spectral, scalable and rotating filters, and the exact bitmap: what each adds to the contract."""

import threading

import numpy as np
import pytest

from bloomguard.filters import (
    BloomFilter,
    CorruptFilter,
    CountingBloomFilter,
    ExactBitmap,
    InvalidShape,
    RotatingBloomFilter,
    ScalableBloomFilter,
    ScalableCuckooFilter,
    SpectralBloomFilter,
    codec,
)

from .kinds import SECRET, key


def test_a_counter_that_reached_15_stays():
    """4-bit counters: after 15 adds the counter no longer knows its number, so no discard lowers it."""
    filter = CountingBloomFilter(100)
    for _ in range(14):
        filter.add(b"a")
    for _ in range(14):
        assert filter.discard(b"a")
    assert b"a" not in filter

    for _ in range(16):
        filter.add(b"a")
    for _ in range(40):
        filter.discard(b"a")
    assert b"a" in filter


def test_bulk_adds_saturate_too():
    filter = CountingBloomFilter(100, width=8)
    filter.add_many([1] * 20 + [2] * 3)
    for _ in range(20):
        filter.discard(key(1))
        filter.discard(key(2))

    assert key(1) in filter
    assert key(2) not in filter


def test_discarding_a_stranger_from_counters_changes_nothing():
    """Unless all counters of a key are above 0 the key is not there, and none of them is lowered."""
    filter = CountingBloomFilter(1_000)
    filter.add_many([f"{number}".encode() for number in range(100)])
    before = bytes(filter.body)

    assert not filter.discard(b"stranger")
    assert bytes(filter.body) == before


def test_counting_takes_four_times_the_bits():
    assert len(CountingBloomFilter(10_000).body) == pytest.approx(4 * 9.84 * 10_000 / 8, rel=0.01)


def test_the_frequency_is_the_smallest_counter():
    """Exact for nearly all keys, never too low."""
    filter = SpectralBloomFilter(2_000, 0.001, width=8)
    numbers = np.repeat(np.arange(1_000), np.arange(1_000) % 7 + 1)
    filter.add_many(numbers)
    for number in range(10):
        filter.add(key(number))

    frequencies = filter.frequencies(np.arange(1_000))
    truth = np.arange(1_000) % 7 + 1 + (np.arange(1_000) < 10)
    assert (frequencies >= truth).all()
    assert (frequencies == truth).mean() > 0.99
    assert filter.frequency(key(3)) == 5
    assert filter.frequency(key(5_000)) == 0


def test_a_scalable_filter_keeps_its_promise_over_all_layers():
    """From 100 keys to 20,000: layers tighten, so the sum of their rates is within the promise."""
    filter = ScalableBloomFilter(100, 0.01, width=8)
    for start in range(0, 20_000, 500):
        filter.add_many(np.arange(start, start + 500))

    assert len(filter.layers) >= 7
    assert filter.contains_many(np.arange(20_000)).all()
    assert filter.contains_many(np.arange(1_000_000, 1_200_000)).mean() <= 0.01
    assert sum(layer.error_rate for layer in filter.layers) <= 0.01
    assert [layer.capacity for layer in filter.layers[:4]] == [100, 200, 400, 800]


def test_equal_layers_stay_within_the_promise_too():
    """Five equal layers at 1% each would give 4.9%; tightened they give 1%."""
    filter = ScalableBloomFilter(1_000, 0.01, growth=1, width=8)
    for number in range(5_000):
        filter.add(key(number))

    assert len(filter.layers) in (5, 6)
    assert filter.contains_many(np.arange(100_000, 300_000)).mean() <= 0.01


def test_adding_twice_takes_no_room():
    filter = ScalableBloomFilter(100, width=8)
    for _ in range(50):
        filter.add_many(np.arange(90))

    assert len(filter.layers) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"growth": 0}, "growth is 0"), ({"growth": 17}, "growth is 17"), ({"tightening": 1}, "tightening is 1")],
)
def test_layers_that_cannot_be_are_named(options, message):
    with pytest.raises(InvalidShape, match=message):
        ScalableBloomFilter(10, **options)


def test_a_cuckoo_filter_grows_instead_of_being_full():
    """Twenty times its capacity: nothing is lost, everything can be discarded."""
    filter = ScalableCuckooFilter(500, 0.0002, width=8)
    filter.add_many(np.arange(5_000))
    for number in range(5_000, 10_000):
        filter.add(key(number))

    assert filter.stats().size == 10_000
    assert filter.contains_many(np.arange(10_000)).all()
    assert filter.stats().expected_error_rate == pytest.approx(len(filter.layers) * 1.1e-4, rel=0.2)
    for number in range(9_000):
        assert filter.discard(key(number))
    assert filter.contains_many(np.arange(9_000, 10_000)).all()
    assert filter.stats().size == 1_000


@pytest.mark.parametrize("bulk", [False, True])
def test_a_key_too_often_added_stays_in_a_grown_filter(bulk):
    """It spills in the table whose buckets it fills, and takes no other table; whatever it is, it stays."""
    filter = ScalableCuckooFilter(100, width=8)
    if bulk:
        filter.add_many([1] * 30)
    else:
        for _ in range(30):
            filter.add(key(1))
    assert filter.has_spilled(key(1))
    for _ in range(60):
        assert not filter.discard(key(1))

    assert key(1) in filter
    assert len(filter.layers) == 1
    assert ScalableCuckooFilter.from_bytes(filter.to_bytes()).has_spilled(key(1))


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


def test_a_rotating_filter_takes_the_smallest_rate_that_it_accepts():
    """A window's share of it is below what a Bloom filter can have."""
    filter = RotatingBloomFilter(10, 1e-15, window=60)
    filter.add(b"a")
    assert b"a" in filter


def test_a_rotating_filter_forgets_after_its_windows():
    """A key is remembered for at least ``windows - 1`` and at most ``windows`` windows."""
    clock = Clock()
    filter = RotatingBloomFilter(1_000, window=60, windows=3, clock=clock)
    clock.now = 59.0
    filter.add(b"early")
    clock.now = 60.0
    filter.add(b"late")

    clock.now = 179.9
    assert b"early" in filter
    clock.now = 180.0
    assert b"early" not in filter
    assert b"late" in filter
    clock.now = 240.0
    assert b"late" not in filter
    assert filter.stats().size == 0


def test_a_clock_that_steps_back_forgets_nothing():
    clock = Clock()
    filter = RotatingBloomFilter(1_000, window=60, windows=2, clock=clock)
    filter.add(b"a")
    clock.now -= 500
    filter.add(b"b")

    assert b"a" in filter
    assert b"b" in filter


def test_two_threads_that_begin_a_window_keep_both_keys(monkeypatch):
    """Each makes a filter for it; the second one's must not replace the first one's, which has a key already."""
    made_both, real = threading.Barrier(2), RotatingBloomFilter._new_layer
    first_has_added = threading.Event()

    def new_layer(self, shape):
        layer = real(self, shape)
        if made_both.wait(60) == 1:
            first_has_added.wait(60)
        return layer

    monkeypatch.setattr(RotatingBloomFilter, "_new_layer", new_layer)
    filter = RotatingBloomFilter(1_000, window=60, windows=2, clock=Clock())

    def add(name):
        filter.add(name)
        first_has_added.set()

    threads = [threading.Thread(target=add, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert b"a" in filter
    assert b"b" in filter


def test_a_window_that_ends_while_a_thread_begins_it_takes_the_key_all_the_same(monkeypatch):
    """Another thread that reads drops the filter before the key is added to it: the key has expired, too."""
    clock = Clock()
    filter = RotatingBloomFilter(1_000, window=60, windows=1, clock=clock)

    class Filters(dict):
        def setdefault(self, number, layer):
            made = super().setdefault(number, layer)
            clock.now += 60
            assert filter.layers == []
            return made

    monkeypatch.setattr(filter, "_filters", Filters())
    filter.add(b"a")

    assert b"a" not in filter


def test_a_window_that_ends_while_a_thread_saves_the_filter(monkeypatch):
    """Another thread that reads drops it: what is saved has its keys, and can be loaded."""
    clock, real = Clock(), BloomFilter.to_bytes
    filter = RotatingBloomFilter(1_000, window=60, windows=1, clock=clock)
    filter.add(b"a")

    def to_bytes(layer):
        clock.now += 60
        assert filter.layers == []
        return real(layer)

    monkeypatch.setattr(BloomFilter, "to_bytes", to_bytes)
    saved = filter.to_bytes()
    clock.now -= 60
    loaded = RotatingBloomFilter.from_bytes(saved)
    loaded.clock = clock

    assert b"a" in loaded


def test_windows_share_the_promise():
    """Full windows together stay within the error rate."""
    clock = Clock()
    filter = RotatingBloomFilter(2_000, 0.01, window=60, windows=5, clock=clock, width=8)
    for window in range(20):
        clock.now = 60.0 * window
        filter.add_many(np.arange(2_000 * window, 2_000 * (window + 1)))

    assert len(filter.layers) == 5
    assert filter.contains_many(np.arange(1_000_000, 1_100_000)).mean() <= 0.0115


def test_a_rotating_filter_goes_on_where_it_was_written():
    """The clock is set again; what is over by then is forgotten."""
    clock = Clock()
    filter = RotatingBloomFilter(1_000, window=60, windows=2, clock=clock)
    filter.add(b"a")

    again = RotatingBloomFilter.from_bytes(filter.to_bytes())
    again.clock = clock
    twin = filter.copy()
    assert b"a" in again
    assert b"a" in twin
    clock.now += 120
    assert b"a" not in again
    assert b"a" not in twin


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is 0.0"),
        ({"window": float("inf")}, "window is inf"),
        ({"window": 60, "windows": 0}, "windows is 0"),
    ],
)
def test_windows_that_cannot_be_are_named(options, message):
    with pytest.raises(InvalidShape, match=message):
        RotatingBloomFilter(10, **options)


def test_layers_of_another_hash_are_corrupt():
    """A frame put together from two filters is not one filter."""
    first, other = ScalableBloomFilter(10, width=8), ScalableBloomFilter(10)
    data = first.layers[0].to_bytes() + other.layers[0].to_bytes()
    header = codec.Header(
        kind="scalable",
        tag=1,
        capacity=10,
        error_rate=0.01,
        body_bytes=len(data),
        parameters=(2, 0x3FE0000000000000, 1, 1),
        width=8,
    )

    with pytest.raises(CorruptFilter, match="layer 1 does not belong to this filter"):
        ScalableBloomFilter.from_bytes(b"".join([header.pack(), data, codec.trailer(header, data)]))


def test_a_bitmap_is_exact_in_its_range():
    """No false positive among a million integers, negative ones among them."""
    filter = ExactBitmap(-500_000, 499_999)
    members = np.arange(-500_000, 500_000, 3)
    filter.add_many(members)

    answers = filter.contains_many(np.arange(-500_000, 500_000))
    assert answers.sum() == len(members)
    assert answers[::3].all()
    assert filter.stats().size == len(members)


def test_a_bitmap_takes_one_bit_an_id():
    """And a hundredth for what may lie outside."""
    assert 8 * len(ExactBitmap(1, 10_000_000).body) < 1.011 * 10_000_000


@pytest.mark.parametrize("number", [-(1 << 63), -1, 0, 101, 1 << 40, (1 << 63) - 1])
def test_a_key_outside_the_range_is_found(number):
    """It goes to the overflow: one at a time, in bulk, by planned writes."""
    for add in (
        lambda filter: filter.add(key(number)),
        lambda filter: filter.add_many([number]),
        lambda filter: filter._apply(filter.writes(filter.digest(key(number)))),
    ):
        filter = ExactBitmap(1, 100, secret=SECRET)
        add(filter)

        assert filter.might_contain(key(number))
        assert filter.might_contain_digest(filter.digest(key(number)))
        assert filter.contains_many([number]).all()
        assert filter.fill == 0
        assert filter.overflow.approximate_size() == 1
        assert not filter.contains_many(np.arange(1, 101)).any()


def test_a_bitmap_at_the_ends_of_the_integers():
    """Ranges that touch the largest and smallest integers of 64 bits do not wrap around."""
    for low, high in ((-(1 << 63), -(1 << 63) + 99), ((1 << 63) - 100, (1 << 63) - 1)):
        filter = ExactBitmap(low, high)
        filter.add_many([low, high])

        assert filter.fill == 0.02
        assert filter.contains_many([low, low + 1, high - 1, high, 0]).tolist() == [True, False, False, True, False]
        assert [filter.might_contain(key(number)) for number in (low, high, 0, -1)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [(1, 0, r"the range \[1, 0\] is empty"), (0, 1 << 48, "a range of"), (-(1 << 64), -(1 << 64), "a range of")],
)
def test_ranges_that_cannot_be_are_named(low, high, message):
    with pytest.raises(InvalidShape, match=message):
        ExactBitmap(low, high)
