"""Choose the kind of a build's filter, and split it into shards, each of them a small filter.

A shard is small enough for a server to load, free and move without stalling, and far below the limit of 512 MB for one
Redis key. The kind decides which shard has a key: by its digest, or, in a bitmap, by range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..exceptions import CorruptFilter, InvalidShape, TooLarge
from . import sizing
from .base import BodyFilter, Shape
from .bitmap import TOP, ExactBitmap
from .bloom import BloomFilter, BloomShape, shape_of_sizes
from .bulk import np
from .codec import MAX_SHARDS, RECENT_HASHES, Frame, Header
from .cuckoo import CuckooFilter
from .hashing import MASK60, KeyHash

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .base import Keys
    from .bulk import I64, U64

#: The kinds of filters that a store can hold.
KINDS: dict[str, type[BodyFilter]] = {each.kind: each for each in (BloomFilter, CuckooFilter, ExactBitmap)}

SHARD_BYTES = 32 << 20
MAX_BYTES = 1 << 40
#: Capacity of each shard's recent bits: its part of an eighth of the build's capacity, or of a million if that is less.
_FEWEST_RECENT, _MOST_RECENT, _RECENT_SHARE, _RECENT_ERROR_RATE = 10_000, 1_000_000, 8, 0.01


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The shards of one build, which differ in their number alone.

    ``capacity`` counts the keys of all shards. ``header`` is that of the first shard: its ``tag`` identifies the build,
    and is set by the store that creates it; its ``key_id`` identifies the secret and the definition of the keys.
    """

    key_hash: KeyHash
    capacity: int
    header: Header = field(repr=False)

    @classmethod
    def plan(
        cls,
        *,
        key_hash: KeyHash,
        capacity: int,
        error_rate: float,
        key_id: int = 0,
        shard_bytes: int = SHARD_BYTES,
        kind: str = "bloom",
        **options: Any,
    ) -> Layout:
        """Return the layout of a filter of ``kind`` for ``capacity`` keys; allocates nothing.

        ``options`` depend on the kind: ``fingerprint_bits`` for "cuckoo" (default 32, as discards need distinct
        fingerprints); ``low``, ``high`` and ``overflow`` for "bitmap". Raises :class:`InvalidShape`, and
        :class:`TooLarge` for more than :data:`MAX_BYTES` in total.
        """
        if kind == "cuckoo":
            options.setdefault("fingerprint_bits", 32)
        held = KINDS[kind]
        shape, shards = held.plan(capacity, error_rate, shard_bytes=shard_bytes, **options)
        if shape.body_bytes * shards > MAX_BYTES or shards > MAX_SHARDS:
            raise TooLarge(
                f"{capacity:,} keys at {error_rate:.3g} take {shape.body_bytes * shards:,} bytes in {shards:,} shards "
                f"as a {kind} filter; at most {MAX_BYTES:,} bytes and {MAX_SHARDS:,} shards are possible"
            )
        first = Header(
            kind=kind,
            tag=0,
            capacity=shape.capacity,
            error_rate=sizing.check_error_rate(error_rate),
            body_bytes=shape.body_bytes,
            parameters=shape.parameters,
            width=key_hash.width,
            key_id=key_id,
            shards=shards,
            recent=_recent_sizes(capacity, shards),
        )
        held.shape_of(first)  # refuses keys that the kind cannot hold
        return cls(key_hash=key_hash, capacity=capacity, header=first)

    @classmethod
    def of(cls, header: Header, key_hash: KeyHash) -> Layout:
        """Return the layout that a build's first header describes. Raises :class:`CorruptFilter` for another header."""
        if header.shard:
            raise CorruptFilter(f"starts with shard {header.shard} of {header.shards}")
        if not header.recent:
            raise CorruptFilter("has no recent bits, so it was not written by a store")
        if header.kind not in KINDS:
            raise CorruptFilter(f"kind is {header.kind!r}; there are {', '.join(sorted(KINDS))}")
        return cls(key_hash=key_hash, capacity=header.capacity * header.shards, header=header)

    @cached_property
    def headers(self) -> tuple[Header, ...]:
        """The header of each shard."""
        return tuple(replace(self.header, shard=shard) for shard in range(self.header.shards))

    @property
    def kind(self) -> str:
        """The kind of filter of all shards."""
        return self.header.kind

    @property
    def error_rate(self) -> float:
        """The error rate at :attr:`capacity`."""
        return self.header.error_rate

    @property
    def total_bytes(self) -> int:
        """Size of all shards in bytes."""
        return self.header.frame_bytes * self.header.shards

    @cached_property
    def filter_class(self) -> type[BodyFilter]:
        """The class of this kind, for example to check ``supports_discard``."""
        return KINDS[self.kind]

    @cached_property
    def shape(self) -> Shape:
        """The layout of each shard's body. Raises :class:`CorruptFilter` if the headers are inconsistent."""
        return self.filter_class.trusted_shape(self.header, self.key_hash)

    @cached_property
    def locate(self) -> Callable[[bytes], tuple[int, int]]:
        """``locate(key) -> (shard, digest)``: the shard of a key, and the digest for that shard's filter."""
        return self.filter_class.locator(self.shape, self.header.shards, self.key_hash)

    def locate_many(self, keys: Keys) -> Iterator[tuple[int, U64, U64]]:
        """Group many keys by shard; yields each shard that has any, with the low and high parts of their digests."""
        shards, low, high = self.filter_class.locate_many(self.shape, self.header.shards, self.key_hash, keys)
        for shard, mine in self._by_shard(shards):
            yield shard, low[mine], high[mine]

    def contains_many(self, filters: Sequence[BodyFilter], keys: Keys) -> NDArray[np.bool_]:
        """Check many keys against the filters of all shards; returns a boolean array of shape ``(n,)``."""
        shards, low, high = self.filter_class.locate_many(self.shape, self.header.shards, self.key_hash, keys)
        found = np.empty(len(low), bool)
        for shard, mine in self._by_shard(shards):
            found[mine] = filters[shard].contains_digests(low[mine], high[mine])
        return found

    def _by_shard(self, shards: U64) -> Iterator[tuple[int, Any]]:
        """Yield each shard that has any of the keys, with an index of its keys in the array of all keys."""
        if self.header.shards == 1:
            if len(shards):
                yield 0, slice(None)
            return
        narrow = shards.astype(np.uint16)  # numpy sorts 16 bits by radix, several times as fast; MAX_SHARDS just fits
        order = np.argsort(narrow, kind="stable")
        counts = np.bincount(narrow, minlength=self.header.shards)
        for shard, mine in enumerate(np.split(order, np.cumsum(counts[:-1]))):
            if len(mine):
                yield shard, mine

    @cached_property
    def _recent(self) -> BloomShape:
        return shape_of_sizes(self.header.recent)

    @cached_property
    def recent_positions(self) -> Callable[[int], list[int]]:
        """``recent_positions(digest)``: the positions of its recent bits, counted from the body's first bit."""
        return self._recent.positions_from(8 * self.header.body_bytes)

    def recent_positions_many(self, low: U64) -> I64:
        """Return the positions of the recent bits of many digests, given their low parts; in no particular order."""
        return self._recent.positions_many(low & np.uint64(MASK60)) + 8 * self.header.body_bytes

    def written_positions(self, low: U64) -> I64:
        """Return all bits that an add of many digests to a filter of plain bits sets, in no particular order."""
        return np.concatenate((self.shape.positions_many(low), self.recent_positions_many(low)))  # type: ignore[attr-defined]

    def attach(self, frame: Frame) -> BodyFilter:
        """Return the filter over one shard's frame, which is shared, not copied. Raises :class:`CorruptFilter`."""
        return self.filter_class.attach(frame.header, frame.body, self.key_hash)

    def checker(self, filters: Sequence[BodyFilter]) -> Callable[[bytes], bool]:
        """Return one ``might_contain(key)`` over the filters of all shards, given in order: the fastest check."""
        if len(filters) == 1:
            return filters[0].might_contain
        return self.filter_class.checker(self.key_hash, list(filters))


