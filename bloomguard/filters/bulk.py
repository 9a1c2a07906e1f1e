"""Many keys at once: numpy over the partitions of a Bloom filter, in pieces that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .base import BodyFilter, Keys

    U64 = NDArray[np.uint64]

_BLOCK = 1 << 15  # digests whose positions are worked out at once: they stay in the second-level cache
_LEAST_BATCH = 1 << 17  # keys


def add_keys(filter: BodyFilter, keys: Keys) -> None:
    """Hash and add ``keys`` in batches, so that their digests never take more memory than an eighth of the filter."""
    for batch in batches(filter.key_hash.width, keys, len(filter.body)):
        filter.add_digests(*filter.digests(batch))


def batches(width: int | None, keys: Any, filter_bytes: int) -> Iterator[Any]:
    """``keys`` in pieces whose two digests, 16 bytes a key, take an eighth of the filter, or 2 MiB if that is more."""
    import numpy as np

    size = max(_LEAST_BATCH, filter_bytes // 128)
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

    divisor = np.uint64(size)
    np.floor_divide(low, divisor, out=out)
    np.multiply(out, divisor, out=out)
    np.subtract(low, out, out=out)
    return out.view(np.int64)


def set_bits(body: memoryview, offsets: tuple[int, ...], sizes: tuple[int, ...], low: U64) -> None:
    """Set the bits of digests, a partition at a time: one byte for each bit of one partition is all the memory."""
    import numpy as np

    cells = np.frombuffer(body, np.uint8)
    scratch = np.empty(min(_BLOCK, len(low)), np.uint64)
    flags = np.empty(0, bool)
    for offset, size in zip(offsets, sizes):
        part = cells[offset : offset + -(-size // 8)]
        if len(low) * 64 < size:  # few keys in a large partition: touch only their bytes
            set_few(part, (low % np.uint64(size)).view(np.int64))
            continue
        if len(flags) < 8 * len(part):
            flags = np.empty(8 * len(part) + 64, bool)  # the next partitions are a few bits larger
        mine = flags[: 8 * len(part)]
        mine.fill(False)
        for start in range(0, len(low), _BLOCK):
            block = low[start : start + _BLOCK]
            mine[remainders(block, size, scratch[: len(block)])] = True
        for start in range(0, len(part), _BLOCK):
            part[start : start + _BLOCK] |= np.packbits(mine[8 * start : 8 * (start + _BLOCK)])


def set_few(cells: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
    """Set bits by sorting them: what falls into one byte is joined first, and only those bytes are touched."""
    import numpy as np

    for start in range(0, len(positions), _BLOCK):
        ordered = np.sort(positions[start : start + _BLOCK])
        offsets = ordered >> 3
        masks = (128 >> (ordered & 7)).astype(np.uint8)
        starts = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1])))
        cells[offsets[starts]] |= np.bitwise_or.reduceat(masks, starts)


def test_bits(body: memoryview, offsets: tuple[int, ...], sizes: tuple[int, ...], low: U64) -> NDArray[np.bool_]:
    """Whether all bits of each digest are set; a boolean array of shape ``(n,)``."""
    import numpy as np

    cells = np.frombuffer(body, np.uint8)
    found = np.ones(len(low), bool)
    scratch = np.empty(min(_BLOCK, len(low)), np.uint64)
    for start in range(0, len(low), _BLOCK):
        block = low[start : start + _BLOCK]
        answer = found[start : start + _BLOCK]
        for offset, size in zip(offsets, sizes):
            positions = remainders(block, size, scratch[: len(block)])
            shifts = (positions & 7).astype(np.uint8)
            positions >>= 3
            answer &= (cells[offset:].take(positions) << shifts) >= 128
    return found
