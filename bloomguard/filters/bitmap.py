"""Exact bitmap: one bit for each integer of a range, without false positives and without a hash.

Keys are signed 64-bit integers as 8 bytes, little-endian. A build is split into shards by range: shard ``i`` holds
``span`` integers from ``low + i * span`` on. A key outside the range goes to the *overflow*, a small Bloom filter
behind the bits of each shard; its hash picks the shard. No key is dropped, and the next rebuild extends the range.

A guard's range is planned for twice its capacity: IDs of the same density stay exact until there are twice as many.
Answers within the range are exact, however many keys are in the overflow.

The *digest* of a key is its place in its shard, or, outside the range, the low 60 bits of its hash with bit 63 set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar

from bitarray import bitarray

from ..exceptions import InvalidShape
from . import bulk, codec, sizing
from .base import BodyFilter, Shape
from .bloom import BloomFilter, BloomShape
from .bulk import np
from .hashing import MASK60, KeyHash, compile_function

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .base import Keys
    from .bulk import I64, U64

OUTSIDE = 1 << 63

# Capacity of the overflow: 10,000 keys, or for a large range one key per 1,000 of its integers, which costs 1 to 2% of
# the range's bits; but at most half the filter's capacity.
_LEAST_OVERFLOW = 10_000
_OVERFLOW_SHARE = 1_000
TOP = (1 << 63) - 1  # the highest key
_UNPACK = Struct("<q").unpack  # takes half the time of int.from_bytes with its keywords


@dataclass(frozen=True)
class BitmapShape(Shape):
    """Bits for ``span`` integers from ``low`` on, then a Bloom filter for ``overflow.capacity`` keys.

    ``capacity`` counts keys. It may be less than ``span``: the range may have gaps, and room for growth. The error rate
    is that of the overflow: keys in the range are exact.
    """

    low: int
    span: int
    overflow: BloomShape

    def __post_init__(self) -> None:
        if not (-(1 << 63) <= self.low < 1 << 63 and 1 <= self.span <= sizing.MAX_BITS):
            raise InvalidShape(
                f"a range of {self.span!r} integers from {self.low!r} on; it has to have 1 to 2**48 integers of 64 bits"
            )

    @property
    def bit_bytes(self) -> int:
        """Bytes of the range's bits, padded to a multiple of 8."""
        return -(-self.span // 64) * 8

    @property
    def body_bytes(self) -> int:
        return self.bit_bytes + self.overflow.body_bytes

    @property
    def parameters(self) -> tuple[int, ...]:
        return (self.low & 0xFFFFFFFFFFFFFFFF, self.span, self.overflow.capacity, *self.overflow.sizes)

    @cached_property
    def positions(self) -> Callable[[int], list[int]]:
        """``positions(digest)``: the bit positions of a digest, counted from the body's first bit."""
        names = {"outside": self.overflow.positions_from(8 * self.bit_bytes)}
        return compile_function("digest", names, f"return [digest] if digest < {self.span} else outside(digest)")

    def positions_many(self, low: U64) -> I64:
        """Return all bit positions of many digests of shape ``(n,)``, in no particular order."""
        outside = low >= np.uint64(self.span)
        if not outside.any():
            return low.view(np.int64)
        beside = self.overflow.positions_many(low[outside] & np.uint64(MASK60)) + 8 * self.bit_bytes
        return np.concatenate((low[~outside].view(np.int64), beside))


class ExactBitmap(BodyFilter):
    """An exact set of integers in ``[low, high]``; integers outside go to a Bloom filter with ``error_rate``.

    It does not support discard: a bit has no count, so if a delete and an insert of the same ID are applied in the
    wrong order, the ID would be lost.

    >>> f = ExactBitmap(1, 1_000_000)
    >>> f.add((17).to_bytes(8, "little"))
    >>> f.might_contain((17).to_bytes(8, "little")), f.might_contain((18).to_bytes(8, "little"))
    (True, False)
    """

    kind: ClassVar[str] = "bitmap"
    plain_bits: ClassVar[bool] = True

    layout: BitmapShape
    #: The Bloom filter of the keys outside the range, in the same memory.
    overflow: BloomFilter

    def __init__(
        self,
        low: int,
        high: int,
        error_rate: float = 0.01,
        *,
        overflow: int | None = None,
        secret: bytes = b"",
        max_bytes: int | None = None,
    ) -> None:
        self._allocate(self.shape(low, high, error_rate, overflow), KeyHash(8, secret), max_bytes)

    @staticmethod
    def shape(
        low: int, high: int, error_rate: float, overflow: int | None = None, *, capacity: int | None = None
    ) -> BitmapShape:
        """Return the shape for ``[low, high]`` and ``overflow`` keys outside it; allocates nothing."""
        if high < low:
            raise InvalidShape(f"the range [{low}, {high}] is empty")
        span = high - low + 1
        capacity = span if capacity is None else capacity
        if overflow is None:
            overflow = min(-(-capacity // 2), max(_LEAST_OVERFLOW, span // _OVERFLOW_SHARE))
        return BitmapShape(capacity, float(error_rate), low, span, BloomFilter.growing(overflow, error_rate))

    @classmethod
    def plan(
        cls, capacity: int, error_rate: float, *, shard_bytes: int = sizing.MAX_BITS, **options: Any
    ) -> tuple[BitmapShape, int]:
        """Return the shape of one shard and the number of shards; requires the options ``low`` and ``high``."""
        sizing.check_capacity(capacity)
        low, high = options.pop("low", None), options.pop("high", None)
        if low is None or high is None:
            raise InvalidShape(f"low is {low!r} and high is {high!r}; an exact bitmap needs both")
        reach = max(high, min(low + sizing.GROWTH * (high - low + 1) - 1, TOP))
        whole = cls.shape(low, reach, error_rate, capacity=capacity, **options)
        shards = -(-whole.body_bytes // shard_bytes)
        if shards > 1:
            span = -(-whole.span // (64 * shards)) * 64  # the last shard extends a little past the end
            overflow = sizing.fullest_shard(whole.overflow.capacity, shards)
            whole = cls.shape(low, low + span - 1, error_rate, overflow, capacity=-(-capacity // shards))
        return whole, shards

    @classmethod
    def shape_of(cls, header: codec.Header) -> BitmapShape:
        if header.width != 8:
            raise InvalidShape(f"keys of width {header.width}; an exact bitmap takes integers of 8 bytes")
        if len(header.parameters) < 4:
            raise InvalidShape(f"{len(header.parameters)} parameters; an exact bitmap has at least 4")
        low, span, overflow, *sizes = header.parameters
        if low >> 63:
            low -= 1 << 64
        shape = BloomShape(sizing.check_capacity(overflow), header.error_rate, tuple(sizes))
        return BitmapShape(header.capacity, header.error_rate, low + header.shard * span, span, shape)

    def _ready(self) -> None:
        shape = self.layout
        self._bits = bitarray(buffer=self.body[: shape.bit_bytes], endian="big")
        self.overflow = BloomFilter.__new__(BloomFilter)._attach(
            shape.overflow, self.key_hash, self.body[shape.bit_bytes :]
        )
        names = {
            "unpack": _UNPACK,
            "hashed": self.key_hash.digest,
            "bits": self._bits,
            "overflow": self.overflow.might_contain,
        }
        self.digest = compile_function(
            "key",
            names,
            f"i = unpack(key)[0] - {shape.low}",
            f"return i if 0 <= i < {shape.span} else hashed(key) & {MASK60} | {OUTSIDE}",
        )
        self.might_contain = compile_function(
            "key",
            names,
            f"i = unpack(key)[0] - {shape.low}",
            f"return (True if bits[i] else False) if 0 <= i < {shape.span} else overflow(key)",
        )

    def might_contain_digest(self, digest: int) -> bool:
        """Do the same as ``might_contain`` for the key with this digest."""
        if digest < self.layout.span:
            return bool(self._bits[digest])
        return self.overflow.might_contain_digest(digest)

    # The range gives the shard of a key.

    @classmethod
    def locator(cls, first: BitmapShape, shards: int, key_hash: KeyHash) -> Callable[[bytes], tuple[int, int]]:
        return compile_function(
            "key",
            {"unpack": _UNPACK, "hashed": key_hash.digest},
            f"i = unpack(key)[0] - {first.low}",
            f"if 0 <= i < {first.span * shards}:",
            f"  return divmod(i, {first.span})" if shards > 1 else "  return 0, i",
            "d = hashed(key)",
            f"return (d >> 64) % {shards}, d & {MASK60} | {OUTSIDE}",
        )

    @classmethod
    def locate_many(cls, first: BitmapShape, shards: int, key_hash: KeyHash, keys: Keys) -> tuple[U64, U64, U64]:
        words = key_hash.words(keys)[:, 0]
        places = words - np.uint64(first.low & 0xFFFFFFFFFFFFFFFF)  # modulo 2**64: correct for keys from low on
        outside = (words.view(np.int64) < first.low) | (places >= np.uint64(first.span * shards))
        found = np.zeros(len(places), np.uint64)
        if shards > 1:
            np.divmod(places, np.uint64(first.span), out=(found, places))
        if outside.any():
            low, high = key_hash.digests(words[outside].view(np.int64))
            found[outside] = high % np.uint64(shards)
            places[outside] = low | np.uint64(OUTSIDE)
        return found, places, np.zeros(len(places), np.uint64)

    @classmethod
    def checker(cls, key_hash: KeyHash, filters: list[Any]) -> Callable[[bytes], bool]:
        shape = filters[0].layout
        names = key_hash.names() | {
            "unpack": _UNPACK,
            "bits": [each._bits for each in filters],
            "overflow": [each.overflow.might_contain_digest for each in filters],
        }
        return compile_function(
            "key",
            names,
            f"i = unpack(key)[0] - {shape.low}",
            f"if 0 <= i < {shape.span * len(filters)}:",
            f" return True if bits[i // {shape.span}][i % {shape.span}] else False",
            f"d = {key_hash.expression}",
            f"return overflow[(d >> 64) % {len(filters)}](d)",
        )

    def digests(self, keys: Keys) -> tuple[U64, U64 | None]:
        return self.locate_many(self.layout, 1, self.key_hash, keys)[1:]

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        bulk.set_at(np.frombuffer(self.body, np.uint8), self.layout.positions_many(low))

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        inside = low < np.uint64(self.layout.span)
        found = np.zeros(len(low), bool)
        found[inside] = bulk.test_at(np.frombuffer(self.body, np.uint8), low[inside].view(np.int64))
        if not inside.all():
            found[~inside] = self.overflow.contains_digests(low[~inside] & np.uint64(MASK60))
        return found

    def measure_error_rate(self, probes: int = 100_000) -> float:
        """Return the share of ``probes`` random keys that the overflow reports as present; the range has no errors."""
        return self.overflow.measure_error_rate(probes)

    @property
    def fill(self) -> float:
        return int(self._bits.count()) / self.layout.span

    def approximate_size(self) -> int:
        """Return the exact count in the range plus the Bloom filter's estimate of the keys outside."""
        return int(self._bits.count()) + self.overflow.approximate_size()

    def expected_error_rate(self) -> float:
        """Return the false-positive rate outside the range."""
        return self.overflow.expected_error_rate()
