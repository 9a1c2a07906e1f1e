"""``routes = "auto"``: what is found, how it is answered, and what is left alone."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_not_required, login_required, permission_required
from django.core import checks
from django.db import connections, transaction
from django.db.models import Q
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import CreateView, DetailView, ListView

from bloomguard.counting import counts
from bloomguard.lookups.querysets import covers
from bloomguard.routes import table_for
from bloomguard.routing.discovery import NotFound, lookup_of
from bloomguard.routing.patterns import patterns
from bloomguard.views import GuardedObjectMixin
from tests.guarding import make_guard, registered, urlconf
from tests.shop import features, views
from tests.shop.models import Article, Place, Product

EARLY = [
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
    "opt",
    "regex",
    "space:detail",
    "space:edit",
    "two:detail",
    "two:edit",
    "alive",
    "alive-both",
    "guarded",
]
LATE = [
    "own-queryset",
    "of-others",
    "forgiving",
    "create",
    "like",
    "private",
    "permitted",
    "decorated",
    "product-detail",
    "reader-detail",
    "rest-private",
    "rest-article",
]
LEFT = [
    "topped",
    "own-object",
    "wrapped",
    "function",
    "deleted",
    "alive-pk",
    "tests.shop.features.<lambda>",
    "product-list",
    "reader-list",
]

LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"


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


def test_every_view_of_one_object_is_found(guards):
    """Generic views, REST framework's, through includes and converters; early where nothing of theirs runs before."""
    table = table_for("tests.shop.features")
    found = {
        route.pattern.view_name: "early" if route.is_early else "late"
        for route in table.guarded
        if route.is_late or route.is_early
    }

    assert {name for name, when in found.items() if when == "early"} == set(EARLY)
    assert {name for name, when in found.items() if when == "late"} == set(LATE)
    assert {pattern.view_name for pattern in table.patterns} == {*EARLY, *LATE, *LEFT}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own-object", "OwnObject has a get_object of its own"),
        ("wrapped", "ProductDetail is decorated, and what the decorator does first is its own business"),
        ("topped", "@guarded('auto') answers in the view, after what stands on top of it"),
        ("function", "its view is a function, and what it looks up is its own business"),
        ("deleted", "its view shows one shop.Article"),
        ("product-list", "RestViewSet takes none of the pattern's kwargs for a look-up"),
    ],
)
def test_what_is_left_alone_has_its_reason(guards, name, reason):
    """Where nobody can tell what a view looks up, nothing is guarded, and it is said why."""
    [pattern] = [each for each in patterns("tests.shop.features") if each.view_name == name]

    with pytest.raises(NotFound) as told:
        lookup_of(guards, pattern)
    assert str(told.value) == reason


@pytest.mark.parametrize(
    ("url", "queries"),
    [("/p/8/", 0), ("/hex/8/", 0), ("/space/8/edit/", 0), ("/regex/8", 0), ("/guarded/8/", 0),
     ("/topped/8/", 0), ("/rest/viewset/8/", 0),
     ("/forgiving/8/", 0),
     ("/alive/x/", 0), ("/rest/article/x/", 0), ("/own-object/9/", 1), ("/function/8/", 1)],
)  # fmt: skip
def test_an_absent_row_costs_no_query(browser, shop, url, queries, django_assert_num_queries):
    """Whoever makes the 404, the database is not asked; where the view is not understood it is."""
    with django_assert_num_queries(queries):
        response = browser.get(url)

    assert response.status_code == (410 if "forgiving" in url else 404)


def test_rest_framework_words_its_own_404(browser, shop):
    """The body is the one that the client would get without bloomguard."""
    assert browser.get("/rest/viewset/8/").json() == {"detail": "No Product matches the given query."}
    assert browser.get("/rest/viewset/7/").json() == {"id": 7, "name": ""}


@pytest.mark.parametrize("url", ["/private/{}/", "/permitted/{}/", "/decorated/{}/"])
def test_nobody_learns_of_an_id_before_logging_in(browser, shop, url):
    """A view that demands a login redirects to it, whether the row is there or not."""
    absent, existing = browser.get(url.format(8)), browser.get(url.format(7))

    assert (absent.status_code, existing.status_code) == (302, 302)


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


def test_rest_framework_refuses_before_it_looks(browser, shop):
    """Permissions come first, as without bloomguard."""
    assert [browser.get(f"/rest/private/{pk}/").status_code for pk in (7, 8)] == [403, 403]


@pytest.mark.parametrize("url", ["/private/{}/", "/decorated/{}/", "/rest/private/{}/"])
def test_who_is_logged_in_is_answered(browser, shop, url):
    """Behind the login an absent ID is not found, and the table of products is not asked."""
    user = get_user_model().objects.create_user("ada")

    assert browser.get(url.format(7), user).status_code == 200
    Product.objects.all().delete()  # the filter still says that 7 may be there, and that 8 is not
    assert [browser.get(url.format(pk), user).status_code for pk in (7, 8)] == [404, 404]


