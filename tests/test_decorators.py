"""``@guarded``: the guard of one view, sync or async."""

from __future__ import annotations

import logging
import threading
import tracemalloc

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.http import Http404, HttpResponse, HttpResponseNotFound
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from bloomguard.decorators import guarded
from bloomguard.exceptions import ConfigurationError
from bloomguard.guards import registry
from bloomguard.guards.counters import AVOIDED, BLOCKED
from bloomguard.lookups import guarded_lookups
from bloomguard.state import table as state
from bloomguard.state.verdicts import MAYBE
from tests.shop.models import Product
from tests.support import database
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


def wsgi(url, method="get"):
    return getattr(Client(), method)(url)


def asgi(url, method="get"):
    return async_to_sync(getattr(AsyncClient(), method))(url)


@pytest.fixture(params=[wsgi, asgi], ids=["wsgi", "asgi"])
def ask(request, settings):
    """``ask(url)`` under WSGI and ASGI, without the middleware: the decorator works alone."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != GUARD]
    return request.param


def spy(view_kind, calls, name="product", **arguments):
    """A view, sync or async, that notes its calls, decorated."""
    if view_kind == "async":

        @guarded(name, **arguments)
        async def view(request, pk="none"):
            calls.append(pk)
            return HttpResponse("seen")
    else:

        @guarded(name, **arguments)
        def view(request, pk="none"):
            calls.append(pk)
            return HttpResponse("seen")

    return view


both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.mark.parametrize("url", ["/decorated/{}/", "/decorated-async/{}/"])
def test_an_absent_id_is_not_found_and_asks_nothing(ask, shop, url, django_assert_num_queries):
    """The view does not run, and the database is not asked."""
    with django_assert_num_queries(0):
        response = ask(url.format(8))

    assert response.status_code == 404
    assert not response.cookies


@pytest.mark.parametrize("client", [wsgi, asgi], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("url", ["/decorated/{}/", "/decorated-async/{}/"])
def test_with_the_middleware_the_request_is_asked_for_once_and_counts_once(client, shop, url):
    """The decorator, and the view's own query, share one answer; the response is kept out of caches."""
    registry["product"]._runtime.counters.forget()
    absent, existing = client(url.format(8)), client(url.format(7))

    assert (absent.status_code, absent["Cache-Control"], existing.status_code) == (404, "no-store", 200)
    counted = registry["product"]._runtime.counters.read()
    assert (counted["absent"], counted["maybe"], counted[BLOCKED]) == (1, 1, 1)
    assert AVOIDED not in counted


@pytest.mark.parametrize("url", ["/decorated/{}/", "/decorated-async/{}/"])
def test_an_existing_id_is_served(ask, shop, url):
    """What exists reaches the view."""
    assert ask(url.format(7)).content == b"product 7"


@both_kinds
def test_only_get_and_head_are_answered(ask, shop, settings, kind):
    """Other methods reach the view, whatever the ID."""
    calls = []
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", spy(kind, calls)))

    statuses = [ask("/8/", method).status_code for method in ("get", "head", "options", "delete")]

    assert statuses == [404, 404, 200, 200]
    assert calls == [8, 8]


@both_kinds
def test_the_sites_own_page_is_answered(ask, shop, settings, kind):
    """``handler404`` makes the page, of what ``get_object_or_404`` would say."""

    def handler404(request, exception):
        return HttpResponseNotFound(f"our own page: {exception}")

    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", spy(kind, [])), handler404=handler404)

    assert ask("/8/").content == b"our own page: No Product matches the given query."


@both_kinds
def test_applies_opts_out(ask, shop, settings, kind, monkeypatch):
    """A request that the guard does not mind reaches the view."""
    calls = []
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", spy(kind, calls)))
    monkeypatch.setattr(registry["product"], "applies", lambda request: "preview" not in request.GET)

    assert [ask(url).status_code for url in ("/8/", "/8/?preview=1")] == [404, 200]
    assert calls == [8]


@pytest.mark.parametrize("middleware", [[], [GUARD]])
def test_applies_opts_out_of_a_block_too(shop, settings, monkeypatch, middleware):
    """A block of guarded lookups has no request, but the view has."""
    calls = []
    settings.MIDDLEWARE = middleware
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", guarded_lookups()(spy("sync", calls))))
    monkeypatch.setattr(registry["product"], "applies", lambda request: "preview" not in request.GET)

    assert [wsgi(url).status_code for url in ("/8/", "/8/?preview=1")] == [404, 200]
    assert calls == [8]


