"""Whole sites with routers of their own: what a guard answers is right for the database that the view would read."""

from __future__ import annotations

import re
import threading
from contextvars import ContextVar

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.core.signals import request_started
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.views.generic import DetailView

from bloomguard import aget_or_load, get_or_load
from bloomguard.apps import log_cold_guards
from bloomguard.exceptions import StoreError
from bloomguard.guards import registry, spot_checks
from bloomguard.guards.places import is_in_one_database
from bloomguard.routes import table as routes
from bloomguard.state import table as state
from bloomguard.state.connection import StateConnection
from bloomguard.state.row import ARMED
from bloomguard.state.verdicts import ABSENT, AMBIGUOUS, LEASE
from tests.door.site import Asgi, Wsgi
from tests.shop import urls
from tests.shop.models import Product
from tests.support import database
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
    database.unseen(connections[alias]).execute(f"INSERT INTO shop_product (id, name) VALUES ({pk}, '')")


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


@pytest.mark.parametrize("is_async", [False, True])
def test_each_region_loads_its_own_rows(regions, is_async):
    """Without a scope nothing but the router tells their values apart, so only those of the filter's are cached."""

    def load(pk):
        return Product.objects.get(pk=pk).name

    def get(pk):
        if is_async:
            return async_to_sync(aget_or_load)("product", pk, sync_to_async(load))
        return get_or_load("product", pk, load)

    caches["default"].clear()
    Product.objects.create(pk=8, name="here")
    Product.objects.using("postgresql").filter(pk=8).update(name="there")
    found = []
    for alias in ("default", "postgresql", "default"):
        request_of_thread.alias = alias
        try:
            found.append(get(8))
        finally:
            del request_of_thread.alias

    assert found == ["here", "there", "here"]


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
    monkeypatch.setattr(routes, "is_in_one_database", is_in_one_database)
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


# -- routers that read from a replica


class ReadsOwnWrites:
    """Whoever has written reads from the primary for a while; a call of ``db_for_write`` counts as a write."""

    has_written = ContextVar("has_written", default=False)

    def db_for_read(self, model, **hints):
        return "default" if self.has_written.get() else "postgresql"

    def db_for_write(self, model, **hints):
        self.has_written.set(True)
        return "default"


def pinning(get_response):
    """Middleware: a cookie says for how long."""

    def respond(request):
        ReadsOwnWrites.has_written.set(False)
        response = get_response(request)
        if ReadsOwnWrites.has_written.get():
            response.set_cookie("pin", "1", max_age=15)
        return response

    return respond


def named(request, pk):
    """A view that shows products with a name only."""
    found = Product.objects.filter(pk=pk).exclude(name="").first()
    return HttpResponse(found.pk if found else "", status=200 if found else 404)


class Detail(DetailView):
    """A generic view."""

    model = Product

    def render_to_response(self, context, **kwargs):
        return HttpResponse(self.object.pk)


@pytest.fixture
def replica(build, settings, monkeypatch):
    """Product 1 has a name and product 2 has none; ``postgresql`` is a replica that the settings know."""
    monkeypatch.setattr(StateConnection, "alias", StateConnection.asked_once)
    monkeypatch.setitem(connections.settings["postgresql"]["TEST"], "MIRROR", "default")
    settings.MIDDLEWARE = [f"{__name__}.pinning", MIDDLEWARE]
    settings.ROOT_URLCONF = urlconf(
        *urls.urlpatterns, path("named/<int:pk>/", named), path("detail/<int:pk>/", Detail.as_view())
    )
    for alias in ("default", "postgresql"):
        Product.objects.using(alias).bulk_create([Product(pk=1, name="tea"), Product(pk=2)])
    build("product")
    settings.DATABASE_ROUTERS = [ReadsOwnWrites()]
    state.table.connection.alias  # noqa: B018  # asks the routers, as when Django starts
    ReadsOwnWrites.has_written.set(False)


def sent_cookies(get, url):
    """The status and the names of the cookies that the response sets."""
    client = Client() if get is wsgi else AsyncClient()
    response = client.get(url) if get is wsgi else async_to_sync(client.get)(url)
    return response.status_code, list(response.cookies)


