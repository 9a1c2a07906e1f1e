"""What a guard's runtime does on an event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper

from bloomguard import registry
from bloomguard.state.connection import StateConnection
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product


@pytest.fixture
def late(build, clock, monkeypatch):
    """A product 7, a lease that has expired, and a database that does not answer before ``late.answers`` is set."""
    Product.objects.create(pk=7)
    build("product")
    assert registry["product"].verdict(8) is Verdict.ABSENT
    clock.sleep(5)  # no lease lasts so long
    execute, made = StateConnection.execute, SimpleNamespace(hangs=Event(), answers=Event(), reads=[])

    def read(self, *args):
        made.reads.append(args)
        made.hangs.set()
        assert made.answers.wait(60)
        return execute(self, *args)

    monkeypatch.setattr(StateConnection, "execute", read)
    monkeypatch.setattr("bloomguard.guards.places.needs_orm_thread", lambda: False)  # as of a site without routers
    return made


def test_one_thread_reads_the_state_rows_for_all_requests_of_an_event_loop(late):
    """While the database hangs, the project's own calls find a thread, however many absent IDs are asked for."""

    async def flood():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        verdicts = [asyncio.create_task(registry["product"].averdict(number)) for number in range(8, 68)]
        while not late.hangs.is_set():
            await asyncio.sleep(0)
        calls = asyncio.create_task(asyncio.to_thread(late.answers.set))
        await asyncio.wait({calls, *verdicts}, return_when=asyncio.FIRST_COMPLETED)
        assert calls.done()
        return await asyncio.gather(*verdicts)

    assert set(asyncio.run(flood())) == {Verdict.ABSENT}
    assert len(late.reads) == 1


def test_a_request_that_did_not_begin_the_read_passes_soon(late, monkeypatch):
    """As on threads, only one request waits for the database as long as a read may take."""
    monkeypatch.setattr("bloomguard.state.table.RENEWAL_PATIENCE", 0.01)

    async def flood():
        first, *others = [asyncio.create_task(registry["product"].averdict(number)) for number in range(8, 18)]
        passed = await asyncio.gather(*others)
        assert not first.done()
        late.answers.set()
        return await first, set(passed)

    assert asyncio.run(flood()) == (Verdict.ABSENT, {Verdict.UNKNOWN})


def test_an_absent_id_costs_an_event_loop_no_connection_object(build, monkeypatch):
    """Django makes another one for each task; the guard needs none for what it knows."""
    Product.objects.create(pk=7)
    build("product")
    guard, made, make = registry["product"], [], BaseDatabaseWrapper.__init__
    assert guard.verdict(8) is Verdict.ABSENT
    monkeypatch.setattr(BaseDatabaseWrapper, "__init__", lambda *args: (made.append(args), make(*args))[1])
    for module in ("places", "runtime"):
        monkeypatch.setattr(f"bloomguard.guards.{module}.needs_orm_thread", lambda: False)

    async def ask():
        return {await asyncio.create_task(guard.averdict(number)) for number in (8, 9)}

    assert asyncio.run(ask()) == {Verdict.ABSENT}
    assert made == []
