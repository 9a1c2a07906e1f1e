"""Filters made of several *layers*, filters of one class with one key hash: scalable and rotating ones.

A layered filter is on the heap of one process. The parameters of its frame depend on the kind; its body is the
concatenation of the layers' frames.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from copy import copy as shallow_copy
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar

from ..exceptions import CorruptFilter, FilterFull, InvalidShape
from . import codec, cuckoo_table, sizing
from .base import BodyFilter, Filter, Shape, Stats
from .bloom import BloomFilter
from .bulk import np
from .cuckoo import CuckooFilter
from .cuckoo_table import CuckooShape
from .hashing import KeyHash

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from .bulk import U64

MAX_LAYERS = 64
_FLOAT, _U64 = Struct(">d"), Struct(">Q")  # a float is the parameter of a frame as an integer
_FEW = 32  # capacity of each cuckoo table's spill: 32 twins, or 1/32 of the keys if that is more


class LayeredFilter(Filter):
    """Several filters of one class; a key is in the layered filter if it is in any layer."""

    layer_class: ClassVar[type[BodyFilter]]

    layers: list[Any]

    def _state(self) -> tuple[tuple[int, ...], list[Any]]:
        """Return the parameters for the frame's header, and the layers that they describe."""
        raise NotImplementedError

    def _restore(self, parameters: Sequence[int], layers: list[Any]) -> None:
        """Set the attributes of the kind from a frame's parameters and layers. Raises :class:`InvalidShape`."""
        raise NotImplementedError

    def _start(self, capacity: int, error_rate: float, width: int | None, secret: bytes) -> None:
        self.capacity, self.error_rate = sizing.check_capacity(capacity), sizing.check_error_rate(error_rate)
        self.key_hash = KeyHash(width, secret)
        self.clear()

    def _new_layer(self, shape: Shape) -> Any:
        """Return an empty layer of this shape. Raises :class:`FilterFull`."""
        if len(self.layers) == MAX_LAYERS:
            raise FilterFull(f"{MAX_LAYERS} layers from {self.capacity:,} keys on are full; set a larger capacity")
        return self.layer_class.__new__(self.layer_class)._allocate(shape, self.key_hash)

    def might_contain(self, key: bytes) -> bool:
        """Check every layer."""
        digest = self.key_hash.digest(key)
        for layer in self.layers:  # noqa: SIM110 - any() with a generator takes twice the time
            if layer.might_contain_digest(digest):
                return True
        return False

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        found = np.zeros(len(low), bool)
        for layer in self.layers:
            found |= layer.contains_digests(low, high)
        return found

    def stats(self) -> Stats:
        """Return the combined statistics of all layers."""
        each = [layer.stats() for layer in self.layers]
        room = sum(stats.bytes for stats in each)
        return Stats(
            kind=self.kind,
            capacity=self.capacity,
            error_rate=self.error_rate,
            size=sum(stats.size for stats in each),
            bytes=room,
            fill=sum(stats.fill * stats.bytes for stats in each) / room if room else 0.0,
            expected_error_rate=1 - math.prod(1 - stats.expected_error_rate for stats in each),
        )

    def _content(self) -> tuple[tuple[int, ...], bytes]:
        parameters, layers = self._state()
        return parameters, b"".join([layer.to_bytes() for layer in layers])

    @classmethod
    def _restored(cls, header: codec.Header, body: memoryview, key_hash: KeyHash, secret: bytes) -> Self:
        self = cls.__new__(cls)
        self.capacity, self.error_rate, self.key_hash = header.capacity, header.error_rate, key_hash
        layers: list[Any] = []
        while len(body):
            size = codec.Header.unpack(body).frame_bytes
            layer = cls.layer_class.from_bytes(body[:size], secret)
            if len(layers) == MAX_LAYERS or layer.key_hash != key_hash:
                raise CorruptFilter(f"layer {len(layers)} does not belong to this filter")
            layers.append(layer)
            body = body[size:]
        try:
            sizing.check_capacity(self.capacity)
            sizing.check_error_rate(self.error_rate)
            self._restore(header.parameters, layers)
        except (OverflowError, ValueError, ZeroDivisionError) as error:
            raise CorruptFilter(f"parameters {header.parameters} of a {cls.kind} filter: {error}") from error
        return self

    def copy(self) -> Self:
        """Return a filter of the same state with its own memory."""
        twin, (parameters, layers) = shallow_copy(self), self._state()
        twin._restore(parameters, [layer.copy() for layer in layers])
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        mine, theirs = (self.capacity, self.error_rate), (other.capacity, other.error_rate)
        return mine == theirs and self._state() == other._state()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.layers)} layers at {self.error_rate:g}>"


