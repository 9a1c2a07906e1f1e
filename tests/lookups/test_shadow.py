"""Shadow mode: everything passes, and is compared with what the guard would have answered."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import path

from bloomguard.decorators import guarded
from bloomguard.guards import counters as counts
from bloomguard.guards import spot_checks
from bloomguard.lookups.context import LookupContext, compare_rows, compare_status
from bloomguard.process import log_once
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as states
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import ABSENT, MAYBE, REMEMBERED, Verdict
from tests.management.test_verify_filter import insert_unseen
from tests.shop import views
from tests.shop.models import Product
from tests.support.guarding import registered, urlconf
from tests.test_middleware import browser  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh", "clock")]


@pytest.fixture
def guard(clock, settings):
    """A guard in shadow mode, of products; there is 7."""
    settings.ROOT_URLCONF = urlconf(
        path("p/<int:pk>/", views.product, name="watched"),
        path("any/<int:pk>/", lambda request, pk: HttpResponse("always"), name="always"),
        path("login/<int:pk>/", lambda request, pk: HttpResponseRedirect("/"), name="login"),
        path("one/<int:pk>/", guarded("watched")(views.product)),
    )
    Product.objects.create(pk=7)
    with registered(Product, name="watched", mode="shadow", routes=["watched", "always", "login"]) as made:
        Rebuild(made, sleep=clock.sleep).run()
        yield made


@pytest.fixture(autouse=True)
def no_checks_of_the_database(monkeypatch):
    """Requests are compared with answers alone, unless a test asks for more."""
    checks = spot_checks.SpotChecks()
    monkeypatch.setattr(checks, "is_due", lambda guard: False)
    monkeypatch.setattr(spot_checks, "checks", checks)


def counted(name: str) -> int:
    return counts.counts.read().get(("watched", name), 0)


@pytest.mark.parametrize(("url", "queries"), [("/p/8/", 1), ("/one/8/", 1), (f"/p/{2**70}/", 0)])
def test_every_request_passes(browser, guard, url, queries, django_assert_num_queries):  # noqa: F811
    """The view answers, with its own 404, whatever the guard would have said."""
    with django_assert_num_queries(queries):
        response = browser.get(url)

    assert response.status_code == 404


def test_no_verdict_is_absent(guard):
    """Whoever asks the guard is told that nothing can be said, one by one or many at once, waiting or not."""
    assert guard._runtime.decide(8)[:2] == (Verdict.UNKNOWN, "shadow")
    adecide = async_to_sync(guard._runtime.adecide)
    assert adecide(8)[:2] == (Verdict.UNKNOWN, "shadow")
    assert guard._runtime.decide(2**70)[:2] == adecide(2**70)[:2] == (Verdict.UNKNOWN, "shadow")
    assert guard.verdict(7) is Verdict.MAYBE
    assert guard.filter_existing([7, 8, 2**70]) == [7, 8, 2**70]


@pytest.mark.parametrize("site", ["Wsgi", "Asgi"])
def test_the_front_door_lets_it_through(site, guard):
    """Django answers, not the door."""
    from tests.door import site as front

    made = getattr(front, site)()

    assert made("/p/8/").status == 404
    assert made.reached == ["/p/8/"]


def test_what_would_have_been_blocked_is_counted(browser, guard):  # noqa: F811
    """One for each request that would have been answered 404; none where the row may exist, or for another method."""
    before = counted(counts.WOULD_BLOCK)

    for url in ("/p/8/", "/p/8/", "/p/7/"):
        browser.get(url)
    browser.post("/p/8/")

    assert counted(counts.WOULD_BLOCK) == before + 2


def test_a_page_where_a_404_would_have_been_is_counted_and_said(browser, guard, caplog):  # noqa: F811
    """A row that no sync saw, or a view that answers without one: counted each time, an error once, without key."""
    log_once.forget()
    before = counted(counts.WOULD_HARM)
    insert_unseen("shop_product", id=4321, name="x")

    assert [browser.get(url).status_code for url in ("/p/4321/", "/any/4321/", "/p/7/")] == [200] * 3

    assert counted(counts.WOULD_HARM) == before + 2
    assert caplog.text.count("would have answered 404 in place of 200") == 1
    assert {each.levelname for each in caplog.records if "in shadow mode" in each.getMessage()} == {"ERROR"}
    assert "4321" not in "".join(record.getMessage() for record in caplog.records if record.name == "bloomguard")


def test_a_redirect_would_have_been_changed(browser, guard):  # noqa: F811
    """At the route any answer but 404 and 410 is another one, a redirect to the login too."""
    before = counted(counts.WOULD_HARM)

    assert browser.get("/login/8/").status_code == 302

    assert counted(counts.WOULD_HARM) == before + 1


@pytest.mark.parametrize(("status", "harms"), [(404, 0), (410, 0), (200, 1), (302, 1), (403, 1), (500, 1)])
def test_only_not_found_and_gone_are_the_same(guard, status, harms):
    """Of an absent row's request."""
    before = counted(counts.WOULD_HARM), counted(counts.WOULD_BLOCK)
    compare_status(guard, 8, status)

    assert (counted(counts.WOULD_HARM), counted(counts.WOULD_BLOCK)) == (before[0] + harms, before[1] + 1)


