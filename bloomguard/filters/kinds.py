"""The kinds of filters that a store can hold, and which kind suits a guard (``filter = "auto"``).

These kinds keep their whole state in one body.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import sizing
from .base import BodyFilter
from .bitmap import ExactBitmap
from .bloom import BloomFilter
from .cuckoo import CuckooFilter
from .errors import CorruptFilter, InvalidShape
from .extra.counting import CountingBloomFilter, SpectralBloomFilter

_TOP = (1 << 63) - 1

KINDS: dict[str, type[BodyFilter]] = {
    each.kind: each for each in (BloomFilter, CountingBloomFilter, SpectralBloomFilter, CuckooFilter, ExactBitmap)
}


def filter_class(kind: str) -> type[BodyFilter]:
    """Return the class of a kind. Raises :class:`InvalidShape`, which lists all kinds."""
    try:
        return KINDS[kind]
    except KeyError:
        raise InvalidShape(f"kind is {kind!r}; there are {', '.join(sorted(KINDS))}") from None


def held_class(kind: str) -> type[BodyFilter]:
    """Return the class of a kind named by a header. Raises :class:`CorruptFilter`."""
    try:
        return filter_class(kind)
    except InvalidShape as error:
        raise CorruptFilter(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class KeysSummary:
    """The keys of a scan: their ``count``, and for 64-bit integers the lowest and the highest key."""

    count: int
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A kind and its options for :meth:`Layout.plan`; ``sizes`` has the bytes of each kind that was considered."""

    kind: str
    capacity: int
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of the chosen kind in bytes."""
        return self.sizes[self.kind]


def choose(keys: KeysSummary, error_rate: float, *, capacity: int | None = None) -> Choice:
    """Choose an exact bitmap if it is smaller, a Bloom filter otherwise.

    ``capacity`` is the number of keys to make room for (by default ``keys.count``). The bitmap's range ends where that
    many keys end if they are as dense as the present ones. Raises :class:`InvalidShape`.
    """
    capacity = sizing.check_capacity(max(capacity or 0, keys.count, 1))
    bloom = BloomFilter.plan(capacity, error_rate)[0].body_bytes
    if not keys.count or keys.low is None or keys.high is None:
        return Choice(kind="bloom", capacity=capacity, sizes={"bloom": bloom})
    span = keys.high - keys.low + 1
    high = min(keys.low + -(-span * capacity // keys.count) - 1, _TOP)
    try:
        bitmap = ExactBitmap.plan(capacity, error_rate, low=keys.low, high=high)[0].body_bytes
    except InvalidShape:  # the range is larger than any bitmap
        return Choice(kind="bloom", capacity=capacity, sizes={"bloom": bloom})
    sizes = {"bloom": bloom, "bitmap": bitmap}
    if bitmap < bloom:
        return Choice(kind="bitmap", capacity=capacity, options={"low": keys.low, "high": high}, sizes=sizes)
    return Choice(kind="bloom", capacity=capacity, sizes=sizes)
