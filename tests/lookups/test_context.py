"""Where queries ask the guards: in requests that the middleware has seen, and in blocks that say so."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.admin import AdminSite
from django.contrib.auth import get_user_model
from django.db import connections, transaction
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import aget_object_or_404, get_object_or_404
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.views.generic import DeleteView, DetailView, UpdateView
from rest_framework import serializers
from rest_framework.generics import RetrieveAPIView

from bloomguard.decorators import guarded
from bloomguard.guards import registry, runtime
from bloomguard.guards.counters import listeners
from bloomguard.lookups import context
from bloomguard.lookups.context import LookupContext, contexts, guarded_lookups
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from tests.lookups.test_select import ABSENT, queries, rows, sent
from tests.shop.models import Bundle, Diary, Product
from tests.support import database
from tests.support.guarding import registered, urlconf

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]


@pytest.fixture
def shop(build):
    """Product 7 exists, and the filter is built."""
    Bundle.objects.create(pk=7, name="tea")
    build("product")


class Wsgi:
    def __call__(self, url, method="get", user=None):
        client = Client()
        if user:
            client.force_login(user)
        return getattr(client, method)(url)


class Asgi:
    def __call__(self, url, method="get", user=None):
        client = AsyncClient()
        if user:
            client.force_login(user)
        return async_to_sync(getattr(client, method))(url)


@pytest.fixture(params=[Wsgi, Asgi], ids=["wsgi", "asgi"])
def ask(request, shop):
    return request.param()


class Shown:
    def render_to_response(self, context, **kwargs):
        return HttpResponse(f"{self.object.pk}")


class Detail(Shown, DetailView):
    model = Product


class Update(Shown, UpdateView):
    model = Product
    fields = ("name",)


class Delete(Shown, DeleteView):
    model = Product


class Serializer(serializers.ModelSerializer):
    class Meta:
        model = Product
        fields = ("id", "name")


class Api(RetrieveAPIView):
    queryset = Product.objects.all()
    serializer_class = Serializer


def function(request, pk):
    return HttpResponse(f"{get_object_or_404(Product, pk=pk).pk}")


async def afunction(request, pk):
    return HttpResponse(f"{(await aget_object_or_404(Product, pk=pk)).pk}")


async def threaded(request, pk):
    """An async view that does its work in a thread."""
    return await sync_to_async(function)(request, pk)


async def gathered(request, pk):
    """Tasks of the request are in its context."""
    found, _ = await asyncio.gather(rows.filter(pk=pk).afirst(), rows.filter(pk=pk).aexists())
    return HttpResponse(status=200 if found else 404)


VIEWS = {
    "function": function,
    "async": afunction,
    "sync_to_async": threaded,
    "gather": gathered,
    "DetailView": Detail.as_view(),
    "UpdateView": Update.as_view(),
    "DeleteView": Delete.as_view(),
    "rest framework": Api.as_view(),
}


def test_views_are_guarded_without_a_route(ask, settings):
    """No guard names their patterns; their own queries ask."""
    settings.ROOT_URLCONF = urlconf(*(path(f"{number}/<int:pk>/", view) for number, view in enumerate(VIEWS.values())))
    for number, name in enumerate(VIEWS):
        for method in ("get", "head"):
            with sent() as found:
                absent = ask(f"/{number}/{ABSENT}/", method)

            assert (name, absent.status_code, found) == (name, 404, [])
            assert absent["Cache-Control"] == "no-store"
            assert ask(f"/{number}/7/", method).status_code == 200


def test_the_admins_change_view_is_guarded(ask, settings):
    """Its answer to an absent row, a redirect with a message, is its own."""
    site = AdminSite()
    site.register(Product)
    settings.ROOT_URLCONF = urlconf(path("admin/", site.urls))
    root = get_user_model().objects.create_superuser("root")
    with sent() as found:
        response = ask(f"/admin/shop/product/{ABSENT}/change/", user=root)

    assert response.status_code == 302
    assert [sql for sql in found if "shop_product" in sql] == []
    assert ask("/admin/shop/product/7/change/", user=root).status_code == 200


def test_a_post_is_left_alone(ask, settings):
    """A form may have written the row a moment ago, or is about to."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", function))
    with sent() as found:
        assert ask(f"/p/{ABSENT}/", "post").status_code == 404

    assert len(found) == 1


