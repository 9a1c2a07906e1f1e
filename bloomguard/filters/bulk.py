"""Many keys at once: numpy over the partitions of a Bloom filter, in pieces that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from .parallel import Crew

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .base import BodyFilter, Keys

    U64 = NDArray[np.uint64]

_BLOCK = 1 << 15  # digests whose positions are worked out at once: they stay in the second-level cache
_LEAST_BATCH = 1 << 18  # keys
_SMALL = 4 << 20  # bytes of flags
_SCRATCH = 1 << 20  # bytes that the threads need for themselves


def add_keys(filter: BodyFilter, keys: Keys) -> None:
    """Hash and add ``keys`` in batches, whose memory is in proportion to the filter, not to the keys."""
    for batch in batches(filter.key_hash.width, keys, batch_size(len(filter.body))):
        filter.add_digests(*filter.digests(batch))


def batch_size(filter_bytes: int) -> int:
    """Keys that take, at 8 bytes each, no more than the filter itself, or 2 MiB."""
    return max(_LEAST_BATCH, filter_bytes // 8)


def batches(width: int | None, keys: Any, size: int) -> Iterator[Any]:
    """``keys`` in pieces of ``size`` keys."""
    import numpy as np

    if isinstance(keys, (bytes, bytearray, memoryview)) and width:
        keys, size = memoryview(keys).cast("B"), size * width
    if isinstance(keys, (list, tuple, memoryview, np.ndarray)):
        for start in range(0, len(keys), size):
            yield keys[start : start + size]
    elif isinstance(keys, (bytes, bytearray)):
        yield keys  # refused by KeyHash, with the reason
    else:
        iterator = iter(keys)
        while piece := list(islice(iterator, size)):
            yield piece


def remainders(low: U64, size: int, out: U64) -> NDArray[np.int64]:
    """``low % size`` in ``out``, in half the time of ``%``: numpy divides by a constant with vector instructions."""
    import numpy as np

    if not size & size - 1:
        np.bitwise_and(low, np.uint64(size - 1), out=out)
        return out.view(np.int64)
    divisor = np.uint64(size)
    np.floor_divide(low, divisor, out=out)
    np.multiply(out, divisor, out=out)
    np.subtract(low, out, out=out)
    return out.view(np.int64)


class BitSetter:
    """Sets the bits of digests, a partition at a time, through one byte for each bit of that partition.

    Threads share the digests of a large partition, and only ever write the same byte, 1; of small partitions, whose
    bytes would travel between the cores' caches, each thread takes whole ones.
    """

    def __init__(self, body: memoryview, offsets: tuple[int, ...], sizes: tuple[int, ...], crew: Crew) -> None:
        import numpy as np

        cells = np.frombuffer(body, np.uint8)
        self._parts = [(cells[offset : offset + -(-size // 8)], size) for offset, size in zip(offsets, sizes)]
        self._flag_bytes = 8 * max(len(part) for part, _ in self._parts)
        self._spare: list[NDArray[np.bool_]] = []  # flags, all of them clear, for the next who needs some
        self._crew = crew

    @property
    def batch(self) -> int:
        """Keys whose digests take, with the flags, at most three times the memory of a large filter."""
        room = 23 * sum(len(part) for part, _ in self._parts) // 8 - self._flag_bytes - _SCRATCH
        return max(_LEAST_BATCH, room // 8)

    def set(self, low: U64) -> None:
        """Set the bits of the digests whose low parts are given."""
        if self._flag_bytes > _SMALL:
            for part, size in self._parts:
                self._set(part, size, low, self._crew)
            return

        def worker(indices: Iterator[int]) -> None:
            alone = Crew(1)
            for index in indices:
                self._set(*self._parts[index], low, alone)

        self._crew.spread(worker, len(self._parts), 1, 2 if len(low) > _BLOCK else 1 << 10)

    def _set(self, part: NDArray[np.uint8], size: int, low: U64, crew: Crew) -> None:
        import numpy as np

        if len(low) * 256 < size:  # few keys in a large partition: touch only their bytes
            set_few(part, (low % np.uint64(size)).view(np.int64))
            return
        flags = self._spare.pop() if self._spare else np.zeros(self._flag_bytes, bool)

        def scatter(starts: Iterator[int]) -> None:
            scratch = np.empty(min(_BLOCK, len(low)), np.uint64)
            for start in starts:
                block = low[start : start + _BLOCK]
                flags[remainders(block, size, scratch[: len(block)])] = True

        def pack(starts: Iterator[int]) -> None:
            for start in starts:
                mine = flags[8 * start : 8 * min(start + _BLOCK, len(part))]
                part[start : start + _BLOCK] |= np.packbits(mine)
                mine.fill(False)

        crew.spread(scatter, len(low), _BLOCK, 2 * _BLOCK)
        crew.spread(pack, len(part), _BLOCK, 16 * _BLOCK)
        self._spare.append(flags)


def set_few(cells: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
    """Set bits by sorting them, so that only their bytes are touched."""
    for start in range(0, len(positions), _BLOCK):
        offsets, values = with_bits(cells, positions[start : start + _BLOCK])
        cells[offsets] = values


def with_bits(cells: NDArray[np.uint8], positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The bytes that bits lie in, by offset, each once, and what they will be when the bits are set."""
    import numpy as np

    ordered = np.sort(positions)
    offsets = ordered >> 3
    masks = (128 >> (ordered & 7)).astype(np.uint8)
    first = np.ones(len(offsets), bool)
    np.not_equal(offsets[1:], offsets[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    offsets = offsets[starts]
    return offsets, cells[offsets] | np.bitwise_or.reduceat(masks, starts)


def test_bits(body: memoryview, offsets: tuple[int, ...], sizes: tuple[int, ...], low: U64) -> NDArray[np.bool_]:
    """Whether all bits of each digest are set; a boolean array of shape ``(n,)``."""
    import numpy as np

    cells = np.frombuffer(body, np.uint8)
    found = np.ones(len(low), bool)

    def worker(starts: Iterator[int]) -> None:
        scratch = np.empty(min(_BLOCK, len(low)), np.uint64)
        for start in starts:
            block = low[start : start + _BLOCK]
            answer = found[start : start + _BLOCK]
            for offset, size in zip(offsets, sizes):
                positions = remainders(block, size, scratch[: len(block)])
                shifts = positions.astype(np.uint8) & np.uint8(7)
                positions >>= 3
                answer &= (cells[offset:].take(positions) << shifts) >= 128

    with Crew() as crew:
        crew.spread(worker, len(low), _BLOCK, 2 * _BLOCK)
    return found
