"""The middleware, through Django's own handlers, sync and async."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.http import Http404, HttpResponse, HttpResponseNotFound, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import path

from bloomguard.guards import registry
from bloomguard.lookups.context import contexts
from bloomguard.middleware import BloomGuardMiddleware
from bloomguard.routes import table
from bloomguard.state import table as state
from bloomguard.state.verdicts import MAYBE
from bloomguard.stores.file import FileStore
from tests.shop import views
from tests.shop.models import Article, Order, Place, Product
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


class Sync:
    """A browser of a site under WSGI."""

    def get(self, url, **options):
        return Client(raise_request_exception=False).get(url, **options)

    def head(self, url):
        return Client().head(url)

    def post(self, url):
        return Client().post(url)


class Async:
    """A browser of a site under ASGI."""

    def get(self, url, **options):
        return async_to_sync(AsyncClient(raise_request_exception=False).get)(url, **options)

    def head(self, url):
        return async_to_sync(AsyncClient().head)(url)

    def post(self, url):
        return async_to_sync(AsyncClient().post)(url)


@pytest.fixture(params=[Sync, Async], ids=["wsgi", "asgi"])
def browser(request):
    """The same test under WSGI and ASGI."""
    return request.param()


def handler404(request, exception):
    return HttpResponseNotFound(f"our own page: {exception}")


@pytest.mark.parametrize("url", ["/products/{}/", "/products-async/{}/", "/products-str/{}/", "/api/v1/products/{}/"])
def test_an_absent_id_is_not_found_and_asks_nothing(browser, shop, url, django_assert_num_queries):
    """Neither sync nor async views run."""
    with django_assert_num_queries(0):
        response = browser.get(url.format(8))

    assert response.status_code == 404
    assert response["Cache-Control"] == "no-store"
    assert int(response["Content-Length"]) == len(response.content)


@pytest.mark.parametrize("url", ["/products/{}/", "/products-async/{}/", "/products-str/{}/", "/api/v1/products/{}/"])
def test_an_existing_id_is_served(browser, shop, url):
    """What exists is answered as if nothing were installed."""
    response = browser.get(url.format(7))

    assert response.content == b"product 7"
    assert "Cache-Control" not in response


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_on_every_database(browser, each_database, fresh, clock, transactional_db):
    """SQLite or PostgreSQL, integer, UUID, text or composite: absent is 404 without a query, existing is served."""
    from bloomguard.rebuild import Rebuild

    Product.objects.create(pk=7)
    Order.objects.create(pk=f"{7:032x}")
    Article.objects.create(slug="ulm")
    Place.objects.create(country="DE", slug="ulm")
    for name in ("product", "order", "article", "place"):
        Rebuild(registry[name], sleep=clock.sleep).run()

    existing = ["/products/7/", f"/orders-str/{{{7:032X}}}/", "/articles-str/ulm/", "/places/DE/ulm/"]
    absent = ["/products/8/", f"/orders-str/{8:032x}/", "/articles-str/Ulm/", "/places/D/Eulm/"]

    assert [browser.get(url).status_code for url in existing] == [200] * 4
    answers = [browser.get(url) for url in absent]
    assert [(answer.status_code, answer.get("Cache-Control")) for answer in answers] == [(404, "no-store")] * 4


def test_head_is_answered_as_get(browser, shop):
    """HEAD of an absent ID has the headers of GET."""
    head, get = browser.head("/products/8/"), browser.get("/products/8/")

    assert head["Content-Length"] == get["Content-Length"]
    assert head.status_code == 404


def test_a_post_passes(browser, shop):
    """Other methods go to the view, whatever the ID."""
    response = browser.post("/products/8/")

    assert response.status_code == 404
    assert "Cache-Control" not in response


def test_the_sites_own_page_is_answered(browser, shop, settings):
    """The 404 is the one that the site's ``handler404`` makes, told what the view would have told it."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", views.product, name="product"), handler404=handler404)

    with registered(Product, name="own", routes=["product"]):
        response = browser.get("/p/8/")

    assert response.content == b"our own page: No Product matches the given query."
    assert response.status_code == 404


