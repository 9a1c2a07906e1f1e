"""Counting and spectral Bloom filters, which have a counter instead of each bit of a Bloom filter.

The partitions are those of :class:`BloomFilter`. A counter has 4 bits (Fan et al. 2000), or 32 in the spectral filter
(Cohen and Matias 2003), where the smallest counter of a key is the number of its adds, or more in case of collisions. A
counter that has reached its maximum stays there, because it no longer has the exact count to subtract from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from . import codec
from .bloom import BloomShape, PartitionedFilter
from .bulk import np
from .hashing import MASK60

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .base import Writes
    from .bulk import I64, U64


@dataclass(frozen=True)
class CountingShape(BloomShape):
    """Partitions of ``sizes`` counters of 4 bits (two per byte, the first in the high half) or 32 (little-endian)."""

    cell_bits: int

    def part_bytes(self, size: int) -> int:
        return -(-size * self.cell_bits // 32) * 4


class CountingBloomFilter(PartitionedFilter):
    """A Bloom filter that supports removal: :meth:`discard` undoes one :meth:`add` of the same key.

    It takes four times the memory of a Bloom filter. A counter that has reached 15 stays there, so a key that was added
    that often may never be removed. Discard only keys that were added: discarding a false positive decrements counters
    of other keys.
    """

    kind: ClassVar[str] = "counting"
    supports_discard: ClassVar[bool] = True
    cell_bits: ClassVar[int] = 4

    layout: CountingShape

    @classmethod
    def shape(cls, capacity: int, error_rate: float, hashes: int | None = None) -> CountingShape:
        bits = super().shape(capacity, error_rate, hashes)
        return CountingShape(capacity, bits.error_rate, bits.sizes, cls.cell_bits)

    @classmethod
    def shape_of(cls, header: codec.Header) -> CountingShape:
        return CountingShape(header.capacity, header.error_rate, header.parameters, cls.cell_bits)

    def _ready(self) -> None:
        self._limit = (1 << self.cell_bits) - 1
        self._parts = self.layout.parts(self.body)

    def might_contain(self, key: bytes) -> bool:
        """Return whether no counter of ``key`` is 0."""
        return self.might_contain_digest(self.digest(key))

    def might_contain_digest(self, digest: int) -> bool:
        """Do the same for the key with this digest."""
        return all(self._counts(digest))

    def _counts(self, digest: int) -> list[int]:
        low, counts = digest & MASK60, []
        for part, size in zip(self._parts, self.layout.sizes):
            at = low % size
            if self.cell_bits == 32:
                counts.append(int.from_bytes(part[4 * at : 4 * at + 4], "little"))
            else:
                counts.append(part[at >> 1] & 15 if at & 1 else part[at >> 1] >> 4)
        return counts

    def _changes(self, digest: int, counts: list[int], step: int) -> Writes:
        """Return the changes that add ``step`` to each counter of ``digest``, except to those at their maximum."""
        low, changes = digest & MASK60, []
        for offset, part, size, count in zip(self.layout.offsets, self._parts, self.layout.sizes, counts):
            if count == self._limit:
                continue
            at, new = low % size, count + step
            if self.cell_bits == 32:
                changes.append((offset + 4 * at, new.to_bytes(4, "little")))
            else:
                old = part[at >> 1]
                changes.append((offset + (at >> 1), bytes((old & 240 | new if at & 1 else old & 15 | new << 4,))))
        return changes

    def writes(self, digest: int) -> Writes:
        return self._changes(digest, self._counts(digest), 1)

    def discard(self, key: bytes) -> bool:
        digest = self.digest(key)
        counts = self._counts(digest)
        if not all(counts):
            return False
        self._apply(self._changes(digest, counts, -1))
        return True

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        for part, size in zip(self._parts, self.layout.sizes):
            positions, added = np.unique(low % np.uint64(size), return_counts=True)
            places = positions.astype(np.int64)
            self._store(part, places, np.minimum(self._load(part, places) + added, self._limit))

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        return self._frequencies(low) > 0

    def _frequencies(self, low: U64) -> I64:
        least = np.full(len(low), self._limit, np.int64)
        for part, size in zip(self._parts, self.layout.sizes):
            np.minimum(least, self._load(part, (low % np.uint64(size)).astype(np.int64)), out=least)
        return least

    def _load(self, part: memoryview, places: I64) -> I64:
        """Return the counters at ``places`` of a partition."""
        if self.cell_bits == 32:
            wide: I64 = np.frombuffer(part, "<u4")[places].astype(np.int64)
            return wide
        cells = np.frombuffer(part, np.uint8)[places >> 1]
        halves: I64 = np.where(places & 1, cells & 15, cells >> 4).astype(np.int64)
        return halves

    def _store(self, part: memoryview, places: I64, counts: I64) -> None:
        """Set the counters at ``places``, which are distinct."""
        if self.cell_bits == 32:
            np.frombuffer(part, "<u4")[places] = counts
            return
        cells = np.frombuffer(part, np.uint8)
        for odd, keep, shift in ((0, 15, 4), (1, 240, 0)):  # the two halves of a byte, one after the other
            mine = (places & 1) == odd
            at = places[mine] >> 1
            cells[at] = cells[at] & keep | counts[mine].astype(np.uint8) << shift

    def _used(self) -> list[tuple[int, int]]:
        used = []
        for part, size in zip(self._parts, self.layout.sizes):
            cells = np.frombuffer(part, np.uint8)
            halves = (cells & 15, cells & 240) if self.cell_bits == 4 else (cells.view(np.uint32),)
            used.append((sum(int(np.count_nonzero(half)) for half in halves), size))
        return used


class SpectralBloomFilter(CountingBloomFilter):
    """A Bloom filter that counts how often each key was added: never too low, and too high only at the error rate.

    >>> f = SpectralBloomFilter(1_000, 0.001)
    >>> f.add_many([b"a", b"b", b"a"])
    >>> f.frequency(b"a"), f.frequency(b"b"), f.frequency(b"c")
    (2, 1, 0)
    """

    kind: ClassVar[str] = "spectral"
    cell_bits: ClassVar[int] = 32

    def frequency(self, key: bytes) -> int:
        """Return the smallest of the key's counters; 2**32 - 1 means that number or more."""
        return min(self._counts(self.digest(key)))

    def frequencies(self, keys: Any) -> I64:
        """Return the frequencies of many keys as an int64 array of shape ``(n,)``."""
        return self._frequencies(self.digests(keys)[0])