def test_where_every_view_demands_a_login_nobody_learns_of_an_id(browser, shop, build, settings):
    """``LoginRequiredMiddleware`` redirects strangers; who is logged in, and views without the demand, get the 404."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, LOGIN_REQUIRED]
    settings.ROOT_URLCONF = urlconf(
        path("p/<int:pk>/", features.ProductDetail.as_view()),
        path("open/<int:pk>/", login_not_required(features.ProductDetail.as_view())),
        path("f/<int:pk>/", views.product, name="f"),
    )
    user = get_user_model().objects.create_user("ada")

    with registered(Product, name="named", routes=["f"]):
        build("named")
        assert [browser.get(url).status_code for url in ("/p/8/", "/p/7/", "/f/8/", "/f/7/", "/open/8/")] == [
            302
        ] * 4 + [404]
        answers = [browser.get(url, user) for url in ("/p/8/", "/p/7/", "/f/8/", "/f/7/")]
    assert [answer.status_code for answer in answers] == [404, 200, 404, 200]
    assert answers[2]["Cache-Control"] == "no-store"


@pytest.mark.parametrize("decorate", [login_required, permission_required("shop.view_product")])
def test_a_named_route_that_demands_something_passes(guards, browser, build, settings, decorate):
    """Behind a decorator of ``django.contrib.auth`` a named route is answered only if the guard allows it."""
    settings.ROOT_URLCONF = urlconf(path("p/<int:pk>/", decorate(views.product), name="f"))
    for before_login, status in ((False, 302), (True, 404)):
        with registered(Product, name="allowed", routes=["f"], before_login=before_login):
            build("allowed")
            assert browser.get("/p/8/").status_code == status


def test_rows_that_the_guard_does_not_know_are_never_hidden(guards):
    """Only a queryset that asks for all that ``alive`` asks for, on the guard's own database, is within the guard."""
    guard = make_guard(Article, lookup="slug", alive=Q(deleted=False))
    plain = make_guard(Product)
    shown = Article.objects.filter(deleted=False)

    assert covers(guard, shown)
    assert covers(guard, shown.filter(slug="x").exclude(pk=3).order_by("pk"))
    assert covers(plain, Product.objects.all())
    assert not covers(guard, Article.objects.all())
    assert not covers(guard, Article.objects.filter(deleted=True))
    assert not covers(guard, Article.objects.filter(Q(deleted=False) | Q(slug="x")))
    assert not covers(guard, Article.objects.exclude(deleted=False))
    assert not covers(guard, shown.using("postgresql"))
    assert not covers(guard, shown.union(Article.objects.all()))
    assert not covers(plain, Product.objects.all()[:3])
    assert not covers(plain, Place.objects.all())


def test_a_queryset_with_a_filter_of_its_own_is_left_alone(guards):
    """A ``QuerySet`` class that overrides ``filter`` may look up by what it likes."""
    from django.db.models import QuerySet

    class Caseless(QuerySet):
        def filter(self, *args, **kwargs):
            return super().filter(*args)

    assert not covers(make_guard(Product), Caseless(Product))


def test_a_guard_that_finds_nothing_is_warned_of(settings):
    """A system check says so."""
    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", lambda request, pk: HttpResponse()))
    with registered(Place, name="finds-nothing", lookup="slug", routes="auto"):
        messages = [message.id for message in checks.run_checks(tags=["bloomguard"]) if message.obj is Place]

    assert "bloomguard.W010" in messages


def notes():
    return [found.msg for found in checks.run_checks(tags=["bloomguard"]) if found.id == "bloomguard.I015"]


def test_pages_of_a_guarded_model_that_nobody_guards_are_told(guards):
    """Each of the features that is left alone and shows a row is a note with the reason; what is guarded is none."""
    told = {message.split("(")[1].split(")")[0]: message for message in notes()}

    assert set(told) <= set(LEFT)
    assert set(told) >= {"own-object", "wrapped", "deleted"}
    assert "shows one shop.Product, and no guard answers for it: " in told["own-object"]
    assert told["own-object"].endswith("OwnObject has a get_object of its own.")


def test_a_route_that_was_forgotten_is_told(settings):
    """A guard with routes of its own hears of those that it leaves out, and what would take them."""
    view = type("Page", (DetailView,), {"model": Product}).as_view()
    settings.ROOT_URLCONF = urlconf(path("a/<int:pk>/", view, name="a"), path("b/<int:pk>/", view, name="b"))
    with registered(Product, name="first", routes=["a"]):
        (message,) = notes()

    assert message == (
        "the route /b/<int:pk>/ (b) shows one shop.Product, and no guard answers for it: "
        "the guard 'product' would, with routes = \"auto\"."
    )


def test_pages_of_other_models_and_other_pages_are_not_told(settings):
    """Functions, lists, pages without an ID, forms for a new row, models without a guard, and views that ask."""
    asking = type("Asking", (GuardedObjectMixin, DetailView), {"model": Product})
    settings.ROOT_URLCONF = urlconf(
        path("f/<int:pk>/", lambda request, pk: HttpResponse()),
        path("l/<slug:slug>/", ListView.as_view(model=Product)),
        path("p/<int:page>/", DetailView.as_view(model=Product)),
        path("n/<int:pk>/", CreateView.as_view(model=Product, fields=["name"])),
        path("u/<int:pk>/", DetailView.as_view(model=get_user_model())),
        path("o/<int:pk>/", DetailView.as_view()),
        path("m/<int:pk>/", asking.as_view()),
    )

    assert notes() == []


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

    with pytest.raises(NotFound, match="Nameless names neither model nor queryset"):
        lookup_of(guards, pattern)


def test_what_a_view_blocks_is_counted(browser, shop):
    """Once, where the answer is a 404: not for who is sent to the login, and a row that went is a false positive."""
    user = get_user_model().objects.create_user("somebody")
    counts.counts.forget()
    for url, who in [("/rest/viewset/8/", None), ("/private/8/", None), ("/private/8/", user), ("/private/7/", user)]:
        browser.get(url, who)
    Product.objects.all().delete()
    browser.get("/private/7/", user)

    found = counts.counts.read()
    assert [found.get(("auto", name), 0) for name in ("blocked", "absent", "maybe", "false positive")] == [2, 3, 2, 1]
