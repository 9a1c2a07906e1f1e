"""The Redis store on a Cluster of real servers: where shards lie, and what can befall the nodes that hold them."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
import redis
from django_redis.pool import ConnectionFactory
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from bloomguard.exceptions import ConfigurationError, StoreError, StoreUnavailable, UnknownGeneration
from bloomguard.filters import CorruptFilter
from bloomguard.stores.base import Page, cells_of
from bloomguard.stores.redis import RedisStore
from bloomguard.stores.redis.cluster import spread
from tests.support import servers
from tests.support.patience import PATIENT
from tests.support.proxy import Proxy

from .conftest import RANGE, fill, find, key, make_layout

NUMBERS = random.Random(1).sample(range(RANGE), 3_000)


@pytest.fixture(scope="module")
def three():
    made = servers.Cluster(3)
    yield made
    made.stop()


@pytest.fixture
def cluster(three):
    """A Cluster of three nodes, empty."""
    three.flush()
    return three


@pytest.fixture
def make_store():
    """``make_store(cluster)``: the store as one more process comes to it."""
    made = []

    def make(cluster, **options):
        made.append(RedisStore("default", url=cluster.urls, cluster=True, **PATIENT, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def store(make_store, cluster):
    return make_store(cluster)


def built(store, kind="bloom", shard_bytes=1 << 12):
    """A sealed generation in many shards that holds :data:`NUMBERS`."""
    made = store.create("city", "a", make_layout(kind, shard_bytes))
    made.add_many(np.array(NUMBERS))
    made.seal()
    return made


def test_a_node_without_the_option_cluster_is_reported(cluster, store):
    """A store that takes a node for a single server says what to set: in the check, and where a key is elsewhere."""
    with closing(RedisStore("default", url=cluster.urls[0], **PATIENT)) as single:
        (found,) = single.check_deployed()
        name = next(name for name in map(str, range(99)) if cluster.holder(f"bloomguard:{name}") != cluster.nodes[0])
        with pytest.raises(StoreError, match="set 'cluster': True"):
            single.names(name)

    assert found.id == "bloomguard.W141"
    assert "'cluster': True" in found.hint
    assert store.check_deployed() == []


def holders(cluster, generation):
    """Which node holds each shard."""
    return [cluster.holder(each) for each in generation.keys]


def one_on(cluster, generation, node):
    """A number whose key belongs to a shard that lies on ``node``."""
    found = holders(cluster, generation)
    return next(number for number in NUMBERS if found[generation.layout.locate(key(number))[0]] is node)


@pytest.mark.parametrize("kind", ["bloom", "bitmap", "cuckoo"])
def test_shards_spread_over_the_nodes(store, make_store, cluster, kind):
    """A filter in many shards lies on all nodes; what was added is found, singly and in bulk, whoever asks."""
    made = built(store, kind, shard_bytes=1 << 10)
    other = make_store(cluster).open("city", "a", find)
    other.add([key(number) for number in range(-100, 0)])

    assert set(holders(cluster, made)) == set(cluster.nodes)
    for generation in (made, other):
        assert all(generation.might_contain_many([key(number) for number in [*NUMBERS, *range(-100, 0)]]))
        assert all(generation.might_contain(key(number)) for number in [*NUMBERS[:200], *range(-100, 0)])
    strangers = [key(number) for number in range(RANGE + 1_000, RANGE + 3_000)]
    assert sum(other.might_contain_many(strangers)) < 0.03 * len(strangers)
    assert 0 < fill(other) < 1
    assert other.measure_error_rate(1_000) < 0.03


@pytest.mark.parametrize(("shards", "most"), [(64, 2), (640, 1.2), (2_000, 1.15), (20_000, 1.1)])
def test_no_node_gets_much_more_than_its_share(shards, most):
    """Over 64 nodes the largest has at most 1.15 times the mean once there are some 30 shards each."""
    for build in ("bloomguard:city:a", "bloomguard:city:b", "x:y:z"):
        keys = [f"{build}:{{{spread(build, shard)}}}:{shard}" for shard in range(shards)]
        held = Counter(64 * key_slot(each.encode()) // SLOTS for each in keys)

        assert max(held.values()) <= most * shards / 64


def test_a_batch_is_one_trip_a_node(store, cluster):
    """Many keys, whatever the number of their shards, are asked of each node at once; and so they are added."""
    made = built(store)
    keys = [key(number) for number in range(1_000)]
    made.might_contain_many(keys)
    made.add(keys[:200])
    sent = []
    for link in [*store._reads._links.values(), *store._adds._links.values()]:
        link.send = lambda commands, link=link, send=link.send: sent.append(link) or send(commands)

    made.might_contain_many(keys)
    assert len(sent) == len(set(sent)) == 3
    made.add(keys[:200])
    assert len(sent) == len(set(sent)) == 6


def test_nothing_is_left_of_a_dropped_generation(store, make_store, cluster):
    """After a drop no node holds anything; while one node has been emptied, the others are still cleared."""
    made = built(store)
    with cluster.nodes[0].client() as admin:
        admin.flushall()
    assert make_store(cluster).names("city") == ["a"]

    make_store(cluster).drop("city", "a")
    store.drop("city", "a")

    assert store.names("city") == []
    for node in cluster.nodes:
        with node.client() as admin:
            assert admin.dbsize() == 0
    with pytest.raises(CorruptFilter):
        made.might_contain(key(1))
    with pytest.raises(UnknownGeneration):
        store.open("city", "a", find)


def test_a_flushed_node_is_noticed_by_its_own_keys(store, cluster):
    """With one node emptied its shards are unknown to checks and adds, and the others go on answering."""
    made = built(store)
    gone = cluster.nodes[1]
    with gone.client() as admin:
        admin.flushall()
    found = holders(cluster, made)

    unknown = 0
    for number in NUMBERS[:300]:
        mine = found[made.layout.locate(key(number))[0]] is gone
        unknown += mine
        if mine:
            for act in (made.might_contain, lambda each: made.add([each])):
                with pytest.raises(CorruptFilter):
                    act(key(number))
        else:
            assert made.might_contain(key(number))
    assert 0 < unknown < 300
    with pytest.raises(CorruptFilter):
        made.might_contain_many(map(key, NUMBERS))


def test_a_slot_that_moves_is_unknown_from_then_on(make_store, cluster, redis_clock):
    """Before a slot's keys have gone they answer; then no check of that shard says anything and no add counts, on
    the way, on the new node, and back again on the old one, where adds of others may be missing."""
    store = make_store(cluster)
    made = built(store)
    source, target = cluster.nodes[:2]
    number = one_on(cluster, made, source)
    shard_key = made.keys[made.layout.locate(key(number))[0]]
    identity = store.identity

    def unknown():
        for act in (made.might_contain, lambda each: made.add([each]), lambda each: made.might_contain_many([each])):
            with pytest.raises(StoreError):
                act(key(number))

    moving = cluster.migrate(shard_key, target)
    next(moving)
    assert made.might_contain(key(number))
    made.add([key(number)])
    next(moving)
    unknown()
    next(moving)
    unknown()
    redis_clock.sleep(1)
    unknown()
    with pytest.raises(StoreError):
        make_store(cluster).open("city", "a", find, identity)
    for _ in cluster.migrate(shard_key, source):
        pass
    redis_clock.sleep(1)
    unknown()
    assert make_store(cluster).identity != identity


def test_what_is_built_after_a_move_answers(make_store, cluster):
    """A drop finds shards that have moved, and what is made then works by where the slots lie then."""
    first = make_store(cluster)
    made = built(first)
    target = next(node for node in cluster.nodes if node is not cluster.holder(made.keys[0]))
    for _ in cluster.migrate(made.keys[0], target):
        pass
    first.drop("city", "a")

    again = built(first)

    assert all(again.might_contain_many([key(number) for number in NUMBERS]))
    assert all(make_store(cluster).open("city", "a", find).might_contain_many(map(key, NUMBERS)))


def test_known_nodes_are_asked_where_the_given_address_is_gone(cluster, redis_clock):
    """A slot that moves after the address in the settings is gone is found all the same, by the nodes known so far."""
    front = Proxy(cluster.nodes[0].port)
    store = RedisStore("default", url=front.url, cluster=True, **PATIENT)
    built(store)
    assert store.names("city") == ["a"]
    front.close()
    listed = store._listed("city")[0]
    target = next(node for node in cluster.nodes if node is not cluster.holder(listed))
    for _ in cluster.migrate(listed, target):
        pass
    redis_clock.sleep(1)

    assert store.names("city") == ["a"]
    store.close()


def test_a_node_that_gets_other_addresses_keeps_no_connection_to_the_old_ones(redis_clock):
    """As a container does with each restart: a process would run out of descriptors."""
    cluster = servers.Cluster(1)
    fronts = [Proxy(cluster.nodes[0].port) for _ in range(5)]
    store = RedisStore("default", url=cluster.urls, cluster=True, **PATIENT)
    links = []
    try:
        for front in fronts:
            with cluster.nodes[0].client() as admin:
                admin.config_set("cluster-announce-port", front.port)
            redis_clock.sleep(1)
            assert store.names("city") == []
            links.append(weakref.ref(store._reads._link(("127.0.0.1", front.port))))

        gc.collect()
        assert [link() is None for link in links] == [True] * 4 + [False]
    finally:
        store.close()
        for front in fronts:
            front.close()
        cluster.stop()


def test_an_identity_is_one_clusters_own(store, make_store, cluster):
    """Every process knows the cluster by the same name, from whichever node it learns of it."""
    turned = RedisStore("default", url=cluster.urls[::-1], cluster=True, **PATIENT)

    assert store.identity == make_store(cluster).identity == turned.identity
    assert len(store.identity) <= 200
    turned.close()


def test_a_replica_that_lost_adds_is_not_trusted(make_store):
    """A node fails over to a replica that never got the last adds: its shards are unknown, for those who worked with
    it and for those who come, and so they stay when the old node is back; the other nodes' shards still answer."""
    cluster = servers.Cluster(3, replicas=1)
    try:
        primary, replica = cluster.nodes[0], cluster.replicas[0]
        store = make_store(cluster)
        made, identity = built(store), store.identity
        with primary.client() as admin, replica.client() as follower:
            servers.until(lambda: admin.info("replication")["slave0"]["lag"] == 0)
            admin.execute_command("ACL SETUSER default -psync -sync")
            admin.execute_command("CLIENT", "KILL", "TYPE", "replica")
            servers.until(lambda: follower.info("replication")["master_link_status"] == "down")
            lost = one_on(cluster, made, primary)
            added = next(
                number
                for number in range(RANGE, 2 * RANGE)
                if made.layout.locate(key(number))[0] == made.layout.locate(key(lost))[0]
                and not made.might_contain(key(number))
            )
            made.add([key(added)])
            assert made.might_contain(key(added))
            primary.kill()
            follower.execute_command("CLUSTER FAILOVER", "TAKEOVER")
            servers.until(lambda: follower.info("replication")["role"] == "master")

            def unknown():
                for act in (made.might_contain, lambda each: made.add([each])):
                    with pytest.raises(StoreError):
                        act(key(added))

            unknown()
            other = make_store(cluster)
            servers.until(lambda: _answers(other))
            assert other.identity != identity
            with pytest.raises(StoreError):
                other.open("city", "a", find, identity)
            primary.again()
            servers.until(lambda: _answers(other))
            unknown()
            assert made.might_contain(key(one_on(cluster, made, cluster.nodes[1])))
    finally:
        cluster.stop()


