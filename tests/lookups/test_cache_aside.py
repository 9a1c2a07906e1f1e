"""``get_or_load``: one load for all who wait, and nobody waits for one that fails or hangs."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.db import connections, transaction

from bloomguard.guards import meta, registry
from bloomguard.guards.meta import GuardMeta
from bloomguard.lookups import cache_aside
from bloomguard.lookups.cache_aside import _key, aget_or_load, cache_key, get_or_load
from bloomguard.process import log_once
from tests.shop.models import Article, Product
from tests.support.guarding import make_guard, registered
from tests.support.servers import valkey

CROWD = 200


class BrokenCache(LocMemCache):
    """Every operation fails, as of a server that is gone."""

    def get(self, *args, **kwargs):
        raise ConnectionError("gone")

    add = set = delete = get


class SynchronousCache:
    """One of a project that doesn't derive from Django's, and has no method to be awaited."""

    def __init__(self, *args):
        pass

    def close(self):
        pass


@pytest.fixture
def shop(build, settings):
    """Product 7 exists; 8 does not. Caches are new."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "none": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
        "broken": {"BACKEND": "tests.lookups.test_cache_aside.BrokenCache"},
        "synchronous": {"BACKEND": "tests.lookups.test_cache_aside.SynchronousCache"},
    }
    Product.objects.create(pk=7)
    build("product")
    caches["default"].clear()
    yield registry["product"]
    caches["default"].clear()


class Loader:
    """Notes its calls, and how many were under way at once; ``script`` says what each does, the last one for good."""

    def __init__(self, *script):
        self.script = script
        self.calls = self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, value):
        with self._lock:
            step = self.script[min(self.calls, len(self.script) - 1)]
            self.calls += 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return step(value) if callable(step) else step
        finally:
            with self._lock:
                self.running -= 1

    async def later(self, value):
        """The same, as a coroutine that lets others run."""
        result = self(value)
        await asyncio.sleep(0.01)
        return await result if asyncio.iscoroutine(result) else result


def fail(value):
    raise RuntimeError("oops")


def waited(monkeypatch, wait):
    """Let threads wait for another's load by ``wait``."""
    monkeypatch.setattr(cache_aside, "futures", SimpleNamespace(Future=futures.Future, wait=wait))


def load_elsewhere(*args, **kwargs):
    """Load in a thread that leaves no connection to the database behind."""
    try:
        return get_or_load("product", *args, **kwargs)
    finally:
        connections.close_all()


def crowd(call, size=CROWD):
    """What ``size`` threads get that call at one moment: results and exceptions."""
    barrier = threading.Barrier(size)

    def one(_):
        barrier.wait()
        try:
            return call()
        except RuntimeError as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def acrowd(call, size=CROWD):
    """What ``size`` tasks get."""

    async def all_of_them():
        return await asyncio.gather(*(call() for _ in range(size)), return_exceptions=True)

    return asyncio.run(all_of_them())


# -- one load


@pytest.mark.parametrize("cache", ["default", "none"])
def test_threads_share_one_load(shop, cache, monkeypatch):
    """Two hundred who want one cold key cause one load, even where nothing is cached."""
    waiting, wait = threading.Semaphore(0), futures.wait
    waited(monkeypatch, lambda *args: waiting.release() or wait(*args))

    def load(value):
        """Takes until all the others wait for it."""
        assert all(waiting.acquire(timeout=60) for _ in range(CROWD - 1))
        return {"name": "tea"}

    loader = Loader(load)

    assert crowd(lambda: get_or_load("product", 7, loader, cache=cache, patience=60)) == [{"name": "tea"}] * CROWD
    assert loader.calls == 1


@pytest.mark.parametrize("cache", ["default", "none"])
def test_tasks_share_one_load(shop, cache):
    """The same on an event loop."""
    loader = Loader({"name": "tea"})

    found = acrowd(lambda: aget_or_load("product", 7, loader.later, cache=cache, patience=60))

    assert found == [{"name": "tea"}] * CROWD
    assert loader.calls == 1


PROCESS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import django
from django.conf import settings
settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": sys.argv[1]}}
django.setup()
import redis
from bloomguard import get_or_load
server, barrier = redis.Redis.from_url(sys.argv[1]), threading.Barrier(50)

