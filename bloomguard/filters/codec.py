"""The format of a filter's bytes in memory, in a file and in Redis: a checksummed *frame*.

    magic 8 | tag 8 | version, kind, width, parameters: u16 each | shard, shards: u32 each | key id u64 |
    capacity u64 | error rate f64 | body bytes u64 | recent: 3 x u32 | parameters u64 each |
    CRC-32 of all this | padding to 64
    body
    recent bits
    Adler-32 of the two u32 | dirty u32 | tag 8

All numbers are big-endian. The tag is 63 random bits and a zero bit. It is the same at both ends and in every frame of
one build, so a reader detects a frame that was truncated, overwritten or made by another build. Each add changes the
body; Adler-32 is the checksum of the standard library that can be updated without reading the rest of the body.

The recent bits are a small Bloom filter of three partitions, of the keys that were added since the build began. Frames
that are not part of a store's generation have none.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO
from zlib import adler32, crc32

from bitarray import bitarray

from ..exceptions import CorruptFilter, TooLarge
from .bulk import np, set_at, test_at

if TYPE_CHECKING:
    from .bulk import I64

MAGIC = b"\x89bloomg\n"  # not ASCII, ends in a newline: a transfer in text mode damages it visibly
VERSION = 3
KINDS = {
    "bloom": 1,
    "counting": 2,
    "spectral": 3,
    "cuckoo": 4,
    "bitmap": 5,
    "scalable": 6,
    "scalable-cuckoo": 7,
    "rotating": 8,
}
MAX_PARAMETERS = 80
MAX_SHARDS = 1 << 16
RECENT_HASHES = 3

_FIXED = struct.Struct(">8sQHHHHIIQQdQ3I")
_CRC = struct.Struct(">I")
_TRAILER = struct.Struct(">IIQ")
_NAMES = {number: name for name, number in KINDS.items()}
_ADLER = 65521
_DIRTY_AT = 7  # of the byte in the trailer that is 1 while a frame is dirty
_PIECE = 1 << 20  # bytes to read from a stream at once

TRAILER_BYTES = _TRAILER.size
TAG_OFFSET = 8  # of the first tag, for stores that check it with a bit command


def new_tag() -> int:
    """Return a random tag of 63 bits, never 0: a missing Redis key reads as 0."""
    return secrets.randbits(63) or 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a frame: all that a reader with the secret needs to check the frame and read its body.

    ``parameters`` are up to 80 integers that the kind defines. ``key_id`` identifies the secret and the definition of
    the keys that the frame was built with. ``capacity`` counts keys, ``body_bytes`` bytes. ``recent`` are the sizes in
    bits of the three partitions of the recent bits, empty if there are none.
    """

    kind: str
    tag: int
    capacity: int
    error_rate: float
    body_bytes: int
    parameters: tuple[int, ...]
    width: int | None = None
    key_id: int = 0
    shard: int = 0
    shards: int = 1
    recent: tuple[int, ...] = ()

    @property
    def body_offset(self) -> int:
        """Number of bytes before the body, a multiple of 64."""
        return -(-_head_bytes(len(self.parameters)) // 64) * 64

    @property
    def frame_bytes(self) -> int:
        """Size of a whole frame in bytes: header, body, recent bits and trailer."""
        return self.body_offset + self.body_bytes + self.recent_bytes + _TRAILER.size

    @property
    def recent_bytes(self) -> int:
        """Size of the recent bits in bytes, padded to a multiple of 8 as in a Bloom filter."""
        return -(-sum(-(-size // 8) for size in self.recent) // 8) * 8

    def pack(self) -> bytes:
        """Return the first :attr:`body_offset` bytes of the frame."""
        head = _FIXED.pack(
            MAGIC, self.tag << 1, VERSION, KINDS[self.kind], self.width or 0, len(self.parameters),
            self.shard, self.shards, self.key_id, self.capacity, self.error_rate, self.body_bytes,
            *(self.recent or (0,) * RECENT_HASHES),
        )  # fmt: skip
        head += struct.pack(f">{len(self.parameters)}Q", *self.parameters)
        return (head + _CRC.pack(crc32(head))).ljust(self.body_offset, b"\0")

    @classmethod
    def unpack(cls, data: memoryview | bytes | bytearray) -> Header:
        """Read the header at the start of ``data``; allocates no memory for the body. Raises :class:`CorruptFilter`."""
        if len(data) < _FIXED.size:
            raise CorruptFilter(f"{len(data)} bytes are too few for a filter")
        (magic, tag, version, kind, width, count, shard, shards, key_id, capacity, error_rate, body_bytes, *recent) = (
            _FIXED.unpack_from(data)
        )
        if magic != MAGIC:
            raise CorruptFilter(f"not a filter: it starts with {bytes(data[:8])!r}")
        if version != VERSION:
            raise CorruptFilter(
                f"format version {version}; this release reads version {VERSION}: build it again, for a guard with "
                "rebuild_filter"
            )
        end = _head_bytes(count) - _CRC.size
        if count > MAX_PARAMETERS or len(data) < _head_bytes(count):
            raise CorruptFilter(f"{count} parameters in {len(data)} bytes")
        if _CRC.unpack_from(data, end)[0] != crc32(data[:end]):
            raise CorruptFilter("the header's checksum is wrong")
        if kind not in _NAMES or width not in (0, 8, 16) or tag & 1 or not shard < shards <= MAX_SHARDS:
            raise CorruptFilter(f"unknown header values: kind {kind}, width {width}, shard {shard} of {shards}")
        if any(recent) and (min(recent) < 2 or len(set(recent)) < RECENT_HASHES):
            raise CorruptFilter(f"recent bits in partitions of {recent}; three distinct sizes of 2 or more are needed")
        return cls(
            kind=_NAMES[kind],
            tag=tag >> 1,
            capacity=capacity,
            error_rate=error_rate,
            body_bytes=body_bytes,
            parameters=struct.unpack_from(f">{count}Q", data, _FIXED.size),
            width=width or None,
            key_id=key_id,
            shard=shard,
            shards=shards,
            recent=tuple(recent) if any(recent) else (),
        )


class Frame:
    """A header, body, recent bits and trailer in one writable or read-only buffer, which is not copied.

    Writers hold a lock. Readers of the body and of the recent bits need none. Bits are numbered from the body's first
    bit; the recent bits follow the body's.
    """

    def __init__(self, header: Header, buffer: memoryview) -> None:
        self.header = header
        self.buffer = buffer
        self._end = buffer[-_TRAILER.size :]
        self._data = buffer[header.body_offset : header.body_offset + header.body_bytes + header.recent_bytes]
        self._bits = bitarray(buffer=self._data, endian="big")
        self._size = len(self._data)
        self.body = self._data[: header.body_bytes]

    @classmethod
    def format(cls, header: Header, buffer: memoryview) -> Frame:
        """Make a zeroed buffer of :attr:`Header.frame_bytes` bytes an empty frame: trailer first, header last."""
        frame = cls(header, buffer)
        frame._set_trailer(frame._size % _ADLER << 16 | 1, 0)  # Adler-32 of as many zeros
        buffer[: header.body_offset] = header.pack()
        return frame

    @classmethod
    def open(cls, buffer: memoryview) -> Frame:
        """Check the header, the length and both tags, but not the body. Raises :class:`CorruptFilter`."""
        header = Header.unpack(buffer)
        if len(buffer) != header.frame_bytes:
            raise CorruptFilter(f"{len(buffer)} bytes, but the header declares {header.frame_bytes}")
        if bytes(buffer[_head_bytes(len(header.parameters)) : header.body_offset]).strip(b"\0"):
            raise CorruptFilter("the header's padding is not empty")
        frame = cls(header, buffer)
        if frame._trailer()[2] != header.tag << 1:
            raise CorruptFilter("the tags at the two ends differ: the frame is truncated, or mixed with another build")
        return frame

    def _trailer(self) -> tuple[int, int, int]:
        return _TRAILER.unpack(self._end)

    def _set_trailer(self, checksum: int, dirty: int) -> None:
        # Not by `pack_into`, which zeroes the bytes first: a kill, or a reader meanwhile, would find no tag.
        self._end[:] = _TRAILER.pack(checksum, dirty, self.header.tag << 1)

    @property
    def dirty(self) -> bool:
        """Whether a writer stopped halfway: its bytes are valid, but the checksum does not cover them."""
        return self._trailer()[1] != 0

    def verify(self) -> None:
        """Compare the data with its checksum (one pass, 0.4 ms per MiB). Raises :class:`CorruptFilter`."""
        checksum, dirty, _ = self._trailer()
        if dirty > 1 or (not dirty and checksum != adler32(self._data)):
            raise CorruptFilter("the body's checksum is wrong")

    def begin(self) -> None:
        """Mark the frame dirty before a bulk change: if the writer dies, its bits are valid, the checksum is not."""
        self._set_trailer(self._trailer()[0], 1)

    def seal(self) -> None:
        """Recompute the checksum and clear the dirty mark."""
        self._set_trailer(adler32(self._data), 0)

    def write(self, writes: Iterable[tuple[int, bytes]]) -> None:
        """Apply changes, ``(offset from the body's start, bytes)`` in the given order, and update the checksum."""
        checksum = self._start()
        low, high, size, data = checksum & 0xFFFF, checksum >> 16, self._size, self._data
        for offset, change in writes:
            for at, new in enumerate(change, offset):
                delta = new - data[at]
                low += delta
                high += delta * (size - at)
            data[offset : offset + len(change)] = change
        self._finish((high % _ADLER) << 16 | low % _ADLER)

    def add_bits(self, positions: Iterable[int]) -> None:
        """Set a few bits and update the checksum."""
        # Hot path: each INSERT adds one key, so no calls for each bit.
        bits, size, checksum = self._bits, self._size, -1
        low = high = 0
        for position in positions:
            if not bits[position]:
                if checksum < 0:
                    checksum = self._start()
                bits[position] = 1
                value = 128 >> (position & 7)
                low += value
                high += value * (size - (position >> 3))
        if checksum >= 0:
            low, high = (low + (checksum & 0xFFFF)) % _ADLER, (high + (checksum >> 16)) % _ADLER
            self._finish(high << 16 | low)

    def has_bits(self, positions: list[int]) -> bool:
        """Return whether all bits at ``positions`` are set."""
        return self._bits[positions].all()

    def write_bits(self, positions: I64) -> None:
        """Set many bits and update the checksum."""
        checksum = self._start()
        cells = np.frombuffer(self._data, np.uint8)
        ordered = np.sort(positions)
        offsets, masks = ordered >> 3, (128 >> (ordered & 7)).astype(np.uint8)
        first = np.ones(len(offsets), bool)  # of the bits that share a byte
        np.not_equal(offsets[1:], offsets[:-1], out=first[1:])
        starts = np.flatnonzero(first)
        offsets = offsets[starts]
        values = cells[offsets] | np.bitwise_or.reduceat(masks, starts)
        deltas = values.astype(np.int64) - cells[offsets]
        low = (checksum & 0xFFFF) + int(deltas.sum())
        high = (checksum >> 16) + int((deltas * ((len(cells) - offsets) % _ADLER)).sum())
        cells[offsets] = values
        self._finish((high % _ADLER) << 16 | low % _ADLER)

    def set_bits(self, positions: I64) -> None:
        """Set many bits, after :meth:`begin` and before :meth:`seal`."""
        set_at(np.frombuffer(self._data, np.uint8), positions)

    def has_many_bits(self, positions: I64) -> bool:
        """Return whether all bits of many are set."""
        return bool(test_at(np.frombuffer(self._data, np.uint8), positions).all())

    def _start(self) -> int:
        """Mark the frame dirty; returns the checksum before the change."""
        checksum, dirty, _ = _TRAILER.unpack(self._end)
        if dirty:  # a writer died here; each byte that it wrote is complete and intended
            self.seal()
            checksum = self._trailer()[0]
        self._end[_DIRTY_AT] = 1
        return int(checksum)

    def _finish(self, checksum: int) -> None:
        """Store the checksum after the change, then clear the mark: a kill in between leaves a dirty frame."""
        self._end[: _CRC.size] = _CRC.pack(checksum)
        self._end[_DIRTY_AT] = 0


def _head_bytes(parameters: int) -> int:
    return _FIXED.size + 8 * parameters + _CRC.size


def read(stream: BinaryIO, max_bytes: int) -> bytearray:
    """Read the bytes of one frame from a stream; allocates only what arrives, not what the header declares.

    Raises :class:`CorruptFilter`, and :class:`TooLarge` for a frame of more than ``max_bytes``.
    """
    data = bytearray()

    def read_until(end: int) -> None:
        while len(data) < end:
            piece = stream.read(min(_PIECE, end - len(data)))
            if not piece:
                raise CorruptFilter(f"the stream ends after {len(data)} bytes of {end}")
            data.extend(piece)

    read_until(_FIXED.size)
    _, _, _, _, _, count, *_ = _FIXED.unpack_from(data)
    read_until(_head_bytes(min(count, MAX_PARAMETERS)))
    size = Header.unpack(data).frame_bytes
    if size > max_bytes:
        raise TooLarge(f"a frame of {size:,} bytes, over max_bytes={max_bytes:,}")
    read_until(size)
    return data


def trailer(header: Header, body: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes that follow the body in a frame."""
    return _TRAILER.pack(adler32(body), 0, header.tag << 1)


def decode(data: bytes | bytearray | memoryview) -> Frame:
    """Check a whole frame, including the body, and return it. Raises :class:`CorruptFilter` and nothing else."""
    frame = Frame.open(memoryview(data).cast("B"))
    if frame.dirty:
        raise CorruptFilter("the frame was copied while a writer was changing it")
    frame.verify()
    return frame
