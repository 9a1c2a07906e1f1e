"""What every store offers: generations, each one complete build of one guard's filter.

A generation is never created by an add and never half seen: a shard whose two tags are not the expected ones, or
whose body does not fit its checksum, is not trusted. **Missing is not empty.**
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import mean
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage

from ..exceptions import UnknownGeneration
from ..filters import CorruptFilter, KeyHash
from ..filters.base import BodyFilter
from ..filters.codec import Frame, Header
from ..filters.layout import Layout

if TYPE_CHECKING:
    from ..filters.base import U64, Keys

# Adding keys in bulk costs a tenth for each, and then a pass over the shard for its checksum: 0.4 ms a MiB.
_MANY_KEYS = 256
_BYTES_A_KEY = 16_384

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
        self._frames: list[Frame | None] = [None] * len(buffers)
        self._filters: list[BodyFilter | None] = [None] * len(buffers)
        #: ``might_contain(key: bytes) -> bool``; raises :class:`CorruptFilter` where a shard cannot be trusted.
        self.might_contain: Callable[[bytes], bool] = self._might_contain
        if len(buffers) == 1:
            self._shard(0)

    def _shard(self, index: int) -> tuple[Frame, BodyFilter]:
        """The frame and the filter of one shard, checked whole when first asked for."""
        frame, attached = self._frames[index], self._filters[index]
        if frame is None or attached is None:
            frame = Frame.open(self._buffers[index])
            if frame.header != self.layout.headers[index]:
                raise CorruptFilter(f"shard {index} of generation {self.name} belongs to another build")
            with self._locked(False):
                frame.verify()
            attached = self.layout.attach(frame)
            self._frames[index], self._filters[index] = frame, attached
            filters = [known for known in self._filters if known is not None]
            if len(filters) == len(self._filters):
                self.might_contain = self.layout.checker(filters)
        return frame, attached

    def _might_contain(self, key: bytes) -> bool:
        shard, digest = self.layout.locate(key)
        return self._shard(shard)[1].might_contain_digest(digest)

    def add(self, keys: Iterable[bytes]) -> None:
        """Put keys in and see that they are; raises :class:`CorruptFilter` or :class:`StoreError` if that fails."""
        keys = list(keys)
        if len(keys) >= max(_MANY_KEYS, self.layout.total_bytes // _BYTES_A_KEY):
            self.add_many(keys)
            if not all(attached.contains_digests(low, high).all() for attached, low, high in self._placed(keys)):
                raise CorruptFilter(f"generation {self.name} did not keep what was written")
            return
        placed = [(self._shard(shard), digest) for shard, digest in map(self.layout.locate, keys)]
        with self._locked(True):
            for (frame, attached), digest in placed:
                if attached.supports_discard and attached.might_contain_digest(digest):
                    continue  # every save comes here: copies would fill it. Right only while nothing is discarded
                frame.write(attached.writes(digest))
                if not attached.might_contain_digest(digest):
                    raise CorruptFilter(f"generation {self.name} did not keep what was written")

    def add_many(self, keys: Keys, *, more: bool = False) -> None:
        """Put many keys in, in whatever form :meth:`KeyHash.digests` takes; other writers wait meanwhile.

        With ``more`` to come before :meth:`seal`, the checksums are left to that: each is a pass over all bytes.
        """
        if len(self._buffers) == 1:
            frame, attached = self._shard(0)
            with self._changing(frame, more):
                attached.add_many(keys)  # which makes no more of the digests than its kind needs
            return
        for index, low, high in self.layout.locate_many(keys):
            frame, attached = self._shard(index)
            with self._changing(frame, more):
                attached.add_digests(low, high)

    @contextmanager
    def _changing(self, frame: Frame, more: bool) -> Iterator[None]:
        with self._locked(True):
            frame.begin()
            yield
            if not more:
                frame.seal()

    def _placed(self, keys: Keys) -> Iterator[tuple[BodyFilter, U64, U64]]:
        for index, low, high in self.layout.locate_many(keys):
            yield self._shard(index)[1], low, high

    def _all(self) -> list[BodyFilter]:
        return [self._shard(index)[1] for index in range(len(self._buffers))]

    def fill(self) -> float:
        """Share of the bits or slots in use, over all shards, 0 to 1."""
        return mean(attached.fill for attached in self._all())

    def measure_error_rate(self, probes: int = 100_000) -> float:
        """The share of random keys that the generation lets through, probed evenly over the shards."""
        each = -(-probes // len(self._buffers))
        return mean(attached.measure_error_rate(each) for attached in self._all())

    def seal(self) -> None:
        """Make it whole and durable; called once, before it is published."""
        for frame in self._frames:
            if frame is not None and frame.dirty:
                with self._locked(True):
                    frame.seal()


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
        """Free a generation; nothing happens if it is gone already. Raises :class:`StoreError` if it will not go."""

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
