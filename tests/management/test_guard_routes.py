"""``manage.py guard_routes``: who guards what, and why not."""

from __future__ import annotations

import json

import pytest
from django.contrib.contenttypes.models import ContentType
from django.core.management import CommandError, call_command
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path, re_path
from django.views.generic import DetailView
from rest_framework.generics import RetrieveAPIView

from tests.shop import models
from tests.shop.models import Article, Product
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


@pytest.fixture
def guards(settings):
    settings.ROOT_URLCONF = "tests.shop.features"
    settings.MIDDLEWARE = [GUARD]
    with (
        registered(Product, name="auto", routes="auto"),
        registered(Article, name="auto-slug", lookup="slug", alive=Q(deleted=False), routes="auto"),
        registered(Product, name="named", routes=["function", "decorated"]),
    ):
        yield


OWN_QUERY = "its view's own query; not before the view: "


def rows(capsys, *arguments):
    call_command("guard_routes", "--json", *arguments)
    return json.loads(capsys.readouterr().out)["routes"]


@pytest.mark.parametrize(
    ("name", "guard", "answered", "reason"),
    [
        ("detail", "auto", "door", ""),
        ("alive", "auto-slug", "door", ""),
        ("own-queryset", "auto", "lookup", OWN_QUERY + "OwnQuerySet.get_queryset runs first"),
        ("private", "auto", "lookup", OWN_QUERY + "LoginRequiredMixin.dispatch runs first"),
        ("guarded", "auto", "route", "by @guarded, at its place among the view's decorators"),
        ("topped", "auto", "route", "by @guarded, at its place among the view's decorators"),
        ("function", "named", "door", ""),
        ("decorated", "named", "lookup", "not before the view: Decorated.dispatch runs first"),
        ("fixed", "auto", "route", "the URLconf sets the ID, not the path"),
        ("own-object", "auto", "lookup", OWN_QUERY + "OwnObject.get_object runs first"),
        ("rest-private", "auto", "lookup", OWN_QUERY + "REST framework renders its own 404"),
    ],
)
def test_each_pattern_is_told_of(guards, capsys, name, guard, answered, reason):
    """Which guard, where it answers, and why not earlier, in one line."""
    [row] = [row for row in rows(capsys) if (row["name"], row["guard"]) == (name, guard)]

    assert (row["answered"], row["reason"]) == (answered, reason)


def _of_product(request, pk):
    return HttpResponse(get_object_or_404(Product, pk=pk).pk)


def _of_order(request, pk):
    return HttpResponse([models.Order.objects.get(pk=each).pk for each in [pk]])


def _of_helper(request, pk):
    return _of_product(request, pk)


@pytest.mark.parametrize(("view", "guards"), [(_of_product, {"product"}), (_of_order, {"order"}), (_of_helper, None)])
def test_a_function_view_has_the_guards_of_the_models_that_it_names(capsys, settings, view, guards):
    """Every guard of a primary key fits ``<int:pk>``; if the code names the model of one, the others are left out."""
    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", view, name="x"))
    found = {row["guard"] for row in rows(capsys)}

    assert found == guards if guards else found > {"product", "order"}


def test_where_no_guard_answers_the_reason_is_told(capsys, settings):
    """Of a model that nobody guards, and of guards that leave queries alone."""
    settings.ROOT_URLCONF = "tests.shop.features"
    with registered(Product, name="named", routes=["decorated"], lookups=False):
        found = {(row["name"], row["guard"]): row for row in rows(capsys)}

    assert found["decorated", "named"]["answered"] == ""
    assert found["decorated", "named"]["reason"] == "not before the view: Decorated.dispatch runs first"


def test_a_model_without_a_guard_is_the_reason(capsys, settings):
    """Of a view of REST framework too, of which a guard would answer the query."""
    view = RetrieveAPIView.as_view(queryset=ContentType.objects.all())
    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", view, name="x"))
    [row] = rows(capsys)

    assert row["reason"] == "its view shows one contenttypes.ContentType, which no guard protects"


def test_only_patterns_with_an_identifier_are_listed(guards, capsys):
    """A pattern that captures nothing has nothing to guard; ``--unguarded`` leaves out the guarded ones."""
    every, unguarded = rows(capsys), rows(capsys, "--unguarded")

    assert "product-list" not in [row["name"] for row in every]
    assert {row["answered"] for row in unguarded} == {""}
    assert 0 < len(unguarded) < len(every)


