"""Cuckoo filters in the words of a server: one ``BITFIELD`` asks, a script within one shard adds and discards.

The script proves both tags itself. It is known to a server by its digest, and sent in full where that is not known:
after a restart, a failover or ``SCRIPT FLUSH``; see :func:`in_full`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..filters import CorruptFilter, FilterFull
from ..filters.codec import Frame
from ..filters.cuckoo import CuckooShape
from ..filters.layout import Layout
from .redis_bits import Answers, Fields, See, words
from .redis_exchange import Command
from .redis_loading import journal_key

_ASKED = 200  # keys that one command asks for
_CHANGED = 100  # keys that one script adds or discards: others wait for some 0.5 ms
#: Of a shard, so that the script's numbers are exact.
MOST_BUCKETS = 1 << 26
_SLOTS = 8


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
        self._get = (3, words("GET", f"u{shape.bits}"), b"")
        self._shared = (
            (layout.tag << 1).to_bytes(8, "big"),
            layout.frame_bytes - 8,
            layout.headers[0].body_offset,
            shape.bits,
            shape.buckets,
        )

    def _slots(self, digest: int) -> list[int]:
        """The bits in the body at which the eight slots that a key may be in begin."""
        _, *pair = self._shape.place(digest)
        return [8 * self._shape.offset(bucket, slot) for bucket in pair for slot in range(_SLOTS // 2)]

    def _seen(self, digest: int) -> int:
        """The fingerprint as ``BITFIELD`` reads it: big-endian."""
        fingerprint, *_ = self._shape.place(digest)
        return int.from_bytes(fingerprint.to_bytes(self._shape.bits // 8, "little"), "big")

    def asking(self, shard: int, digest: int) -> bytes:
        """The command that asks for one key."""
        return self._fields.command(shard, self._get, self._slots(digest))

    def answer(self, shard: int, digest: int, reply: Any) -> bool:
        """Whether the key is in; raises :class:`CorruptFilter`."""
        self._fields.prove(shard, reply)
        return self._seen(digest) in reply[2:]

    def asking_many(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], Answers]:
        """The commands that ask for many keys of one shard, and what makes their answers of the replies."""

        def answers(replies: Sequence[Any]) -> list[bool]:
            slots: list[int] = []
            for reply in replies:
                self._fields.prove(shard, reply)
                slots += reply[2:]
            return [
                self._seen(digest) in slots[_SLOTS * number : _SLOTS * (number + 1)]
                for number, digest in enumerate(digests)
            ]

        return [
            self._fields.command(
                shard, self._get, [slot for digest in digests[start : start + _ASKED] for slot in self._slots(digest)]
            )
            for start in range(0, len(digests), _ASKED)
        ], answers

    def adding(self, shard: int, digests: Sequence[int]) -> tuple[list[tuple[Any, ...]], See]:
        """The commands that add keys to one shard, each once more, and what sees by the replies that they are in."""

        def see(replies: Sequence[Any]) -> None:
            if self._prove(shard, replies) < len(digests):
                raise FilterFull(
                    f"no room for one more key in {self._keys[shard]}; build it again with a larger capacity"
                )

        return self._changing("add", shard, digests), see

    def discarding(self, shard: int, digests: Sequence[int]) -> tuple[list[tuple[Any, ...]], See]:
        """The commands that take keys out of one shard, each once, and what sees that it was the right shard."""

        def see(replies: Sequence[Any]) -> None:
            self._prove(shard, replies)

        return self._changing("discard", shard, digests), see

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

        def see(replies: Sequence[Any]) -> None:
            if self._prove(shard, replies) == 0:
                raise FilterFull(
                    f"no room in {key} for what was added meanwhile; build it again with a larger capacity"
                )

        return (*named, bytes(header), bytes(trailer), known), see

    def _changing(self, change: str, shard: int, digests: Sequence[int]) -> list[tuple[Any, ...]]:
        key, places = self._keys[shard], [self._shape.place(digest)[:2] for digest in digests]
        named = ("EVALSHA", script()[0], 2, key, journal_key(key), change, *self._shared)
        return [
            (*named, *(each for place in places[start : start + _CHANGED] for each in place))
            for start in range(0, len(places), _CHANGED)
        ]

    def _prove(self, shard: int, replies: Sequence[Any]) -> int:
        """The number of keys dealt with; raises :class:`CorruptFilter`."""
        if -1 in replies:
            raise CorruptFilter(f"{self._keys[shard]} is gone, or no longer what it was: evicted, flushed or deleted?")
        return sum(replies)
