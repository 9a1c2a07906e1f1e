"""Which kwarg of a pattern carries the ID: a guard does not guess between two."""

from __future__ import annotations

import json

import pytest
from django.core import checks
from django.core.management import call_command
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.viewsets import ViewSet

from bloomguard.decorators import guarded
from bloomguard.guards import registry
from tests.shop.models import Article, Place, Product, Review
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


def review(request, product_id, pk):
    return HttpResponse(get_object_or_404(Review, product_id=product_id, pk=pk).pk)


@method_decorator(guarded("product"), name="get")
class ReviewPage(View):
    def get(self, request, product_id, pk):
        return review(request, product_id, pk)


@method_decorator(guarded("product"), name="dispatch")
class DispatchedPage(View):
    def get(self, request, product_id, pk):
        return review(request, product_id, pk)


def of_default(request, product_id=None, pk=55):
    """Has an argument that the pattern leaves out."""
    return review(request, product_id or 7, pk)


DECORATED = {
    "function": (guarded("product")(review), "g/<int:product_id>/reviews/<int:pk>/", "/g/7/reviews/55/"),
    "get": (ReviewPage.as_view(), "g/<int:product_id>/reviews/<int:pk>/", "/g/7/reviews/55/"),
    "dispatch": (DispatchedPage.as_view(), "g/<int:product_id>/reviews/<int:pk>/", "/g/7/reviews/55/"),
    "default": (guarded("product")(of_default), "g/reviews/<int:pk>/", "/g/reviews/55/"),
}


@pytest.fixture
def shop(build, settings):
    """Product 7 and its review 55 exist."""
    settings.MIDDLEWARE = [GUARD]
    Product.objects.create(pk=7)
    Review.objects.create(pk=55, product_id=7)
    build("product")

    def use(*patterns):
        settings.ROOT_URLCONF = urlconf(*patterns)

    return use


def warnings_of(name):
    found = checks.run_checks(tags=["bloomguard"])
    return [
        each for each in found if each.id == "bloomguard.W102" and f"{name!r}" in each.msg and "each may be" in each.msg
    ]


def rows(capsys, guard):
    call_command("guard_routes", "--json")
    return [row for row in json.loads(capsys.readouterr().out)["routes"] if row["guard"] == guard]


@pytest.mark.parametrize("kind", DECORATED)
def test_a_decorated_view_with_two_possible_ids_passes(shop, kind):
    """The review exists, whatever the filter of products says of 55; a check names the cure."""
    view, route, url = DECORATED[kind]
    shop(path(route, view))

    assert Client().get(url).status_code == 200
    [message] = warnings_of("product")
    assert "product_id" in message.msg
    assert message.hint == "Name the argument, as in @guarded('product', arg='argument')."


def test_a_decorated_view_that_is_told_which_one_is_guarded(shop, capsys, django_assert_num_queries):
    """``arg`` names it."""
    shop(path("g/<int:product_id>/reviews/<int:pk>/", guarded("product", arg="product_id")(review)))

    assert Client().get("/g/7/reviews/55/").status_code == 200
    with django_assert_num_queries(0):
        assert Client().get("/g/99/reviews/55/").status_code == 404
    assert warnings_of("product") == []
    assert [row["answered"] for row in rows(capsys, "product")] == ["route"]


def test_the_argument_of_the_request_is_no_id_of_a_model_named_request(shop, monkeypatch):
    """A decorated view passed everything, as ``request`` might have been the ID."""
    monkeypatch.setattr(Product._meta, "model_name", "request")
    shop(path("g/<int:pk>/", guarded("product")(plain)))

    assert warnings_of("product") == []
    assert [Client().get(f"/g/{pk}/").status_code for pk in (7, 99)] == [200, 404]


def test_guard_routes_says_that_a_decorated_view_passes(shop, capsys):
    """Its query asks the guard all the same, if it looks up a product."""
    shop(path("g/<int:product_id>/reviews/<int:pk>/", guarded("product")(review)))

    [row] = rows(capsys, "product")
    assert row["answered"] == "lookup"
    assert row["reason"].startswith("not before the view: @guarded('product') captures product_id and pk, and each may")


