"""Probabilistic filters on bytes. They know nothing of Django or Redis, and need neither."""

from .base import Filter, Stats
from .bitmap import ExactBitmap
from .bloom import BloomFilter
from .choose import Choice, KeysSummary, choose
from .counting import CountingBloomFilter, SpectralBloomFilter
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
from .kinds import filter_class
from .layout import Layout
from .rotating import RotatingBloomFilter
from .scalable import ScalableBloomFilter, ScalableCuckooFilter

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
