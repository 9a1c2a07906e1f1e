"""Where ``BloomGuardMiddleware`` stands in ``MIDDLEWARE``, and what it answers there."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.core import checks
from django.core.cache import cache, caches
from django.core.cache.backends.locmem import LocMemCache
from django.http import Http404, HttpResponse, HttpResponseNotFound
from django.middleware.cache import FetchFromCacheMiddleware
from django.shortcuts import get_object_or_404
from django.test import AsyncClient, Client
from django.urls import clear_url_caches, path, register_converter

from bloomguard import Verdict, aget_or_load, get_or_load, registry
from bloomguard.guards import counters as counts
from bloomguard.routes.openness import BEFORE_CACHE, ELSEWHERE, LAST, MISSING, guards_place
from bloomguard.state import table as state
from tests.shop import views
from tests.shop.models import Article, Product
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
UPDATE, FETCH = (f"django.middleware.cache.{name}CacheMiddleware" for name in ("Update", "FetchFrom"))
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
XVIEW = "django.contrib.admindocs.middleware.XViewMiddleware"
HERE = __name__


class Passing:
    """Middleware of the project's that looks at nothing."""

    sync_capable = async_capable = True

    def __new__(cls, get_response):
        return get_response


class Looking:
    """Middleware of the project's that answers in place of some views."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    def process_view(self, request, view, args, kwargs):
        return HttpResponse("closed for maintenance", status=503)


def looking(get_response):
    """A factory function of such middleware: no class in the settings has its method."""
    return Looking(get_response)


class OwnFetch(FetchFromCacheMiddleware):
    """A project's own kind of the cache middleware."""


class Gets(LocMemCache):
    """Counts what the cache is asked for."""

    asked: list[str] = []

    def get(self, key, *args, **kwargs):
        self.asked.append(key)
        return super().get(key, *args, **kwargs)


@pytest.fixture
def shop(build, settings):
    """Product 7 exists, and the filter is built; ``called`` has the IDs that the view was called for."""
    called: list[int] = []

    def view(request, pk):
        called.append(pk)
        return views.product(request, pk)

    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view, name="product"))
    Product.objects.create(pk=7)
    build("product")
    return called


def wsgi(url, **options):
    return Client(raise_request_exception=False).get(url, **options)


def asgi(url, **options):
    return async_to_sync(AsyncClient(raise_request_exception=False).get)(url, **options)


both = pytest.mark.parametrize("get", [wsgi, asgi])

PLACES = {
    LAST: [["guard"], ["other", "guard"], ["looking", "guard"], ["update", "fetch", "guard"]],
    BEFORE_CACHE: [["update", "guard", "fetch"], ["csrf", "guard", "fetch"], ["guard", "own fetch"]],
    ELSEWHERE: [
        ["guard", "other"],
        ["guard", "fetch", "other"],
        ["guard", "other", "fetch"],
        ["looking", "guard", "fetch"],
        ["xview", "guard", "fetch"],
        ["guard", "guard"],
    ],
    MISSING: [[], ["other"]],
}
NAMES = {
    "guard": GUARD,
    "other": f"{HERE}.Passing",
    "looking": f"{HERE}.Looking",
    "update": UPDATE,
    "fetch": FETCH,
    "own fetch": f"{HERE}.OwnFetch",
    "csrf": CSRF,
    "xview": XVIEW,
}


@pytest.mark.parametrize(("place", "names"), [(place, names) for place, lists in PLACES.items() for names in lists])
def test_where_it_stands(settings, place, names):
    """Last; right before the cache, if nothing unknown looks at the view before that; or elsewhere."""
    settings.MIDDLEWARE = [NAMES[name] for name in names]

    assert guards_place() == place


@both
def test_last_it_answers_before_the_view(shop, settings, get, django_assert_num_queries):
    """The view of an absent row is not called."""
    settings.MIDDLEWARE = [CSRF, GUARD]
    with django_assert_num_queries(0):
        assert get("/p/8/").status_code == 404
    assert get("/p/7/").status_code == 200
    assert shop == [7]


