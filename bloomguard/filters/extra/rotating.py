"""A Bloom filter of the keys that were added in the last N time windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from .. import sizing
from ..bloom import BloomFilter
from ..errors import InvalidShape
from ..hashing import KeyHash
from .layered import MAX_LAYERS, LayeredFilter, pack_float, unpack_float

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from ..base import U64, Stats


class RotatingBloomFilter(LayeredFilter):
    """Keep each key for at least ``windows - 1`` and at most ``windows`` windows of ``window`` seconds.

    ``capacity`` counts the keys of one window, ``error_rate`` is the rate over all windows. ``clock`` returns seconds;
    the default is the system time, which continues when a filter is saved and loaded. If the clock is set back, keys
    expire later, never sooner. Raises :class:`InvalidShape`.
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
        self.capacity = sizing.check_capacity(capacity)
        self.error_rate = sizing.check_error_rate(error_rate)
        self.key_hash = KeyHash(width, secret)
        self.window, self.windows, self.clock = float(window), windows, clock
        self._check()
        self.clear()

    def _check(self) -> None:
        if not 0.001 <= self.window <= 1e10:
            raise InvalidShape(f"window is {self.window!r}; it has to be a number of seconds from 0.001 to 1e10")
        if not 1 <= self.windows <= MAX_LAYERS:
            raise InvalidShape(f"windows is {self.windows!r}; it has to be from 1 to {MAX_LAYERS}")

    def clear(self) -> None:
        """Remove all keys."""
        self.layers: list[BloomFilter] = []
        self._epochs: list[int] = []  # the number of each layer's window, oldest first

    def _turn(self) -> int:
        """Drop the expired windows; return the number of the current one."""
        now = int(self.clock() // self.window)
        if self._epochs:
            now = max(now, self._epochs[-1])
        while self._epochs and self._epochs[0] <= now - self.windows:
            del self._epochs[0], self.layers[0]
        return now

    def _present(self) -> BloomFilter:
        now = self._turn()
        if not self._epochs or self._epochs[-1] != now:
            self.layers.append(self._layer(BloomFilter.shape(self.capacity, self.error_rate / self.windows)))
            self._epochs.append(now)
        return self.layers[-1]

    def add(self, key: bytes) -> None:
        """Add ``key`` to the current window."""
        self._present().add(key)

    def add_digests(self, low: U64, high: U64) -> None:
        self._present().add_digests(low)

    def might_contain(self, key: bytes) -> bool:
        """Return whether ``key`` was added in the current window or in one of those that are kept."""
        self._turn()
        return super().might_contain(key)

    def contains_digests(self, low: U64, high: U64) -> NDArray[np.bool_]:
        """Check many digests after dropping the expired windows."""
        self._turn()
        return super().contains_digests(low, high)

    def stats(self) -> Stats:
        """Return the combined statistics after dropping the expired windows."""
        self._turn()
        return super().stats()

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, secret: bytes = b"", clock: Callable[[], float] = time.time
    ) -> Self:
        """Read a filter from the bytes of :meth:`to_bytes`. Raises :class:`CorruptFilter`, also for another secret."""
        self = super().from_bytes(data, secret)
        self.clock = clock
        return self

    def copy(self) -> Self:
        twin = super().copy()
        twin.clock = self.clock
        return twin

    def _parameters(self) -> tuple[int, ...]:
        return (self.windows, pack_float(self.window), *(epoch & 0xFFFFFFFFFFFFFFFF for epoch in self._epochs))

    def _restore(self, parameters: Sequence[int]) -> None:
        if len(parameters) != 2 + len(self.layers):
            raise InvalidShape(f"{len(parameters)} parameters for {len(self.layers)} windows")
        self.windows, window, *epochs = parameters
        self.window, self.clock = unpack_float(window), time.time
        self._check()
        sizing.check_capacity(self.capacity)
        sizing.check_error_rate(self.error_rate)
        self._epochs = [epoch - (1 << 64) if epoch >> 63 else epoch for epoch in epochs]
        if self._epochs != sorted(set(self._epochs)):
            raise InvalidShape(f"windows {self._epochs} are not in ascending order")