def test_a_decorator_that_names_no_field_of_the_guard_is_reported(shop, capsys):
    """With ``lookup = "pk"`` the field is ``id``, so the decorator lets all requests pass, and the query asks."""
    shop(path("g/<int:pk>/", guarded("product", arg={"pk": "pk"})(plain)))

    assert Client().get("/g/99/").status_code == 200
    [row] = rows(capsys, "product")
    assert (row["answered"], "add the arguments for ['id']" in row["reason"]) == ("lookup", True)
    found = [each for each in checks.run_checks(tags=["bloomguard"]) if "@guarded('product')" in each.msg]
    assert [(each.id, "add the arguments for ['id']" in each.msg) for each in found] == [("bloomguard.W102", True)]


def test_a_named_route_with_two_possible_ids_passes(shop, build, capsys):
    """The same without the decorator: it passes, a check names the cure, and ``guard_routes`` shows it."""
    shop(path("r/<int:product_id>/reviews/<int:pk>/", review, name="review"))
    with registered(Product, name="named", routes=["review"]):
        build("named")
        assert Client().get("/r/7/reviews/55/").status_code == 200
        [message] = warnings_of("named")
        [row] = rows(capsys, "named")
    assert message.hint == "Name the kwarg, as in routes = {'route': 'kwarg'}."
    assert row["answered"] == "lookup"
    assert "not before the view: route 'review' captures product_id and pk" in row["reason"]


def test_an_id_that_the_urlconf_sets_counts_as_well(shop, build):
    """The product may be the one that it sets: the review has an ID of its own."""
    shop(path("r/reviews/<int:pk>/", review, {"product_id": 7}, name="review"))
    with registered(Product, name="named", routes=["review"]):
        build("named")
        assert Client().get("/r/reviews/55/").status_code == 200
        assert len(warnings_of("named")) == 1


@pytest.mark.parametrize(("kwarg", "url"), [("product_id", "/r/99/reviews/55/"), ("pk", "/r/7/reviews/99/")])
def test_a_named_route_that_is_told_which_one_is_guarded(shop, build, kwarg, url):
    """A mapping names it."""
    shop(path("r/<int:product_id>/reviews/<int:pk>/", review, name="review"))
    with registered(Product, name="named", routes={"review": kwarg}):
        build("named")
        assert warnings_of("named") == []
        assert Client().get(url).status_code == 404


@pytest.mark.parametrize("kwarg", ["article", "article_slug"])
def test_a_slug_beside_one_of_the_guards_model_is_not_taken_for_it(shop, build, kwarg):
    """The page exists, and its own slug is that of no article; a check names the cure."""

    def page(request, slug, **of_article):
        return HttpResponse(get_object_or_404(Article, slug=of_article[kwarg]).slug + slug)

    Article.objects.create(slug="long")
    shop(path(f"a/<slug:{kwarg}>/<slug:slug>/", page, name="page"))
    with registered(Article, name="named", lookup="slug", routes=["page"]):
        build("named")
        assert Client().get("/a/long/two/").status_code == 200
        assert len(warnings_of("named")) == 1

    with registered(Article, name="told", lookup="slug", routes={"page": kwarg}):
        build("told")
        assert [Client().get(url).status_code for url in ("/a/long/two/", "/a/short/two/")] == [200, 404]


def test_a_slug_of_several_fields_is_not_guessed_either(shop, build):
    """The place exists; what is looked up beside its country is the slug of the page."""

    def page(request, country, place_slug, slug):
        return HttpResponse(get_object_or_404(Place, country=country, slug=place_slug).slug + slug)

    Place.objects.create(country="de", slug="ulm")
    shop(path("p/<str:country>/<slug:place_slug>/<slug:slug>/", page, name="page"))
    with registered(Place, name="named", lookup=("country", "slug"), routes=["page"]):
        build("named")
        assert Client().get("/p/de/ulm/two/").status_code == 200
        assert len(warnings_of("named")) == 1

    with registered(Place, name="told", lookup=("country", "slug"), routes={"page": {"slug": "place_slug"}}):
        build("told")
        assert [Client().get(f"/p/{path}/two/").status_code for path in ("de/ulm", "fr/ulm")] == [200, 404]