def load(value):
    server.incr("loads-of-a-test")
    threading.Event().wait(0.2)
    return {"name": "tea"}

def one(_):
    barrier.wait()
    return get_or_load("product", 7, load, patience=60)

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(50) as pool:
    found = list(pool.map(one, range(50)))
assert found == [{"name": "tea"}] * 50, found
"""


def test_processes_that_share_a_cache_share_one_load(shop, start):
    """Four processes of fifty threads: one load in all."""
    import redis

    server = redis.Redis.from_url(valkey())
    server.flushdb()
    children = [start(valkey(), code=PROCESS) for _ in range(4)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    failures = [child.communicate(timeout=60)[1] for child in children if child.wait(60)]

    assert failures == []
    assert int(server.get("loads-of-a-test")) == 1


def test_what_is_cached_is_not_loaded(shop):
    """The second call finds it; each caller has an object of its own."""
    loader = Loader({"name": "tea"})
    first, second = (get_or_load("product", pk, loader) for pk in (7, "7"))

    assert first == second == {"name": "tea"}
    assert first is not second
    assert async_to_sync(aget_or_load)("product", 7, loader.later) == first
    assert loader.calls == 1


def test_what_is_cached_costs_no_new_definition(shop, monkeypatch):
    """What a key means is found out once: it takes ten times as long as the rest."""
    get_or_load("product", 7, Loader("tea"))

    def fail(*args):
        raise AssertionError("it is known")

    monkeypatch.setattr(GuardMeta, "definition", property(fail))
    monkeypatch.setattr(meta, "is_djangos", fail)

    assert get_or_load("product", 7, fail) == "tea"


# -- nothing


def test_an_absent_value_reaches_neither_cache_nor_loader(shop, django_assert_num_queries):
    """The guard's no is the answer."""
    loader = Loader("never")

    with django_assert_num_queries(0):
        assert get_or_load("product", 8, loader, cache="broken") is None
        assert async_to_sync(aget_or_load)("product", 2**70, loader.later, cache="broken") is None
    assert loader.calls == 0


def missing(value):
    raise Product.DoesNotExist


@pytest.mark.parametrize("nothing", [None, missing])
def test_nothing_is_an_answer_and_is_not_cached(shop, nothing):
    """``None`` and ``DoesNotExist`` are None for all who wait, and fill no cache."""
    loader = Loader(lambda value: (threading.Event().wait(0.1) and None) or (nothing and nothing(value)))

    assert crowd(lambda: get_or_load("product", 7, loader, patience=60), 20) == [None] * 20
    assert acrowd(lambda: aget_or_load("product", 7, Loader(nothing).later, patience=60), 20) == [None] * 20
    assert list(caches["default"]._cache) == []
    assert loader.most == 1
    assert loader.calls < 20  # one after the other, they would wait longer than for their own loads


def test_nothing_is_no_answer_for_who_came_during_the_load(shop, monkeypatch):
    """The row may have been made after the load had looked, and before they asked."""
    looked, waiting, made = threading.Event(), threading.Event(), threading.Event()
    loader = Loader(lambda value: looked.set() or (made.wait(60) and None), "tea")
    wait = futures.wait
    waited(monkeypatch, lambda *args: waiting.set() or wait(*args))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load_elsewhere, 7, loader, patience=120)
        assert looked.wait(60)
        second = pool.submit(load_elsewhere, 7, loader, patience=120)
        assert waiting.wait(60)
        made.set()

        assert (first.result(60), second.result(60)) == (None, "tea")


@pytest.mark.django_db(transaction=True)
def test_nothing_found_in_a_transaction_is_no_answer_for_others(shop, monkeypatch):
    """It may read a snapshot that is older than the row, so each caller looks for itself."""
    size = 5
    waiting, wait = threading.Semaphore(0), futures.wait
    waited(monkeypatch, lambda *args: waiting.release() or wait(*args))
    left = iter(range(size - 1, -1, -1))  # each load ends when all who are left wait for it
    loader = Loader(lambda value: all(waiting.acquire(timeout=60) for _ in range(next(left))) and None)

    def load():
        with transaction.atomic():
            return get_or_load("product", 7, loader, patience=60)

    assert crowd(load, size) == [None] * size
    assert loader.calls == size


