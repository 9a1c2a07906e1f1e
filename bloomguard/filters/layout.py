"""How one build is cut into shards: each a small filter of its own, chosen by the key's digest.

Shards keep every piece at a size that a server can load, free and move without stalling, and far below the 512 MB
that one Redis key may hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from .bloom import BloomFilter
from .codec import Header
from .errors import CorruptFilter
from .hashing import KeyHash

SHARD_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The shards of one build: their number, size and headers.

    ``capacity`` counts keys over all shards, ``error_rate`` is the rate at that capacity, ``tag`` marks the build,
    ``key_id`` its secret and definition. ``headers`` has one entry a shard; all frames have the same size in bytes.
    """

    key_hash: KeyHash
    capacity: int
    error_rate: float
    tag: int
    key_id: int
    headers: tuple[Header, ...] = field(repr=False)

    @classmethod
    def plan(
        cls,
        *,
        key_hash: KeyHash,
        capacity: int,
        error_rate: float,
        tag: int,
        key_id: int = 0,
        shard_bytes: int = SHARD_BYTES,
    ) -> Layout:
        """Lay out a Bloom filter for ``capacity`` keys; allocates nothing. Raises :class:`InvalidShape`."""
        whole = BloomFilter.shape(capacity, error_rate)
        shards = -(-whole.body_bytes // shard_bytes)
        if shards > 1:
            # Keys fall to shards as balls into bins: four standard deviations cover the fullest of them.
            mean = capacity / shards
            whole = BloomFilter.shape(math.ceil(mean + 4 * math.sqrt(mean)), error_rate)
        headers = tuple(
            Header(
                kind=BloomFilter.kind,
                tag=tag,
                capacity=whole.capacity,
                error_rate=error_rate,
                body_bytes=whole.body_bytes,
                parameters=whole.sizes,
                width=key_hash.width,
                key_id=key_id,
                shard=shard,
                shards=shards,
            )
            for shard in range(shards)
        )
        return cls(
            key_hash=key_hash, capacity=capacity, error_rate=error_rate, tag=tag, key_id=key_id, headers=headers
        )

    @classmethod
    def of(cls, header: Header, key_hash: KeyHash) -> Layout:
        """The layout that a build's first header tells of; raises :class:`CorruptFilter` if it is not the first."""
        if header.shard:
            raise CorruptFilter(f"starts with shard {header.shard} of {header.shards}")
        return cls(
            key_hash=key_hash,
            capacity=header.capacity * header.shards,
            error_rate=header.error_rate,
            tag=header.tag,
            key_id=header.key_id,
            headers=tuple(replace(header, shard=shard) for shard in range(header.shards)),
        )

    @property
    def frame_bytes(self) -> int:
        """Bytes of each shard's frame."""
        return self.headers[0].frame_bytes

    @property
    def total_bytes(self) -> int:
        return self.frame_bytes * len(self.headers)
