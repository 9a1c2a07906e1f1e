"""The layout of a cuckoo filter's body: a word, the table, and the spill.

:mod:`.cuckoo` explains fingerprints, twins and the spill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import sizing
from .bloom import BloomShape
from .errors import InvalidShape
from .hashing import MASK60

HEAD = 64  # bytes before the first bucket: a u32 word, little-endian, and padding; no bucket crosses a cache line
SPILLED = 1 << 31  # bit of the word: something has spilled; the other bits count the moves
SLOTS = 4
LOAD = 0.95  # share of the slots used at capacity; with four slots per bucket the limit is 0.98
FACTOR = 0x7F4A7C15  # C: any odd number that spreads small fingerprints
CODES: dict[int, Literal["B", "H", "I"]] = {8: "B", 16: "H", 32: "I"}


@dataclass(frozen=True)
class CuckooShape:
    """``buckets`` of four fingerprints of ``bits`` (8, 16 or 32) each, little-endian, 0 for a free slot.

    The ``spill`` follows: a Bloom filter whose keys are the numbers returned by :meth:`twins`.
    """

    capacity: int
    error_rate: float
    bits: int
    buckets: int
    spill: BloomShape

    def __post_init__(self) -> None:
        if self.bits not in CODES:
            raise InvalidShape(f"fingerprints of {self.bits!r} bits; they have to have 8, 16 or 32")
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
        """The size of the body in bytes."""
        return self.spill_offset + self.spill.body_bytes

    @property
    def parameters(self) -> tuple[int, ...]:
        """Integers that the header stores to describe the shape."""
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
    twins = 2 * SLOTS / (1 << bits)
    return sizing.grown_error_rate(max(error_rate, LOAD * twins)) - 2 * twins


def count_move(word: int) -> int:
    """Return the body's first word with one more move counted."""
    return word + 1 & SPILLED - 1 | word & SPILLED
