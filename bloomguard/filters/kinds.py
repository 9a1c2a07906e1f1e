"""Kind -> class, for those whose whole state is one body: what a store can hold."""

from __future__ import annotations

from .base import BodyFilter
from .bitmap import ExactBitmap
from .bloom import BloomFilter
from .counting import CountingBloomFilter, SpectralBloomFilter
from .cuckoo import CuckooFilter
from .errors import CorruptFilter, InvalidShape

KINDS: dict[str, type[BodyFilter]] = {
    each.kind: each for each in (BloomFilter, CountingBloomFilter, SpectralBloomFilter, CuckooFilter, ExactBitmap)
}


def filter_class(kind: str) -> type[BodyFilter]:
    """The class of a kind; raises :class:`InvalidShape`, which names the kinds there are."""
    try:
        return KINDS[kind]
    except KeyError:
        raise InvalidShape(f"kind is {kind!r}; there are {', '.join(sorted(KINDS))}") from None


def held_class(kind: str) -> type[BodyFilter]:
    """The same for a kind that a header names; raises :class:`CorruptFilter`."""
    try:
        return filter_class(kind)
    except InvalidShape as error:
        raise CorruptFilter(str(error)) from error
