"""Many keys at once into a cuckoo filter's table, by rounds of numpy, as safe for lock-free readers as one at a time.

A round puts keys into free slots, then makes room by moving fingerprints one step: first all copies are written to
free slots, then the count of moves rises, then the old slots are overwritten. What would need longer paths (a few in a
hundred near full load) goes in one at a time.
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
_FEW = 64  # keys for which a round costs more than going one at a time
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
        while len(left) > _FEW:
            before = len(left)
            left = left[~_move(filter, table, random, first[left], second[left], fingerprints[left])]
            left = left[~_fill(table, second[left], fingerprints[left])]
            if before - len(left) < before // 8:
                break
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

    order = np.argsort(buckets)
    bucket = buckets[order]
    index = np.arange(len(bucket))
    starts = np.ones(len(bucket), bool)
    np.not_equal(bucket[1:], bucket[:-1], out=starts[1:])
    rank = index - np.maximum.accumulate(np.where(starts, index, 0))  # the first of a bucket's keys, the second, ...
    free = table[bucket] == 0
    chosen = free & (np.cumsum(free, axis=1) == (rank + 1)[:, None])  # and their free slots
    fits = chosen.any(axis=1)
    table[bucket[fits], chosen[fits].argmax(axis=1)] = fingerprints[order][fits]
    placed = np.zeros(len(buckets), bool)
    placed[order] = fits
    return placed


def _move(
    filter: CuckooFilter, table: Table, random: Any, first: I64, second: I64, fingerprints: Table
) -> NDArray[np.bool_]:
    """Make room for keys whose two buckets are full by moving one fingerprint one step; tells for which it worked."""
    import numpy as np

    count, slots = len(first), table.shape[1]
    pair = np.stack((first, second), axis=1)
    buckets = np.repeat(pair, slots, axis=1)  # (count, 8): the bucket of each fingerprint that could make room
    victims = table[pair].reshape(count, 2 * slots)
    others = _other(filter.layout, victims, buckets)
    room = (table[others] == 0).any(axis=2) & (victims != 0)
    pick = np.where(room, random.random(room.shape), -1).argmax(axis=1)
    row = np.arange(count)
    able = np.flatnonzero(room[row, pick])
    pick, source, target = pick[able], buckets[able, pick[able]], others[able, pick[able]]
    # Each slot gives once and each bucket takes once in a round.
    _, once = np.unique(source * slots + pick % slots, return_index=True)
    able, pick, source, target = able[once], pick[once], source[once], target[once]
    _, once = np.unique(target, return_index=True)
    able, pick, source, target = able[once], pick[once], source[once], target[once]
    table[target, (table[target] == 0).argmax(axis=1)] = victims[able, pick]
    moves = (int.from_bytes(filter.body[:4], "little") + 1) & 0xFFFFFFFF
    filter.body[:4] = moves.to_bytes(4, "little")
    table[source, pick % slots] = fingerprints[able]
    placed = np.zeros(count, bool)
    placed[able] = True
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
