"""Generations in memory buffers, one frame per shard, and the lock of those in a mapped file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import process
from ..exceptions import CorruptFilter, StoreError
from ..filters.base import BodyFilter
from ..filters.bulk import np, one_by_one
from ..filters.codec import MAGIC, Frame
from ..filters.layout import Layout
from ..process import after_fork, own_lock, seconds
from . import disk
from .base import Generation
from .disk import fcntl

if TYPE_CHECKING:
    from ..filters.base import Keys, RowKeys
    from ..filters.bulk import U64

# Three ways to add keys: one by one takes 6 us a key; several at once, for filters of plain bits only, takes 150 us a
# shard and 0.5 us a key; in bulk takes a tenth of that a key, but recomputes the checksum of each whole shard.
_SEVERAL_KEYS = 32
_MANY_KEYS = 256
_BYTES_A_KEY = {True: 256, False: 16_384}  # for bulk adds, by whether the filter has plain bits
# Keys to change under one lock, one by one and together: other writers wait for about 5 ms, and if a filter of
# fingerprints is nearly full for up to a third of a second.
_CHANGED_AT_ONCE = 256
_WRITTEN_AT_ONCE = 8_192


class FrameGeneration(Generation):
    """A generation whose shards lie in ``buffers``.

    ``locked(exclusive)`` is a context manager that locks out writers of all processes. Checks take no lock.
    """

    #: Seconds between the parts of a bulk add, in which a waiting process tries again to take the lock.
    _pause_seconds = 0.002

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
        self._shards: list[tuple[Frame, BodyFilter] | None] = [None] * len(buffers)
        plain = layout.filter_class.plain_bits
        #: Returns the positions of a digest's bits; ``None`` for a filter of other things than bits.
        self._positions: Callable[[int], list[int]] | None = layout.shape.positions if plain else None  # type: ignore[attr-defined]
        self._many = max(_MANY_KEYS, layout.total_bytes // _BYTES_A_KEY[plain])
        self._several = min(_SEVERAL_KEYS * len(buffers), self._many) if plain else self._many
        if len(buffers) == 1:
            self._shard(0)

    def _shard(self, index: int) -> tuple[Frame, BodyFilter]:
        """Return the frame and the filter of one shard; verify its checksum on first use."""
        shard = self._shards[index]
        if shard is None:
            frame = Frame.open(self._buffers[index])
            if frame.header != self.layout.headers[index]:
                raise CorruptFilter(f"shard {index} of generation {self.name} belongs to another build")
            with self._locked(False):
                frame.verify()
            shard = self._shards[index] = frame, self.layout.attach(frame)
            opened = [each[1] for each in self._shards if each is not None]
            if len(opened) == len(self._shards):
                self.might_contain = self.layout.checker(opened)  # type: ignore[assignment, method-assign]
        return shard

    def might_contain(self, key: bytes) -> bool:
        """See :attr:`Generation.might_contain`."""
        shard, digest = self.layout.locate(key)
        return self._shard(shard)[1].might_contain_digest(digest)

    def is_recent(self, key: bytes) -> bool:
        shard, digest = self.layout.locate(key)
        return self._shard(shard)[0].has_bits(self.layout.recent_positions(digest))

    def add(self, keys: RowKeys, *, once: bool = False) -> None:
        if len(keys) >= self._several:
            if len(keys) >= self._many:
                self._add_in_bulk(keys, once)
            else:
                self._add_several(keys)
            return
        located = self._located(keys if type(keys) is list else one_by_one(keys))
        recent_positions, positions = self.layout.recent_positions, self._positions
        for start in range(0, len(located), _CHANGED_AT_ONCE):
            with self._locked(True):
                for frame, attached, digest in located[start : start + _CHANGED_AT_ONCE]:
                    bits = recent_positions(digest)
                    if positions is not None:
                        bits += positions(digest)
                    elif not (once and attached.might_contain_digest(digest)):
                        frame.write(attached.writes(digest))
                    frame.add_bits(bits)
                    if not (frame.has_bits(bits) and (positions is not None or attached.might_contain_digest(digest))):
                        raise CorruptFilter(self._lost)

    def _add_several(self, keys: RowKeys) -> None:
        for start in range(0, len(keys), _WRITTEN_AT_ONCE):
            placed = [
                (self._shard(index)[0], self.layout.written_positions(low))
                for index, low, _ in self.layout.locate_many(keys[start : start + _WRITTEN_AT_ONCE])
            ]
            with self._locked(True):
                for frame, positions in placed:
                    frame.write_bits(positions)
            for frame, positions in placed:
                if not frame.has_many_bits(positions):
                    raise CorruptFilter(self._lost)

    def _add_in_bulk(self, keys: RowKeys, once: bool) -> None:
        for frame, attached, low, high in self._parts(self.layout.locate_many(keys)):
            assert high is not None
            with self._locked(True):
                frame.begin()
                new: Any = slice(None)
                if once and self._positions is None:
                    # If two keys differ in the high part alone, the check below misses one of them.
                    _, new = np.unique(low, return_index=True)
                    new = new[~attached.contains_digests(low[new], high[new])]
                attached.add_digests(low[new], high[new])
                frame.set_bits(recent := self.layout.recent_positions_many(low))
                frame.seal()
            if not (attached.contains_digests(low, high).all() and frame.has_many_bits(recent)):
                raise CorruptFilter(self._lost)

    def _parts(
        self, located: Iterable[tuple[int, U64, U64 | None]]
    ) -> Iterator[tuple[Frame, BodyFilter, U64, U64 | None]]:
        """Yield the frame, the filter and the digests of each part to add under one lock; pause between the parts."""
        at_once = _WRITTEN_AT_ONCE if self._positions is None else sys.maxsize
        for index, low, high in located:
            frame, attached = self._shard(index)
            for start in range(0, len(low), at_once):
                if start:
                    time.sleep(self._pause_seconds)
                some = slice(start, start + at_once)
                yield frame, attached, low[some], high if high is None else high[some]

    def _located(self, keys: Iterable[bytes]) -> list[tuple[Frame, Any, int]]:
        """Return for each key its shard's frame and filter, and its digest."""
        return [(*self._shard(shard), digest) for shard, digest in map(self.layout.locate, keys)]

    @property
    def _lost(self) -> str:
        return f"generation {self.name} did not keep what was written"

    def add_many(self, keys: Keys) -> None:
        located: Iterable[tuple[int, U64, U64 | None]] = self.layout.locate_many(keys)
        if len(self._buffers) == 1:
            located = [(0, *self._shard(0)[1].digests(keys))]  # only the part of the digests that its kind needs
        for frame, attached, low, high in self._parts(located):
            with self._locked(True):
                frame.begin()
                attached.add_digests(low, high)

    def discard(self, keys: Iterable[bytes]) -> None:
        if not self.layout.filter_class.supports_discard:
            super().discard(keys)  # raises
        located = self._located(keys)
        for start in range(0, len(located), _CHANGED_AT_ONCE):
            with self._locked(True):
                for frame, attached, digest in located[start : start + _CHANGED_AT_ONCE]:
                    frame.write(attached.discard_writes(digest))

    def seal(self) -> None:
        for shard in self._shards:
            if shard is not None and shard[0].dirty:
                with self._locked(True):
                    shard[0].seal()

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


