"""A build cut into shards answers as one filter, for every kind that a store can hold."""

import random

import numpy as np
import pytest

from bloomguard.filters import CorruptFilter, InvalidShape, KeyHash, TooLarge
from bloomguard.filters.codec import Frame, Header
from bloomguard.filters.layout import Layout

SECRET = b"0123456789abcdef"
KINDS = {
    "bloom": {},
    "cuckoo": {},
    "bitmap": {"low": -50, "high": 19_999, "overflow": 1_000},
}


def key(number):
    return number.to_bytes(8, "little", signed=True)


def build(kind, shard_bytes=1 << 25, width=8, capacity=20_000, **options):
    layout = Layout.plan(
        key_hash=KeyHash(width, SECRET),
        capacity=capacity,
        error_rate=0.01,
        kind=kind,
        shard_bytes=shard_bytes,
        **(options or KINDS[kind]),
    )
    frames = [Frame.format(header, memoryview(bytearray(header.frame_bytes))) for header in layout.headers]
    return layout, frames, [layout.attach(frame) for frame in frames]


@pytest.fixture(params=[(kind, size) for kind in KINDS for size in (1 << 25, 1 << 11)], ids=str)
def built(request):
    return build(*request.param)


def test_a_planned_write_is_found_in_every_way(built):
    """``locate`` names the shard and the digest; what is written there is found by digest, by the checker, in bulk."""
    layout, frames, filters = built
    numbers = random.sample(range(-200, 25_000), 2_000)
    for number in numbers:
        shard, digest = layout.locate(key(number))
        frames[shard].write(filters[shard].writes(digest))
    check = layout.checker(filters)

    assert all(check(key(number)) for number in numbers)
    for number in numbers:
        shard, digest = layout.locate(key(number))
        assert filters[shard].might_contain_digest(digest)
    for shard, low, high in layout.locate_many(np.array(numbers)):
        assert filters[shard].contains_digests(low, high).all()
    for frame in frames:
        frame.verify()


def test_a_bulk_write_is_found_in_every_way(built):
    """What goes in by ``locate_many`` and ``add_digests`` is found by the scalar ways."""
    layout, _, filters = built
    numbers = random.sample(range(-200, 20_500), 15_000)
    for shard, low, high in layout.locate_many(np.array(numbers)):
        filters[shard].add_digests(low, high)
    check = layout.checker(filters)

    assert all(check(key(number)) for number in numbers)
    strangers = sorted(set(range(-2_000, 27_000)) - set(numbers))
    assert sum(check(key(number)) for number in strangers) / len(strangers) < 0.02


def test_a_shard_is_a_filter_of_its_own(built):
    """It answers its keys without the layout; so does one that is read again from its bytes."""
    layout, _, filters = built
    for number in range(-200, 25_000, 7):
        filters[layout.locate(key(number))[0]].add(key(number))
    again = [type(each).from_bytes(each.to_bytes(), SECRET) for each in filters]

    for number in range(-200, 25_000, 7):
        shard, digest = layout.locate(key(number))
        assert filters[shard].might_contain_digest(digest)
        assert again[shard].might_contain(key(number))


def test_every_shard_is_used_and_none_is_too_large():
    """Shards are at most of the size asked for, and keys fall to all of them."""
    for kind in KINDS:
        layout, _, _ = build(kind, 1 << 11)

        assert layout.header.shards > 1
        # The fullest shard's margin, the overflow, header and trailer; and the recent bits.
        assert layout.header.frame_bytes <= (1 << 11) + 2_000 + layout.header.recent_bytes
        shards = [shard for shard, _, _ in layout.locate_many(np.arange(40_000))]  # a bitmap has room for so many
        assert shards == list(range(layout.header.shards))


