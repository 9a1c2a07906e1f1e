"""Bloom filters and exact bitmaps in the words of a server: one ``BITFIELD`` reads or sets the bits of many keys.

Bit commands cannot keep a checksum up to date, so frames lie on a server with the mark of an unfinished write, which
says that the checksum does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from ..filters import CorruptFilter
from ..filters.bloom import BloomShape
from ..filters.codec import TAG_OFFSET
from ..filters.hashing import MASK60
from ..filters.layout import Layout

#: Makes answers, one a key, of the replies to a batch; raises :class:`CorruptFilter`.
Answers = Callable[[Sequence[Any]], list[bool]]
#: Sees by the replies that a change was made; raises :class:`CorruptFilter`.
See = Callable[[Sequence[Any]], None]

_BITS = 2_000  # set or read by one command
_TAG_BYTES = 8
_WORDS = 8  # of a command that reads the two tags


#: For each bit of a ``BITFIELD``: how many words there are, those before its position, and those after it.
Each = tuple[int, bytes, bytes]


def words(*each: object) -> bytes:
    """Words of a command as they go over the wire."""
    return b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in (str(one).encode() for one in each))


GET: Each = (3, words("GET", "u1"), b"")
_SET: Each = (4, words("SET", "u1"), words(1))


class Fields:
    """``BITFIELD`` commands to the shards that lie under ``keys``, each of which reads both of a shard's tags first.

    Put together here, in a third of the time that a client takes for any command.
    """

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        self._keys = keys
        self._tag = layout.tag
        self.body_bit = 8 * layout.headers[0].body_offset
        tags = ("GET", "u63", 8 * TAG_OFFSET, "GET", "u63", 8 * (layout.frame_bytes - _TAG_BYTES))
        self._starts = [words("BITFIELD", key, *tags) for key in keys]

    def command(self, shard: int, each: Each = GET, positions: Sequence[int] = ()) -> bytes:
        """Read both tags of a shard, and do ``each`` at the bits ``positions`` of its body."""
        first = self.body_bit
        return self.joined(shard, each, len(positions), listed(each, [first + position for position in positions]))

    def joined(self, shard: int, each: Each, count: int, bits: bytes) -> bytes:
        """Read both tags of a shard, and do ``each`` at ``count`` places, which ``bits`` says in words."""
        return b"*%d\r\n%s%s" % (_WORDS + each[0] * count, self._starts[shard], bits)

    def prove(self, shard: int, reply: Any) -> None:
        """Raise :class:`CorruptFilter` unless the tags in the reply are right."""
        if reply[0] != self._tag or reply[1] != self._tag:
            raise CorruptFilter(f"{self._keys[shard]} is gone, or no longer what it was: evicted, flushed or deleted?")


def listed(each: Each, places: Sequence[int], digits: int = 0) -> bytes:
    """What to do at many places, in words; numbers that all have so many ``digits`` take half the time."""
    _, before, after = each
    if digits:
        return b"%s$%d\r\n%%d\r\n%s" % (before, digits, after) * len(places) % tuple(places)
    return b"".join([b"%s$%d\r\n%d\r\n%s" % (before, len(str(place)), place, after) for place in places])


class Columns:
    """Bloom filters' bits in batches, one partition after the other."""

    def __init__(self, shape: BloomShape, fields: Fields) -> None:
        first = fields.body_bit
        self._partitions = [(first + start, size) for start, size in zip(shape.starts, shape.sizes)]
        self._digits = [
            len(str(start)) if len(str(start)) == len(str(start + size)) else 0 for start, size in self._partitions
        ]
        self._fields = fields
        self._keys = _BITS // len(shape.sizes)  # asked for by one command

    def asking_many(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], Answers]:
        """See :meth:`Bits.asking_many`."""
        hashes = len(self._partitions)
        parts = [digests[start : start + self._keys] for start in range(0, len(digests), self._keys)]

        def answers(replies: Sequence[Any]) -> list[bool]:
            found: list[bool] = []
            for part, reply in zip(parts, replies):
                self._fields.prove(shard, reply)
                found += map(all, zip(*(reply[2 + n * len(part) : 2 + (n + 1) * len(part)] for n in range(hashes))))
            return found

        return [self._asking(shard, part) for part in parts], answers

    def _asking(self, shard: int, digests: Sequence[int]) -> bytes:
        lows = [digest & MASK60 for digest in digests]
        bits = [
            listed(GET, [start + low % size for low in lows], digits)
            for (start, size), digits in zip(self._partitions, self._digits)
        ]
        return self._fields.joined(shard, GET, len(bits) * len(lows), b"".join(bits))


class Bits:
    """How a shard of plain bits is asked and added to."""

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        self._fields = Fields(layout, keys)
        self._positions: Callable[[int], list[int]] = layout.shape.positions  # type: ignore[attr-defined]
        if isinstance(layout.shape, BloomShape):
            self.asking_many = Columns(layout.shape, self._fields).asking_many  # type: ignore[method-assign]

    def asking(self, shard: int, digest: int) -> bytes:
        """The command that asks for one key."""
        return self._fields.command(shard, GET, self._positions(digest))

    def answer(self, shard: int, digest: int, reply: Any) -> bool:
        """Whether the key is in; raises :class:`CorruptFilter`."""
        self._fields.prove(shard, reply)
        return 0 not in reply

    def asking_many(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], Answers]:
        """The commands that ask for many keys of one shard, and what makes their answers of the replies."""
        each = [self._positions(digest) for digest in digests]

        def answers(replies: Sequence[Any]) -> list[bool]:
            bits: list[int] = []
            for reply in replies:
                self._fields.prove(shard, reply)
                bits += reply[2:]
            found, at = [], 0
            for positions in each:
                found.append(0 not in bits[at : at + len(positions)])
                at += len(positions)
            return found

        return self._commands(shard, GET, each), answers

    def adding(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], See]:
        """The commands that add keys to one shard, and what sees by the replies that they are in."""
        return self._setting(shard, [self._positions(digest) for digest in digests])

    def setting(self, shard: int, positions: Sequence[int]) -> tuple[list[bytes], See]:
        """The same for bits of one shard's body."""
        return self._setting(shard, [positions])

    def _setting(self, shard: int, positions: Sequence[Sequence[int]]) -> tuple[list[bytes], See]:
        def see(replies: Sequence[Any]) -> None:
            for reply in replies:
                self._fields.prove(shard, reply)

        return self._commands(shard, _SET, positions), see

    def _commands(self, shard: int, each: Each, positions: Sequence[Sequence[int]]) -> list[bytes]:
        flat = list(chain.from_iterable(positions))
        return [self._fields.command(shard, each, flat[start : start + _BITS]) for start in range(0, len(flat), _BITS)]