class WriteLock:
    """A thread lock and ``flock`` on the file ``path`` of a generation, in this order.

    ``flock`` belongs to the open file, so it does not exclude threads that share one, nor a child that inherited it:
    after a fork, the child opens the file again. ``place`` is its :func:`disk.file_id`: a file that has taken its name
    is another one, and a lock on that would exclude no process.

    The exclusive lock writes the file's first byte again, once a second. That fails if an error has made the file
    system read-only: the mapped file would still take the bits, in memory alone, lost as soon as the disk is repaired
    and mounted again. It also fails on a full disk where each change needs new space (btrfs): the kernel would kill the
    process (SIGBUS).
    """

    def __init__(self, path: Path, place: str) -> None:
        self._path, self._place = path, place
        self._thread: Any = own_lock(self, "_thread")  # which knows whether this thread has it
        self._fd: int | None = None
        self._written_at = float("-inf")
        after_fork(self._close)

    def _close(self, close: Callable[[int], None] = os.close) -> None:
        # The default argument keeps a reference: at interpreter exit the module's globals may be cleared before.
        fd, self._fd = self._fd, None  # first: a number whose close failed is free, and soon another file's
        if fd is not None:
            close(fd)

    @contextmanager
    def __call__(self, exclusive: bool) -> Iterator[None]:
        """Hold the exclusive or shared lock for a block; raises :class:`StoreError` after a timeout.

        A time limit or Ctrl-C may raise its exception at any line, also when the block has just been left and nothing
        is unlocked yet. A generator is closed at its end, so that it unlocks all the same; else every later add would
        fail.
        """
        self._take(fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        try:
            yield
        finally:
            try:
                if self._fd is not None:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            except OSError as error:
                with suppress(OSError):
                    self._close()
                raise StoreError(f"cannot unlock {self._path}: {error.strerror}") from error
            finally:
                self._thread.release()

    def _take(self, how: int) -> None:
        if os.getpid() != process.pid:
            process.notice_fork()
        if self._thread._is_owned():  # as of a signal's handler in the middle of an add: both would set bits
            raise StoreError(f"this thread holds {self._path} already")
        try:
            if not (self._thread.acquire(blocking=False) or self._thread.acquire(timeout=disk.LOCK_SECONDS)):
                raise StoreError(f"another thread has held {self._path} for {disk.LOCK_SECONDS:g} s")
            if self._fd is None:
                self._fd = disk.open_private(self._path, os.O_RDWR)
                if disk.file_id(self._fd) != self._place:
                    raise StoreError(f"{self._path} has been replaced by another file")
            try:  # hot path: nearly always no other process has it
                fcntl.flock(self._fd, how | fcntl.LOCK_NB)
            except BlockingIOError:
                disk.lock_file(self._fd, self._path, how)
            if how == fcntl.LOCK_EX and not 0.0 <= (now := seconds()) - self._written_at < disk.WRITABLE_SECONDS:
                os.pwrite(self._fd, MAGIC[:1], 0)
                self._written_at = now
        except BaseException as error:
            if self._thread._is_owned():
                try:
                    with suppress(OSError):
                        self._close()  # which unlocks the file, if it was locked
                finally:
                    self._thread.release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot lock {self._path}: {error.strerror}") from error
            raise

    def __del__(self) -> None:
        self._close()