def test_a_request_counts_once(browser, guard, settings):  # noqa: F811
    """Compared at the route, its queries are not compared as well; without a route its first query is."""

    def view(request, pk):
        Product.objects.filter(pk=pk).exists()
        return views.product(request, pk)

    settings.ROOT_URLCONF = urlconf(path("a/<int:pk>/", view, name="watched"), path("b/<int:pk>/", view))
    for url in ("/a/8/", "/b/8/"):
        before = counted(counts.WOULD_BLOCK)
        browser.get(url)
        assert counted(counts.WOULD_BLOCK) == before + 1


def test_a_row_that_was_created_meanwhile_is_no_mistake(guard):
    """Between the verdict and the answer a row may come: its filter has it by then."""
    before = counted(counts.WOULD_HARM)
    Product.objects.create(pk=9)

    compare_status(guard, 9, 200)
    compare_rows(LookupContext(), guard, 9, [9])

    assert counted(counts.WOULD_HARM) == before


def test_an_absence_is_held_against_the_database(browser, guard, monkeypatch, clock):  # noqa: F811
    """Once a second, drawn or not, also where no middleware sees the answer: a row that is there fences the guard."""
    monkeypatch.setattr(spot_checks, "checks", spot_checks.SpotChecks())
    insert_unseen("shop_product", id=4321, name="x")
    before = counted(counts.FALSE_ABSENCE)

    assert browser.get("/one/4321/").status_code == 200

    assert counted(counts.FALSE_ABSENCE) == before + 1
    assert states.table.current("watched").status == FENCED


@pytest.mark.parametrize("decision", [ABSENT, REMEMBERED, MAYBE], ids=lambda each: each.reason)
def test_whatever_would_have_been_a_404_counts(guard, monkeypatch, decision):
    """An absence that was remembered would have been answered 404 as well, and is compared alike."""
    before = counted(counts.WOULD_HARM)
    monkeypatch.setattr(guard._runtime.active_filter, "ask", lambda key: decision)

    compare_status(guard, 8, 200)

    assert counted(counts.WOULD_HARM) == before + (decision is not MAYBE)


def test_a_comparison_that_fails_is_logged(guard, monkeypatch, caplog):
    """No error of ours reaches the request, and each kind is said once."""
    log_once.forget()

    def fail(key):
        raise RuntimeError("woe")

    monkeypatch.setattr(guard._runtime.active_filter, "ask", fail)

    compare_status(guard, 8, 200)
    compare_status(guard, 9, 200)

    assert caplog.text.count("could not compare") == 1
