"""Now and then an absence is held against the database: what is drawn, what is asked, and what follows."""

from __future__ import annotations

import itertools
import threading
import uuid

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction
from django.test import AsyncClient, Client

from bloomguard.guards import counters as counts
from bloomguard.guards import registry, spot_checks
from bloomguard.rebuild import Rebuild
from bloomguard.signals import false_negative_found
from bloomguard.state import table as states
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import ABSENT, CAUGHT, Verdict
from tests.management.test_verify_filter import insert_unseen
from tests.shop.models import Article, Order, Place, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "clock"),
]


@pytest.fixture(autouse=True)
def each(monkeypatch) -> None:
    """Every absence is drawn."""
    monkeypatch.setattr(spot_checks, "drawn", lambda: True)


@pytest.fixture
def asked(monkeypatch) -> list[threading.Thread]:
    """The threads that asked the database."""
    threads, exists = [], spot_checks._exists
    monkeypatch.setattr(
        spot_checks, "_exists", lambda *args: threads.append(threading.current_thread()) or exists(*args)
    )
    return threads


def times_counted(name: str) -> int:
    return counts.counts.read().get((name, counts.FALSE_ABSENCE), 0)


def test_one_in_a_thousand_is_drawn(monkeypatch):
    """Each thousand absences of a process have one that is checked, at a place of the process's own."""
    drawn = counts.one_in(spot_checks.EVERY)
    places = [number for number in range(5_000) if drawn()]

    assert [place - places[0] for place in places] == [0, 1_000, 2_000, 3_000, 4_000]
    assert len({next(filter(lambda number, draw=draw: draw(), itertools.count()))
                for draw in [counts.one_in(spot_checks.EVERY) for _ in range(20)]}) > 5  # fmt: skip


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize(
    ("name", "table", "columns", "value", "url"),
    [
        ("product", "shop_product", {"id": 5_000, "name": "x"}, 5_000, "/products/05000/"),
        ("order", "shop_order", {"id": f"{77:032x}"}, uuid.UUID(int=77), f"/orders/{uuid.UUID(int=77)}/"),
        ("place", "shop_place", {"country": "fr", "slug": "nice"}, ("fr", "nice"), "/places/fr/nice/"),
    ],
    ids=["product", "order", "place"],
)
def test_a_false_absence_is_caught(name, table, columns, value, url, clock, caplog):
    """A row that no sync saw: its request passes, the guard is fenced, it is counted, and the key is in no log."""
    for model in (Product, Order, Place):
        assert model.objects.count() == 0
    Rebuild(registry[name], sleep=clock.sleep).run()
    insert_unseen(table, **columns)
    before, told = times_counted(name), []
    receiver = lambda **named: told.append(named["value"])  # noqa: E731
    false_negative_found.connect(receiver)

    response = Client().get(url)

    assert response.status_code == 200
    assert registry[name]._meta.keys.key(told.pop()) == registry[name]._meta.keys.key(value)
    assert states.table.current(name).status == FENCED
    assert times_counted(name) == before + 1
    assert "would have been answered 404" in caplog.text
    assert "5000" not in caplog.text
    assert "nice" not in caplog.text


@pytest.mark.usefixtures("each_database")
def test_the_short_check_draws_too(clock, monkeypatch):
    """It decides every absence but the first, so what it draws is held against the database as well."""
    guard = registry["product"]
    Rebuild(guard, sleep=clock.sleep).run()
    insert_unseen("shop_product", id=5_000, name="x")
    before = times_counted("product")
    monkeypatch.setattr(spot_checks, "drawn", lambda: False)
    assert [guard.verdict(5), guard._runtime.short({}, 5_000)] == [Verdict.ABSENT, ABSENT]

    monkeypatch.setattr(spot_checks, "drawn", lambda: True)
    assert guard._runtime.short({}, 5_000) is CAUGHT
    assert states.table.current("product").status == FENCED
    assert times_counted("product") == before + 1


@pytest.mark.usefixtures("each_database")
def test_a_true_absence_stays_one(clock, asked):
    """Nothing is there: the answer is 404, and the guard goes on."""
    Rebuild(registry["product"], sleep=clock.sleep).run()

    assert Client().get("/products/5/").status_code == 404
    assert len(asked) == 1
    assert states.table.current("product").status == ARMED


def test_at_most_one_a_second(clock, asked, django_assert_num_queries):
    """However many are drawn, the database is asked once a second, and never on the request's own connection."""
    Rebuild(registry["product"], sleep=clock.sleep).run()

    with django_assert_num_queries(0):
        for _ in range(10):
            assert registry["product"].verdict(5) is Verdict.ABSENT
    assert len(asked) == 1
    clock.sleep(1)
    registry["product"].verdict(5)
    assert len(asked) == 2
    clock.sleep(-900)  # as in a container that another host restores from a checkpoint
    registry["product"].verdict(5)
    assert len(asked) == 3


