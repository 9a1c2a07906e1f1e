"""Cuckoo filter: fingerprints in buckets of four, which can be taken out again (Fan et al. 2014).

A key's fingerprint lies in one of two buckets, ``a`` and ``b = (fingerprint * C - a) % buckets``. That is its own
inverse for any number of buckets, so there is no rounding up to a power of two.

Making room moves fingerprints to their other bucket. A path to a free slot is found first and walked backwards from
there: each fingerprint is written to its new slot before the old one is overwritten, so a crash at any point loses
none. A reader without a lock could still look at the new slot too early and at the old one too late; so the body
starts with a count of moves, raised between the two writes, and a reader that found nothing looks again if it rose.

Keys with one fingerprint and one pair of buckets are *twins*: nothing here can tell them apart. Where no room can be
made for a key, its twins *spill*: they go together into the small Bloom filter behind the buckets, and their
fingerprints leave the table. A key that many rows share spills with its ninth copy at the latest. What has spilled
stays until the next build: adds and discards of it change nothing. So no add ever fails, and a key takes eight slots
at most, however often it is added.

Why no member is ever denied. Let n be how often twins were added less how often they were discarded, each discard of
a key that was in. While they have not spilled, the table has n copies of their fingerprint: an add puts in one, a
discard takes out one, a move keeps the number. So where n > 0 one is found. Once they have spilled, their bits in the
spill are set, nothing ever clears them, and they are found there. A discard asks the spill first: bits that other keys
have set may make it leave a key in, which is a false positive. An add of such a key may be left out, for it is found
there now and later, and no discard of it is ever carried out again.

When twins spill, their bits are set first, then the first word of the body says so, then their fingerprints are
overwritten. So a crash at any point loses none, and a reader that looks at the table first and at the spill last
misses them in neither.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from . import codec, cuckoo_bulk, sizing
from .base import BodyFilter
from .bloom import BloomFilter, BloomShape
from .errors import InvalidShape
from .hashing import MASK60, KeyHash
from .unrolled import compile_check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .base import U64, Writes

HEAD = 64  # bytes before the first bucket: a word, u32 little-endian, and padding; no bucket straddles a cache line
SPILLED = 1 << 31  # of the word: something has spilled; its other bits count the moves
SLOTS = 4
LOAD = 0.95  # of the slots, at capacity; four slots a bucket carry 0.98 in the limit
FACTOR = 0x7F4A7C15  # C: any odd number that spreads small fingerprints

_FEW = 32  # spare slots: small tables have no law of large numbers to lean on
# Looked at in search of a free slot: at load 0.95 it takes some ten, a few hundred at worst. Once something has spilled
# the table may be full, and whoever adds to it shall not search for long.
_MOST_BUCKETS, _MOST_BUCKETS_FULL = 500, 50
_RETRIES = 100
_CODES: dict[int, Literal["B", "H", "I"]] = {8: "B", 16: "H", 32: "I"}
_OTHER = f"(f * {FACTOR} - a) % {{}}"


@dataclass(frozen=True)
class CuckooShape:
    """``buckets`` of four fingerprints of ``bits`` (8, 16 or 32) each, little-endian, 0 for a free slot.

    Behind them lies the ``spill``, whose keys are twins by their number: see :meth:`twins`.
    """

    capacity: int
    error_rate: float
    bits: int
    buckets: int
    spill: BloomShape

    def __post_init__(self) -> None:
        if self.bits not in _CODES:
            raise InvalidShape(f"fingerprints of {self.bits!r} bits; they have to be of 8, 16 or 32")
        if not 1 <= self.buckets <= sizing.MAX_BITS // 4:
            raise InvalidShape(f"{self.buckets!r} buckets; there have to be from 1 to 2**46")
        if self.capacity > self.slots:
            raise InvalidShape(f"capacity is {self.capacity}, but {self.buckets} buckets have {self.slots} slots")

    @property
    def slots(self) -> int:
        """Fingerprints that there is room for."""
        return SLOTS * self.buckets

    @property
    def bucket_bytes(self) -> int:
        """The size of one bucket."""
        return SLOTS * self.bits // 8

    @property
    def spill_offset(self) -> int:
        """First byte of the spill in the body."""
        return HEAD + -(-self.buckets * self.bucket_bytes // 8) * 8

    @property
    def body_bytes(self) -> int:
        """The size of the body in bytes."""
        return self.spill_offset + self.spill.body_bytes

    @property
    def parameters(self) -> tuple[int, ...]:
        """What a header stores of the shape."""
        return (self.bits, self.buckets, *self.spill.sizes)

    def place(self, digest: int) -> tuple[int, int, int]:
        """The fingerprint of a 128-bit digest and its two buckets."""
        fingerprint = digest >> (128 - self.bits) or 1
        bucket = (digest & MASK60) % self.buckets
        return fingerprint, bucket, self.other(fingerprint, bucket)

    def other(self, fingerprint: int, bucket: int) -> int:
        """The other bucket of a fingerprint that may lie in ``bucket``."""
        return (fingerprint * FACTOR - bucket) % self.buckets

    def twins(self, fingerprint: int, bucket: int) -> int:
        """The number of the twins that have this fingerprint and either of their buckets: 60 bits."""
        return fingerprint * self.buckets + min(bucket, self.other(fingerprint, bucket)) & MASK60

    def offset(self, bucket: int, slot: int) -> int:
        """First byte of a slot in the body."""
        return HEAD + bucket * self.bucket_bytes + slot * self.bits // 8


def fingerprint_bits_for(error_rate: float) -> int:
    """The narrowest fingerprint that keeps ``error_rate``: eight slots are compared in each check."""
    for bits in _CODES:
        if 2 * SLOTS * LOAD / (1 << bits) <= sizing.check_error_rate(error_rate):
            return bits
    raise InvalidShape(f"error_rate is {error_rate!r}; fingerprints of 32 bits reach 1.8e-9")


def _spill_rate(error_rate: float, bits: int) -> float:
    """The share of other twins' bits that a stranger may meet in the spill of a filter with twice its capacity.

    As many strangers again are twins of a key in the full table, or of one in the spill.
    """
    twins = 2 * SLOTS / (1 << bits)
    return sizing.worse(max(error_rate, LOAD * twins)) - 2 * twins


class CuckooFilter(BodyFilter):
    """A multiset of keys that can forget: :meth:`discard` undoes one :meth:`add` of the same key.

    ``fingerprint_bits`` (8, 16 or 32) follow from ``error_rate`` unless given; the error rate is then what they give.
    Discard only what was added, and as often as it was added: that is what keeps two keys with one fingerprint apart.
    It is never full: a key for which there is no room stays until :meth:`clear`. At twice the capacity at most ten
    times as many strangers pass as promised.
    """

    kind: ClassVar[str] = "cuckoo"
    supports_discard: ClassVar[bool] = True

    __slots__ = ("_moves", "_spill", "_table", "_unpack", "discard")

    layout: CuckooShape
    #: ``discard(key: bytes) -> bool``: take ``key`` out once; tells whether it was found. A saturated key stays.
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
        """The shape for ``capacity`` keys; allocates nothing. Raises :class:`InvalidShape`.

        Unless given, the ``spill`` has room for as many again.
        """
        slots = math.ceil(sizing.check_capacity(capacity) / LOAD) + (_FEW if capacity < 10_000 else 0)
        bits = fingerprint_bits_for(error_rate) if fingerprint_bits is None else fingerprint_bits
        sizing.check_error_rate(error_rate)
        rate = _spill_rate(error_rate, bits)
        hashes = sizing.economical_hashes(rate)
        beside = sizing.bits_with_hashes(capacity if spill is None else spill, rate, hashes)
        # Primes alone: the numbers of twins are no digests.
        spilled = BloomShape(capacity, rate, sizing.partition_sizes(beside, hashes))
        return CuckooShape(capacity, float(error_rate), bits, -(-slots // SLOTS), spilled)

    @classmethod
    def plan(
        cls, capacity: int, error_rate: float, *, shard_bytes: int | None = None, **options: Any
    ) -> tuple[CuckooShape, int]:
        whole = cls.shape(capacity, error_rate, **options)
        shards = 1 if shard_bytes is None else -(-whole.body_bytes // shard_bytes)
        if shards > 1:
            whole = cls.shape(sizing.fullest_shard(capacity, shards), error_rate, **options)
        return whole, shards

    @classmethod
    def shape_of(cls, header: codec.Header) -> CuckooShape:
        if len(header.parameters) < 3:
            raise InvalidShape(f"{len(header.parameters)} parameters; a cuckoo filter has at least 3")
        bits, buckets, *sizes = header.parameters
        if bits not in _CODES:
            raise InvalidShape(f"fingerprints of {bits!r} bits; they have to be of 8, 16 or 32")
        spill = BloomShape(header.capacity, _spill_rate(header.error_rate, bits), tuple(sizes))
        return CuckooShape(header.capacity, header.error_rate, bits, buckets, spill)

    def _ready(self) -> None:
        shape, order = self.layout, "@" if sys.byteorder == "little" else "<"  # native reads a slot in one piece
        self.digest = self.key_hash.digest
        self._unpack = Struct(f"{order}{SLOTS}{_CODES[shape.bits]}").unpack_from
        self._table = self.body[HEAD : HEAD + shape.buckets * shape.bucket_bytes]
        self._moves: Any = self.body[:4].cast("I") if sys.byteorder == "little" else _Word(self.body)
        self._spill = BloomFilter.__new__(BloomFilter)
        self._spill._attach(shape.spill, self.key_hash, self.body[shape.spill_offset :])
        self.might_contain = self._compile("key", self.key_hash.expression)
        self.might_contain_digest = self._compile("digest", "digest")
        self.discard = self._compile_discard()

    def _names(self) -> dict[str, Any]:
        """What compiled checks refer to: no reference to the filter itself, which would be a cycle."""
        has_spilled = self._spill.might_contain_digest
        return {"moves": self._moves, "unpack": self._unpack, "table": self._table, "has_spilled": has_spilled}

    def _compile(self, argument: str, digest: str) -> Callable[[Any], bool]:
        buckets, size, other = self.layout.buckets, self.layout.bucket_bytes, _OTHER.format(self.layout.buckets)
        names = self._names() | {"look_again": partial(_look_again, self.layout, *self._names().values())}
        return compile_check(
            argument,
            names | self.key_hash.names(),
            *self._placing(digest),
            "before = moves[0]",
            f"if f in unpack(table, {size} * a) or f in unpack(table, {size} * ({other})): return True",
            f"if before == moves[0] < {SPILLED}: return False",
            f"b = {other}",
            f"if before == moves[0] and not has_spilled(f * {buckets} + (a if a < b else b) & {MASK60}): return False",
            "return look_again(d)",
        )

    def _compile_discard(self) -> Callable[[bytes], bool]:
        """What :meth:`discard_writes` plans, done at once: a filter of one process needs no plan."""
        size, other = self.layout.bucket_bytes, _OTHER.format(self.layout.buckets)
        names = self._names() | {"slots": self._table.cast(_CODES[self.layout.bits]), "twins": self.layout.twins}
        return compile_check(
            "key",
            names | self.key_hash.names(),
            *self._placing(self.key_hash.expression),
            f"s = unpack(table, {size} * a)",
            "if f not in s:",
            f" a = {other}",
            f" s = unpack(table, {size} * a)",
            " if f not in s: return False",
            "word = moves[0]",
            f"if word >= {SPILLED} and has_spilled(twins(f, a)): return False",
            f"moves[0] = word + 1 & {SPILLED - 1} | word & {SPILLED}",
            f"slots[{SLOTS} * a + s.index(f)] = 0",
            "return True",
        )

    def _placing(self, digest: str) -> list[str]:
        """Source that does what :meth:`CuckooShape.place` does."""
        shape = self.layout
        return [f"d = {digest}", f"f = d >> {128 - shape.bits} or 1", f"a = (d & {MASK60}) % {shape.buckets}"]

    def _bucket(self, bucket: int) -> tuple[int, ...]:
        slots: tuple[int, ...] = self._unpack(self._table, bucket * self.layout.bucket_bytes)
        return slots

    # Changes are planned, then applied in their order.

    def writes(self, digest: int) -> Writes:
        """The changes, in their order, that add ``digest``; nothing is changed here."""
        place = self.layout.place(digest)
        if self._has_spilled(*place[:2]):
            return []
        writes = self._writes(*place)
        return self._spill_writes(*place) if writes is None else writes

    def _writes(self, fingerprint: int, first: int, second: int) -> Writes | None:
        """The changes that put one more fingerprint into the table; ``None`` if no room can be made."""
        for bucket in (first, second):
            slots = self._bucket(bucket)
            if 0 in slots:
                return [self._put(bucket, slots.index(0), fingerprint)]
        path = self._path(first, second)
        if path is None:
            return None
        # From the free slot backwards: what lies in each slot of the path goes to the one after it.
        changes: Writes = []
        word = self._moves[0]
        steps = path[:-1]
        for (bucket, slot), (to, at) in zip(reversed(steps), reversed(path)):
            changes.append(self._put(to, at, self._bucket(bucket)[slot]))
            word = moved(word)
            changes.append((0, word.to_bytes(4, "little")))
        changes.append(self._put(*steps[0], fingerprint))
        return changes

    def _spill_writes(self, fingerprint: int, first: int, second: int) -> Writes:
        """The changes that bring twins from the table to the spill."""
        start, twins = self.layout.spill_offset, self.layout.twins(fingerprint, first)
        changes = [(start + offset, data) for offset, data in self._spill.writes(twins)]
        changes.append((0, (moved(self._moves[0]) | SPILLED).to_bytes(4, "little")))
        for bucket in dict.fromkeys((first, second)):
            copies = [slot for slot, other in enumerate(self._bucket(bucket)) if other == fingerprint]
            changes += [self._put(bucket, slot, 0) for slot in copies]
        return changes

    def _is_alone(self, fingerprint: int, first: int, second: int) -> bool:
        """Whether twins fill both of their buckets: no move can make room for one more."""
        return all(slot == fingerprint for bucket in (first, second) for slot in self._bucket(bucket))

    def _has_spilled(self, fingerprint: int, bucket: int) -> bool:
        if self._moves[0] < SPILLED:
            return False
        return self._spill.might_contain_digest(self.layout.twins(fingerprint, bucket))

    def has_spilled(self, key: bytes) -> bool:
        """Whether ``key`` stays until the next build, for there was no room for it or its twins."""
        return self._has_spilled(*self.layout.place(self.digest(key))[:2])

    def _path(self, first: int, second: int) -> list[tuple[int, int]] | None:
        """Slots ``(bucket, slot)`` from one of the two buckets to a free one, each the other bucket of the one before.

        Breadth first, so the path is the shortest; no bucket comes twice.
        """
        buckets, size, unpack, table = self.layout.buckets, self.layout.bucket_bytes, self._unpack, self._table
        queue: list[tuple[int, int, int]] = [(first, -1, -1), (second, -1, -1)]  # bucket, where from, its slot there
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
                    return self._trace(queue, slots.index(0))
            at += 1
        return None

    @staticmethod
    def _trace(queue: list[tuple[int, int, int]], free: int) -> list[tuple[int, int]]:
        bucket, parent, slot = queue[-1]
        path = [(bucket, free)]
        while parent >= 0:
            at = slot
            bucket, parent, slot = queue[parent]
            path.append((bucket, at))
        return path[::-1]

    def _put(self, bucket: int, slot: int, fingerprint: int) -> tuple[int, bytes]:
        return self.layout.offset(bucket, slot), fingerprint.to_bytes(self.layout.bits // 8, "little")

    def discard_writes(self, digest: int) -> Writes:
        fingerprint, *pair = self.layout.place(digest)
        if self._has_spilled(fingerprint, pair[0]):
            return []
        for bucket in pair:
            slots = self._bucket(bucket)
            if fingerprint in slots:  # counted as a move: it may be a copy whose twin a reader looked for too early
                word = moved(self._moves[0]).to_bytes(4, "little")
                return [(0, word), self._put(bucket, slots.index(fingerprint), 0)]
        return []

    def add_unique(self, key: bytes) -> bool:
        """Put ``key`` in unless it might be in; tells whether it was put in.

        Not for keys that are discarded later: two keys with one fingerprint would be stored once, and discarding one
        would lose the other.
        """
        if self.might_contain(key):
            return False
        self.add(key)
        return True

    def update(self, old: bytes, new: bytes) -> bool:
        """Replace ``old`` by ``new``; tells whether ``old`` was found. Nothing changes if it was not."""
        if not self.might_contain(old):
            return False
        self.add(new)
        return self.discard(old)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        """Put many digests in. Readers without a lock miss nothing meanwhile."""
        assert high is not None, "a cuckoo filter takes its fingerprints from the high part of the digest"
        left = cuckoo_bulk.place(self, low, high)
        if len(left):
            cuckoo_bulk.spill(self, low[left], high[left])

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        assert high is not None, "a cuckoo filter takes its fingerprints from the high part of the digest"
        return cuckoo_bulk.contains(self, low, high)

    def clear(self) -> None:
        word = self._moves[0]
        super().clear()
        self._moves[0] = moved(word) & ~SPILLED

    def size(self) -> int:
        """Fingerprints in the filter (one pass over it)."""
        return cuckoo_bulk.size(self)

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return True  # an empty filter is still a filter

    def is_empty(self) -> bool:
        """Whether no slot is taken, and nothing has spilled."""
        return self._moves[0] < SPILLED and self.size() == 0

    @property
    def fill(self) -> float:
        return self.size() / self.layout.slots

    @property
    def spill(self) -> BloomFilter:
        """The filter of the twins that found no room, over the same memory."""
        return self._spill

    def approximate_size(self) -> int:
        """Fingerprints in the table, and the twins beside it as the Bloom filter estimates them."""
        return self.size() + self._spill.approximate_size()

    def expected_error_rate(self) -> float:
        denied = (1 - 1 / ((1 << self.layout.bits) - 1)) ** (2 * SLOTS * self.fill)
        return float(1 - denied * (1 - self._spill.expected_error_rate()))


def moved(word: int) -> int:
    """The body's first word after one more move."""
    return word + 1 & SPILLED - 1 | word & SPILLED


class _Word:
    """The body's first word where integers are big-endian."""

    def __init__(self, body: memoryview) -> None:
        self._bytes = body[:4]

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(self._bytes, "little")

    def __setitem__(self, index: int, word: int) -> None:
        self._bytes[:] = word.to_bytes(4, "little")


def _look_again(
    shape: CuckooShape, moves: Any, unpack: Any, table: memoryview, has_spilled: Callable[[int], bool], digest: int
) -> bool:
    """The check of a digest that a writer's move may have come between; after many of them, the safe answer."""
    fingerprint, *pair = shape.place(digest)
    for _ in range(_RETRIES):
        before = moves[0]
        if any(fingerprint in unpack(table, bucket * shape.bucket_bytes) for bucket in pair):
            return True
        if before >= SPILLED and has_spilled(shape.twins(fingerprint, pair[0])):
            return True
        if moves[0] == before:
            return False
    return True