def test_a_page_that_is_a_template_response_is_rendered(browser, shop, settings):
    """``handler404`` may answer a ``TemplateResponse``."""

    def handler(request, exception):
        return TemplateResponse(request, engines["django"].from_string("on {{ request.path }}"), status=404)

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", views.product, name="product"), handler404=handler)

    assert browser.get("/p/8/").content == b"on /p/8/"


def test_a_page_without_content_is_answered_too(browser, shop, settings):
    """Also one of a class whose length is that of its content, so that it is false."""

    class Sized(HttpResponse):
        def __len__(self):
            return len(self.content)

    handler = lambda request, exception: Sized(status=404)  # noqa: E731
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", views.product, name="product"), handler404=handler)

    assert browser.get("/p/8/").status_code == 404


def test_a_page_that_streams_keeps_streaming(shop, settings, client):
    """A streamed 404 gets no length."""

    def handler(request, exception):
        return StreamingHttpResponse([b"not ", b"here"], status=404)

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", views.product, name="product"), handler404=handler)
    response = client.get("/p/8/")

    assert b"".join(response.streaming_content) == b"not here"
    assert "Content-Length" not in response
    assert response["Cache-Control"] == "no-store"


def test_a_page_that_fails_is_the_sites_500(browser, shop, settings):
    """A broken ``handler404`` fails as it does without bloomguard: after the view."""
    called = []

    def handler(request, exception):
        raise RuntimeError("broken page")

    def view(request, pk):
        called.append(pk)
        return views.product(request, pk)

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view, name="product"), handler404=handler)

    assert browser.get("/p/8/").status_code == 500
    assert called == [8]


def test_in_debug_mode_djangos_page_is_answered_and_a_header_says_why(browser, shop, settings):
    """With ``DEBUG`` it is the technical 404, and ``X-Bloomguard`` names the guard."""
    settings.DEBUG = True
    response = browser.get("/products/8/")

    assert response.status_code == 404
    assert b"No Product matches the given query." in response.content
    assert response["Cache-Control"] == "no-store"
    assert response["X-Bloomguard"] == "product: absent"


def test_an_answered_request_sets_no_cookie(browser, shop):
    """No session is opened, no cookie sent."""
    response = browser.get("/products/8/")

    assert not response.cookies


def test_the_404_is_logged_once_as_django_logs_it(browser, shop, caplog):
    """``django.request`` warns of the path as for any other 404; bloomguard adds nothing."""
    browser.get("/products/8/")

    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("django.request", "Not Found: /products/8/")
    ]