@pytest.mark.parametrize("capacity", [1_500, 200_000])
def test_recent_bits_have_room_for_an_eighth_of_the_keys(capacity):
    """When so many were added, 1% of the others look recent, and 6% at twice as many: ``docs/false-positives.md``."""
    layout, (frame,), _ = build("bloom", capacity=capacity)
    room = max(10_000, capacity // 8)
    lows, _ = layout.key_hash.digests(np.arange(2 * room))
    others = [layout.recent_positions(layout.key_hash.digest(key(number))) for number in range(-10_000, 0)]

    shares = []
    for added in (lows[: room // 3], lows[:room], lows):
        frame.write_bits(layout.recent_positions_many(added))
        shares.append(sum(map(frame.has_bits, others)) / len(others))
    assert shares == pytest.approx([0.0005, 0.01, 0.056], abs=0.005)


def test_a_layout_is_known_by_its_first_header(built):
    """``Layout.of`` the first header puts every key where the plan put it."""
    layout, _, _ = built
    again = Layout.of(Header.unpack(layout.header.pack()), layout.key_hash)

    assert again.headers == layout.headers
    assert again.kind == layout.kind
    for number in range(-100, 25_000, 97):
        assert again.locate(key(number)) == layout.locate(key(number))


def test_only_the_first_header_describes_a_layout():
    layout, _, _ = build("bloom", 1 << 12)

    with pytest.raises(CorruptFilter, match="starts with shard 1 of"):
        Layout.of(layout.headers[1], layout.key_hash)


def test_a_bitmap_drops_no_key_outside_its_range():
    """Keys below ``low`` and above ``high`` go to the overflow of a shard, and are found."""
    layout, _, filters = build("bitmap", 1 << 12)
    outside = [-(1 << 63), -51, 20_500, 1 << 40, (1 << 63) - 1]
    for number in outside:
        shard, digest = layout.locate(key(number))
        filters[shard]._apply(filters[shard].writes(digest))
    check = layout.checker(filters)

    assert all(check(key(number)) for number in outside)
    assert not any(check(key(number)) for number in range(-50, 20_000))


def test_a_guard_that_discards_gets_wide_fingerprints():
    """A cuckoo build has 32-bit fingerprints unless told otherwise."""
    layout, _, _ = build("cuckoo")
    narrow, _, _ = build("cuckoo", fingerprint_bits=16)

    assert layout.header.parameters[0] == 32
    assert narrow.header.parameters[0] == 16
    assert layout.filter_class.supports_discard


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "bitmap"}, "low is None and high is None"),
        ({"kind": "bitmap", "low": 5, "high": 4}, r"the range \[5, 4\] is empty"),
        ({"kind": "bitmap", "low": 1, "high": 9, "key_hash": KeyHash(16)}, "keys of width 16; an exact bitmap takes"),
        ({"capacity": 0}, "capacity is 0"),
        ({"error_rate": 2}, "error_rate is 2"),
    ],
)
def test_a_plan_that_makes_no_sense_names_the_value(wrong, message):
    plan = {"key_hash": KeyHash(8), "capacity": 10, "error_rate": 0.01} | wrong
    with pytest.raises(InvalidShape, match=message):
        Layout.plan(**plan)


def test_a_plan_that_would_not_fit_is_refused_with_its_size():
    """Nothing is allocated, not even the list of shards."""
    with pytest.raises(TooLarge, match=r"take 1,\d{3},\d{3},\d{3},\d{3} bytes in 41,\d{3} shards"):
        Layout.plan(key_hash=KeyHash(8), capacity=1 << 40, error_rate=0.01)


@pytest.mark.parametrize("kind", ["counting", "scalable"])
def test_a_kind_that_no_store_holds_is_no_layout(kind):
    """A frame has a known kind, but no store holds it as shards."""
    header = Header(kind=kind, tag=1, capacity=1, error_rate=0.01, body_bytes=0, parameters=(), recent=(2, 3, 5))
    with pytest.raises(CorruptFilter, match=f"kind is '{kind}'; there are bitmap, bloom, cuckoo"):
        Layout.of(header, KeyHash(8))