def test_a_mapping_that_names_another_field_guards_nothing(shop, build):
    """With ``lookup = "pk"`` the field is ``id``: the usual kwarg was taken for the ID, not the one that was named."""

    def numbered(request, pk, number):
        return review(request, product_id=pk, pk=number)

    shop(path("r/<int:pk>/reviews/<int:number>/", numbered, name="review"))
    with registered(Review, name="named", lookup="pk", routes={"review": {"pk": "number"}}):
        build("named")
        found = [each for each in checks.run_checks(tags=["bloomguard"]) if "'named'" in each.msg]

        assert Client().get("/r/7/reviews/55/").status_code == 200
    assert [each.id for each in found] == ["bloomguard.W102"]
    assert "the field 'pk' for 'review', which is not in lookup; the fields are id" in found[0].msg


def test_a_path_can_be_explained_without_a_guess(shop, capsys):
    """``explain_guard`` asks for no ID where none is certain."""
    shop(path("g/<int:product_id>/reviews/<int:pk>/", guarded("product")(review)))
    call_command("explain_guard", "/g/7/reviews/55/", "--json")

    [answer] = json.loads(capsys.readouterr().out)["guards"]
    assert (answer["value"], answer["outcome"]) == ("", "passes")


class Guarded(View):
    @guarded("product")
    def get(self, request, pk):
        return HttpResponse(get_object_or_404(Product, pk=pk).pk)


@method_decorator(guarded("product"), name="get")
class ByMethodDecorator(View):
    def get(self, request, pk):
        return HttpResponse(get_object_or_404(Product, pk=pk).pk)


class Products(ViewSet):
    @guarded("product")
    def retrieve(self, request, pk):
        return HttpResponse(get_object_or_404(Product, pk=pk).pk)

    def history(self, request, pk):
        return HttpResponse()


class Disabled(Guarded):
    get = None

    def head(self, request, pk):
        return HttpResponse()


def plain(request, pk):
    return HttpResponse()


plain.actions = ["approve"]


METHODS = [Guarded.as_view(), ByMethodDecorator.as_view(), Products.as_view({"get": "retrieve"})]


@pytest.mark.parametrize("view", METHODS, ids=["decorator", "method_decorator", "viewset"])
def test_a_guarded_method_is_seen_as_a_guarded_function_is(
    shop, settings, monkeypatch, capsys, django_assert_num_queries, view
):
    """By ``explain_guard``, ``guard_routes`` and the checks, without the middleware and on a closed route."""
    settings.MIDDLEWARE = []
    shop(path("m/<int:pk>/", view, name="method"))

    with django_assert_num_queries(0):
        assert Client().get("/m/99/").status_code == 404
    call_command("explain_guard", "/m/99/", "--json")
    [answer] = json.loads(capsys.readouterr().out)["guards"]
    assert answer["outcome"] == "404 at the route (by @guarded, at its place among the view's decorators)"
    assert [row["answered"] for row in rows(capsys, "product")] == ["route"]
    monkeypatch.setattr(registry["product"], "routes", ["method"])
    registry.replan()
    assert [message.id for message in checks.run_checks(tags=["bloomguard"]) if message.obj is Product] == []


def test_another_action_of_a_viewset_is_not_guarded(shop, capsys):
    """A route calls the methods that it names."""
    shop(path("m/<int:pk>/history/", Products.as_view({"get": "history"})))

    assert "route" not in [row["answered"] for row in rows(capsys, "product")]


def test_a_method_that_a_subclass_takes_away_is_not_guarded(shop, capsys):
    """Django calls no other than the class has."""
    shop(path("m/<int:pk>/", Disabled.as_view()))

    assert "route" not in [row["answered"] for row in rows(capsys, "product")]


def test_a_view_may_have_actions_of_another_kind(shop):
    """What REST framework calls so is a mapping. ``check`` must not fail for any other."""
    shop(path("m/<int:pk>/", plain))

    assert "bloomguard.W043" not in [message.id for message in checks.run_checks(tags=["bloomguard"])]