@pytest.mark.parametrize("get", [wsgi, asgi])
def test_an_absent_id_is_no_write_for_the_router(replica, clock, get):
    """Else its 404 would have another cookie than the one of a row that exists and is hidden, and its user would read
    from the primary.
    """
    for lapse in (0, 5):
        clock.sleep(lapse)
        for view in ("named", "products", "products-async", "decorated", "decorated-async", "detail"):
            assert sent_cookies(get, f"/{view}/9/") == (404, []), view
            assert sent_cookies(get, f"/{view}/9/") == (404, []), view
            assert sent_cookies(get, f"/{view}/1/") == (200, []), view
        assert sent_cookies(get, "/named/2/") == (404, [])


def test_a_replica_of_the_settings_is_answered_for(replica, django_assert_num_queries):
    """And a spot check reads the primary, without a call of ``db_for_write``."""
    with django_assert_num_queries(0), django_assert_num_queries(0, using="postgresql"):
        for view in ("named", "products", "decorated", "detail"):
            assert wsgi(f"/{view}/9/") == 404

    insert_unseen("default", 9)
    spot_checks.checks.check(registry["product"], 9)
    assert not ReadsOwnWrites.has_written.get()
    assert state.table.current("product").status != ARMED


# -- routers that raise


class NeedsInstance:
    """Products are in a database that depends on the instance."""

    def db_for_write(self, model, **hints):
        return "default" if hints["instance"].pk != 77 else "postgresql"


class NeedsTenant:
    """Without a tenant, the code has to name the database."""

    def db_for_read(self, model, **hints):
        raise LookupError("no tenant is set")

    db_for_write = db_for_read


class NamesNone:
    """The settings do not have the database that it names."""

    def db_for_write(self, model, **hints):
        return "gone"


CAUSED = {
    NeedsInstance: "KeyError('instance')",
    NeedsTenant: "LookupError('no tenant is set')",
    NamesNone: """ConnectionDoesNotExist("The connection 'gone' doesn't exist.")""",
}


@pytest.fixture(params=[NeedsTenant, NamesNone])
def raising(request, build, settings, monkeypatch):
    """Product 1 exists, and the filter is built; then a router raises, or names a database that does not exist."""
    Product.objects.create(pk=1)
    build("product")
    monkeypatch.setattr(StateConnection, "alias", StateConnection.asked_once)
    settings.DATABASE_ROUTERS = [request.param()]
    return CAUSED[request.param]


@pytest.mark.parametrize("router", CAUSED)
def test_checks_name_a_router_that_raises(build, settings, monkeypatch, router):
    """And do not end with its exception, whatever they are to check."""
    monkeypatch.setattr(StateConnection, "alias", StateConnection.asked_once)
    settings.DATABASE_ROUTERS = [router()]
    for databases in (None, ["default", "postgresql"]):
        found = run_checks(include_deployment_checks=True, databases=databases)
        texts = [each.msg for each in found if each.id == "bloomguard.W142"]
        for label in ("shop.Product", "bloomguard.GuardState"):
            assert (
                f"asked without hints for the database to which {label} is written, the router {router.__qualname__} "
                f"causes {CAUSED[router]}." in texts
            )


def test_statements_do_not_fail_because_a_router_raises(raising, clock):
    """As without guards: reads, writes of other tables, and definitions."""
    clock.sleep(5)
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.execute("CREATE TABLE of_no_guard (id integer)")
        cursor.execute("INSERT INTO of_no_guard VALUES (1)")
        cursor.execute("DROP TABLE of_no_guard")
    Group.objects.using("default").create(name="one")
    Group.objects.using("default").update(name="two")
    call_command("migrate", verbosity=0)
    assert Product.objects.using("default").get(pk=1).pk == 1


def test_without_the_state_rows_nothing_is_answered_and_no_row_is_missed(raising, clock):
    """The default database may not be that of the state rows: what it has proves nothing."""
    clock.sleep(5)
    assert registry["product"]._runtime.decide(9) is LEASE
    with pytest.raises(StoreError, match=re.escape(raising)), transaction.atomic("default"):
        Product.objects.using("default").create(pk=9)


def test_the_first_request_of_a_developer_is_answered(raising, settings, clock):
    """What looks for guards without a filter raises nothing."""
    settings.DEBUG = True
    request_started.connect(log_cold_guards)
    clock.sleep(5)
    assert Client().get("/nothing/here/").status_code == 404


@pytest.mark.parametrize("command", [["rebuild_filter", "--dry-run"], ["rebuild_filter"], ["verify_filter"]])
def test_commands_say_that_a_router_raises(raising, clock, command):
    """Also while they look for the cause of another error: that the state rows cannot be read."""
    clock.sleep(5)
    with pytest.raises(CommandError, match=re.escape(raising)):
        call_command(*command, "product")