class ScalableBloomFilter(LayeredFilter):
    """A Bloom filter that grows: when a layer is full, the next one has ``growth`` times its capacity.

    ``capacity`` is that of the first layer. Each layer's error rate is ``tightening`` times the previous one, so their
    sum is at most ``error_rate`` for any number of layers (Almeida et al. 2007). ``growth=1`` makes equal layers.
    Raises :class:`InvalidShape`.
    """

    kind: ClassVar[str] = "scalable"
    layer_class = BloomFilter

    layers: list[BloomFilter]
    _counts: list[int]

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
        self._set(growth, tightening)
        self._start(capacity, error_rate, width, secret)

    def _set(self, growth: int, tightening: float) -> None:
        if not 1 <= growth <= 16:
            raise InvalidShape(f"growth is {growth!r}; it has to be from 1 to 16")
        if not 0.1 <= tightening <= 0.95:
            raise InvalidShape(f"tightening is {tightening!r}; it has to be from 0.1 to 0.95")
        self.growth, self.tightening = growth, tightening

    def clear(self) -> None:
        """Remove all keys and layers, and start with one layer again."""
        self.layers, self._counts = [], []
        self._grow()

    def _grow(self) -> None:
        number = len(self.layers)
        rate = self.error_rate * (1 - self.tightening) * self.tightening**number
        self.layers.append(self._new_layer(BloomFilter.shape(self.capacity * self.growth**number, max(rate, 1e-15))))
        self._counts.append(0)

    def add(self, key: bytes) -> None:
        """Add ``key`` if it is not in the filter."""
        if self.might_contain(key):
            return
        if self._counts[-1] >= self.layers[-1].capacity:
            self._grow()
        self.layers[-1].add(key)
        self._counts[-1] += 1

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        low = np.unique(low[~self.contains_digests(low, high)])
        while len(low):
            room = self.layers[-1].capacity - self._counts[-1]
            if room <= 0:
                self._grow()
                continue
            self.layers[-1].add_digests(low[:room])
            self._counts[-1] += min(room, len(low))
            low = low[room:]

    def _state(self) -> tuple[tuple[int, ...], list[BloomFilter]]:
        return (self.growth, *_U64.unpack(_FLOAT.pack(self.tightening)), *self._counts), self.layers

    def _restore(self, parameters: Sequence[int], layers: list[BloomFilter]) -> None:
        self.layers = layers
        growth, tightening, *self._counts = parameters
        if len(self._counts) != len(self.layers) or not self.layers:
            raise InvalidShape(f"{len(self._counts)} counts for {len(self.layers)} layers")
        self._set(growth, *_FLOAT.unpack(_U64.pack(tightening)))


class ScalableCuckooFilter(LayeredFilter):
    """A cuckoo filter that grows: a key without room goes to another table of the same size.

    All tables have the same shape, so a key has the same fingerprint and buckets in each, as if every bucket had four
    more slots, and a discard removes one of the key's copies from any table. The error rates of the tables add up:
    ``stats().expected_error_rate`` gives the sum, and a rebuild with a larger capacity reduces it.
    """

    kind: ClassVar[str] = "scalable-cuckoo"
    supports_discard: ClassVar[bool] = True
    layer_class = CuckooFilter

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
        self._bits = CuckooFilter.shape(capacity, error_rate, fingerprint_bits).bits
        self._start(capacity, error_rate, width, secret)

    def clear(self) -> None:
        """Remove all keys and tables, and start with one table again."""
        self.layers = []
        self._grow()

    def _grow(self) -> CuckooFilter:
        table: CuckooFilter = self._new_layer(self._shape())
        self.layers.append(table)
        return table

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
            if writes is not None:
                layer._apply(writes)
                return
        self._grow().add(key)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        assert high is not None
        left = cuckoo_table.place(self.layers[-1], low, high)
        while len(left):
            low, high = low[left], high[left]
            left = cuckoo_table.place(self._grow(), low, high)

    def has_spilled(self, key: bytes) -> bool:
        """Return whether ``key`` stays until :meth:`clear`, because it was added too often to be counted."""
        return any(layer.has_spilled(key) for layer in self.layers)

    def discard(self, key: bytes) -> bool:
        """Undo one add of ``key``; return whether it was found. A spilled key stays."""
        return not self.has_spilled(key) and any(layer.discard(key) for layer in reversed(self.layers))

    def __len__(self) -> int:
        return sum(layer.size() for layer in self.layers)

    def __bool__(self) -> bool:
        return True  # an empty filter is still a filter

    def _state(self) -> tuple[tuple[int, ...], list[CuckooFilter]]:
        return (self._bits,), self.layers

    def _restore(self, parameters: Sequence[int], layers: list[CuckooFilter]) -> None:
        self.layers = layers
        (self._bits,) = parameters
        if not self.layers or any(layer.layout != self._shape() for layer in self.layers):
            raise InvalidShape("its tables are missing, or differ in shape")


