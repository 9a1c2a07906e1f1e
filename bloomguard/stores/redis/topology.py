"""Servers that the options of a store name: a single server, a service of Sentinels, or the nodes of a Cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from django.conf import settings
from redis.asyncio import sentinel
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException
from redis.sentinel import SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

from ...exceptions import ConfigurationError, StoreUnavailable
from .aio import AsyncLink
from .cluster import Address, ClusterLink
from .commands import NO_LIMIT, Breaker, Server, connection_options, hide
from .connection import Link

#: Connection classes of redis-py and their async versions.
_ASYNCIO: dict[type[Any], type[Any]] = {
    redis.Connection: redis.asyncio.Connection,
    redis.SSLConnection: redis.asyncio.SSLConnection,
    redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
    SentinelManagedConnection: sentinel.SentinelManagedConnection,
    SentinelManagedSSLConnection: sentinel.SentinelManagedSSLConnection,
}
#: Options of sync connections only, which are ignored.
_OF_THREADS = {"parser_class", "socket_type"}
#: Prefixes of a pool's connection options that belong to the pool itself or would delay a failure.
_POOL_OPTIONS = ("maint_", "orig_", "event_dispatcher", "cache", "himport_", "oss_", "connection_pool")


@dataclass(frozen=True)
class Servers:
    """A single server; ``options`` are the keyword arguments of its connections. Creates the links of a store."""

    connection_class: type[Any]
    options: dict[str, Any] = field(repr=False)

    def check(self, alias: str) -> None:
        """Raise :class:`ConfigurationError` if redis-py does not take the options of the store ``alias``."""
        try:
            options = connection_options(self.options, 1.0, 1.0, None)
            pool = self._pool(redis, self.connection_class, 1.0, 1.0)(**options)
            pool.connection_class(**pool.connection_kwargs)  # it would connect later
        except Exception as error:
            hide(error, self._secrets())
            raise ConfigurationError(f"the store {alias!r}: redis-py does not take its options: {error}") from error

    def link(self, connect_timeout: float, timeout: float, *, breaks: bool) -> Link | ClusterLink:
        """Return a link with these timeouts in seconds; with ``breaks``, each server has a circuit breaker."""
        return self._link({}, connect_timeout, timeout, breaks)

    def async_link(self, link: Any, connect_timeout: float, timeout: float) -> AsyncLink | None:
        """Return the async version of ``link``; ``None`` if redis.asyncio does not support the class or an option.

        No unsupported option is dropped, since it may be what makes a connection secure.
        """
        found = _ASYNCIO.get(self.connection_class)
        if found is None:
            return None
        taken = {name for cls in found.__mro__ for name in signature(cls).parameters} - {"redis_connect_func"}
        given = {name: value for name, value in self.options.items() if value is not None or name in taken}
        options = {name: value for name, value in given.items() if name not in _OF_THREADS}
        if not options.keys() <= taken:
            return None
        pool = self._pool(redis.asyncio, found, connect_timeout, timeout)
        return AsyncLink(link.server, pool, options, connect_timeout, timeout)

    def _link(self, address: dict[str, Any], connect_timeout: float, timeout: float, breaks: bool) -> Link:
        breaker = Breaker() if breaks else None
        server = Server(breaker=breaker, clustered=isinstance(self, ClusterServers), secrets=self._secrets())
        pool = self._pool(redis, self.connection_class, connect_timeout, timeout)
        return Link(server, pool, self.options | address, connect_timeout, timeout)

    def _secrets(self) -> list[str]:
        return secrets_of(self.options | getattr(self, "sentinel_options", {}))

    def _pool(self, module: Any, connection_class: type[Any], connect_timeout: float, timeout: float) -> Any:
        """Return a function that makes a pool of ``module``, which is redis or redis.asyncio."""
        return partial(module.ConnectionPool, connection_class=connection_class)


@dataclass(frozen=True)
class SentinelServers(Servers):
    """The primary of ``service``, found by ``sentinels``; connections to Sentinels have the ``sentinel_options``."""

    service: str
    sentinels: Sequence[Address]
    sentinel_options: dict[str, Any] = field(repr=False)

    def async_link(self, link: Any, connect_timeout: float, timeout: float) -> AsyncLink | None:
        if not self.sentinel_options.keys() <= signature(redis.asyncio.Redis).parameters.keys():
            return None
        return super().async_link(link, connect_timeout, timeout)

    def _pool(self, module: Any, connection_class: type[Any], connect_timeout: float, timeout: float) -> Any:
        times = {"socket_connect_timeout": connect_timeout, "socket_timeout": timeout}
        retry = module.retry.Retry(redis.backoff.NoBackoff(), 0)
        kwargs = {**self.sentinel_options, **times, "retry": retry, "max_connections": NO_LIMIT}

        def pool(**options: Any) -> Any:
            manager = module.sentinel.Sentinel(list(self.sentinels), sentinel_kwargs=kwargs)
            return module.sentinel.SentinelConnectionPool(
                self.service, manager, connection_class=connection_class, **options
            )

        return pool


@dataclass(frozen=True)
class ClusterServers(Servers):
    """The nodes of a Cluster, found by ``seeds``; connections to all nodes have the same ``options``."""

    seeds: Sequence[Address]

    def link(self, connect_timeout: float, timeout: float, *, breaks: bool) -> ClusterLink:
        def to_node(address: Address) -> Link:
            return self._link({"host": address[0], "port": address[1]}, connect_timeout, timeout, breaks)

        return ClusterLink(self.seeds, to_node)

    def async_link(self, link: Any, connect_timeout: float, timeout: float) -> None:
        """Return ``None``: threads make the checks of event loops too."""


def secrets_of(options: dict[str, Any]) -> list[str]:
    """Return the passwords in a connection's options, which messages must not show, the longest first."""
    found = {str(value) for name, value in options.items() if "password" in name and value}
    return sorted(found, key=len, reverse=True)