def _answers(store):
    try:
        return bool(store.identity)
    except StoreError:
        return False


def test_a_node_that_is_gone_opens_its_own_breaker(make_store):
    """With one node killed, checks of its shards soon cost nothing, and those of the other nodes' go on."""
    cluster = servers.Cluster(2)
    try:
        store = make_store(cluster)
        made = built(store)
        gone, there = (one_on(cluster, made, node) for node in cluster.nodes)
        assert made.might_contain(key(gone))
        cluster.nodes[0].kill()
        for why in ["no connection"] * 5 + ["tried again"] * 3:
            with pytest.raises(StoreUnavailable, match=why):
                made.might_contain(key(gone))
            assert made.might_contain(key(there))
    finally:
        cluster.stop()


def test_threads_make_the_checks_of_event_loops(store):
    """redis.asyncio is for one server and for Sentinels."""
    assert not store.supports_async


def test_free_bytes_are_those_of_the_fullest_node(store, cluster):
    """Without ``maxmemory`` nobody can tell; with it, as much as the fullest node has room for on each."""
    assert store.free_bytes() is None
    for megabytes, node in zip((50, 100, 200), cluster.nodes):
        with node.client() as admin:
            admin.config_set("maxmemory", megabytes << 20)
    try:
        assert 3 * 30 << 20 < store.free_bytes() < 3 * 50 << 20
    finally:
        for node in cluster.nodes:
            with node.client() as admin:
                admin.config_set("maxmemory", 0)


