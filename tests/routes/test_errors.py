"""A value for which the view's query raises an error raises it with bloomguard too, wherever a guard might answer."""

from __future__ import annotations

import enum
import json
from datetime import date
from decimal import Decimal
from urllib.parse import unquote
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.test import AsyncClient, Client
from django.urls import path, register_converter
from django.views.generic import DetailView

from bloomguard.decorators import guarded
from bloomguard.guards import counters as counts
from bloomguard.guards.counters import WOULD_BLOCK, WOULD_HARM
from bloomguard.guards.fields import may_raise
from bloomguard.rebuild import Rebuild
from tests.door.site import Wsgi
from tests.lookups.models import Author, Page
from tests.lookups.models import Diary as Entry
from tests.shop.models import Article, BoundShort, Bundle, Diary, Order, Price, Product, Review, Short
from tests.support.guarding import make_guard, registered, urlconf
from tests.support.mariadb import mariadb_only

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
HUGE = 10**30
SLUG = "ALTER TABLE shop_article MODIFY slug varchar(200)"


class SignedConverter:
    regex = "-?[0-9]+"
    to_python = staticmethod(int)
    to_url = str


class Kind(enum.Enum):
    ULM = "ulm"


class Alias(str):
    """A text that stands for another one."""

    value = "ulm"


class Number:
    def __int__(self):
        return 8


class KindConverter:
    regex = "[a-z]+"

    def to_python(self, value):
        return Kind(value) if value == "ulm" else Alias(value)

    def to_url(self, value):
        return value.value


register_converter(SignedConverter, "negative")
register_converter(KindConverter, "kind")


def of(model, **conditions):
    """A view that looks up one row as the guard does."""

    def view(request, **kwargs):
        return HttpResponse(get_object_or_404(QuerySet(model), **conditions, **kwargs).pk)

    return view


# What the site is asked for: a guard, its view, its route, the path, and the databases that raise an error.
SQLITE, POSTGRESQL = {"sqlite"}, {"postgresql"}
RAISING = {
    "key of two": (Page, ("author", "slug"), "<int:author>/<slug:slug>/", f"/{HUGE}/x/", SQLITE),
    "key of two, 64 bits": (Page, ("author", "slug"), "<int:author>/<slug:slug>/", f"/{2**63}/x/", SQLITE),
    "key of two, as text": (Page, ("author", "slug"), "<str:author>/<slug:slug>/", f"/{2**63}/x/", SQLITE),
    "key of two, negative": (Page, ("author", "slug"), "<negative:author>/<slug:slug>/", f"/-{HUGE}/x/", SQLITE),
    "foreign key": (Review, "product", "<int:product>/", f"/{HUGE}/", SQLITE),
    "NUL": (Article, "slug", "<str:slug>/", "/x%00y/", POSTGRESQL),
    "NUL in one of two": (Page, ("author", "slug"), "<int:author>/<str:slug>/", "/7/x%00y/", POSTGRESQL),
    "NUL beside the key": (Product, "pk", "<int:pk>/<str:name>/", "/99/x%00y/", POSTGRESQL),
    "number beside the key": (Page, "pk", "<int:pk>/<int:author>/", f"/99/{HUGE}/", SQLITE),
    "digits": (Price, "amount", "<str:amount>/", "/123456789012.5/", {}),
    "more digits than any number has": (Price, "amount", "<str:amount>/", "/1e200000/", POSTGRESQL),
}


