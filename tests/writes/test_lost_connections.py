"""A connection that was lost between two requests: with ``CONN_HEALTH_CHECKS`` Django opens another one."""

from __future__ import annotations

import pytest
from django.db import connections, transaction

from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import consequences
from tests.shop.models import Short
from tests.support import database
from tests.support.guarding import registered

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("each_database", "fresh"),
    pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True),
]

KILLS = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%s, 60000)"),
    "mariadb": ("SELECT CONNECTION_ID()", "KILL %s"),
}


@pytest.fixture
def lost(clock, monkeypatch):
    """``lost()`` ends the session of the test's connection, and begins another request."""
    connection = connections[database.current]

    def lose():
        which, kill = KILLS[database.current]
        with connection.cursor() as cursor:
            cursor.execute(which)
            (number,) = cursor.fetchone()
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute(kill, [number])
        other.close()
        monkeypatch.setattr(connection, "health_check_enabled", True)
        monkeypatch.setattr(connection, "health_check_done", False)

    yield lose
    connection.close()


def in_transaction():
    with transaction.atomic(using=database.current):
        Short.objects.create(slug="new  ")


WRITES = {
    "create": lambda: Short.objects.create(slug="new"),
    "create a text that the column may cut": lambda: Short.objects.create(slug="new  "),
    "create in a transaction": in_transaction,
    "bulk_create": lambda: Short.objects.bulk_create([Short(slug="new"), Short(slug="other")]),
    "update": lambda: Short.objects.filter(slug="old").update(slug="new"),
    "delete": lambda: Short.objects.filter(slug="old").delete(),
}


@pytest.mark.parametrize("filter", ["bloom", "cuckoo"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known catalogue", "unknown catalogue"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_first_write_of_a_request_works(write, is_known, filter, clock, lost):
    """What bloomguard asks before it goes by the new connection too, and disables no guard."""
    with registered(Short, name="short", lookup="slug", filter=filter) as guard:
        Short.objects.create(slug="old")
        Rebuild(guard, sleep=clock.sleep).run()
        Short.objects.create(slug="known")
        lost()
        if not is_known:
            consequences.definitions.changed(connections[database.current])

        write()

        assert state.table.current("short").status == ARMED
        stored = list(Short.objects.values_list("slug", flat=True))
        assert [guard.verdict(slug) for slug in stored] == [Verdict.MAYBE] * len(stored)
