"""The kinds of filters that a store can hold, and which kind suits a guard (``filter = "auto"``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import sizing
from .base import BodyFilter
from .bitmap import ExactBitmap
from .bloom import BloomFilter
from .cuckoo import CuckooFilter
from .errors import InvalidShape

_TOP = (1 << 63) - 1

KINDS: dict[str, type[BodyFilter]] = {each.kind: each for each in (BloomFilter, CuckooFilter, ExactBitmap)}


@dataclass(frozen=True, kw_only=True)
class KeysSummary:
    """The keys of a scan: their ``count``, and for 64-bit integers the lowest and the highest key."""

    count: int
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A kind and its options for :meth:`Layout.plan`."""

    kind: str
    capacity: int
    options: dict[str, Any] = field(default_factory=dict)


def choose(keys: KeysSummary, error_rate: float, *, capacity: int) -> Choice:
    """Choose an exact bitmap if it is smaller, a Bloom filter otherwise.

    ``capacity`` is the number of keys to make room for. The bitmap's range ends where that many keys end if they are as
    dense as the present ones. Raises :class:`InvalidShape`.
    """
    bloom = Choice(kind="bloom", capacity=sizing.check_capacity(capacity))
    bloom_bytes = BloomFilter.plan(capacity, error_rate)[0].body_bytes
    if not keys.count or keys.low is None or keys.high is None:
        return bloom
    span = keys.high - keys.low + 1
    high = min(keys.low + -(-span * capacity // keys.count) - 1, _TOP)
    try:
        if ExactBitmap.plan(capacity, error_rate, low=keys.low, high=high)[0].body_bytes >= bloom_bytes:
            return bloom
    except InvalidShape:  # the range is larger than any bitmap
        return bloom
    return Choice(kind="bitmap", capacity=capacity, options={"low": keys.low, "high": high})
