"""A guarded site whose server fails in every way that servers fail: never a false 404, never an error page."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.stores import stores
from bloomguard.stores.breaker import PROBE_SECONDS
from bloomguard.sync import state
from bloomguard.verdicts import Verdict
from tests.conftest import forget
from tests.servers import Valkey
from tests.shop.models import Product

pytestmark = pytest.mark.django_db(transaction=True)
DRILLS = 50
PATIENCE = 0.15  # seconds: less than the proxy's slowness, and enough for a busy machine
TIMEOUTS = {"connect_timeout": PATIENCE, "read_timeout": PATIENCE, "add_timeout": PATIENCE}


@pytest.fixture
def site(request, proxy, settings, clock, client):
    """A site with 20 products, whose guard lives on the server behind the proxy; a parameter is its timeouts."""
    timeouts = getattr(request, "param", TIMEOUTS)
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {
                "BACKEND": "bloomguard.stores.redis.RedisStore",
                "OPTIONS": {"url": proxy.url, **timeouts, "clock": clock},
            }
        }
    }
    forget()
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 21))
    made = Site(client, clock)
    made.rebuild()
    yield made
    stores["default"].close()
    forget()


class Site:
    def __init__(self, client, clock):
        self._client = client
        self.clock = clock
        self.guard = registry["product"]
        self.last = 20

    def rebuild(self):
        """On a busy machine the server may take longer than it is given: there are three tries."""
        for _ in range(2):
            with suppress(RebuildError):
                return Rebuild(self.guard, sleep=self.clock.sleep).run()
        return Rebuild(self.guard, sleep=self.clock.sleep).run()

    def get(self, pk):
        return self._client.get(f"/products/{pk}/").status_code

    def create(self):
        """A row that is saved, whose commit was acknowledged."""
        self.last += 1
        Product.objects.create(pk=self.last)
        self.clock.sleep(2 * state.LEASE_SECONDS)
        return self.last

    def all_found(self):
        return all(self.get(pk) == 200 for pk in (1, 7, self.last))

    @property
    def absent(self):
        return self.guard.verdict(999_999)

    def answers_again(self):
        """Whether it does by one of the next probes: on a busy machine a server may miss some."""

        def probed():
            self.clock.sleep(PROBE_SECONDS)
            return self.absent is Verdict.ABSENT

        return any(probed() for _ in range(5))


def test_a_site_on_a_server_is_guarded(site, django_assert_num_queries):
    """The main job: an absent ID is answered from the server's filter without a query, a saved row at once passes."""
    site.get(1)
    with django_assert_num_queries(0):
        assert site.get(999_999) == 404
    assert site.get(site.create()) == 200
    assert site.absent is Verdict.ABSENT


def test_an_absent_id_is_one_command(site, primary):
    """A 404 asks the server once, not once before and once after the lease is read."""
    site.get(999_998)
    with primary.client() as admin:
        admin.config_resetstat()
        for pk in range(1_000, 1_100):
            assert site.get(pk) == 404

        assert admin.info("commandstats")["cmdstat_bitfield"]["calls"] == 100


def _flush(site, primary):
    with primary.client() as admin:
        admin.flushall()


def _delete(site, primary):
    with primary.client() as admin:
        (name,) = stores["default"].names("product")
        admin.delete(f"bloomguard:product:{name}:0")


def _restart(site, primary):
    primary.kill()
    primary.again()


