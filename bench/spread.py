"""How evenly checks and adds fall on the nodes of a Cluster: the project's own layouts and names, and Redis' slots.

Millions of keys are hashed as a guard does it, and counted where their shards lie when each node has an even range of
slots. No server is asked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from bloomguard.filters import KeyHash
from bloomguard.filters.layout import Layout
from bloomguard.stores.redis import RedisStore

from .report import Report

KEYS = 4_000_000
GENERATION = "0123456789abcdef01234567"

Name = Callable[[str, str, int], str]


def layout(ids: int, shard_bytes: int) -> Layout:
    """A Bloom filter with room for half as many again as there are rows, as a rebuild makes it; allocates nothing."""
    hashed = KeyHash(8, b"0123456789abcdef")
    return Layout.plan(key_hash=hashed, capacity=ids * 3 // 2, error_rate=0.001, shard_bytes=shard_bytes)


def busiest(planned: Layout, name: Name, nodes: int) -> float:
    """The checks, and with them the adds, of the busiest node, against the mean."""
    keys = [name("city", GENERATION, shard) for shard in range(planned.header.shards)]
    node_of = np.array([key_slot(key.encode()) * nodes // REDIS_CLUSTER_HASH_SLOTS for key in keys])
    asked = np.zeros(nodes)
    numbers = np.random.default_rng(1).integers(1, 1 << 62, KEYS)
    for shard, low, _ in planned.locate_many(numbers):
        asked[node_of[shard]] += len(low)
    return float(asked.max() / asked.mean())


def rows(report: Report) -> None:
    """The spread of three sizes, and what plain names would have made of it."""
    cluster = RedisStore("bench", url="redis://127.0.0.1:1", cluster=True)  # which connects when it is asked
    alone = RedisStore("bench", url="redis://127.0.0.1:1")
    for ids, nodes in ((100_000_000, 3), (1_000_000_000, 6), (10_000_000_000, 64)):
        planned = layout(ids, cluster.shard_bytes)
        what = f"{ids / 1e9:g}e9 ids, {planned.header.shards:,} shards"
        report.add(
            f"{what}: busiest node", busiest(planned, cluster.key, nodes), against=f"mean of {nodes}", at_most=1.15
        )
        report.add(f"{what}, plain names", busiest(planned, alone.key, nodes), against=f"mean of {nodes}")


if __name__ == "__main__":
    report = Report("spread", "Checks and adds over the nodes of a Cluster")
    report.start()
    rows(report)