def _recent_sizes(capacity: int, shards: int) -> tuple[int, ...]:
    recent = max(_FEWEST_RECENT, min(capacity // _RECENT_SHARE, _MOST_RECENT) // shards)
    return BloomFilter.shape(recent, _RECENT_ERROR_RATE, RECENT_HASHES).sizes


@dataclass(frozen=True, kw_only=True)
class KeysSummary:
    """The keys of a scan: their ``count``, and for 64-bit integers the lowest and the highest key."""

    count: int
    low: int | None = None
    high: int | None = None


def bitmap_of(keys: KeysSummary, capacity: int) -> dict[str, Any]:
    """Return the arguments of :meth:`Layout.plan` for an exact bitmap with room for ``capacity`` keys.

    Its range ends where that many keys end if they are as dense as the present ones.
    """
    low = 1 if keys.low is None else keys.low
    high = low if keys.high is None else keys.high
    reach = -(-(high - low + 1) * capacity // max(keys.count, 1))
    return {"kind": ExactBitmap.kind, "low": low, "high": min(max(high, low + reach - 1), TOP)}


def choose(keys: KeysSummary, error_rate: float, *, capacity: int) -> dict[str, Any]:
    """Choose an exact bitmap if it is smaller, a Bloom filter otherwise; return the arguments of :meth:`Layout.plan`.

    ``capacity`` is the number of keys to make room for. Raises :class:`InvalidShape`.
    """
    bloom = {"kind": BloomFilter.kind}
    most = BloomFilter.plan(sizing.check_capacity(capacity), error_rate)[0].body_bytes
    if not keys.count or keys.low is None:
        return bloom
    bitmap = bitmap_of(keys, capacity)
    try:
        shape, _ = ExactBitmap.plan(capacity, error_rate, low=bitmap["low"], high=bitmap["high"])
    except InvalidShape:  # the range is larger than any bitmap
        return bloom
    return bitmap if shape.body_bytes < most else bloom
