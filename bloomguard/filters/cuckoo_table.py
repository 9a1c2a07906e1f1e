"""The table of a cuckoo filter: its layout, and operations on many keys in rounds of numpy.

The body is a word, the table and the spill; :mod:`.cuckoo` explains fingerprints, twins and the spill.

Bulk operations are as safe for lock-free readers as single ones. Keys first go into free slots. Then rounds of one move
for each of many keys make room. A round writes the copies to the free slots, raises the count of moves, and overwrites
the slots that the copies came from with the keys. Keys that need longer paths are added one at a time; the keys for
which there is no room spill, all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..exceptions import InvalidShape
from . import sizing
from .base import Shape
from .bloom import BloomShape
from .bulk import np
from .hashing import MASK60

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .bulk import I64, U64
    from .cuckoo import CuckooFilter

    Table = NDArray[np.unsignedinteger[Any]]

HEAD = 64  # bytes before the first bucket: a u32 word, little-endian, and padding; no bucket crosses a cache line
SPILLED = 1 << 31  # bit of the word: something has spilled; the other bits count the moves
SLOTS = 4
LOAD = 0.95  # share of the slots used at capacity; with four slots per bucket the limit is 0.98
FACTOR = 0x7F4A7C15  # C: any odd number that spreads small fingerprints
CODES: dict[int, Literal["B", "H", "I"]] = {8: "B", 16: "H", 32: "I"}
_CHUNK = 1 << 15  # keys: the arrays of one round stay in the cache
_FEW = 16  # up to this many keys a round costs more than adding them one at a time
_FAILURES = 16  # keys without room after which no more are tried
RETRIES = 100  # checks of a key, if a writer moves something during each


@dataclass(frozen=True)
class CuckooShape(Shape):
    """``buckets`` of four fingerprints of ``bits`` (8, 16 or 32) each, little-endian, 0 for a free slot.

    The ``spill`` follows: a Bloom filter whose keys are the numbers returned by :meth:`twins`.
    """

    bits: int
    buckets: int
    spill: BloomShape

    def __post_init__(self) -> None:
        if not 1 <= self.buckets <= sizing.MAX_BITS // 4:
            raise InvalidShape(f"{self.buckets!r} buckets; there have to be 1 to 2**46")
        if self.capacity > self.slots:
            raise InvalidShape(f"capacity is {self.capacity}, but {self.buckets} buckets have {self.slots} slots")

    @property
    def slots(self) -> int:
        """Number of slots, each for one fingerprint."""
        return SLOTS * self.buckets

    @property
    def bucket_bytes(self) -> int:
        """Size of one bucket in bytes."""
        return SLOTS * self.bits // 8

    @property
    def spill_offset(self) -> int:
        """First byte of the spill in the body."""
        return HEAD + -(-self.buckets * self.bucket_bytes // 8) * 8

    @property
    def body_bytes(self) -> int:
        return self.spill_offset + self.spill.body_bytes

    @property
    def parameters(self) -> tuple[int, ...]:
        return (self.bits, self.buckets, *self.spill.sizes)

    def place(self, digest: int) -> tuple[int, int, int]:
        """Return the fingerprint of a 128-bit digest and its two buckets."""
        fingerprint = digest >> (128 - self.bits) or 1
        bucket = (digest & MASK60) % self.buckets
        return fingerprint, bucket, self.other(fingerprint, bucket)

    def other(self, fingerprint: int, bucket: int) -> int:
        """Return the other bucket of a fingerprint whose one bucket is ``bucket``."""
        return (fingerprint * FACTOR - bucket) % self.buckets

    def twins(self, fingerprint: int, bucket: int) -> int:
        """Return a number of 60 bits for the twins of this fingerprint; ``bucket`` may be either of their buckets."""
        return fingerprint * self.buckets + min(bucket, self.other(fingerprint, bucket)) & MASK60

    def offset(self, bucket: int, slot: int) -> int:
        """Return the offset of a slot in the body."""
        return HEAD + bucket * self.bucket_bytes + slot * self.bits // 8


def fingerprint_bits_for(error_rate: float) -> int:
    """Return the shortest fingerprint that keeps ``error_rate``, as each check compares eight slots."""
    for bits in CODES:
        if 2 * SLOTS * LOAD / (1 << bits) <= sizing.check_error_rate(error_rate):
            return bits
    raise InvalidShape(f"error_rate is {error_rate!r}; fingerprints of 32 bits reach 1.8e-9")


def spill_rate(error_rate: float, bits: int) -> float:
    """Return the error rate to plan the spill's Bloom filter with, for a filter at twice its capacity.

    It is the rate allowed there (:func:`sizing.grown_error_rate`) minus the absent keys that are twins of a key: of one
    in the full table, or of one in the spill.
    """
    if bits not in CODES:
        raise InvalidShape(f"fingerprints of {bits!r} bits; they have to have 8, 16 or 32")
    twins = 2 * SLOTS / (1 << bits)
    return sizing.grown_error_rate(max(error_rate, LOAD * twins)) - 2 * twins


def count_move(word: int) -> int:
    """Return the body's first word with one more move counted."""
    return int(word) + 1 & SPILLED - 1 | int(word) & SPILLED


