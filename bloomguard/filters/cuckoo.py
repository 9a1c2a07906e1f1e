"""Cuckoo filter: fingerprints in buckets of four slots, which can be removed again (Fan et al. 2014).

The fingerprint of a key lies in one of two buckets, ``a`` and ``b = (fingerprint * C - a) % buckets``. This function is
its own inverse for any number of buckets, so the number is not rounded up to a power of two.

If both buckets are full, a writer moves other fingerprints to their other buckets. It first finds a path to a free
slot, then walks the path backwards from the free slot: it writes each fingerprint to its new slot before it overwrites
the old one, so a crash at any point loses none. A reader without a lock could still check the new slot before that
write and the old slot after the overwrite. Therefore the body starts with a count of moves, which the writer raises
between the two writes; a reader that found nothing checks again if the count has changed.

Keys with the same fingerprint and the same two buckets are *twins*: the filter cannot distinguish them. If there is no
room for a key, the key and its twins *spill*: they go into a small Bloom filter behind the buckets, also called the
spill, and their fingerprints are removed from the table. A key that many rows share spills at its ninth copy at the
latest. Spilled keys stay until the next build; adds and discards of them change nothing. So no add fails, and a key
takes at most eight slots, however often it is added.

Why there are no false negatives: let n be the number of adds of a group of twins minus the number of its discards,
where only keys that were added are discarded. Before they spill, the table has n copies of their fingerprint: an add
writes one, a discard removes one, a move keeps the number. So if n > 0, a check finds one. After they spill, their bits
in the spill are set and are never cleared, so a check finds them there, whatever is discarded. The same holds for twins
whose bits were set by others: an add of them changes nothing, as a check finds them in the spill now and later.

When twins spill, a writer first sets their bits, then marks the spill in the first word of the body, then overwrites
their fingerprints. So a crash at any point loses none, and a reader that checks the table first and the spill last
finds them in one of the two.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar

from ..exceptions import InvalidShape
from . import codec, cuckoo_table, sizing
from .base import BodyFilter
from .bloom import BloomFilter, BloomShape
from .bulk import np
from .cuckoo_table import (
    CODES,
    FACTOR,
    HEAD,
    LOAD,
    RETRIES,
    SLOTS,
    SPILLED,
    CuckooShape,
    count_move,
    fingerprint_bits_for,
    spill_rate,
)
from .hashing import MASK60, KeyHash, compile_function

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .base import Writes
    from .bulk import U64

_FEW = 32  # extra slots for small tables, whose buckets fill less evenly
# Limits of the search for a free slot: at load 0.95 it visits about ten buckets, a few hundred at worst. Once something
# has spilled, the table may be full, so the search is shorter.
_MOST_BUCKETS, _MOST_BUCKETS_FULL = 500, 50
_OTHER = f"(f * {FACTOR} - a) % {{}}"


class CuckooFilter(BodyFilter):
    """A multiset of keys that supports removal: :meth:`discard` undoes one :meth:`add` of the same key.

    ``fingerprint_bits`` (8, 16 or 32) follow from ``error_rate`` unless given; if given, they set the error rate.
    Discard only keys that were added, and only as often: otherwise another key with the same fingerprint may be lost.
    The filter is never full: a key for which there is no room stays until :meth:`clear`. At twice the capacity the
    false-positive rate is at most ten times the promised one.
    """

    kind: ClassVar[str] = "cuckoo"
    supports_discard: ClassVar[bool] = True

    layout: CuckooShape
    #: The Bloom filter of the twins that had no room in the table, in the same memory.
    spill: BloomFilter
    #: ``discard(key: bytes) -> bool``: undoes one add of ``key``, returns whether it was found. A spilled key stays.
    discard: Callable[[bytes], bool]  # type: ignore[assignment]

    def __init__(
        self,
        capacity: int,
        error_rate: float = 0.0002,
        *,
        fingerprint_bits: int | None = None,
        width: int | None = None,
        secret: bytes = b"",
        max_bytes: int | None = None,
    ) -> None:
        self._allocate(self.shape(capacity, error_rate, fingerprint_bits), KeyHash(width, secret), max_bytes)

    @staticmethod
    def shape(
        capacity: int, error_rate: float, fingerprint_bits: int | None = None, spill: int | None = None
    ) -> CuckooShape:
        """Return the shape for ``capacity`` keys; allocates nothing. Raises :class:`InvalidShape`.

        The ``spill`` has room for that many keys, by default for ``capacity``.
        """
        slots = math.ceil(sizing.check_capacity(capacity) / LOAD) + (_FEW if capacity < 10_000 else 0)
        bits = fingerprint_bits_for(error_rate) if fingerprint_bits is None else fingerprint_bits
        sizing.check_error_rate(error_rate)
        rate = spill_rate(error_rate, bits)
        hashes = sizing.economical_hashes(rate)
        beside = sizing.bits_with_hashes(capacity if spill is None else spill, rate, hashes)
        # Only primes, no power of two: the numbers of twins, unlike digests, are not uniform.
        spilled = BloomShape(capacity, rate, sizing.partition_sizes(beside, hashes))
        return CuckooShape(capacity, float(error_rate), bits, -(-slots // SLOTS), spilled)

    growing = shape

    @classmethod
    def shape_of(cls, header: codec.Header) -> CuckooShape:
        if len(header.parameters) < 3:
            raise InvalidShape(f"{len(header.parameters)} parameters; a cuckoo filter has at least 3")
        bits, buckets, *sizes = header.parameters
        spill = BloomShape(header.capacity, spill_rate(header.error_rate, bits), tuple(sizes))
        return CuckooShape(header.capacity, header.error_rate, bits, buckets, spill)

    def _ready(self) -> None:
        shape, order = self.layout, "@" if sys.byteorder == "little" else "<"  # native: reads a slot at once
        self._unpack = Struct(f"{order}{SLOTS}{CODES[shape.bits]}").unpack_from
        self._table = self.body[HEAD : HEAD + shape.buckets * shape.bucket_bytes]
        word = self.body[:4]  # of an array of numpy, the word takes three times as long
        self._moves: Any = word.cast("I") if sys.byteorder == "little" else np.frombuffer(word, "<u4")
        self.spill = BloomFilter.__new__(BloomFilter)._attach(
            shape.spill, self.key_hash, self.body[shape.spill_offset :]
        )
        self._compile()

    def _compile(self) -> None:
        """Compile the checks and the discard; they do not refer to the filter, which would make a reference cycle."""
        shape = self.layout
        names = self.key_hash.names() | {
            "moves": self._moves,
            "unpack": self._unpack,
            "table": self._table,
            "slots": self._table.cast(CODES[shape.bits]),
            "has_spilled": self.spill.might_contain_digest,
        }
        self.might_contain = compile_function("key", names, *_check(shape, self.key_hash.expression))
        self.might_contain_digest = compile_function("digest", names, *_check(shape, "digest"))
        self.discard = compile_function("key", names, *_discard(shape, self.key_hash.expression))

    def _bucket(self, bucket: int) -> tuple[int, ...]:
        slots: tuple[int, ...] = self._unpack(self._table, bucket * self.layout.bucket_bytes)
        return slots

    # Changes are computed first, then applied in order.

    def writes(self, digest: int) -> Writes:
        place = self.layout.place(digest)
        if self._has_spilled(*place[:2]):
            return []
        writes = self._writes(*place)
        return self._spill_writes(*place) if writes is None else writes

    def _writes(self, fingerprint: int, first: int, second: int) -> Writes | None:
        """Return the changes that write one more fingerprint to the table; ``None`` if there is no room.

        If twins fill both buckets, so that no move can make room, the changes move them to the spill.
        """
        for bucket in (first, second):
            slots = self._bucket(bucket)
            if 0 in slots:
                return [self._put(bucket, slots.index(0), fingerprint)]
        path = self._path(first, second)
        if path is None:
            is_alone = all(slot == fingerprint for bucket in (first, second) for slot in self._bucket(bucket))
            return self._spill_writes(fingerprint, first, second) if is_alone else None
        changes: Writes = []
        word = self._moves[0]
        for (to, at), (bucket, slot) in pairwise(path):
            changes.append(self._put(to, at, self._bucket(bucket)[slot]))
            word = count_move(word)
            changes.append((0, word.to_bytes(4, "little")))
        changes.append(self._put(*path[-1], fingerprint))
        return changes

    def _spill_writes(self, fingerprint: int, first: int, second: int) -> Writes:
        """Return the changes that move twins from the table to the spill."""
        start, twins = self.layout.spill_offset, self.layout.twins(fingerprint, first)
        changes = [(start + offset, data) for offset, data in self.spill.writes(twins)]
        changes.append((0, (count_move(self._moves[0]) | SPILLED).to_bytes(4, "little")))
        for bucket in dict.fromkeys((first, second)):
            copies = [slot for slot, other in enumerate(self._bucket(bucket)) if other == fingerprint]
            changes += [self._put(bucket, slot, 0) for slot in copies]
        return changes

    def _has_spilled(self, fingerprint: int, bucket: int) -> bool:
        if self._moves[0] < SPILLED:
            return False
        return self.spill.might_contain_digest(self.layout.twins(fingerprint, bucket))

    def has_spilled(self, key: bytes) -> bool:
        """Return whether ``key`` stays until the next build, because there was no room for it or its twins."""
        return self._has_spilled(*self.layout.place(self.digest(key))[:2])

    def _path(self, first: int, second: int) -> list[tuple[int, int]] | None:
        """Find a path of slots ``(bucket, slot)`` from a free slot back to one of the two buckets, or return ``None``.

        Each slot may take the fingerprint of the slot after it. The search is breadth first, so the path is the
        shortest, and no bucket is visited twice.
        """
        buckets, size, unpack, table = self.layout.buckets, self.layout.bucket_bytes, self._unpack, self._table
        queue: list[tuple[int, int, int]] = [(first, -1, -1), (second, -1, -1)]  # bucket, parent, slot in the parent
        seen = {first, second}
        at, most = 0, _MOST_BUCKETS if self._moves[0] < SPILLED else _MOST_BUCKETS_FULL
        while at < len(queue) < most:
            bucket = queue[at][0]
            for slot, fingerprint in enumerate(unpack(table, bucket * size)):
                other = (fingerprint * FACTOR - bucket) % buckets
                if other in seen:
                    continue
                seen.add(other)
                queue.append((other, at, slot))
                slots = unpack(table, other * size)
                if 0 in slots:
                    path, (parent, taken) = [(other, slots.index(0))], queue[-1][1:]
                    while parent >= 0:
                        path.append((queue[parent][0], taken))
                        parent, taken = queue[parent][1:]
                    return path
            at += 1
        return None

    def _put(self, bucket: int, slot: int, fingerprint: int) -> tuple[int, bytes]:
        return self.layout.offset(bucket, slot), fingerprint.to_bytes(self.layout.bits // 8, "little")

    def discard_writes(self, digest: int) -> Writes:
        """Return the changes, in order, that undo one add of ``digest``; empty if it is not in the filter."""
        fingerprint, *pair = self.layout.place(digest)
        for bucket in pair:
            slots = self._bucket(bucket)
            if fingerprint in slots:  # counts as a move: a reader may have missed another copy
                word = count_move(self._moves[0]).to_bytes(4, "little")
                return [(0, word), self._put(bucket, slots.index(fingerprint), 0)]
        return []

    def add_unique(self, key: bytes) -> bool:
        """Add ``key`` if it is not in the filter; return whether it was added.

        Do not use this for keys that are discarded later: two keys with the same fingerprint would be stored once, and
        discarding one would lose the other.
        """
        if self.might_contain(key):
            return False
        self.add(key)
        return True

    def update(self, old: bytes, new: bytes) -> bool:
        """Replace ``old`` by ``new`` if ``old`` is found; return whether it was."""
        if not self.might_contain(old):
            return False
        self.add(new)
        return self.discard(old)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        assert high is not None, "a cuckoo filter takes its fingerprints from the high part of the digest"
        left = cuckoo_table.place(self, low, high)
        if len(left):
            cuckoo_table.spill(self, *cuckoo_table.places(self.layout, low[left], high[left]))

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        assert high is not None, "a cuckoo filter takes its fingerprints from the high part of the digest"
        return cuckoo_table.contains(self, low, high)

    def size(self) -> int:
        """Return the number of fingerprints in the table, in one pass over it."""
        return int(np.count_nonzero(cuckoo_table.slots_of(self)))

    __len__ = size

    def __bool__(self) -> bool:
        return True  # an empty filter is still a filter

    def is_empty(self) -> bool:
        """Return whether no slot is used and nothing has spilled."""
        return self._moves[0] < SPILLED and self.size() == 0

    @property
    def fill(self) -> float:
        return self.size() / self.layout.slots

    def approximate_size(self) -> int:
        """Return the fingerprints in the table plus the Bloom filter's estimate of the spilled twins."""
        return self.size() + self.spill.approximate_size()

    def expected_error_rate(self) -> float:
        denied = (1 - 1 / ((1 << self.layout.bits) - 1)) ** (2 * SLOTS * self.fill)
        return float(1 - denied * (1 - self.spill.expected_error_rate()))


