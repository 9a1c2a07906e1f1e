"""Many keys at once into a cuckoo filter's table, by rounds of numpy, as safe for lock-free readers as one at a time.

Keys go into free slots first. Then rounds make room for many keys at once: by moving one fingerprint each, later by
paths of two and three moves. In a round the copies at the free ends of all paths are written first, then the count of
moves rises, then the slots that they were copied from are overwritten, and so on up to the keys themselves. What would
need longer paths goes in one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import FilterFull

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .cuckoo import CuckooFilter, CuckooShape

    U64 = NDArray[np.uint64]
    I64 = NDArray[np.int64]
    Table = NDArray[np.unsignedinteger[Any]]

_CHUNK = 1 << 15  # keys: what one round works on stays in the cache
_FEW = 16  # keys for which a round costs more than going one at a time
_DEEPEST = 3  # moves that make room for one key: longer paths are rare, and found one at a time
_WIDEST = 1 << 16  # paths looked at in one round: it bounds the memory
_RETRIES = 100


def _table(filter: CuckooFilter) -> Table:
    """The slots, shape ``(buckets, 4)``, sharing the body's memory."""
    import numpy as np

    from .cuckoo import HEAD, SLOTS

    shape = filter.layout
    cells: Table = np.frombuffer(filter.body[HEAD : HEAD + shape.slots * shape.bits // 8], f"<u{shape.bits // 8}")
    return cells.reshape(-1, SLOTS)


def _place(shape: CuckooShape, low: U64, high: U64) -> tuple[Table, I64, I64]:
    """Fingerprints and the two buckets of digests, as :meth:`CuckooShape.place` has them."""
    import numpy as np

    fingerprints = high >> np.uint64(64 - shape.bits)
    fingerprints[fingerprints == 0] = 1
    first = (low % np.uint64(shape.buckets)).view(np.int64)
    return fingerprints.astype(f"<u{shape.bits // 8}"), first, _other(shape, fingerprints, first)


def _other(shape: CuckooShape, fingerprints: Any, buckets: I64) -> I64:
    import numpy as np

    from .cuckoo import FACTOR

    size = np.uint64(shape.buckets)
    spread = fingerprints.astype(np.uint64) * np.uint64(FACTOR) % size
    others: I64 = ((spread + size - buckets.view(np.uint64)) % size).view(np.int64)
    return others


def place(filter: CuckooFilter, low: U64, high: U64) -> I64:
    """Add digests; the indices of those that found no room."""
    import numpy as np

    table = _table(filter)
    random = np.random.default_rng(0)  # which fingerprint is moved; builds of the same keys are the same
    for start in range(0, len(low), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        fingerprints, first, second = _place(filter.layout, low[chunk], high[chunk])
        left = np.arange(len(first))
        left = left[~_fill(table, first[left], fingerprints[left])]
        left = left[~_fill(table, second[left], fingerprints[left])]
        depth = 1
        while len(left) > _FEW and depth <= _DEEPEST:
            some, rest = np.split(left, [_WIDEST >> (2 * depth)])
            some = some[~_move(filter, table, random, depth, first[some], second[some], fingerprints[some])]
            depth += (
                len(left) - len(some) - len(rest) <= len(left) // 8
            )  # a longer path where few shorter ones are left
            left = np.concatenate((some, rest))
        for done, index in enumerate(left):
            try:
                writes = filter._writes(int(fingerprints[index]), int(first[index]), int(second[index]))
            except FilterFull:
                rest = np.arange(min(start + _CHUNK, len(low)), len(low))
                return np.concatenate((start + np.sort(left[done:]), rest))
            filter._apply(writes)
    return np.empty(0, np.int64)


def _fill(table: Table, buckets: I64, fingerprints: Table) -> NDArray[np.bool_]:
    """Put each fingerprint into a free slot of its bucket, where there is one; tells for which there was."""
    import numpy as np

    index = np.arange(len(buckets))
    ordered = np.sort(buckets << 16 | index)  # half the time of argsort; a chunk has less than 2**16 keys
    order, bucket = ordered & 0xFFFF, ordered >> 16
    starts = np.ones(len(bucket), bool)
    np.not_equal(bucket[1:], bucket[:-1], out=starts[1:])
    rank = index - np.maximum.accumulate(np.where(starts, index, 0))  # the first of a bucket's keys, the second, ...
    free = table[bucket] == 0
    chosen = free & (np.cumsum(free, axis=1, dtype=np.int8) == (rank + 1)[:, None])  # and their free slots
    fits = chosen.any(axis=1)
    table[bucket[fits], chosen[fits].argmax(axis=1)] = fingerprints[order[fits]]
    placed = np.empty(len(buckets), bool)
    placed[order] = fits
    return placed


def _move(
    filter: CuckooFilter, table: Table, random: Any, depth: int, first: I64, second: I64, fingerprints: Table
) -> NDArray[np.bool_]:
    """Make room for keys whose two buckets are full by paths of ``depth`` moves; tells for which it worked."""
    import numpy as np

    count, slots = len(first), table.shape[1]
    # Level by level: column c of a level is the other bucket of what lies in slot c % 4 of column c // 4 above it.
    levels = [np.stack((first, second), axis=1)]
    victims: list[Table] = []
    sound = np.ones((count, 2), bool)
    for _ in range(depth):
        victims.append(table[levels[-1]].reshape(count, -1))
        sound = np.repeat(sound, slots, axis=1) & (victims[-1] != 0)
        levels.append(_other(filter.layout, victims[-1], np.repeat(levels[-1], slots, axis=1)))
    sound &= (table[levels[-1]] == 0).any(axis=2)
    column = np.where(sound, random.random(sound.shape), -1).argmax(axis=1)
    row = np.flatnonzero(sound[np.arange(count), column])
    column = column[row]
    target = levels[-1][row, column]
    sources, moved = [], []  # the slots along each path, as bucket * 4 + slot, and what lies there; from the end on
    for level in range(depth - 1, -1, -1):
        moved.append(victims[level][row, column])
        sources.append(levels[level][row, column // slots] * slots + column % slots)
        column = column // slots
    # Each slot gives once, and each bucket takes once, in a round.
    _, where, often = np.unique(np.stack(sources), return_inverse=True, return_counts=True)
    alone = (often[where.reshape(depth, -1)] == 1).all(axis=0)
    if not alone.any():
        alone[:1] = len({int(source[0]) for source in sources}) == depth if len(row) else False
    row, target = row[alone], target[alone]
    sources, moved = [each[alone] for each in sources], [each[alone] for each in moved]
    _, once = np.unique(target, return_index=True)
    row, target = row[once], target[once]
    sources, moved = [each[once] for each in sources], [each[once] for each in moved]

    flat = table.reshape(-1)
    table[target, (table[target] == 0).argmax(axis=1)] = moved[0]
    for level, source in enumerate(sources):
        moves = (int.from_bytes(filter.body[:4], "little") + 1) & 0xFFFFFFFF
        filter.body[:4] = moves.to_bytes(4, "little")
        flat[source] = moved[level + 1] if level + 1 < depth else fingerprints[row]
    placed = np.zeros(count, bool)
    placed[row] = True
    return placed


def contains(filter: CuckooFilter, low: U64, high: U64) -> NDArray[np.bool_]:
    """Check digests; those not found are looked for again if a writer moved something meanwhile."""
    import numpy as np

    table = _table(filter)
    found = np.zeros(len(low), bool)
    for start in range(0, len(low), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        fingerprints, first, second = _place(filter.layout, low[chunk], high[chunk])
        left = np.arange(len(first))
        for _ in range(_RETRIES):
            before = bytes(filter.body[:4])
            wanted = fingerprints[left][:, None]
            here = (table[first[left]] == wanted).any(axis=1)
            here |= (table[second[left]] == wanted).any(axis=1)
            found[start + left[here]] = True
            left = left[~here]
            if not len(left) or bytes(filter.body[:4]) == before:
                break
        else:
            found[start + left] = True  # moved all the time: the safe answer
    return found


def size(filter: CuckooFilter) -> int:
    """Slots in use."""
    import numpy as np

    return int(np.count_nonzero(_table(filter)))
