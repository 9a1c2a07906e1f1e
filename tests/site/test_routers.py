"""Whole sites with routers of their own: what a guard answers is right for the database that the view would read."""

from __future__ import annotations

import threading

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from bloomguard.guards import registry
from bloomguard.guards.places import databases_of
from bloomguard.routes import table as routes
from bloomguard.verdicts import ABSENT, AMBIGUOUS
from tests.door.site import Asgi, Wsgi
from tests.shop import urls
from tests.shop.models import Product
from tests.support.guarding import urlconf

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "postgresql"])

MIDDLEWARE = "bloomguard.middleware.BloomGuardMiddleware"
#: Of the thread: the database of the request, as a sync middleware has set it.
request_of_thread = threading.local()


class ByThread:
    """Products are in the database of the request's region, everything else in the first."""

    def db_for_read(self, model, **hints):
        return getattr(request_of_thread, "alias", "default") if model is Product else "default"

    db_for_write = db_for_read


def region(get_response):
    """Middleware: a request names its region in a header."""

    def respond(request):
        request_of_thread.alias = request.headers.get("X-Region", "default")
        try:
            return get_response(request)
        finally:
            del request_of_thread.alias

    return respond


def insert_unseen(alias, pk):
    """Insert a product past Django, as another program does."""
    connections[alias].ensure_connection()
    connections[alias].connection.cursor().execute(f"INSERT INTO shop_product (id, name) VALUES ({pk}, '')")


async def many(request, pk):
    """A view that asks for many at once."""
    return HttpResponse(status=200 if await registry["product"].afilter_existing([pk]) else 404)


async def one(request, pk):
    """A view that asks by itself."""
    decision = await registry["product"]._runtime.adecide(pk)
    return HttpResponse(status=404 if decision is ABSENT else 200)


@pytest.fixture
def regions(build, settings):
    """Product 1 is in the first database, whose filter is built; product 8 is in the other, from before the guard."""
    settings.DATABASE_ROUTERS = [ByThread()]
    settings.MIDDLEWARE = [f"{__name__}.region", MIDDLEWARE]
    settings.ROOT_URLCONF = urlconf(*urls.urlpatterns, path("many/<int:pk>/", many), path("one/<int:pk>/", one))
    Product.objects.create(pk=1)
    build("product")
    insert_unseen("postgresql", 8)


def wsgi(url, **headers):
    return Client().get(url, headers=headers).status_code


def asgi(url, **headers):
    return async_to_sync(AsyncClient().get)(url, headers=headers).status_code


@pytest.mark.parametrize("get", [wsgi, asgi])
@pytest.mark.parametrize("view", ["products", "products-async", "decorated", "decorated-async", "many", "one"])
def test_the_router_is_asked_in_the_thread_of_the_orm(regions, get, view):
    """It may follow a variable of that thread: an event loop, or another thread, would read the default there."""
    registry["product"]._runtime.decide(5)  # what the last ABSENT rested on is known

    assert get(f"/{view}/8/", **{"X-Region": "postgresql"}) == 200
    assert [get(f"/{view}/{pk}/") for pk in (1, 8, 9)] == [200, 404, 404]
    assert [get(f"/{view}/{pk}/", **{"X-Region": "postgresql"}) for pk in (8, 8)] == [200, 200]


def test_also_after_the_lease(regions, clock):
    """Where the state rows have to be read first."""
    for _ in range(2):
        clock.sleep(5)
        assert asgi("/products/8/", **{"X-Region": "postgresql"}) == 200
        clock.sleep(5)
        assert asgi("/products/8/") == 404


def test_an_absence_that_the_request_knows_already_is_asked_for_again_in_that_thread(regions):
    """The request's region may have changed since."""

    async def ask():
        runtime, found = registry["product"]._runtime, []
        for alias in ("default", "postgresql"):
            await sync_to_async(setattr)(request_of_thread, "alias", alias)
            found.append(await runtime.adecide(8))
        await sync_to_async(delattr)(request_of_thread, "alias")
        return found

    assert async_to_sync(ask)() == [ABSENT, AMBIGUOUS]


class InOne(ByThread):
    """The same, but products have a table in the first database alone."""

    def allow_migrate(self, db, app_label, **hints):
        return db == "default"


@pytest.mark.parametrize("site", [Wsgi, Asgi])
def test_the_door_leaves_a_model_of_several_databases_to_django(regions, settings, monkeypatch, site):
    """It asks before the middleware has run that tells the router which of them the request reads."""
    monkeypatch.setattr(routes, "databases_of", databases_of)
    settings.ALLOWED_HOSTS = ["testserver"]
    door = site()

    assert door("/products/8/", headers={"X-Region": "postgresql"}).status == 200
    assert [door(f"/products/{pk}/").status for pk in (1, 8)] == [200, 404]
    assert len(door.reached) == 3
    (route,) = [each for each in routes.table_for().open if each.pattern.view_name == "product"]
    assert route.not_at_door == "the routers may choose one of several databases by the request"

    settings.DATABASE_ROUTERS = [InOne()]
    door = site()
    assert [door(f"/products/{pk}/").status for pk in (1, 8)] == [200, 404]
    assert door.reached == ["/products/1/"]
