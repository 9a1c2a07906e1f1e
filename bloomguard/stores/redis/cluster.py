"""Commands to the nodes of a Redis or Valkey Cluster, with a check of every node's identity in each round trip.

A *map* records which node holds which slots, and each node's identity; its digest is the store identity in the state
row. A generation is used only with the map that it was built with, and redirections are never followed. So a reply
counts only if it comes from the node that held the shard when the generation was created, without a restart since:

- A node that failed over or was restarted has another replication ID or run ID.
- A slot that was moved replies MOVED, or ASK during the move, so no add or check succeeds on the new node.
- A slot that was moved and came back was imported twice. Each import raises the importing node's configuration epoch
  above all others, unless it is the highest already; so the second import raised the epoch of the original node.
- A node that was flushed replies with tags of 0.

A node that only imports slots gets a new identity as well, which costs one rebuild.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from typing import Any, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from ...exceptions import StoreError, StoreUnavailable
from ...process import is_within
from . import commands
from .commands import PROVED_SECONDS, Command
from .connection import Call, Link

Address = tuple[str, int]

#: The slots are divided into parts; ``_STEP`` is the distance from one shard's part to the next one's. For any number
#: of shards and any first part, the shards in a range of slots differ from its proportional share by one or two.
_PARTS = 1_024
_STEP = 633

_MAPS = 4  # maps to keep: a guard may need two during its rebuild


@lru_cache(1 << 16)
def _slot(key: str) -> int:
    return key_slot(key.encode())


@cache
def _tags() -> list[str]:
    """Return for each part a hash tag whose slot is in the part."""
    found: dict[int, str] = {}
    numbers = count()
    while len(found) < _PARTS:
        tag = str(next(numbers))
        found.setdefault(_PARTS * key_slot(tag.encode()) // REDIS_CLUSTER_HASH_SLOTS, tag)
    return [found[part] for part in range(_PARTS)]


def spread(build: str, shard: int) -> str:
    """Return the hash tag of a build's shard. With random tags, one of 64 nodes would get 1.5 times the mean."""
    return _tags()[(_slot(build) + shard * _STEP) % _PARTS]


class Node(NamedTuple):
    """The node at ``address``; its replies count only with this ``identity``, if one is known."""

    address: Address
    identity: str | None = None


@dataclass(frozen=True)
class ClusterMap:
    """Cluster nodes, and for each slot the node that holds it, or ``None``."""

    nodes: tuple[Node, ...]
    holders: tuple[Node | None, ...]
    identity: str

    def holder(self, key: str) -> Node:
        """Return the node that holds ``key``; raises :class:`StoreUnavailable` if none does."""
        found = self.holders[_slot(key)]
        if found is None:
            raise StoreUnavailable("the cluster has slots that no node serves; see CLUSTER INFO")
        return found


