"""Generations in memory buffers, one frame per shard; and the store of those on the heap, for a single process.

A mapped file is such a buffer too: see :mod:`.file`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import mean
from typing import TYPE_CHECKING, Any

from ..exceptions import ConfigurationError, CorruptFilter, StoreError, UnknownGeneration
from ..filters.base import BodyFilter
from ..filters.bulk import np, one_by_one
from ..filters.codec import Frame, Header
from ..filters.layout import Layout
from ..process import after_fork, own_lock
from .base import FindKeyHash, Generation, Store, bound
from .pages import PAGE_BYTES, Page, add_to

if TYPE_CHECKING:
    from ..filters.base import Keys, RowKeys
    from ..filters.bulk import U64

# Three ways to add keys: one by one takes 6 us a key; several at once, for filters of plain bits only, takes 150 us a
# shard and 0.5 us a key; in bulk takes a tenth of that a key, but recomputes the checksum of each whole shard.
_SEVERAL_KEYS = 32
_MANY_KEYS = 256
_BYTES_A_KEY = {True: 256, False: 16_384}  # for bulk adds, by whether the filter has plain bits
# Keys to write or discard under one lock, during which other writers wait for about 5 ms.
_WRITTEN_AT_ONCE = 8_192
_DISCARDED_AT_ONCE = 256


class FrameGeneration(Generation):
    """A generation whose shards lie in ``buffers``.

    ``locked(exclusive)`` is a context manager that locks out writers of all processes. Checks take no lock.
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
        plain = layout.filter_class.plain_bits
        #: Returns the positions of a digest's bits; ``None`` for a filter of other things than bits.
        self._positions: Callable[[int], list[int]] | None = layout.shape.positions if plain else None  # type: ignore[attr-defined]
        self._many = max(_MANY_KEYS, layout.total_bytes // _BYTES_A_KEY[plain])
        self._several = _SEVERAL_KEYS * len(buffers) if plain else self._many
        self.might_contain = self._might_contain
        if len(buffers) == 1:
            self._shard(0)

    def _shard(self, index: int) -> tuple[Frame, BodyFilter]:
        """Return the frame and the filter of one shard; verify its checksum on first use."""
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

    def is_recent(self, key: bytes) -> bool:
        shard, digest = self.layout.locate(key)
        return self._shard(shard)[0].has_bits(self.layout.recent_positions(digest))

    def add(self, keys: RowKeys, *, once: bool = False) -> None:
        if len(keys) >= self._many:
            self._add_in_bulk(keys, once)
        elif len(keys) >= self._several:
            for start in range(0, len(keys), _WRITTEN_AT_ONCE):
                self._add_several(keys[start : start + _WRITTEN_AT_ONCE])
        else:
            self._add_few(keys if type(keys) is list else one_by_one(keys), once)

    def _add_few(self, keys: Sequence[bytes], once: bool) -> None:
        located, recent_positions, positions = self._located(keys), self.layout.recent_positions, self._positions
        with self._locked(True):
            for frame, attached, digest in located:
                bits = recent_positions(digest)
                if positions is not None:
                    bits += positions(digest)
                elif not (once and attached.might_contain_digest(digest)):
                    frame.write(attached.writes(digest))
                frame.add_bits(bits)
                if not (frame.has_bits(bits) and (positions is not None or attached.might_contain_digest(digest))):
                    raise CorruptFilter(self._lost)

    def _add_several(self, keys: RowKeys) -> None:
        placed = [
            (self._shard(index)[0], self.layout.written_positions(low))
            for index, low, _ in self.layout.locate_many(keys)
        ]
        with self._locked(True):
            for frame, positions in placed:
                frame.write_bits(positions)
        for frame, positions in placed:
            if not frame.has_many_bits(positions):
                raise CorruptFilter(self._lost)

    def _add_in_bulk(self, keys: RowKeys, once: bool) -> None:
        for index, low, high in self.layout.locate_many(keys):
            frame, attached = self._shard(index)
            with self._changing(frame, False):
                lacks = ~attached.contains_digests(low, high) if once else slice(None)
                attached.add_digests(low[lacks], high[lacks])
                frame.set_bits(recent := self.layout.recent_positions_many(low))
            if not (attached.contains_digests(low, high).all() and frame.has_many_bits(recent)):
                raise CorruptFilter(self._lost)

    def _located(self, keys: Iterable[bytes]) -> list[tuple[Frame, Any, int]]:
        """Return for each key its shard's frame and filter, and its digest."""
        located = []
        for shard, digest in map(self.layout.locate, keys):
            frame, attached = self._frames[shard], self._filters[shard]
            if frame is None or attached is None:
                frame, attached = self._shard(shard)
            located.append((frame, attached, digest))
        return located

    @property
    def _lost(self) -> str:
        return f"generation {self.name} did not keep what was written"

    def add_many(self, keys: Keys, *, more: bool = False) -> None:
        located: Iterable[tuple[int, U64, U64 | None]]
        if len(self._buffers) == 1:
            located = [(0, *self._shard(0)[1].digests(keys))]  # only the part of the digests that its kind needs
        else:
            located = self.layout.locate_many(keys)
        for index, low, high in located:
            frame, attached = self._shard(index)
            with self._changing(frame, more):
                attached.add_digests(low, high)

    def discard(self, keys: Iterable[bytes]) -> None:
        if not self.layout.filter_class.supports_discard:
            super().discard(keys)  # raises
        located = self._located(keys)
        for start in range(0, len(located), _DISCARDED_AT_ONCE):
            with self._locked(True):
                for frame, attached, digest in located[start : start + _DISCARDED_AT_ONCE]:
                    frame.write(attached.discard_writes(digest))

    @contextmanager
    def _changing(self, frame: Frame, more: bool) -> Iterator[None]:
        with self._locked(True):
            frame.begin()
            yield
            if not more:
                frame.seal()

    def seal(self) -> None:
        for frame in self._frames:
            if frame is not None and frame.dirty:
                with self._locked(True):
                    frame.seal()

    def read_shard(self, shard: int) -> Frame:
        frame, _ = self._shard(shard)
        with self._locked(False):
            copied = Frame.open(memoryview(bytearray(frame.buffer)))
        copied.verify()
        return copied

    def merge(self, shard: int, body: memoryview) -> int:
        frame, _ = self._shard(shard)
        mine, theirs = np.frombuffer(frame.body, np.uint8), np.frombuffer(body, np.uint8)
        with self._locked(True):
            missing = int(np.bitwise_count(theirs & ~mine).sum())
            if missing:
                frame.begin()
                mine |= theirs
                frame.seal()
        return missing

    def filters(self) -> list[BodyFilter]:
        return [self._shard(index)[1] for index in range(len(self._buffers))]

    def measure_error_rate(self, probes: int = 100_000) -> float:
        each = -(-probes // len(self._buffers))
        return mean(attached.measure_error_rate(each) for attached in self.filters())


class MemoryStore(Store):
    """Generations on the heap, at most ``max_bytes`` in total (1 GiB)."""

    def __init__(self, alias: str, *, max_bytes: int = 1 << 30) -> None:
        super().__init__(alias)
        if type(max_bytes) is not int or max_bytes < 1:
            raise ConfigurationError(f"the store {alias!r}: max_bytes is {max_bytes!r}; it has to be a number of bytes")
        self._max_bytes = max_bytes
        self._begin_life()
        after_fork(self._begin_life)
        self._buffers: dict[tuple[str, str], list[memoryview]] = {}
        self._pages: dict[Page, bytes] = {}
        self._lock = own_lock(self, "_lock")

    def _begin_life(self) -> None:
        self._life = uuid.uuid4().hex

    @property
    def identity(self) -> str:
        # A forked child has its own copy, which misses the parent's later writes, so it gets another identity: by the
        # process number where Python's fork hooks do not run, as in uWSGI. A later child may get the same number again.
        return f"memory:{self._life}:{os.getpid()}"

    @contextmanager
    def _locked(self, exclusive: bool) -> Iterator[None]:
        with self._lock:
            yield

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        if layout.total_bytes > self.free_bytes():
            raise StoreError(
                f"a filter of {layout.total_bytes:,} bytes does not fit: the store {self.alias!r} has "
                f"{self.free_bytes():,} of max_bytes={self._max_bytes:,} left; raise max_bytes"
            )
        layout = bound(layout, guard, name)
        buffers = [memoryview(bytearray(header.frame_bytes)) for header in layout.headers]
        for header, buffer in zip(layout.headers, buffers):
            Frame.format(header, buffer)
        self._buffers[guard, name] = buffers
        return FrameGeneration(name, layout, buffers, self._locked)

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        buffers = self._buffers.get((guard, name))
        if buffers is None:
            raise UnknownGeneration(f"the store {self.alias!r} has no generation {name} of {guard}")
        size = sum(len(buffer) for buffer in buffers)
        layout = self._layout(guard, name, "", Header.unpack(buffers[0]), size, find_key_hash)
        return FrameGeneration(name, layout, buffers, self._locked)

    def drop(self, guard: str, name: str) -> None:
        self._buffers.pop((guard, name), None)

    def names(self, guard: str) -> list[str]:
        return [name for owner, name in list(self._buffers) if owner == guard]

    def free_bytes(self) -> int:
        # Of a copy: another thread may create or drop a generation meanwhile.
        return self._max_bytes - sum(len(buffer) for buffers in list(self._buffers.values()) for buffer in buffers)

    def add_metrics(self, page: Page, cells: Mapping[int, int]) -> None:
        with self._lock:
            self._pages[page] = add_to(self._pages.get(page, bytes(PAGE_BYTES)), cells)
            for other in [other for other in self._pages if other.is_over(page)]:
                del self._pages[other]

    def read_metrics(self, pages: Sequence[Page]) -> list[bytes]:
        return [self._pages.get(page, b"") for page in pages]
