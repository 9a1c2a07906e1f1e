"""Servers that load the site once and fork their workers: uWSGI does so without Python's fork hooks."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor

import pytest

from bloomguard.guards import registry
from bloomguard.state import table as state
from bloomguard.state.row import ARMED
from bloomguard.state.verdicts import Verdict
from tests.conftest import forget
from tests.door.test_servers import ask, running
from tests.shop.models import Product

SERVERS = {
    "gunicorn": "gunicorn -w 4 --preload -b 127.0.0.1:{port} tests.support.prefork_site:application",
    "uwsgi": "tests.support.uwsgi --http-socket 127.0.0.1:{port} --master -p 4 -w tests.support.prefork_site",
}


@pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("command", SERVERS.values(), ids=SERVERS)
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_workers_that_inherit_all_of_it_lose_no_key(each_database, build, start, command):
    """They lock the file, and read the state rows, each by a descriptor and a connection of its own."""
    build("product")

    def create(first):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            status, pid, _ = ask(connection, f"/{first}/", "POST")
            assert status == 200
            return pid
        finally:
            connection.close()

    with running(start, command) as port, ThreadPoolExecutor(8) as pool:
        workers = set(pool.map(create, range(20, 8_020, 20)))

    forget()
    assert len(workers) > 1
    assert state.table.current("product").status == ARMED
    assert Product.objects.count() == 8_001
    assert {registry["product"].verdict(number) for number in range(20, 8_020)} == {Verdict.MAYBE}
