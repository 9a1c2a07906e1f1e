"""A site of several processes under load while its servers fail: no acknowledged row is 404, nobody sees an error.

Each drill keeps two writers and two readers busy, each in a process with a way to the server of its own, and does the
same harm over and over; between two rounds the filter is rebuilt. The oracle is the list of acknowledged commits.
"""

from __future__ import annotations

import json
from functools import partial

import pytest

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from bloomguard.stores.redis import RedisStore
from tests.conftest import forget
from tests.shop.models import Product
from tests.support import database
from tests.support.proxy import Proxy
from tests.support.servers import Cluster, Valkey
from tests.support.servers import until as wait

from .crew import Log, answers, hurry

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

SPEED = 4.0
ROUNDS = 50
ABSENT = 10**12


class Site:
    """Four processes at work, and this one, which rebuilds. ``options()`` are those of one more process's store."""

    def __init__(self, start, settings, folder, options):
        self.folder = folder
        self.log = Log(folder)
        self._settings = settings
        self._use(options())
        Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 2_001))
        self.log.note(*range(1, 2_001))
        self.rebuild()
        own = settings.BLOOMGUARD
        self._crew = []
        self._answers = [answers(folder, number) for number in (1, 3)]
        for each in self._answers:
            each.touch()
        for number, what in enumerate(("write", "read", "write", "read")):
            self._use(options())
            code = "from tests.stores.crew import main; main()"
            self._crew.append(start(what, str(folder), str(number), code=code, BLOOMGUARD_SPEED=str(SPEED)))
        settings.BLOOMGUARD = own
        forget()
        for each in self._crew:
            assert each.stdout.readline() == "ready\n"

    def _use(self, options):
        self._settings.BLOOMGUARD = {
            "STORES": {"default": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": options}}
        }

    def wait_for_writes(self, count=6):
        """Until that many more commits were acknowledged."""
        wanted = len(self.log.follow()) + count
        wait(lambda: len(self.log.follow()) >= wanted)

    def work(self):
        """Write and read until the guard has answered each reader; a slow machine may have fenced the filter."""
        before = [each.stat().st_size for each in self._answers]
        for _ in range(60):
            self.wait_for_writes(100)
            if all(each.stat().st_size > size for each, size in zip(self._answers, before, strict=True)):
                return
            if registry["product"].verdict(ABSENT) is not Verdict.ABSENT:
                self.rebuild()
        raise AssertionError("the guard does not answer the readers")

    def rebuild(self):
        """As cron does it: again and again, until it is published and answers."""
        for _ in range(60):
            try:
                Rebuild(registry["product"], sleep=state.table.sleep).run()
            except RebuildError:
                state.table.sleep(1)  # a writer met a server that is gone, or the breaker is still open
                continue
            for _ in range(20):
                if registry["product"].verdict(ABSENT) is Verdict.ABSENT:
                    return
                state.table.sleep(0.2)
        raise AssertionError("the filter cannot be rebuilt")

    def finish(self):
        (self.folder / "stop").touch()
        for each in self._crew:
            out, err = each.communicate(timeout=120)
            assert each.returncode == 0, err
            yield json.loads(out.splitlines()[-1])

    def catch_up(self):
        """Nothing is left to be done from the last round."""

    def close(self):
        stores["default"].close()


class Pair(Site):
    """On a primary with its replica; each process has a way to them of its own, ``proxies``, the first this one's."""

    def __init__(self, start, settings, folder):
        self.primary, self.replica = Valkey(), Valkey()
        self.follow()
        self.proxies = []
        super().__init__(start, settings, folder, self._way)

    def _way(self):
        self.proxies.append(Proxy(self.primary.port))
        return {"url": self.proxies[-1].url}

    def follow(self):
        """Make the replica one, wait until it has everything."""
        with self.replica.client() as admin:
            admin.replicaof("127.0.0.1", self.primary.port)
            wait(lambda: admin.info("replication").get("master_link_status") == "up")

    def catch_up(self):
        with self.primary.client() as primary, self.replica.client() as replica:
            wait(lambda: primary.info("replication")["master_repl_offset"] <= offset(replica))

    def part(self):
        """The replica gets no more, and is a primary; rows are saved whose adds it never had."""
        with self.replica.client() as admin:
            admin.replicaof("NO", "ONE")
        self.wait_for_writes()

    def lead(self, *proxies):
        """Send whoever goes through ``proxies`` to the former replica."""
        for proxy in proxies or self.proxies:
            proxy._target = self.replica.port
            proxy.cut()

    def swap_roles(self):
        """The former replica is the primary for everybody, the former primary its replica."""
        self.lead()
        self.primary, self.replica = self.replica, self.primary
        self.follow()

    def close(self):
        super().close()
        for proxy in self.proxies:
            proxy.close()
        self.primary.stop()
        self.replica.stop()


class Nodes(Site):
    """On a Cluster of three nodes."""

    def __init__(self, start, settings, folder):
        self.cluster = Cluster(3)
        super().__init__(start, settings, folder, lambda: {"url": self.cluster.urls, "cluster": True})

    def close(self):
        super().close()
        self.cluster.stop()


def offset(client):
    return client.info("replication").get("slave_repl_offset", -1)


# -- harm


def kill_and_promote(site):
    """kill -9 of the primary; its replica lacks acknowledged adds, and is promoted."""
    site.part()
    site.primary.kill()
    site.lead()
    site.wait_for_writes()
    site.primary.again()
    site.swap_roles()


def split(site):
    """The replica is promoted while the old primary lives: half of the readers and writers are on either."""
    site.part()
    site.lead(*site.proxies[1:3])
    site.wait_for_writes(12)
    site.swap_roles()


def split_of_writers(site):
    """All writers reach the new primary, all readers still the old one."""
    site.part()
    site.lead(site.proxies[1], site.proxies[3])
    site.wait_for_writes(12)
    site.swap_roles()


def demote_and_promote(site):
    """The primary takes over the data of a server that lacks acknowledged adds, and is the primary again at once."""
    site.part()
    with site.primary.client() as admin:
        admin.replicaof("127.0.0.1", site.replica.port)
        wait(lambda: admin.info("replication").get("master_link_status") == "up")
        admin.replicaof("NO", "ONE")
    site.wait_for_writes()
    site.follow()


def forget_scripts(site):
    """The server forgets the scripts that change cuckoo filters, which is no harm at all."""
    with site.primary.client() as admin:
        admin.script_flush()
    site.wait_for_writes()


def flush(site):
    with site.primary.client() as admin:
        admin.flushall()
    site.wait_for_writes()


def delete_a_shard(site):
    with site.primary.client() as admin:
        shards = sorted(admin.keys("bloomguard:product:*"))
        assert len(shards) > 2
        admin.delete(shards[len(shards) // 2])
    site.wait_for_writes()


def trouble(site, mode):
    """Nobody gets an answer, or one after 200 ms; then one of the writers alone."""
    for some in (site.proxies[1:], site.proxies[1:2]):
        for proxy in some:
            getattr(proxy, mode, lambda proxy=proxy: setattr(proxy, "mode", mode))()
        site.wait_for_writes()
        for proxy in some:
            proxy.mend()
            proxy.cut()
        site.wait_for_writes()


def migrate_a_slot(site, *, back):
    """The slot of a shard goes to another node, in the middle of checks and adds; it may come back at once."""
    name = state.table.current("product").active
    key = stores["default"].key("product", name, 1)
    source = site.cluster.holder(key)
    others = [node for node in site.cluster.nodes if node is not source]
    for target in (others[0], source) if back else others[:1]:
        for _ in site.cluster.migrate(key, target):
            site.wait_for_writes()


HARM = {
    "kill and promote": kill_and_promote,
    "split brain": split,
    "split of writers and readers": split_of_writers,
    "demote and promote": demote_and_promote,
    "FLUSHALL": flush,
    "a shard deleted": delete_a_shard,
    "refused": partial(trouble, mode="refuse"),
    "reset": partial(trouble, mode="reset"),
    "black-holed": partial(trouble, mode="hole"),
    "200 ms slow": partial(trouble, mode="slow"),
}


@pytest.fixture
def make_site(start, settings, tmp_path, monkeypatch):
    """``make_site(Pair)``: a site that is up and working."""
    monkeypatch.setattr(database, "current", "postgresql")
    monkeypatch.setattr(state.table, "clock", None)
    monkeypatch.setattr(state.table, "sleep", None)
    hurry(state.table, SPEED)
    monkeypatch.setattr(RedisStore, "shard_bytes", 1 << 10)
    monkeypatch.setattr("bloomguard.stores.redis.store._CLUSTER_SHARD_BYTES", 1 << 10)
    monkeypatch.setattr(registry["product"], "filter", "bloom")
    forget()
    made = []

    def make(kind):
        made.append(kind(start, settings, tmp_path))
        return made[0]

    yield make
    for site in made:
        site.close()
    forget()


def storm(site, harms):
    for harm in harms:
        site.work()
        site.catch_up()
        harm(site)
        site.rebuild()
    site.work()
    first, second, third, fourth = site.finish()
    writers, readers = (first, third), (second, fourth)

    print(f"\n{len(harms)} rounds:", *(str(each) for each in (*writers, *readers)), sep="\n")
    assert [each["errors"] for each in (*writers, *readers)] == [[]] * 4
    for each in readers:
        assert each["absent"] >= len(harms)  # the guard did answer, round after round
        assert each["found"] >= 10 * len(harms)


def test_a_site_weathers_a_storm(make_site):
    """A killed, then a split server: no acknowledged row is 404, and no request fails."""
    storm(make_site(Pair), [HARM["kill and promote"], HARM["split brain"]])


def test_a_site_weathers_a_move_of_slots(make_site):
    """A shard moves in the middle of checks and adds, and comes back: the same."""
    storm(make_site(Nodes), [partial(migrate_a_slot, back=True)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("harm", HARM)
def test_a_site_weathers_it_fifty_times(make_site, harm):
    """Fifty times the same harm under load: 0 false 404s, 0 errors."""
    storm(make_site(Pair), [HARM[harm]] * ROUNDS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_site_with_cuckoo_filters_weathers_it(make_site, monkeypatch):
    """The same with a filter that scripts change."""
    monkeypatch.setattr(registry["product"], "filter", "cuckoo")
    storm(make_site(Pair), [kill_and_promote, forget_scripts] * (ROUNDS // 2))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("back", [False, True])
def test_a_site_weathers_fifty_moves(make_site, back):
    """Fifty moves of a slot, to stay or to come back at once."""
    storm(make_site(Nodes), [partial(migrate_a_slot, back=back)] * ROUNDS)