def slots_of(filter: CuckooFilter) -> Table:
    """Return the slots, shape ``(buckets, 4)``, in the body's memory."""
    shape = filter.layout
    cells: Table = np.frombuffer(filter.body[HEAD : HEAD + shape.slots * shape.bits // 8], f"<u{shape.bits // 8}")
    return cells.reshape(-1, SLOTS)


def places(shape: CuckooShape, low: U64, high: U64) -> tuple[Table, I64, I64]:
    """Return the fingerprints and the two buckets of digests, as :meth:`CuckooShape.place` does."""
    fingerprints = high >> np.uint64(64 - shape.bits)
    fingerprints[fingerprints == 0] = 1
    first = (low % np.uint64(shape.buckets)).view(np.int64)
    return fingerprints.astype(f"<u{shape.bits // 8}"), first, _other(shape, fingerprints, first)


def _other(shape: CuckooShape, fingerprints: Any, buckets: I64) -> I64:
    size = np.uint64(shape.buckets)
    spread = fingerprints.astype(np.uint64) * np.uint64(FACTOR) % size
    others: I64 = ((spread + size - buckets.view(np.uint64)) % size).view(np.int64)
    return others


def _twins(shape: CuckooShape, fingerprints: Table, first: I64, second: I64) -> U64:
    """Return the numbers of twins, as :meth:`CuckooShape.twins` does."""
    numbers = fingerprints.astype(np.uint64) * np.uint64(shape.buckets)
    numbers += np.minimum(first, second).view(np.uint64)
    return numbers & np.uint64(MASK60)


def place(filter: CuckooFilter, low: U64, high: U64) -> I64:
    """Add digests, spill those with too many twins, and return the indices of those for which there was no room."""
    table = slots_of(filter)
    unplaced = [np.empty(0, np.int64)]
    for start in range(0, len(low), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        found = places(filter.layout, low[chunk], high[chunk])
        left = np.arange(len(found[0]))
        left = _fill_pairs(table, found, left[~_spilled(filter, found, left)])
        shared = _too_many(table, filter.layout, found, left)
        if shared.any():
            spill(filter, *_of(found, left[shared]))
            left = _fill_pairs(table, found, left[~shared])
        left = _move(filter, table, found, left)
        unplaced.append(start + _make_room(filter, found, left))
    return np.concatenate(unplaced)


def _of(places: tuple[Table, I64, I64], left: I64) -> tuple[Table, I64, I64]:
    """Return the places of the keys ``left``."""
    fingerprints, first, second = places
    return fingerprints[left], first[left], second[left]


def _fill_pairs(table: Table, places: tuple[Table, I64, I64], left: I64) -> I64:
    """Write the keys ``left`` to free slots; return the indices of those whose buckets have none."""
    fingerprints, first, second = places
    for buckets in (first, second):
        left = left[~_fill(table, buckets[left], fingerprints[left])]
    return left


def _too_many(table: Table, shape: CuckooShape, places: tuple[Table, I64, I64], left: I64) -> NDArray[np.bool_]:
    """Return which of the keys ``left``, counted with their twins in the table, exceed the slots of their buckets."""
    fingerprints, first, second = _of(places, left)
    _, where, often = np.unique(_twins(shape, fingerprints, first, second), return_inverse=True, return_counts=True)
    here, there = ((table[buckets] == fingerprints[:, None]).sum(axis=1) for buckets in (first, second))
    apart = first != second
    too_many: NDArray[np.bool_] = often[where] + here + there * apart > table.shape[1] * (1 + apart)
    return too_many


def _move(filter: CuckooFilter, table: Table, places: tuple[Table, I64, I64], left: I64) -> I64:
    """Make room for the keys ``left``, whose buckets are full, by one move each; return the indices of the others."""
    fingerprints, first, second = places
    flat = table.reshape(-1)
    moved = left
    while len(left) > _FEW and len(moved) > len(left) // 8:
        pairs = np.stack((first[left], second[left]), axis=1)
        sources = (pairs[:, :, None] * SLOTS + np.arange(SLOTS)).reshape(len(left), -1)
        victims = flat[sources]
        targets = _other(filter.layout, victims, np.repeat(pairs, SLOTS, axis=1))
        column = (table[targets] == 0).any(axis=2).argmax(axis=1)
        row = np.arange(len(left))
        source, target, victim = sources[row, column], targets[row, column], victims[row, column]
        # In a round each slot is a source once, and each bucket a target once.
        moved = np.flatnonzero((table[target] == 0).any(axis=1))
        for one in (source, target):
            moved = moved[np.unique(one[moved], return_index=True)[1]]
        source, target = source[moved], target[moved]
        table[target, (table[target] == 0).argmax(axis=1)] = victim[moved]
        filter._moves[0] = count_move(filter._moves[0])
        flat[source] = fingerprints[left[moved]]
        left = np.delete(left, moved)
    return left


def _make_room(filter: CuckooFilter, places: tuple[Table, I64, I64], left: I64) -> I64:
    """Add the keys ``left``, whose buckets are full; return the indices of those without room, after some failures."""
    waiting: list[int] = left.tolist()
    failed: list[int] = []
    while waiting and len(failed) < _FAILURES:
        index = waiting.pop()
        fingerprint, first, second = (int(each[index]) for each in places)
        if filter._has_spilled(fingerprint, first):
            continue
        writes = filter._writes(fingerprint, first, second)
        if writes is None:
            failed.append(index)
        else:
            filter._apply(writes)
    return np.array(failed + waiting, np.int64)


def _spilled(filter: CuckooFilter, places: tuple[Table, I64, I64], left: I64) -> NDArray[np.bool_]:
    """Return which of the keys ``left`` have spilled."""
    if filter._moves[0] < SPILLED:
        return np.zeros(len(left), bool)
    return filter.spill.contains_digests(_twins(filter.layout, *_of(places, left)))


def spill(filter: CuckooFilter, fingerprints: Table, first: I64, second: I64) -> None:
    """Move keys with these places, and their twins in the table, to the spill."""
    filter.spill.add_digests(_twins(filter.layout, fingerprints, first, second))
    filter._moves[0] = count_move(filter._moves[0]) | SPILLED
    table = slots_of(filter)
    for buckets in (first, second):
        row, slot = np.nonzero(table[buckets] == fingerprints[:, None])
        table[buckets[row], slot] = 0


def _fill(table: Table, buckets: I64, fingerprints: Table) -> NDArray[np.bool_]:
    """Write each fingerprint to a free slot of its bucket if there is one; return for which there was."""
    index = np.arange(len(buckets))
    ordered = np.sort(buckets << 16 | index)  # takes half the time of argsort; a chunk has fewer than 2**16 keys
    order, bucket = ordered & 0xFFFF, ordered >> 16
    starts = np.ones(len(bucket), bool)
    np.not_equal(bucket[1:], bucket[:-1], out=starts[1:])
    rank = index - np.maximum.accumulate(np.where(starts, index, 0))  # 0, 1, 2, ... in each bucket
    free = table[bucket] == 0
    chosen = free & (np.cumsum(free, axis=1, dtype=np.int8) == (rank + 1)[:, None])  # one free slot for each rank
    fits = chosen.any(axis=1)
    table[bucket[fits], chosen[fits].argmax(axis=1)] = fingerprints[order[fits]]
    placed = np.empty(len(buckets), bool)
    placed[order] = fits
    return placed


def contains(filter: CuckooFilter, low: U64, high: U64) -> NDArray[np.bool_]:
    """Check digests; repeat the check for those not found if a writer moved something in the meantime."""
    table = slots_of(filter)
    found = np.zeros(len(low), bool)
    for start in range(0, len(low), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        keys = fingerprints, first, second = places(filter.layout, low[chunk], high[chunk])
        left = np.arange(len(first))
        for _ in range(RETRIES):
            before = filter._moves[0]
            wanted = fingerprints[left][:, None]
            here = (table[first[left]] == wanted).any(axis=1)
            here |= (table[second[left]] == wanted).any(axis=1)
            if before >= SPILLED:
                here[~here] = _spilled(filter, keys, left[~here])
            found[start + left[here]] = True
            left = left[~here]
            if not len(left) or filter._moves[0] == before:
                break
        else:
            found[start + left] = True  # too many moves: the safe answer
    return found
