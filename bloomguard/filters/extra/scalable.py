"""Filters that grow by layers, for an unknown number of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from .. import cuckoo_bulk, sizing
from ..bloom import BloomFilter
from ..cuckoo import CuckooFilter
from ..cuckoo_shape import CuckooShape
from ..errors import FilterFull, InvalidShape
from ..hashing import KeyHash
from .layered import MAX_LAYERS, LayeredFilter, pack_float, unpack_float

if TYPE_CHECKING:
    from ..base import U64

_FEW = 32  # capacity of each table's spill: 32 twins, or 1/32 of the keys if that is more


class ScalableBloomFilter(LayeredFilter):
    """A Bloom filter that grows: when a layer is full, the next one has ``growth`` times its capacity.

    ``capacity`` is that of the first layer. Each layer's error rate is ``tightening`` times the previous one, so their
    sum is at most ``error_rate`` for any number of layers (Almeida et al. 2007). ``growth=1`` makes equal layers.
    Raises :class:`InvalidShape`.
    """

    kind: ClassVar[str] = "scalable"
    layer_class = BloomFilter

    __slots__ = ("_counts", "growth", "tightening")

    layers: list[BloomFilter]

    def __init__(
        self,
        capacity: int = 1_000,
        error_rate: float = 0.01,
        *,
        growth: int = 2,
        tightening: float = 0.5,
        width: int | None = None,
        secret: bytes = b"",
    ) -> None:
        self.capacity = sizing.check_capacity(capacity)
        self.error_rate = sizing.check_error_rate(error_rate)
        self.key_hash = KeyHash(width, secret)
        self.growth, self.tightening = growth, tightening
        self._check()
        self.clear()

    def _check(self) -> None:
        if not 1 <= self.growth <= 16:
            raise InvalidShape(f"growth is {self.growth!r}; it has to be from 1 to 16")
        if not 0.1 <= self.tightening <= 0.95:
            raise InvalidShape(f"tightening is {self.tightening!r}; it has to be from 0.1 to 0.95")

    def clear(self) -> None:
        """Remove all keys and layers, and start with one layer again."""
        self.layers: list[BloomFilter] = []
        self._counts: list[int] = []
        self._grow()

    def _grow(self) -> None:
        number = len(self.layers)
        if number == MAX_LAYERS:
            raise FilterFull(f"{MAX_LAYERS} layers of {self.capacity:,} keys and more are full; set a larger capacity")
        rate = self.error_rate * (1 - self.tightening) * self.tightening**number
        shape = BloomFilter.shape(self.capacity * self.growth**number, max(rate, 1e-15))
        self.layers.append(self._layer(shape))
        self._counts.append(0)

    def add(self, key: bytes) -> None:
        """Add ``key`` if it is not in the filter."""
        if self.might_contain(key):
            return
        if self._counts[-1] >= self.layers[-1].capacity:
            self._grow()
        self.layers[-1].add(key)
        self._counts[-1] += 1

    def add_digests(self, low: U64, high: U64) -> None:
        import numpy as np

        low = np.unique(low[~self.contains_digests(low, high)])
        while len(low):
            room = self.layers[-1].capacity - self._counts[-1]
            if room <= 0:
                self._grow()
                continue
            self.layers[-1].add_digests(low[:room])
            self._counts[-1] += min(room, len(low))
            low = low[room:]

    def _parameters(self) -> tuple[int, ...]:
        return (self.growth, pack_float(self.tightening), *self._counts)

    def _restore(self, parameters: Sequence[int]) -> None:
        if len(parameters) != 2 + len(self.layers) or not self.layers:
            raise InvalidShape(f"{len(parameters)} parameters for {len(self.layers)} layers")
        growth, tightening, *self._counts = parameters
        self.growth, self.tightening = growth, unpack_float(tightening)
        self._check()
        sizing.check_capacity(self.capacity)
        sizing.check_error_rate(self.error_rate)


class ScalableCuckooFilter(LayeredFilter):
    """A cuckoo filter that grows: a key without room goes to another table of the same size.

    All tables have the same shape, so a key has the same fingerprint and buckets in each, as if every bucket had four
    more slots, and a discard removes one of the key's copies from any table. The error rates of the tables add up:
    ``stats().expected_error_rate`` gives the sum, and a rebuild with a larger capacity reduces it.
    """

    kind: ClassVar[str] = "scalable-cuckoo"
    supports_discard: ClassVar[bool] = True
    layer_class = CuckooFilter

    __slots__ = ("_bits",)

    layers: list[CuckooFilter]

    def __init__(
        self,
        capacity: int = 1_000,
        error_rate: float = 0.0002,
        *,
        fingerprint_bits: int | None = None,
        width: int | None = None,
        secret: bytes = b"",
    ) -> None:
        self.capacity, self.error_rate = capacity, error_rate
        self._bits = CuckooFilter.shape(capacity, error_rate, fingerprint_bits).bits
        self.key_hash = KeyHash(width, secret)
        self.clear()

    def clear(self) -> None:
        """Remove all keys and tables, and start with one table again."""
        self.layers: list[CuckooFilter] = []
        self._grow()

    def _grow(self) -> CuckooFilter:
        if len(self.layers) == MAX_LAYERS:
            raise FilterFull(f"{MAX_LAYERS} tables of {self.capacity:,} keys are full; set a larger capacity")
        layer: CuckooFilter = self._layer(self._shape())
        self.layers.append(layer)
        return layer

    def _shape(self) -> CuckooShape:
        """Return the shape of each table; only keys with many adds spill there, so the spill is small."""
        return CuckooFilter.shape(self.capacity, self.error_rate, self._bits, max(_FEW, self.capacity // _FEW))

    def add(self, key: bytes) -> None:
        """Add ``key``."""
        if self.has_spilled(key):
            return
        place = self.layers[-1].layout.place(self.key_hash.digest(key))
        for layer in reversed(self.layers):
            writes = layer._writes(*place)
            if writes is None and layer._is_alone(*place):
                writes = layer._spill_writes(*place)
            if writes is not None:
                layer._apply(writes)
                return
        self._grow().add(key)

    def add_digests(self, low: U64, high: U64) -> None:
        left = cuckoo_bulk.place(self.layers[-1], low, high)
        while len(left):
            low, high = low[left], high[left]
            left = cuckoo_bulk.place(self._grow(), low, high)

    def has_spilled(self, key: bytes) -> bool:
        """Return whether ``key`` stays until :meth:`clear`, because it was added too often to be counted."""
        return any(layer.has_spilled(key) for layer in self.layers)

    def discard(self, key: bytes) -> bool:
        """Undo one add of ``key``; return whether it was found. A spilled key stays."""
        if self.has_spilled(key):
            return False
        return any(layer.discard(key) for layer in reversed(self.layers))

    def __len__(self) -> int:
        return sum(layer.size() for layer in self.layers)

    def __bool__(self) -> bool:
        return True  # an empty filter is still a filter

    def _parameters(self) -> tuple[int, ...]:
        return (self._bits,)

    def _restore(self, parameters: Sequence[int]) -> None:
        if len(parameters) != 1 or not self.layers:
            raise InvalidShape(f"{len(parameters)} parameters for {len(self.layers)} tables")
        (self._bits,) = parameters
        if any(layer.layout != self._shape() for layer in self.layers):
            raise InvalidShape("its tables differ in shape")
