"""Damaged bytes: every one is told, none is trusted, nothing is allocated by what they claim."""

import random
import struct
import sys
import tracemalloc
from pathlib import Path
from zlib import adler32, crc32

import numpy as np
import pytest

import bloomguard
from bloomguard.filters import BloomFilter, CorruptFilter, KeyHash, codec
from bloomguard.filters.codec import Frame, Header
from bloomguard.filters.layout import Layout
from tests.support import version_0_1

from .kinds import KINDS, SECRET, key


def frame_of(kind, count=200):
    filter = kind.make(count, secret=SECRET)
    filter.add_many(np.arange(count))
    return filter.to_bytes()


def sealed(data):
    """``data`` with the checksums of its header and body put right, so that what they guard is looked at."""
    data = bytearray(data)
    count = struct.unpack_from(">H", data, 22)[0]
    end = codec._FIXED.size + 8 * count
    if end + 4 <= len(data):
        data[end : end + 4] = struct.pack(">I", crc32(data[:end]))
        body = -(-(end + 4) // 64) * 64
        if body + 16 <= len(data):
            data[-16:-12] = struct.pack(">I", adler32(data[body:-16]))
    return bytes(data)


def mutated(data, rng):
    """One to three damages: a bit, a byte, a field of the header, a piece cut out, doubled or moved, an end."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                at = 8 * rng.randrange(16)
                value = rng.choice([0, 1, 2, 7, 255, 1 << 31, 1 << 32, 1 << 48, 1 << 63, (1 << 64) - 1])
                data[at : at + 8] = value.to_bytes(8, "big")
            case 3:
                at = 2 * rng.randrange(32)
                data[at : at + 2] = rng.choice([b"\0\0", b"\0\1", b"\0\x10", b"\xff\xff", b"\x7f\xf8"])
            case 4:
                del data[at : at + rng.randint(1, 64)]
            case 5:
                data[at:at] = data[at : at + rng.randint(1, 64)]
            case 6:
                del data[at:]
        if len(data) < 128:
            break
    return bytes(data)


def hold_against_damage(kind, rounds, seed):
    """Read ``rounds`` damaged frames: refused as corrupt, or whole again, in little memory."""
    rng = random.Random(seed)
    whole = frame_of(kind)
    refused = 0
    tracemalloc.start()
    try:
        for number in range(rounds):
            data = mutated(whole, rng)
            if number % 2:
                data = sealed(data) if len(data) >= codec._FIXED.size else data
            try:
                filter = kind.cls.from_bytes(data, SECRET)
            except CorruptFilter:
                refused += 1
                continue
            assert number % 2 or data == whole
            filter.might_contain(key(1))
            filter.contains_many([1, 2])
            filter.stats()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused > rounds // 2
    assert peak < 20 * len(whole) + (4 << 20)


def test_damaged_frames_are_refused_and_nothing_else(kind):
    """Mutated bytes, half of them with right checksums: ``CorruptFilter``, or a filter that answers."""
    hold_against_damage(kind, 300, seed=kind.name)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_frames(kind):
    """The same at full length: 100,000 mutated frames over all kinds."""
    hold_against_damage(kind, 100_000 // len(KINDS) + 1, seed=f"{kind.name} at length")


def test_no_write_passes_through_a_state_that_is_not_meant():
    """``pack_into`` zeroes the bytes first: a kill, or another process meanwhile, would find no tag."""
    sources = Path(bloomguard.__file__).parent.rglob("*.py")
    assert not [path for path in sources if ".pack_into(" in path.read_text()]


def test_a_writer_may_be_killed_at_any_line():
    """The mark is set before the first byte, and cleared after the checksum: what is left is trusted, and mended."""
    frame = codec.decode(bytearray(frame_of(KINDS[0])))
    seen = []

    def look(caller, event, _):
        if caller.f_code.co_filename == codec.__file__:
            left = Frame.open(memoryview(bytes(frame.buffer)))
            left.verify()
            seen.append(left.dirty)
            return look
        return None

    before = sys.gettrace()
    for change in (
        lambda: frame.add_bits([3, 77, 500]),
        lambda: frame.write([(25, b"\xff\x81"), (29, b"\x13")]),
        lambda: frame.write_bits(np.array([8, 9, 130])),
    ):
        sys.settrace(look)
        try:
            change()
        finally:
            sys.settrace(before)

    assert frame.has_bits([3, 77, 500, 8, 9, 130])
    assert not frame.dirty
    assert {True, False} == set(seen)


def test_every_single_flipped_bit_is_noticed():
    """No bit of a frame is without a guard."""
    whole = frame_of(KINDS[0], 20)
    for at in range(8 * len(whole)):
        data = bytearray(whole)
        data[at >> 3] ^= 1 << (at & 7)
        with pytest.raises(CorruptFilter):
            KINDS[0].cls.from_bytes(data, SECRET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": b"PK\3\4abcd"}, "not a filter: it starts with b'PK"),
        ({"version": 2}, "format version 2; this release reads version 3: build it again"),
        ({"kind": 99}, "kind 99"),
        ({"width": 9}, "width 9"),
        ({"count": 81}, "81 parameters"),
        ({"shard": 5}, "shard 5 of 1"),
        ({"shards": 1 << 31}, "shard 0 of 2147483648"),
        ({"capacity": 0}, "capacity is 0"),
        ({"error_rate": float("nan")}, "error_rate is nan"),
        ({"body_bytes": 1 << 60}, "the header declares"),
        ({"key_id": 1}, "another secret"),
        ({"recent 1": 8}, "recent bits in partitions of"),
        ({"recent 0": 8, "recent 1": 9, "recent 2": 9}, "recent bits in partitions of"),
        ({"recent 0": 8, "recent 1": 9, "recent 2": 11}, "the header declares"),
    ],
)
def test_a_header_that_lies_is_told_what_is_wrong(change, message):
    """Right checksums, wrong values: each is named."""
    names = ["magic", "tag", "version", "kind", "width", "count", "shard", "shards", "key_id", "capacity", "error_rate"]
    names += ["body_bytes", "recent 0", "recent 1", "recent 2"]
    data = bytearray(frame_of(KINDS[0]))
    fields = dict(zip(names, codec._FIXED.unpack_from(data))) | change
    codec._FIXED.pack_into(data, 0, *fields.values())

    with pytest.raises(CorruptFilter, match=message):
        KINDS[0].cls.from_bytes(sealed(data), SECRET)


def test_a_file_of_version_0_1_is_refused_and_told_how_to_build_it_again():
    """All of it is sound but its format: it is no damage, and ``rebuild_filter`` is what helps."""
    expected = "format version 1; this release reads version 3: build it again, for a guard with rebuild_filter"
    with pytest.raises(CorruptFilter, match=expected):
        BloomFilter.from_bytes(version_0_1.bloom_filter())
    with pytest.raises(CorruptFilter, match=expected):
        Frame.open(memoryview(version_0_1.bloom_filter()))


def test_an_announced_size_allocates_nothing():
    """A header of a petabyte costs no memory to refuse, with the layout of all its shards."""
    header = Header(kind="bloom", tag=1, capacity=10, error_rate=0.01, body_bytes=1 << 50, parameters=(1 << 47,) * 64)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFilter):
            codec.decode(header.pack() + b"\0" * 1_000)
        with pytest.raises(CorruptFilter, match="shard 0 of 70000"):
            Layout.of(Header.unpack(Header(**{**header.__dict__, "shards": 70_000}).pack()), KeyHash())
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_writes_keep_the_checksum_true():
    """After any writes the frame verifies without a pass over its body; a damaged body does not."""
    rng = random.Random(1)
    header = Header(kind="bloom", tag=7, capacity=100, error_rate=0.01, body_bytes=70_000, parameters=(2,))
    frame = Frame.format(header, memoryview(bytearray(header.frame_bytes)))
    for _ in range(300):
        frame.write((rng.randrange(70_000 - 4), rng.randbytes(rng.choice([1, 4]))) for _ in range(5))
        frame.verify()
    assert codec.decode(bytes(frame.buffer)).header == header

    frame.body[5] ^= 1
    with pytest.raises(CorruptFilter, match="the body's checksum is wrong"):
        frame.verify()


def test_a_writer_that_died_is_seen_and_made_good():
    """A frame left dirty still verifies as far as it can, is not decoded, and is whole after the next write."""
    header = Header(kind="bloom", tag=7, capacity=100, error_rate=0.01, body_bytes=64, parameters=(2,))
    frame = Frame.format(header, memoryview(bytearray(header.frame_bytes)))

    def dies():
        yield 0, b"\1"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        frame.write(dies())
    assert frame.dirty
    frame.verify()
    with pytest.raises(CorruptFilter, match="copied while a writer was changing it"):
        codec.decode(bytes(frame.buffer))
    frame.write([(1, b"\2")])
    assert not frame.dirty
    assert bytes(codec.decode(bytes(frame.buffer)).body[:2]) == b"\1\2"


def test_a_frame_of_two_builds_is_refused():
    """Head and tail have to carry the same tag, and the length has to be the one announced."""
    header = Header(kind="bloom", tag=7, capacity=100, error_rate=0.01, body_bytes=64, parameters=(2,))
    data = b"".join([header.pack(), bytes(64), codec.trailer(header, bytes(64))])
    other = b"".join(
        [
            Header(**{**header.__dict__, "tag": 8}).pack(),
            bytes(64),
            codec.trailer(Header(**{**header.__dict__, "tag": 8}), bytes(64)),
        ]
    )

    with pytest.raises(CorruptFilter, match="the tags at the two ends differ"):
        codec.decode(data[:-16] + other[-16:])
    with pytest.raises(CorruptFilter, match="bytes, but the header declares"):
        codec.decode(data + b"\0")
    with pytest.raises(CorruptFilter, match="the header's padding is not empty"):
        codec.decode(data[: header.body_offset - 1] + b"x" + data[header.body_offset :])


def test_tags_are_never_zero():
    """A missing key of a server reads as 0, so 0 would prove nothing."""
    assert all(0 < codec.new_tag() < 1 << 63 for _ in range(1_000))