def test_threads_that_come_meanwhile_go_on(clock, monkeypatch):
    """While one waits for the database no other does."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    waiting, release = threading.Event(), threading.Event()

    def exists(*args):
        waiting.set()
        assert release.wait(60)
        return False

    monkeypatch.setattr(spot_checks, "_exists", exists)
    guard = registry["product"]
    slow = threading.Thread(target=guard.verdict, args=(5,))
    slow.start()
    assert waiting.wait(60)
    clock.now += 0.9

    assert guard.verdict(6) is Verdict.ABSENT

    release.set()
    slow.join()


def test_no_event_loop_waits_for_it(clock, asked):
    """Under ASGI another thread asks the database."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    registry["product"].verdict(5)
    asked.clear()
    clock.sleep(1)
    loop: list[threading.Thread] = []

    async def get():
        loop.append(threading.current_thread())
        return await AsyncClient().get("/products-async/5/")

    assert async_to_sync(get)().status_code == 404
    assert len(asked) == 1
    assert asked[0] is not loop[0]


def test_a_check_that_was_drawn_on_an_event_loop_is_made(clock, asked, monkeypatch):
    """A request that is asked about several times over on its way to a thread pays the check that it drew."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    registry["product"].verdict(5)
    asked.clear()
    clock.sleep(1)
    registry["product"]._runtime.active_filter.table.renew()
    draws = iter([True])
    monkeypatch.setattr(spot_checks, "drawn", lambda: next(draws, False))

    assert async_to_sync(AsyncClient().get)("/products-async/5/").status_code == 404
    assert len(asked) == 1


@pytest.mark.usefixtures("each_database")
def test_a_broken_transaction_is_no_hindrance(clock, asked):
    """A request whose transaction has failed is checked like any other."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    insert_unseen("shop_product", id=5_000, name="x")

    with transaction.atomic(using=database.current):
        with pytest.raises(DatabaseError), connections[database.current].cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")
        assert registry["product"].verdict(5_000) is Verdict.UNKNOWN


def test_a_row_that_was_just_created_is_no_mistake(clock, monkeypatch):
    """A row that is committed between the verdict and the check is in the filter by then: nothing is fenced."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    exists = spot_checks._exists

    def just_created(*args):
        Product.objects.get_or_create(pk=5)
        return exists(*args)

    monkeypatch.setattr(spot_checks, "_exists", just_created)

    registry["product"].verdict(5)

    assert states.table.current("product").status == ARMED
    assert registry["product"].verdict(5) is Verdict.MAYBE


def test_a_row_that_was_just_deleted_is_no_mistake(clock, monkeypatch):
    """A row that is seen, then deleted and discarded before the filter is asked again, was no mistake either."""
    with registered(Product, filter="cuckoo", name="counted") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        insert_unseen("shop_product", id=5, name="x")
        exists = spot_checks._exists

        def then_deleted(*args):
            found = exists(*args)
            Product.objects.filter(pk=5).delete()
            return found

        monkeypatch.setattr(spot_checks, "_exists", then_deleted)

        assert guard.verdict(5) is Verdict.ABSENT
        assert states.table.current(guard.name).status == ARMED


def test_a_soft_deleted_row_is_absent(clock):
    """What is not alive does not exist."""
    Rebuild(registry["article"], sleep=clock.sleep).run()
    insert_unseen("shop_article", slug="gone", deleted=1)

    assert registry["article"].verdict("gone") is Verdict.ABSENT
    assert Article.objects.filter(slug="gone").exists()


def test_a_database_in_trouble_changes_nothing(clock, monkeypatch, caplog):
    """What cannot be checked stays what the filter said."""
    Rebuild(registry["product"], sleep=clock.sleep).run()

    def fail(*args):
        raise DatabaseError("no answer")

    monkeypatch.setattr(spot_checks, "_exists", fail)

    assert registry["product"].verdict(5) is Verdict.ABSENT
    assert "could not spot-check the guard product: DatabaseError" in caplog.text


def test_a_fence_that_fails_lets_the_request_pass_all_the_same(clock, monkeypatch, caplog):
    """The row is there, so the request passes; so do all others of this process, which goes on trying."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    insert_unseen("shop_product", id=5_000, name="x")

    def fail(*args):
        raise DatabaseError("read-only")

    monkeypatch.setattr(states.table, "fence", fail)

    assert registry["product"].verdict(5_000) is Verdict.UNKNOWN
    assert "could not disable guard product, and goes on trying" in caplog.text
    assert registry["product"].verdict(5_001) is Verdict.UNKNOWN


def test_a_mapping_of_fields_is_understood(clock):
    """A guard of several fields may be asked by a mapping as well."""
    Rebuild(registry["place"], sleep=clock.sleep).run()
    insert_unseen("shop_place", country="fr", slug="nice")

    assert registry["place"].verdict({"country": "fr", "slug": "nice"}) is Verdict.UNKNOWN
