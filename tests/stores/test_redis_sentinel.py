"""A store whose primary is named by Sentinels: a failover is followed, and what was built before it is not trusted."""

from __future__ import annotations

from functools import partial

import pytest
from django.test import override_settings

from bloomguard.exceptions import StoreError, StoreUnavailable
from bloomguard.stores.redis import RedisStore
from tests.support.patience import PATIENT
from tests.support.servers import Sentinel, Valkey, until

from .conftest import find, key, make_layout


@pytest.fixture
def watched(monkeypatch):
    """A primary, its replica, and a Sentinel that knows both."""
    monkeypatch.setattr("django_redis.pool.ConnectionFactory._pools", {})  # it keeps them by URL, and so our Sentinels
    primary, replica = Valkey(), Valkey()
    with replica.client() as admin:
        admin.replicaof("127.0.0.1", primary.port)
        until(lambda: admin.info("replication").get("master_link_status") == "up")
    sentinel = Sentinel(primary)
    yield primary, replica, sentinel
    for each in (sentinel, primary, replica):
        each.stop()


def stores(sentinel):
    """One store by URL, one by a cache of django-redis."""
    watchers = [("127.0.0.1", sentinel.port)]
    yield RedisStore("shared", url="redis://mymaster/0", sentinels=watchers, **PATIENT)
    cache = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "redis://mymaster/0",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "SENTINELS": watchers,
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
        },
    }
    factory = "django_redis.pool.SentinelConnectionFactory"
    with override_settings(CACHES={"default": cache}, DJANGO_REDIS_CONNECTION_FACTORY=factory):
        yield RedisStore("shared", cache="default", **PATIENT)


def answers(store):
    try:
        return bool(store.identity)
    except StoreUnavailable:
        return False


@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_a_failover_is_followed_and_nothing_from_before_is_trusted(watched, kind):
    """The primary dies, Sentinel promotes the replica: it is asked from then on, and says nothing of what was built
    before; what is built on it answers, scripts included."""
    primary, replica, sentinel = watched
    made = []
    for number, store in enumerate(stores(sentinel)):
        generation = store.create("city", f"before-{number}", make_layout(kind=kind))
        generation.add_many([1])
        generation.seal()
        generation.add([key(2)])
        assert [generation.might_contain(key(each)) for each in (1, 2, 3)] == [True, True, False]
        made.append((store, generation))
    with primary.client() as one, replica.client() as other:
        other.config_set("replica-priority", 1)
        offset = one.info("replication")["master_repl_offset"]
        until(lambda: other.info("replication")["slave_repl_offset"] >= offset)
    until(sentinel.knows_replica)

    primary.kill()
    sentinel.fail_over(replica)

    for number, (store, generation) in enumerate(made):
        with pytest.raises(StoreError):
            generation.might_contain(key(3))
        with pytest.raises(StoreError):
            generation.add([key(4)])
        until(partial(answers, store))  # redis-py is told later than others
        assert store.identity != generation.identity
        with pytest.raises(StoreError):
            generation.might_contain(key(3))
        with pytest.raises(StoreError):
            generation.add([key(4)])
        with pytest.raises(StoreError):
            store.open("city", f"before-{number}", find, generation.identity)
        after = store.create("city", f"after-{number}", make_layout(kind=kind))
        after.add([key(5)])
        after.seal()
        assert [after.might_contain(key(each)) for each in (4, 5)] == [False, True]
        store.close()
