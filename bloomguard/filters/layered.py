"""Filters made of several *layers*, filters of one class with one key hash: scalable and rotating ones.

A layered filter is on the heap of one process. The parameters of its frame depend on the kind; its body is the
concatenation of the layers' frames.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
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

    __slots__ = ("layers",)

    layers: list[Any]

    def _parameters(self) -> tuple[int, ...]:
        """Return the parameters for the frame's header."""
        raise NotImplementedError

    def _restore(self, parameters: Sequence[int]) -> None:
        """Set the attributes from the parameters of a frame, after its layers. Raises :class:`InvalidShape`."""
        raise NotImplementedError

    def _start(self, capacity: int, error_rate: float, width: int | None, secret: bytes) -> None:
        self.capacity, self.error_rate = sizing.check_capacity(capacity), sizing.check_error_rate(error_rate)
        self.key_hash = KeyHash(width, secret)
        self.clear()

    def _push(self, shape: Shape) -> Any:
        """Add a new, empty layer of this shape and return it. Raises :class:`FilterFull`."""
        if len(self.layers) == MAX_LAYERS:
            raise FilterFull(f"{MAX_LAYERS} layers from {self.capacity:,} keys on are full; set a larger capacity")
        layer = self.layer_class.__new__(self.layer_class)
        layer._allocate(shape, self.key_hash)
        self.layers.append(layer)
        return layer

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
        return self._parameters(), b"".join([layer.to_bytes() for layer in self.layers])

    @classmethod
    def _restored(cls, header: codec.Header, body: memoryview, key_hash: KeyHash, secret: bytes) -> Self:
        self = cls.__new__(cls)
        self.capacity, self.error_rate, self.key_hash, self.layers = header.capacity, header.error_rate, key_hash, []
        while len(body):
            size = codec.Header.unpack(body).frame_bytes
            layer = cls.layer_class.from_bytes(body[:size], secret)
            if len(self.layers) == MAX_LAYERS or layer.key_hash != key_hash:
                raise CorruptFilter(f"layer {len(self.layers)} does not belong to this filter")
            self.layers.append(layer)
            body = body[size:]
        try:
            sizing.check_capacity(self.capacity)
            sizing.check_error_rate(self.error_rate)
            self._restore(header.parameters)
        except (OverflowError, ValueError, ZeroDivisionError) as error:
            raise CorruptFilter(f"parameters {header.parameters} of a {cls.kind} filter: {error}") from error
        return self

    def copy(self) -> Self:
        """Return a filter of the same state with its own memory."""
        twin = type(self).__new__(type(self))
        twin.capacity, twin.error_rate, twin.key_hash = self.capacity, self.error_rate, self.key_hash
        twin.layers = [layer.copy() for layer in self.layers]
        twin._restore(self._parameters())
        return twin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return (
            self.layers == other.layers
            and self._parameters() == other._parameters()
            and (self.capacity, self.error_rate) == (other.capacity, other.error_rate)
        )

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
        self.layers = []
        self._counts: list[int] = []
        self._grow()

    def _grow(self) -> None:
        number = len(self.layers)
        rate = self.error_rate * (1 - self.tightening) * self.tightening**number
        self._push(BloomFilter.shape(self.capacity * self.growth**number, max(rate, 1e-15)))
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

    def _parameters(self) -> tuple[int, ...]:
        return (self.growth, *_U64.unpack(_FLOAT.pack(self.tightening)), *self._counts)

    def _restore(self, parameters: Sequence[int]) -> None:
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
        self._bits = CuckooFilter.shape(capacity, error_rate, fingerprint_bits).bits
        self._start(capacity, error_rate, width, secret)

    def clear(self) -> None:
        """Remove all keys and tables, and start with one table again."""
        self.layers = []
        self._push(self._shape())

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
        self._push(self._shape()).add(key)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        assert high is not None
        left = cuckoo_table.place(self.layers[-1], low, high)
        while len(left):
            low, high = low[left], high[left]
            left = cuckoo_table.place(self._push(self._shape()), low, high)

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

    def _parameters(self) -> tuple[int, ...]:
        return (self._bits,)

    def _restore(self, parameters: Sequence[int]) -> None:
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

    __slots__ = ("_epochs", "clock", "window", "windows")

    layers: list[BloomFilter]

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
        self.layers = []
        self._epochs: list[int] = []  # the number of each layer's window, oldest first

    def _turn(self) -> int:
        """Drop the expired windows; return the number of the current one."""
        now = max([int(self.clock() // self.window), *self._epochs[-1:]])
        while self._epochs and self._epochs[0] <= now - self.windows:
            del self._epochs[0], self.layers[0]
        return now

    def _present(self) -> BloomFilter:
        now = self._turn()
        if not self._epochs or self._epochs[-1] != now:
            self._push(BloomFilter.shape(self.capacity, max(self.error_rate / self.windows, 1e-15)))
            self._epochs.append(now)
        return self.layers[-1]

    def add(self, key: bytes) -> None:
        """Add ``key`` to the current window."""
        self._present().add(key)

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        self._present().add_digests(low)

    def might_contain(self, key: bytes) -> bool:
        """Return whether ``key`` was added in the current window or in one of those that are kept."""
        self._turn()
        return super().might_contain(key)

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        self._turn()
        return super().contains_digests(low, high)

    def stats(self) -> Stats:
        """Return the combined statistics after dropping the expired windows."""
        self._turn()
        return super().stats()

    def copy(self) -> Self:
        twin = super().copy()
        twin.clock = self.clock
        return twin

    def _parameters(self) -> tuple[int, ...]:
        epochs = (epoch & 0xFFFFFFFFFFFFFFFF for epoch in self._epochs)
        return (self.windows, *_U64.unpack(_FLOAT.pack(self.window)), *epochs)

    def _restore(self, parameters: Sequence[int]) -> None:
        windows, window, *epochs = parameters
        self._set(_FLOAT.unpack(_U64.pack(window))[0], windows)
        self.clock = time.time
        self._epochs = [epoch - (1 << 64) if epoch >> 63 else epoch for epoch in epochs]
        if self._epochs != sorted(set(self._epochs)) or len(epochs) != len(self.layers):
            raise InvalidShape(f"windows {self._epochs} are not in ascending order, one for each of its filters")
