"""The store of generations on the heap, for a single process."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from django.core.checks import CheckMessage, Warning

from ..exceptions import ConfigurationError, StoreError, UnknownGeneration
from ..filters.codec import Frame, Header
from ..filters.layout import Layout
from ..process import after_fork, own_lock
from .base import PAGE_BYTES, FindKeyHash, Generation, Page, Store, add_to, bound
from .frames import FrameGeneration


class MemoryStore(Store):
    """Generations on the heap, at most ``max_bytes`` in total (1 GiB)."""

    is_of_one_process: ClassVar[bool] = True

    def __init__(self, alias: str, *, max_bytes: int = 1 << 30) -> None:
        super().__init__(alias)
        if type(max_bytes) is not int or max_bytes < 1:
            raise ConfigurationError(f"the store {alias!r}: max_bytes is {max_bytes!r}; it has to be a number of bytes")
        self._max_bytes = max_bytes
        self._begin_life()
        after_fork(self._begin_life)
        self._buffers: dict[tuple[str, str], list[memoryview]] = {}
        self._pages: dict[Page, bytes] = {}
        self._lock = own_lock(self, "_lock")  # which knows whether this thread has it

    def _begin_life(self) -> None:
        self._life = uuid.uuid4().hex

    @property
    def identity(self) -> str:
        # A forked child has its own copy, which misses the parent's later writes, so it gets another identity: by the
        # process number where Python's fork hooks do not run, as in uWSGI. A later child may get the same number again.
        return f"memory:{self._life}:{os.getpid()}"

    @contextmanager
    def _locked(self, identity: str, exclusive: bool) -> Iterator[None]:
        """Lock out the other threads; raises :class:`StoreError` in a child, whose adds no other process would see."""
        if self.identity != identity:
            raise StoreError(f"this filter of the store {self.alias!r} is a copy from the memory of another process")
        if self._lock._is_owned():  # as of a signal's handler in the middle of an add: both would set bits
            raise StoreError(f"this thread is changing a filter of the store {self.alias!r} already")
        with self._lock:
            yield

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        if layout.total_bytes > self.free_bytes():
            raise StoreError(
                f"a filter of {layout.total_bytes:,} bytes does not fit: the store {self.alias!r} has "
                f"{self.free_bytes():,} of max_bytes={self._max_bytes:,} left; raise max_bytes"
            )
        layout = bound(layout, guard, name)
        frames = [Frame.format(header, memoryview(bytearray(header.frame_bytes))) for header in layout.headers]
        buffers = self._buffers[guard, name] = [frame.buffer for frame in frames]
        return FrameGeneration(name, layout, buffers, partial(self._locked, self.identity))

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        buffers = self._buffers.get((guard, name))
        if buffers is None:
            raise UnknownGeneration(f"the store {self.alias!r} has no generation {name} of {guard}")
        size = sum(len(buffer) for buffer in buffers)
        layout = self._layout(guard, name, "", Header.unpack(buffers[0]), size, find_key_hash)
        return FrameGeneration(name, layout, buffers, partial(self._locked, self.identity))

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

    def check_deployed(self) -> list[CheckMessage]:
        return [
            Warning(
                f"the store {self.alias!r} is in the memory of one process: no other one has its filters.",
                hint="Use a FileStore or a RedisStore. If the site is a single process, let it build the filters, by "
                "call_command('rebuild_filter'), and silence this check.",
                id="bloomguard.W045",
            )
        ]
