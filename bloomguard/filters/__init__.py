"""Probabilistic filters for byte keys. They need neither Django nor Redis."""

from ..exceptions import (
    CorruptFilter,
    DiscardUnsupported,
    FilterError,
    FilterFull,
    InvalidShape,
    MismatchedFilters,
    TooLarge,
)
from .base import Filter, Stats
from .bitmap import ExactBitmap
from .bloom import BloomFilter
from .counting import CountingBloomFilter, SpectralBloomFilter
from .cuckoo import CuckooFilter
from .hashing import KeyHash
from .layered import RotatingBloomFilter, ScalableBloomFilter, ScalableCuckooFilter

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
