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
from operator import methodcaller
from typing import Any, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from ..exceptions import StoreError, StoreUnavailable
from ..steps import Steps, run
from .redis_exchange import PROVED_SECONDS, Command
from .redis_link import Call, Link

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

    def ask(self, node: int, commands: Sequence[Command]) -> Ask:
        """Commands to the node with this number, which has to be who it was."""
        return Ask(self.nodes[node], commands, self.proofs[node])


class Ask(NamedTuple):
    """Commands to the node at ``address``, which has to have this ``identity``, if one is given."""

    address: Address
    commands: Sequence[Command]
    identity: str | None = None


#: Who answered, and the replies.
Answer = tuple[str, list[Any]]


class Cluster:
    """What this process knows of a Cluster, and how to work with it; ``seeds`` are asked first.

    Every method with ``yield`` is a generator for :mod:`bloomguard.steps`, whose steps are done by what has a method
    ``ask(asks: list[Ask]) -> list[Answer]``: a :class:`ClusterLink`, or its twin for event loops.

    Every command has to have a key. Without an identity a trip goes by the map of this moment.
    """

    def __init__(self, seeds: Iterable[Address], clock: Callable[[], float]) -> None:
        self._seeds = list(seeds)  # the one that answered last comes first
        self._clock = clock
        self._maps: dict[str, ClusterMap] = {}
        self._latest: tuple[float, ClusterMap] | None = None
        self._nodes: tuple[Address, ...] = ()  # of the last map, also once that is out of date

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> Steps:
        """Send all to the nodes that they are meant for, then read all: see :meth:`Link.trip`.

        What goes without an identity goes again, once, if slots have moved since the map was read.
        """
        try:
            return (yield from self._trip(commands, (yield from self.map(identity))))
        except StoreUnavailable:
            raise
        except StoreError:
            if identity is not None:
                raise
            self._latest = None
            return (yield from self._trip(commands, (yield from self.map(None))))

    @staticmethod
    def _trip(commands: Sequence[Command], known: ClusterMap) -> Steps:
        numbers: dict[int, list[int]] = {}
        for number, (key, _) in enumerate(commands):
            numbers.setdefault(known.holder(key), []).append(number)
        asks = [known.ask(node, [commands[number] for number in some]) for node, some in numbers.items()]
        answers = yield methodcaller("ask", asks)
        replies: list[Any] = [None] * len(commands)
        for some, (_, found) in zip(numbers.values(), answers):
            for number, reply in zip(some, found):
                replies[number] = reply
        return replies

    def everywhere(self, *words: object) -> Steps:
        """The reply of every node to one command without a key."""
        known = yield from self.map(None)
        answers = yield methodcaller("ask", [known.ask(node, [("", words)]) for node in range(len(known.nodes))])
        return [reply for _, (reply,) in answers]

    # -- the map

    def map(self, identity: str | None) -> Steps:
        """The map with this identity, or that of this moment. Raises :class:`StoreError`."""
        kept = self._maps.get(identity or "")
        if kept is not None:
            return kept
        known = self._latest  # once: another thread may find out meanwhile that it is out of date
        if known is None or self._clock() - known[0] >= PROVED_SECONDS:
            asked = self._clock()
            known = self._latest = asked, (yield from self._read())
            self._nodes = known[1].nodes
        latest = known[1]
        if identity is None:
            return latest
        if identity != latest.identity:
            raise StoreError("the cluster's nodes, or the slots that they hold, are not those of when it was built")
        self._maps[identity] = latest
        for old in list(self._maps)[:-_MAPS]:
            self._maps.pop(old, None)
        return latest

    def _read(self) -> Steps:
        failure: StoreError = StoreUnavailable("the cluster has no node to ask", "connection")
        for address in dict.fromkeys([*self._seeds, *self._nodes]):
            try:
                [(_, (slots,))] = yield methodcaller("ask", [Ask(address, [("", ("CLUSTER", "SLOTS"))])])
            except StoreError as error:
                failure = error
                continue
            self._seeds = [address, *(other for other in self._seeds if other != address)]
            return (yield from self._described(slots, address))
        raise failure

    def _described(self, slots: Sequence[Any], asked: Address) -> Steps:
        numbers: dict[Address, int] = {}
        ranges: dict[int, list[tuple[int, int]]] = {}
        holders = [_NOBODY] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, (host, port, *_), *_ in slots:
            # A node that does not know its own name is reached by the one that we know.
            address = (host.decode() if host and host != b"?" else asked[0]), int(port)
            node = numbers.setdefault(address, len(numbers))
            ranges.setdefault(node, []).append((first, last))
            holders[first : last + 1] = [node] * (last + 1 - first)
        answers = yield methodcaller("ask", [Ask(address, [("", ("PING",))]) for address in numbers])
        proofs = tuple(identity for identity, _ in answers)
        told = sorted(f"{proofs[node]} {sorted(some)}" for node, some in ranges.items())
        digest = hashlib.sha256("\n".join(told).encode()).hexdigest()
        return ClusterMap(tuple(numbers), proofs, tuple(holders), f"cluster:{digest[:40]}")


class ClusterLink:
    """What :class:`Link` is for one server: threads' connections to the nodes of ``cluster``.

    ``make_link(address)`` makes the links to nodes.
    """

    def __init__(self, cluster: Cluster, make_link: Callable[[Address], Link]) -> None:
        self.cluster = cluster
        self._make_link = make_link
        self._links: dict[Address, Link] = {}

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """See :meth:`Cluster.trip`."""
        replies: list[Any] = run(self.cluster.trip(commands, identity), self)
        return replies

    def everywhere(self, *words: object) -> list[Any]:
        """See :meth:`Cluster.everywhere`."""
        replies: list[Any] = run(self.cluster.everywhere(*words), self)
        return replies

    def identity(self) -> str:
        """The digest of the cluster's map, read a moment ago or now. Raises :class:`StoreError`."""
        known: ClusterMap = run(self.cluster.map(None), self)
        return known.identity

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Send all, then read all; raises :class:`StoreError`."""
        calls: list[Call] = []
        try:
            for address, commands, _ in asks:
                calls.append(self.link(address).send(commands))
            return [call.proved(each.identity) for call, each in zip(calls, asks)]
        finally:
            for call in calls:
                call.abandon()

    def link(self, address: Address) -> Link:
        """The link to one node."""
        link = self._links.get(address)
        return link or self._links.setdefault(address, self._make_link(address))

    def close(self) -> None:
        """Hang up everywhere; the next trip connects anew."""
        for link in list(self._links.values()):
            with suppress(StoreError):
                link.close()
