"""What every kind of filter promises."""

import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from bloomguard.filters import CorruptFilter, DiscardUnsupported, InvalidShape, TooLarge

from .kinds import SECRET, key

N = 3_000


def filled(kind, **options):
    filter = kind.make(N, **options)
    filter.add_many(np.arange(N))
    return filter


def test_an_empty_filter_contains_nothing(kind):
    """A new filter denies every key, one at a time and in bulk."""
    filter = kind.make(N)

    assert not any(filter.might_contain(key(number)) for number in range(-100, 100))
    assert not filter.contains_many(np.arange(-100, 100)).any()
    assert filter.stats().size == 0
    assert filter.stats().fill == 0


def test_a_key_that_was_added_is_never_denied(kind):
    """Whichever way keys went in, both checks and ``in`` find them."""
    filter = kind.make(N)
    for number in range(N // 2):
        filter.add(key(number))
    filter.add_many(np.arange(N // 2, N))

    assert all(filter.might_contain(key(number)) for number in range(N))
    assert filter.contains_many(np.arange(N)).all()
    assert key(0) in filter


def test_one_at_a_time_and_in_bulk_make_the_same_answers(kind):
    """Single and bulk adds, single and bulk checks agree on members and strangers."""
    one, many = kind.make(N), filled(kind)
    for number in range(N):
        one.add(key(number))
    probes = np.arange(-N, 4 * N)

    singly = [many.might_contain(key(number)) for number in probes.tolist()]

    assert many.contains_many(probes).tolist() == singly
    assert one.contains_many(probes)[N : 2 * N].all()


def test_strangers_pass_at_most_at_the_promised_rate(kind):
    """Of 100,000 keys that were never added at most the promised share passes, four standard deviations allowed."""
    filter = filled(kind)
    probes = 100_000
    passed = filter.contains_many(np.arange(10 * N, 10 * N + probes)).sum()

    assert passed <= filter.error_rate * probes + 4 * (filter.error_rate * probes) ** 0.5


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        np.array,
        lambda numbers: np.array(numbers, np.uint32),
        lambda numbers: [key(number) for number in numbers],
        lambda numbers: (key(number) for number in numbers),
        lambda numbers: b"".join(map(key, numbers)),
        lambda numbers: bytearray(b"".join(map(key, numbers))),
        lambda numbers: memoryview(np.array(numbers)),
    ],
    ids=["list", "tuple", "iterator", "array", "uint32", "bytes", "generator", "buffer", "bytearray", "memoryview"],
)
def test_keys_come_in_every_form(kind, form):
    """Integers, bytes, arrays and raw buffers, listed or on the way, are the same keys."""
    filter = kind.make(N)
    filter.add_many(form(list(range(100))))

    assert filter.contains_many(form(list(range(100)))).all()
    assert all(filter.might_contain(key(number)) for number in range(100))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([b"short"], "a key of 5 bytes in a filter for keys of 8 bytes"),
        (b"123456789", "a buffer of 9 bytes is not a whole number of keys of 8 bytes"),
        (np.array([1.5]), "an array of float64"),
        (np.array([[1]]), r"shape \(1, 1\)"),
        ([1 << 63], "integers of at most 64 bits"),
        ([1, b"x"], "integers of at most 64 bits"),
    ],
)
def test_keys_of_another_shape_are_refused(kind, keys, message):
    """The message says what came and what is needed; the filter is as it was."""
    filter = kind.make(N)
    for method in (filter.add_many, filter.contains_many):
        with pytest.raises(InvalidShape, match=message):
            method(keys)

    assert filter.stats().size == 0


def test_nothing_is_a_fine_number_of_keys(kind):
    """An empty batch changes nothing and has an empty answer."""
    filter = kind.make(N)
    for nothing in ([], b"", np.array([], np.int64), iter(())):
        filter.add_many(nothing)

    assert filter.contains_many([]).shape == (0,)
    assert filter.stats().size == 0


