"""What is counted in a process: every verdict, what came of it, without a lock."""

from __future__ import annotations

import itertools
import os
import threading

import pytest
from asgiref.sync import async_to_sync
from django.http import Http404, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from bench import figures
from bloomguard.decorators import guarded
from bloomguard.guards import counters as counts
from bloomguard.guards import registry
from bloomguard.guards.counters import Counts
from bloomguard.lookups.cache_aside import get_or_load
from bloomguard.lookups.context import guarded_lookups
from bloomguard.lookups.query import RowLookup
from bloomguard.state import verdicts
from bloomguard.stores.base import COLUMNS
from tests.door.site import Asgi, Wsgi
from tests.shop.models import Product
from tests.support.guarding import make_guard, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


@pytest.fixture
def counted(build):
    """Product 7 exists, the filter is built, and nothing has been counted; ``counted()`` is what was since."""
    Product.objects.create(pk=7)
    build("product")
    counts.counts.forget()
    timed = {counts.TIMED, counts.MICROSECONDS}
    return lambda: {
        name: number
        for (guard, name), number in counts.counts.read().items()
        if guard == "product" and name not in timed
    }


def wsgi(url):
    return Client().get(url)


def asgi(url):
    return async_to_sync(AsyncClient().get)(url)


both = pytest.mark.parametrize("get", [wsgi, asgi])


def test_every_reason_has_a_column():
    """Stores have a column for every reason that is counted, and room for more; switched off, guards count nothing."""
    reasons = {each.reason for each in vars(verdicts).values() if isinstance(each, verdicts.Decision)}
    reasons.remove(verdicts.DISABLED.reason)

    assert reasons <= set(counts.NAMES)
    assert len(set(counts.NAMES)) == len(counts.NAMES) <= COLUMNS


def test_the_order_of_the_columns_is_for_good():
    """Figures lie in stores by column: a name never moves."""
    assert counts.NAMES == (
        "absent", "out of range", "maybe", "unkeyable", "cold", "fenced", "lease", "identity", "unreachable",
        "untrusted", "error", "false absence", "shadow", "blocked", "query avoided", "false positive",
        "would-be 404", "would-be false 404", "timed", "microseconds", "remembered", "ambiguous",
        "writing",
    )  # fmt: skip


def test_threads_that_count_at_once_lose_nothing():
    """8 threads count 20,000 times each, while another one reads: not one is lost or made up."""
    mine = Counts()
    ready, reads = threading.Barrier(9), []

    def count():
        counters = mine.of("city")
        ready.wait()
        for _ in range(20_000):
            counters["maybe"]()

    crew = [threading.Thread(target=count) for _ in range(8)]
    for each in crew:
        each.start()
    ready.wait()
    while any(each.is_alive() for each in crew):
        reads.append(mine.read().get(("city", "maybe"), 0))

    assert mine.read() == {("city", "maybe"): 160_000}
    assert reads == sorted(reads)


def test_the_first_count_of_each_name_begins():
    """``begin`` is called when something is counted for the first time, and what it raises is nobody's concern."""
    mine, begun = Counts(), []

    def begin():
        begun.append(1)
        raise RuntimeError("can't start new thread")

    mine.begin = begin
    for _ in range(3):
        mine.of("city")["maybe"]()
    mine.of("city")["absent"]()

    assert len(begun) == 2
    assert mine.read() == {("city", "maybe"): 3, ("city", "absent"): 1}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_begins_anew():
    """What the parent counted the parent gives account of; the child counts on in the same place, from zero."""
    mine = Counts()
    counters = mine.of("city")
    counters["maybe"]()
    read, write = os.pipe()

    child = os.fork()
    if not child:
        try:
            counters["absent"]()
            os.write(write, repr(mine.read()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 1_000).decode() == "{('city', 'absent'): 1}"
    assert mine.read() == {("city", "maybe"): 1}
    os.close(read)
    os.close(write)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_children_draw_at_places_of_their_own():
    """Else no worker of a preloaded site would ever draw, if each is replaced before the place of their parent."""
    draw, (read, write) = counts.one_in(1_000), os.pipe()
    for _ in range(5):
        child = os.fork()
        if not child:
            try:
                os.write(write, b"%d " % next(number for number in itertools.count() if draw()))
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    assert len(set(os.read(read, 1_000).split())) > 1
    os.close(read)
    os.close(write)


@both
def test_a_request_is_counted_once(counted, get):
    """One verdict a request, with its reason; what is blocked is counted as that."""
    assert [get(url).status_code for url in ("/products/7/", "/products/8/", "/products-str/x/")] == [200, 404, 404]

    assert counted() == {"maybe": 1, "absent": 1, "blocked": 1, "unkeyable": 1}


def test_out_of_range_is_an_absence(counted):
    """An integer that no column can hold is counted with its own reason."""
    assert wsgi(f"/products/{2**70}/").status_code == 404

    assert counted() == {"out of range": 1, "blocked": 1}


@both
def test_a_maybe_that_finds_nothing_is_a_false_positive(counted, get):
    """A row that is gone is still in the filter: the view finds nothing, and that is counted."""
    Product.objects.all().delete()

    assert get("/products/7/").status_code == 404
    assert counted() == {"maybe": 1, "false positive": 1}


def test_only_a_query_tells_of_false_positives(counted, settings):
    """A 404 of a view that has not looked says nothing of the guard."""
    settings.ROOT_URLCONF = urlconf(
        path("products/<int:pk>/", lambda request, pk: HttpResponse(status=404), name="product"),
    )

    assert wsgi("/products/7/").status_code == 404
    assert counted() == {"maybe": 1}


@both
def test_the_decorator_counts_alone(counted, get, settings):
    """Without the middleware, too: what is blocked. Its views' own queries are no longer seen."""
    settings.MIDDLEWARE = []
    urls = ("/decorated/7/", "/decorated/8/") if get is wsgi else ("/decorated-async/7/", "/decorated-async/8/")
    assert [get(url).status_code for url in urls] == [200, 404]
    Product.objects.all().delete()
    assert get(urls[0]).status_code == 404

    assert counted() == {"maybe": 2, "absent": 1, "blocked": 1}


def test_a_false_positive_is_counted_once(counted, settings):
    """Middleware, decorator and query share one verdict, and one false positive."""
    Product.objects.all().delete()

    @guarded("product")
    def view(request, pk):
        Product.objects.filter(pk=pk).first()
        raise Http404

    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path("products/<int:pk>/", view, name="product"))
    assert wsgi("/products/7/").status_code == 404

    assert counted() == {"maybe": 1, "false positive": 1}


