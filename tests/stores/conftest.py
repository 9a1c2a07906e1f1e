"""Every store and every kind of filter that it can hold, made alike for the suites that run over all of them."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import redis

from bloomguard.filters import KeyHash
from bloomguard.filters.layout import Layout
from bloomguard.stores import Generation, Store
from bloomguard.stores.file import FileStore
from bloomguard.stores.memory import MemoryStore
from bloomguard.stores.redis import RedisStore
from tests.support import servers
from tests.support.patience import PATIENT
from tests.support.proxy import Proxy
from tests.support.servers import Valkey, until

SECRET = b"0123456789abcdef"
HASH = KeyHash(8, SECRET)
KEY_ID = 77
RANGE = 20_000
KINDS: dict[str, dict[str, Any]] = {
    "bloom": {},
    "cuckoo": {},
    "bitmap": {"low": -50, "high": RANGE, "overflow": 2_000},
}


def key(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def some(count: int, low: int = -200, high: int = RANGE + 200, seed: int = 1) -> list[int]:
    """Numbers at random, each once: most in the range of a bitmap, some outside."""
    return random.Random(seed).sample(range(low, high), count)


def find(key_id: int) -> KeyHash | None:
    """What a guard tells its store: the hash for its own key id, none for any other."""
    return HASH if key_id == KEY_ID else None


def fill(generation: Generation) -> float:
    """Of the bits or slots of all shards, the share that is used; all of them are read and checked."""
    return mean(each.fill for each in generation.filters())


def make_layout(kind: str = "bloom", shard_bytes: int = 1 << 25, capacity: int = RANGE, key_id: int = KEY_ID) -> Layout:
    return Layout.plan(
        key_hash=HASH,
        capacity=capacity,
        error_rate=0.01,
        key_id=key_id,
        kind=kind,
        shard_bytes=shard_bytes,
        **KINDS[kind],
    )


def wait_at_most(store: Any, seconds: float) -> None:
    """Let a Redis store wait so long for its server from here on, also on connections that are open.

    Patient while the server answers, short while it is known not to: so nothing depends on how busy the machine is.
    """
    times = {"socket_connect_timeout": seconds, "socket_timeout": seconds}
    for link in (store._reads, store._adds, store._bulk):
        link.pool.connection_kwargs.update(times)
        for connection in (*link.idle, *link.pool._available_connections):
            connection.socket_connect_timeout = connection.socket_timeout = seconds
            if connection._sock is not None:
                connection._sock.settimeout(seconds)
                connection._parser._socket_timeout = seconds  # which older versions of redis-py set again
    link = store._async_reads
    link._timeout = seconds
    link._make_pool.keywords.update(times)
    for lines, _ in link._made.values():
        lines.pool.connection_kwargs.update(times)
        for connection in lines.idle:
            connection.socket_connect_timeout = seconds


def reached(proxy: Proxy) -> int:
    """How many connections have been made by now: one more comes after all of them."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as last:
        port = last.getsockname()[1]
        until(lambda: port in proxy.clients)
    return proxy.clients.index(port)


@dataclass(frozen=True)
class Place:
    """A store, and ``again()``: the same store as another part of the site comes to it."""

    store: Store
    again: Callable[[], Store]


def in_memory() -> Place:
    store = MemoryStore("default", max_bytes=64 << 20)
    return Place(store, lambda: store)


def in_files(path: Path) -> Place:
    return Place(FileStore("default", path=path), lambda: FileStore("default", path=path))


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each store whose bytes a test can reach."""
    return in_memory() if request.param == "memory" else in_files(tmp_path / "s")


@pytest.fixture(params=["memory", "file", "redis"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each store."""
    if request.param != "redis":
        yield in_memory() if request.param == "memory" else in_files(tmp_path / "s")
        return
    with redis.Redis.from_url(servers.valkey()) as client:
        client.flushall()
    made: list[RedisStore] = []

    def make() -> RedisStore:
        made.append(RedisStore("default", url=servers.valkey(), **PATIENT))
        return made[-1]

    yield Place(make(), make)
    for each in made:
        each.close()


@pytest.fixture
def redis_clock(clock: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of all Redis stores, which stands still until a test moves it."""
    monkeypatch.setattr("bloomguard.stores.redis.commands.clock", clock)
    return clock


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    """An empty file store."""
    return FileStore("default", path=tmp_path / "s")


@pytest.fixture(params=[(kind, size) for kind in KINDS for size in (1 << 25, 1 << 12)], ids=str)
def layout(request: pytest.FixtureRequest) -> Layout:
    """Each kind, in one shard and in several."""
    kind, shard_bytes = request.param
    made = make_layout(kind, shard_bytes)
    assert (len(made.headers) > 1) == (shard_bytes == 1 << 12)
    return made


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """A server that one module's tests may put out of order."""
    made = Valkey()
    yield made
    made.stop()


@pytest.fixture
def primary(valkey: Valkey) -> Valkey:
    """A server that is a primary, and empty."""
    with valkey.client() as admin:
        admin.replicaof("NO", "ONE")
        admin.config_set("maxmemory", 0)
        admin.flushall()
    return valkey


@pytest.fixture
def proxy(primary: Valkey) -> Iterator[Proxy]:
    """What stands between a store and the server, and fails as it is told."""
    made = Proxy(primary.port)
    yield made
    made.close()


def load_beside_adds(monkeypatch: pytest.MonkeyPatch, store: Any, added: list[int], writer: threading.Thread) -> None:
    """Let each command that brings a build to the server wait for one more add of ``writer``, while that goes on."""
    load = store.load

    def load_after_an_add(*args: Any) -> Any:
        before = len(added)
        until(lambda: len(added) > before or not writer.is_alive())
        return load(*args)

    monkeypatch.setattr(store, "load", load_after_an_add)