def test_discard_is_a_capability_to_ask_for(kind):
    """``supports_discard`` tells whether ``discard`` works; where it does not, it says so and changes nothing."""
    filter = filled(kind)
    if not filter.supports_discard:
        with pytest.raises(DiscardUnsupported, match="check supports_discard"):
            filter.discard(key(1))
        assert filter.might_contain(key(1))
        return

    assert all(filter.discard(key(number)) for number in range(N // 2))
    assert filter.contains_many(np.arange(N // 2, N)).all()
    assert filter.contains_many(np.arange(N // 2)).mean() < 0.02
    for number in range(N // 2, N):
        filter.discard(key(number))
    assert filter.stats().size == 0


def test_clear_empties(kind):
    filter = filled(kind)
    filter.clear()

    assert not filter.contains_many(np.arange(N)).any()
    filter.add(key(1))
    assert filter.might_contain(key(1))


def test_stats_are_near_the_truth(kind):
    """Size within 5% (false positives and collisions count as one), the rate below the promise, bytes as they are."""
    filter = filled(kind)
    stats = filter.stats()

    assert stats.kind == filter.kind
    assert stats.capacity == filter.capacity
    assert abs(stats.size - N) <= 0.05 * N
    assert 0 <= stats.fill <= 1
    tables = 2 if kind.name == "scalable-cuckoo" else 1  # each adds its own rate
    assert 0 <= stats.expected_error_rate <= 1.1 * stats.error_rate * tables
    assert stats.bytes > 0


def test_a_copy_lives_its_own_life(kind):
    filter = filled(kind)
    twin = filter.copy()

    assert twin == filter
    twin.clear()
    assert twin != filter
    assert filter.might_contain(key(1))


@pytest.mark.parametrize("secret", [b"", SECRET], ids=["public", "secret"])
def test_bytes_stream_and_json_are_the_same_filter(kind, secret):
    """Each form is read back equal, with the secret that is not in it."""
    filter = filled(kind, secret=secret)
    stream = io.BytesIO(b"before" + b"\0" * 10)
    stream.seek(6)
    written = filter.dump(stream)
    stream.truncate()
    stream.write(b"after")
    stream.seek(6)

    assert kind.cls.from_bytes(filter.to_bytes(), secret) == filter
    assert kind.cls.load(stream, secret) == filter
    assert stream.read() == b"after"
    assert kind.cls.from_json(filter.to_json(), secret) == filter
    assert written == len(filter.to_bytes())
    assert not secret or secret not in filter.to_bytes()


def test_a_stream_need_not_say_how_much_it_wrote(kind):
    """Such as an HttpResponse."""
    filter, written = filled(kind), []

    size = filter.dump(SimpleNamespace(write=lambda piece: written.append(bytes(piece))))

    assert kind.cls.from_bytes(b"".join(written)) == filter
    assert size == sum(map(len, written))


def test_a_filter_read_back_goes_on(kind):
    """What was read takes more keys, and still has the old ones."""
    filter = kind.cls.from_bytes(filled(kind).to_bytes())
    filter.add_many(np.arange(N, N + 50))
    filter.add(key(N + 50))

    assert filter.contains_many(np.arange(N + 51)).all()


def test_another_secret_is_not_taken(kind):
    """With another secret every answer would be wrong, so the bytes are refused."""
    data = filled(kind, secret=SECRET).to_bytes()
    for wrong in (b"", b"another secret, as long", b"short"):
        with pytest.raises(CorruptFilter, match=r"built with another secret|a secret of 5 bytes"):
            kind.cls.from_bytes(data, wrong)


def test_another_kind_is_not_taken(kind):
    """A class reads its own kind only."""
    from .kinds import KINDS

    for other in KINDS:
        if other.cls.kind != kind.cls.kind:
            with pytest.raises(CorruptFilter, match=re.escape(f"a {other.cls.kind} filter")):
                kind.cls.from_bytes(other.make(10).to_bytes())


def test_json_that_contradicts_its_frame_is_refused(kind):
    """The figures beside the frame are for people; they have to be those of the frame."""
    data = json.loads(kind.make(100).to_json())
    for text in (
        json.dumps(data | {"capacity": 7}),
        json.dumps({**data, "frame": data["frame"][:-8]}),
        json.dumps({**data, "frame": "%%%"}),
        json.dumps({"kind": "bloom"}),
        "[1, 2]",
        "{",
        "7",
        "[" * 100_000,
    ):
        with pytest.raises(CorruptFilter):
            kind.cls.from_json(text)


def test_a_stream_that_ends_or_is_too_long_is_refused(kind):
    """A cut stream is corrupt; one that announces more than ``max_bytes`` is refused before it is read."""
    data = kind.make(100)
    data.add(key(1))
    data = data.to_bytes()
    for end in (0, 10, 70, len(data) - 1):
        with pytest.raises(CorruptFilter, match="the stream ends after"):
            kind.cls.load(io.BytesIO(data[:end]))
    with pytest.raises(TooLarge, match=f"a frame of {len(data):,} bytes, over max_bytes=100"):
        kind.cls.load(io.BytesIO(data), max_bytes=100)
    with pytest.raises(CorruptFilter, match="not a filter: it starts with"):
        kind.cls.load(io.BytesIO(b"x" * 1_000))


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "7", None, (1 << 48) + 1])
def test_a_capacity_out_of_range_is_named(capacity):
    """Every kind refuses it with the value and the range."""
    from bloomguard import filters

    for cls in (
        filters.BloomFilter,
        filters.CountingBloomFilter,
        filters.CuckooFilter,
        filters.ScalableBloomFilter,
        filters.ScalableCuckooFilter,
    ):
        with pytest.raises(InvalidShape, match=re.escape(f"capacity is {capacity!r}")):
            cls(capacity)


@pytest.mark.parametrize("rate", [0, 1, -0.1, float("nan"), "x", 1e-16, None])
def test_a_rate_out_of_range_is_named(rate):
    from bloomguard import filters

    for cls in (
        filters.BloomFilter,
        filters.CountingBloomFilter,
        filters.CuckooFilter,
        filters.ScalableBloomFilter,
    ):
        with pytest.raises(InvalidShape, match=re.escape(f"error_rate is {rate!r}")):
            cls(100, rate)


def test_what_would_not_fit_is_refused_with_its_size():
    """Before anything is allocated: the capacity, the bytes it takes, the bytes there are, and the cure."""
    from bloomguard import filters

    for make in (
        lambda: filters.BloomFilter(1 << 44, 0.01),
        lambda: filters.CountingBloomFilter(1 << 44, 0.01),
        lambda: filters.CuckooFilter(1 << 44, 0.01),
        lambda: filters.ExactBitmap(0, (1 << 47) - 1),
        lambda: filters.BloomFilter(1_000_000, 0.01, max_bytes=1_000_000),
    ):
        with pytest.raises(TooLarge, match=r"take [\d,]+ bytes as a \w+ filter, over the limit of [\d,]+; lower"):
            make()