@pytest.mark.django_db(transaction=True)
def test_nothing_found_in_a_transaction_is_no_answer_for_others_on_a_loop_either(shop, monkeypatch):
    """The transaction is that of a thread which waits for the task."""
    size, waiting, calls = 3, [], []

    def wait(given, timeout):
        waiting.append(given)
        return asyncio.wait(given, timeout=timeout)

    monkeypatch.setattr(cache_aside, "asyncio", SimpleNamespace(**{**vars(asyncio), "wait": wait}))

    async def load(value):
        calls.append(value)
        while len(waiting) < size - len(calls):  # it ends when all who are left wait for it
            await asyncio.sleep(0.001)
        waiting.clear()

    def look():
        try:
            with transaction.atomic():
                return async_to_sync(aget_or_load)("product", 7, load, patience=60)
        finally:
            connections.close_all()

    async def request():
        async with ThreadSensitiveContext():  # as under ASGI
            return await sync_to_async(look)()

    async def scene():
        return await asyncio.gather(*(request() for _ in range(size)))

    assert asyncio.run(scene()) == [None] * size
    assert len(calls) == size


@pytest.mark.django_db(transaction=True)
def test_nothing_found_by_others_is_no_answer_in_a_transaction(shop, monkeypatch):
    """It may have written the row, which no other transaction sees."""
    began, waiting, wait = [threading.Event(), threading.Event()], threading.Semaphore(0), futures.wait
    writer = threading.local()

    def load(value):
        """Finds nothing: the first time while two callers wait, then while the one in a transaction does."""
        number = int(began[0].is_set())
        began[number].set()
        assert all(waiting.acquire(timeout=60) for _ in range(2 - number))

    def wait_for_second(*args):
        waiting.release()
        wait(*args)
        if hasattr(writer, "is_me"):
            assert began[1].wait(60)

    def load_in_transaction():
        writer.is_me = True
        try:
            with transaction.atomic():
                return get_or_load("product", 7, lambda value: "tea", patience=60)
        finally:
            connections.close_all()

    waited(monkeypatch, wait_for_second)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(load_elsewhere, 7, load, patience=60)
        assert began[0].wait(60)
        others = [pool.submit(load_elsewhere, 7, load, patience=60), pool.submit(load_in_transaction)]

        assert [each.result(60) for each in (first, *others)] == [None, None, "tea"]


def folding(monkeypatch, way):
    """The options of a guard that has one key for ``ulm`` and ``ULM``, which the database tells apart."""
    if way == "normalize":
        return {"normalize": lambda self, value: value.casefold()}
    field = Article._meta.get_field("slug")
    monkeypatch.setattr(field, "to_python", str.casefold)
    monkeypatch.setattr(field, "get_prep_value", lambda value: value)
    return {}


@pytest.mark.parametrize("way", ["normalize", "field"])
def test_values_that_the_database_tells_apart_have_entries_of_their_own(shop, build, monkeypatch, way):
    """What is loaded for one spelling is no other row's, also if they share a key; each is still cached."""

    def load(slug):
        return Article.objects.filter(slug=slug).values_list("slug", flat=True).first()

    Article.objects.bulk_create([Article(slug="ulm"), Article(slug="Ulm")])
    with registered(Article, name="folded", lookup="slug", **folding(monkeypatch, way)):
        build("folded")
        for _ in range(2):
            assert [get_or_load("folded", slug, load) for slug in ("ulm", "Ulm", "ULM")] == ["ulm", "Ulm", None]
        assert [get_or_load("folded", slug, fail) for slug in ("ulm", "Ulm")] == ["ulm", "Ulm"]
        keys = {cache_key("folded", slug) for slug in ("ulm", "Ulm", "ULM")}
        assert (len(keys), None in keys, cache_key("folded", Spelt("ulm"))) == (3, False, None)


class Spelt(str):
    """What it means is the business of its class."""


def in_threads(call, *values):
    """What the call returns for each value, in a thread for each that leaves no connection behind."""

    def one(value):
        try:
            return call(value)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(one, values))