class RotatingBloomFilter(LayeredFilter):
    """Keep each key for at least ``windows - 1`` and at most ``windows`` windows of ``window`` seconds.

    ``capacity`` counts the keys of one window, ``error_rate`` is the rate over all windows. ``clock`` returns seconds;
    the default is the system time, which continues when a filter is saved and loaded. Set the attribute of a loaded
    filter to another one. If the clock is set back, keys expire later, never sooner. Raises :class:`InvalidShape`.
    """

    kind: ClassVar[str] = "rotating"
    layer_class = BloomFilter

    clock: Callable[[], float] = time.time
    _filters: dict[int, BloomFilter]  # of each window by its number, oldest first

    def __init__(
        self,
        capacity: int,
        error_rate: float = 0.01,
        *,
        window: float,
        windows: int = 2,
        width: int | None = None,
        secret: bytes = b"",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._set(float(window), windows)
        self.clock = clock
        self._start(capacity, error_rate, width, secret)

    def _set(self, window: float, windows: int) -> None:
        if not 0.001 <= window <= 1e10:
            raise InvalidShape(f"window is {window!r}; it has to be a number of seconds from 0.001 to 1e10")
        if not 1 <= windows <= MAX_LAYERS:
            raise InvalidShape(f"windows is {windows!r}; it has to be from 1 to {MAX_LAYERS}")
        self.window, self.windows = window, windows

    def clear(self) -> None:
        self._filters = {}

    @property
    def layers(self) -> list[BloomFilter]:  # type: ignore[override]
        """The filters of the windows that are kept; drops the expired ones."""
        return list(self._kept().values())

    def _kept(self) -> dict[int, BloomFilter]:
        """Drop the expired filters; return the others. Threads that read may do so at the same time."""
        expired = self.clock() // self.window - self.windows
        kept = self._filters.copy()
        while kept and (oldest := next(iter(kept))) <= expired:
            self._filters.pop(oldest, None)
            del kept[oldest]
        return kept

    def _present(self) -> BloomFilter:
        now = max([int(self.clock() // self.window), *self._filters])
        present = self._filters.get(now)
        if present is None:
            shape = BloomFilter.shape(self.capacity, max(self.error_rate / self.windows, 1e-15))
            # This drops the expired ones. Another thread may have made one meanwhile, and added keys to it.
            present = self._filters.setdefault(now, self._new_layer(shape))
        return present  # not looked up again: a thread that reads may have dropped it, if its time has just ended

    def add(self, key: bytes) -> None:
        """Add ``key`` to the current window."""
        self._present().add(key)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        self._present().add_digests(low)

    def _state(self) -> tuple[tuple[int, ...], list[BloomFilter]]:
        kept = self._kept()
        numbers = (number & 0xFFFFFFFFFFFFFFFF for number in kept)
        return (self.windows, *_U64.unpack(_FLOAT.pack(self.window)), *numbers), list(kept.values())

    def _restore(self, parameters: Sequence[int], layers: list[BloomFilter]) -> None:
        windows, window, *numbers = parameters
        self._set(_FLOAT.unpack(_U64.pack(window))[0], windows)
        numbers = [number - (1 << 64) if number >> 63 else number for number in numbers]
        if numbers != sorted(set(numbers)) or len(numbers) != len(layers):
            raise InvalidShape(f"windows {numbers} are not in ascending order, one for each of its filters")
        self._filters = dict(zip(numbers, layers))