class ClusterLink:
    """Connections of threads to the nodes of a Cluster, and the maps that this process knows.

    ``seeds`` are the first nodes to query; ``make_link(address)`` creates the link to a node. Every command of a round
    trip must have a key. Without an identity, it uses the current map.
    """

    def __init__(self, seeds: Iterable[Address], make_link: Callable[[Address], Link]) -> None:
        self._seeds = list(seeds)  # the node that answered last is first
        self._make_link = make_link
        self._links: dict[Address, Link] = {}
        self._maps: dict[str, ClusterMap] = {}
        self._latest: tuple[float, ClusterMap] | None = None
        self._nodes: tuple[Address, ...] = ()  # nodes of the last map, even if it is out of date

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Send each command to the node of its key, then read all replies: see :meth:`.Link.trip`."""
        known = self._map(identity)
        numbers: dict[Node, list[int]] = {}
        for number, (key, _) in enumerate(commands):
            numbers.setdefault(known.holder(key), []).append(number)
        queries = [(node, [commands[number] for number in some]) for node, some in numbers.items()]
        replies: list[Any] = [None] * len(commands)
        for some, (_, found) in zip(numbers.values(), self._query(queries)):
            for number, reply in zip(some, found):
                replies[number] = reply
        return replies

    def send_to_all(self, *words: object) -> list[Any]:
        """Send one command without a key to every node, and return the replies."""
        return [reply for _, (reply,) in self._query([(node, [("", words)]) for node in self._map(None).nodes])]

    def identity(self) -> str:
        """Return the digest of the current map, at most :data:`.PROVED_SECONDS` old."""
        return self._map(None).identity

    def close(self) -> None:
        """Close all connections; the next round trip opens new ones."""
        for link in list(self._links.values()):
            link.close()

    def _map(self, identity: str | None) -> ClusterMap:
        """Return the map with this identity, or the current map. Raises :class:`StoreError`."""
        kept = self._maps.get(identity or "")
        if kept is not None:
            return kept
        known = self._latest  # read once: another thread may replace it meanwhile
        if known is None or not is_within(PROVED_SECONDS, known[0], commands.clock()):
            asked = commands.clock()
            known = self._latest = asked, self._read()
        latest = known[1]
        if identity is None:
            return latest
        if identity != latest.identity:
            raise StoreError("the cluster's nodes or their slots have changed since the filter was built; rebuild it")
        self._maps[identity] = latest
        for old in list(self._maps)[:-_MAPS]:
            self._maps.pop(old, None)
        return latest

    def _read(self) -> ClusterMap:
        failure: StoreError = StoreUnavailable("no address of a cluster node is known; check the url")
        for address in dict.fromkeys([*self._seeds, *self._nodes]):
            try:
                [(_, (slots,))] = self._query([(Node(address), [("", ("CLUSTER", "SLOTS"))])])
            except StoreError as error:
                failure = error
                continue
            self._seeds = [address, *(other for other in self._seeds if other != address)]
            return self._described(slots, address)
        raise failure

    def _described(self, slots: Sequence[Any], asked: Address) -> ClusterMap:
        ranges: dict[Address, list[tuple[int, int]]] = {}
        for first, last, (host, port, *_), *_ in slots:
            # A node that does not know its own host name is reached by the address that was queried.
            address = (host.decode() if host and host != b"?" else asked[0]), int(port)
            ranges.setdefault(address, []).append((first, last))
        self._nodes = tuple(ranges)
        # Connections to addresses that no node has any more, as after the restart of a container, would stay half open.
        # A map that a filter was built by may have other names of the same nodes.
        kept = {node.address for each in list(self._maps.values()) for node in each.nodes}
        for gone in set(self._links) - {*self._seeds, *ranges, *kept}:
            with suppress(Exception):
                self._links.pop(gone).close()
        answers = self._query([(Node(address), [("", ("PING",))]) for address in ranges])
        nodes = tuple(Node(address, identity) for address, (identity, _) in zip(ranges, answers))
        holders: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for node, some in zip(nodes, ranges.values()):
            for first, last in some:
                holders[first : last + 1] = [node] * (last + 1 - first)
        held = sorted(f"{node.identity} {sorted(some)}" for node, some in zip(nodes, ranges.values()))
        digest = hashlib.sha256("\n".join(held).encode()).hexdigest()
        return ClusterMap(nodes, tuple(holders), f"cluster:{digest[:40]}")

    def _query(self, queries: Sequence[tuple[Node, Sequence[Command]]]) -> list[tuple[str, list[Any]]]:
        """Send the commands to all nodes, then read each one's identity and replies; raises :class:`StoreError`."""
        calls: list[Call] = []
        try:
            for node, commands in queries:
                calls.append(self._link(node.address).send(commands))
            return [call.identified(node.identity) for call, (node, _) in zip(calls, queries)]
        finally:
            for call in calls:
                call.abandon()

    def _link(self, address: Address) -> Link:
        return self._links.get(address) or self._links.setdefault(address, self._make_link(address))
