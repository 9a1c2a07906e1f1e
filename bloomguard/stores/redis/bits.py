"""Redis commands for Bloom filters and exact bitmaps: one ``BITFIELD`` reads or sets the bits of many keys.

Bit commands cannot update a checksum, so frames on a server are marked as having an unfinished write, which means that
their checksum is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ...filters import CorruptFilter
from ...filters.bloom import BloomShape
from ...filters.bulk import np
from ...filters.codec import TAG_OFFSET
from ...filters.hashing import MASK60
from ...filters.layout import Layout
from .commands import Words

if TYPE_CHECKING:
    from ...filters.bulk import U64

#: Decode the replies to a batch into one answer per key; raises :class:`CorruptFilter`.
Answers = Callable[[Sequence[Any]], list[bool]]
#: Check by the replies that a change was made; raises :class:`CorruptFilter`.
CheckReplies = Callable[[Sequence[Any]], None]

_BITS = 2_000  # bits that one command sets or reads
_FEW = 100  # bits
_BIT_BYTES = 36  # bytes of a command for each bit that it sets
_MOST_IMAGE_BYTES = 1 << 20  # other clients wait for some 2 ms
_TAG_BYTES = 8
_TAG_WORDS = 8  # words of a command that reads only the two tags


#: A ``BITFIELD`` subcommand on one bit: its number of words, and the encoded words before and after the bit's offset.
Operation = tuple[int, bytes, bytes]


def encode(*each: object) -> bytes:
    """Encode words of a command in the Redis protocol."""
    return b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in (str(one).encode() for one in each))


GET: Operation = (3, encode("GET", "u1"), b"")
_SET: Operation = (4, encode("SET", "u1"), encode(1))


class BitFields:
    """``BITFIELD`` commands to the shards with these ``keys``; each command reads both tags of a shard first.

    They are encoded here, which takes a third of the time of redis-py's encoder.
    """

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        self._keys = keys
        self._tag = layout.tag
        self.body_bit = 8 * layout.headers[0].body_offset
        tags = ("GET", "u63", 8 * TAG_OFFSET, "GET", "u63", 8 * (layout.frame_bytes - _TAG_BYTES))
        self._starts = [encode("BITFIELD", key, *tags) for key in keys]

    def command(self, shard: int, each: Operation = GET, positions: Sequence[int] = ()) -> bytes:
        """Return a command that reads both tags of a shard and does ``each`` at the bits ``positions`` of its body."""
        first = self.body_bit
        places = [first + position for position in positions]
        digits = len(str(max(places))) if len(places) > _FEW else 0
        if digits and len(str(min(places))) < digits:
            digits = 0
        return self.joined(shard, each, len(positions), encode_each(each, places, digits))

    def joined(self, shard: int, each: Operation, count: int, bits: bytes) -> bytes:
        """Return a command that reads both tags of a shard and does ``each`` at the ``count`` places in ``bits``."""
        return b"*%d\r\n%s%s" % (_TAG_WORDS + each[0] * count, self._starts[shard], bits)

    def all_set(self, shard: int, reply: Any) -> bool:
        """Return whether all bits in the reply are set; raises :class:`CorruptFilter` unless its tags are right."""
        self.check_tags(shard, reply)
        return 0 not in reply

    def check_tags(self, shard: int, reply: Any) -> None:
        """Raise :class:`CorruptFilter` unless the tags in the reply are right."""
        if reply[0] != self._tag or reply[1] != self._tag:
            raise CorruptFilter(f"{self._keys[shard]} is missing or was replaced: evicted, flushed or deleted? Rebuild")


def encode_each(each: Operation, places: Sequence[int], digits: int = 0) -> bytes:
    """Encode one operation at many places; it takes half the time if all places have the given number of ``digits``."""
    _, before, after = each
    if digits:
        return b"%s$%d\r\n%%d\r\n%s" % (before, digits, after) * len(places) % tuple(places)
    return b"".join([b"%s$%d\r\n%d\r\n%s" % (before, len(str(place)), place, after) for place in places])


class Columns:
    """Batch checks of a Bloom filter, which read the bits of all keys in one partition after the other."""

    def __init__(self, shape: BloomShape, fields: BitFields) -> None:
        first = fields.body_bit
        self._partitions = [(first + start, size) for start, size in zip(shape.starts, shape.sizes)]
        self._digits = [
            len(str(start)) if len(str(start)) == len(str(start + size)) else 0 for start, size in self._partitions
        ]
        self._fields = fields
        self._keys = _BITS // len(shape.sizes)  # keys that one command checks

    def check_commands(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], Answers]:
        """See :meth:`Bits.check_commands`."""
        hashes = len(self._partitions)
        parts = [digests[start : start + self._keys] for start in range(0, len(digests), self._keys)]

        def answers(replies: Sequence[Any]) -> list[bool]:
            found: list[bool] = []
            for part, reply in zip(parts, replies):
                self._fields.check_tags(shard, reply)
                found += map(all, zip(*(reply[2 + n * len(part) : 2 + (n + 1) * len(part)] for n in range(hashes))))
            return found

        return [self._check_command(shard, part) for part in parts], answers

    def _check_command(self, shard: int, digests: Sequence[int]) -> bytes:
        lows = [digest & MASK60 for digest in digests]
        bits = [
            encode_each(GET, [start + low % size for low in lows], digits)
            for (start, size), digits in zip(self._partitions, self._digits)
        ]
        return self._fields.joined(shard, GET, len(bits) * len(lows), b"".join(bits))


class Bits:
    """Commands that check, add and set bits in the shards of a filter of plain bits."""

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        self.fields = BitFields(layout, keys)
        self._layout = layout
        self._keys = keys
        self._positions: Callable[[int], list[int]] = layout.shape.positions  # type: ignore[attr-defined]
        self._recent = layout.recent_positions
        if isinstance(layout.shape, BloomShape):
            self.check_commands = Columns(layout.shape, self.fields).check_commands  # type: ignore[method-assign]

    def check_command(self, shard: int, digest: int) -> bytes:
        """Return the command that checks one key."""
        return self.fields.command(shard, GET, self._positions(digest))

    def answer(self, shard: int, digest: int, reply: Any) -> bool:
        """Return whether the filter may contain the key; raises :class:`CorruptFilter`."""
        return self.fields.all_set(shard, reply)

    def check_commands(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], Answers]:
        """Return the commands that check many keys of one shard, and the function that decodes their replies."""
        each = [self._positions(digest) for digest in digests]

        def answers(replies: Sequence[Any]) -> list[bool]:
            bits: list[int] = []
            for reply in replies:
                self.fields.check_tags(shard, reply)
                bits += reply[2:]
            found, at = [], 0
            for positions in each:
                found.append(0 not in bits[at : at + len(positions)])
                at += len(positions)
            return found

        return self._commands(shard, GET, list(chain.from_iterable(each))), answers

    def add_commands(self, shard: int, digests: Sequence[int], once: bool = False) -> tuple[list[bytes], CheckReplies]:
        """Return the commands that add keys to one shard, and the function that checks their replies."""
        positions = [[*self._positions(digest), *self._recent(digest)] for digest in digests]
        return self.set_commands(shard, list(chain.from_iterable(positions)))

    def add_many_commands(
        self, shard: int, low: U64, high: U64, once: bool = False
    ) -> tuple[Sequence[Words], CheckReplies]:
        """Do the same as :meth:`add_commands` for many digests, given their low and high parts."""
        positions, size = self._layout.written_positions(low), self._layout.frame_bytes
        if _BIT_BYTES * len(positions) < size or size > _MOST_IMAGE_BYTES:
            return self.set_commands(shard, np.sort(positions).tolist())
        header, key = self._layout.headers[shard], self._keys[shard]
        image = np.zeros(size, np.uint8)  # without tags, so that a shard that is missing stays invalid
        masks = (128 >> (positions & 7)).astype(np.uint8)
        np.bitwise_or.at(image, header.body_offset + (positions >> 3), masks)

        sent = f"{key}:add:{token_hex(8)}"  # in the slot of the shard

        def check(replies: Sequence[Any]) -> None:
            _, _, removed, tags = replies
            self.fields.check_tags(shard, tags)
            if removed != 1:
                raise CorruptFilter(f"{sent} was evicted, perhaps before its bits were in {key}")

        words = ("SETRANGE", sent, 0, image.tobytes()), ("BITOP", "OR", key, key, sent), ("UNLINK", sent)
        return [*words, self.fields.command(shard)], check

    def set_commands(self, shard: int, positions: Sequence[int]) -> tuple[list[bytes], CheckReplies]:
        """Return the commands that set bits of one shard's body, and the function that checks their replies."""

        def check(replies: Sequence[Any]) -> None:
            for reply in replies:
                self.fields.check_tags(shard, reply)

        return self._commands(shard, _SET, positions), check

    def _commands(self, shard: int, each: Operation, positions: Sequence[int]) -> list[bytes]:
        parts = [positions[start : start + _BITS] for start in range(0, len(positions), _BITS)]
        return [self.fields.command(shard, each, part) for part in parts]
