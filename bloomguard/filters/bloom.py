"""Bloom filter with one-hash partitions.

The bits form ``k`` byte-aligned partitions whose sizes have no common factor: primes, and at most one power of two. A
key's bit in each partition is its 60-bit digest modulo the partition's size (Lu et al. 2015, "One-Hashing Bloom
Filter"). So a check takes one hash per key, and one remainder and one index per probe, at the false-positive rate of
the textbook filter. Bits are numbered from the high end of each byte, as in bitarray, ``numpy.packbits`` and the bit
commands of Redis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from bitarray import bitarray

from ..exceptions import InvalidShape, MismatchedFilters
from . import bulk, codec, sizing
from .base import BodyFilter, Shape
from .bulk import np
from .hashing import MASK60, KeyHash, compile_function

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from .base import Keys
    from .bulk import I64, U64, Parts


@dataclass(frozen=True)
class BloomShape(Shape):
    """The layout of a Bloom filter: ``sizes`` are its partitions in bits, in the order of the probes."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        sizes = self.sizes
        if not sizes or len(sizes) > sizing.MAX_HASHES or len(set(sizes)) != len(sizes):
            raise InvalidShape(f"partitions of sizes {sizes!r}; 1 to {sizing.MAX_HASHES} distinct sizes are needed")
        if min(sizes) < 2 or sum(sizes) > 2 * sizing.MAX_BITS:
            raise InvalidShape(f"partitions of sizes {sizes!r}; each has to be 2 or more, and 2**49 in all")

    @property
    def parameters(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def bits(self) -> int:
        """Number of bits, or counters, in all partitions."""
        return sum(self.sizes)

    def part_bytes(self, size: int) -> int:
        """Return the number of bytes of a partition of this size."""
        return -(-size // 8)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each partition."""
        return tuple(accumulate(map(self.part_bytes, self.sizes[:-1]), initial=0))

    def parts(self, body: memoryview) -> list[memoryview]:
        """Return the bytes of each partition."""
        return [body[offset : offset + self.part_bytes(size)] for offset, size in zip(self.offsets, self.sizes)]

    @property
    def body_bytes(self) -> int:  # padded to a multiple of 8
        return -(-sum(map(self.part_bytes, self.sizes)) // 8) * 8

    @cached_property
    def positions(self) -> Callable[[int], list[int]]:
        """``positions(digest)``: the bit positions of its low 60 bits, counted from the body's first bit."""
        return self.positions_from(0)

    def positions_from(self, start: int) -> Callable[[int], list[int]]:
        """Return :attr:`positions` with ``start`` added to each; compiled, because each add calls it."""
        terms = ", ".join(f"{start + first} + low % {size}" for first, size in zip(self.starts, self.sizes))
        return compile_function("digest", {}, f"low = digest & {MASK60}", f"return [{terms}]")

    def positions_many(self, low: U64) -> I64:
        """Return all bit positions of many digests, given their low 60 bits, shape ``(n,)``; in no particular order."""
        found = np.empty((len(self.sizes), len(low)), np.uint64)
        for row, start, size in zip(found, self.starts, self.sizes):
            bulk.remainders(low, size, row)
            row += np.uint64(start)
        return found.reshape(-1).view(np.int64)

    @property
    def starts(self) -> list[int]:
        """First bit of each partition."""
        return [8 * offset for offset in self.offsets]


class PartitionedFilter(BodyFilter):
    """A filter with one bit or counter for a key in each partition of a :class:`BloomShape`."""

    layout: BloomShape

    def __init__(
        self,
        capacity: int,
        error_rate: float = 0.01,
        *,
        hashes: int | None = None,
        width: int | None = None,
        secret: bytes = b"",
        max_bytes: int | None = None,
    ) -> None:
        self._allocate(self.shape(capacity, error_rate, hashes), KeyHash(width, secret), max_bytes)

    @classmethod
    def shape(cls, capacity: int, error_rate: float, hashes: int | None = None) -> BloomShape:
        """Return the shape for ``capacity`` keys at ``error_rate``; allocates nothing. Raises :class:`InvalidShape`."""
        if hashes is None:
            hashes = sizing.economical_hashes(error_rate)
        sizes = sizing.bloom_sizes(capacity, error_rate, hashes)
        return BloomShape(capacity, float(error_rate), sizes)

    @classmethod
    def shape_of(cls, header: codec.Header) -> BloomShape:
        return BloomShape(header.capacity, header.error_rate, header.parameters)

    def digests(self, keys: Keys) -> tuple[U64, U64 | None]:
        return self.key_hash.parts(keys, both=False)

    def _used(self) -> list[tuple[int, int]]:
        """Return ``(cells in use, cells)`` of each partition."""
        raise NotImplementedError

    @property
    def fill(self) -> float:
        return sum(used for used, _ in self._used()) / self.layout.bits

    def approximate_size(self) -> int:
        """Estimate the distinct keys from the fill (Swamidass and Baldi 2007), as the mean over the partitions."""
        # A full partition counts as one with half a clear cell.
        logs = [math.log(max(size - used, 0.5) / size) / math.log1p(-1 / size) for used, size in self._used()]
        return round(sum(logs) / len(logs))

    def expected_error_rate(self) -> float:
        """Return the false-positive rate at the current fill: the product of the partitions' fills."""
        return math.prod(used / size for used, size in self._used())


class BloomFilter(PartitionedFilter):
    """A set of byte strings without false negatives and with few false positives.

    Up to ``capacity`` keys the false-positive rate stays at ``error_rate``. The default of ``hashes`` takes few probes
    at little more than the least memory. ``width`` (8 or 16) is for keys that all have that many bytes, such as
    integers and UUIDs, and makes them several times faster. ``secret`` (16 to 64 bytes) prevents others from crafting
    keys that collide. Raises :class:`InvalidShape` for values out of range, and :class:`TooLarge` if the filter would
    take more than ``max_bytes`` (by default the machine's memory), before anything is allocated.

    >>> f = BloomFilter(1_000, 0.01)
    >>> f.add(b"paris")
    >>> f.might_contain(b"paris"), f.might_contain(b"atlantis")
    (True, False)
    """

    kind: ClassVar[str] = "bloom"
    plain_bits: ClassVar[bool] = True

    @classmethod
    def with_bits(
        cls, bits: int, hashes: int, *, width: int | None = None, secret: bytes = b"", max_bytes: int | None = None
    ) -> Self:
        """Return a filter of at least ``bits`` bits and ``hashes`` hashes; at its capacity half of the bits are set."""
        shape = shape_of_sizes(sizing.partition_sizes(bits, hashes))
        return cls.__new__(cls)._allocate(shape, KeyHash(width, secret), max_bytes)

    @classmethod
    def from_words(
        cls,
        words: bytes | bytearray | memoryview,
        sizes: Iterable[int],
        *,
        width: int | None = None,
        secret: bytes = b"",
    ) -> Self:
        """Return a filter from a copy of another filter's ``body`` and its partition ``sizes``.

        Raises :class:`InvalidShape` if the two do not match.
        """
        shape = shape_of_sizes(tuple(sizes))
        data = memoryview(bytearray(words))
        if len(data) != shape.body_bytes:
            raise InvalidShape(f"{len(data)} bytes of bits; partitions of {shape.sizes} need {shape.body_bytes}")
        return cls.__new__(cls)._attach(shape, KeyHash(width, secret), data)

    @staticmethod
    def growing(capacity: int, error_rate: float) -> BloomShape:
        """Return the shape whose error rate is at most ten times as high at twice ``capacity``; allocates nothing."""
        hashes = sizing.growing_hashes(error_rate)
        return BloomShape(capacity, float(error_rate), sizing.growing_sizes(capacity, error_rate, hashes))

    def _ready(self) -> None:
        self._partitions = [bitarray(buffer=part, endian="big") for part in self.layout.parts(self.body)]
        self.might_contain = self._compile("key", self.key_hash.expression)
        self.might_contain_digest = self._compile("digest", "digest")

    def _compile(self, argument: str, digest: str) -> Callable[[Any], bool]:
        """Compile a check, unrolled over the partitions, that stops at the first clear bit."""
        probes = [f"b{i}[h % {size}]" for i, size in enumerate(self.layout.sizes)]
        names = {f"b{i}": bits for i, bits in enumerate(self._partitions)} | self.key_hash.names()
        first = self.layout.sizes[0]
        if first & first - 1:
            return compile_function(
                argument, names, f"h = {digest} & {MASK60}", f"return True if {' and '.join(probes)} else False"
            )
        return compile_function(  # a power of two: most absent keys are rejected before the digest is masked
            argument,
            names,
            f"h = {digest}",
            f"if b0[h & {first - 1}]:",
            f" h &= {MASK60}",
            f" if {' and '.join(probes[1:]) or True}: return True",
            "return False",
        )

    def add(self, key: bytes) -> None:
        low = self.digest(key) & MASK60
        for bits, size in zip(self._partitions, self.layout.sizes):
            bits[low % size] = 1

    def test_and_add(self, key: bytes) -> bool:
        """Add ``key`` and return whether it might have been in the filter before. Writes in any case."""
        found = self.might_contain(key)
        self.add(key)
        return found

    def test_or_add(self, key: bytes) -> bool:
        """Add ``key`` if it is not in the filter; return whether it might have been. Writes only if it was not."""
        found = self.might_contain(key)
        if not found:
            self.add(key)
        return found

    def locations(self, key: bytes) -> list[int]:
        """Return the bit positions of ``key``, counted from the body's first bit."""
        return self.layout.positions(self.digest(key))

    def might_contain_at(self, locations: Iterable[int]) -> bool:
        """Return whether all bits at ``locations``, as returned by :meth:`locations`, are set."""
        body = self.body
        return all(body[at >> 3] & 128 >> (at & 7) for at in locations)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        bulk.set_bits(self._cells(), low)

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        return bulk.test_bits(self._cells(), low)

    def _cells(self) -> Parts:
        parts = self.layout.parts(self.body)
        return [(np.frombuffer(part, np.uint8), size) for part, size in zip(parts, self.layout.sizes)]

    def _used(self) -> list[tuple[int, int]]:
        return [(int(bits.count(1, 0, size)), size) for bits, size in zip(self._partitions, self.layout.sizes)]

    def union(self, other: BloomFilter) -> Self:
        """Return a filter of the keys of both. Raises :class:`MismatchedFilters`, which names the difference."""
        return self.copy().merge(other)

    def merge(self, other: BloomFilter) -> Self:
        """Add the keys of ``other`` in place. Raises :class:`MismatchedFilters`, which names the difference."""
        return self._combine(other, np.bitwise_or)

    def intersection(self, other: BloomFilter) -> Self:
        """Return a filter of the keys in both; it may also contain a few others.

        Its error rate is at most the smaller of the two. Raises :class:`MismatchedFilters`.
        """
        return self.copy()._combine(other, np.bitwise_and)

    def _combine(self, other: BloomFilter, operation: Callable[..., Any]) -> Self:
        if type(other) is not type(self):
            raise MismatchedFilters(f"a {type(self).__name__} and a {type(other).__name__} cannot be merged")
        pairs = {
            "partition sizes": (self.layout.sizes, other.layout.sizes),
            "key widths": (self.key_hash.width, other.key_hash.width),
        }
        for what, (ours, theirs) in pairs.items():
            if ours != theirs:
                raise MismatchedFilters(f"the {what} differ: {ours} here, {theirs} in the other filter")
        if self.key_hash != other.key_hash:
            raise MismatchedFilters("the secrets differ; merge only filters with the same secret")
        mine = np.frombuffer(self.body, np.uint8)
        operation(mine, np.frombuffer(other.body, np.uint8), out=mine)
        return self

    __or__ = union
    __and__ = intersection
    __ior__ = merge


def shape_of_sizes(sizes: tuple[int, ...]) -> BloomShape:
    """Return the shape of given partitions; its capacity fills half of the bits (the optimum, Bloom 1970)."""
    capacity = max(1, math.floor(sum(sizes) / max(1, len(sizes)) * math.log(2)))
    return BloomShape(capacity, max(1e-15, 0.5 ** max(1, len(sizes))), sizes)