@pytest.mark.parametrize("trouble", ["no filter", "fenced", "no folder", "no database"])
def test_what_is_not_certain_passes(browser, shop, trouble, clock, caplog, monkeypatch):
    """Without a filter, fenced, without the store or the state rows, the view and its query answer."""
    live = registry["product"]._runtime.active_filter
    if trouble == "no filter":
        live.store.drop("product", state.table.current("product").active)
        live.forget()
    elif trouble == "fenced":
        state.table.fence("product", "a test")
        clock.sleep(5)
    elif trouble == "no folder":
        for file in sorted(live.store.path.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        state.table.forget()
        live.forget()
        from bloomguard.stores import stores

        stores.reset()
    else:
        from django.db import OperationalError

        def fail(*args):
            raise OperationalError("gone")

        clock.sleep(5)
        monkeypatch.setattr(state.table.connection, "execute", fail)

    with CaptureQueriesContext(connection) as queries:
        responses = [browser.get(f"/products/{pk}/") for pk in (7, 8, 9)]

    assert [response.status_code for response in responses] == [200, 404, 404]
    assert len([query for query in queries if "shop_product" in query["sql"]]) == 3
    # A cold guard's 404 looks like an armed one's: nobody learns from a header which rows are hidden.
    assert [response.get("Cache-Control") for response in responses] == [None, "no-store", "no-store"]


def test_the_404_of_a_false_positive_looks_like_any_other(browser, shop):
    """The view has sent its query; no cache keeps the 404 either, as the row may come back."""
    browser.get("/products/7/")
    Product.objects.filter(pk=7).delete()  # which leaves its key in the filter

    assert [browser.get("/products/7/").get("Cache-Control") for _ in range(2)] == ["no-store"] * 2


def with_scope(get_response):
    """A middleware of the project that sets an attribute of its own, such as the scope of a token."""

    def middleware(request):
        request.scope = "read write"
        return get_response(request)

    return middleware


def test_a_request_may_have_another_scope(browser, shop, settings):
    """Under ASGI, Django's own attribute has the same name."""
    settings.MIDDLEWARE = [f"{__name__}.with_scope", GUARD]

    assert [browser.get(f"/products/{pk}/").status_code for pk in (7, 8)] == [200, 404]


def test_a_fenced_guard_answers_again_after_a_rebuild(browser, shop, build, django_assert_num_queries):
    """A rebuild arms the guard again."""
    state.table.fence("product", "a test")
    build("product")

    with django_assert_num_queries(0):
        assert browser.get("/products/8/").status_code == 404


def test_a_row_of_another_process_is_seen_when_the_lease_ends(browser, shop, clock):
    """The state rows are read again once a second, and only where an ABSENT is due."""
    browser.get("/products/8/")
    reads = []
    execute = state.table.connection.execute
    state.table.connection.execute = lambda *args: reads.append(args) or execute(*args)
    try:
        for _ in range(5):
            browser.get("/products/8/")
            browser.get("/products/7/")
        clock.sleep(5)
        browser.get("/products/7/")
        before = len(reads)
        browser.get("/products/8/")
        browser.get("/products/9/")
    finally:
        del state.table.connection.execute

    assert before == 0
    assert len(reads) == 1


def test_under_asgi_nothing_blocks_the_loop(shop, clock, monkeypatch):
    """Routes are found, state rows and filters read, and the 404 page is made, in threads that are not the loop's."""
    seen: dict[str, set[int]] = {"routes": set(), "rows": set(), "filter": set(), "page": set()}
    execute, open_ = state.table.connection.execute, FileStore.open

    class WatchedTable(table.RouteTable):
        def __init__(self, urlconf):
            seen["routes"].add(threading.get_ident())
            super().__init__(urlconf)

    def watched_execute(*args):
        seen["rows"].add(threading.get_ident())
        return execute(*args)

    def watched_open(*args):
        seen["filter"].add(threading.get_ident())
        return open_(*args)

    def watched_page(request, exception):
        seen["page"].add(threading.get_ident())
        return HttpResponseNotFound()

    monkeypatch.setattr(state.table.connection, "execute", watched_execute)
    monkeypatch.setattr(FileStore, "open", watched_open)
    monkeypatch.setattr("tests.shop.urls.handler404", watched_page, raising=False)
    monkeypatch.setattr(table, "RouteTable", WatchedTable)
    registry.replan()
    live = registry["product"]._runtime.active_filter

    async def visit():
        clock.sleep(5)
        first = await AsyncClient().get("/products-async/8/")
        live.forget()  # the lease is good, but the filter has to be opened
        second = await AsyncClient().get("/products-async/8/")
        return threading.get_ident(), first.status_code, second.status_code

    loop, *statuses = async_to_sync(visit)()

    assert statuses == [404, 404]
    assert all(seen.values())
    assert all(loop not in threads for threads in seen.values())


def test_it_is_sync_or_async_as_what_it_wraps():
    """The kind is decided once, when the handler is built."""
    from asgiref.sync import iscoroutinefunction

    async def aget_response(request):
        return HttpResponse()

    assert iscoroutinefunction(BloomGuardMiddleware(aget_response))
    assert not iscoroutinefunction(BloomGuardMiddleware(lambda request: HttpResponse()))


@pytest.mark.parametrize("place", [0, 1, -1])
def test_it_works_anywhere_in_the_stack(browser, shop, settings, place, django_assert_num_queries):
    """First, second or last in ``MIDDLEWARE``: no query for an absent ID, at the route or at the lookup."""
    others = [name for name in settings.MIDDLEWARE if name != GUARD]
    others.insert(len(others) if place < 0 else place, GUARD)
    settings.MIDDLEWARE = others

    with django_assert_num_queries(0):
        assert browser.get("/products/8/")["Cache-Control"] == "no-store"
    assert browser.get("/products/7/").content == b"product 7"


def test_applies_opts_out(browser, shop, settings, monkeypatch):
    """A request that the guard does not mind reaches the view and its query; it is asked where an answer is due."""
    asked = []
    called = []

    def applies(request):
        asked.append(request.get_full_path())
        return "preview" not in request.GET

    def view(request, pk):
        called.append(pk)
        return views.product(request, pk)

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view, name="product"))
    monkeypatch.setattr(registry["product"], "applies", applies)
    with CaptureQueriesContext(connection) as queries:
        statuses = [browser.get(url).status_code for url in ("/p/7/", "/p/8/", "/p/9/?preview=1")]

    assert statuses == [200, 404, 404]
    assert called == [7, 9]
    assert len(queries) == 2
    assert set(asked) == {"/p/8/", "/p/9/?preview=1"}