@pytest.mark.django_db(transaction=True)
def test_a_load_for_one_spelling_is_not_that_of_another(shop, build):
    """Whoever floods the site with one spelling does not answer for the other, found or not."""
    barrier = threading.Barrier(2, timeout=60)  # both loads run at once
    Article.objects.create(slug="ulm")

    def load(slug):
        barrier.wait()
        return slug if slug == "ulm" else None

    with registered(Article, name="folded", lookup="slug", normalize=lambda self, value: value.casefold()):
        build("folded")
        assert in_threads(lambda slug: get_or_load("folded", slug, load, patience=60), "ulm", "ULM") == ["ulm", None]


def test_a_number_that_no_column_holds_has_no_other_numbers_entry(shop):
    """The bytes of a key are those of a negative number as well."""
    Product.objects.create(pk=-7)
    assert get_or_load("product", -7, lambda value: "found") == "found"

    assert [get_or_load("product", each, lambda value: None) for each in (2**64 - 7, str(2**64 - 7))] == [None, None]


def test_a_cancelled_task_does_not_go_on(shop, monkeypatch):
    """Also if what it waits for comes in the same turn of the loop."""

    async def scene():
        may_end = asyncio.Event()

        async def load(value):
            await may_end.wait()
            return "tea"

        first = asyncio.create_task(aget_or_load("product", 7, load, patience=60))
        while not cache_aside._flights:
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(aget_or_load("product", 7, load, patience=60))
        [flight] = cache_aside._flights.values()
        while not flight.done._callbacks:
            await asyncio.sleep(0.001)
        flight.done.add_done_callback(lambda _: waiting.cancel())
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return await first

    assert asyncio.run(scene()) == "tea"


def test_what_is_loaded_for_another_cache_is_something_else(shop):
    """A value has one entry in each cache, so loads for two caches do not stand in for each other."""
    begun, end = threading.Event(), threading.Event()
    loader = Loader(lambda value: begun.set() or (end.wait(60) and "tea"))

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(load_elsewhere, 7, loader, patience=120)
        assert begun.wait(60)
        second = get_or_load("product", 7, lambda value: "coffee", cache="none", patience=60)
        end.set()

        assert (first.result(60), second) == ("tea", "coffee")


def test_falsy_values_are_values(shop):
    """Zero is cached as any other."""
    loader = Loader(0)

    assert [get_or_load("product", 7, loader) for _ in range(2)] == [0, 0]
    assert loader.calls == 1


def test_what_cannot_be_looked_up_is_loaded_and_not_cached(shop):
    """A value that does not convert is the loader's to judge."""
    loader = Loader("whatever")

    assert [get_or_load("product", "tea", loader) for _ in range(2)] == ["whatever"] * 2
    assert loader.calls == 2
    assert cache_key("product", "tea") is None


def test_without_a_filter_it_is_a_cache(fresh, db):
    """UNKNOWN loads."""
    caches["default"].clear()
    assert get_or_load("product", 8, Loader("found")) == "found"


# -- failures


def test_an_exception_is_nobodys_result(shop):
    """It goes to the one whose load it was; those who wait try themselves, one after the other."""
    loader = Loader(fail, fail, fail, "tea")

    found = crowd(lambda: get_or_load("product", 7, loader, patience=60), 50)

    assert sorted(map(repr, found)) == ["'tea'"] * 47 + ["RuntimeError('oops')"] * 3
    assert (loader.calls, loader.most) == (4, 1)


@pytest.mark.parametrize("error", [RuntimeError("oops"), KeyboardInterrupt()], ids=repr)
def test_an_exception_of_the_loader_is_raised_as_it_is(shop, error):
    """And the next caller loads."""

    def load(value):
        raise error

    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            get_or_load("product", 7, load)
        assert raised.value is error
    assert get_or_load("product", 7, lambda value: "loaded") == "loaded"


def test_an_exception_is_nobodys_result_on_a_loop_either(shop):
    """The same for tasks."""
    loader = Loader(fail, fail, fail, "tea")

    found = acrowd(lambda: aget_or_load("product", 7, loader.later, patience=60), 50)

    assert sorted(map(repr, found)) == ["'tea'"] * 47 + ["RuntimeError('oops')"] * 3
    assert (loader.calls, loader.most) == (4, 1)