@pytest.mark.parametrize("befall", [_flush, _delete, _restart])
def test_what_the_server_lost_is_not_taken_for_absent(site, primary, befall):
    """Flushed, deleted or restarted, 50 times: every row is found before and after it is saved, until a rebuild
    mends it."""
    for _ in range(DRILLS if befall is not _restart else DRILLS // 5):
        befall(site, primary)

        assert site.all_found()
        assert site.absent is Verdict.UNKNOWN
        site.create()
        assert site.all_found()
        site.clock.sleep(20)
        assert site.absent is Verdict.UNKNOWN
        site.rebuild()
        assert site.absent is Verdict.ABSENT
        assert site.all_found()


@pytest.mark.parametrize("mode", ["refuse", "reset", "hole", "slow"])
def test_a_server_that_does_not_answer_lets_everything_pass(site, proxy, mode):
    """Refused, reset, black-holed, 200 ms slow: requests pass, and they are answered again when it is over."""
    for _ in range(DRILLS if mode in ("refuse", "reset") else 2):
        getattr(proxy, mode, lambda mode=mode: setattr(proxy, "mode", mode))()
        for _ in range(7):
            assert site.all_found()
            assert site.absent is Verdict.UNKNOWN
        proxy.mend()
        proxy.cut()

        assert site.answers_again()
        assert site.all_found()


@pytest.mark.parametrize("mode", ["refuse", "reset", "hole", "slow"])
def test_an_add_that_fails_fences(site, proxy, mode):
    """A row that is saved while the server does not answer is found then, afterwards, and after a rebuild."""
    for _ in range(2):
        getattr(proxy, mode, lambda mode=mode: setattr(proxy, "mode", mode))()
        site.create()
        assert site.all_found()
        proxy.mend()
        proxy.cut()
        site.clock.sleep(PROBE_SECONDS)

        assert state.table.current("product").status == state.FENCED
        assert site.all_found()
        assert site.absent is Verdict.UNKNOWN
        site.rebuild()
        assert site.absent is Verdict.ABSENT


def test_one_lost_reply_does_not_fence(site, proxy):
    """A check that timed out leaves adds alone: the next one is proved, and checks go on."""
    proxy.mode = "hole"
    assert site.absent is Verdict.UNKNOWN
    proxy.mend()
    proxy.cut()

    site.create()

    assert state.table.current("product").status == state.ARMED
    assert site.absent is Verdict.ABSENT
    assert site.all_found()


def _seconds(act):
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


@pytest.mark.parametrize("site", [{}], indirect=True, ids=["default timeouts"])
def test_a_black_hole_costs_a_request_55_ms_and_then_nothing(site, proxy):
    """With the server black-holed a whole request takes at most 55 ms longer, and 0.1 ms once the breaker is open.

    The quickest of each counts: on a busy machine any of them may be held up.
    """

    def request():
        assert site.get(7) == 200

    for _ in range(5):
        request()
    usual = min(_seconds(request) for _ in range(200))
    proxy.mode = "hole"
    waiting = [_seconds(request) for _ in range(5)]
    assert stores["default"].failures["timeout"] == 5
    passing = [_seconds(request) for _ in range(200)]

    assert stores["default"].failures["breaker"] >= 200
    assert 0.04 < min(waiting) - usual < 0.055
    assert min(passing) - usual < 0.0001


def test_over_maxmemory_everything_passes(site, primary):
    """A server that refuses commands for want of memory: checks pass, a failed add fences, a rebuild mends it."""
    with primary.client() as admin:
        admin.config_set("maxmemory", 1)
        assert site.absent is Verdict.UNKNOWN
        assert site.all_found()
        site.create()
        assert site.all_found()
        admin.config_set("maxmemory", 0)
    site.clock.sleep(PROBE_SECONDS)

    assert site.absent is Verdict.UNKNOWN
    site.rebuild()
    assert site.absent is Verdict.ABSENT


def _wait(condition):
    for _ in range(1_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it takes too long")


def _follow(one, other):
    with one.client() as admin:
        admin.replicaof("127.0.0.1", other.port)
        _wait(lambda: admin.info("replication").get("master_link_status") == "up")


@pytest.fixture
def replica(primary):
    """A replica of the primary, before anything is built: a first replica gives its primary another identity."""
    server = Valkey()
    _follow(server, primary)
    yield server
    server.stop()


def test_a_replica_that_lost_adds_is_not_trusted(replica, site, primary, proxy):
    """The primary dies with adds that its replica never got, and the replica is promoted: nothing it says counts
    until it is rebuilt, also on connections that were made before."""
    with replica.client() as admin:
        _wait(lambda: admin.dbsize() > 1)
        admin.replicaof("NO", "ONE")  # from here on it gets nothing
    lost = [site.create() for _ in range(5)]
    assert state.table.current("product").status == state.ARMED
    proxy._target = replica.port
    proxy.cut()

    for pk in lost:
        assert site.get(pk) == 200
    assert site.absent is Verdict.UNKNOWN
    site.create()
    assert site.all_found()
    site.rebuild()
    assert site.absent is Verdict.ABSENT
    assert site.all_found()


def test_a_demoted_primary_is_not_trusted_through_open_connections(replica, site, primary):
    """A primary that is demoted refuses checks and adds on the connections that it keeps, and when it is promoted
    again, with data of the other that lacks adds, it is known for another."""
    with replica.client() as admin:
        _wait(lambda: admin.dbsize() > 1)
        admin.replicaof("NO", "ONE")
    lost = site.create()
    assert site.absent is Verdict.ABSENT
    _follow(primary, replica)

    assert site.get(lost) == 200
    assert site.absent is Verdict.UNKNOWN
    with primary.client() as admin:
        admin.replicaof("NO", "ONE")
    site.clock.sleep(1)
    for _ in range(3):
        assert site.get(lost) == 200
        assert site.absent is Verdict.UNKNOWN
        site.clock.sleep(20)
    site.rebuild()
    assert site.absent is Verdict.ABSENT


def test_a_failover_behind_an_unused_connection_is_noticed(replica, site, primary):
    """Demoted and promoted again while nobody asked: the open connection's identity is read again."""
    with replica.client() as admin:
        _wait(lambda: admin.dbsize() > 1)
        admin.replicaof("NO", "ONE")
    lost = site.create()
    assert site.absent is Verdict.ABSENT
    _follow(primary, replica)
    with primary.client() as admin:
        admin.replicaof("NO", "ONE")
    site.clock.sleep(1)

    assert site.get(lost) == 200
    assert site.absent is Verdict.UNKNOWN


def test_split_brain_is_no_false_404(replica, site, primary, proxy):
    """Writers reach the promoted replica while readers still have the old primary: the failed add fences both."""
    with replica.client() as admin:
        _wait(lambda: admin.dbsize() > 1)
        admin.replicaof("NO", "ONE")
    assert site.absent is Verdict.ABSENT
    proxy._target = replica.port
    store = stores["default"]
    store._adds.close()  # new connections reach the other server; those of readers stay where they are

    pk = site.create()

    assert state.table.current("product").status == state.FENCED
    assert site.get(pk) == 200
    assert site.absent is Verdict.UNKNOWN
