"""What every store offers: generations, each one complete build of one guard's filter.

A generation is never created by an add and never half seen: a shard whose two tags are not the expected ones, or
whose body does not fit its checksum, is not trusted. **Missing is not empty.**
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage

from ..exceptions import UnknownGeneration
from ..filters import BloomFilter, CorruptFilter, KeyHash
from ..filters.codec import Frame, Header
from ..filters.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    U64 = NDArray[np.uint64]

logger = logging.getLogger("bloomguard")

#: Given a header's key id, how its keys are hashed; ``None`` where no secret and definition of today's fits.
FindKeyHash = Callable[[int], KeyHash | None]


class Generation:
    """A generation in buffers that this process can reach: one frame a shard.

    ``locked(exclusive)`` keeps other writers out, in this process and all others; readers of bits take no lock.
    """

    def __init__(
        self,
        name: str,
        layout: Layout,
        buffers: Sequence[memoryview],
        locked: Callable[[bool], AbstractContextManager[Any]],
    ) -> None:
        self.name = name
        self.layout = layout
        self._buffers = buffers
        self._locked = locked
        self._digest = layout.key_hash.digest
        self._shards: list[tuple[Frame, BloomFilter] | None] = [None] * len(buffers)
        #: ``might_contain(key: bytes) -> bool``; raises :class:`CorruptFilter` where a shard cannot be trusted.
        self.might_contain: Callable[[bytes], bool] = self._might_contain
        if len(buffers) == 1:
            self.might_contain = self._shard(0)[1].might_contain

    def _shard(self, index: int) -> tuple[Frame, BloomFilter]:
        """The frame and the filter of one shard, checked whole when first asked for."""
        shard = self._shards[index]
        if shard is None:
            frame = Frame.open(self._buffers[index])
            if frame.header != self.layout.headers[index]:
                raise CorruptFilter(f"shard {index} of generation {self.name} belongs to another build")
            with self._locked(False):
                frame.verify()
            shard = frame, BloomFilter.attach(frame.header, frame.body, self.layout.key_hash)
            self._shards[index] = shard
        return shard

    def _might_contain(self, key: bytes) -> bool:
        digest = self._digest(key)
        return self._shard((digest >> 64) % len(self._shards))[1].might_contain_digest(digest)

    def add(self, keys: Iterable[bytes]) -> None:
        """Put keys in and see that they are; raises :class:`CorruptFilter` or :class:`StoreError` if that fails."""
        digests = [self._digest(key) for key in keys]
        shards = [self._shard((digest >> 64) % len(self._shards)) for digest in digests]
        with self._locked(True):
            for (frame, bloom), digest in zip(shards, digests):
                frame.write(bloom.writes(digest))
                if not bloom.might_contain_digest(digest):
                    raise CorruptFilter(f"generation {self.name} did not keep what was written")

    def add_digests(self, low: U64, high: U64) -> None:
        """Put many keys in by their digests, both of shape ``(n,)``, as :meth:`KeyHash.digests` gives them."""
        for index, part in self._by_shard(low, high):
            frame, bloom = self._shard(index)
            with self._locked(True):
                bloom.add_digests(low[part])
                frame.seal()

    def contains_digests(self, low: U64, high: U64) -> NDArray[np.bool_]:
        """Check many keys by their digests; a boolean array of shape ``(n,)``."""
        import numpy as np

        found = np.zeros(len(low), bool)
        for index, part in self._by_shard(low, high):
            found[part] = self._shard(index)[1].contains_digests(low[part])
        return found

    def _by_shard(self, low: U64, high: U64) -> Iterable[tuple[int, Any]]:
        """Which digests, as an index into the arrays, fall to which shard."""
        import numpy as np

        count = len(self._shards)
        if count == 1:
            return [(0, slice(None))]
        home = (high % np.uint64(count)).astype(np.uint32)
        order = np.argsort(home, kind="stable")
        bounds = np.searchsorted(home[order], np.arange(count + 1))
        return [
            (index, order[start:stop]) for index, (start, stop) in enumerate(zip(bounds, bounds[1:])) if stop > start
        ]

    def fill(self) -> float:
        """Share of the bits that are set, over all shards, 0 to 1."""
        return sum(self._shard(index)[1].fill for index in range(len(self._shards))) / len(self._shards)

    def measure_error_rate(self, probes: int = 100_000) -> float:
        """The share of random keys that the generation lets through, probed evenly over the shards."""
        each = -(-probes // len(self._shards))
        rates = [self._shard(index)[1].measure_error_rate(each) for index in range(len(self._shards))]
        return sum(rates) / len(rates)

    def seal(self) -> None:
        """Make it durable; called once, before it is published."""


class Store(ABC):
    """Where generations live. ``OPTIONS`` of the setting arrive as keyword arguments."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    @abstractmethod
    def identity(self) -> str:
        """Names this store and this life of it, at most 200 characters; another store or another life gives another."""

    @abstractmethod
    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        """Make an empty generation; raises :class:`StoreError` with the figures if it does not fit."""

    @abstractmethod
    def open(self, guard: str, name: str, find_key_hash: FindKeyHash) -> Generation:
        """Open a generation; raises :class:`UnknownGeneration` or :class:`CorruptFilter`."""

    @abstractmethod
    def drop(self, guard: str, name: str) -> None:
        """Free a generation; nothing happens if it is gone already."""

    @abstractmethod
    def names(self, guard: str) -> list[str]:
        """The generations that lie here, finished or not."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Bytes that a new generation could take, ``None`` where nobody can tell."""

    def check(self) -> list[CheckMessage]:
        """System check messages about the store's own options."""
        return []

    def _layout(self, name: str, header: Header, size: int, find_key_hash: FindKeyHash) -> Layout:
        if header.frame_bytes * header.shards != size:  # before anything is made by the header's word
            raise CorruptFilter(
                f"generation {name} has {size:,} bytes; its header tells of {header.shards} x {header.frame_bytes:,}"
            )
        key_hash = find_key_hash(header.key_id)
        if key_hash is None:
            raise UnknownGeneration(
                f"generation {name} was built with another SECRET_KEY, or for another definition of its guard"
            )
        return Layout.of(header, key_hash)