@pytest.mark.parametrize("cookie", [None, "no session has this key"])
@pytest.mark.parametrize("place", ["route", "lookup"])
def test_what_applies_reads_tells_nothing(browser, shop, settings, monkeypatch, place, cookie):
    """A 404 says ``Vary: Cookie``, or deletes a cookie, if ``applies`` reads the session: also that of a hidden row."""

    def hides(request, pk):
        if get_object_or_404(Product, pk=pk).name == "draft":
            raise Http404
        return HttpResponse(str(pk))

    Product.objects.filter(pk=7).update(name="draft")
    Product.objects.create(pk=9)
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        GUARD,
    ]
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", hides, name="product" if place == "route" else "other"))
    monkeypatch.setattr(registry["product"], "applies", lambda request: not request.user.is_staff)
    headers = {"cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"} if cookie else {}
    hidden, absent, there = (browser.get(f"/p/{pk}/", headers=headers) for pk in (7, 8, 9))

    assert (hidden.status_code, hidden.headers) == (absent.status_code, absent.headers)
    assert hidden.cookies.output() == absent.cookies.output()
    assert (absent.status_code, absent["Vary"]) == (404, "Cookie")
    assert (there.status_code, there.get("Vary"), there.cookies) == (200, None, {})


def test_an_error_inside_passes_and_is_logged_once(browser, shop, monkeypatch, caplog):
    """``applies`` that raises is no 500: the view answers, and the log says so once."""

    def fail(request):
        raise RuntimeError("oops")

    monkeypatch.setattr(registry["product"], "applies", fail)
    statuses = [browser.get(f"/products/{pk}/").status_code for pk in (7, 8, 9)]

    assert statuses == [200, 404, 404]
    assert [record.levelname for record in caplog.records if record.name == "bloomguard"] == ["ERROR"]


def test_a_thread_that_outlives_its_request_breaks_no_response(browser, shop, settings, monkeypatch):
    """It may be in the middle of a query, whose key becomes known while the middleware goes through those that are."""
    guard, applies = type(registry["product"]), registry["product"].applies

    def view(request):
        known = contexts.get().known
        get_object_or_404(Product, pk=7)
        late = property(lambda self: known.setdefault((self, b"late"), MAYBE) and applies)  # as if by a thread
        monkeypatch.setattr(guard, "applies", late)
        return HttpResponseNotFound()

    settings.ROOT_URLCONF = urlconf(path("", view))

    assert browser.get("/").status_code == 404


def test_without_the_app_the_message_is_what_to_add():
    """Not Django's, which asks for an ``app_label``."""
    code = (
        "import django; from django.conf import settings; settings.configure(INSTALLED_APPS=[]); django.setup(); "
        "import bloomguard.middleware"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert failed.stderr.splitlines()[-1].endswith("bloomguard is imported, but INSTALLED_APPS has no 'bloomguard'")
