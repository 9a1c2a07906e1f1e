"""Every kind of filter, made alike: what the suites that run over all of them share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bloomguard.filters import (
    BloomFilter,
    CountingBloomFilter,
    CuckooFilter,
    ExactBitmap,
    RotatingBloomFilter,
    ScalableBloomFilter,
    ScalableCuckooFilter,
    SpectralBloomFilter,
)

SECRET = b"a secret of a good length"


def key(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


@dataclass(frozen=True)
class Kind:
    """``make(capacity)`` gives an empty filter for integers of 8 bytes at an error rate of at most 1%."""

    name: str
    cls: Any
    make: Callable[..., Any] = field(repr=False)


KINDS = [
    Kind("bloom", BloomFilter, lambda n, **o: BloomFilter(n, 0.01, width=8, **o)),
    Kind("counting", CountingBloomFilter, lambda n, **o: CountingBloomFilter(n, 0.01, width=8, **o)),
    Kind("spectral", SpectralBloomFilter, lambda n, **o: SpectralBloomFilter(n, 0.01, width=8, **o)),
    Kind("cuckoo-8", CuckooFilter, lambda n, **o: CuckooFilter(n, 0.03, width=8, **o)),
    Kind("cuckoo-16", CuckooFilter, lambda n, **o: CuckooFilter(n, 0.001, width=8, **o)),
    Kind("cuckoo-32", CuckooFilter, lambda n, **o: CuckooFilter(n, 0.00001, width=8, **o)),
    Kind("bitmap", ExactBitmap, lambda n, **o: ExactBitmap(0, n - 1, 0.01, **o)),
    Kind("bitmap, all outside", ExactBitmap, lambda n, **o: ExactBitmap(-5, -1, 0.01, overflow=n, **o)),
    Kind("scalable", ScalableBloomFilter, lambda n, **o: ScalableBloomFilter(max(1, n // 4), 0.01, width=8, **o)),
    Kind("scalable-cuckoo", ScalableCuckooFilter, lambda n, **o: ScalableCuckooFilter(max(1, n // 2), width=8, **o)),
    Kind("rotating", RotatingBloomFilter, lambda n, **o: RotatingBloomFilter(n, 0.01, width=8, window=60, **o)),
]
