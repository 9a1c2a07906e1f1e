"""The door: which requests it answers, and which go on to Django."""

from __future__ import annotations

import asyncio
import io
import logging
import threading
from contextlib import contextmanager
from wsgiref.handlers import SimpleHandler

import pytest
from asgiref.sync import sync_to_async
from django.conf.urls.i18n import i18n_patterns
from django.core.handlers.wsgi import WSGIHandler
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import clear_url_caches, include, path, re_path, register_converter
from django.urls.converters import IntConverter

from bloomguard import asgi, wsgi
from bloomguard.door import paths
from bloomguard.guards import Guard, registry
from bloomguard.guards.counters import counts
from bloomguard.routes.table import GuardedRoute, table_for
from bloomguard.signals import request_blocked
from bloomguard.state import table as state
from bloomguard.state.verdicts import MAYBE
from tests.door.conftest import STARTPROJECT
from tests.door.middlewares import MASK, tenant
from tests.door.site import Asgi
from tests.shop import views
from tests.shop.models import Article, Place, Product
from tests.support.guarding import registered, urlconf


def test_an_absent_id_never_reaches_django(shop, shielded, django_assert_num_queries):
    """404 with the site's page, no query, no request, nothing to be stored."""
    site = shielded()
    plain = site("/nothing/here/")
    site.reached.clear()
    with django_assert_num_queries(0):
        answer = site("/products/8/")

    assert (answer.status, answer.body) == (404, plain.body)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert site.reached == []


def test_the_projects_security_headers_are_kept(shop, shielded):
    """What the middleware stack adds to every answer is on this one, too."""
    site = shielded()
    plain, answer = site("/nothing/here/"), site("/products/8/")

    assert answer.headers == {**plain.headers, "cache-control": "no-store"}
    assert {"x-frame-options", "x-content-type-options", "referrer-policy"} <= set(answer.headers)


def hides_drafts(request, pk):
    """A page of the site has no draft for strangers."""
    if get_object_or_404(Product, pk=pk).name == "draft":
        raise Http404("No Product matches the given query.")
    return HttpResponse(str(pk))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "outer", [[], ["tests.door.middlewares.cached"], ["django.middleware.http.ConditionalGetMiddleware"]]
)
def test_its_404_looks_like_that_of_a_hidden_row(build, pages, shielded, settings, method, outer):
    """Each header is where Django sends it, with its capitals; no cache is told to keep it either."""
    pages(path("p/<int:pk>/", hides_drafts, name="product"))
    Product.objects.create(pk=7, name="draft")
    build("product")
    settings.MIDDLEWARE = [*outer, *STARTPROJECT, "bloomguard.middleware.BloomGuardMiddleware"]
    site = shielded()
    hidden, absent = site("/p/7/", method), site("/p/8/", method)

    assert site.reached == ["/p/7/"]
    assert (hidden.status, hidden.sent) == (absent.status, absent.sent)
    assert hidden.body == absent.body
    assert absent.headers["cache-control"] == "no-store"


