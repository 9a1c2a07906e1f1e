"""The front door: what is answered before Django, with which page, and all that goes on."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpResponse, HttpResponseNotFound
from django.middleware.csrf import get_token
from django.urls import path, re_path

from bloomguard import asgi, wsgi
from bloomguard.exceptions import ConfigurationError
from bloomguard.guards import Guard, registry
from bloomguard.sync import state
from tests.front import Asgi, Wsgi
from tests.guarding import registered, urlconf
from tests.shop import views
from tests.shop.models import Product

STARTPROJECT = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]


@pytest.fixture(params=[Wsgi, Asgi], ids=["wsgi", "asgi"])
def shielded(request, settings):
    """``shielded()`` is a site with a front door, without any other guard."""
    settings.MIDDLEWARE = STARTPROJECT
    return request.param


@pytest.fixture
def shop(build):
    """Product 7 exists and the filter is built."""
    Product.objects.create(pk=7)
    build("product")


def pages(settings, *patterns, handler404=None):
    """The site's URLconf is of these patterns and this 404 page."""
    settings.ROOT_URLCONF = urlconf(*patterns, **({"handler404": handler404} if handler404 else {}))


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


def test_an_existing_id_is_served(shop, shielded):
    """What may exist goes on to Django."""
    site = shielded()

    assert site("/products/7/").body == b"product 7"
    assert site.reached == ["/products/7/"]


def test_head_has_no_body(shop, shielded):
    """HEAD has the headers of GET."""
    site = shielded()
    head, get = site("/products/8/", "HEAD"), site("/products/8/")

    assert (head.status, head.body, head.headers) == (404, b"", get.headers)
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

        monkeypatch.setattr(registry["product"].live, "ask", fail)
        monkeypatch.setattr(registry["product"].live, "ask_now", fail)
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


# -- the page


def test_the_page_is_the_sites_own(shop, shielded, settings):
    """What ``handler404`` makes of it is answered, if it makes the same of every request."""
    pages(
        settings,
        path("p/<int:pk>/", views.product, name="product"),
        handler404=lambda request, exception: HttpResponseNotFound("our page", headers={"X-Ours": "yes"}),
    )
    answer = shielded()("/p/8/")

    assert (answer.body, answer.headers["x-ours"]) == (b"our page", "yes")


@pytest.mark.parametrize(
    "page",
    [
        lambda request, exception: HttpResponseNotFound(request.path),
        lambda request, exception: HttpResponseNotFound(str(exception)),
        lambda request, exception: HttpResponseNotFound(request.headers.get("User-Agent", "")),
        lambda request, exception: HttpResponseNotFound(get_token(request)),
        lambda request, exception: HttpResponseNotFound(b"", headers={"Vary": "Accept-Language", "X-Static": "1"}),
    ],
)
def test_a_page_that_depends_on_the_request_is_a_small_one(shop, shielded, settings, page):
    """Nobody gets what was made for another; the headers that are always there stay."""
    pages(settings, path("p/<int:pk>/", views.product, name="product"), handler404=page)
    answer = shielded()("/p/8/")

    assert b"<h1>Not Found</h1>" in answer.body
    assert answer.headers["x-frame-options"] == "DENY"
    assert "set-cookie" not in answer.headers
    assert "vary" not in answer.headers


def test_a_page_that_varies_with_cookies_is_for_those_without(shop, shielded, settings):
    """Who brings a cookie gets the page from Django."""

    def page(request, exception):
        return HttpResponseNotFound(f"hello {request.session.get('name', 'stranger')}")

    pages(settings, path("p/<int:pk>/", views.product, name="product"), handler404=page)
    site = shielded()
    bare = site("/p/8/")
    reached = len(site.reached)
    site("/p/8/", headers={"cookie": "sessionid=abc"})

    assert bare.body == b"hello stranger"
    assert (reached, len(site.reached)) == (0, 1)


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


def test_a_proxys_word_that_is_said_twice_is_for_django(shop, settings):
    """Which of the two counts is Django's business."""
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    site = Asgi()
    told = [(b"x-forwarded-proto", b"http"), (b"x-forwarded-proto", b"https")]
    scope = {"type": "http", "method": "GET", "path": "/products/8/", "headers": [(b"host", b"testserver"), *told]}

    assert asyncio.run(site._ask(scope | {"query_string": b""})).status == 301
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


def test_hosts_without_www_are_redirected_as_ever(shop, shielded, settings):
    """``PREPEND_WWW`` redirects before anything is not found."""
    settings.PREPEND_WWW, settings.ALLOWED_HOSTS = True, [".site.example"]
    site = shielded()

    assert site("/products/8/", headers={"host": "site.example"}).status == 301
    assert (site("/products/8/", headers={"host": "www.site.example"}).status, len(site.reached)) == (404, 1)


def test_invented_hosts_fill_no_memory(shop, shielded, settings):
    """With a wildcard in ``ALLOWED_HOSTS`` only so many hosts are remembered."""
    from bloomguard.answers import frontdoor

    settings.ALLOWED_HOSTS = ["*"]
    door = frontdoor.front_door(shielded().handler)
    for number in range(3 * frontdoor._HOSTS):
        assert door.page(f"h{number}.example", False, False) is not None

    assert len(door._hosts) <= frontdoor._HOSTS