@both
def test_elsewhere_it_answers_at_the_lookup(shop, settings, get, django_assert_num_queries):
    """The view is called, whose query is answered."""
    settings.MIDDLEWARE = [GUARD, f"{HERE}.Passing"]
    with django_assert_num_queries(0):
        assert get("/p/8/").status_code == 404
    assert shop == [8]


@both
@pytest.mark.parametrize("names", [["guard", "looking"], ["looking", "guard", "fetch"], ["looking", "guard"]])
def test_other_middleware_has_the_first_word(shop, settings, get, names):
    """What answers in place of a view answers in place of an absent row's as well."""
    settings.MIDDLEWARE = [NAMES[name] for name in names]

    assert [get(f"/p/{pk}/").status_code for pk in (7, 8)] == [503, 503]


@both
def test_what_a_factory_makes_has_the_first_word_too(shop, settings, get):
    """Which methods its middleware has is known when Django has loaded it: then the guard waits for the lookup."""
    settings.MIDDLEWARE = [UPDATE, f"{HERE}.looking", GUARD, FETCH]

    assert [get(f"/p/{pk}/").status_code for pk in (7, 8)] == [503, 503]


def test_middleware_of_djangos_that_answers_in_place_of_a_view_does_so_for_an_absent_row(shop, settings):
    """``XViewMiddleware`` itself answers a HEAD of staff, or from ``INTERNAL_IPS``; for all others the view runs."""
    settings.MIDDLEWARE = [
        UPDATE,
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        XVIEW,
        GUARD,
        FETCH,
    ]
    settings.INTERNAL_IPS = ["127.0.0.1"]

    responses = [Client().head(f"/p/{pk}/") for pk in (7, 8)]
    assert [(each.status_code, "X-View" in each) for each in responses] == [(200, True), (200, True)]
    assert shop == []


@both
def test_before_the_cache_nobody_asks_the_cache_for_an_absent_row(shop, settings, get, django_assert_num_queries):
    """It answers one step earlier, so the cache is asked for rows that may be there alone."""
    settings.CACHES = {"default": {"BACKEND": f"{HERE}.Gets", "LOCATION": "gets"}}
    settings.MIDDLEWARE = [UPDATE, GUARD, FETCH]
    Gets.asked.clear()
    with django_assert_num_queries(0):
        absent = get("/p/8/")
    assert (absent.status_code, absent["Cache-Control"]) == (404, "no-store")
    assert Gets.asked == []

    first, second = get("/p/7/"), get("/p/7/")
    assert first.content == second.content == b"product 7"
    assert shop == [7]
    assert Gets.asked
    caches["default"].clear()


class ByName:
    """A path converter of the project's own, which queries the database."""

    regex = "[a-z]+"

    def to_python(self, value):
        return Product.objects.get(name=value).pk

    def to_url(self, value):
        return value


register_converter(ByName, "product_name")


@pytest.mark.parametrize(
    ("route", "url"), [("p/<product_name:pk>/", "/p/tea/"), ("p/<int:pk>/<product_name:other>/", "/p/7/tea/")]
)
def test_before_the_cache_no_code_of_the_project_reads_a_path(build, settings, route, url, django_assert_num_queries):
    """Django reads no path of a page that the cache has, and that of another page once."""

    def view(request, pk, other=None):
        return HttpResponse(pk)

    settings.MIDDLEWARE = [UPDATE, GUARD, FETCH]
    settings.ROOT_URLCONF = urlconf(path(route, view, name="named"), path("p/<int:pk>/", view, name="product"))
    Product.objects.create(pk=7, name="tea")
    build("product")
    cache.clear()

    for number in (1, 0):
        with django_assert_num_queries(number):
            assert wsgi(url).content == b"7"
    cache.clear()


