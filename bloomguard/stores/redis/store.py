"""A store for many hosts: the shards of filters are keys on Redis or Valkey servers, with the same bytes as in a file.

    bloomguard:{guard}                         a hash: generation -> number of its shards
    bloomguard:{guard}:{generation}:{shard}    a frame of bloomguard.filters.codec
    bloomguard:{guard}:metrics:{step}:{number} a page of metrics, with an expiry

A check is one command that reads both tags of a shard and the key's bits atomically: a key that was evicted, flushed or
never written has tags of 0, and a replica refuses the command. An add counts only if the tags in its reply are correct.
In a Cluster, shards are spread over the slots, and the hash has copies on several nodes, so that the generations are
found after one node was emptied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from math import inf
from typing import Any, ClassVar

import redis
from django.conf import settings
from django.core.checks import CheckMessage, Warning
from redis.exceptions import NoScriptError

from ...conf import PAGES
from ...exceptions import ConfigurationError, StoreError, UnknownGeneration
from ...filters.codec import MAX_SHARDS, Header
from ...filters.layout import Layout
from ..base import COLUMNS, KEPT_SECONDS, ROWS, FindKeyHash, Generation, Page, Store, bound
from .cluster import Address, ClusterLink, spread
from .commands import Command
from .connection import Link
from .cuckoo import with_script
from .generation import RedisGeneration
from .loading import Draft, journal_key, load_key, make
from .topology import ClusterServers, find_servers

_CLUSTER_SHARD_BYTES = 2 << 20  # with a billion keys, each of 64 nodes has its share to within a seventh
_LISTS = 8  # copies of the hash in a Cluster, spread over the nodes
_TOGETHER = 256  # keys of one round trip
_LAST_CELL = ROWS * COLUMNS - 1
_MAX_REQUEST_TIMEOUT = 0.5  # seconds that a request may wait without a warning


class RedisStore(Store):
    """Generations on the servers of the django-redis cache ``cache``, or on those at ``url``.

    ``url`` names one server; with ``cluster``, one or more nodes of a Cluster; with ``sentinels``, a list of
    ``(host, port)``, the service that they monitor, as in ``redis://mymaster/0``. ``sentinel_options`` are the options
    of connections to Sentinels. Of a cache, only the addresses and the login are used.

    ``connect_timeout`` and ``read_timeout`` limit in seconds how long a request waits. ``add_timeout`` is for adds,
    and longer because a failed add disables the filter until it is rebuilt. ``bulk_timeout`` is for rebuilds. Sites
    that share a server need different values of ``prefix``.
    """

    is_remote: ClassVar[bool] = True
    shard_bytes: int = 8 << 20  # BITOP blocks other clients for 1.5 ms per MiB

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
    ) -> None:
        super().__init__(alias)
        check_timeouts(
            alias,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            add_timeout=add_timeout,
            bulk_timeout=bulk_timeout,
        )
        servers = find_servers(
            alias, url=url, cache=cache, cluster=cluster, sentinels=sentinels, sentinel_options=sentinel_options
        )
        servers.check(alias)
        self.prefix = prefix
        self._cache = cache
        self._clustered = isinstance(servers, ClusterServers)
        if self._clustered:
            self.shard_bytes = _CLUSTER_SHARD_BYTES
            if "{}" in prefix:  # the keys of one shard would be in different slots
                raise ConfigurationError(f"the store {alias!r}: prefix is {prefix!r}; in a Cluster it has no '{{}}'")
        self._request_timeout = connect_timeout + read_timeout
        self._reads = servers.link(connect_timeout, read_timeout, breaks=True)
        self._adds = servers.link(connect_timeout, add_timeout, breaks=False)
        self._bulk = servers.link(bulk_timeout, bulk_timeout, breaks=False)
        self._async_reads = servers.async_link(self._reads, connect_timeout, read_timeout)
        #: Whether event loops can use the store: redis.asyncio has to support all options of the connections.
        self.supports_async = self._async_reads is not None

    @property
    def patient(self) -> RedisStore:
        made = copy(self)
        made._reads = self._bulk
        return made

    def read(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Run commands of a check, with the short timeouts of requests; raises :class:`StoreError`."""
        return self._reads.trip(commands, identity)

    async def aread(self, commands: Sequence[Command], identity: str) -> list[Any]:
        """Async version of :meth:`read`, if :attr:`supports_async` is set."""
        assert self._async_reads is not None
        return await self._async_reads.trip(commands, identity)

    def write(self, commands: Sequence[Command], identity: str) -> list[Any]:
        """Run commands of an add or discard; raises :class:`StoreError`. There is no circuit breaker for writes."""
        return self._run(self._adds, commands, identity)

    def load(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Run commands of a rebuild, with a long timeout; raises :class:`StoreError`."""
        return self._run(self._bulk, commands, identity)

    @staticmethod
    def _run(link: Link | ClusterLink, commands: Sequence[Command], identity: str | None) -> list[Any]:
        """Make a round trip, and another one with the whole script for commands whose script a server did not know."""
        replies = link.trip(commands, identity)
        unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = link.trip([with_script(commands[number]) for number in unknown], identity)
            for number, reply in zip(unknown, again):
                replies[number] = reply
        return replies

    @property
    def identity(self) -> str:
        """The servers' replication IDs and run IDs, at most :data:`.PROVED_SECONDS` old.

        Raises :class:`StoreError` if the servers do not answer.
        """
        return self._reads.identity()

    def key(self, guard: str, name: str, shard: int) -> str:
        """Return the Redis key of one shard; in a Cluster its hash tag spreads shards evenly over the slots."""
        build = f"{self.prefix}:{guard}:{name}"
        return f"{build}:{{{spread(build, shard)}}}:{shard}" if self._clustered else f"{build}:{shard}"

    def location(self, guard: str, name: str) -> str:
        return f"{self.prefix}:{guard}:{name}:*"

    def _listed(self, guard: str) -> list[str]:
        """Return the keys of the hashes that list a guard's generations; SCAN would visit all keys of the server."""
        whole = f"{self.prefix}:{guard}"
        return [f"{whole}:{{{spread(whole, copy)}}}" for copy in range(_LISTS)] if self._clustered else [whole]

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        identity, layout = self._bulk.identity(), bound(layout, guard, name, self.prefix)
        draft = Draft(layout)
        made = RedisGeneration(self, guard, name, layout, identity, draft)
        self.load([(listed, ("HSET", listed, name, layout.header.shards)) for listed in self._listed(guard)], identity)
        try:
            make(self, layout, made.keys, draft.frames, identity)
        except StoreError as error:
            with suppress(StoreError):
                self.drop(guard, name)
            raise StoreError(f"no filter of {layout.total_bytes:,} bytes was created: {error}") from error
        return made

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        identity = identity or self.identity
        key = self.key(guard, name, 0)
        start, size = self.read([(key, ("GETRANGE", key, 0, 1023)), (key, ("STRLEN", key))], identity)
        if not size:
            raise UnknownGeneration(f"{key} does not exist")
        header = Header.unpack(start)
        layout = self._layout(guard, name, self.prefix, header, size * header.shards, find_key_hash)
        opened = RedisGeneration(self, guard, name, layout, identity)
        opened.check_headers()
        return opened

    def drop(self, guard: str, name: str) -> None:
        lists = self._listed(guard)
        counts = self.load([(listed, ("HGET", listed, name)) for listed in lists])
        keys = [self.key(guard, name, shard) for shard in range(max(map(_shards, counts)))]
        for start in range(0, len(keys), _TOGETHER):
            some = keys[start : start + _TOGETHER]
            self.load([(key, ("UNLINK", key, load_key(key), journal_key(key))) for key in some])
        self.load([(listed, ("HDEL", listed, name)) for listed in lists])

    def names(self, guard: str) -> list[str]:
        found = self.read([(listed, ("HKEYS", listed)) for listed in self._listed(guard)])
        return sorted({name.decode() for some in found for name in some})

    def free_bytes(self) -> int | None:
        free = []
        for memory in map(_parse_info, self._bulk.send_to_all("INFO", "memory")):
            most, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
            if most:
                free.append(max(most - used, 0))
        return min(free) * len(free) if free else None  # shards are spread evenly, so the fullest node is the limit

    def add_metrics(self, page: Page, cells: Mapping[int, int]) -> None:
        key = self._page_key(page)
        # Writing the last cell gives a new key its final size: a string that grows in steps takes twice the memory.
        added = {_LAST_CELL: 0, **cells}
        words = [word for cell, number in added.items() for word in ("INCRBY", "u32", f"#{cell}", number)]
        expiry = (key, ("EXPIRE", key, KEPT_SECONDS[page.step]))
        # EXPIRE comes first: if the ACL forbids it, nothing is added, or each retry would add the numbers again.
        [exists] = self._adds.trip([expiry])
        self._adds.trip([(key, ("BITFIELD", key, "OVERFLOW", "SAT", *words))])
        if not exists:
            with suppress(StoreError):  # the numbers are added; the next add sets the expiry
                self._adds.trip([expiry])

    def read_metrics(self, pages: Sequence[Page]) -> list[bytes]:
        keys = [self._page_key(page) for page in pages]
        return [page or b"" for page in self._adds.trip([(key, ("GET", key)) for key in keys])] if keys else []

    def _page_key(self, page: Page) -> str:
        return f"{self.prefix}:{page.guard}:metrics:{page.step}:{page.number}"

    def check(self) -> list[CheckMessage]:
        found: list[CheckMessage] = []
        if self._cache is not None and not _has_timeout(settings.CACHES.get(self._cache, {})):
            found.append(
                Warning(
                    f"CACHES[{self._cache!r}] has no SOCKET_TIMEOUT.",
                    hint="The guards' store has its own timeouts, but while the server is down, requests that pass can "
                    "wait for the cache without a limit. Set SOCKET_CONNECT_TIMEOUT and SOCKET_TIMEOUT, in seconds, in "
                    f"CACHES[{self._cache!r}]['OPTIONS'].",
                    id="bloomguard.W023",
                )
            )
        seconds = self._request_timeout
        if seconds > _MAX_REQUEST_TIMEOUT:
            found.append(
                Warning(
                    f"the store {self.alias!r} lets a request wait {seconds:g} s for a server that is down.",
                    hint="Lower connect_timeout and read_timeout; 0.05 s each is enough within a data centre.",
                    id="bloomguard.W020",
                )
            )
        return found

    def check_deployed(self) -> list[CheckMessage]:
        try:
            memories = self._bulk.send_to_all("INFO", "memory")
            clusters = self._bulk.send_to_all("INFO", "cluster")
            is_single_node = not self._clustered and _parse_info(clusters[0]).get("cluster_enabled") == "1"
            if not is_single_node:  # INFO is also answered by a server that refuses checks, as out of memory
                keys = [self.key("", "check", shard) for shard in range(_TOGETHER)]  # some on each node of a Cluster
                self.load([(key, ("BITFIELD", key, "GET", "u1", 0)) for key in keys])
        except StoreError as error:
            return [
                Warning(
                    f"the store {self.alias!r} cannot be used: {str(error).rstrip('.')}.",
                    hint="Start the server, give it memory (OOM) or disk space (MISCONF), or correct the OPTIONS of "
                    "the store, such as its address, or the login and rights of its user: see "
                    f"{PAGES}redis.md. Until it answers, guards pass every request, and saving a guarded row disables "
                    "the guard.",
                    id="bloomguard.W021",
                )
            ]
        if is_single_node:
            return [
                Warning(
                    f"the server of the store {self.alias!r} is a node of a Cluster, and refuses the keys of others.",
                    hint="Set 'cluster': True in its OPTIONS, with the addresses of some nodes as url. Then run "
                    "manage.py rebuild_filter.",
                    id="bloomguard.W141",
                )
            ]
        policies = {_parse_info(memory).get("maxmemory_policy", "") for memory in memories}
        return [
            Warning(
                f"a server of the store {self.alias!r} may evict filters: its maxmemory-policy is {policy!r}.",
                hint="Set it to noeviction or to a volatile-* policy: filters have no expiry. If a filter is evicted, "
                "every request passes until rebuild_filter has run.",
                id="bloomguard.W022",
            )
            for policy in sorted(policies)
            if policy != "noeviction" and not policy.startswith("volatile-")
        ]

    def close(self) -> None:
        """Close all connections of threads; the next command opens new ones."""
        for link in (self._reads, self._adds, self._bulk):
            link.close()


def _shards(count: bytes | None) -> int:
    """Return the number of shards in a hash entry, at most :data:`MAX_SHARDS`; 0 if the entry is not a number."""
    return min(int(count), MAX_SHARDS) if count is not None and count.isdigit() and len(count) < 10 else 0


def _parse_info(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)


def check_timeouts(alias: str, **timeouts: Any) -> None:
    """Raise :class:`ConfigurationError` for a timeout that is not a number of seconds above 0."""
    for name, seconds in timeouts.items():
        is_number = isinstance(seconds, (int, float))
        if isinstance(seconds, bool) or not is_number or not 0 < seconds < inf:
            given = repr(seconds) if is_number else f"of type {type(seconds).__name__}"
            raise ConfigurationError(
                f"the store {alias!r}: {name} is {given}; it has to be a number of seconds above 0, or requests "
                "would wait forever for a server that is down"
            )


def _has_timeout(configured: dict[str, Any]) -> bool:
    """Return whether a django-redis cache has a timeout for replies; no server is queried."""
    options: dict[str, Any] = configured.get("OPTIONS", {})
    if options.get("SOCKET_TIMEOUT") or options.get("CONNECTION_POOL_KWARGS", {}).get("socket_timeout"):
        return True
    location = configured.get("LOCATION", "")
    urls = location.split(",") if isinstance(location, str) else [str(each) for each in location]
    try:
        return all("socket_timeout" in redis.connection.parse_url(url) for url in urls)  # type: ignore[no-untyped-call]
    except ValueError:
        return False  # the name of a Sentinel service, or an invalid URL, which find_servers() reports