def test_the_capture_says_nothing_and_leaves_nothing(shop, shielded, caplog):
    """No line in the log, no patch on the handler."""
    caplog.set_level(logging.INFO)
    site = shielded()

    assert caplog.records == []
    assert "resolve_request" not in vars(site.handler)
    assert site.is_open


# -- routes


def test_routes_that_are_not_certain_by_their_path_go_on(build, shielded, settings):
    """``applies``, logins, languages and kwargs that the URLconf gives need a request; patterns before count."""
    from tests.shop.features import Private, ProductDetail

    Product.objects.create(pk=7)
    pages(
        settings,
        re_path(r"^re/7(?P<rest>\d)/$", lambda request, rest: HttpResponse("taken")),
        path("plain/<int:pk>/", views.product, name="plain"),
        path("applies/<int:pk>/", views.product, name="applies"),
        path("private/<int:pk>/", Private.as_view()),
        path("fixed/<int:pk>/", ProductDetail.as_view(), {"pk": 7}),
        re_path(r"^re/(?P<pk>\d+)/$", views.product, name="re"),
        *i18n_patterns(path("<int:pk>/", views.product, name="language")),
        path("after/<int:pk>/", views.product, name="after"),
    )
    with (
        registered(Product, name="plain", routes=["plain", "re", "language", "after"]),
        registered(Product, name="asks", routes=["applies"], applies=lambda self, request: False),
        registered(Product, name="auto", routes="auto"),
    ):
        for name in ("plain", "asks", "auto"):
            build(name)
        site = shielded()
        reached = {}
        for url in ("plain", "applies", "private", "fixed", "en", "after", "re"):
            site.reached.clear()
            site(f"/{url}/8/")
            reached[url] = len(site.reached)
        assert reached == {"plain": 0, "applies": 1, "private": 1, "fixed": 1, "en": 1, "after": 1, "re": 0}
        assert site("/re/79/").body == b"taken"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"DEBUG": True}, "DEBUG is on"),
        ({"FORCE_SCRIPT_NAME": "/x"}, "FORCE_SCRIPT_NAME is set"),
        ({"DISALLOWED_USER_AGENTS": ["x"]}, "DISALLOWED_USER_AGENTS is set"),
        ({"ROOT_URLCONF": urlconf()}, "no guarded route is certain"),
        ({"MIDDLEWARE": ["tests.test_frontdoor.sets_urlconf"]}, "a middleware sets request.urlconf"),
        (
            {"MIDDLEWARE": ["tests.test_frontdoor.sets_urlconf_of_one"], "ALLOWED_HOSTS": ["a", "one", "b", ".c"]},
            "a middleware sets request.urlconf",
        ),
        ({"MIDDLEWARE": ["tests.test_frontdoor.rewrites_path"]}, "a middleware rewrites request.path_info"),
        ({"MIDDLEWARE": ["tests.test_frontdoor.answers_all"]}, "the site answers no plain 404"),
        ({"ROOT_URLCONF": "no.such.urls"}, "an error"),
    ],
)
def test_where_it_cannot_know_it_stays_shut(shop, shielded, settings, caplog, change, reason):
    """The application itself comes back, and the log says why."""
    caplog.set_level(logging.INFO, "bloomguard")
    for name, value in change.items():
        setattr(settings, name, value)
    site = shielded()

    assert not site.is_open
    assert reason in caplog.text


@pytest.mark.parametrize("shield", [wsgi.shield, asgi.shield])
def test_only_djangos_own_application_is_taken(shield):
    """Another wrapper inside would be passed over, so it is refused at once."""
    with pytest.raises(ConfigurationError, match="Put other wrappers around"):
        shield(lambda environ, start_response: [])


def test_a_websocket_is_nobodys_business(shop, settings):
    """Other kinds of connections go on."""
    settings.MIDDLEWARE = STARTPROJECT
    site = Asgi()
    with pytest.raises(ValueError, match="Django can only handle ASGI/HTTP"):
        asyncio.run(site.application({"type": "websocket", "path": "/products/8/"}, None, None))


def sets_urlconf(get_response):
    def middleware(request):
        request.urlconf = "tests.shop.urls"
        return get_response(request)

    return middleware


def sets_urlconf_of_one(get_response):
    """One of the site's hosts has a URLconf of its own."""

    def middleware(request):
        if request.get_host() == "one":
            request.urlconf = "tests.shop.urls"
        return get_response(request)

    return middleware


def rewrites_path(get_response):
    def middleware(request):
        request.path_info = "/other/"
        return get_response(request)

    return middleware


def answers_all(get_response):
    return lambda request: HttpResponse("maintenance", status=503)


def test_the_guards_own_methods_count(shop, shielded):
    """A guard for other methods opens no door for GET."""
    with registered(Product, name="gets", routes=["product"], methods=["POST"]) as guard:
        site = shielded()
        guard_methods = guard.methods

    assert guard_methods == ["POST"]
    assert site("/products/8/", "POST").status == 403
    assert Guard.methods == ("GET", "HEAD")