@both_kinds
def test_an_error_inside_passes_and_is_logged_once(ask, shop, settings, kind, monkeypatch, caplog):
    """What goes wrong in the guard is no 500: the view answers."""

    def fail(request):
        raise RuntimeError("oops")

    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", spy(kind, [])))
    monkeypatch.setattr(registry["product"], "applies", fail)
    with caplog.at_level(logging.INFO, logger="bloomguard"):
        response = ask("/8/")

    assert response.content == b"seen"
    assert [(record.name, record.levelname) for record in caplog.records] == [("bloomguard", "ERROR")]


@both_kinds
def test_a_router_that_refuses_writes_is_no_500(ask, fresh, db, settings, kind, monkeypatch):
    """Not even for a number out of range beside a text that not every database takes: the view answers."""

    def refuse(self, model, **hints):
        raise PermissionError("this site is read-only")

    with registered(Product, name="numbered", lookup=("pk", "name")):
        settings.ROOT_URLCONF = urlconf(path("<str:name>/<int:id>/", numbered_views[kind]))
        monkeypatch.setattr(database.Router, "db_for_write", refuse)

        assert ask(f"/caf\u00e9/{2**70}/").content == b"seen"


@guarded("numbered")
def numbered(request, id, name):
    return HttpResponse("seen")


@guarded("numbered")
async def anumbered(request, id, name):
    return HttpResponse("seen")


numbered_views = {"sync": numbered, "async": anumbered}


@both_kinds
@pytest.mark.parametrize("arguments", [{}, {"arg": "pk"}, {"arg": {"id": "pk"}}], ids=str)
def test_a_call_without_the_id_passes(ask, shop, settings, kind, arguments):
    """A pattern that leaves the ID to the view's default is not guarded."""
    calls = []
    view = spy(kind, calls, **arguments)
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", view), path("", view))

    assert [ask(url).status_code for url in ("/8/", "/")] == [404, 200]
    assert calls == ["none"]


@both_kinds
def test_without_a_filter_the_view_answers(ask, fresh, db, settings, kind):
    """UNKNOWN passes."""
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", spy(kind, [])))

    assert ask("/8/").content == b"seen"


def test_under_asgi_the_rows_are_read_in_a_thread(shop, clock, monkeypatch):
    """An async view's guard blocks the loop for nothing, and answers at the first request after the lease."""
    threads = set()
    execute = state.table.connection.execute
    monkeypatch.setattr(
        state.table.connection, "execute", lambda *args: threads.add(threading.get_ident()) or execute(*args)
    )
    registry["product"]._runtime.active_filter.forget()
    clock.sleep(5)
    view = spy("async", [])

    async def visit():
        with pytest.raises(Http404):
            await view(RequestFactory().get("/"), pk=8)
        return threading.get_ident()

    loop = async_to_sync(visit)()

    assert threads
    assert loop not in threads


def test_several_fields_are_named_or_found(fresh, db, monkeypatch):
    """A composite's arguments are found by the fields' names, or said field by field."""
    asked = []
    monkeypatch.setattr(
        registry["place"]._runtime, "decide_in_full", lambda value, key=None: asked.append(list(value)) or MAYBE
    )

    @guarded("place")
    def usual(request, slug, country):
        return HttpResponse()

    @guarded("place", arg={"country": "code", "slug": "name"})
    def named(request, name, code):
        return HttpResponse()

    usual(RequestFactory().get("/"), slug="ulm", country="DE")
    named(RequestFactory().get("/"), name="ulm", code="DE")

    assert asked == [["DE", "ulm"]] * 2


def test_a_guard_whose_routes_name_kwargs_decorates_too(fresh, db):
    """What ``routes`` says of patterns does not disturb a decorator."""
    with registered(Product, name="item", routes={"product": "number"}):

        @guarded("item")
        def view(request, pk):
            return HttpResponse("seen")

        assert view(RequestFactory().get("/"), pk=8).content == b"seen"


def test_class_based_views(shop):
    """``method_decorator`` puts it on a class, and the result of ``as_view`` may be decorated, sync or async."""

    @method_decorator(guarded("product", arg="pk"), name="dispatch")
    class Page(View):
        def get(self, request, pk):
            return HttpResponse("seen")

    class AsyncPage(View):
        async def get(self, request, pk):
            return HttpResponse("seen")

    def get():
        return RequestFactory().get("/")

    whole = guarded("product", arg="pk")(Page.as_view())
    async_page = guarded("product")(AsyncPage.as_view())

    for view in (Page.as_view(), whole, async_to_sync(async_page)):
        assert view(get(), pk=7).content == b"seen"
        with pytest.raises(Http404, match="No Product matches the given query"):
            view(get(), pk=8)


