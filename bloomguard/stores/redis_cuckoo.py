"""Cuckoo filters in the words of a server: one ``BITFIELD`` asks, a script within one shard adds and discards.

What asks reads a key's two buckets and its bits of the spill at one moment, so that no order of writes matters to it.

The script proves both tags itself. It is known to a server by its digest, and sent in full where that is not known:
after a restart, a failover or ``SCRIPT FLUSH``; see :func:`in_full`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..filters import CorruptFilter
from ..filters.codec import Frame
from ..filters.cuckoo import CuckooShape
from ..filters.layout import Layout
from .redis_bits import GET, Answers, Each, Fields, See, listed, words
from .redis_exchange import Command
from .redis_loading import journal_key

_ASKED = 200  # keys that one command asks for
_CHANGED = 100  # keys that one script adds or discards: others wait for some 0.5 ms
#: Of a shard, so that the script's numbers are exact.
MOST_BUCKETS = 1 << 24
_SLOTS = 8
_CODES = {8: "B", 16: "H", 32: "I"}


@cache
def script() -> tuple[str, str]:
    """The script's digest, and all of it."""
    text = (Path(__file__).parent / "lua" / "cuckoo.lua").read_text()
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text


def in_full(command: Command) -> Command:
    """A command that names the script by its digest, with the script instead."""
    key, (_, _, *rest) = command
    return key, ("EVAL", script()[1], *rest)


class Fingerprints:
    """How a shard of fingerprints is asked and changed; it has at most :data:`MOST_BUCKETS`."""

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        shape = layout.shape
        assert isinstance(shape, CuckooShape)
        self._shape = shape
        self._keys = keys
        self._fields = Fields(layout, keys)
        # Two or four slots are read as one number, which only a signed one of 64 bits holds.
        self._word_bits, word = (32, "u32") if shape.bits == 8 else (64, "i64")
        self._get: Each = (3, words("GET", word), b"")
        self._words = 2 * 8 * shape.bucket_bytes // self._word_bits
        self._shared = (
            (layout.tag << 1).to_bytes(8, "big"),
            layout.frame_bytes - 8,
            layout.headers[0].body_offset,
            shape.bits,
            shape.buckets,
            b"".join(
                struct.pack("<II", shape.spill_offset + offset, size)
                for offset, size in zip(shape.spill.offsets, shape.spill.sizes)
            ),
        )

    def asking(self, shard: int, digest: int) -> bytes:
        """The command that asks for one key."""
        return self._asking(shard, [digest])

    def _asking(self, shard: int, digests: Sequence[int]) -> bytes:
        """The command that reads the buckets of all keys, then the bits of the spill of all keys."""
        shape, first, step = self._shape, self._fields.body_bit, self._word_bits
        slots: list[int] = []
        bits: list[int] = []
        for digest in digests:
            fingerprint, *pair = shape.place(digest)
            for bucket in pair:
                start = first + 8 * shape.offset(bucket, 0)
                slots += range(start, start + 8 * shape.bucket_bytes, step)
            start = first + 8 * shape.spill_offset
            bits += [start + position for position in shape.spill.positions(shape.twins(fingerprint, pair[0]))]
        return self._fields.joined(shard, GET, len(slots) + len(bits), listed(self._get, slots) + listed(GET, bits))

    def answer(self, shard: int, digest: int, reply: Any) -> bool:
        """Whether the key is in; raises :class:`CorruptFilter`."""
        return self._answers(shard, [digest], reply)[0]

    def _answers(self, shard: int, digests: Sequence[int], reply: Any) -> list[bool]:
        self._fields.prove(shard, reply)
        count, each = len(digests) * self._words, len(self._shape.spill.sizes)
        read = struct.pack(f">{count}{'I' if self._word_bits == 32 else 'q'}", *reply[2 : 2 + count])
        slots, bits = struct.unpack(f"<{_SLOTS * len(digests)}{_CODES[self._shape.bits]}", read), reply[2 + count :]
        return [
            self._shape.place(digest)[0] in slots[_SLOTS * number : _SLOTS * (number + 1)]
            or 0 not in bits[each * number : each * (number + 1)]
            for number, digest in enumerate(digests)
        ]

    def asking_many(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], Answers]:
        """The commands that ask for many keys of one shard, and what makes their answers of the replies."""
        parts = [digests[start : start + _ASKED] for start in range(0, len(digests), _ASKED)]

        def answers(replies: Sequence[Any]) -> list[bool]:
            return [found for part, reply in zip(parts, replies) for found in self._answers(shard, part, reply)]

        return [self._asking(shard, part) for part in parts], answers

    def adding(self, shard: int, digests: Sequence[int]) -> tuple[list[tuple[Any, ...]], See]:
        """The commands that add keys to one shard, each once more, and what sees by the replies that they are in."""
        return self._changing("add", shard, digests), partial(self._prove, shard)

    def discarding(self, shard: int, digests: Sequence[int]) -> tuple[list[tuple[Any, ...]], See]:
        """The commands that take keys out of one shard, each once, and what sees that it was the right shard."""
        return self._changing("discard", shard, digests), partial(self._prove, shard)

    def joining(self, shard: int, gathered: str, frame: Frame, known: int) -> tuple[tuple[Any, ...], See]:
        """The command that puts the ``gathered`` body in a shard's place, with what its journal has after ``known``.

        ``frame`` has the header and the trailer.
        """
        key = self._keys[shard]
        named = ("EVALSHA", script()[0], 3, key, journal_key(key), gathered, "join", *self._shared)
        header, trailer = (
            frame.buffer[: frame.header.body_offset],
            frame.buffer[frame.header.body_offset + len(frame.body) :],
        )
        return (*named, bytes(header), bytes(trailer), known), partial(self._prove, shard)

    def _changing(self, change: str, shard: int, digests: Sequence[int]) -> list[tuple[Any, ...]]:
        key, places = self._keys[shard], [self._shape.place(digest)[:2] for digest in digests]
        named = ("EVALSHA", script()[0], 2, key, journal_key(key), change, *self._shared)
        return [
            (*named, *(each for place in places[start : start + _CHANGED] for each in place))
            for start in range(0, len(places), _CHANGED)
        ]

    def _prove(self, shard: int, replies: Sequence[Any]) -> None:
        """Raise :class:`CorruptFilter` unless the script found the shard that it was meant for."""
        if -1 in replies:
            raise CorruptFilter(f"{self._keys[shard]} is gone, or no longer what it was: evicted, flushed or deleted?")