@both
def test_behind_the_cache_the_cache_is_asked_first(shop, settings, get):
    """Its 404 is never kept there; a check tells of the detour."""
    settings.CACHES = {"default": {"BACKEND": f"{HERE}.Gets", "LOCATION": "gets"}}
    settings.MIDDLEWARE = [UPDATE, FETCH, GUARD]
    Gets.asked.clear()

    assert get("/p/8/").status_code == 404
    assert Gets.asked
    Product.objects.create(pk=8)
    assert get("/p/8/").status_code == 200
    cache.clear()
    assert "bloomguard.W012" in ids()


def ids():
    return [message.id for message in checks.run_checks(tags=["bloomguard"])]


def test_a_check_tells_of_middleware_that_comes_later(settings):
    """Its names, and that routes are not answered."""
    settings.MIDDLEWARE = [GUARD, f"{HERE}.Passing"]
    [warning] = [message for message in checks.run_checks(tags=["bloomguard"]) if message.id == "bloomguard.W011"]

    assert f"{HERE}.Passing after BloomGuardMiddleware" in warning.msg
    settings.MIDDLEWARE = [f"{HERE}.Passing", GUARD]
    assert "bloomguard.W011" not in ids()
    settings.MIDDLEWARE = [UPDATE, GUARD, FETCH]
    assert "bloomguard.W011" not in ids()
    settings.MIDDLEWARE = [UPDATE, XVIEW, GUARD, FETCH]
    assert "bloomguard.W011" in ids()
    settings.MIDDLEWARE = [UPDATE, XVIEW, FETCH, GUARD]  # as the hint says
    assert not {"bloomguard.W011", "bloomguard.W012"} & {*ids()}


@both
@pytest.mark.parametrize("middleware", [[GUARD], [UPDATE, GUARD, FETCH]], ids=["last", "cache"])
def test_urls_that_are_reloaded_count_at_once(shop, settings, get, middleware):
    """``clear_url_caches`` after a change of the URLconf: the guard answers for the routes of now."""
    settings.MIDDLEWARE = middleware
    urls = urlconf(path("p/<int:pk>/", views.product, name="product"))
    settings.ROOT_URLCONF = urls
    assert get("/p/8/").status_code == 404

    urls.urlpatterns = [
        path("p/<int:pk>/", lambda request, pk: HttpResponse("another page"), name="other"),
        path("q/<int:pk>/", lambda request, pk: HttpResponse("not called"), name="product"),
    ]
    clear_url_caches()

    assert get("/p/8/").content == b"another page"
    assert get("/q/8/").status_code == 404
    cache.clear()


@both
@pytest.mark.parametrize("middleware", [[GUARD], [UPDATE, GUARD, FETCH]], ids=["last", "cache"])
@pytest.mark.parametrize("how", ["raises", "answers 500"])
def test_a_404_page_that_fails_before_the_view_lets_the_request_pass(shop, settings, get, how, middleware):
    """The page may need what only the view sets; the request goes on, and is counted as an error."""

    def handler404(request, exception):
        if not hasattr(request, "set_by_the_view"):
            if how == "raises":
                raise RuntimeError("too early")
            return HttpResponse(status=500)
        return HttpResponseNotFound(f"{request.set_by_the_view}: {exception}")

    def view(request, pk):
        request.set_by_the_view = "yes"
        return views.product(request, pk)

    settings.MIDDLEWARE = middleware
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view, name="product"), handler404=handler404)
    counts.counts.forget()
    response = get("/p/8/")

    assert (response.status_code, response.content) == (404, b"yes: No Product matches the given query.")
    found = counts.counts.read()
    assert (found["product", "error"], found["product", "blocked"]) == (1, 1)
    assert found["product", "absent"] == 1  # at the route; the view's query asks anew, for the same request
    cache.clear()


@both
def test_a_row_that_the_view_makes_after_a_404_page_failed_is_found(shop, settings, get):
    """The absence that is counted already is asked anew."""

    def handler404(request, exception):
        raise RuntimeError("too early")

    def view(request, pk):
        Product.objects.create(pk=pk)
        return views.product(request, pk)

    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view, name="product"), handler404=handler404)

    assert get("/p/8/").content == b"product 8"