def test_arguments_whose_names_users_choose_take_no_memory(shop):
    """A view that takes any argument may be called with the names of a request's JSON."""
    view = guarded("product")(lambda request, pk, **options: HttpResponse(pk))
    request = RequestFactory().get("/")
    view(request, pk=7)

    tracemalloc.start()
    try:
        for number in range(1_000):
            assert view(request, pk=7, **{f"{number:0>10000}": True}).content == b"7"
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5_000_000


def test_a_kwarg_may_have_any_name(shop):
    """Also one that code of the decorator's own has."""

    @guarded("product")
    async def view(request, pk, question):
        return question

    assert async_to_sync(view)(RequestFactory().get("/"), pk=7, question="why") == "why"


def test_a_decorated_view_is_what_it_was():
    """Name, docstring and kind stay."""

    @guarded("product")
    async def page(request, pk):
        """Shows it."""

    assert iscoroutinefunction(page)
    assert (page.__name__, page.__doc__) == ("page", "Shows it.")


@pytest.mark.parametrize("given", [lambda request, pk: None, ["product"]])
def test_a_name_that_is_none_is_refused_at_once(given):
    """Without its parentheses the decorator gets the view, and each request would end with an error."""
    with pytest.raises(ConfigurationError, match=r"@guarded was given .*; it takes the name of a guard"):
        guarded(given)


@pytest.mark.parametrize("arg", ["number", {"id": "number"}])
def test_an_argument_that_the_view_lacks_is_refused_at_once(arg):
    """The mistake is said where it is made: when the module is imported."""
    with pytest.raises(ConfigurationError, match=r"view: it has no argument 'number'; it has request, pk"):

        @guarded("product", arg=arg)
        def view(request, pk):
            """Never called."""


@both_kinds
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("prodcut", {}, "no guard 'prodcut'; known are"),
        ("order", {}, None),
        ("article", {}, "expected slug"),
        ("place", {"arg": "pk"}, "add the arguments for ['slug']"),
        ("place", {"arg": {"slug": "pk"}}, "add the arguments for ['country']"),
    ],
)
def test_a_mistake_is_logged_once_and_passes(fresh, db, caplog, kind, name, arguments, message):
    """An unknown guard, or arguments that cannot be told, are one line of log that names the value, and no 500."""
    view = spy(kind, [], name, **arguments)
    call = async_to_sync(view) if kind == "async" else view

    answers = [call(RequestFactory().get("/"), pk=8).content for _ in range(3)]

    assert answers == [b"seen"] * 3
    assert len(caplog.records) == (message is not None)
    assert message is None or message in str(caplog.records[0].exc_info[1])


# -- methods


class Plain(View):
    @guarded("product")
    def get(self, request, pk):
        return HttpResponse("seen")


class Async(View):
    @guarded("product")
    async def get(self, request, pk):
        return HttpResponse("seen")


class ByMethodDecorator(View):
    @method_decorator(guarded("product", arg="pk"))
    def get(self, request, pk):
        return HttpResponse("seen")


class AsyncByMethodDecorator(View):
    @method_decorator(guarded("product"))
    async def get(self, request, pk):
        return HttpResponse("seen")


@method_decorator(guarded("product"), name="dispatch")
class AsyncDispatch(View):
    async def get(self, request, pk):
        return HttpResponse("seen")


class AsyncOwnDispatch(View):
    @guarded("product", arg="pk")
    def dispatch(self, *args, **kwargs):
        return super().dispatch(*args, **kwargs)

    async def get(self, request, pk):
        return HttpResponse("seen")


METHODS = [Plain, Async, ByMethodDecorator, AsyncByMethodDecorator, AsyncDispatch, AsyncOwnDispatch]


@pytest.mark.parametrize("view", METHODS, ids=lambda view: view.__name__)
def test_methods_are_guarded(ask, shop, settings, clock, view):
    """``@guarded`` stands on a method of a class-based view, by itself or by ``method_decorator``, sync or async."""
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", view.as_view()))
    registry["product"]._runtime.active_filter.forget()
    clock.sleep(5)

    answers = [ask(url) for url in ("/8/", "/7/", "/8/")]

    assert [answer.status_code for answer in answers] == [404, 200, 404]


def test_a_decorated_view_says_by_which_guard():
    """Whoever walks through a URLconf can tell, of functions and of methods."""
    assert (spy("sync", []).guarded_by, spy("async", []).guarded_by) == ("product", "product")
    assert {view.get.guarded_by for view in METHODS[:4]} == {"product"}
