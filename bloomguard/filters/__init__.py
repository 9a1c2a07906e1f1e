"""Probabilistic filters on bytes. They know nothing of Django or Redis, and need neither."""

from .bloom import BloomFilter
from .errors import CorruptFilter, FilterError, InvalidShape, TooLarge
from .hashing import KeyHash

__all__ = ["BloomFilter", "CorruptFilter", "FilterError", "InvalidShape", "KeyHash", "TooLarge"]
