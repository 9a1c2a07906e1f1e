"""A guarded site whose server fails in every way that servers fail: never a false 404, never an error page."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from bloomguard.contrib.health import state_of
from bloomguard.exceptions import StoreUnavailable
from bloomguard.guards import registry
from bloomguard.metrics import read_series
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild.plan import assess
from bloomguard.rebuild.standby import retire, roll_back
from bloomguard.rebuild.verify import Verification
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from bloomguard.stores.redis.commands import PROBE_SECONDS
from bloomguard.stores.redis.connection import Link
from tests.conftest import forget
from tests.shop.models import Product
from tests.support.patience import PATIENT
from tests.support.servers import Valkey, until

from .conftest import reached, wait_at_most

pytestmark = pytest.mark.django_db(transaction=True)
DRILLS = 20


@pytest.fixture
def site(proxy, settings, clock, redis_clock, client):
    """A site with 20 products, whose guard lives on the server behind the proxy."""
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {
                "BACKEND": "bloomguard.stores.redis.RedisStore",
                "OPTIONS": {"url": proxy.url, **PATIENT},
            }
        }
    }
    forget()
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 21))
    made = Site(client, clock, proxy)
    made.rebuild()
    yield made
    stores["default"].close()
    forget()


class Site:
    def __init__(self, client, clock, proxy):
        self._client = client
        self._proxy = proxy
        self.clock = clock
        self.guard = registry["product"]
        self.last = 20

    def rebuild(self):
        return Rebuild(self.guard, sleep=self.clock.sleep).run()

    def suffer(self, mode):
        """From here on the server does not answer, and nobody waits for it for long."""
        wait_at_most(stores["default"], 0.02)
        getattr(self._proxy, mode, lambda: setattr(self._proxy, "mode", mode))()

    def recover(self):
        """It answers again, on new connections."""
        self._proxy.mend()
        self._proxy.cut()
        wait_at_most(stores["default"], 60)

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

    def url_with_login(self, user, password):
        return self._proxy.url.replace("://", f"://{user}:{password}@")

    @property
    def absent(self):
        return self.guard.verdict(999_999)


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


def note_timeouts(monkeypatch):
    """The timeouts of all replies that are waited for from here on."""
    waited, send = set(), Link.send

    def noted(link, commands):
        waited.add(link.pool.connection_kwargs["socket_timeout"])
        return send(link, commands)

    monkeypatch.setattr(Link, "send", noted)
    return waited


def test_a_page_of_figures_waits_no_longer_than_a_save(site, settings, monkeypatch):
    """It is made in a request: ``bulk_timeout`` is for rebuilds."""
    settings.BLOOMGUARD["STORES"]["default"]["OPTIONS"] |= {"add_timeout": 58, "bulk_timeout": 59}
    forget()
    waited = note_timeouts(monkeypatch)

    now = datetime.now(timezone.utc)
    assert not read_series([site.guard], now - timedelta(hours=1), now)["product"].error

    assert waited == {58}


@pytest.mark.parametrize("do", ["build", "if needed", "verify", "roll back"])
def test_a_rebuild_waits_for_each_reply_as_long_as_bulk_timeout(site, settings, monkeypatch, do):
    """Also for what requests ask with a short one: who the server is, which filters it has, and what is in them."""
    options = settings.BLOOMGUARD["STORES"]["default"]["OPTIONS"]
    options |= {"connect_timeout": 58, "read_timeout": 58, "bulk_timeout": 59}
    Rebuild(site.guard, sleep=site.clock.sleep, keep_standby=60).run()
    forget()
    waited = note_timeouts(monkeypatch)
    if do == "build":
        site.rebuild()
    elif do == "if needed":
        assert not assess(site.guard).reasons
    elif do == "verify":
        assert Verification(site.guard).run().missing == 0
    else:
        retire(site.guard, roll_back(site.guard))

    assert waited == {59}


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
    """Flushed, deleted or restarted, 20 times: every row is found before and after it is saved, until a rebuild
    mends it."""
    for _ in range(DRILLS if befall is not _restart else DRILLS // 2):
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


def test_a_filter_whose_end_is_damaged_needs_a_rebuild(site, primary):
    """``rebuild_filter --if-needed`` reads all of it, as a filter that answers nothing would stay so for ever."""
    (name,) = stores["default"].names("product")
    key = f"bloomguard:product:{name}:0"
    with primary.client() as admin:
        admin.setrange(key, admin.strlen(key) - 8, bytes(8))
    assert site.absent is Verdict.UNKNOWN

    assert len(assess(site.guard).reasons) == 1


#: Refused, reset, black-holed, and answered when nobody waits any more.
TROUBLE = ["refuse", "reset", "hole", "late"]


@pytest.mark.parametrize("mode", TROUBLE)
def test_a_server_that_does_not_answer_lets_everything_pass(site, mode):
    """Refused, reset, black-holed or too slow: requests pass, and they are answered again when it is over."""
    for _ in range(DRILLS if mode in ("refuse", "reset") else 2):
        site.suffer(mode)
        for _ in range(7):
            assert site.all_found()
            assert site.absent is Verdict.UNKNOWN
        site.recover()
        site.clock.sleep(PROBE_SECONDS)

        assert site.absent is Verdict.ABSENT
        assert site.all_found()


@pytest.mark.parametrize("mode", TROUBLE)
def test_a_guard_whose_server_does_not_answer_is_not_armed(site, mode):
    """Say the health check, the gauges and the admin of a process that has answered from the filter before."""
    assert site.absent is Verdict.ABSENT
    for _ in range(2):
        assert state_of(site.guard) == "armed"
        site.suffer(mode)
        assert [state_of(site.guard) for _ in range(7)] == ["unreachable"] * 7
        site.recover()
        site.clock.sleep(PROBE_SECONDS)


@pytest.mark.parametrize("mode", TROUBLE)
def test_an_add_that_fails_fences(site, mode):
    """A row that is saved while the server does not answer is found then, afterwards, and after a rebuild."""
    for _ in range(2):
        site.suffer(mode)
        site.create()
        assert site.all_found()
        site.recover()
        site.clock.sleep(PROBE_SECONDS)

        assert state.table.current("product").status == FENCED
        assert site.all_found()
        assert site.absent is Verdict.UNKNOWN
        site.rebuild()
        assert site.absent is Verdict.ABSENT


def warnings(caplog):
    """What the log ``bloomguard`` says at WARNING and above."""
    return [line.getMessage() for line in caplog.records if line.name == "bloomguard" and line.levelname != "INFO"]


@pytest.mark.parametrize(
    ("mode", "why"), [("refuse", "no connection to the server: "), ("hole", "the server did not answer in time")]
)
def test_an_outage_is_logged_once_with_the_error_of_the_store(site, mode, why, caplog):
    """However many requests it lasts, also when the breaker is open; and the next outage again."""
    for outages in (1, 2):
        site.suffer(mode)
        for _ in range(20):
            assert site.absent is Verdict.UNKNOWN
            site.clock.sleep(1)

        lines = warnings(caplog)
        assert len(lines) == outages
        assert lines[-1].startswith(f"bloomguard cannot use the store 'default', so requests may pass: {why}")
        site.recover()
        site.clock.sleep(60)
        assert site.absent is Verdict.ABSENT


@pytest.mark.parametrize("asks_between", [False, True], ids=["when rebuilt", "all the time"])
def test_a_filter_on_a_node_that_never_comes_back_is_left_for_the_next_one(site, asks_between):
    """As after a failover of a Cluster: requests are answered again once the filter is rebuilt on other nodes."""
    assert site.absent is Verdict.ABSENT
    live = site.guard._runtime.active_filter

    def gone(key):
        raise StoreUnavailable("no connection to the node")

    live.last_check = live.answered_last, gone
    assert not asks_between or site.absent is Verdict.UNKNOWN
    site.rebuild()
    site.clock.sleep(2 * state.LEASE_SECONDS)

    assert [site.absent for _ in range(2)][-1] is Verdict.ABSENT
    assert site.all_found()


def test_while_one_node_is_down_the_others_go_on_answering(site, monkeypatch):
    """As in a Cluster, where a look for all filters fails then: the row of the state says that this one is in use."""
    assert site.absent is Verdict.ABSENT
    store, opened = stores["default"], site.guard._runtime.active_filter._opened[site.guard._runtime.answering().name]
    lost, check = site.guard._runtime.key(999_998), opened.might_contain

    def is_there(key):
        if key == lost:
            raise StoreUnavailable("no connection to the node")
        return check(key)

    def names(guard):
        raise StoreUnavailable("no connection to the node")

    monkeypatch.setattr(opened, "might_contain", is_there)
    monkeypatch.setattr(store, "names", names)
    site.guard._runtime.active_filter.last_check = opened.name, is_there
    for _ in range(3):
        site.clock.sleep(2 * state.LEASE_SECONDS)
        assert site.guard.verdict(999_998) is Verdict.UNKNOWN
        assert site.absent is Verdict.ABSENT


def test_an_outage_is_logged_before_the_first_filter_is_opened(site, caplog):
    """A process that starts while the server is down says why its guards are cold."""
    forget()
    site.suffer("refuse")

    assert {site.guard._runtime.decide(999_999).reason for _ in range(3)} == {"unreachable"}

    (line,) = warnings(caplog)
    assert "no connection to the server: " in line


@pytest.mark.parametrize("trouble", ["refuse", "oom"])
def test_a_fence_gives_the_error_of_the_store(site, primary, trouble, caplog):
    """In the state row, where the admin and ``check --deploy`` read it, and in the log."""
    with primary.client() as admin:
        if trouble == "oom":
            admin.config_set("maxmemory", 1)
        else:
            site.suffer(trouble)
        site.create()
        admin.config_set("maxmemory", 0)

    why = {"refuse": "no connection to the server: ", "oom": "the server refuses commands: OOM"}[trouble]
    reason = f"a written row could not be added to its filter: {why}"
    assert state.table.row("product").reason.startswith(reason)
    outage, fence = warnings(caplog)
    assert why in outage
    assert fence.startswith(f"bloomguard: guard product passes every request until it is rebuilt: {reason}")


def test_an_outage_shows_neither_an_id_nor_a_password(site, settings, caplog):
    """The errors of a client may contain the address and the login."""
    with caplog.at_level("DEBUG", logger="bloomguard"):
        site.suffer("refuse")
        settings.BLOOMGUARD["STORES"]["default"]["OPTIONS"]["url"] = site.url_with_login("someone", "hunter2")
        forget()
        assert site.guard._runtime.decide(987_654_321).reason == "unreachable"
        Product.objects.create(pk=987_654_322)

    assert "Connection refused" in state.table.row("product").reason
    for text in (caplog.text, state.table.row("product").reason):
        assert "hunter2" not in text
        assert "98765432" not in text


def test_one_lost_reply_does_not_fence(site):
    """A check that timed out leaves adds alone: the next one is proved, and checks go on."""
    site.suffer("hole")
    assert site.absent is Verdict.UNKNOWN
    site.recover()

    site.create()

    assert state.table.current("product").status == ARMED
    assert site.absent is Verdict.ABSENT
    assert site.all_found()


def test_a_black_hole_is_waited_for_once_a_request_and_then_not_at_all(site, proxy):
    """With the server black-holed each of the first requests waits for one timeout; once the breaker is open nobody
    sends or connects. What that costs, and how long the timeouts are: ``make bench-redis`` and ``test_redis.py``."""
    assert site.get(7) == 200
    failures = stores["default"]._reads.server.breaker._failures
    before = reached(proxy)
    site.suffer("hole")
    for number in range(1, 6):
        assert site.get(7) == 200
        assert len(failures) == number
    # The first had a connection; each of the others made one, and hung up.
    assert reached(proxy) == before + 1 + 4

    for _ in range(200):
        assert site.get(7) == 200

    assert reached(proxy) == before + 1 + 4 + 1  # nobody but reached() itself
    with pytest.raises(StoreUnavailable, match="tried again"):
        stores["default"].names("product")


def test_over_maxmemory_everything_passes(site, primary):
    """A server that refuses commands for want of memory: checks pass, a failed add fences, a rebuild mends it."""
    with primary.client() as admin:
        admin.config_set("maxmemory", 1)
        assert site.absent is Verdict.UNKNOWN
        assert state_of(site.guard) == "unreachable"
        (message,) = stores["default"].check_deployed()
        assert (message.id, "refuses commands: OOM" in message.msg) == ("bloomguard.W021", True)
        assert site.all_found()
        site.create()
        assert site.all_found()
        admin.config_set("maxmemory", 0)
    site.clock.sleep(PROBE_SECONDS)

    assert site.absent is Verdict.UNKNOWN
    site.rebuild()
    assert site.absent is Verdict.ABSENT


def _follow(one, other):
    with one.client() as admin:
        admin.replicaof("127.0.0.1", other.port)
        until(lambda: admin.info("replication").get("master_link_status") == "up")


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
        until(lambda: admin.dbsize() > 1)
        admin.replicaof("NO", "ONE")  # from here on it gets nothing
    lost = [site.create() for _ in range(5)]
    assert state.table.current("product").status == ARMED
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
        until(lambda: admin.dbsize() > 1)
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
        until(lambda: admin.dbsize() > 1)
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
        until(lambda: admin.dbsize() > 1)
        admin.replicaof("NO", "ONE")
    assert site.absent is Verdict.ABSENT
    proxy._target = replica.port
    store = stores["default"]
    store._adds.close()  # new connections reach the other server; those of readers stay where they are

    pk = site.create()

    assert state.table.current("product").status == FENCED
    assert site.get(pk) == 200
    assert site.absent is Verdict.UNKNOWN