@pytest.fixture
def hurry(monkeypatch, clock):
    """Return ``hurry(is_hopeless)``: who waits for an event that is hopeless loses patience at once, on its own clock.

    All who wait for one event move the clock once: it would overtake those who wait for another. Whoever sleeps, for
    another process, moves it only when so many ``others`` wait for an event that is not hopeless.
    """
    wait, lock, until, waiting = futures.wait, threading.Lock(), {}, threading.Semaphore(0)

    def start(is_hopeless, others=0):
        def sleep(seconds):
            nonlocal others
            while others:
                waiting.acquire()
                others -= 1
            clock.sleep(seconds)

        monkeypatch.setattr(cache_aside, "seconds", clock)
        monkeypatch.setattr(cache_aside, "time", SimpleNamespace(sleep=sleep))

        def waits(given, seconds):
            [future] = given
            if is_hopeless(future):
                with lock:
                    clock.sleep(max(until.setdefault(future, clock() + seconds) - clock(), 0))
            else:
                waiting.release()
                wait([future], 60)

        waited(monkeypatch, waits)

    return start


def test_a_load_that_hangs_holds_up_nobody_for_long(shop, hurry):
    """When patience is over one of those who wait loads in its place, and whoever comes later waits for nobody."""
    hang, hanging = threading.Event(), threading.Event()
    loader = Loader(lambda value: hanging.set() or hang.wait(60), "tea")
    stuck = threading.Thread(target=load_elsewhere, args=(7, loader))
    stuck.start()
    assert hanging.wait(60)
    [flight] = cache_aside._flights.values()
    hurry(lambda future: future is flight.done, others=49)

    found = crowd(lambda: get_or_load("product", 7, loader), 50)

    assert found == ["tea"] * 50
    assert loader.calls == 2
    assert get_or_load("product", 7, loader) == "tea"
    hang.set()
    stuck.join()


def test_loads_that_all_hang_let_everybody_load(shop, hurry):
    """Nobody waits longer than twice the patience for others."""
    hang, hanging = threading.Event(), threading.Semaphore(0)

    def stick(value):
        hanging.release()
        return hang.wait(60)

    hurry(lambda future: True)
    loader = Loader(stick)
    threads = [threading.Thread(target=load_elsewhere, args=(7, loader), kwargs={"cache": "none"}) for _ in range(5)]
    for thread in threads:
        thread.start()

    assert all(hanging.acquire(timeout=60) for _ in threads)
    hang.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("cancel", "patience"), [(True, 60), (False, 0.2)], ids=["cancelled", "hanging"])
def test_a_task_that_hangs_or_is_cancelled_holds_up_nobody(shop, cancel, patience):
    """A cancelled load lets go at once, one that hangs when patience is over."""

    async def scene():
        begun = asyncio.Event()

        async def stick(value):
            begun.set()
            await asyncio.Event().wait()

        stuck = asyncio.create_task(aget_or_load("product", 7, stick, patience=patience))
        await begun.wait()
        others = [
            asyncio.create_task(aget_or_load("product", 7, Loader("tea").later, patience=patience)) for _ in range(20)
        ]
        await asyncio.sleep(0)
        if cancel:
            stuck.cancel()
        found = await asyncio.wait_for(asyncio.gather(*others), 60)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        return found

    assert asyncio.run(scene()) == ["tea"] * 20


def test_a_cache_that_fails_is_no_cache(shop, caplog, monkeypatch):
    """The value is loaded, and that is said once."""
    log_once.forget()
    loader = Loader("tea")
    with caplog.at_level(logging.ERROR, logger="bloomguard"):
        found = [get_or_load("product", 7, loader, cache="broken") for _ in range(3)]

    assert found == ["tea"] * 3
    assert [record.name for record in caplog.records] == ["bloomguard"]
    assert async_to_sync(aget_or_load)("product", 7, loader.later, cache="synchronous") == "tea"


# -- between processes


@pytest.fixture
def claim(shop):
    """The entry that says that somebody is loading product 7."""
    return f"{cache_key('product', 7)}:loading"


def test_what_another_process_loads_is_waited_for(shop, claim, monkeypatch):
    """While its claim stands, nobody else loads; what it caches is the answer."""
    caches["default"].set(claim, "another", 60)
    loader = Loader("never")
    cache = caches["default"]
    # While we wait the other one brings it.
    bring = SimpleNamespace(sleep=lambda _: cache.set(cache_key("product", 7), "tea"))
    monkeypatch.setattr(cache_aside, "time", bring)

    assert get_or_load("product", 7, loader, patience=60) == "tea"
    assert loader.calls == 0


