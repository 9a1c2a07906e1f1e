"""The page that the door sends: the probes that show it, all that keeps the door shut, and who gets the page."""

from __future__ import annotations

import asyncio
import logging
import re
import threading

import pytest
from django.contrib.messages import get_messages
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import OperationalError, connection, connections
from django.http import Http404, HttpResponse, HttpResponseNotAllowed, HttpResponseNotFound, StreamingHttpResponse
from django.middleware.csrf import get_token
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, get_script_prefix, get_urlconf, path, re_path, resolve
from django.urls.resolvers import RoutePattern
from django.utils import translation
from django.views.decorators.cache import never_cache

from bloomguard import asgi, wsgi
from bloomguard.door import probes
from bloomguard.door.paths import DoorRoute
from bloomguard.door.probes import absent_path
from bloomguard.routes.table import table_for
from tests.door.conftest import STARTPROJECT
from tests.door.site import Asgi, Wsgi
from tests.shop import features, views
from tests.shop.models import Place, Product
from tests.support.calls import call_asgi_with
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


def ours(name):
    return f"tests.door.middlewares.{name}"


def not_found(say):
    """A ``handler404`` whose page is what ``say(request, exception)`` gives."""
    return lambda request, exception: HttpResponseNotFound(say(request, exception))


class OwnPattern(URLPattern):
    """Resolves paths in its own way."""

    def resolve(self, path):
        return None


def own_page(request, pk):
    return HttpResponseNotFound(f"there is no product {len(str(pk))}")


# -- who gets the page


def test_the_page_is_the_sites_own(shop, shielded, pages):
    """What ``handler404`` makes is sent, if it makes the same of every request."""
    pages(handler404=lambda *args, **kwargs: HttpResponseNotFound("our page", headers={"X-Ours": "yes"}))
    site = shielded()
    plain = site("/nothing/here/")
    answer = site("/p/8/")

    assert (answer.body, answer.headers) == (b"our page", {**plain.headers, "cache-control": "no-store"})
    assert site.reached == ["/nothing/here/"]


def test_the_sites_own_cache_control_stays(shop, shielded, pages):
    """``no-store`` is for pages that say nothing of caches."""
    pages(handler404=lambda *args, **kwargs: HttpResponseNotFound(headers={"Cache-Control": "max-age=1"}))

    assert shielded()("/p/8/").headers["cache-control"] == "max-age=1"


def test_a_page_that_expires_is_not_kept(shop, shielded, pages, caplog):
    """Django sends another time with each; a time of the past, or 0, is the same for all."""
    pages(handler404=never_cache(lambda *args, **kwargs: HttpResponseNotFound()))
    site = shielded()
    site("/p/8/")
    kept = site.reached == []

    assert (kept, "has the header Expires, which depends on the time" in caplog.text) == (False, True)
    for past in ("0", "Thu, 01 Jan 1970 00:00:00 GMT"):
        pages(handler404=lambda *args, past=past, **kwargs: HttpResponseNotFound(headers={"Expires": past}))
        site = shielded()
        assert (site("/p/8/").headers["expires"], site.reached) == (past, [])


def test_each_host_has_its_own_page(shop, shielded, settings):
    """Tenants by host get what Django sends to their hosts; hosts that no probe asked for go on to Django."""
    settings.ALLOWED_HOSTS = ["a.example", ".b.example"]
    settings.MIDDLEWARE = [ours("by_host"), *STARTPROJECT]
    site = shielded()
    reached = {}
    for host in ("a.example", "b.example", "www.b.example", "A.example"):
        site.reached.clear()
        answer = site("/products/8/", headers={"host": host})
        assert (answer.status, answer.headers["x-tenant"]) == (404, host)
        reached[host] = len(site.reached)

    assert reached == {"a.example": 0, "b.example": 0, "www.b.example": 1, "A.example": 1}


@pytest.mark.parametrize(("middleware", "reached"), [("by_host", 0), ("by_port", 1)])
def test_a_page_that_names_the_port_is_for_one_port(shop, shielded, settings, middleware, reached):
    """Other ports of a host get the page where it is the same for them."""
    settings.MIDDLEWARE = [ours(middleware), *STARTPROJECT]
    site = shielded()
    plain = site("/products/8/").status, len(site.reached)
    site("/products/8/", headers={"host": "testserver:8000"})

    assert (plain, len(site.reached)) == ((404, 0), reached)
    assert site("/products/8/", headers={"host": "testserver:x"}).status == 400