def test_a_server_adds_no_header_to_it(build, pages, settings):
    """Some servers add a Content-Length to a list with one item, but not to Django's response."""
    pages(path("p/<int:pk>/", hides_drafts, name="product"))
    Product.objects.create(pk=7, name="draft")
    build("product")
    settings.ALLOWED_HOSTS, settings.MIDDLEWARE = ["testserver"], ["bloomguard.middleware.BloomGuardMiddleware"]
    application = wsgi.shield(WSGIHandler())

    def head_of_answer(url):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": url, "QUERY_STRING": "", "HTTP_HOST": "testserver"}
        environ |= {"SERVER_NAME": "testserver", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1"}
        sent = io.BytesIO()
        SimpleHandler(io.BytesIO(), sent, io.StringIO(), environ).run(application)
        return [line for line in sent.getvalue().partition(b"\r\n\r\n")[0].splitlines() if b"Date" not in line]

    assert head_of_answer("/p/7/") == head_of_answer("/p/8/")
    assert head_of_answer("/p/8/")[-1] == b"Cache-Control: no-store"


def test_an_existing_id_is_served(shop, shielded):
    """What may exist goes on to Django."""
    site = shielded()

    assert site("/products/7/").body == b"product 7"
    assert site.reached == ["/products/7/"]


def test_what_the_door_has_asked_is_not_asked_again(shop, shielded, settings, monkeypatch):
    """Neither by the route nor by the view's query; with another guard, or in doubt, the route asks."""
    settings.MIDDLEWARE = [*STARTPROJECT, "bloomguard.middleware.BloomGuardMiddleware"]
    site, checked, routed = shielded(), [], []
    site("/products/7/")
    active, asked = registry["product"]._runtime.active_filter, GuardedRoute.asked
    name, check = active.last_check
    monkeypatch.setattr(active, "last_check", (name, lambda key: checked.append(key) or check(key)))
    monkeypatch.setattr(GuardedRoute, "asked", lambda *given: routed.append(given) or asked(*given))

    assert site("/products/7/").body == b"product 7"
    assert (len(checked), routed) == (1, [])
    monkeypatch.setattr(registry["product"], "mode", "shadow")
    site("/products/8/")
    assert len(routed) == 1


def test_a_door_that_is_switched_off_asks_no_guard(shop, shielded, settings):
    """``ENABLED`` may change while the site runs: then every request goes on, and none is counted."""
    site = shielded()
    site("/products/7/")
    before = counts.read()
    settings.BLOOMGUARD = {"ENABLED": False}

    assert [site("/products/7/").status, site("/products/8/").status] == [200, 404]
    assert site.reached == ["/products/7/"] * 2 + ["/products/8/"]
    assert counts.read() == before


@pytest.mark.parametrize("name", ["Unmasks", "CallsUnmasked", "unmasks"])
def test_a_process_view_may_give_the_view_another_id(shop, pages, shielded, settings, name):
    """The door cannot know which row a path means then, and no probe of an absent ID shows it."""
    pages()
    settings.MIDDLEWARE = [*STARTPROJECT, f"tests.door.middlewares.{name}"]
    site = shielded()

    assert site(f"/p/{7 ^ MASK}/").body == b"product 7"
    assert not site.is_open


def test_djangos_and_bloomguards_own_process_view_leave_the_door_open(shop, pages, shielded, settings):
    """As the one that checks CSRF tokens: they give the view what the path says."""
    pages()
    settings.MIDDLEWARE = [*STARTPROJECT, "bloomguard.middleware.BloomGuardMiddleware"]

    assert shielded().is_open


class OfTenant(IntConverter):
    """Each tenant counts from its own number on."""

    def to_python(self, value):
        return int(value) - 100 * bool(tenant.get())


class Long(IntConverter):
    """Numbers of two digits or more; how they are read is Django's."""

    regex = "[0-9]{2,}"


register_converter(OfTenant, "of_tenant")
register_converter(Long, "long")


@pytest.mark.parametrize("before", [[], [path("p/<of_tenant:pk>/", views.product_str)]])
def test_a_converter_of_the_project_may_follow_the_request(shop, pages, shielded, settings, before):
    """Before any middleware has run, it would read another ID; also that of an earlier pattern may take a path."""
    kind = "int" if before else "of_tenant"
    pages(*before, path(f"p/<{kind}:pk>/", views.product, name="product"), path("l/<long:pk>/", views.product))
    settings.MIDDLEWARE = [*STARTPROJECT, "tests.door.middlewares.notes_tenant"]
    site = shielded()

    assert not before or site("/p/8/").status == 404
    assert before or site("/p/107/", headers={"x-tenant": "yes"}).body == b"product 7"
    assert not site.is_open


def test_a_converter_with_djangos_code_reads_as_django_does(shop, pages, shielded):
    """Only what it takes is the project's."""
    pages(path("p/<long:pk>/", views.product, name="product"))
    site = shielded()

    assert (site("/p/88/").status, site.reached) == (404, [])
    assert (site("/p/8/").status, site.reached) == (404, ["/p/8/"])


def test_head_is_answered_like_get(shop, shielded):
    """HEAD has the headers of GET, and its body, as Django's responses have: the server drops it."""
    site = shielded()
    head, get = site("/products/8/", "HEAD"), site("/products/8/")

    assert (head.status, head.body, head.headers) == (404, get.body, get.headers)
    assert site.reached == []


def test_a_query_string_changes_nothing(shop, shielded):
    """A path is a path, whatever follows it."""
    site = shielded()

    assert site("/products/8/?page=2").status == 404
    assert site.reached == []


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"path": "/products/8/", "method": "POST"}, 403),
        ({"path": "/products/8/", "method": "OPTIONS"}, 404),
        ({"path": "/products/0/"}, 200),
        ({"path": "/products/8"}, 301),
        ({"path": "/products/٨/"}, 404),
        ({"path": "/products/x/"}, 404),
        ({"path": "/products/+8/"}, 404),
        ({"path": "products/8/"}, 404),
        ({"path": ""}, 404),
        ({"path": "/products/8/", "mount": "/below"}, 404),
        ({"path": "/products/8/", "headers": {"host": "elsewhere.example"}}, 400),
        ({"path": "/products/8/", "headers": {"host": ""}}, 400),
        ({"path": "/products/8/", "headers": {"host": "a b"}}, 400),
        ({"path": "/articles/x/"}, 404),
    ],
)
def test_what_is_not_certain_goes_on(shop, shielded, settings, asked, status):
    """Other methods, earlier patterns, other scripts' digits, mounts, unknown hosts, guards that know nothing yet."""
    site = shielded()
    answer = site(**asked)

    assert answer.status == status
    assert len(site.reached) == 1