def find_servers(
    alias: str,
    *,
    url: str | Sequence[str] | None,
    cache: str | None,
    cluster: bool,
    sentinels: Sequence[Address] | None,
    sentinel_options: dict[str, Any] | None,
) -> Servers:
    """Return the servers that the options of the store ``alias`` name.

    Raises :class:`ConfigurationError`, or :class:`StoreUnavailable` if the client of ``cache`` cannot be created while
    its servers are down.
    """
    if (url is None) == (cache is None):
        raise ConfigurationError(
            f"the store {alias!r} needs either url, as in 'redis://host:6379/0', or cache, the alias of a "
            f"django-redis cache; there {'are both' if url else 'is neither'}"
        )
    if sum(map(bool, (cache, cluster, sentinels))) > 1:
        raise ConfigurationError(
            f"the store {alias!r}: cluster and sentinels go with url, and not together; a cache's servers are in CACHES"
        )
    if cache is not None:
        if cache not in settings.CACHES:
            raise ConfigurationError(
                f"the store {alias!r}: cache has to be the alias of one of CACHES: {', '.join(settings.CACHES)}"
            )
        return _of_client(alias, cache, _client_of(alias, cache))
    urls = list(url) if isinstance(url, (list, tuple)) else [url]
    if not urls or (len(urls) > 1 and not cluster):
        raise ConfigurationError(f"the store {alias!r} has {len(urls)} URLs; give one, or several with cluster=True")
    if (cluster or sentinels) and any(str(each).startswith("unix:") for each in urls):
        raise ConfigurationError(f"the store {alias!r}: a Unix socket has no other nodes; name a host by redis://")
    try:
        pools = [redis.ConnectionPool.from_url(each) for each in urls if isinstance(each, str) and _is_whole(each)]
    except ValueError:
        pools = []
    if len(pools) < len(urls):
        # redis-py's own message could contain the password.
        raise ConfigurationError(f"the store {alias!r}: its url is not the URL of a Redis server; {_QUOTED}") from None
    pool = pools[0]
    if cluster:
        seeds = [_address(each.connection_kwargs) for each in pools]
        return ClusterServers(pool.connection_class, _options_of(pool), seeds)
    if sentinels:
        options = _options_of(pool)
        service = options.pop("host", "")
        options.pop("port", None)
        secure = issubclass(pool.connection_class, redis.SSLConnection)
        managed = SentinelManagedSSLConnection if secure else SentinelManagedConnection
        try:
            addresses = [(host, int(port)) for host, port in sentinels]
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"the store {alias!r}: sentinels has to be a list of (host, port), as in [('10.0.0.1', 26379)]"
            ) from None
        return SentinelServers(managed, options, service, addresses, sentinel_options or {})
    return Servers(pool.connection_class, _options_of(pool))