def test_no_more_hosts_are_asked_than_a_start_can_wait_for(settings):
    """A domain with a dot before it stands for itself, and a host that nobody could have asked for is left out."""
    settings.ALLOWED_HOSTS = ["*", ".b.example", "B.example", "[::1]", "with space", "a.example:80"]
    few = probes.hosts()
    settings.ALLOWED_HOSTS = [f"h{number}.example" for number in range(200)]

    assert few == ["b.example", "[::1]"]
    assert len(probes.hosts()) == probes.MOST_HOSTS


def test_hosts_without_www_are_redirected_as_ever(shop, shielded, settings):
    """``PREPEND_WWW`` redirects before anything is not found."""
    settings.PREPEND_WWW, settings.ALLOWED_HOSTS = True, [".site.example"]
    site = shielded()

    assert site("/products/8/", headers={"host": "site.example"}).status == 301
    assert (site("/products/8/", headers={"host": "www.site.example"}).status, len(site.reached)) == (404, 1)


def test_where_http_is_redirected_only_https_is_answered(shop, shielded, settings):
    """With ``SECURE_SSL_REDIRECT`` a plain request gets Django's redirect, and HSTS is on the others alone."""
    settings.SECURE_SSL_REDIRECT, settings.SECURE_HSTS_SECONDS = True, 60
    site = shielded()
    plain, secure = site("/products/8/"), site("/products/8/", scheme="https")

    assert (plain.status, secure.status) == (301, 404)
    assert secure.headers["strict-transport-security"] == "max-age=60"
    assert len(site.reached) == 1


def test_a_proxys_word_counts_as_it_does_for_django(shop, shielded, settings):
    """``SECURE_PROXY_SSL_HEADER`` says which requests are secure, ``USE_X_FORWARDED_HOST`` for which host."""
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.USE_X_FORWARDED_HOST = True
    site = shielded()

    def ask(proto, host="testserver"):
        return site("/products/8/", headers={"x-forwarded-proto": proto, "x-forwarded-host": host, "host": "x"}).status

    assert (ask("https"), len(site.reached)) == (404, 0)
    assert (ask("http"), len(site.reached)) == (301, 1)
    assert (ask("https", "elsewhere.example"), len(site.reached)) == (400, 2)


@pytest.mark.parametrize(
    ("name", "first", "second", "status"),
    [
        (b"x-forwarded-proto", b"http", b"https", 301),
        (b"x-forwarded-host", b"elsewhere.example", b"testserver", 400),
        (b"host", b"elsewhere.example", b"testserver", 400),
    ],
)
def test_a_header_that_is_sent_twice_is_for_django(shop, settings, name, first, second, status):
    """Which of the two counts is Django's business: the door answers a request that has each once."""
    settings.SECURE_SSL_REDIRECT = settings.USE_X_FORWARDED_HOST = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    site = Asgi()
    once = {b"host": b"testserver", b"x-forwarded-proto": b"https"}
    scope = {"type": "http", "method": "GET", "path": "/products/8/", "query_string": b""}

    def ask(headers):
        return asyncio.run(call_asgi_with(site.application, scope | {"headers": headers}))[0]

    assert (ask(list(once.items())), site.reached) == (404, [])
    assert ask([*((key, value) for key, value in once.items() if key != name), (name, first), (name, second)]) == status
    assert site.reached == ["/products/8/"]


def test_an_error_of_the_servers_own_is_not_answered_twice(shop):
    """Whoever refuses the 404, since the visitor has gone, is not asked to begin another answer."""
    site, begun = Wsgi(), []

    def start_response(status, headers):
        begun.append(status)
        raise OSError("gone")

    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/products/8/",
        "HTTP_HOST": "testserver",
        "wsgi.url_scheme": "http",
    }
    with pytest.raises(OSError, match="gone"):
        site.application(environ, start_response)

    assert (begun, site.reached) == (["404 Not Found"], [])


def test_a_nonce_is_fresh_in_header_and_body(shop, shielded, pages, settings):
    """Each answer has a nonce that nobody has seen before, as long as the site's own."""
    settings.MIDDLEWARE = [ours("with_nonce"), *STARTPROJECT]
    pages(handler404=not_found(lambda request, exception: f'<script nonce="{request.nonce}"></script>'))
    site = shielded()
    seen = set()
    for method in ("GET", "GET", "HEAD"):
        answer = site("/p/8/", method)
        [nonce] = re.findall("^script-src 'nonce-(.{22})'; frame-ancestors 'none'$",
                             answer.headers["content-security-policy"])  # fmt: skip
        assert answer.body == f'<script nonce="{nonce}"></script>'.encode()
        seen.add(nonce)

    assert (len(seen), site.reached) == (3, [])


