"""What views ask of a guard: verdicts, and which of many exist; and the async twins."""

from __future__ import annotations

import logging
import threading

import pytest
from asgiref.sync import async_to_sync

from bloomguard.exceptions import StoreError
from bloomguard.guards import registry, runtime
from bloomguard.process import log_once
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.verdicts import ABSENT, COLD, Verdict
from bloomguard.stores import stores
from bloomguard.stores.file import FileStore
from tests.conftest import forget
from tests.shop.models import Article, Place, Product
from tests.support.guarding import make_guard
from tests.support.patience import PATIENT
from tests.support.servers import valkey


@pytest.fixture
def shop(build):
    """Ten products, two articles of which one is deleted, and a place; their filters are built."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 11))
    Article.objects.create(slug="alive")
    Article.objects.create(slug="dead", deleted=True)
    Place.objects.create(country="DE", slug="ulm")
    for name in ("product", "article", "place"):
        build(name)


def twin(guard, name):
    """A method, or its async twin called from a loop of its own."""
    method = getattr(guard, name)
    return async_to_sync(method) if name.startswith("a") else method


def test_guards_are_had_by_name():
    """``registry["product"]``, as ``caches["default"]``."""
    assert registry["product"].name == "product"


@pytest.mark.parametrize("name", ["verdict", "averdict"])
def test_verdicts(shop, name):
    """Present, absent, and nothing to say of what does not convert; the async twin says the same."""
    ask = twin(registry["product"], name)

    assert [ask(value) for value in (7, "7", 11, "tea", 2**70)] == [
        Verdict.MAYBE,
        Verdict.MAYBE,
        Verdict.ABSENT,
        Verdict.UNKNOWN,
        Verdict.ABSENT,
    ]


def test_an_async_verdict_reads_the_state_rows_in_a_thread(shop, clock, monkeypatch):
    """Where the lease has run out, the loop does not wait for the database."""
    threads = set()
    execute = state.table.connection.execute
    monkeypatch.setattr(
        state.table.connection, "execute", lambda *args: threads.add(threading.get_ident()) or execute(*args)
    )
    clock.sleep(5)

    async def ask():
        return await registry["product"].averdict(11), threading.get_ident()

    verdict, loop = async_to_sync(ask)()

    assert verdict is Verdict.ABSENT
    assert threads
    assert loop not in threads


def lease_ends_meanwhile(guard, clock, monkeypatch):
    """Between two looks at it; what was leased by the first one is good enough."""
    monkeypatch.setattr(runtime, "needs_orm_thread", lambda: False)  # as without routers of the project
    place = guard._meta.place
    must_read = place.must_read
    monkeypatch.setattr(place, "must_read", lambda: (clock.sleep(1), must_read())[1])
    return ABSENT


def file_was_not_opened(guard, clock, monkeypatch):
    """A while ago; now it may be tried again."""
    live = guard._runtime.active_filter
    with monkeypatch.context() as broken:
        broken.setattr(FileStore, "open", lambda *args: (_ for _ in ()).throw(StoreError("no more files")))
        live.forget()
        assert guard.verdict(11) is Verdict.UNKNOWN
    clock.sleep(11)
    state.table.renew()
    return ABSENT


def no_filter_is_there(guard, clock, monkeypatch):
    """In no store: all of them are looked into, those on servers too."""
    monkeypatch.setattr(FileStore, "names", lambda *args: [])
    guard._runtime.active_filter.forget()
    state.table.forget()
    return COLD


@pytest.mark.parametrize("way", [lease_ends_meanwhile, file_was_not_opened, no_filter_is_there])
def test_an_async_verdict_reads_nothing_on_the_loop(shop, clock, monkeypatch, way):
    """No state rows, no filter and no store, whatever happens in between: threads do."""
    guard, threads = registry["product"], set()
    expected = way(guard, clock, monkeypatch)
    for owner, name in ((FileStore, "open"), (FileStore, "names"), (state.table.connection, "execute")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, real=real: threads.add(threading.get_ident()) or real(*args))

    async def ask():
        return await guard._runtime.adecide(11), threading.get_ident()

    decision, loop = async_to_sync(ask)()

    assert decision is expected
    assert loop not in threads


@pytest.mark.parametrize("name", ["verdict", "averdict", "filter_existing", "afilter_existing"])
def test_without_a_definition_not_even_a_number_out_of_range_is_absent(name, fresh, db):
    """While ``normalize`` fails, the guard has no filter, and so no mode; nothing is raised."""

    def normalize(self, value):
        raise OSError("no dictionary")

    ask = twin(make_guard(Product, lookup=("pk", "name"), normalize=normalize), name)
    value = (2**70, "tea")

    assert (ask([value]) == [value]) if "filter" in name else (ask(value) is Verdict.UNKNOWN)


# -- many


@pytest.mark.parametrize("name", ["filter_existing", "afilter_existing"])
def test_those_that_may_exist_stay_in_their_order(shop, name, django_assert_num_queries):
    """Repeated, unconverted and unkeyable values stay as they came; those that certainly do not exist go."""
    with django_assert_num_queries(0):
        kept = twin(registry["product"], name)(iter([10, 11, "7", 3, 2**70, "tea", 12, 3, None]))

    assert kept == [10, "7", 3, "tea", 3, None]


def test_several_fields(shop):
    """Tuples and mappings of a guard of two fields."""
    values = [("DE", "ulm"), ("FR", "ulm"), {"slug": "ulm", "country": "DE"}, ("DE",)]

    assert registry["place"].filter_existing(values) == [values[0], values[2], values[3]]


def test_nothing_is_asked_for_nothing(shop):
    """An empty list is itself."""
    assert registry["product"].filter_existing([]) == []


def test_without_a_filter_everything_stays(fresh, db, django_assert_num_queries):
    """UNKNOWN keeps all, and a guard that was never built asks nobody."""
    with django_assert_num_queries(0):
        assert registry["product"].filter_existing([7, 8]) == [7, 8]


def test_a_fenced_filter_keeps_everything(shop, clock):
    """What must not answer 404 must not drop values either."""
    state.table.fence("product", "for a test")
    clock.sleep(5)

    assert registry["product"].filter_existing([7, 11]) == [7, 11]


def test_without_a_lease_everything_stays(shop, clock, monkeypatch):
    """A generation's no counts only while the state row is known."""
    clock.sleep(5)
    monkeypatch.setattr(state.table, "renew", lambda **kwargs: False)

    assert registry["product"].filter_existing([7, 11]) == [7, 11]