def _place(shape: CuckooShape, digest: str) -> list[str]:
    """Return the source of :meth:`CuckooShape.place`, without the second bucket."""
    return [f"d = {digest}", f"f = d >> {128 - shape.bits} or 1", f"a = (d & {MASK60}) % {shape.buckets}"]


def _check(shape: CuckooShape, digest: str) -> list[str]:
    """Return the source of a check, which starts again if a writer has moved something in the meantime."""
    buckets, size, other = shape.buckets, shape.bucket_bytes, _OTHER.format(shape.buckets)
    return [
        *_place(shape, digest),
        f"tries = {RETRIES}",
        "while tries:",
        " before = moves[0]",
        f" if f in unpack(table, {size} * a) or f in unpack(table, {size} * (b := {other})): return True",
        f" if before >= {SPILLED} and has_spilled(f * {buckets} + (a if a < b else b) & {MASK60}): return True",
        " if before == moves[0]: return False",
        " tries -= 1",
        "return True",  # too many moves: the safe answer
    ]


def _discard(shape: CuckooShape, digest: str) -> list[str]:
    """Return the source of a discard at once: in a filter of one process nothing else needs the changes."""
    size, other = shape.bucket_bytes, _OTHER.format(shape.buckets)
    return [
        *_place(shape, digest),
        f"s = unpack(table, {size} * a)",
        "if f not in s:",
        f" a = {other}",
        f" s = unpack(table, {size} * a)",
        " if f not in s: return False",
        "word = moves[0]",
        f"moves[0] = word + 1 & {SPILLED - 1} | word & {SPILLED}",
        f"slots[{SLOTS} * a + s.index(f)] = 0",
        "return True",
    ]