@pytest.mark.parametrize("shows", [True, False])
def test_a_page_that_shows_messages_is_for_those_without_cookies(shop, shielded, pages, settings, shows):
    """A message in a cookie is shown once, and the cookie deleted; `Vary` does not name it."""
    settings.MIDDLEWARE = STARTPROJECT
    settings.MESSAGE_STORAGE = "django.contrib.messages.storage.fallback.FallbackStorage"  # the default
    told = lambda request: [str(each) for each in get_messages(request)] if shows else ""  # noqa: E731
    pages(handler404=not_found(lambda request, exception: f"nothing here {told(request)}"))
    site = shielded()

    assert site("/p/8/").status == 404
    assert site.reached == []
    site("/p/8/", headers={"cookie": "a=1"})
    assert site.reached == (["/p/8/"] if shows else [])


@pytest.mark.parametrize("header", ["remote-user", "x-user"])
def test_who_is_signed_in_by_a_header_gets_the_page_from_django(shop, shielded, pages, settings, header):
    """`RemoteUserMiddleware` may sign in whoever comes with it, and set cookies."""
    signs_in = {"remote-user": "django.contrib.auth.middleware.RemoteUserMiddleware", "x-user": ours("ByOwnHeader")}
    settings.MIDDLEWARE = [*STARTPROJECT, signs_in[header]]
    pages(handler404=not_found(lambda request, exception: "nothing here"))
    site = shielded()
    assert site("/p/8/").status == 404
    assert site.reached == []

    if shielded is Wsgi and header == "remote-user":  # of the server's own, not of the client's
        application = site.application
        site.application = lambda environ, start: application({**environ, "REMOTE_USER": "ann"}, start)
        site("/p/8/")
    else:
        site("/p/8/", headers={header: "ann"})

    assert site.reached == ["/p/8/"]


def test_a_page_that_varies_with_cookies_is_for_those_without(shop, shielded, pages):
    """Who brings a cookie gets the page from Django; so does who brings credentials."""
    pages(handler404=not_found(lambda request, exception: f"hello {request.session.get('name', 'stranger')}"))
    site = shielded()
    bare = site("/p/8/")
    reached = [len(site.reached)]
    for headers in ({"cookie": "sessionid=abc"}, {"authorization": "Bearer abc"}):
        site("/p/8/", headers=headers)
        reached.append(len(site.reached))

    assert (bare.body, bare.headers["vary"], reached) == (b"hello stranger", "Cookie", [0, 1, 2])


def test_a_page_in_the_visitors_language_is_for_those_who_ask_for_none(shop, shielded, pages, settings):
    """``LocaleMiddleware`` says that the header counts, and takes the cookie as well."""
    settings.MIDDLEWARE = [*STARTPROJECT[:2], "django.middleware.locale.LocaleMiddleware", *STARTPROJECT[2:]]
    pages(handler404=not_found(lambda request, exception: translation.get_language()))
    site = shielded()
    bodies = [
        site("/p/8/", headers=headers).body
        for headers in ({}, {"accept-language": "de"}, {"cookie": f"{settings.LANGUAGE_COOKIE_NAME}=fr"})
    ]

    assert (bodies, len(site.reached)) == ([b"en", b"de", b"fr"], 2)


def test_compressed_pages_are_djangos_business(shop, shielded, pages, settings):
    """``GZipMiddleware`` makes another page for those who accept it, and says so in ``Vary``."""
    settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *STARTPROJECT]
    pages(handler404=not_found(lambda request, exception: "not found " * 100))
    site = shielded()
    plain, packed = site("/p/8/"), site("/p/8/", headers={"accept-encoding": "gzip"})

    assert ("content-encoding" in plain.headers, packed.headers["content-encoding"]) == (False, "gzip")
    assert len(site.reached) == 1


def test_a_head_has_the_headers_that_the_site_gives_to_one(shop, shielded, settings):
    """``ConditionalGetMiddleware`` gives an ``ETag`` to GET alone."""
    settings.MIDDLEWARE = ["django.middleware.http.ConditionalGetMiddleware", *STARTPROJECT]
    site = shielded()

    assert ["etag" in site("/products/8/", method).headers for method in ("GET", "HEAD")] == [True, False]
    assert site.reached == []