def test_a_path_that_only_looks_like_an_id_tells_nothing(shop, shielded, settings):
    """``int("+7")`` is 7, but Django does not match the path: its 404 is the same whether there is a row or not."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "bloomguard.middleware.BloomGuardMiddleware"]
    site = shielded()
    there, absent = site("/products/+7/"), site("/products/+8/")

    assert (there.status, there.headers) == (absent.status, absent.headers)
    assert there.status == 404


def test_the_lease_is_kept(shop, shielded, clock):
    """When the copy of the state rows has grown old it is read again, and then the answer is the same."""
    site = shielded()
    site("/products/8/")
    clock.sleep(5)

    assert site("/products/8/").status == 404
    assert site.reached == []


def test_a_row_that_comes_is_seen(shop, shielded):
    """No false 404: what is created is served from then on."""
    site = shielded()
    before = site("/products/9/").status
    Product.objects.create(pk=9)

    assert (before, site("/products/9/").status) == (404, 200)


@pytest.mark.parametrize("trouble", ["fenced", "no database", "error"])
def test_in_doubt_it_passes(shop, shielded, clock, monkeypatch, caplog, trouble):
    """A fence, state rows that cannot be read, and errors of our own let everything through; errors are said once."""
    site = shielded()
    if trouble == "fenced":
        state.table.fence("product", "a test")
        clock.sleep(5)
    elif trouble == "no database":
        monkeypatch.setattr(state.table, "_read", lambda: (_ for _ in ()).throw(state.DatabaseError("gone")))
        clock.sleep(5)
    else:

        def fail(key):
            raise RuntimeError("oops")

        monkeypatch.setattr(registry["product"]._runtime.active_filter, "ask", fail)
        monkeypatch.setattr(registry["product"]._runtime.active_filter, "ask_now", fail)
    caplog.clear()

    assert [site(f"/products/{pk}/").status for pk in (7, 8, 9)] == [200, 404, 404]
    assert len(site.reached) == 3
    assert len([record for record in caplog.records if record.name == "bloomguard"]) <= 1


def test_under_asgi_a_verdict_that_waits_is_asked_for_in_a_thread(shop, settings, clock, monkeypatch):
    """The loop never reads the state rows."""
    settings.MIDDLEWARE = STARTPROJECT
    site, threads = Asgi(), set()
    execute = state.table.connection.execute
    monkeypatch.setattr(
        state.table.connection, "execute", lambda *args: threads.add(threading.get_ident()) or execute(*args)
    )
    clock.sleep(5)

    assert site("/products/8/").status == 404
    assert site.reached == []
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_under_asgi_a_receiver_waits_for_no_background_task(shop):
    """asgiref has one thread for what belongs to no request: a task of the process may hold it for long."""
    site, released, heard = Asgi(), threading.Event(), []
    scope = {"type": "http", "method": "GET", "path": "/products/8/", "headers": [(b"host", b"testserver")]}

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        heard.append(message["type"])

    def note(**kwargs):
        heard.append("blocked")

    async def both():
        task = asyncio.ensure_future(sync_to_async(released.wait)())
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(site.application(scope, receive, send), 60)
        finally:
            released.set()
            await task

    with connected(note):
        asyncio.run(both())

    assert heard == ["blocked", "http.response.start", "http.response.body"]


# -- routes


def test_routes_that_are_not_certain_by_their_path_go_on(build, shielded, pages):
    """``applies``, logins, languages and kwargs that the URLconf gives need a request; patterns before count."""
    from tests.shop.features import Private, ProductDetail

    def set_applies(self, model):
        Guard.__init__(self, model)
        self.applies = lambda request: False

    Product.objects.create(pk=7)
    pages(
        re_path(r"^re/7(?P<rest>\d)/$", lambda request, rest: HttpResponse("taken")),
        path("plain/<int:pk>/", views.product, name="plain"),
        path("applies/<int:pk>/", views.product, name="applies"),
        path("set/<int:pk>/", views.product, name="set"),
        path("private/<int:pk>/", Private.as_view()),
        path("fixed/<int:pk>/", ProductDetail.as_view(), {"pk": 7}),
        re_path(r"^re/(?P<pk>\d+)/$", views.product, name="re"),
        *i18n_patterns(path("<int:pk>/", views.product, name="language")),
        path("after/<int:pk>/", views.product, name="after"),
    )
    with (
        registered(Product, name="plain", routes=["plain", "re", "language", "after"]),
        registered(Product, name="asks", routes=["applies"], applies=lambda self, request: False),
        registered(Product, name="sets", routes=["set"], __init__=set_applies),
        registered(Product, name="auto", routes="auto"),
    ):
        for name in ("plain", "asks", "sets", "auto"):
            build(name)
        site = shielded()
        reached = {}
        for url in ("plain", "applies", "set", "private", "fixed", "en", "after", "re"):
            site.reached.clear()
            site(f"/{url}/8/")
            reached[url] = len(site.reached)
        passed = dict.fromkeys(("applies", "set", "private", "fixed", "en", "after"), 1)
        assert reached == {"plain": 0, "re": 0, **passed}
        assert site("/re/79/").body == b"taken"


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_404_that_becomes_a_redirect_goes_on(build, shielded, settings, pages, slash):
    """``LocaleMiddleware`` adds the language to a path that is not found, where ``i18n_patterns`` takes it."""
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *STARTPROJECT]
    pages(
        path(f"p/<slug:slug>{slash}", views.article, name="article"),
        *i18n_patterns(path("p/<int:year>/", lambda request, year: HttpResponse("of this year"))),
    )
    with registered(Article, name="articles", lookup="slug", routes=["article"]):
        build("articles")
        site = shielded()
        year, word = site(f"/p/2024{slash}"), site(f"/p/word{slash}")

    assert (year.status, year.headers["location"], word.status) == (302, "/en/p/2024/", 404)
    assert site.reached == [f"/p/2024{slash}"]


@pytest.mark.parametrize("shield", [wsgi.shield, asgi.shield])
def test_only_djangos_own_application_gets_a_door(shield, caplog):
    """Another wrapper inside would be passed over. A package that traces may wrap it in production alone."""

    def wrapped(environ, start_response):
        return []

    assert shield(wrapped) is wrapped
    assert "not Django's handler. Put other wrappers around shield()" in caplog.text


def test_what_is_around_the_door_may_change_an_answer(shop, shielded):
    """As a package does that adds a header or compresses a body: the next visitor gets nothing of it."""
    site = shielded()
    application, before = site.application, [site("/products/8/", method) for method in ("GET", "HEAD")]

    def change(headers):
        headers.append((b"set-cookie", b"for=one") if isinstance(site, Asgi) else ("Set-Cookie", "for=one"))

    def around(environ, start_response):
        def start(status, headers):
            change(headers)
            start_response(status, headers)

        list(application(environ, start))
        return [b"changed"]

    async def around_async(scope, receive, send):
        async def changed(message):
            if "headers" in message:
                change(message["headers"])
                message["headers"] = [*message["headers"], (b"x-more", b"1")]
            else:
                message["body"] = b"changed"
            await send(message)

        await application(scope, receive, changed)

    site.application = around_async if isinstance(site, Asgi) else around
    changed = [site("/products/8/", method) for method in ("GET", "HEAD")]
    site.application = application

    assert all(answer.headers["set-cookie"] == "for=one" and answer.body == b"changed" for answer in changed)
    assert [site("/products/8/", method) for method in ("GET", "HEAD")] == before
    assert site.reached == []


def test_a_websocket_is_nobodys_business(shop, settings):
    """Other kinds of connections go on."""
    settings.MIDDLEWARE = STARTPROJECT
    site = Asgi()
    with pytest.raises(ValueError, match="Django can only handle ASGI/HTTP"):
        asyncio.run(site.application({"type": "websocket", "path": "/products/8/"}, None, None))


def test_the_guards_own_methods_count(shop, shielded):
    """A guard for other methods opens no door for GET."""
    with registered(Product, name="gets", routes=["product"], methods=["POST"]) as guard:
        site = shielded()
        guard_methods = guard.methods

    assert guard_methods == ["POST"]
    assert site("/products/8/", "POST").status == 403
    assert Guard.methods == ("GET", "HEAD")


# -- Django's resolver has the last word


def test_what_django_captures_is_asked_for(shop, shielded, monkeypatch):
    """If the first look reads another ID than Django, the request is Django's."""
    monkeypatch.setattr(paths, "_reader", lambda route: lambda path: 8)
    site = shielded()

    assert (site("/products/7/").status, site("/products/9/").status) == (200, 404)
    assert site.reached == ["/products/7/", "/products/9/"]


