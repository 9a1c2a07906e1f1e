"""Bloom filter in one-hash partitions.

``k`` partitions whose sizes have no common factor (primes, and one power of two), byte-aligned one behind the other; a
key's bit in each is the remainder of its 60-bit digest by that size (Lu et al. 2015, "One-Hashing Bloom Filter"). One
hash a key, one remainder and one index a probe, and the false-positive rate of the textbook filter. Bits are numbered
from the high end of each byte, as bitarray, ``numpy.packbits`` and Redis' bit commands number them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from bitarray import bitarray

from . import bulk, codec, sizing
from .base import BodyFilter
from .errors import InvalidShape, MismatchedFilters
from .hashing import MASK60, KeyHash
from .parallel import Crew
from .unrolled import compile_check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from .base import U64, Keys, Writes


@dataclass(frozen=True)
class BloomShape:
    """Where the bits of a filter lie: ``sizes`` are its partitions in bits, in the order of the probes."""

    capacity: int
    error_rate: float
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_sizes(self.sizes)

    @property
    def parameters(self) -> tuple[int, ...]:
        """What a header stores of the shape: the partitions' sizes."""
        return self.sizes

    @property
    def bits(self) -> int:
        """Bits in all partitions together."""
        return sum(self.sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each partition."""
        offsets, at = [], 0
        for size in self.sizes:
            offsets.append(at)
            at += -(-size // 8)
        return tuple(offsets)

    @property
    def body_bytes(self) -> int:
        """Bytes of all partitions, padded to a multiple of 8."""
        return -(-sum(-(-size // 8) for size in self.sizes) // 8) * 8

    def positions(self, digest: int) -> list[int]:
        """The bit positions, from the body's first bit, that the low 60 bits of ``digest`` take."""
        low = digest & MASK60
        return [8 * offset + low % size for offset, size in zip(self.offsets, self.sizes)]

    def positions_many(self, low: U64) -> NDArray[np.int64]:
        """The same for digests whose low 60 bits are given, shape ``(n,)``; all positions, in no order."""
        import numpy as np

        found = np.empty((len(self.sizes), len(low)), np.uint64)
        for row, start, size in zip(found, self.starts, self.sizes):
            bulk.remainders(low, size, row)
            row += np.uint64(start)
        return found.reshape(-1).view(np.int64)

    @property
    def starts(self) -> list[int]:
        """First bit of each partition."""
        return [8 * offset for offset in self.offsets]


def check_sizes(sizes: tuple[int, ...]) -> None:
    """Raise :class:`InvalidShape` unless ``sizes`` can be a filter's partitions."""
    if not sizes or len(sizes) > sizing.MAX_HASHES or len(set(sizes)) != len(sizes):
        raise InvalidShape(f"partitions of sizes {sizes!r}; 1 to {sizing.MAX_HASHES} distinct sizes are needed")
    if min(sizes) < 2 or sum(sizes) > 2 * sizing.MAX_BITS:
        raise InvalidShape(f"partitions of sizes {sizes!r}; each has to be 2 or more, and 2**49 in all")


class BloomFilter(BodyFilter):
    """A set of byte strings that never denies a member and rarely admits a stranger.

    ``capacity`` keys fit in while the false-positive rate stays at ``error_rate``. ``hashes`` is chosen for few probes
    at little more than the least memory unless given. ``width`` (8 or 16) is for keys that all have that many bytes,
    such as integers and UUIDs, and makes them several times faster; ``secret`` (16 to 64 bytes) keeps outsiders from
    crafting keys that collide. Raises :class:`InvalidShape` for values out of range and :class:`TooLarge` for more
    than ``max_bytes`` (by default the machine's memory), before anything is allocated.

    >>> f = BloomFilter(1_000, 0.01)
    >>> f.add(b"paris")
    >>> f.might_contain(b"paris"), f.might_contain(b"atlantis")
    (True, False)
    """

    kind: ClassVar[str] = "bloom"
    plain_bits: ClassVar[bool] = True

    __slots__ = ("_partitions",)

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
    def with_bits(
        cls, bits: int, hashes: int, *, width: int | None = None, secret: bytes = b"", max_bytes: int | None = None
    ) -> Self:
        """A filter of at least ``bits`` bits and ``hashes`` hashes; its capacity is what half-full bits hold."""
        self = cls.__new__(cls)
        self._allocate(shape_of_sizes(sizing.partition_sizes(bits, hashes)), KeyHash(width, secret), max_bytes)
        return self

    @classmethod
    def from_words(
        cls,
        words: bytes | bytearray | memoryview,
        sizes: Iterable[int],
        *,
        width: int | None = None,
        secret: bytes = b"",
    ) -> Self:
        """A filter of the raw bits of another one's ``body``, copied, and of its partition ``sizes``.

        Raises :class:`InvalidShape` if the two do not go together.
        """
        shape = shape_of_sizes(tuple(sizes))
        data = memoryview(bytearray(words))
        if len(data) != shape.body_bytes:
            raise InvalidShape(f"{len(data)} bytes of bits; partitions of {shape.sizes} need {shape.body_bytes}")
        self = cls.__new__(cls)
        self._attach(shape, KeyHash(width, secret), data)
        return self

    @staticmethod
    def shape(capacity: int, error_rate: float, hashes: int | None = None) -> BloomShape:
        """The shape for ``capacity`` keys at ``error_rate``; allocates nothing. Raises :class:`InvalidShape`."""
        if hashes is None:
            hashes = sizing.economical_hashes(error_rate)
        sizes = sizing.bloom_sizes(capacity, error_rate, hashes)
        return BloomShape(capacity, float(error_rate), sizes)

    @staticmethod
    def growing(capacity: int, error_rate: float, hashes: int | None = None) -> BloomShape:
        """The shape that errs at twice its ``capacity`` at most ten times as often; allocates nothing."""
        if hashes is None:
            hashes = sizing.growing_hashes(error_rate)
        return BloomShape(capacity, float(error_rate), sizing.growing_sizes(capacity, error_rate, hashes))

    @classmethod
    def plan(
        cls, capacity: int, error_rate: float, *, shard_bytes: int | None = None, **options: Any
    ) -> tuple[BloomShape, int]:
        whole = cls.growing(capacity, error_rate, **options)
        shards = 1 if shard_bytes is None else -(-whole.body_bytes // shard_bytes)
        if shards > 1:
            whole = cls.growing(sizing.fullest_shard(capacity, shards), error_rate, **options)
        return whole, shards

    @classmethod
    def shape_of(cls, header: codec.Header) -> BloomShape:
        return BloomShape(header.capacity, header.error_rate, header.parameters)

    def _ready(self) -> None:
        self.digest = self.key_hash.digest
        self._partitions = tuple(
            bitarray(buffer=self.body[offset : offset + -(-size // 8)], endian="big")
            for offset, size in zip(self.layout.offsets, self.layout.sizes)
        )
        self.might_contain = self._compile("key", self.key_hash.expression)
        self.might_contain_digest = self._compile("digest", "digest")

    def _compile(self, argument: str, digest: str) -> Callable[[Any], bool]:
        """A check unrolled over the partitions, which stops at the first clear bit."""
        probes = [f"b{i}[h % {size}]" for i, size in enumerate(self.layout.sizes)]
        names = {f"b{i}": bits for i, bits in enumerate(self._partitions)} | self.key_hash.names()
        first = self.layout.sizes[0]
        if first & first - 1:
            return compile_check(
                argument, names, f"h = {digest} & {MASK60}", f"return True if {' and '.join(probes)} else False"
            )
        return compile_check(  # a power of two: most strangers are turned away without even the mask
            argument,
            names,
            f"h = {digest}",
            f"if b0[h & {first - 1}]:",
            f" h &= {MASK60}",
            f" if {' and '.join(probes[1:]) or True}: return True",
            "return False",
        )

    def add(self, key: bytes) -> None:
        """Put ``key`` in."""
        low = self.digest(key) & MASK60
        for bits, size in zip(self._partitions, self.layout.sizes):
            bits[low % size] = 1

    def test_and_add(self, key: bytes) -> bool:
        """Whether ``key`` might have been in; it is now. Writes in any case."""
        found = self.might_contain(key)
        self.add(key)
        return found

    def test_or_add(self, key: bytes) -> bool:
        """Whether ``key`` might have been in; if not, it is now. Writes only then."""
        found = self.might_contain(key)
        if not found:
            self.add(key)
        return found

    def locations(self, key: bytes) -> list[int]:
        """The bits of the body that ``key`` takes, as positions from its first bit."""
        return self.layout.positions(self.digest(key))

    def might_contain_at(self, locations: Iterable[int]) -> bool:
        """Whether the bits at ``locations``, as :meth:`locations` gives them, are all set."""
        body = self.body
        return all(body[at >> 3] & 128 >> (at & 7) for at in locations)

    def writes(self, digest: int) -> Writes:
        body, changes = self.body, []
        for position in self.layout.positions(digest):
            offset, bit = position >> 3, 128 >> (position & 7)
            old = body[offset]
            if not old & bit:
                changes.append((offset, bytes((old | bit,))))
        return changes

    def digests(self, keys: Keys) -> tuple[U64, U64 | None]:
        with Crew() as crew:
            return self.key_hash.lows(keys, crew), None

    def add_many(self, keys: Keys) -> None:
        """Put many keys in: an iterable of ``bytes``, or what :meth:`KeyHash.digests` takes."""
        with Crew() as crew:
            setter = bulk.BitSetter(self.body, self.layout.offsets, self.layout.sizes, crew)
            for batch in bulk.batches(self.key_hash.width, keys, setter.batch):
                setter.set(self.key_hash.lows(batch, crew))

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        with Crew() as crew:
            bulk.BitSetter(self.body, self.layout.offsets, self.layout.sizes, crew).set(low)

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        return bulk.test_bits(self.body, self.layout.offsets, self.layout.sizes, low)

    def _used(self) -> list[tuple[int, int]]:
        """Bits that are set, and all bits, of each partition."""
        return [(int(bits.count(1, 0, size)), size) for bits, size in zip(self._partitions, self.layout.sizes)]

    @property
    def fill(self) -> float:
        """Share of the bits that are set, 0 to 1."""
        return sum(used for used, _ in self._used()) / self.layout.bits

    def approximate_size(self) -> int:
        """Distinct keys estimated from the fill (Swamidass and Baldi 2007), the mean over the partitions."""
        return estimate_size(self._used())

    def expected_error_rate(self) -> float:
        """The false-positive rate that the present fill gives: the product of the partitions' fills."""
        return math.prod(used / size for used, size in self._used())

    def union(self, other: BloomFilter) -> Self:
        """A filter of the keys of both. Raises :class:`MismatchedFilters`, which names what differs."""
        return self.copy().merge(other)

    def merge(self, other: BloomFilter) -> Self:
        """Put the keys of ``other`` in. Raises :class:`MismatchedFilters`, which names what differs."""
        import numpy as np

        mine = np.frombuffer(self.body, np.uint8)
        np.bitwise_or(mine, np.frombuffer(self._like(other).body, np.uint8), out=mine)
        return self

    def intersection(self, other: BloomFilter) -> Self:
        """A filter that might contain what both might contain: the keys in both, and a few more.

        Its error rate is at most the smaller of the two. Raises :class:`MismatchedFilters`.
        """
        import numpy as np

        both = self.copy()
        mine = np.frombuffer(both.body, np.uint8)
        np.bitwise_and(mine, np.frombuffer(self._like(other).body, np.uint8), out=mine)
        return both

    def _like(self, other: BloomFilter) -> BloomFilter:
        if type(other) is not type(self):
            raise MismatchedFilters(f"a {type(self).__name__} and a {type(other).__name__} cannot be merged")
        pairs = {
            "partition sizes": (self.layout.sizes, other.layout.sizes),
            "key widths": (self.key_hash.width, other.key_hash.width),
        }
        for what, (mine, theirs) in pairs.items():
            if mine != theirs:
                raise MismatchedFilters(f"the {what} differ: {mine} here, {theirs} in the other")
        if self.key_hash != other.key_hash:
            raise MismatchedFilters("the secrets differ; filters that are merged have to share one")
        return other

    __or__ = union
    __and__ = intersection
    __ior__ = merge


def shape_of_sizes(sizes: tuple[int, ...]) -> BloomShape:
    """The shape of given partitions; its capacity fills half of the bits (the optimum, Bloom 1970)."""
    check_sizes(sizes)
    capacity = max(1, math.floor(sum(sizes) / len(sizes) * math.log(2)))
    return BloomShape(capacity, min(0.5, max(1e-15, 0.5 ** len(sizes))), sizes)


def estimate_size(counts: list[tuple[int, int]]) -> int:
    """Distinct keys behind partitions of ``(cells in use, cells)`` each."""
    estimates = []
    for used, size in counts:
        clear = max(size - used, 0.5)  # a full partition has no logarithm; half a cell is its best guess
        estimates.append(math.log(clear / size) / math.log1p(-1 / size))
    return round(sum(estimates) / len(estimates))
