"""Redis commands for cuckoo filters: one ``BITFIELD`` checks a key, a Lua script adds and discards within one shard.

A check reads a key's two buckets and its bits of the spill atomically, so it does not depend on the order of writes.

The script checks both tags itself. ``EVALSHA`` runs it by its SHA-1 digest; a server that does not know the digest
(after a restart, a failover or ``SCRIPT FLUSH``) gets the whole script, see :func:`with_script`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...exceptions import StoreError
from ...filters.codec import TRAILER_BYTES
from ...filters.cuckoo_table import CODES, SLOTS, CuckooShape
from ...filters.layout import Layout
from .bits import GET, Operation, ShardCommands, encode, lost
from .commands import Command, Part
from .loading import Draft, gather, journal_key

if TYPE_CHECKING:
    from ...filters.bulk import U64
    from .store import RedisStore

_ENTRIES = 10_000  # entries of a journal to read at once
_CHANGED = 100  # keys that one script call adds or discards: other clients wait for about 0.5 ms
#: Maximum per shard, so that the script's numbers (doubles) are exact.
MOST_BUCKETS = 1 << 24
_SLOTS = 2 * SLOTS  # of both buckets of a key


@cache
def script() -> tuple[str, str]:
    """Return the script's SHA-1 digest and its text."""
    text = (Path(__file__).parent / "lua" / "cuckoo.lua").read_text()
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text


def with_script(command: Command) -> Command:
    """Return an ``EVALSHA`` command as ``EVAL`` with the whole script."""
    key, (_, _, *rest) = command
    return key, ("EVAL", script()[1], *rest)


class Fingerprints(ShardCommands):
    """Commands that check, add and discard keys in the shards of a cuckoo filter.

    Raises :class:`StoreError` if a shard has more than :data:`MOST_BUCKETS`.
    """

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        shape = layout.shape
        assert isinstance(shape, CuckooShape)
        if shape.buckets > MOST_BUCKETS:
            raise StoreError(f"{shape.buckets:,} buckets in a shard; on a server at most {MOST_BUCKETS:,} work")
        super().__init__(layout, keys)
        self._shape = shape
        # Two or four slots are read as one number. BITFIELD has no u64, so 64 bits are read as a signed number.
        self._word_bits, word = (32, "u32") if shape.bits == 8 else (64, "i64")
        self._get = Operation(3, encode("GET", word))
        self._words = 2 * 8 * shape.bucket_bytes // self._word_bits
        self._shared = (
            (layout.header.tag << 1).to_bytes(8, "big"),
            layout.header.frame_bytes - 8,
            layout.header.body_offset,
            layout.header.body_bytes,
            shape.bits,
            shape.buckets,
            b"".join(
                struct.pack("<II", shape.spill_offset + offset, size)
                for offset, size in zip(shape.spill.offsets, shape.spill.sizes)
            ),
        )

    def check(self, shard: int, digests: Sequence[int]) -> Command:
        """Return the command that reads the buckets of all keys, then the bits of the spill of all keys."""
        shape, first, step = self._shape, self.body_bit, self._word_bits
        slots: list[int] = []
        bits: list[int] = []
        for digest in digests:
            fingerprint, *pair = shape.place(digest)
            for bucket in pair:
                start = first + 8 * shape.offset(bucket, 0)
                slots += range(start, start + 8 * shape.bucket_bytes, step)
            start = first + 8 * shape.spill_offset
            bits += [start + position for position in shape.spill.positions(shape.twins(fingerprint, pair[0]))]
        words = GET.words * (len(slots) + len(bits))
        return self.joined(shard, words, self._get.encode(slots) + GET.encode(bits))

    def answers(self, shard: int, digests: Sequence[int], reply: Any) -> list[bool]:
        self.check_tags(shard, reply)
        count, each = len(digests) * self._words, len(self._shape.spill.sizes)
        read = struct.pack(f">{count}{'I' if self._word_bits == 32 else 'q'}", *reply[2 : 2 + count])
        slots, bits = struct.unpack(f"<{_SLOTS * len(digests)}{CODES[self._shape.bits]}", read), reply[2 + count :]
        return [
            self._shape.place(digest)[0] in slots[_SLOTS * number : _SLOTS * (number + 1)]
            or 0 not in bits[each * number : each * (number + 1)]
            for number, digest in enumerate(digests)
        ]

    def adds(self, shard: int, digests: Sequence[int], once: bool = False) -> Part:
        """Return the commands that add each key to one shard, with ``once`` if it is not there yet."""
        return self._changes("add once" if once else "add", shard, digests)

    def many_adds(self, shard: int, low: U64, high: U64, once: bool = False) -> Part:
        """Do the same as :meth:`adds` for many digests, given their low and high parts."""
        return self.adds(shard, (low.astype(object) | high.astype(object) << 64).tolist(), once)

    def discards(self, shard: int, digests: Sequence[int]) -> Part:
        """Return the commands that discard each key of one shard once."""
        return self._changes("discard", shard, digests)

    def seal(self, store: RedisStore, draft: Draft, identity: str) -> None:
        """Add the journals of other processes' adds to the draft, and replace the shards on the server with it.

        The script adds the entries that arrive after the last read. Raises :class:`CorruptFilter` if a shard is
        missing, and :class:`StoreError`.
        """
        for shard, (key, frame) in enumerate(zip(self.keys, draft.frames)):
            journal, known = journal_key(key), 1
            while True:
                (entries,) = store.load([(key, ("LRANGE", journal, known, known + _ENTRIES - 1))], identity)
                draft.add_entries(shard, entries)
                known += len(entries)
                if len(entries) < _ENTRIES:
                    break
            gathered = gather(store, key, frame, identity)
            header, trailer = frame.buffer[: frame.header.body_offset], frame.buffer[-TRAILER_BYTES:]
            named = ("EVALSHA", script()[0], 3, key, journal, gathered, "join", *self._shared)
            replies = store.load([(key, (*named, bytes(header), bytes(trailer), known))], identity)
            self._check_replies(shard, replies)

    def _changes(self, change: str, shard: int, digests: Sequence[int]) -> Part:
        key, first = self.keys[shard], self.body_bit
        places = [
            (*self._shape.place(digest)[:2], *[first + position for position in self._recent(digest)])
            for digest in digests
        ]
        named = ("EVALSHA", script()[0], 2, key, journal_key(key), change, *self._shared)
        commands = [
            (key, (*named, *chain.from_iterable(places[start : start + _CHANGED])))
            for start in range(0, len(places), _CHANGED)
        ]
        return Part(commands, partial(self._check_replies, shard))

    def _check_replies(self, shard: int, replies: Sequence[Any]) -> None:
        """Raise :class:`CorruptFilter` if the script did not find the expected tags in the shard."""
        if -1 in replies:
            raise lost(self.keys[shard])
