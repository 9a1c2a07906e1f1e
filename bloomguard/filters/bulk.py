"""Bulk operations with numpy: batches of keys, sharing work among threads, and setting and testing many bits.

The arrays are processed in blocks that stay in the processor's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from .base import RowKeys

    np = numpy
    U64 = NDArray[np.uint64]
    I64 = NDArray[np.int64]
    #: The bytes of each partition, and its size in bits.
    Parts = Sequence[tuple[NDArray[np.uint8], int]]
else:

    class _Numpy:
        """numpy, imported when it is first used: single checks and adds do without its 100 ms and 30 MB."""

        def __getattr__(self, name: str) -> Any:
            import numpy

            found = getattr(numpy, name)
            setattr(self, name, found)  # the next access does not come here
            return found

    np = _Numpy()

_MOST_THREADS = 4  # more threads would wait for memory, and for the interpreter lock between numpy calls
_BLOCK = 1 << 15  # digests per block: their positions stay in the second-level cache
_LEAST_BATCH = 120_000  # keys
_PAGE = 1 << 18  # digests up to which few bits are set by one thread
_SCATTERED = 1 << 13  # digests per block where bits are set in place, which takes more arrays
_FEW = 18  # keys are few if there are more flags per key than this


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1


def spread(worker: Callable[[range], None], starts: range, *, shared: bool) -> None:
    """Run ``worker`` on ``starts``; if they are ``shared``, each of several threads gets its own part of them.

    numpy releases the interpreter lock while it computes, so they use several cores. All threads end with the call: a
    later fork would lose them. ``worker`` may get a start twice.
    """
    threads = min(_MOST_THREADS, cores(), len(starts)) if shared else 1
    if threads > 1:
        from concurrent.futures import ThreadPoolExecutor

        with suppress(RuntimeError):  # no thread can be started, as in `atexit` since Python 3.12: this one does it all
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(worker, [starts[first::threads] for first in range(threads)]))
            return
    worker(starts)


def batches(width: int | None, keys: Any, capacity: int) -> Iterator[Any]:
    """Yield ``keys`` in batches whose digests, at 8 bytes each, take no more memory than the filter, or 1 MiB."""
    size = max(_LEAST_BATCH, capacity // 8)
    if isinstance(keys, (bytes, bytearray, memoryview)) and width:  # without one, KeyHash refuses it
        keys, size = memoryview(keys).cast("B"), size * width
    if isinstance(keys, (bytes, bytearray, memoryview, list, tuple, np.ndarray)):
        for start in range(0, len(keys), size):
            yield keys[start : start + size]
    else:
        iterator = iter(keys)
        while piece := list(islice(iterator, size)):
            yield piece


def one_by_one(keys: RowKeys) -> Sequence[bytes]:
    """Return the keys of an array of integers as bytes; other keys as they are."""
    if isinstance(keys, Sequence):
        return keys
    whole = keys.astype("<i8").tobytes()
    return [whole[at : at + 8] for at in range(0, len(whole), 8)]


def remainders(low: U64, size: int, out: U64) -> I64:
    """Return ``low % size`` in ``out``; takes half the time of ``%``, as numpy vectorises division by a constant."""
    if not size & size - 1:
        np.bitwise_and(low, np.uint64(size - 1), out=out)
        return out.view(np.int64)
    divisor = np.uint64(size)
    np.floor_divide(low, divisor, out=out)
    np.multiply(out, divisor, out=out)
    np.subtract(low, out, out=out)
    return out.view(np.int64)


def set_bits(parts: Parts, low: U64) -> None:
    """Set the bits of digests, given their low 60 bits, one partition at a time.

    If the digests are many for the size of the filter, an array of one byte (*flag*) per bit is filled and packed. The
    threads share it, which is safe because all of them only write the byte 1. If they are few, packing would take
    longer than setting the bits in place, where each partition is one thread's.
    """
    flag_bytes = 8 * max(len(part) for part, _ in parts)
    if len(low) * _FEW < flag_bytes:
        # A page of a rebuild is fewer: another core reads the next page meanwhile.
        spread(partial(_set_in_place, parts, low), range(len(parts)), shared=len(low) >= _PAGE)
        return
    flags = np.zeros(flag_bytes, bool)
    for part, size in parts:
        spread(partial(_scatter, flags, size, low), range(0, len(low), _BLOCK), shared=len(low) >= 4 * _BLOCK)
        part |= np.packbits(flags[: 8 * len(part)])
        flags.fill(False)


def _set_in_place(parts: Parts, low: U64, indices: range) -> None:
    scratch = np.empty(min(_SCATTERED, len(low)), np.uint64)
    for index in indices:
        part, size = parts[index]
        for start in range(0, len(low), _SCATTERED):
            block = low[start : start + _SCATTERED]
            set_at(part, remainders(block, size, scratch[: len(block)]))


def _scatter(flags: NDArray[np.bool_], size: int, low: U64, starts: range) -> None:
    scratch = np.empty(min(_BLOCK, len(low)), np.uint64)
    for start in starts:
        block = low[start : start + _BLOCK]
        flags[remainders(block, size, scratch[: len(block)])] = True


def set_at(cells: NDArray[np.uint8], positions: I64) -> None:
    """Set the bits at ``positions``; no other thread may write to ``cells``."""
    masks = positions.astype(np.uint8)
    masks &= 7
    np.right_shift(128, masks, out=masks)
    offsets = positions >> 3
    while len(offsets):
        found = cells.take(offsets)
        found |= masks
        cells[offsets] = found
        cells.take(offsets, out=found, mode="clip")
        np.bitwise_and(np.bitwise_not(found, out=found), masks, out=found)
        lost = np.flatnonzero(found)  # another bit was written to their byte after them
        offsets, masks = offsets[lost], masks[lost]


def test_at(cells: NDArray[np.uint8], positions: I64) -> NDArray[np.bool_]:
    """Return for each of ``positions`` whether its bit is set."""
    found: NDArray[np.bool_] = cells[positions >> 3] << (positions & 7).astype(np.uint8) >= 128
    return found


def test_bits(parts: Parts, low: U64) -> NDArray[np.bool_]:
    """Return whether all bits of each digest are set; a boolean array of shape ``(n,)``."""
    found = np.ones(len(low), bool)

    def worker(starts: range) -> None:
        scratch = np.empty(min(_BLOCK, len(low)), np.uint64)
        for start in starts:
            block = low[start : start + _BLOCK]
            answer = found[start : start + _BLOCK]
            for part, size in parts:
                positions = remainders(block, size, scratch[: len(block)])
                shifts = positions.astype(np.uint8) & np.uint8(7)
                positions >>= 3
                answer &= (part.take(positions) << shifts) >= 128

    spread(worker, range(0, len(low), _BLOCK), shared=len(low) >= 2 * _BLOCK)
    return found
