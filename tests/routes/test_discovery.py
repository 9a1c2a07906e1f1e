"""``routes = "auto"``: what is found, how it is answered, and what is left alone."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_required
from django.core import checks
from django.db import connections, transaction
from django.db.models import Q
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import DetailView

from bloomguard.guards import counters as counts
from bloomguard.routes.discovery import why_not_found
from bloomguard.routes.patterns import patterns
from bloomguard.routes.table import guarded_routes, table_for
from tests.shop import views
from tests.shop.models import Article, Place, Product
from tests.support.guarding import make_guard, registered, urlconf

OPEN = [
    "detail",
    "tests.shop.features.ProductDetail",
    "hex",
    "str",
    "other-kwarg",
    "given",
    "fixed",
    "proxy",
    "update",
    "delete",
    "narrow",
    "wrapped",
    "opt",
    "regex",
    "space:detail",
    "space:edit",
    "two:detail",
    "two:edit",
    "alive",
    "alive-both",
]


@pytest.fixture
def guards(settings):
    """Guards of products and of articles that find their own routes among the features."""
    settings.ROOT_URLCONF = "tests.shop.features"
    with (
        registered(Product, name="auto", routes="auto") as products,
        registered(Article, name="auto-slug", lookup="slug", alive=Q(deleted=False), routes="auto"),
    ):
        yield products


@pytest.fixture
def shop(guards, build):
    """Product 7 and an article exist, and the filters are built."""
    Product.objects.create(pk=7)
    Article.objects.create(slug="ulm")
    build("auto")
    build("auto-slug")


class Sync:
    def get(self, url, user=None):
        client = Client(raise_request_exception=False)
        if user:
            client.force_login(user)
        return client.get(url)


class Async:
    def get(self, url, user=None):
        client = AsyncClient(raise_request_exception=False)
        if user:
            client.force_login(user)
        return async_to_sync(client.get)(url)


@pytest.fixture(params=[Sync, Async], ids=["wsgi", "asgi"])
def browser(request):
    return request.param()


def test_every_generic_view_of_one_object_is_found(guards):
    """Django's generic views, through includes and converters, with nothing of the project's own before the lookup."""
    table = table_for("tests.shop.features")

    assert {route.pattern.view_name for route in table.guarded} == set(OPEN)
    assert [route.closed for route in table.guarded if route.closed] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own-object", "OwnObject.get_object runs first"),
        ("own-queryset", "OwnQuerySet.get_queryset runs first"),
        ("forgiving", "Forgiving.get runs first"),
        ("private", "LoginRequiredMixin.dispatch runs first"),
        ("decorated", "Decorated.dispatch runs first"),
        ("create", "ProductCreate.get runs first"),
        ("like", "LikeProduct.get runs first"),
        ("function", "its view is not a generic view of one object"),
        ("guarded", "its view is not a generic view of one object"),
        ("deleted", "its view shows one shop.Article"),
        ("product-list", "its view is not a generic view of one object"),
        ("product-detail", "REST framework renders its own 404"),
    ],
)
def test_what_is_left_alone_has_its_reason(guards, name, reason):
    """Where something may come before the lookup, or nobody can tell what is looked up, it is said why."""
    [pattern] = [each for each in patterns("tests.shop.features") if each.view_name == name]

    assert why_not_found(guards, pattern) == reason


@pytest.mark.parametrize(
    ("url", "queries"),
    [("/p/8/", 0), ("/hex/8/", 0), ("/space/8/edit/", 0), ("/regex/8", 0), ("/guarded/8/", 0),
     ("/topped/8/", 0), ("/rest/viewset/8/", 0),
     ("/forgiving/8/", 0),
     ("/alive/x/", 0), ("/rest/article/x/", 0), ("/own-object/9/", 0), ("/function/8/", 0), ("/own-queryset/8/", 0)],
)  # fmt: skip
def test_an_absent_row_costs_no_query(browser, shop, url, queries, django_assert_num_queries):
    """Whoever makes the 404, the database is not asked: the guard answers at the route, or at the lookup."""
    with django_assert_num_queries(queries):
        response = browser.get(url)

    assert response.status_code == (410 if "forgiving" in url else 404)


def test_rest_framework_words_its_own_404(browser, shop):
    """The body is the one that the client would get without bloomguard."""
    assert browser.get("/rest/viewset/8/").json() == {"detail": "No Product matches the given query."}
    assert browser.get("/rest/viewset/7/").json() == {"id": 7, "name": ""}


class Noting(DetailView):
    """Writes a row before it looks for its own."""

    model = Product

    def get(self, request, *args, **kwargs):
        Article.objects.create(slug="visited")
        return super().get(request, *args, **kwargs)


class NotingAnyhow(Noting):
    @method_decorator(transaction.non_atomic_requests)
    def dispatch(self, *args, **kwargs):
        return super().dispatch(*args, **kwargs)


@pytest.mark.parametrize(("view", "left"), [(Noting, 0), (NotingAnyhow, 1)])
@pytest.mark.parametrize("middleware", [[], ["bloomguard.middleware.BloomGuardMiddleware"]], ids=["bare", "guarded"])
def test_a_view_that_makes_its_404_is_in_its_own_transaction(
    browser, shop, settings, monkeypatch, view, left, middleware
):
    """With ``ATOMIC_REQUESTS`` what it wrote before the 404 is rolled back, unless the view is exempt."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    settings.MIDDLEWARE = middleware
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", view.as_view()))

    assert browser.get("/p/8/").status_code == 404
    assert Article.objects.filter(slug="visited").count() == left