#: The cure for a URL that is parsed wrongly because of its password.
_QUOTED = (
    "the form is redis://user:password@host:6379/0, and special characters in the password (/ # ? @ [ %) have to be "
    "quoted, as by urllib.parse.quote(password, safe='')"
)


def _is_whole(url: str) -> bool:
    """Return whether the login ends before the path; otherwise a part of the password would be parsed as the host."""
    parts = urlsplit(url)
    return "@" not in parts.path + parts.query + parts.fragment


def _options_of(pool: Any) -> dict[str, Any]:
    return {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_POOL_OPTIONS)}


def _address(options: dict[str, Any]) -> Address:
    return options.get("host", "localhost"), int(options.get("port", 6379))


def _client_of(alias: str, cache: str) -> Any:
    from django.core.cache import InvalidCacheBackendError
    from django.core.exceptions import ImproperlyConfigured
    from django_redis import get_redis_connection

    location = settings.CACHES[cache].get("LOCATION", "")
    try:
        for url in location.split(",") if isinstance(location, str) else location:
            if not _is_whole(str(url)):
                raise ValueError
        return get_redis_connection(cache)
    except (InvalidCacheBackendError, NotImplementedError, AttributeError) as error:
        given = settings.CACHES[cache]
        raise ConfigurationError(
            f"the store {alias!r}: CACHES[{cache!r}] is not a django-redis cache of one server or a Cluster, but has "
            f"{given.get('OPTIONS', {}).get('CLIENT_CLASS') or given.get('BACKEND')}; give the servers by url"
        ) from error
    except ValueError:
        raise ConfigurationError(
            f"the store {alias!r}: the LOCATION of CACHES[{cache!r}] is not the URL of a Redis server; {_QUOTED}"
        ) from None
    except ImproperlyConfigured as error:
        hide(error, _secrets_of_cache(cache))
        raise ConfigurationError(f"the store {alias!r}: CACHES[{cache!r}] cannot be used: {error}") from error
    except (redis.RedisError, RedisClusterException, OSError) as error:  # the client of a Cluster connects at once
        hide(error, _secrets_of_cache(cache))
        raise StoreUnavailable(f"the client of CACHES[{cache!r}] cannot be created: {error}") from error


def _secrets_of_cache(cache: str) -> list[str]:
    options = settings.CACHES[cache].get("OPTIONS", {})
    known = {**options, **options.get("REDIS_CLIENT_KWARGS", {}), **options.get("CONNECTION_POOL_KWARGS", {})}
    return secrets_of({name.lower(): value for name, value in known.items()})


def _of_client(alias: str, cache: str, client: Any) -> Servers:
    pool: Any
    if isinstance(client, RedisCluster):
        nodes: list[Any] = client.get_nodes()  # type: ignore[no-untyped-call]
        seeds = [(str(node.host), int(node.port)) for node in nodes]
        pool = client.get_redis_connection(nodes[0]).connection_pool
        return ClusterServers(pool.connection_class, _options_of(pool), seeds)
    pool = getattr(client, "connection_pool", None)
    if isinstance(pool, SentinelConnectionPool):
        manager = pool.sentinel_manager
        sentinels = [_address(each.connection_pool.connection_kwargs) for each in manager.sentinels]
        options, found = _options_of(pool), dict(manager.sentinel_kwargs or {})
        return SentinelServers(pool.connection_class, options, pool.service_name, sentinels, found)
    if type(pool) in (redis.ConnectionPool, redis.BlockingConnectionPool):
        return Servers(pool.connection_class, _options_of(pool))
    raise ConfigurationError(
        f"the store {alias!r}: CACHES[{cache!r}] uses the unsupported class {type(pool or client).__name__}; "
        "give the address by url"
    )