@pytest.mark.parametrize("site", [Wsgi, Asgi])
def test_the_front_door_counts(counted, site):
    """What is blocked there is blocked; what passes is asked again, and counted again, by the middleware."""
    door = site()
    assert [door(url).status for url in ("/products/8/", "/products/7/")] == [404, 200]

    found = counted()
    assert (found["absent"], found["blocked"]) == (1, 1)
    assert set(found) == {"absent", "blocked", "maybe"}


@both
def test_a_mistake_in_counting_is_no_answer(counted, get, monkeypatch, caplog):
    """Whatever goes wrong when a query's result is looked at, the answer is the view's; it is said once."""
    monkeypatch.setattr(RowLookup, "is_pure", lambda *args: 1 / 0)
    Product.objects.all().delete()

    assert [get("/products/7/").status_code for _ in range(2)] == [404, 404]
    assert [record.getMessage() for record in caplog.records if record.name == "bloomguard"] == [
        "bloomguard could not record a false positive, because of an internal error"
    ]


def test_views_count_what_they_spare(counted):
    """A look-up that a view did not have to make is one avoided; a list counts every value."""
    guard = registry["product"]
    with guarded_lookups():
        assert not Product.objects.filter(pk=8).exists()
    assert get_or_load("product", 8, lambda value: 1) is None
    assert guard.filter_existing([7, 8, 9]) == [7]

    assert counted() == {"absent": 4, "maybe": 1, "query avoided": 2}


@both
@pytest.mark.parametrize(("status", "expected"), [(404, "blocked"), (200, "query avoided")])
def test_an_answered_query_is_blocked_or_avoided_by_the_status(counted, settings, get, status, expected):
    """A 404 after an answered query is the guard's; any other page has avoided a query."""

    def view(request, pk):
        return HttpResponse(status=200 if Product.objects.filter(pk=pk).exists() else status)

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))

    assert [get(f"/p/{pk}/").status_code for pk in (7, 8)] == [200, status]
    assert counted() == {"maybe": 1, "absent": 1, expected: 1}


def test_the_last_of_several_answered_queries_is_the_blocked_one(counted, settings):
    """Every other one is a query avoided; one request is blocked once."""

    def view(request, pk):
        assert not Product.objects.filter(pk=pk + 1).exists()
        assert not Product.objects.filter(pk=pk + 2).exists()
        return HttpResponse(status=404)

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))

    assert wsgi("/p/8/").status_code == 404
    assert counted() == {"absent": 2, "blocked": 1, "query avoided": 1}


def test_checks_are_timed_now_and_then(counted, monkeypatch):
    """One check in 128 is timed, wherever the first of them is."""
    for _ in range(1_280):
        registry["product"].verdict(7)
    found = counts.counts.read()

    assert found["product", "timed"] == 10
    assert 0 < found["product", "microseconds"] < 1_000_000


def test_a_guard_without_a_filter_says_why(fresh, transactional_db):
    """A verdict that is unknown is counted by its reason."""
    counts.counts.forget()
    registry["product"].verdict(7)

    assert {key for key in counts.counts.read() if key[0] == "product"} <= {
        ("product", "cold"), ("product", "timed"), ("product", "microseconds")
    }  # fmt: skip
    assert counts.counts.read()["product", "cold"] == 1


def test_the_benchmark_counts_as_a_request_does(monkeypatch):
    """What is said of the cost of counting is measured with what counts."""
    monkeypatch.setattr(figures, "CALLS", 10)

    taken = figures.counting()

    assert set(taken) == {"bare", "a request that passes", "a request that is blocked"}


def test_a_guard_with_a_mistake_has_no_digest():
    """It has no key either; whoever logs the verdict gets the reason."""
    assert counts.digest(make_guard(Product, name="broken", lookup="nothing"), 7) == ""