def test_a_guard_may_name_more_methods(ask, settings, monkeypatch):
    """``methods`` widens it."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", function))
    monkeypatch.setattr(registry["product"], "methods", ("GET", "POST"), raising=False)
    registry.changed()
    try:
        with sent() as found:
            assert ask(f"/p/{ABSENT}/", "post").status_code == 404
    finally:
        monkeypatch.undo()
        registry.changed()

    assert found == []


def test_each_guard_has_its_own_methods(ask, settings, clock, monkeypatch):
    """Another guard's methods widen nothing."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", function))
    with registered(Diary, name="posts", methods=("GET", "POST")), sent() as found:
        assert ask(f"/p/{ABSENT}/", "post").status_code == 404

    assert len(found) == 1


def test_a_thread_of_a_view_is_left_alone(ask, settings):
    """What runs beside the request is not the request."""
    seen = []

    def view(request, pk):
        def work():
            try:
                seen.append(queries(lambda: rows.filter(pk=pk).first()))
            finally:
                connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return HttpResponse()

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))

    assert ask(f"/p/{ABSENT}/").status_code == 200
    assert seen == [1]


def test_a_request_within_a_request_has_its_own_rule(ask, settings):
    """A view may send one, as by a test client: a POST in a GET is left alone, a GET in a POST is guarded."""
    found = {}

    def inner(request, pk):
        found[request.method] = queries(lambda: rows.filter(pk=pk).first())
        return HttpResponse("inner")

    def outer(request, pk):
        getattr(Client(), "post" if request.method == "GET" else "get")(f"/in/{pk}/")
        found["outer"] = queries(lambda: rows.filter(pk=pk).first())
        return HttpResponse("outer")

    settings.ROOT_URLCONF = urlconf(path("in/<int:pk>/", inner), path("out/<int:pk>/", outer))

    ask(f"/out/{ABSENT}/")
    assert found == {"POST": 1, "outer": 0}
    ask(f"/out/{ABSENT}/", "post")
    assert found == {"POST": 1, "GET": 0, "outer": 1}


def test_a_thread_that_copies_the_context_is_guarded(shop, settings):
    """``asyncio.to_thread`` is the request's own code in another thread, as ``sync_to_async`` is."""
    found = []

    async def view(request, pk):
        found.append(await asyncio.to_thread(lambda: queries(lambda: rows.filter(pk=pk).first())))
        return HttpResponse("x")

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))
    Asgi()(f"/p/{ABSENT}/")

    assert found == [0]


def shown(product):
    """The page of a product, unless that is a draft: the site hides it."""
    if product.name == "draft":
        raise Http404("No Product matches the given query.")
    return HttpResponse(product.name)


def counted(request, pk):
    """The guard answers no aggregate."""
    if not Product.objects.filter(pk=pk).count():
        raise Http404
    return shown(Product.objects.filter(pk__in=[pk]).get())


def locked(request, pk):
    """Nor a lock."""
    with transaction.atomic():
        return shown(get_object_or_404(Product.objects.select_for_update(), pk=pk))


def in_a_transaction(request, pk):
    """Nor, with a cuckoo filter, a query in a transaction."""
    with transaction.atomic():
        return shown(get_object_or_404(Product, pk=pk))


@pytest.mark.parametrize("kind", ["auto", "cuckoo"])
@pytest.mark.parametrize("view", [counted, locked, in_a_transaction])
def test_a_hidden_row_looks_like_an_absent_one_where_no_guard_answers(view, kind, settings, build):
    """The short check knows of the draft, whatever the query is; the full one does not read a key from each."""
    Product.objects.bulk_create([Product(pk=7, name="draft"), Product(pk=9, name="tea")])
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view), path("q/<int:pk>/", function))
    registry.remove(plain := registry["product"])
    try:
        with registered(Product, name="product", filter=kind):
            build("product")
            Client().get(f"/q/{ABSENT}/")  # from now on the guard knows its filter
            hidden, absent = Client().get("/p/7/"), Client().get("/p/8/")
    finally:
        registry.add(plain)

    assert (hidden.status_code, hidden.headers) == (absent.status_code, absent.headers)
    assert (hidden.status_code, hidden["Cache-Control"]) == (404, "no-store")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_of_a_view_is_left_alone(shop, settings):
    """It may outlive the request, whose end it does not hear of."""
    found = []

    def view(request, pk):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, b"open" if contexts.get() is not None else b"none")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        found.extend([os.read(reading, 10), contexts.get() is not None])
        os.close(reading)
        os.close(writing)
        return HttpResponse("x")

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))
    Wsgi()("/p/7/")

    assert found == [b"none", True]


