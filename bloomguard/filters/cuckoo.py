"""Cuckoo filter: fingerprints in buckets of four, which can be taken out again (Fan et al. 2014).

A key's fingerprint lies in one of two buckets, ``a`` and ``b = (fingerprint * C - a) % buckets``. That is its own
inverse for any number of buckets, so there is no rounding up to a power of two. The filter is a multiset: what is
added twice has to be discarded twice. Once all slots of a pair of buckets hold one fingerprint it is *saturated*: it
stays until the next build, adds and discards of it change nothing.

Making room moves fingerprints to their other bucket. A path to a free slot is found first and walked backwards from
there: each fingerprint is written to its new slot before the old one is overwritten, so a crash at any point loses
none. A reader without a lock could still look at the new slot too early and at the old one too late; so the body
starts with a count of moves, raised between the two writes, and a reader that found nothing looks again if it rose.
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
from .errors import FilterFull, InvalidShape
from .hashing import MASK60, KeyHash
from .unrolled import compile_check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .base import U64, Writes

HEAD = 64  # bytes before the first bucket: the moves, u32 little-endian, and padding; no bucket straddles a cache line
SLOTS = 4
LOAD = 0.95  # of the slots, at capacity; four slots a bucket carry 0.98 in the limit
FACTOR = 0x7F4A7C15  # C: any odd number that spreads small fingerprints

_FEW = 32  # spare slots: small tables have no law of large numbers to lean on
_MOST_BUCKETS = 2_000  # looked at in search of a free slot: at load 0.95 it takes some ten
_RETRIES = 100
_CODES: dict[int, Literal["B", "H", "I"]] = {8: "B", 16: "H", 32: "I"}
_OTHER = f"(f * {FACTOR} - a) % {{}}"


@dataclass(frozen=True)
class CuckooShape:
    """``buckets`` of four fingerprints of ``bits`` (8, 16 or 32) each, little-endian, 0 for a free slot."""

    capacity: int
    error_rate: float
    bits: int
    buckets: int

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
    def body_bytes(self) -> int:
        """The size of the body in bytes."""
        return HEAD + -(-self.buckets * self.bucket_bytes // 8) * 8

    @property
    def parameters(self) -> tuple[int, ...]:
        """What a header stores of the shape."""
        return (self.bits, self.buckets)

    def place(self, digest: int) -> tuple[int, int, int]:
        """The fingerprint of a 128-bit digest and its two buckets."""
        fingerprint = digest >> (128 - self.bits) or 1
        bucket = (digest & MASK60) % self.buckets
        return fingerprint, bucket, self.other(fingerprint, bucket)

    def other(self, fingerprint: int, bucket: int) -> int:
        """The other bucket of a fingerprint that may lie in ``bucket``."""
        return (fingerprint * FACTOR - bucket) % self.buckets

    def offset(self, bucket: int, slot: int) -> int:
        """First byte of a slot in the body."""
        return HEAD + bucket * self.bucket_bytes + slot * self.bits // 8


def fingerprint_bits_for(error_rate: float) -> int:
    """The narrowest fingerprint that keeps ``error_rate``: eight slots are compared in each check."""
    for bits in _CODES:
        if 2 * SLOTS * LOAD / (1 << bits) <= sizing.check_error_rate(error_rate):
            return bits
    raise InvalidShape(f"error_rate is {error_rate!r}; fingerprints of 32 bits reach 1.8e-9")


class CuckooFilter(BodyFilter):
    """A multiset of keys that can forget: :meth:`discard` undoes one :meth:`add` of the same key.

    ``fingerprint_bits`` (8, 16 or 32) follow from ``error_rate`` unless given; the error rate is then what they give.
    Discard only what was added, and as often as it was added: that is what keeps two keys with one fingerprint apart.
    :meth:`add` raises :class:`FilterFull` where no room can be made; all that was in the filter is still there.
    """

    kind: ClassVar[str] = "cuckoo"
    supports_discard: ClassVar[bool] = True

    __slots__ = ("_moves", "_table", "_unpack", "discard")

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
    def shape(capacity: int, error_rate: float, fingerprint_bits: int | None = None) -> CuckooShape:
        """The shape for ``capacity`` keys; allocates nothing. Raises :class:`InvalidShape`."""
        slots = math.ceil(sizing.check_capacity(capacity) / LOAD) + (_FEW if capacity < 10_000 else 0)
        bits = fingerprint_bits_for(error_rate) if fingerprint_bits is None else fingerprint_bits
        return CuckooShape(capacity, sizing.check_error_rate(error_rate), bits, -(-slots // SLOTS))

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
        if len(header.parameters) != 2:
            raise InvalidShape(f"{len(header.parameters)} parameters; a cuckoo filter has 2")
        return CuckooShape(header.capacity, header.error_rate, *header.parameters)

    def _ready(self) -> None:
        shape, order = self.layout, "@" if sys.byteorder == "little" else "<"  # native reads a slot in one piece
        self.digest = self.key_hash.digest
        self._unpack = Struct(f"{order}{SLOTS}{_CODES[shape.bits]}").unpack_from
        self._table = self.body[HEAD : HEAD + shape.buckets * shape.bucket_bytes]
        self._moves = self.body[:4].cast("I")  # held against itself only, so its byte order does not matter
        self.might_contain = self._compile("key", self.key_hash.expression)
        self.might_contain_digest = self._compile("digest", "digest")
        self.discard = self._compile_discard()

    def _names(self) -> dict[str, Any]:
        """What compiled checks refer to: no reference to the filter itself, which would be a cycle."""
        return {"moves": self._moves, "unpack": self._unpack, "table": self._table}

    def _compile(self, argument: str, digest: str) -> Callable[[Any], bool]:
        size, other = self.layout.bucket_bytes, _OTHER.format(self.layout.buckets)
        names = self._names() | {"look_again": partial(_look_again, self.layout, *self._names().values())}
        return compile_check(
            argument,
            names | self.key_hash.names(),
            *self._placing(digest),
            "before = moves[0]",
            f"if f in unpack(table, {size} * a) or f in unpack(table, {size} * ({other})): return True",
            "return moves[0] != before and look_again(d)",
        )

    def _compile_discard(self) -> Callable[[bytes], bool]:
        """What :meth:`discard_writes` plans, done at once: a filter of one process needs no plan."""
        size, other = self.layout.bucket_bytes, _OTHER.format(self.layout.buckets)
        names = self._names() | {"slots": self._table.cast(_CODES[self.layout.bits])}
        return compile_check(
            "key",
            names | self.key_hash.names(),
            *self._placing(self.key_hash.expression),
            f"s = unpack(table, {size} * a)",
            "if f not in s:",
            f" a = {other}",
            f" s = unpack(table, {size} * a)",
            " if f not in s: return False",
            f"if s[0] == s[3] and s == (f, f, f, f) == unpack(table, {size} * ({other})): return False",
            "moves[0] = moves[0] + 1 & 4294967295",
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
        """The changes, in their order, that add ``digest``. Raises :class:`FilterFull`; nothing is changed here."""
        return self._writes(*self.layout.place(digest))

    def _writes(self, fingerprint: int, first: int, second: int) -> Writes:
        for bucket in (first, second):
            slots = self._bucket(bucket)
            if 0 in slots:
                return [self._put(bucket, slots.index(0), fingerprint)]
        if self._saturated(fingerprint, first, second):
            return []
        path = self._path(first, second)
        if path is None:
            raise FilterFull(
                f"no room for one more key: {self.size():,} of {self.layout.slots:,} slots are taken (capacity "
                f"{self.capacity:,}); build it again with a larger capacity"
            )
        # From the free slot backwards: what lies in each slot of the path goes to the one after it.
        changes: Writes = []
        moves = int.from_bytes(self.body[:4], "little")
        steps = path[:-1]
        for (bucket, slot), (to, at) in zip(reversed(steps), reversed(path)):
            changes.append(self._put(to, at, self._bucket(bucket)[slot]))
            moves += 1
            changes.append((0, (moves & 0xFFFFFFFF).to_bytes(4, "little")))
        changes.append(self._put(*steps[0], fingerprint))
        return changes

    def _path(self, first: int, second: int) -> list[tuple[int, int]] | None:
        """Slots ``(bucket, slot)`` from one of the two buckets to a free one, each the other bucket of the one before.

        Breadth first, so the path is the shortest; no bucket comes twice.
        """
        buckets, size, unpack, table = self.layout.buckets, self.layout.bucket_bytes, self._unpack, self._table
        queue: list[tuple[int, int, int]] = [(first, -1, -1), (second, -1, -1)]  # bucket, where from, its slot there
        seen = {first, second}
        at = 0
        while at < len(queue) and at < _MOST_BUCKETS:
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

    def _saturated(self, fingerprint: int, first: int, second: int) -> bool:
        return all(slot == fingerprint for bucket in (first, second) for slot in self._bucket(bucket))

    def saturated(self, key: bytes) -> bool:
        """Whether every slot that ``key`` could take holds its fingerprint: it then stays until the next build."""
        return self._saturated(*self.layout.place(self.digest(key)))

    def discard_writes(self, digest: int) -> Writes:
        fingerprint, *pair = self.layout.place(digest)
        if self._saturated(fingerprint, *pair):
            return []
        for bucket in pair:
            slots = self._bucket(bucket)
            if fingerprint in slots:  # counted as a move: it may be a copy whose twin a reader looked for too early
                moves = (int.from_bytes(self.body[:4], "little") + 1) & 0xFFFFFFFF
                return [(0, moves.to_bytes(4, "little")), self._put(bucket, slots.index(fingerprint), 0)]
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
        self.add(new)  # first, for it may find the filter full
        return self.discard(old)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        """Put many digests in; raises :class:`FilterFull` if some found no room."""
        left = self.place_digests(low, high)
        if len(left):
            raise FilterFull(
                f"no room for {len(left):,} of {len(low):,} keys: {self.size():,} of {self.layout.slots:,} slots are "
                f"taken (capacity {self.capacity:,}); build it again with a larger capacity"
            )

    def place_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.int64]:
        """Put in what there is room for; the indices of the rest. Readers without a lock miss nothing meanwhile."""
        assert high is not None, "a cuckoo filter takes its fingerprints from the high part of the digest"
        return cuckoo_bulk.place(self, low, high)

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        assert high is not None, "a cuckoo filter takes its fingerprints from the high part of the digest"
        return cuckoo_bulk.contains(self, low, high)

    def clear(self) -> None:
        moves = int.from_bytes(self.body[:4], "little")
        super().clear()
        self.body[:4] = ((moves + 1) & 0xFFFFFFFF).to_bytes(4, "little")

    def size(self) -> int:
        """Fingerprints in the filter (one pass over it)."""
        return cuckoo_bulk.size(self)

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return True  # an empty filter is still a filter

    def is_empty(self) -> bool:
        """Whether no slot is taken."""
        return self.size() == 0

    @property
    def fill(self) -> float:
        return self.size() / self.layout.slots

    def approximate_size(self) -> int:
        return self.size()

    def expected_error_rate(self) -> float:
        return float(1 - (1 - 1 / ((1 << self.layout.bits) - 1)) ** (2 * SLOTS * self.fill))


def _look_again(shape: CuckooShape, moves: Any, unpack: Any, table: memoryview, digest: int) -> bool:
    """The check of a digest that a writer's move may have come between; after many of them, the safe answer."""
    fingerprint, *pair = shape.place(digest)
    for _ in range(_RETRIES):
        before = moves[0]
        if any(fingerprint in unpack(table, bucket * shape.bucket_bytes) for bucket in pair):
            return True
        if moves[0] == before:
            return False
    return True