def test_a_process_that_died_is_waited_for_no_longer_than_patience(shop, claim):
    """A claim that nobody honours is no answer; it is left to its owner, and runs out by itself."""
    caches["default"].set(claim, "another", 60)

    assert get_or_load("product", 7, Loader("tea"), patience=0.1) == "tea"
    assert caches["default"].get(claim) == "another"


def test_a_claim_that_was_lost_is_not_taken_from_its_new_owner(shop, claim):
    """Whoever loads longer than its claim lasts leaves the next one's alone; a claim of one's own is given back."""
    take = Loader(lambda value: caches["default"].set(claim, "another", 60))
    get_or_load("product", 7, take)
    assert caches["default"].get(claim) == "another"

    caches["default"].delete(claim)
    assert get_or_load("product", 7, Loader("tea")) == "tea"
    assert caches["default"].get(claim) is None


class SlowToClaim(LocMemCache):
    """Its ``add`` begins, and ends when it may."""

    begun, may_end = threading.Event(), threading.Event()

    def add(self, *args, **kwargs):
        self.begun.set()
        assert self.may_end.wait(60)
        return super().add(*args, **kwargs)


def test_a_task_that_is_cancelled_while_it_claims_leaves_no_claim(shop, claim, settings):
    """The thread that makes the claim goes on, and other processes would wait for it until patience is over."""
    settings.CACHES = {"default": {"BACKEND": "tests.lookups.test_cache_aside.SlowToClaim"}}

    async def scene():
        task = asyncio.create_task(aget_or_load("product", 7, Loader("tea").later))
        await asyncio.to_thread(SlowToClaim.begun.wait, 60)
        task.cancel()
        await asyncio.sleep(0)  # the task is told before the claim is made
        SlowToClaim.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await caches["default"].aget(claim)

    assert asyncio.run(scene()) is None


def test_a_child_lands_none_of_its_parents_flights(shop, monkeypatch):
    """After a fork nobody waits for threads that are not there."""
    monkeypatch.setattr(cache_aside, "_flights", {})
    call = cache_aside._Call(None, None, "key", None, None, 5, is_async=False)
    flight, mine = call.join(0)
    assert mine
    assert call.join(1) == (flight, False)

    monkeypatch.setattr(cache_aside, "os", SimpleNamespace(getpid=lambda: -1))

    assert call.join(1)[1]
    call.land(flight, None)  # of an older flight: the one under way stays
    assert not call.join(1)[1]


# -- keys and times


def test_timeouts_are_spread(shop, monkeypatch):
    """Never longer than asked, up to a tenth less; ``None`` stays for ever."""
    given = []
    monkeypatch.setattr(LocMemCache, "set", lambda self, key, value, timeout: given.append(timeout))
    for _ in range(200):
        get_or_load("product", 7, Loader("tea"), 1_000)
    get_or_load("product", 7, Loader("tea"), None)
    for timeout in (0, -1):  # as Django's cache takes it: not stored
        get_or_load("product", 7, Loader("tea"), timeout)

    assert given[-3:] == [None, 0, -1]
    assert len(set(given[:-3])) > 20
    assert 900 <= min(given[:-3]) <= max(given[:-3]) <= 1_000


def test_a_cache_key_tells_nothing_of_the_value(build):
    """It is a keyed hash, one for equal values, another for every other value, guard or meaning of the rows."""
    slugs, others = (make_guard(Article, name=name, lookup="slug") for name in ("slugs", "others"))
    alive = make_guard(Article, name="slugs", lookup="slug", alive=registry["article"].alive)
    keys = [_key(guard, value) for guard in (slugs, others, alive) for value in ("secret-slug", "other")]

    assert len(set(keys)) == 6
    assert not any("slug" in key.removeprefix("bloomguard:slugs:") for key in keys)
    assert all(key.isascii() and key.isprintable() and " " not in key and len(key) < 200 for key in keys)
    assert cache_key("product", 7) == cache_key("product", "007")


def test_an_entry_can_be_dropped(shop):
    """``cache_key`` is what a project needs to drop an entry when the row changes."""
    loader = Loader("old", "new")
    get_or_load("product", 7, loader)
    caches["default"].delete(cache_key("product", 7))

    assert get_or_load("product", 7, loader) == "new"