class ClusterFactory(ConnectionFactory):
    """As a project's own connection factory for a Cluster looks."""

    def get_connection(self, params):
        return redis.RedisCluster.from_url(params["url"])


def test_a_cache_on_a_cluster_gives_the_nodes(settings, cluster):
    """A django-redis cache whose client is a ``RedisCluster`` is enough; where that cannot be made, requests pass."""
    for alias, url in (("shared", cluster.urls[0]), ("gone", "redis://127.0.0.1:1/0")):
        settings.CACHES = settings.CACHES | {
            alias: {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": url,
                "OPTIONS": {"CONNECTION_FACTORY": f"{__name__}.ClusterFactory"},
            }
        }
    store = RedisStore("default", cache="shared", **PATIENT)

    made = built(store)

    assert set(holders(cluster, made)) == set(cluster.nodes)
    assert all(made.might_contain_many(map(key, NUMBERS)))
    with pytest.raises(StoreUnavailable):
        RedisStore("default", cache="gone")
    with pytest.raises(ConfigurationError, match="cluster and sentinels go with url"):
        RedisStore("default", cache="shared", cluster=True)
    store.close()


def test_the_settings_name_one_kind_of_servers():
    """Several URLs without ``cluster``, or ``cluster`` with ``sentinels``, are configuration errors."""
    several = ["redis://a:1", "redis://b:1"]
    for options in ({"url": several}, {"url": []}, {"url": several, "cluster": True, "sentinels": [("h", 1)]}):
        with pytest.raises(ConfigurationError):
            RedisStore("default", **options)
    for options in ({"cluster": True}, {"sentinels": [("h", 1)]}):
        with pytest.raises(ConfigurationError, match="a Unix socket has no other nodes"):
            RedisStore("default", url="unix:///redis.sock", **options)


def test_a_prefix_keeps_the_keys_of_a_shard_in_one_slot(make_store, cluster):
    """``{}`` would hide the shard's hash tag, so that no filter could be built."""
    built(make_store(cluster, prefix="{a}b}{"))
    with pytest.raises(ConfigurationError, match=r"in a Cluster it has no '\{\}'"):
        make_store(cluster, prefix="a{}")


def test_metrics_lie_where_their_slots_are(store, cluster):
    """Pages of metrics are spread over the nodes, and read in one trip."""
    pages = [Page("city", 60, number) for number in range(30)]
    for page in pages:
        store.add_metrics(page, {0: page.number + 1})
        store.add_metrics(page, {0: 100})

    assert [cells_of(kept)[0] for kept in store.read_metrics(pages)] == [101 + page.number for page in pages]
    assert len({cluster.holder(store._page_key(page)) for page in pages}) == 3
