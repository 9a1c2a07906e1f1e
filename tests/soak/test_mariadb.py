"""A MariaDB that is killed while rows are written and filters are built: no acknowledged row is denied."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import call_command
from django.db import Error, connections

from bloomguard.exceptions import BloomGuardError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from tests.conftest import forget
from tests.shop.models import Product
from tests.support import database
from tests.support.mariadb import MariaDB

KILLS, WRITERS, SHARE = 100, 3, 1 << 20
ABSENT = 1 << 40


@pytest.fixture
def server(fresh: None, transactional_db: None) -> Iterator[MariaDB]:
    """A MariaDB of this test's own, which keeps what it acknowledges."""
    with database.on("mariadb"):
        made, connection = MariaDB(), connections["mariadb"]
        before = connection.settings_dict
        connection.close()
        kept = dict(before)
        before.update(made.database("drill"))
        forget()
        call_command("migrate", database="mariadb", run_syncdb=True, verbosity=0)
        yield made
        connection.close()
        before.clear()
        before.update(kept)
        forget()
        made.stop()


class Crew:
    """Threads that write and build until they are told to end."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.acknowledged: list[list[int]] = [[] for _ in range(WRITERS)]
        self.built = self.failed = 0
        works: list[tuple[Any, ...]] = [(self.write, number) for number in range(WRITERS)]
        self.threads = [threading.Thread(target=work, args=rest) for work, *rest in [*works, (self.build,)]]

    def write(self, number: int) -> None:
        for pk in range(number * SHARE + 1, (number + 1) * SHARE):
            if self.ended.is_set():
                break
            try:
                Product.objects.create(pk=pk)
                self.acknowledged[number].append(pk)
            except (Error, BloomGuardError):
                self.failed += 1
                self.close()
        self.close()

    def build(self) -> None:
        while not self.ended.is_set():
            try:
                Rebuild(registry["product"], probes=1_000).run()
                self.built += 1
            except (Error, BloomGuardError):
                self.close()
        self.close()

    @staticmethod
    def close() -> None:
        with suppress(Error):
            connections["mariadb"].close()
        connections["mariadb"].connection = None

    def __enter__(self) -> Crew:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


def denied(crew: Crew) -> list[int]:
    guard = registry["product"]
    return [pk for some in crew.acknowledged for pk in list(some) if guard.verdict(pk) is Verdict.ABSENT]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_killed_server_loses_no_row(server):
    """Kills at any moment of writes and builds; the rows whose writes returned are never answered ABSENT."""
    lost, answered = [], 0
    with Crew() as crew:
        for _ in range(KILLS):
            built, deadline = crew.built, time.monotonic() + 120
            while crew.built < built + 1 and time.monotonic() < deadline:
                answered += registry["product"].verdict(ABSENT) is Verdict.ABSENT
                lost += denied(crew)
            server.kill()
            server.again()
            lost += denied(crew)
    lost += denied(crew)
    crew.close()
    there = set(Product.objects.values_list("pk", flat=True))
    rows = sum(map(len, crew.acknowledged))
    print(f"{KILLS} kills, {rows:,} rows, {crew.failed} writes refused, {crew.built} builds, {answered:,} times ABSENT")

    assert lost == []
    assert {pk for some in crew.acknowledged for pk in some} <= there
    assert answered > 0
    assert crew.built >= KILLS
    assert crew.failed > 0