def test_an_include_is_a_border(build, shielded, pages):
    """A slug ends where Django's resolver ends it, not where one long expression could."""
    pages(
        path("<slug:code>-", include([path("<slug:slug>/", views.place, name="place")])),
        path("<slug:page>/", lambda request, page: HttpResponse(f"the page {page}"), name="page"),
    )
    with registered(Place, name="towns", lookup=("country", "slug"), routes={"place": {"country": "code"}}):
        build("towns")
        site = shielded()

        assert site("/de-ulm/").status == 404
        assert site("/about-us-/").body == b"the page about-us-"
    assert site.reached == ["/about-us-/"]


def test_a_guard_that_did_not_answer_counts_nothing(shop, shielded):
    """A path that an earlier pattern takes is no blocked request."""
    site, blocked = shielded(), []

    def note(sender, guard, **kwargs):
        blocked.append(guard.name)

    with connected(note):
        site("/products/0/")
        before = list(blocked)
        site("/products/8/")

    assert (before, blocked) == ([], ["product"])


@pytest.mark.parametrize("inside", [[], ["tests.door.middlewares.has_header"]], ids=["last", "around another"])
def test_what_the_door_has_asked_is_asked_once(shop, shielded, settings, inside):
    """The middleware takes the door's answer over, also under ASGI if a middleware below makes it a synchronous one."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "bloomguard.middleware.BloomGuardMiddleware", *inside]
    site, passed = shielded(), registry["product"]._runtime.counters
    before = passed.read().get(MAYBE.reason, 0)
    site("/products/7/")

    assert passed.read().get(MAYBE.reason, 0) == before + 1


@contextmanager
def connected(receiver):
    request_blocked.connect(receiver)
    try:
        yield
    finally:
        request_blocked.disconnect(receiver)


@pytest.mark.parametrize("change", ["reloaded", "ROOT_URLCONF"])
def test_the_door_is_shut_when_urls_are_reloaded(shop, shielded, pages, settings, caplog, change):
    """Patterns that came since may take any path: from then on all goes on, and the log says so once."""
    caplog.set_level(logging.INFO, "bloomguard")
    pages()
    site = shielded()
    before = site("/p/8/").status, len(site.reached)
    patterns = [path("p/8/", lambda request: HttpResponse("news")), *settings.ROOT_URLCONF.urlpatterns]
    if change == "reloaded":
        settings.ROOT_URLCONF.urlpatterns[:] = patterns
        clear_url_caches()
    else:
        settings.ROOT_URLCONF = urlconf(*patterns)

    assert before == (404, 0)
    assert [site(f"/p/{pk}/").body for pk in (7, 8, 8)] == [b"product 7", b"news", b"news"]
    assert [record.message for record in caplog.records if record.name == "bloomguard"] == [
        "bloomguard's door is shut: the site's URLs were reloaded"
    ]


def test_a_shadow_answers_nothing(shop, shielded, monkeypatch):
    """What a guard in shadow mode knows to be absent goes on to Django."""
    monkeypatch.setattr(registry["product"], "mode", "shadow")
    site = shielded()
    site("/products/8/")

    assert site.reached == ["/products/8/"]


def test_may_answer_says_why_not(shop, shielded, pages):
    """``explain_guard`` tells for each route whether the door can answer it."""
    pages(
        path("plain/<int:pk>/", views.product, name="plain"),
        path("applies/<int:pk>/", views.product, name="applies"),
        path("fixed/<int:pk>/", views.product, {"pk": 7}, name="fixed"),
        *i18n_patterns(path("spoken/<int:pk>/", views.product, name="spoken")),
    )
    with (
        registered(Product, name="names", routes=["plain", "fixed", "spoken"]),
        registered(Product, name="asks", routes=["applies"], applies=lambda self, request: False),
        registered(Product, name="posts", routes=["plain"], methods=["POST"]),
    ):
        found = {(route.guard.name, route.pattern.view_name): route.not_at_door for route in table_for().open}

    assert found == {
        ("names", "plain"): "",
        ("names", "fixed"): "the URLconf sets the ID, not the path",
        ("names", "spoken"): "/<language>/spoken/<int:pk>/ matches other paths in another language",
        ("asks", "applies"): "TemporaryGuard.applies needs the request",
        ("posts", "plain"): "its guard and its view have neither GET nor HEAD in common",
    }


def test_the_body_of_a_request_is_read_before_the_answer(shop):
    """As by Django: a server may close the connection, with all that it carries, after an answer to half a request."""
    site, did, left = Asgi(), [], []
    body = [{"type": "http.request", "body": b"x", "more_body": more} for more in (True, True, False)]
    scope = {"type": "http", "method": "GET", "path": "/products/8/", "headers": [(b"host", b"testserver")]}

    async def receive():
        did.append("receive")
        return left.pop(0)

    async def send(message):
        did.append(message["type"])

    for messages, wanted in (
        (body, ["receive"] * 3 + ["http.response.start", "http.response.body"]),
        ([body[0], {"type": "http.disconnect"}], ["receive"] * 2),
    ):
        did[:], left[:] = [], messages
        asyncio.run(site.application(scope, receive, send))
        assert did == wanted
    assert site.reached == []
