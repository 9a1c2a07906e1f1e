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
from .kinds import Choice, KeysSummary, choose, filter_class
from .layout import Layout

__all__ = [
    "BloomFilter",
    "Choice",
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
    "KeysSummary",
    "Layout",
    "MismatchedFilters",
    "RotatingBloomFilter",
    "ScalableBloomFilter",
    "ScalableCuckooFilter",
    "SpectralBloomFilter",
    "Stats",
    "TooLarge",
    "choose",
    "filter_class",
]
