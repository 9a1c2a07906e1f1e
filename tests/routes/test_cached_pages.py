"""The page of a deleted row that the site's cache still has: what docs/routes.md says of it."""

from __future__ import annotations

import sys

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.core.cache import cache
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.test import AsyncClient, Client
from django.urls import get_urlconf, path
from django.utils.decorators import sync_and_async_middleware
from django.views.decorators.cache import cache_page

from tests.shop.models import Product
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
UPDATE, FETCH = "django.middleware.cache.UpdateCacheMiddleware", "django.middleware.cache.FetchFromCacheMiddleware"


def view(request, pk):
    return HttpResponse(get_object_or_404(Product, pk=pk).pk)


@pytest.fixture(autouse=True)
def empty_cache():
    cache.clear()
    yield
    cache.clear()


@pytest.mark.parametrize(
    ("middleware", "page", "options", "status", "rebuilt"),
    [
        ([UPDATE, GUARD, FETCH], view, {"filter": "cuckoo"}, 404, 404),
        ([UPDATE, GUARD, FETCH], view, {"filter": "bloom"}, 200, 404),
        ([UPDATE, FETCH, GUARD], view, {"filter": "cuckoo"}, 200, 200),
        ([GUARD], cache_page(60)(view), {"filter": "cuckoo"}, 404, 404),
        ([GUARD], cache_page(60)(view), {"filter": "cuckoo", "public": False}, 200, 200),
    ],
    ids=["before the cache", "bloom", "behind the cache", "cache_page", "closed"],
)
def test_a_cached_page_of_a_deleted_row(settings, build, db, middleware, page, options, status, rebuilt):
    """The guard knows that the row is gone; the cache is asked only if it comes first."""
    settings.MIDDLEWARE = middleware
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", page, name="page"))
    Product.objects.create(pk=7)
    Product.objects.create(pk=8)
    with registered(Product, name="page", routes=["page"], **options):
        build("page")
        assert Client().get("/p/7/").status_code == 200
        Product.objects.filter(pk=7).delete()
        assert Client().get("/p/7/").status_code == status
        build("page")
        Client().get("/p/99/")  # the process answers by the new filter once the old one says that a row is absent
        assert Client().get("/p/7/").status_code == rebuilt


@pytest.mark.parametrize("ask", [lambda url: Client().get(url), lambda url: async_to_sync(AsyncClient().get)(url)])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_page_of_the_cache_leaves_the_request_as_it_was(settings, build, db, monkeypatch, guarded, ask):
    """Django resolves no path whose page is cached: other middleware must not see that the guard has done so."""
    other, seen = urlconf(path("p/<int:pk>/", view, name="page")), []

    @sync_and_async_middleware
    def notes(get_response):
        def before(request):
            request.urlconf = other

        def note(request, response):
            match = request.resolver_match
            seen.append((response.status_code, match and match.view_name, get_urlconf() == other))
            return response

        def middleware(request):
            before(request)
            return note(request, get_response(request))

        async def amiddleware(request):
            before(request)
            return note(request, await get_response(request))

        return amiddleware if iscoroutinefunction(get_response) else middleware

    settings.ROOT_URLCONF = urlconf(notes=notes)
    monkeypatch.setitem(sys.modules, "notes_of_a_test", settings.ROOT_URLCONF)
    settings.MIDDLEWARE = ["notes_of_a_test.notes", UPDATE, *([GUARD] if guarded else []), FETCH]
    Product.objects.create(pk=7)
    with registered(Product, name="page", routes=["page"]):
        build("page")
        for url in ("/p/7/", "/p/7/", "/p/8/"):
            ask(url)

    assert seen == [(200, "page", True), (200, None, False), (404, "page", True)]


@pytest.mark.parametrize(
    ("middleware", "page"), [([UPDATE, GUARD, FETCH], view), ([GUARD], cache_page(60)(view))], ids=["site", "view"]
)
@pytest.mark.parametrize("ask", [lambda url: Client().get(url), lambda url: async_to_sync(AsyncClient().get)(url)])
def test_a_host_that_the_cache_refuses_is_refused(settings, build, db, middleware, page, ask):
    """No middleware has looked at it before; the cache makes its key of it."""
    settings.MIDDLEWARE = middleware
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", page, name="page"))
    Product.objects.create(pk=7)
    with registered(Product, name="page", routes=["page"]):
        build("page")
        found = []
        for settings.ALLOWED_HOSTS in (["testserver"], ["a.example"]):
            found += [ask(f"/p/{pk}/").status_code for pk in (7, 8)]

    assert found == [200, 404, 400, 400]


def soft_404(request, exception):
    return HttpResponse("nothing here, but with status 200")


def softens(get_response):
    def middleware(request):
        response = get_response(request)
        return HttpResponse("a page for all") if response.status_code == 404 else response

    return middleware


@pytest.mark.parametrize(("page", "between"), [(soft_404, []), (None, [f"{__name__}.softens"])])
def test_a_page_for_what_is_not_found_is_kept_as_any_other(settings, build, db, page, between):
    """Its status is 200, so the cache keeps it, and tells browsers to do the same."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view, name="page"), **({"handler404": page} if page else {}))
    Product.objects.create(pk=7)
    with registered(Product, name="page", routes=["page"]):
        build("page")
        found = []
        for guard in ([], [GUARD]):
            settings.MIDDLEWARE = [UPDATE, *between, *guard, FETCH]
            response = Client().get("/p/8/")
            found.append((response.status_code, response["Cache-Control"], response.content))
            cache.clear()

    assert found[0] == found[1]
    assert found[0][:2] == (200, "max-age=600")


@pytest.mark.parametrize("browser", [Client, AsyncClient])
def test_before_the_cache_a_post_needs_its_token(settings, build, db, browser):
    """``CsrfViewMiddleware`` checks it right before the view, which is later."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view, name="page"))
    settings.MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware", UPDATE, GUARD, FETCH]
    Product.objects.create(pk=7)
    with registered(Product, name="page", routes=["page"], methods=("GET", "HEAD", "POST")):
        build("page")
        post = browser(enforce_csrf_checks=True).post
        post = async_to_sync(post) if browser is AsyncClient else post

        assert [post(f"/p/{pk}/").status_code for pk in (7, 8)] == [403, 403]
