"""What the options of a Redis store, and of the cache whose servers it shares, should be."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import redis
from django.conf import settings
from django.core.checks import CheckMessage, Info, Warning

from ..exceptions import ConfigurationError

_LONGEST_PATIENCE = 0.5  # seconds that a request may wait without a warning
#: How a client is told to read from replicas.
_REPLICA_READS = ("read_from_replicas", "load_balancing_strategy")


def check_timeouts(alias: str, **timeouts: Any) -> None:
    """Every timeout is a number of seconds; raises :class:`ConfigurationError` that names the one that is not."""
    for name, seconds in timeouts.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < inf:
            raise ConfigurationError(
                f"the store {alias!r}: {name} is {seconds!r}; it has to be a number of seconds above 0, or requests "
                "would wait for ever for a server that is gone"
            )


def patience(alias: str, seconds: float) -> Iterator[CheckMessage]:
    """A request may wait ``seconds`` for the store."""
    if seconds > _LONGEST_PATIENCE:
        yield Warning(
            f"the store {alias!r} lets a request wait {seconds:g} s for a server that is gone.",
            hint="Its connect_timeout and read_timeout are seconds; 0.05 each are plenty within a data centre.",
            id="bloomguard.W020",
        )


def cache(alias: str) -> Iterator[CheckMessage]:
    """The django-redis cache that a store takes its servers from, as the settings have it; no server is asked."""
    configured = settings.CACHES.get(alias, {})
    options: dict[str, Any] = configured.get("OPTIONS", {})
    location = configured.get("LOCATION", "")
    urls = location.split(",") if isinstance(location, str) else [str(each) for each in location]
    if not _has_timeout(options, urls):
        yield Warning(
            f"CACHES[{alias!r}] has no SOCKET_TIMEOUT.",
            hint="The guards' store has timeouts of its own, but requests that pass while the server is gone wait in "
            "the cache as long as its client likes. Set SOCKET_CONNECT_TIMEOUT and SOCKET_TIMEOUT, in seconds, in "
            f"CACHES[{alias!r}]['OPTIONS'].",
            id="bloomguard.W023",
        )
    if options.get("IGNORE_EXCEPTIONS", getattr(settings, "DJANGO_REDIS_IGNORE_EXCEPTIONS", False)):
        yield Info(
            f"CACHES[{alias!r}] ignores exceptions (IGNORE_EXCEPTIONS).",
            hint="The guards' store does not: it uses only the address and the login, and hears of every failed add.",
            id="bloomguard.I024",
        )
    given = {**options, **options.get("REDIS_CLIENT_KWARGS", {}), **options.get("CONNECTION_POOL_KWARGS", {})}
    replicas = len(urls) > 1 and "Sentinel" not in str(options.get("CLIENT_CLASS", ""))
    if replicas or any(given.get(name) for name in _REPLICA_READS):
        yield Info(
            f"CACHES[{alias!r}] may read from replicas.",
            hint="The guards' store never does, for a replica may lack the latest adds: of several addresses in "
            "LOCATION it uses the first, which has to be the primary, and of a Cluster the primaries.",
            id="bloomguard.I025",
        )


def _has_timeout(options: dict[str, Any], urls: list[str]) -> bool:
    if options.get("SOCKET_TIMEOUT") or options.get("CONNECTION_POOL_KWARGS", {}).get("socket_timeout"):
        return True
    try:
        return all("socket_timeout" in redis.connection.parse_url(url) for url in urls)  # type: ignore[no-untyped-call]
    except ValueError:
        return False  # a service of Sentinels, or what the store refuses in its own words
