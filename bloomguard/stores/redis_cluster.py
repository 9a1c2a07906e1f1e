"""Commands to the nodes of a Redis or Valkey Cluster, each trip with the proof that every node is who it was.

A *map* says which node held which slots, and who each node was; its digest is the identity that a state row names.
Whoever works with a generation works by the map that it was built by, and never follows a redirection. So an answer
counts only if it comes from the very node, in the very life, that held the shard when the generation was made:

- A node that failed over or was restarted has another replication or run id.
- A slot that was moved answers MOVED, or ASK on its way. On the new node no add is proved and no check believed.
- A slot that was moved and came back has been imported since, which raises a node's configuration epoch unless it is
  the highest already: and it is not, for the node that the slot came back from took a higher one when it got it.
- A node that was flushed answers with tags of 0.

A node that merely gains slots therefore gets a new identity too, which costs a rebuild and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from ..exceptions import StoreError, StoreUnavailable
from .redis_link import PROVED_SECONDS, Call, Command, Link

Address = tuple[str, int]

#: Parts that the slots are cut into, and the step from one shard's part to the next one's: however many shards there
#: are, and wherever the first of them lies, any run of slots gets its share of them to within one or two.
_PARTS = 1_024
_STEP = 633

_MAPS = 4  # kept: a guard that is being rebuilt may need two
_NOBODY = -1


@lru_cache(1 << 16)
def _slot(key: str) -> int:
    return key_slot(key.encode())


@cache
def _tags() -> list[str]:
    """For each part of the slots a text that has one of them."""
    found: dict[int, str] = {}
    numbers = count()
    while len(found) < _PARTS:
        tag = str(next(numbers))
        found.setdefault(_PARTS * key_slot(tag.encode()) // REDIS_CLUSTER_HASH_SLOTS, tag)
    return [found[part] for part in range(_PARTS)]


def spread(build: str, shard: int) -> str:
    """The hash tag of a build's shard. By chance alone, one of 64 nodes would get half as much again as the mean."""
    return _tags()[(_slot(build) + shard * _STEP) % _PARTS]


@dataclass(frozen=True)
class ClusterMap:
    """Which of ``nodes`` holds each slot, as a number or -1, and who they are: ``proofs``, in the same order."""

    nodes: tuple[Address, ...]
    proofs: tuple[str, ...]
    holders: tuple[int, ...]
    identity: str

    def holder(self, key: str) -> int:
        """The number of the node that holds ``key``; raises :class:`StoreUnavailable` if none does."""
        found = self.holders[_slot(key)]
        if found == _NOBODY:
            raise StoreUnavailable("the cluster does not serve all slots", "clusterdown")
        return found


class ClusterLink:
    """What :class:`Link` is for one server. ``make_link(address)`` makes the links to nodes, ``seeds`` are asked first.

    Every command has to have a key. Without an identity a trip goes by the map of this moment.
    """

    def __init__(
        self, seeds: Iterable[Address], make_link: Callable[[Address], Link], clock: Callable[[], float]
    ) -> None:
        self._seeds = list(seeds)  # the one that answered last comes first
        self._make_link = make_link
        self._clock = clock
        self._links: dict[Address, Link] = {}
        self._maps: dict[str, ClusterMap] = {}
        self._latest: tuple[float, ClusterMap] | None = None

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Send all to the nodes that they are meant for, then read all; see :meth:`Link.trip`.

        What goes without an identity goes again, once, if slots have moved since the map was read.
        """
        try:
            return self._trip(commands, self._map(identity))
        except StoreUnavailable:
            raise
        except StoreError:
            if identity is not None:
                raise
            self._latest = None
            return self._trip(commands, self._map(None))

    def _trip(self, commands: Sequence[Command], known: ClusterMap) -> list[Any]:
        numbers: dict[int, list[int]] = {}
        for number, (key, _) in enumerate(commands):
            numbers.setdefault(known.holder(key), []).append(number)
        found = self._ask(known, {node: [commands[number] for number in some] for node, some in numbers.items()})
        replies: list[Any] = [None] * len(commands)
        for node, some in numbers.items():
            for number, reply in zip(some, found[node]):
                replies[number] = reply
        return replies

    def everywhere(self, *words: object) -> list[Any]:
        """The reply of every node to one command without a key."""
        known = self._map(None)
        command: Command = ("", words)
        return [reply for (reply,) in self._ask(known, {node: [command] for node in range(len(known.nodes))}).values()]

    def identity(self) -> str:
        """The digest of the cluster's map, read a moment ago or now. Raises :class:`StoreError`."""
        return self._map(None).identity

    def _ask(self, known: ClusterMap, commands: dict[int, list[Command]]) -> dict[int, list[Any]]:
        calls: dict[int, Call] = {}
        try:
            for node, some in commands.items():
                calls[node] = self._link(known.nodes[node]).send(some)
            return {node: call.replies(known.proofs[node]) for node, call in calls.items()}
        finally:
            for call in calls.values():
                call.abandon()

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        return link or self._links.setdefault(address, self._make_link(address))

    # -- the map

    def _map(self, identity: str | None) -> ClusterMap:
        """The map with this identity, or that of this moment. Raises :class:`StoreError`."""
        if identity in self._maps:
            return self._maps[identity]
        if self._latest is None or self._clock() - self._latest[0] >= PROVED_SECONDS:
            asked = self._clock()
            self._latest = asked, self._read()
        latest = self._latest[1]
        if identity is None:
            return latest
        if identity != latest.identity:
            raise StoreError("the cluster's nodes, or the slots that they hold, are not those of when it was built")
        self._maps[identity] = latest
        for old in list(self._maps)[:-_MAPS]:
            self._maps.pop(old, None)
        return latest

    def _read(self) -> ClusterMap:
        failure: StoreError = StoreUnavailable("the cluster has no node to ask", "connection")
        for address in dict.fromkeys([*self._seeds, *self._links]):
            try:
                (slots,) = self._link(address).trip([("", ("CLUSTER", "SLOTS"))])
            except StoreError as error:
                failure = error
                continue
            self._seeds = [address, *(other for other in self._seeds if other != address)]
            return self._described(slots, address)
        raise failure

    def _described(self, slots: Sequence[Any], asked: Address) -> ClusterMap:
        numbers: dict[Address, int] = {}
        ranges: dict[int, list[tuple[int, int]]] = {}
        holders = [_NOBODY] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, (host, port, *_), *_ in slots:
            # A node that does not know its own name is reached by the one that we know.
            address = (host.decode() if host and host != b"?" else asked[0]), int(port)
            node = numbers.setdefault(address, len(numbers))
            ranges.setdefault(node, []).append((first, last))
            holders[first : last + 1] = [node] * (last + 1 - first)
        proofs = self._proofs(tuple(numbers))
        told = sorted(f"{proofs[node]} {sorted(some)}" for node, some in ranges.items())
        digest = hashlib.sha256("\n".join(told).encode()).hexdigest()
        return ClusterMap(tuple(numbers), proofs, tuple(holders), f"cluster:{digest[:40]}")

    def _proofs(self, addresses: tuple[Address, ...]) -> tuple[str, ...]:
        calls: list[Call] = []
        try:
            for address in addresses:
                calls.append(self._link(address).send([("", ("PING",))]))
            for call in calls:
                call.replies()
        finally:
            for call in calls:
                call.abandon()
        return tuple(self._link(address).identity() for address in addresses)

    def close(self) -> None:
        """Hang up everywhere; the next trip connects anew."""
        for link in list(self._links.values()):
            with suppress(StoreError):
                link.close()