def test_strangers_get_the_page_of_strangers(shop, shielded, settings):
    """What a middleware tells insiders, such as whoever asks from the same host, is on no page of the door."""
    settings.MIDDLEWARE = [ours("tells_insiders"), *STARTPROJECT]
    site = shielded()

    assert site("/products/8/").headers["x-backend"] == "-"
    assert site.reached == []


def test_no_guard_answers_a_probe(shop, shielded, settings):
    """The page is the site's own, though a guard stands in front of what adds a header to it."""
    settings.MIDDLEWARE = [GUARD, *STARTPROJECT, ours("has_header")]
    site = shielded()

    assert site("/products/8/").headers["x-ours"] == "yes"
    assert site.reached == []


def test_nor_in_a_block_of_guarded_lookups(shop, shielded, settings):
    """A middleware that puts each request into one does not shut the door."""
    settings.MIDDLEWARE = [ours("guards_lookups"), *STARTPROJECT, GUARD]

    assert shielded().is_open


# -- what keeps the door shut


def get_alone(request, pk):
    return HttpResponseNotAllowed(["GET"]) if request.method == "HEAD" else views.product(request, pk)


SHUT = {
    "insiders alone": ({"middleware": "insiders_alone"}, "the site does not respond with a plain 404: GET http://testserver/"),
    "maintenance": ({"middleware": "maintenance"}, "/ has status 503"),
    "a 404 ahead of the view": ({"middleware": "hides_from_strangers"}, "before its view runs"),
    "fallback": ({"middleware": "fallback"}, "a 404 queries the database: GET "),
    "urlconf": ({"middleware": "sets_urlconf"}, "a middleware sets request.urlconf"),
    "urlconf of a host": (
        {"middleware": "sets_urlconf_of_one", "ALLOWED_HOSTS": ["a", "one", ".c"]},
        "a middleware sets request.urlconf",
    ),
    "path": ({"middleware": "rewrites_path"}, "a middleware rewrites request.path_info"),
    "cookie": ({"middleware": "sets_cookie"}, "has Set-Cookie"),
    "by address": ({"middleware": "by_address"}, "from another address differ in the header X-Network"),
    "by cookie": ({"middleware": "by_cookie"}, "with cookies differ in the header X-Known"),
    "by query": ({"middleware": "by_query"}, "with a query string differ in the header X-Page"),
    "by accept": ({"middleware": "by_accept"}, "of a browser differ in the header X-Kind"),
    "request id": ({"middleware": "request_id"}, "differ in the header X-Request-ID"),
    "csrf": ({"page": not_found(lambda request, exception: get_token(request))}, "has Set-Cookie"),
    "path on the page": ({"page": not_found(lambda request, exception: request.path)}, "differ in the body"),
    "exception on the page": ({"page": not_found(lambda request, exception: str(exception))}, "differ in the body"),
    "browser on the page": (
        {"page": not_found(lambda request, exception: request.headers.get("User-Agent", ""))},
        "of a browser differ in the body",
    ),
    "vary *": (
        {"page": lambda request, exception: HttpResponseNotFound(headers={"Vary": "*"})},
        "/ has Vary: *",
    ),
    "stream": ({"page": lambda request, exception: StreamingHttpResponse(["x"], status=404)}, "streams its body"),
    "no 404": ({"page": lambda request, exception: HttpResponse("hello")}, "/ has status 200"),
    "a view's own page": ({"urls": [path("p/<int:pk>/", own_page, name="product")]}, "/ differ in "),
    "no HEAD": (
        {"urls": [path("p/<int:pk>/", get_alone, name="product")]},
        "/ differ in the status: 404 and 405",
    ),
    "all paths": (
        {"urls": [path("p/<int:pk>/", views.product, name="product"), path("<path:rest>", views.product_str)]},
        "a URL pattern matches every path",
    ),
    "own resolver": (
        {"urls": [OwnPattern(RoutePattern("x/", is_endpoint=True), views.product),
                  path("p/<int:pk>/", views.product, name="product")]},
        "has its own way to resolve paths",
    ),
    "regex": (
        {"urls": [re_path(r"^p/(?P<pk>\d+)/(?P<other>[a-z]+)/$", views.product, name="product")]},
        "no route has a path with an absent ID",
    ),
    "no route": ({"urls": [path("p/", views.product)]}, "no guarded route is open and decided by its path"),
    "no host": ({"ALLOWED_HOSTS": ["*"]}, "name your hosts in ALLOWED_HOSTS"),
    "DEBUG": ({"DEBUG": True}, "DEBUG is on"),
    "FORCE_SCRIPT_NAME": ({"FORCE_SCRIPT_NAME": "/x"}, "FORCE_SCRIPT_NAME is set"),
    "DISALLOWED_USER_AGENTS": ({"DISALLOWED_USER_AGENTS": ["x"]}, "DISALLOWED_USER_AGENTS is set"),
    "an error": ({"ROOT_URLCONF": "no.such.urls"}, "because of an error"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHUT)
def test_where_it_cannot_know_it_stays_shut(shop, shielded, pages, settings, caplog, name):
    """The application itself comes back, and one line of the log says why."""
    caplog.set_level(logging.INFO, "bloomguard")
    change, reason = dict(SHUT[name][0]), SHUT[name][1]
    pages(*change.pop("urls", ()), handler404=change.pop("page", None))
    if "middleware" in change:
        settings.MIDDLEWARE = [ours(change.pop("middleware")), *STARTPROJECT]
    for setting, value in change.items():
        setattr(settings, setting, value)
    site = shielded()

    assert not site.is_open
    [record] = [record for record in caplog.records if record.name == "bloomguard"]
    assert record.message.startswith("bloomguard's door stays shut")
    assert reason in record.message
    assert (record.levelno >= logging.WARNING) is not settings.DEBUG


def test_a_fallback_names_its_table(shop, shielded, settings, caplog):
    """The log says where a 404 is looked up, and shows no statement."""
    settings.MIDDLEWARE = [*STARTPROJECT, ours("fallback")]
    shielded()

    assert caplog.messages[-1].endswith("reads shop_product")


def test_a_database_that_cannot_be_asked_keeps_it_shut(shop, shielded, caplog, monkeypatch):
    """A process that starts before its database serves as it would without a door."""

    def fail(*args, **kwargs):
        raise OperationalError("gone")

    monkeypatch.setattr("django.db.models.query.QuerySet.exists", fail)

    assert not shielded().is_open
    assert caplog.messages[-1].endswith("the search for absent IDs in the database failed (OperationalError)")


def test_errors_of_the_site_are_logged(shop, shielded, pages, caplog):
    """Probes hide no 500 from those who watch the log."""

    def broken(request, exception):
        raise ValueError("a broken page")

    pages(handler404=broken)
    site = shielded()

    assert not site.is_open
    assert "Internal Server Error" in caplog.text
    assert "/ has status 500" in caplog.messages[-1]


# -- absent IDs


def found_routes():
    table = table_for()
    return {route.pattern.text: DoorRoute(route, table.patterns) for route in table.open}


def test_an_absent_id_is_found_for_every_kind_of_key(shop):
    """Integers, UUIDs, texts, decimals, dates, and keys of several fields, through each converter."""
    routes = found_routes()
    made = {text: absent_path(route) for text, route in routes.items()}

    assert len(made) >= 10
    for text, route in routes.items():
        assert resolve(made[text]).func is route.pattern.callback


def test_the_converter_says_what_a_text_looks_like(shop, pages):
    """Two capitals, or hexadecimal digits: ``reverse()`` has to take it."""
    pages(
        re_path("^(?P<code>[A-Z]{2})/(?P<slug>[0-9]+)/$", views.place, name="place"),
        path("hex/<hex:pk>/", views.product, name="product"),
    )
    with (
        registered(Place, name="towns", lookup=("country", "slug"), routes={"place": {"country": "code"}}),
        registered(Product, name="hexed", routes=["product"]),
    ):
        made = [absent_path(route) for route in found_routes().values()]

    assert features.HexConverter.regex == "[0-9a-f]+"
    assert re.fullmatch("/[A-Z]{2}/[0-9]+/", made[0] if "hex" not in made[0] else made[-1])
    assert any(re.fullmatch("/hex/[0-9a-f]+/", one) for one in made)


@pytest.mark.parametrize("absent", [8, None])
def test_the_database_says_which_ids_are_absent(shop, monkeypatch, absent):
    """The filter may know nothing yet, at start; after a few IDs that exist the route is left out."""
    drawn = iter([7, 7, absent or 7] + [7] * 10)
    monkeypatch.setattr(probes._random, "randint", lambda least, most: next(drawn))
    route = found_routes()["/products/<int:pk>/"]
    with CaptureQueriesContext(connection) as queries:
        assert absent_path(route) == ("/products/8/" if absent else "")

    assert len(queries) == (3 if absent else 5)


def test_a_route_without_a_path_is_left_out(shop, shielded, pages, caplog):
    """Another kwarg, or a converter that asks the database: the other routes are answered all the same."""
    caplog.set_level(logging.DEBUG, "bloomguard")
    pages(
        path("other/<int:pk>/<str:other>/", lambda request, pk, other: views.product(request, pk), name="other"),
        path("p/<int:pk>/", views.product, name="product"),
    )
    with registered(Product, name="others", routes=["other"]):
        site = shielded()
        statuses = site("/p/8/").status, site("/other/8/x/").status

    assert (statuses, site.reached) == ((404, 404), ["/other/8/x/"])
    assert "the door does not answer /other/<int:pk>/<str:other>/: reverse() builds no path" in caplog.text.replace(
        "bloomguard's ", "the "
    )


def test_a_filter_may_be_cold_at_start(shielded, build):
    """What is asked of the database is asked once; the guard answers as soon as it knows."""
    site = shielded()
    cold = site("/products/8/").status, len(site.reached)
    Product.objects.create(pk=7)
    build("product")

    assert (site.is_open, cold) == (True, (404, 1))
    assert (site("/products/8/").status, site("/products/7/").body, len(site.reached)) == (404, b"product 7", 2)


# -- what probes leave behind


def test_the_probes_say_nothing_and_leave_nothing(shop, shielded, settings, caplog):
    """No line in the log, no language, no URLconf, no prefix, no filter of log records."""
    caplog.set_level(logging.DEBUG, "django.request")
    settings.MIDDLEWARE = [*STARTPROJECT[:2], "django.middleware.locale.LocaleMiddleware", *STARTPROJECT[2:]]
    settings.LANGUAGE_CODE = "fr"
    with translation.override("de"):
        site = shielded()
        assert translation.get_language() == "de"

    assert site.is_open
    assert (get_urlconf(), get_script_prefix()) == (None, "/")
    assert logging.getLogger("django.request").filters == []
    assert [record for record in caplog.records if record.name == "django.request"] == []


@pytest.mark.parametrize("is_open", [True, False])
def test_connections_are_as_they_were(shop, shielded, is_open):
    """What was opened for the probes is closed, so that no worker inherits it; what was open stays."""
    for each in connections.all():
        each.close()
    if is_open:
        connection.ensure_connection()
    before = connection.connection
    site = shielded()

    assert site.is_open
    assert connections["default"].connection is before
    assert [each.alias for each in connections.all() if each.connection is not None] == ["default"] * is_open
    assert (before is not None) is is_open


def test_no_thread_is_started_without_need(shop, pages, settings, monkeypatch):
    """A worker that is told to stop while it starts has no thread to wait for."""
    settings.MIDDLEWARE = STARTPROJECT
    pages()
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name) or start(thread))
    site = Wsgi()

    assert (site.is_open, started) == (True, [])