def test_applies_may_look_up_rows_of_the_guard(ask, settings, clock):
    """Guards answer none of its queries: one for the user asked for ``applies`` again, and again."""
    user = get_user_model().objects.create_user("gone")
    calls = []

    def applies(self, request):
        calls.append(get_user_model().objects.filter(pk=request.GET["user"]).first())
        return True

    def view(request, pk):
        return HttpResponse(f"{get_user_model().objects.filter(pk=pk).first()}")

    settings.ROOT_URLCONF = urlconf(path("u/<int:pk>/", view))
    with registered(get_user_model(), name="users", applies=applies) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with sent() as found:
            assert ask(f"/u/{user.pk + 1}/?user={user.pk + 1}").content == b"None"
            assert ask(f"/u/{user.pk}/?user={user.pk}").content == b"gone"

    assert calls == [None]
    assert len(found) == 2  # that of `applies`, and that for the user who exists


def test_a_task_that_outlives_its_request_is_left_alone(shop, settings):
    """It has the request's context variables, but that context of lookups is over."""

    async def visit():
        over, tasks = asyncio.Event(), []

        async def later(pk):
            await over.wait()
            assert await rows.filter(pk=pk).afirst() is None

        async def view(request, pk):
            assert await rows.filter(pk=pk).afirst() is None
            tasks.append(asyncio.create_task(later(pk)))
            return HttpResponse()

        settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))
        assert (await AsyncClient().get(f"/p/{ABSENT}/")).status_code == 200
        over.set()
        await tasks[0]

    with sent() as found:
        async_to_sync(visit)()

    assert len(found) == 1


def test_a_queryset_of_a_streamed_body_is_left_alone(shop, settings):
    """The body is made when the response has left the middleware."""

    def body(pk):
        for row in rows.filter(pk=pk):
            yield f"{row.pk}"

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", lambda request, pk: StreamingHttpResponse(body(pk))))
    response = Client().get(f"/p/{ABSENT}/")
    with sent() as found:
        assert b"".join(response.streaming_content) == b""

    assert len(found) == 1


def test_a_lazy_queryset_of_a_template_is_guarded(shop, settings):
    """It is evaluated within the request."""
    from django.template import engines
    from django.template.response import TemplateResponse

    def view(request, pk):
        template = engines["django"].from_string("{% for row in rows %}{{ row.pk }}{% empty %}none{% endfor %}")
        return TemplateResponse(request, template, {"rows": rows.filter(pk=pk)})

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))
    with sent() as found:
        assert Client().get(f"/p/{ABSENT}/").content == b"none"

    assert found == []


def test_guarded_lookups_is_a_block_and_a_decorator(shop):
    """For code outside of requests that follows links."""

    @guarded_lookups()
    def look():
        return rows.filter(pk=ABSENT).first()

    with guarded_lookups():
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
    assert [queries(look) for _ in range(2)] == [0, 0]
    assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1


@pytest.mark.parametrize("pk", [7, ABSENT])
@pytest.mark.parametrize("is_decorated", [False, True])
def test_the_404_of_a_block_in_a_request_is_kept_out_of_caches(ask, settings, pk, is_decorated):
    """As any other 404 of a request in which a guard was asked."""

    def view(request, pk):
        with guarded_lookups():
            get_object_or_404(rows, pk=pk)
        raise Http404

    page = guarded_lookups()(guarded("product")(missing)) if is_decorated else view
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", page))

    response = ask(f"/p/{pk}/")
    assert (response.status_code, response.get("Cache-Control")) == (404, "no-store")


def missing(request, pk):
    raise Http404