def test_a_pattern_that_one_of_two_guards_answers_for_is_guarded(settings, capsys):
    """``--unguarded`` lists patterns, not each guard that cannot answer."""
    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", _of_product, name="x"))
    settings.MIDDLEWARE = [GUARD]
    with (
        registered(Product, name="one", routes=["x"], public=False),
        registered(Product, name="other", routes=["x"], public=False, lookups=False),
    ):
        assert {row["answered"] for row in rows(capsys)} == {"lookup", ""}
        assert rows(capsys, "--unguarded") == []


def test_it_reads_well(guards, capsys):
    """One line a pattern, and how many are guarded."""
    call_command("guard_routes")
    lines = capsys.readouterr().out.splitlines()

    assert any(line.startswith("/p/<int:pk>/") and line.endswith("auto: door") for line in lines)
    assert any(line.endswith(f"auto: lookup ({OWN_QUERY}OwnQuerySet.get_queryset runs first)") for line in lines)
    assert lines[-1].endswith("patterns that take an identifier are guarded")


def test_what_is_not_sure_is_not_counted_as_sure(capsys, settings):
    """Of a function view only its code knows which row it looks up."""
    settings.ROOT_URLCONF, settings.MIDDLEWARE = (
        urlconf(path("x/<int:pk>/", lambda request, pk: HttpResponse())),
        [GUARD],
    )
    call_command("guard_routes")

    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "1 of 1 patterns that take an identifier are guarded, 1 of them if the view looks up the row"


def test_the_share_of_guarded_patterns_is_that_of_all(guards, capsys):
    """Also of ``--unguarded``, which lists none of the guarded ones."""
    call_command("guard_routes")
    every = capsys.readouterr().out.splitlines()
    call_command("guard_routes", "--unguarded")
    unguarded = capsys.readouterr().out.splitlines()

    assert unguarded[-1] == every[-1]
    assert not every[-1].startswith("0 of")
    assert len(unguarded) < len(every)


@pytest.mark.parametrize(
    ("middleware", "note"),
    [
        ([], "MIDDLEWARE has no BloomGuardMiddleware"),
        ([GUARD, "django.middleware.common.CommonMiddleware"], "other middleware comes after BloomGuardMiddleware"),
    ],
)
def test_the_place_of_the_middleware_is_told(guards, capsys, settings, middleware, note):
    """The list shows what the patterns and views allow: what the middleware prevents is said below it."""
    settings.MIDDLEWARE = middleware
    call_command("guard_routes")

    assert capsys.readouterr().out.splitlines()[-1].startswith(note)


def test_a_suffix_for_the_format_is_no_identifier(capsys, settings):
    """REST framework's routers give one to each list; a pattern with an identifier beside it stays."""
    of_list = re_path(r"^x\.(?P<format>[a-z0-9]+)/?$", _of_product)
    settings.ROOT_URLCONF = urlconf(of_list, re_path(r"^y/(?P<pk>\d+)\.(?P<format>[a-z]+)$", _of_product))

    assert {row["pattern"][:3] for row in rows(capsys)} == {"/y/"}


def test_another_urlconf(guards, capsys):
    """``--urlconf`` takes another one than ``ROOT_URLCONF``; one that is not there is said to be missing."""
    assert rows(capsys, "--urlconf", "tests.shop.urls")[0]["name"] == "product"
    with pytest.raises(CommandError, match=r"there is no URLconf 'no\.such'"):
        call_command("guard_routes", urlconf="no.such")


def test_a_guard_whose_normalize_fails_hides_no_other(capsys, settings):
    """It may ask a service that is down; the commands ended with its error, which did not say of which guard it was."""

    def fail(self, value):
        raise OSError("down")

    settings.ROOT_URLCONF = urlconf(path("articles/<slug:slug>/", DetailView.as_view(model=Article)))
    with registered(Article, name="odd", lookup="slug", normalize=fail):
        call_command("guard_routes", "--json")
        found = {row["guard"] for row in json.loads(capsys.readouterr().out)["routes"]}
        call_command("explain_guard", "/articles/a/", "--json")
        faults = {each["guard"]: each["fault"] for each in json.loads(capsys.readouterr().out)["guards"]}

    assert found == {"article", "odd"}
    assert "OSError" in faults["odd"]