@pytest.fixture
def site(settings, clock):
    """``site(model, lookup, route)``: the view of a guard at this route, without and with its guard."""
    settings.ALLOWED_HOSTS = ["testserver"]

    def status(url, client=Client):
        ask = client(raise_request_exception=False).get
        return (async_to_sync(ask) if client is AsyncClient else ask)(url).status_code

    return status


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("each_database", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("place", ["route", "async route", "decorator", "door"])
@pytest.mark.parametrize("name", RAISING)
def test_an_error_is_not_hidden(site, settings, clock, each_database, place, name):
    """500 stays 500 at the route, under ``@guarded`` and at the door; elsewhere 404 stays 404."""
    model, lookup, route, url, raising = RAISING[name]
    view, client = of(model), AsyncClient if place == "async route" else Client
    if place == "decorator":
        view = guarded("erring", arg=dict(zip(lookup, lookup)) if isinstance(lookup, tuple) else lookup)(view)
    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path(route, view, name="erring"))
    bare = site(url, client)
    routes = [] if place == "decorator" else ["erring"]
    with registered(model, name="erring", lookup=lookup, routes=routes, lookups=False) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        found = Wsgi()(unquote(url)).status if place == "door" else site(url, client)

    assert (bare, found) == ((500, 500) if each_database in raising else (404, 404))


@pytest.mark.django_db(databases="__all__", transaction=True)
@mariadb_only
@pytest.mark.usefixtures("fresh", "each_database")
@pytest.mark.parametrize("each_database", ["mariadb"], indirect=True)
@pytest.mark.parametrize("place", ["route", "decorator"])  # at the door a path is ASCII
def test_a_character_of_four_bytes_is_an_error_for_a_column_of_three(site, settings, clock, place):
    """MariaDB refuses to compare them, so the guard of such a column lets the request pass."""
    view = of(Article)
    settings.MIDDLEWARE = [GUARD]
    with connections["mariadb"].cursor() as cursor:
        cursor.execute(f"{SLUG} CHARACTER SET utf8mb3 COLLATE utf8mb3_nopad_bin NOT NULL")
    try:
        guarding = guarded("erring", arg="slug")(view) if place == "decorator" else view
        settings.ROOT_URLCONF = urlconf(path("<str:slug>/", guarding, name="erring"))
        bare = site("/\U0001f600/")
        routes = [] if place == "decorator" else ["erring"]
        with registered(Article, name="erring", lookup="slug", routes=routes, lookups=False) as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            found = [site(url) for url in ("/\U0001f600/", "/\u20ac/")]
    finally:
        with connections["mariadb"].cursor() as cursor:
            cursor.execute(f"{SLUG} NOT NULL")

    assert (bare, found) == (500, [500, 404])


# A view that compares the ID and another field: the guard's model and lookup, the slug's field, its texts.
BESIDE = {
    "text": (Article, "pk", "slug", ["x", "a%00b"]),
    "date": (Entry, "pk", "day", ["x", "2024-02-30", "2024-02-29"]),
    "decimal": (Entry, "pk", "amount", ["x", "NaN", "1e99", "1.5", "-" + "9" * 30]),
    "foreign key": (Entry, "pk", "author", ["x", "7", str(HUGE)]),
    "text of a parent": (Entry, "pk", "author__name", ["x"]),
    "no field": (Entry, "pk", "nothing", ["x"]),
    "primary key": (Article, "slug", "slug", ["x", "7", str(HUGE), "1_0"]),
}


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.usefixtures("each_database", "fresh")
@pytest.mark.parametrize("each_database", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("place", ["auto", "named", "async"])  # the door needs a path of the ID alone
@pytest.mark.parametrize("name", BESIDE)
def test_an_error_of_what_the_view_compares_beside_the_key_is_not_hidden(site, settings, clock, place, name):
    """With ``query_pk_and_slug`` a view of Django's compares two fields, and a guard knows one of them."""
    model, lookup, slug, texts = BESIDE[name]
    view = type("Both", (DetailView,), {"model": model, "slug_field": slug, "query_pk_and_slug": True})
    route = "<str:pk>/<slug:slug>/" if lookup == "slug" else "<int:pk>/<str:slug>/"
    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path(route, view.as_view(), name="both"))
    urls = [f"/{text}/absent/" if lookup == "slug" else f"/99/{text}/" for text in texts]
    client = AsyncClient if place == "async" else Client
    bare = [site(url, client) for url in urls]
    routes = "auto" if place == "auto" else ["both"]
    with registered(model, name="both", lookup=lookup, routes=routes, lookups=False) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        found = [site(url, client) for url in urls]

    assert found == bare


