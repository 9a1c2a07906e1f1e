"""A Cluster whose nodes have several names: a link that is in use stays open when its node is heard of by another."""

from __future__ import annotations

from bloomguard.exceptions import StoreUnavailable
from bloomguard.stores.redis.cluster import ClusterLink

SLOTS = [(0, 8_191, (None, 7_001, b"x")), (8_192, 16_383, (None, 7_002, b"y"))]


class Call:
    def __init__(self, link, commands):
        self.link, self.commands = link, commands

    def identified(self, identity):
        """A node says no host: it has the name by which the other one was asked (``unknown-endpoint``)."""
        return f"node {self.link.address[1]}", [SLOTS if words[0] == "CLUSTER" else b"OK" for _, words in self.commands]

    def abandon(self):
        pass


def test_a_link_that_a_map_uses_stays_open(redis_clock):
    """To close it would cut off other threads' checks and adds, each time that the nodes are read."""
    down, closed = set(), []

    class Link:
        def __init__(self, address):
            self.address = address

        def send(self, commands):
            if self.address in down:
                raise StoreUnavailable("down")
            return Call(self, commands)

        def close(self):
            closed.append(self.address)

    def ask():
        redis_clock.now += 1
        assert cluster.identity() == identity
        cluster.trip([(name, ("GET", name)) for name in "abcdef"], identity)

    cluster = ClusterLink([("one", 7_001), ("other", 7_001)], Link)
    identity = cluster.identity()
    ask()
    down.add(("one", 7_001))
    redis_clock.now += 1
    assert cluster.identity() == identity  # by the other seed
    down.clear()
    for _ in range(3):
        ask()

    assert closed == []


def test_what_a_cluster_was_before_a_clock_went_back_is_asked_again(redis_clock):
    """For an hour it would be trusted as it was, whatever has happened to it."""

    class Link:
        def __init__(self, address):
            self.address = address

        def send(self, commands):
            asked.append(commands)
            return Call(self, commands)

    asked = []
    cluster = ClusterLink([("one", 7_001)], Link)
    cluster.identity()
    before = len(asked)
    cluster.identity()
    assert len(asked) == before
    redis_clock.now -= 3_600
    cluster.identity()
    assert len(asked) > before