def test_a_block_that_runs_for_hours_follows_the_mode(shop, monkeypatch):
    """A guard that goes into shadow mode answers no query any more, not even one that it has answered before."""
    with guarded_lookups():
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
        monkeypatch.setattr(registry["product"], "mode", "shadow")
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1


def test_a_row_that_the_request_makes_is_found_by_it(ask, settings):
    """An absence is asked anew each time: ``get_or_create`` in a GET makes one row and finds it afterwards."""

    def view(request, pk):
        assert not rows.filter(pk=pk).exists()
        _, made = rows.get_or_create(pk=pk)
        _, again = rows.get_or_create(pk=pk)
        return HttpResponse(f"{made} {again} {rows.filter(pk=pk).exists()}")

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))

    assert ask(f"/p/{ABSENT}/").content == b"True False True"
    assert ask("/p/9/").content == b"True False True"
    assert rows.count() == 3


def test_the_same_with_atomic_requests(ask, settings, monkeypatch):
    """Within the transaction of the request."""

    def view(request, pk):
        _, made = rows.get_or_create(pk=pk)
        _, again = rows.get_or_create(pk=pk)
        return HttpResponse(f"{made} {again}")

    monkeypatch.setitem(connections.settings[database.current], "ATOMIC_REQUESTS", True)
    monkeypatch.setitem(connections[database.current].settings_dict, "ATOMIC_REQUESTS", True)
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view))

    assert [ask(f"/p/{ABSENT}/").content for _ in range(2)] == [b"True False", b"False False"]


def test_a_maybe_is_asked_for_once_a_request(shop, settings, monkeypatch):
    """The route and the view's queries share one answer."""
    asked = []
    guard = registry["product"]
    ask_ = guard._runtime.active_filter.ask
    monkeypatch.setattr(guard._runtime.active_filter, "ask", lambda key: asked.append(key) or ask_(key))
    settings.ROOT_URLCONF = urlconf(
        path("p/<int:pk>/", lambda request, pk: HttpResponse(rows.filter(pk=pk).first() and rows.get(pk=pk).name),
             name="product")
    )  # fmt: skip

    assert Client().get("/p/7/").content == b"tea"
    assert len(asked) == 1


def test_listeners_hear_of_rows_that_exist(shop):
    """Also after the first one, which has opened the filter."""
    heard = []

    def listen(guard, value, decision):
        heard.append((guard.name, value, decision.reason))

    listeners.append(listen)
    try:
        for _ in range(2):
            with guarded_lookups():
                assert rows.get(pk=7).pk == 7
    finally:
        listeners.remove(listen)

    assert heard == [("product", 7, "maybe")] * 2


def test_a_server_is_asked_once_for_an_absent_row(shop, monkeypatch):
    """A look that decides nothing would be a round trip more."""
    active, asked = registry["product"]._runtime.active_filter, []
    with guarded_lookups():
        assert rows.get(pk=7).pk == 7  # opens the filter
    name, check = active.last_check
    monkeypatch.setattr(type(active.store), "is_remote", True)
    monkeypatch.setattr(active, "is_remote", True)
    monkeypatch.setattr(active, "last_check", (name, lambda key: asked.append(key) or check(key)))
    with guarded_lookups():
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0

    assert len(asked) == 1


@pytest.mark.parametrize("ask_", [LookupContext.ask, async_to_sync(LookupContext.aask)])
def test_a_context_knows_few_answers(shop, monkeypatch, ask_):
    """A block may run for hours: past a limit a key is asked for each time."""
    for module in (runtime, context):
        monkeypatch.setattr(module, "MOST_KNOWN", 2)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(11, 15))

    block = LookupContext()
    for pk in range(11, 15):
        assert ask_(block, registry["product"], pk).verdict is Verdict.MAYBE
    with guarded_lookups():
        for pk in range(11, 15):
            assert rows.get(pk=pk).pk == pk
        assert len(contexts.get().known) == len(block.known) == 2


def test_the_thousandth_query_that_is_not_sent_costs_no_more_than_the_first():
    """Each is noted in the same time: 100,000 within seconds."""
    request, began = LookupContext(RequestFactory().get("/")), time.perf_counter()
    for _ in range(100_000):
        request.note_avoided(registry["product"])

    assert len(request.avoided) == 100_000
    assert time.perf_counter() - began < 5