@pytest.mark.parametrize("place", ["route", "async route", "decorator", "door"])
def test_what_a_converter_of_the_project_returns_is_its_own_business(site, settings, build, place, db):
    """The view looks up an attribute of the object, also of a text with one; the guard has only its ``str()``."""

    def view(request, slug):
        return HttpResponse(get_object_or_404(Article, slug=slug.value).pk)

    Article.objects.create(slug="ulm")
    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(
        path("<kind:slug>/", guarded("kinds")(view) if place == "decorator" else view, name="kinds"),
        path("plain/<slug:slug>/", of(Article), name="plain"),
    )
    with registered(Article, name="kinds", lookup="slug", routes=["kinds", "plain"]):
        build("kinds")

        for url in ("/ulm/", "/old/"):
            assert (Wsgi()(url).status if place == "door" else site(url)) == 200
            assert site(url, AsyncClient if place == "async route" else Client) == 200


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("place", ["route", "async route", "decorator", "door"])
def test_a_text_of_digits_for_a_foreign_key_may_be_a_name(site, settings, clock, place):
    """The kwarg has the name of the key, and the view may look up the row that it points to by another column."""

    def view(request, author, slug):
        return HttpResponse(get_object_or_404(Page, author__name=author, slug=slug).pk)

    settings.MIDDLEWARE, client = [GUARD], AsyncClient if place == "async route" else Client
    view = guarded("named")(view) if place == "decorator" else view
    settings.ROOT_URLCONF = urlconf(path("<slug:author>/<slug:slug>/", view, name="named"))
    Page.objects.create(author=Author.objects.create(pk=7, name="2024"), slug="x")
    with registered(Page, name="named", lookup=("author", "slug"), routes=["named"]) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        for _ in range(2):  # by the short check, too
            status = Wsgi()("/2024/x/").status if place == "door" else site("/2024/x/", client)
            assert status == 200


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("place", ["route", "async route", "decorator", "door"])
def test_a_text_for_a_foreign_key_to_a_text_may_be_a_name(site, settings, clock, place):
    """Until the project says that it is the key: by the name of the kwarg, a mapping or ``arg``."""

    def by_number(request, target):
        return HttpResponse(get_object_or_404(BoundShort, target__pk=target).pk)

    def by_key(request, target_id):
        return HttpResponse(get_object_or_404(BoundShort, target=target_id).pk)

    settings.MIDDLEWARE, client = [GUARD], AsyncClient if place == "async route" else Client
    decorated = guarded("bound") if place == "decorator" else lambda view: view
    settings.ROOT_URLCONF = urlconf(
        path("numbers/<slug:target>/", decorated(by_number), name="numbers"),
        path("keys/<slug:target_id>/", decorated(by_key), name="keys"),
    )
    BoundShort.objects.create(target=Short.objects.create(pk=7, slug="key"))
    with registered(BoundShort, name="bound", lookup="target", routes=["numbers", "keys"]) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        for _ in range(2):  # by the short check, too
            urls = ("/numbers/7/", "/keys/key/", "/keys/7/")
            found = [Wsgi()(url).status if place == "door" else site(url, client) for url in urls]
            assert found == [200, 200, 404]
        problems = [each for each in run_checks(tags=["bloomguard"]) if "may be another column" in each.msg]
        assert {(each.id, "numbers" in each.msg) for each in problems} == {("bloomguard.W102", True)}


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("route", ["<int:pk>/", "<str:pk>/"])
def test_a_number_that_no_column_holds_is_not_found(site, settings, build, client, route, db):
    """Of an integer field Django knows that, so the guard may answer, without a query."""
    called = []

    def view(request, pk):
        called.append(pk)

    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path(route, view, name="product"))
    build("product")

    assert [site(f"/{number}/", client) for number in (HUGE, 2**63, 2**64 - 1)] == [404] * 3
    assert called == []