def handler404(request, exception):
    response = HttpResponseNotFound("not here")
    if "kept" in request.GET:
        response["Cache-Control"] = "max-age=60"
    return response


@both
@pytest.mark.parametrize("state_of_guard", ["armed", "cold", "fenced"])
@pytest.mark.parametrize("query", ["", "?kept"])
@pytest.mark.parametrize("public", [None, False], ids=["route", "lookup"])
def test_hidden_rows_and_absent_ones_have_the_same_404(build, settings, clock, get, state_of_guard, query, public):
    """Status, headers and body: a difference would tell of rows that are hidden."""

    def view(request, slug):
        article = get_object_or_404(Article, slug=slug)
        if article.deleted:
            return handler404(request, None)
        return HttpResponse("an article")

    settings.ROOT_URLCONF = urlconf(path("a/<slug:slug>/", view, name="all-articles"), handler404=handler404)
    Article.objects.create(slug="hidden", deleted=True)
    with registered(Article, name="all", lookup="slug", routes=["all-articles"], public=public):
        if state_of_guard != "cold":
            build("all")
        if state_of_guard == "fenced":
            state.table.fence("all", "a test")
            clock.sleep(5)
        hidden, absent = (get(f"/a/{slug}/{query}") for slug in ("hidden", "absent"))

    assert (hidden.status_code, hidden.content, dict(hidden.items())) == (
        absent.status_code,
        absent.content,
        dict(absent.items()),
    )
    assert hidden["Cache-Control"] == ("max-age=60" if query else "no-store")


def by_verdict(slug):
    """Ask the guard, and then the database."""
    return Article.objects.get(slug=slug) if registry["all"].verdict(slug) is not Verdict.ABSENT else None


async def by_averdict(slug):
    if await registry["all"].averdict(slug) is Verdict.ABSENT:
        return None
    return await Article.objects.aget(slug=slug)


def by_load(slug):
    return get_or_load("all", slug, lambda slug: Article.objects.get(slug=slug))


async def by_aload(slug):
    return await aget_or_load("all", slug, lambda slug: Article.objects.aget(slug=slug))


def by_cache(slug):
    """Keep the row, as many views do: the guard is asked once for it, and each time for an absent ID."""
    article = cache.get(slug) or Article.objects.filter(slug=slug).first()
    cache.set(slug, article)
    return article


def by_another_table(slug):
    """Ask the guard for a row that another row, of a table without a guard, leads to."""
    section = Product.objects.filter(name=slug).first()
    return section and Article.objects.filter(slug=section.name).first()


@both
@pytest.mark.parametrize("find", [by_verdict, by_averdict, by_load, by_aload, by_cache, by_another_table])
def test_however_a_view_asks_its_hidden_rows_and_absent_ones_have_the_same_404(build, settings, get, find):
    """Also if a cache, or a table without a guard, answers for one of the two: from the view's first such 404 on."""
    slugs = ["hidden", "absent"]

    def view(request, slug):
        article = async_to_sync(find)(slug) if iscoroutinefunction(find) else find(slug)
        if article is None or article.deleted:
            raise Http404
        return HttpResponse("an article")

    settings.MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware", GUARD]
    settings.ROOT_URLCONF = urlconf(path("a/<slug:slug>/", view, name="article"))
    Article.objects.create(slug="hidden", deleted=True)
    Product.objects.create(name="hidden")
    cache.clear()
    browser = (Client if get is wsgi else AsyncClient)()
    visit = browser.get if get is wsgi else async_to_sync(browser.get)
    applies = staticmethod(lambda request: "preview" not in request.session)
    with registered(Article, name="all", lookup="slug", applies=applies):
        build("all")
        for slug in slugs:
            visit(f"/a/{slug}/")
        hidden, absent = (dict(visit(f"/a/{slug}/").items()) for slug in slugs)
        unknown = visit("/c/")
    cache.clear()

    assert hidden == absent
    assert (hidden["Cache-Control"], hidden["Vary"]) == ("no-store", "Cookie")
    assert "Cache-Control" not in unknown
