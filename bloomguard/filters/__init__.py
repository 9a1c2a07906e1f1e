"""Probabilistic filters on bytes. They know nothing of Django or Redis, and need neither."""

from .base import Filter, Stats
from .bitmap import ExactBitmap
from .bloom import BloomFilter
from .cuckoo import CuckooFilter
from .errors import (
    CorruptFilter,
    DiscardUnsupported,
    FilterError,
    FilterFull,
    InvalidShape,
    MismatchedFilters,
    TooLarge,
)
from .hashing import KeyHash
from .layout import Layout

__all__ = [
    "BloomFilter",
    "CorruptFilter",
    "CuckooFilter",
    "DiscardUnsupported",
    "ExactBitmap",
    "Filter",
    "FilterError",
    "FilterFull",
    "InvalidShape",
    "KeyHash",
    "Layout",
    "MismatchedFilters",
    "Stats",
    "TooLarge",
]
