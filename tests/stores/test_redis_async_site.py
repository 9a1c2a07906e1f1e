"""A guarded site under ASGI whose filters lie on a server: awaited on the loop, and as sure as with threads."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient

from bloomguard.guards import registry, spot_checks
from bloomguard.lookups.misses import confirm_missing
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.verdicts import (
    ABSENT,
    CAUGHT,
    COLD,
    FENCED,
    MAYBE,
    OUT_OF_RANGE,
    REMEMBERED,
    UNREACHABLE,
    UNTRUSTED,
)
from bloomguard.stores import stores
from tests.conftest import forget
from tests.door.site import Asgi
from tests.management.test_verify_filter import insert_unseen
from tests.shop.models import Product
from tests.support import servers

pytestmark = pytest.mark.django_db(transaction=True)
ROWS = range(1, 21)


@pytest.fixture
def site(request, proxy, settings, clock, redis_clock):
    """A site with 20 products, whose guard lives on the server behind the proxy; a parameter is its patience."""
    seconds = getattr(request, "param", 60)
    patient = {"connect_timeout": seconds, "read_timeout": seconds, "add_timeout": 60}
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {
                "BACKEND": "bloomguard.stores.redis.RedisStore",
                "OPTIONS": {"url": proxy.url, **patient},
            }
        }
    }
    forget()
    Product.objects.bulk_create(Product(pk=pk) for pk in ROWS)
    made = Site(clock)
    made.rebuild()
    yield made
    stores["default"].close()
    forget()


class Site:
    def __init__(self, clock):
        self.clock = clock
        self.guard = registry["product"]
        self.in_threads: list[int] = []

    def rebuild(self):
        Rebuild(self.guard, sleep=self.clock.sleep).run()
        self.guard._runtime.decide(1)  # so that the generation is open, and the lease valid

    def watch(self, monkeypatch):
        """Note from now on which threads ask the store."""
        store = stores["default"]
        read = store.read
        monkeypatch.setattr(store, "read", lambda *args: self.in_threads.append(threading.get_ident()) or read(*args))

    def __call__(self, *values):
        """What the guard decides of each, in one loop."""

        async def ask():
            return [await self.guard._runtime.adecide(value) for value in values]

        return asyncio.run(ask())


def test_a_decision_is_awaited(site, monkeypatch):
    """While the lease is valid no thread asks anything: present, absent, out of range."""
    site.watch(monkeypatch)

    assert site(7, 999, "8", 10**30, *ROWS) == [MAYBE, ABSENT, MAYBE, OUT_OF_RANGE, *[MAYBE] * 20]
    assert not site.in_threads


@pytest.mark.parametrize("values", [[], [7, 999, "8", 10**30, *ROWS], list(range(-500, 500))])
def test_a_batch_does_not_hold_up_the_loop(site, monkeypatch, values):
    """It is put together and asked for in a thread, with the same answers."""
    site.watch(monkeypatch)

    async def ask():
        decided = await site.guard._runtime.adecide_many(values)
        return decided, await site.guard.afilter_existing(values), threading.get_ident()

    decided, existing, loop = asyncio.run(ask())

    assert loop not in site.in_threads
    assert decided == site.guard._runtime.decide_many(values)
    assert existing == site.guard.filter_existing(values)
    assert {value for value in values if value in ROWS} <= set(existing)


@pytest.mark.parametrize("door", ["middleware", "shield", "decorator"])
def test_requests_are_answered_without_a_thread_for_the_store(site, settings, monkeypatch, door):
    """Absent IDs get 404 and present ones their page, and each asks the server once."""
    if door == "middleware":
        answer = lambda pk: async_to_sync(AsyncClient().get)(f"/products-async/{pk}/").status_code  # noqa: E731
    elif door == "shield":
        settings.MIDDLEWARE = []
        shielded = Asgi()
        answer = lambda pk: shielded(f"/products-async/{pk}/").status  # noqa: E731
    else:
        settings.MIDDLEWARE = []
        answer = lambda pk: async_to_sync(AsyncClient().get)(f"/decorated-async/{pk}/").status_code  # noqa: E731
    store = stores["default"]
    site.watch(monkeypatch)
    aread, asked = store.aread, []
    monkeypatch.setattr(store, "aread", lambda *args: asked.append(args) or aread(*args))

    assert [answer(pk) for pk in (7, 999, 8, 1_000)] == [200, 404, 200, 404]
    assert len(asked) == 4
    assert not site.in_threads


def test_state_rows_are_read_in_a_thread_and_the_filter_too(site, monkeypatch):
    """Without a lease, or a generation that is open, a thread asks; the next one is awaited again."""
    site.watch(monkeypatch)
    asked_by = set()
    execute = state.table.connection.execute
    monkeypatch.setattr(
        state.table.connection, "execute", lambda *args: asked_by.add(threading.get_ident()) or execute(*args)
    )

    async def ask():
        site.clock.sleep(5)
        first = await site.guard._runtime.adecide(999), await site.guard._runtime.adecide(999)
        site.clock.sleep(5)
        many = await site.guard._runtime.adecide_many([7, 999])
        site.guard._runtime.active_filter.forget()
        second = await site.guard._runtime.adecide(999), await site.guard._runtime.adecide_many([7, 999])
        return first, many, second, threading.get_ident()

    first, many, second, loop = asyncio.run(ask())

    assert first == (ABSENT, ABSENT)
    assert many == [MAYBE, ABSENT]
    assert second == (ABSENT, [MAYBE, ABSENT])
    assert asked_by
    assert loop not in {*asked_by, *site.in_threads}


def test_a_row_that_is_saved_passes_at_once(site):
    """An add that is acknowledged is seen by the next to ask on a loop."""
    assert site(21) == [ABSENT]
    Product.objects.create(pk=21)

    assert site(21) == [MAYBE]


def test_a_rebuilt_filter_is_taken_up(site):
    """A new generation answers as soon as the row names it, and the old one no more."""
    assert site(999) == [ABSENT]
    site.rebuild()
    site.clock.sleep(5)

    assert site(7, 999, 7, 999) == [MAYBE, ABSENT] * 2


def test_what_is_out_of_use_passes_without_a_thread(site, monkeypatch, proxy, valkey):
    """Fenced, corrupt, unreachable: each is told as itself, and nobody asks in a thread until the lease is over."""
    site.watch(monkeypatch)
    proxy.refuse()
    assert site(7, 999) == [UNREACHABLE, UNREACHABLE]
    proxy.mend()
    assert site(999) == [ABSENT]
    with valkey.client() as admin:
        admin.flushall()
    assert site(7, 999) == [UNTRUSTED, UNTRUSTED]
    state.table.fence("product", "a test says so")
    site.clock.sleep(5)
    state.table.renew()
    assert site(7, 999) == [FENCED, FENCED]
    assert not site.in_threads


def test_a_cold_guard_passes(site, monkeypatch):
    """A guard that was never built: one thread looks for a filter, and the others take its word for a while."""
    guard = registry["order"]
    assert guard._runtime.decide("0" * 32) is COLD
    site.watch(monkeypatch)

    async def ask():
        return [await guard._runtime.adecide("0" * 32) for _ in range(3)]

    assert asyncio.run(ask()) == [COLD] * 3
    site.clock.sleep(5)
    assert asyncio.run(ask()) == [COLD] * 3


def test_a_lease_that_ends_while_a_task_waits_is_renewed(site, monkeypatch):
    """An answer that the loop comes to read late counts only under a lease that is valid then."""
    store = stores["default"]
    aread = store.aread

    async def late(*args):
        replies = await aread(*args)
        await GuardState.objects.aupdate(status=GuardState.Status.FENCED, version=1_000)
        site.clock.sleep(5)
        return replies

    monkeypatch.setattr(store, "aread", late)

    assert site.guard._runtime.decide(999) is ABSENT
    assert async_to_sync(site.guard._runtime.adecide)(999) is FENCED


def test_what_is_remembered_is_told_on_a_loop(site, monkeypatch):
    """A false positive that was found is absent, but for one that was saved since."""
    key = site.guard._meta.keys.key
    live = site.guard._runtime.active_filter
    positive, other = 7, 8
    Product.objects.filter(pk__in=(positive, other)).delete()  # a Bloom filter keeps what was deleted
    confirm_missing(site.guard, positive)
    confirm_missing(site.guard, other)
    assert [live.ask(key(pk)) for pk in (positive, other)] == [REMEMBERED] * 2
    site.watch(monkeypatch)

    assert site(positive, other, 9, 999) == [REMEMBERED, REMEMBERED, MAYBE, ABSENT]
    assert asyncio.run(site.guard._runtime.adecide_many([positive, 9, 999])) == [REMEMBERED, MAYBE, ABSENT]
    Product.objects.create(pk=positive)
    assert site(positive, other) == [MAYBE, REMEMBERED]
    assert asyncio.run(site.guard._runtime.adecide_many([positive, other])) == [MAYBE, REMEMBERED]
    site.clock.sleep(5)
    assert site(other) == [REMEMBERED]


def test_a_spot_check_asks_the_database_in_a_thread(site, monkeypatch):
    """An absence that is held against the database, and proves wrong, passes and fences the guard."""
    monkeypatch.setattr(spot_checks, "drawn", lambda: True)
    site.clock.sleep(5)
    assert site(999) == [ABSENT]
    insert_unseen("shop_product", id=999, name="x")
    site.clock.sleep(5)
    site.guard._runtime.decide(1)

    assert site(999) == [CAUGHT]
    assert state.table.current("product").status == GuardState.Status.FENCED


def test_a_shadow_keeps_absences_to_itself_on_a_loop(site, monkeypatch):
    """In shadow mode an awaited absence passes as well."""
    monkeypatch.setattr(type(site.guard), "mode", "shadow")

    [decision] = site(999)

    assert decision.reason == "shadow"


def test_a_late_reply_is_proved_once_more_on_a_loop(site, monkeypatch):
    """Whatever kept the loop from reading it: the server may have been demoted and promoted meanwhile."""
    reads, expected = stores["default"]._async_reads, []
    send_and_read = reads._send_and_read

    async def late(connection, round_trip):
        expected.append(round_trip.expected)
        found = await send_and_read(connection, round_trip)
        site.clock.now += 0.1
        return found

    monkeypatch.setattr(reads, "_send_and_read", late)

    assert site(999, 998) == [ABSENT, ABSENT]
    assert expected == [1, 1, 2]  # a check, the proof of it, and a check with its proof


def test_a_black_hole_holds_up_nobody_but_who_asks(site, proxy, monkeypatch):
    """While tasks wait for a server that answers nothing, the loop goes on."""
    turns = 0

    async def ask():
        nonlocal turns
        assert await site.guard._runtime.adecide(999) is ABSENT
        proxy.mode = "hole"
        monkeypatch.setattr(stores["default"]._async_reads, "_timeout", 0.3)
        tasks = [asyncio.create_task(site.guard._runtime.adecide(pk)) for pk in range(5)]
        while not any(task.done() for task in tasks):
            turns += 1
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    assert asyncio.run(ask()) == [UNREACHABLE] * 5
    assert turns > 20  # a task that held up the loop would be done at its first turn


FAULTS = ["refuse", "reset", "hole", "slow", "cut", "flush"]


@pytest.mark.slow
@pytest.mark.parametrize("site", [0.1], indirect=True, ids=["100 ms"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_under_asgi_is_a_404_or_an_error(site, proxy, valkey, fault):
    """Fifty times in the middle of requests for rows that exist: each gets its page, and later absent IDs get 404."""
    client = AsyncClient()

    async def drill():
        visits = [asyncio.create_task(client.get(f"/products-async/{pk}/")) for pk in (*ROWS, *ROWS)]
        await asyncio.sleep(0.005)
        if fault == "flush":
            with valkey.client() as admin:
                admin.flushall()
        elif fault in ("hole", "slow"):
            proxy.mode = fault
        else:
            getattr(proxy, fault)()
        visits += [asyncio.create_task(client.get(f"/products-async/{pk}/")) for pk in ROWS]
        return [visit.status_code for visit in await asyncio.gather(*visits)]

    for _ in range(50):
        assert async_to_sync(drill)() == [200] * 60
        proxy.mend()
        site.clock.sleep(20)  # the breaker lets somebody try
        if fault == "flush":
            site.rebuild()
        servers.until(lambda: site.clock.sleep(2) or site(999) == [ABSENT])
