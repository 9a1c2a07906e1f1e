"""A store for many hosts: shards as keys of Redis or Valkey servers, the same bytes as in a file.

    bloomguard:{guard}                         a hash: generation -> number of its shards
    bloomguard:{guard}:{generation}:{shard}    a frame of bloomguard.filters.codec
    bloomguard:{guard}:figures:{step}:{number} a page of bloomguard.stores.pages, with an expiry

A check is one command that reads both tags of a shard and the key's bits at once: a key that was evicted, flushed or
never written answers with tags of 0, a replica refuses the command. An add counts only if the tags in its reply are
right. In a Cluster shards lie where their keys' slots are, and the hash lies in several places, so that no one node
has to be there for what the others hold to be found.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from django.core.checks import CheckMessage, Warning
from redis.exceptions import NoScriptError

from ..exceptions import StoreError, StoreUnavailable, UnknownGeneration
from ..filters import CorruptFilter
from ..filters.codec import FIXED_BYTES, MAX_SHARDS, Header, header_bytes
from ..filters.layout import Layout
from ..forks import after_fork
from . import redis_options
from .base import FindKeyHash, Generation, Store, bound
from .pages import COLUMNS, KEPT_SECONDS, ROWS, Page
from .redis_cluster import Address, ClusterLink, spread
from .redis_cuckoo import in_full
from .redis_exchange import Command
from .redis_generation import RedisGeneration, kind_of
from .redis_link import Link
from .redis_loading import Draft, gathering_key, journal_key, make
from .redis_servers import Clustered, find_servers

_CLUSTER_SHARD_BYTES = 2 << 20  # of a billion keys each of 64 nodes gets its share, within a seventh
_LISTS = 8  # of generations in a Cluster, spread over the nodes
_DROPPED = 256  # shards dropped in one trip
_LAST_CELL = ROWS * COLUMNS - 1


class RedisStore(Store):
    """Generations on the servers of the django-redis cache ``cache``, or on those at ``url``.

    ``url`` names one server, or with ``cluster`` one or more nodes of a Cluster, or with ``sentinels``, a list of
    ``(host, port)``, the service that they watch, as in ``redis://mymaster/0``; ``sentinel_options`` is what
    connections to them take. Of a cache only the addresses and the login are used.

    ``connect_timeout`` and ``read_timeout`` are seconds that a request may wait; ``add_timeout`` is for adds, since
    one that fails takes the filter out of service until it is rebuilt; ``bulk_timeout`` is for rebuilds. Sites that
    share a server need a ``prefix`` each.
    """

    waits: ClassVar[bool] = True
    shard_bytes: int = 8 << 20  # BITOP holds up everybody else for 1.5 ms a MiB

    def __init__(
        self,
        alias: str,
        *,
        url: str | Sequence[str] | None = None,
        cache: str | None = None,
        cluster: bool = False,
        sentinels: Sequence[Address] | None = None,
        sentinel_options: dict[str, Any] | None = None,
        prefix: str = "bloomguard",
        connect_timeout: float = 0.05,
        read_timeout: float = 0.05,
        add_timeout: float = 0.5,
        bulk_timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(alias)
        redis_options.check_timeouts(
            alias,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            add_timeout=add_timeout,
            bulk_timeout=bulk_timeout,
        )
        servers = find_servers(
            alias, url=url, cache=cache, cluster=cluster, sentinels=sentinels, sentinel_options=sentinel_options
        )
        self.prefix = prefix
        self._cache = cache
        self._clustered = isinstance(servers, Clustered)
        if self._clustered:
            self.shard_bytes = _CLUSTER_SHARD_BYTES
        self._patience = connect_timeout + read_timeout
        self._reads = servers.link(connect_timeout, read_timeout, clock, breaks=True)
        self._adds = servers.link(connect_timeout, add_timeout, clock, breaks=False)
        self._bulk = servers.link(bulk_timeout, bulk_timeout, clock, breaks=False)
        self._async_reads = servers.async_link(self._reads, connect_timeout, read_timeout)
        #: Whether an event loop can ask: its client has to know all that the connections' options say.
        self.awaits = self._async_reads is not None
        #: How often a read got no answer, by reason.
        self.failures: Counter[str] = Counter()
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    # -- trips

    def read(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Ask on behalf of a request, with its short timeouts; raises :class:`StoreError`.

        While a server's circuit breaker is open, :class:`StoreUnavailable` comes at once.
        """
        try:
            return self._reads.trip(commands, identity)
        except StoreUnavailable as error:
            self._count(error)
            raise

    async def aread(self, commands: Sequence[Command], identity: str) -> list[Any]:
        """:meth:`read` on an event loop, if :attr:`awaits` says so."""
        assert self._async_reads is not None
        try:
            return await self._async_reads.trip(commands, identity)
        except StoreUnavailable as error:
            self._count(error)
            raise

    def write(self, commands: Sequence[Command], identity: str) -> list[Any]:
        """Add, with or without the breaker's leave: whoever adds has to know. Raises :class:`StoreError`."""
        return self._run(self._adds, commands, identity)

    def load(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """What builders do, with patience; raises :class:`StoreError`."""
        return self._run(self._bulk, commands, identity)

    @staticmethod
    def _run(link: Link | ClusterLink, commands: Sequence[Command], identity: str | None) -> list[Any]:
        """A trip, and another one for scripts that a server did not know, and so has not run."""
        replies = link.trip(commands, identity)
        unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = link.trip([in_full(commands[number]) for number in unknown], identity)
            for number, reply in zip(unknown, again):
                replies[number] = reply
        return replies

    def _count(self, error: StoreUnavailable) -> None:
        with self._lock:
            self.failures[error.reason] += 1

    # -- the store

    @property
    def identity(self) -> str:
        """The servers' replication ids and run ids, as they were a moment ago; other servers have others.

        Raises :class:`StoreError` if they do not answer.
        """
        try:
            return self._reads.identity()
        except StoreUnavailable as error:
            self._count(error)
            raise

    def key(self, guard: str, name: str, shard: int) -> str:
        """The server's key of one shard; in a Cluster with a hash tag that spreads shards evenly over the slots."""
        build = f"{self.prefix}:{guard}:{name}"
        return f"{build}:{{{spread(build, shard)}}}:{shard}" if self._clustered else f"{build}:{shard}"

    def _listed(self, guard: str) -> list[str]:
        """The keys of the hashes that list a guard's generations. SCAN would walk through all that a server holds."""
        whole = f"{self.prefix}:{guard}"
        return [f"{whole}:{{{spread(whole, copy)}}}" for copy in range(_LISTS)] if self._clustered else [whole]

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        kind_of(layout)
        identity, layout = self._bulk.identity(), bound(layout, guard, name, self.prefix)
        self.load([(listed, ("HSET", listed, name, len(layout.headers))) for listed in self._listed(guard)], identity)
        draft = Draft(layout)
        made = RedisGeneration(self, guard, name, layout, identity, draft)
        try:
            make(self, layout, made.keys, draft.frames, identity)
        except StoreError as error:
            with suppress(StoreError):
                self.drop(guard, name)
            raise StoreError(f"no filter of {layout.total_bytes:,} bytes was made: {error}") from error
        return made

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        identity = identity or self.identity
        key = self.key(guard, name, 0)
        start, size = self.read([(key, ("GETRANGE", key, 0, 1023)), (key, ("STRLEN", key))], identity)
        if not size:
            raise UnknownGeneration(f"{key} is not there")
        if len(start) < FIXED_BYTES:
            raise CorruptFilter(f"{key} has {size} bytes, too few for a filter")
        header = Header.unpack(start[: header_bytes(start)])
        layout = self._layout(guard, name, self.prefix, header, size * header.shards, find_key_hash)
        opened = RedisGeneration(self, guard, name, layout, identity)
        opened.check_headers()
        return opened

    def drop(self, guard: str, name: str) -> None:
        lists = self._listed(guard)
        counts = self.load([(listed, ("HGET", listed, name)) for listed in lists])
        keys = [self.key(guard, name, shard) for shard in range(max(map(_shards, counts)))]
        for start in range(0, len(keys), _DROPPED):
            some = keys[start : start + _DROPPED]
            self.load([(key, ("UNLINK", key, gathering_key(key), journal_key(key))) for key in some])
        self.load([(listed, ("HDEL", listed, name)) for listed in lists])

    def names(self, guard: str) -> list[str]:
        found = self.read([(listed, ("HKEYS", listed)) for listed in self._listed(guard)])
        return sorted({name.decode() for some in found for name in some})

    def free_bytes(self) -> int | None:
        free = []
        for figures in map(_figures, self._bulk.everywhere("INFO", "memory")):
            most, used = int(figures.get("maxmemory", 0)), int(figures.get("used_memory", 0))
            if most:
                free.append(max(most - used, 0))
        return min(free) * len(free) if free else None  # shards spread evenly: the fullest node is full first

    def add_figures(self, page: Page, cells: Mapping[int, int]) -> None:
        key = self._page_key(page)
        # The last cell makes a new key as long as it will ever be: one that grows bit by bit takes twice the room.
        added = {_LAST_CELL: 0, **cells}
        words = [word for cell, number in added.items() for word in ("INCRBY", "u32", f"#{cell}", number)]
        expiry = (key, ("EXPIRE", key, KEPT_SECONDS[page.step]))
        # First, for who may not do it must not add either: it would be tried again and again.
        [is_there] = self._adds.trip([expiry])
        self._adds.trip([(key, ("BITFIELD", key, "OVERFLOW", "SAT", *words))])
        if not is_there:
            with suppress(StoreError):  # it is added; whoever adds next sees to the expiry
                self._adds.trip([expiry])

    def read_figures(self, pages: Sequence[Page]) -> list[bytes]:
        keys = [self._page_key(page) for page in pages]
        return [page or b"" for page in self.load([(key, ("GET", key)) for key in keys])] if keys else []

    def _page_key(self, page: Page) -> str:
        return f"{self.prefix}:{page.guard}:figures:{page.step}:{page.number}"

    def check(self) -> list[CheckMessage]:
        found = list(redis_options.patience(self.alias, self._patience))
        return found if self._cache is None else [*found, *redis_options.cache(self._cache)]

    def check_deployed(self) -> list[CheckMessage]:
        try:
            memories = self._bulk.everywhere("INFO", "memory")
        except StoreError as error:
            return [
                Warning(
                    f"the store {self.alias!r} does not answer: {error}.",
                    hint="Until it does, no request is answered by a guard, and saves take their guards out of use.",
                    id="bloomguard.W021",
                )
            ]
        policies = {_figures(memory).get("maxmemory_policy", "") for memory in memories}
        return [
            Warning(
                f"a server of the store {self.alias!r} may evict filters: its maxmemory-policy is {policy!r}.",
                hint="Set it to noeviction, or to one of volatile-*: filters have no expiry. An evicted filter "
                "lets every request pass until rebuild_filter has run.",
                id="bloomguard.W022",
            )
            for policy in sorted(policies)
            if policy != "noeviction" and not policy.startswith("volatile-")
        ]

    def close(self) -> None:
        """Hang up; the next command connects anew."""
        for link in (self._reads, self._adds, self._bulk):
            link.close()

    async def aclose(self) -> None:
        """Hang up in the running event loop; the next command there connects anew. A loop that is shut down does it."""
        if self._async_reads is not None:
            await self._async_reads.close()


def _shards(count: bytes | None) -> int:
    """How many shards a list tells of: never more than there can be, whoever wrote it."""
    return min(int(count), MAX_SHARDS) if count is not None and count.isdigit() and len(count) < 10 else 0


def _figures(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
