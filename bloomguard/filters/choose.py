"""Which kind for these keys? What ``filter = "auto"`` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import sizing
from .bitmap import ExactBitmap
from .bloom import BloomFilter
from .errors import InvalidShape

_TOP = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class KeysSummary:
    """What a scan knows of its keys: ``count``, and ``low`` and ``high`` where they are integers of 64 bits."""

    count: int
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A kind and its options, as :meth:`Layout.plan` takes them; ``sizes`` has the bytes of every kind considered."""

    kind: str
    capacity: int
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The size of the chosen kind."""
        return self.sizes[self.kind]


def choose(keys: KeysSummary, error_rate: float, *, capacity: int | None = None) -> Choice:
    """An exact bitmap where it is smaller, a Bloom filter otherwise.

    ``capacity`` is the number of keys to make room for (``keys.count`` unless given); a bitmap's range then reaches as
    far above ``high`` as that many keys will at the density of those there are. Raises :class:`InvalidShape`.
    """
    capacity = sizing.check_capacity(max(capacity or 0, keys.count, 1))
    bloom = BloomFilter.plan(capacity, error_rate)[0].body_bytes
    if not keys.count or keys.low is None or keys.high is None:
        return Choice(kind="bloom", capacity=capacity, sizes={"bloom": bloom})
    span = keys.high - keys.low + 1
    high = min(keys.low + -(-span * capacity // keys.count) - 1, _TOP)
    try:
        bitmap = ExactBitmap.plan(capacity, error_rate, low=keys.low, high=high)[0].body_bytes
    except InvalidShape:  # a range past what any bitmap holds
        return Choice(kind="bloom", capacity=capacity, sizes={"bloom": bloom})
    sizes = {"bloom": bloom, "bitmap": bitmap}
    if bitmap < bloom:
        return Choice(kind="bitmap", capacity=capacity, options={"low": keys.low, "high": high}, sizes=sizes)
    return Choice(kind="bloom", capacity=capacity, sizes=sizes)