@pytest.mark.parametrize("error", [StoreError("gone"), RuntimeError("oops")])
def test_an_error_keeps_everything(shop, monkeypatch, caplog, error):
    """Whatever goes wrong is logged once."""

    def fail(keys):
        raise error

    guard = registry["product"]
    log_once.forget()
    assert guard.filter_existing([7, 11]) == [7]
    monkeypatch.setattr(next(iter(guard._runtime.active_filter._opened.values())), "might_contain_many", fail)

    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        kept = [guard.filter_existing([7, 11]) for _ in range(3)]

    assert kept == [[7, 11]] * 3
    assert len(caplog.records) == 1


def test_many_values_are_one_trip(transactional_db, settings, clock, monkeypatch):
    """On a server of Redis, ten thousand values cost one."""
    server = {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": valkey(), **PATIENT}}
    settings.BLOOMGUARD = {"STORES": {"default": server}}
    forget()
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    Rebuild(registry["product"], sleep=clock.sleep).run()
    assert registry["product"].filter_existing([1]) == [1]
    trips = []
    read = stores["default"].read
    monkeypatch.setattr(stores["default"], "read", lambda *args: trips.append(args) or read(*args))

    kept = registry["product"].filter_existing(range(10_000))

    assert kept == list(range(1, 1_001))
    assert len(trips) == 1
    forget()
