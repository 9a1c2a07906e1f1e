"""Probabilistic filters for byte keys. They need neither Django nor Redis."""

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
from .extra.counting import CountingBloomFilter, SpectralBloomFilter
from .extra.rotating import RotatingBloomFilter
from .extra.scalable import ScalableBloomFilter, ScalableCuckooFilter
from .hashing import KeyHash

__all__ = [
    "BloomFilter",
    "CorruptFilter",
    "CountingBloomFilter",
    "CuckooFilter",
    "DiscardUnsupported",
    "ExactBitmap",
    "Filter",
    "FilterError",
    "FilterFull",
    "InvalidShape",
    "KeyHash",
    "MismatchedFilters",
    "RotatingBloomFilter",
    "ScalableBloomFilter",
    "ScalableCuckooFilter",
    "SpectralBloomFilter",
    "Stats",
    "TooLarge",
]