@pytest.mark.parametrize("url", ["/private/{}/", "/decorated/{}/", "/rest/private/{}/"])
def test_who_is_logged_in_is_answered(browser, shop, url):
    """Behind the login an absent ID is not found, and the table of products is not asked."""
    user = get_user_model().objects.create_user("ada")

    assert browser.get(url.format(7), user).status_code == 200
    Product.objects.all().delete()  # the filter still says that 7 may be there, and that 8 is not
    assert [browser.get(url.format(pk), user).status_code for pk in (7, 8)] == [404, 404]


@pytest.mark.parametrize(
    ("rows", "is_found"),
    [
        (Article.objects.filter(deleted=False), True),
        (Article.objects.filter(deleted=False).exclude(pk=3).order_by("pk"), True),
        (Article.objects.filter(deleted=False, pk__gt=3), True),
        (Article.objects.all(), False),
        (Article.objects.filter(deleted=True), False),
        (Article.objects.filter(Q(deleted=False) | Q(slug="x")), False),
        (Article.objects.exclude(deleted=False), False),
        (Article.objects.filter(deleted=False).union(Article.objects.all()), False),
        (Article.objects.filter(deleted=False)[:3], False),
    ],
    ids=["alive", "narrower", "condition", "all", "dead", "or", "not", "union", "slice"],
)
def test_rows_that_the_guard_does_not_know_are_never_hidden(settings, rows, is_found):
    """Only a queryset that asks for all that ``alive`` asks for is the guard's."""
    settings.ROOT_URLCONF = urlconf(path("<slug:slug>/", DetailView.as_view(queryset=rows)))
    guard = make_guard(Article, lookup="slug", alive=Q(deleted=False), routes="auto")

    assert bool(guarded_routes(guard)) is is_found


def test_a_guard_that_finds_nothing_is_warned_of(settings):
    """A system check says so."""
    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", lambda request, pk: HttpResponse()))
    with registered(Place, name="finds-nothing", lookup="slug", routes="auto"):
        messages = [message.id for message in checks.run_checks(tags=["bloomguard"]) if message.obj is Place]

    assert "bloomguard.W010" in messages


def test_a_named_route_that_is_closed_is_told(guards, settings):
    """A note says what runs first, and where the guard answers instead; none if the project has said what it wants."""
    settings.ROOT_URLCONF = urlconf(path("a/<int:pk>/", login_required(views.product), name="a"))

    def notes(**attributes):
        with registered(Product, name="first", routes=["a"], **attributes) as guard:
            found = checks.run_checks(tags=["bloomguard"])
        return [each.msg for each in found if each.id == "bloomguard.I015" and repr(guard.name) in each.msg]

    [message] = notes()
    assert message.startswith("the guard 'first' does not answer for /a/<int:pk>/ (a) before its view runs: ")
    assert notes(public=False) == notes(public=True) == []


def test_methods_other_than_get_and_head_pass(guards, settings):
    """What a view does with a POST before it looks anything up, nobody has looked at."""
    with registered(Product, name="posts", routes="auto", methods=["GET", "POST", "DELETE"]):
        table = table_for(django_settings.ROOT_URLCONF)
        assert {method for route in table.guarded if route.guard.name == "posts" for method in route.methods} == {"GET"}


def test_a_view_that_cannot_be_made_is_left_alone(guards, settings):
    """A class whose ``model`` is not named is understood by nobody."""

    class Nameless(DetailView):
        pass

    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", Nameless.as_view()))
    [pattern] = patterns()

    assert why_not_found(guards, pattern) == "its view is not a generic view of one object"


def test_what_a_view_blocks_is_counted(browser, shop):
    """Once, where the answer is a 404: not for who is sent to the login, and a row that went is a false positive."""
    user = get_user_model().objects.create_user("somebody")
    counts.counts.forget()
    for url, who in [("/rest/viewset/8/", None), ("/private/8/", None), ("/private/8/", user), ("/private/7/", user)]:
        browser.get(url, who)
    Product.objects.all().delete()
    browser.get("/private/7/", user)

    found = counts.counts.read()
    assert [found.get(("auto", name), 0) for name in ("blocked", "absent", "maybe", "false positive")] == [2, 2, 2, 1]
