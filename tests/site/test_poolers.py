"""A site behind PgBouncer, or with psycopg's own pool: its guards answer, its filters lose no row, nothing leaks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction

from bloomguard import guarded_lookups
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild.verify import Verification
from bloomguard.state import table as states
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Place, Product
from tests.support import database, servers
from tests.support.guarding import registered
from tests.support.pgbouncer import MISSING, PgBouncer

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ABSENT, MAYBE, UNKNOWN = Verdict.ABSENT, Verdict.MAYBE, Verdict.UNKNOWN
with_pgbouncer = pytest.mark.skipif(bool(MISSING), reason=MISSING)
#: What Django and the driver set when they connect; PgBouncer keeps it apart for each client.
USUAL_SETTINGS = {"TimeZone", "application_name", "client_encoding", "DateStyle", "standard_conforming_strings"}


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch, fresh: None) -> Iterator[dict[str, Any]]:
    """The settings of the tests' PostgreSQL, before a test changes them; bloomguard's connection stays open."""
    connection = connections["postgresql"]
    monkeypatch.setattr(database, "current", "postgresql")
    let_go()
    before = dict(connection.settings_dict)
    yield before
    let_go()
    connection.settings_dict.clear()
    connection.settings_dict.update(before)


def let_go() -> None:
    """Everybody hangs up."""
    connections["postgresql"].close()
    states.table.forget()


@pytest.fixture(params=["session", "transaction"])
def pooler(request: pytest.FixtureRequest, origin: dict[str, Any]) -> Iterator[PgBouncer]:
    """PgBouncer, which the alias leads to."""
    made = PgBouncer(origin, request.param)
    connections["postgresql"].settings_dict.update(made.settings)
    yield made
    let_go()
    made.stop()


class Writer(threading.Thread):
    """Writes rows and deletes some, until it is told to stop; it changes none, as a late change fences a new filter."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        number = 10
        try:
            while not self.is_over.is_set():
                number += 10
                Product.objects.create(pk=number)
                with transaction.atomic(using="postgresql"):
                    Product.objects.bulk_create([Product(pk=number + 1), Product(pk=number + 2)])
                    Place.objects.create(country="a", slug=str(number))
                Product.objects.filter(pk=number + 1).delete()
        except Exception as error:
            self.failure = error
        finally:
            connections["postgresql"].close()


@with_pgbouncer
@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_a_rebuild_under_writes_loses_no_row(kind, pooler, clock):
    """The barrier, the scans and the state rows need no session of their own, and leave nothing in those of others.

    Not even ``DISABLE_SERVER_SIDE_CURSORS``, if the project's own queries do without it.
    """
    with (
        registered(Product, name="pooled", filter=kind) as guard,
        registered(Place, name="places", lookup=("country", "slug")) as places,
    ):
        writer = Writer()
        writer.start()
        try:
            for each in (guard, places):
                Rebuild(each, sleep=clock.sleep).run()
        finally:
            writer.is_over.set()
            writer.join()

        assert writer.failure is None
        assert {guard.verdict(pk) for pk in Product.objects.values_list("pk", flat=True)} == {MAYBE}
        assert {places.verdict(found) for found in Place.objects.values_list("country", "slug")} == {MAYBE}
        assert guard.verdict(7) is ABSENT
        assert Verification(guard).run().missing == 0
        let_go()
        for settings, rest in left_in_sessions(pooler.settings):
            assert set(settings) <= USUAL_SETTINGS
            assert rest == 0


def left_in_sessions(place: dict[str, Any]) -> list[tuple[list[str], int]]:
    """Of each session of a pool: its changed settings, and the number of its cursors, statements and locks."""
    query = """SELECT ARRAY(SELECT name FROM pg_settings WHERE source = 'session'),
        (SELECT count(*) FROM pg_prepared_statements) + (SELECT count(*) FROM pg_cursors) +
        (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')"""
    found = {}
    with ExitStack() as stack:
        for _ in range(10):  # more than there are: transactions at one time are in as many sessions
            connection = stack.enter_context(
                psycopg.connect(host=place["HOST"], port=place["PORT"], dbname=place["NAME"], user=place["USER"])
            )
            connection.prepare_threshold = None
            pid = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
            found[pid] = connection.execute(query).fetchone()
    assert len(found) == 10
    return list(found.values())


@with_pgbouncer
def test_a_pooler_that_leads_to_another_server_is_noticed(pooler, clock, django_db_blocker):
    """A replica takes over that lagged behind: a row whose delete was lost is there again, and is not denied."""
    primary = servers.PostgreSQL()
    pooler.lead_to(primary.settings)
    let_go()
    call_command("migrate", database="postgresql", run_syncdb=True, verbosity=0)
    Product.objects.create(pk=1)
    with registered(Product, name="pooled", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        primary.replicate()
        let_go()
        Product.objects.filter(pk=1).delete()
        assert guard.verdict(1) is ABSENT
        connections["postgresql"].close()
        states.table.connection.close()  # a session ends before the next one leads elsewhere

        pooler.lead_to(primary.run_replica(is_promoted=True))
        clock.sleep(1)

        assert guard.verdict(1) is UNKNOWN
        assert Product.objects.filter(pk=1).exists()
        Rebuild(guard, sleep=clock.sleep).run()
        assert [guard.verdict(pk) for pk in (1, 2)] == [MAYBE, ABSENT]


def test_a_pool_of_one_connection_is_enough(origin, clock):
    """bloomguard's own connections are not the pool's, and it takes none of these beside the one that the site has."""
    pytest.importorskip("psycopg_pool")
    connection: Any = connections["postgresql"]
    if connection.Database.__name__ != "psycopg":
        pytest.skip("Django has a pool with psycopg 3 alone")
    connection.settings_dict["OPTIONS"] = {"pool": {"min_size": 1, "max_size": 1, "timeout": 60}}
    try:
        with registered(Product, name="pooled", filter="cuckoo") as guard:
            Product.objects.bulk_create(Product(pk=pk) for pk in (1, 2))
            Rebuild(guard, sleep=clock.sleep).run()
            assert Verification(guard).run().missing == 0
            with transaction.atomic(using="postgresql"):
                Product.objects.create(pk=3)
                Product.objects.filter(pk=1).delete()
            Product.objects.filter(pk=2).update(id=4)
            with guarded_lookups():
                found = [pk for pk in range(10) if Product.objects.filter(pk=pk).exists()]
            assert found == [3, 4]
            with connection.cursor() as cursor:  # raw SQL fences
                cursor.execute("INSERT INTO shop_product (id, name) VALUES (9, '')")
            assert guard.verdict(9) is UNKNOWN
            assert connection.pool.get_stats()["pool_max"] == 1
            assert list(connection._connection_pools) == ["postgresql"]  # no second one that nobody would close
    finally:
        let_go()
        connection.close_pool()