class Bundles(DetailView):
    """Of a child model, whose primary key is the link to its parent."""

    model = Bundle


def test_the_number_of_a_child_is_that_of_a_foreign_key(site, settings, build, db):
    """SQLite raises an error for it, as for any other foreign key."""
    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", Bundles.as_view(), name="bundle"))
    bare = site(f"/{HUGE}/")
    with registered(Product, name="parent", routes="auto"):
        build("parent")
        assert (bare, site(f"/{HUGE}/"), site("/99/")) == (500, 500, 404)


def test_shadow_mode_expects_the_error(site, settings, build, db):
    """What would pass is not counted as a request that would have been answered."""
    settings.MIDDLEWARE = [GUARD]
    settings.ROOT_URLCONF = urlconf(path("<int:product>/", of(Review), name="review"))
    with registered(Review, name="shadow", lookup="product", routes=["review"], mode="shadow"):
        build("shadow")
        assert site(f"/{HUGE}/") == 500
        assert site("/99/") == 404
        found = counts.counts.read()
    assert (found["shadow", WOULD_BLOCK], found.get(("shadow", WOULD_HARM), 0)) == (1, 0)


def test_explain_guard_says_that_it_passes(settings, build, capsys, db):
    """The verdict is absent; the request reaches the view."""
    settings.ROOT_URLCONF = urlconf(path("<int:product>/", of(Review), name="review"))
    with registered(Review, name="erring", lookup="product", routes=["review"]):
        build("erring")
        call_command("explain_guard", f"/{HUGE}/", "--json")

    [answer] = json.loads(capsys.readouterr().out)["guards"]
    outcome = "passes: the view's query may raise an error, or look up another value"
    assert (answer["verdict"], answer["outcome"]) == ("absent", outcome)


@pytest.mark.parametrize(
    ("model", "lookup", "value", "captured", "expected"),
    [
        (Product, "pk", 7, [7], False),
        (Product, "pk", HUGE, [HUGE], False),
        (Product, "pk", 7, [7, HUGE], True),
        (Product, "pk", 7, [7, "a\0b"], True),
        (Product, "pk", 7, [7, None, "ab", True], False),
        (Review, "product", 2**63 - 1, [2**63 - 1], False),
        (Review, "product", -(2**63), [-(2**63)], False),
        (Review, "product", 2**63, [2**63], True),
        (Review, "product", -(2**63) - 1, [-(2**63) - 1], True),
        (Review, "product", str(2**63), [], True),
        (Review, "product", "x", ["x"], True),
        (Page, ("author", "slug"), (7, "x"), [7, "x"], False),
        (Page, ("author", "slug"), (7, "x\0"), [], True),
        (Page, ("author", "slug"), (7,), [7], True),
        (Price, "amount", "12345678.99", [], False),
        (Price, "amount", Decimal("1.5"), [], False),
        (Price, "amount", "1e100", [], False),
        (Price, "amount", "-1e101", [], True),
        (Order, "pk", "0" * 32, ["0" * 32], False),
        (Order, "pk", UUID(int=7), [], False),
        (Diary, "day", date(2024, 2, 29), [], False),
        (Article, "slug", Kind.ULM, [Kind.ULM], True),
        (Product, "pk", Number(), [], True),
        (Page, ("author", "slug"), (7, Kind.ULM), [], True),
    ],
)
def test_which_values_may_raise_an_error(model, lookup, value, captured, expected):
    """NUL, numbers that no column holds, and objects that mean what only the project knows; anything else passes."""
    assert may_raise(make_guard(model, lookup=lookup), value, captured) is expected
