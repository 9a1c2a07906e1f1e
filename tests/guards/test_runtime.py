"""What a guard's runtime does on an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from django.db.backends.base.base import BaseDatabaseWrapper

from bloomguard import registry
from bloomguard.state.connection import StateConnection
from bloomguard.verdicts import Verdict
from tests.shop.models import Product


def test_one_thread_reads_the_state_rows_for_all_requests_of_an_event_loop(build, clock, monkeypatch):
    """While the database hangs, the project's own calls find a thread, however many absent IDs are asked for."""
    Product.objects.create(pk=7)
    build("product")
    guard = registry["product"]
    assert guard.verdict(8) is Verdict.ABSENT
    clock.sleep(5)  # no lease lasts so long
    execute, hangs, answers, reads = StateConnection.execute, threading.Event(), threading.Event(), []

    def late(self, *args):
        reads.append(args)
        hangs.set()
        assert answers.wait(60)
        return execute(self, *args)

    monkeypatch.setattr(StateConnection, "execute", late)
    monkeypatch.setattr("bloomguard.guards.places.needs_orm_thread", lambda: False)  # as of a site without routers

    async def flood():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        verdicts = [asyncio.create_task(guard.averdict(number)) for number in range(8, 68)]
        while not hangs.is_set():
            await asyncio.sleep(0)
        calls = asyncio.create_task(asyncio.to_thread(answers.set))
        await asyncio.wait({calls, *verdicts}, return_when=asyncio.FIRST_COMPLETED)
        assert calls.done()
        return await asyncio.gather(*verdicts)

    assert set(asyncio.run(flood())) == {Verdict.ABSENT}
    assert len(reads) == 1


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