@pytest.mark.parametrize(("shield", "handler"), [(wsgi.shield, WSGIHandler), (asgi.shield, ASGIHandler)])
def test_on_an_event_loop_one_thread_asks(shop, settings, monkeypatch, shield, handler):
    """There Django would not let this thread ask the database."""
    settings.MIDDLEWARE = STARTPROJECT
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name) or start(thread))
    inner = handler()

    async def load():
        return shield(inner)

    assert asyncio.run(load()) is not inner
    assert started.count("bloomguard-probes_0") == 1


def test_probes_come_from_strangers(shop, shielded, settings, monkeypatch):
    """Addresses from documentation ranges, never the site's own."""
    seen = set()
    monkeypatch.setattr("tests.door.middlewares._is_insider", lambda request: seen.add(request.META.get("REMOTE_ADDR")))
    settings.MIDDLEWARE = [ours("tells_insiders"), *STARTPROJECT]

    assert shielded().is_open
    assert seen == {"192.0.2.10", "198.51.100.20", "10.0.0.10"}


def test_http404_from_the_view_is_what_is_asked_for(shop, shielded, pages):
    """The real view runs for each probe of its route."""
    asked = []

    def view(request, pk):
        asked.append(request.method)
        raise Http404

    pages(path("p/<int:pk>/", view, name="product"))

    assert shielded().is_open
    assert {"GET", "HEAD"} == set(asked)
    assert urlconf is not None
