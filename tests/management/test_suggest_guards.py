"""``manage.py suggest_guards`` prints a ``guards.py`` that imports, passes ``check`` and guards what views look up."""

from __future__ import annotations

import io
import json
import types

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections, models
from django.http import HttpResponse
from django.test import Client
from django.test.utils import isolate_apps
from django.urls import path
from django.views.generic import DetailView
from gazetteer.models import City, Listing

from bloomguard.guards import Guard, registry
from bloomguard.management.commands import suggest_guards
from bloomguard.rebuild import Rebuild
from bloomguard.testing import assert_blocked, guards_armed
from tests.shop.models import Article, Bundle, Place, Price, Product, Tag, Ticket
from tests.support import database, servers
from tests.support.guarding import registered, urlconf

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh")]


@pytest.fixture(autouse=True)
def nothing_guarded():
    """No guards; those of the test are gone afterwards."""
    kept, registry._guards = registry._guards, {}
    registry.changed()
    yield
    registry._guards = kept
    registry.clashes.clear()
    registry.changed()


class NeedsTenant:
    def db_for_write(self, model, **hints):
        raise LookupError("no tenant is set")


def suggested(*arguments):
    out = io.StringIO()
    call_command("suggest_guards", *arguments, stdout=out)
    return out.getvalue()


def paste(code):
    """Import the text as a ``guards.py``; return its guards, as ``(model, lookup, routes)``."""
    exec(compile(code, "guards.py", "exec"), types.ModuleType("pasted").__dict__)
    return {(guard.model, guard.lookup, guard.routes) for guard in registry}


def complaints():
    return [(each.id, each.msg) for each in run_checks(tags=["bloomguard"])]


def test_the_example_project(settings):
    """Its own guards are found, but for ``alive``, which only its author knows; what is printed passes ``check``."""
    settings.ROOT_URLCONF = "config.urls"
    City.objects.create(pk=7, name="Ulm", slug="ulm", country="DE", population=1, latitude=0, longitude=0)
    code = suggested()
    found = paste(code)

    assert found == {(City, "pk", ()), (City, ("country", "slug"), ()), (Listing, "slug", ())}
    assert complaints() == []
    assert "# If visitors do not see all rows, set alive, by deleted_at: see docs/soft-delete.md" in code
    assert "# It answers at the lookup: /cities/<int:pk>/\n@register(City)\nclass CityGuard(Guard):\n    pass\n" in code
    with guards_armed():
        assert_blocked(Client(), "/cities/8/")
        assert Client().get("/cities/7/").status_code == 200


def detail(name, pattern, model, **attributes):
    return path(pattern, type("Shown", (DetailView,), {"model": model, **attributes}).as_view(), name=name)


def reviewed(request, product_id, pk):
    return HttpResponse(f"{Product} {Article}")


def test_what_views_look_up(settings):
    """Generic views by their attributes, others by their code and kwargs; a proxy or a link counts for its table."""
    settings.ROOT_URLCONF = urlconf(
        detail("a", "a/<int:pk>/", Product),
        detail("b", "b/<slug:slug>/", Article),
        detail("c", "c/<int:number>/", Ticket, pk_url_kwarg="number"),
        detail("d", "d/<int:pk>/", Bundle, get_object=lambda self: None),
        path("e/<int:product_id>/<int:pk>/", reviewed, name="article-of-product"),
    )
    found = {(each.model, each.lookup): each for each in suggest_guards.suggest(["shop"])[0]}

    assert set(found) == {
        ("shop.Product", ("pk",)),
        ("shop.Article", ("slug",)),
        ("shop.Article", ("pk",)),
        ("shop.Bundle", ("pk",)),
        ("shop.Ticket", ("pk",)),
    }
    product, article = found["shop.Product", ("pk",)], found["shop.Article", ("slug",)]
    assert (product.routes, product.answers) == (
        "auto",
        {"door": ["/a/<int:pk>/"], "lookup": ["/e/<int:product_id>/<int:pk>/"]},
    )
    assert (article.hides, article.rows) == (["deleted"], 0)
    assert found["shop.Bundle", ("pk",)].routes == ""


def test_what_is_printed_for_the_tests_own_site():
    """All models of the shop, function views of every kind: it imports, and ``check`` has nothing to say."""
    found = paste(suggested("shop"))

    assert {(Product, "pk", ()), (Article, "slug", ()), (Price, "amount", ())} <= found
    assert complaints() == []


def test_a_guard_costs_what_it_says(settings):
    """The rows, and the kind and bytes of the filter that a rebuild would make."""
    settings.ROOT_URLCONF = urlconf(detail("a", "a/<int:pk>/", Product))
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 3_001))
    ((each,), _) = suggest_guards.suggest(["shop"])
    with registered(Product, name="mine") as guard:
        plan = Rebuild(guard).plan()

    assert (each.rows, each.kind) == (plan.rows, plan.kind) == (3_000, "bitmap")
    assert each.bytes == plan.bytes
    assert 4 <= each.seconds < 5


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_a_table_that_cannot_be_read_has_the_databases_reason(settings, monkeypatch):
    """As of a database that is down, where ``migrate`` would not help: the guard is printed, without its costs."""
    settings.ROOT_URLCONF = urlconf(detail("a", "a/<int:pk>/", Product))
    connections["postgresql"].close()
    with database.on("postgresql"), monkeypatch.context() as down:
        down.setitem(connections["postgresql"].settings_dict, "PORT", str(servers.free_port()))
        code = suggested("shop")
        ((each,), _) = suggest_guards.suggest(["shop"])

    assert (each.rows, each.bytes) == (None, 0)
    assert "failed" in each.error
    assert f"# The table cannot be read: {' '.join(each.error.split())}\n" in code
    assert "migrate" not in code
    assert paste(code) == {(Product, "pk", "auto")}


def test_models_without_a_guard_have_a_reason(settings):
    """Of a field that cannot be a key, of one that converts values, of a guard that is there, of no view."""
    with isolate_apps("tests.shop"):

        class Odd(models.Model):
            ratio = models.FloatField(unique=True)
            text = models.CharField(max_length=9, unique=True, db_collation="nocase")

            class Meta:
                app_label = "shop"

    reasons = {}
    for lookup in ("ratio", "text"):
        reasons[lookup] = suggest_guards._why_not(suggest_guards._made(Odd, (lookup,)))
    settings.ROOT_URLCONF = urlconf(detail("a", "a/<int:pk>/", Product))
    with registered(Product, name="mine"):
        code = suggested("shop")

    assert reasons["ratio"] == "shop.Odd.ratio is a FloatField, which cannot be a key"
    assert "has the collation 'nocase'" in reasons["text"]
    assert "# shop.Product: the guard 'mine' guards it by pk\n" in code
    assert f"# {Tag._meta.label}: no URL pattern shows by which field a view looks up one row\n" in code
    assert "class " not in code


def test_a_model_whose_database_needs_a_tenant_has_this_as_its_reason(settings):
    """Its router raises without one; so no filter could be built."""
    settings.ROOT_URLCONF = urlconf(detail("a", "a/<int:pk>/", Product))
    settings.DATABASE_ROUTERS = [NeedsTenant()]
    text = suggested("shop")

    assert "# shop.Product: without hints, the routers name no database of shop.Product: LookupError(" in text


def test_names_that_are_taken(settings):
    """A guard of another model has the name already: the suggested one gets another, and ``check`` is content."""
    settings.ROOT_URLCONF = urlconf(detail("a", "a/<int:pk>/", Product))
    taken = type("ProductGuard", (Guard,), {"lookup": ("country", "slug")})(Place)
    registry.add(taken)
    code = suggested("shop")
    paste(code)

    assert '    name = "product-2"\n' in code
    assert registry["product-2"].model is Product
    assert complaints() == []


def test_a_model_named_guard_does_not_take_the_place_of_ours():
    """A company of guards has it: the model is imported under another name, so that the class is still one of ours."""
    guard = suggest_guards.Suggestion(
        model="shop.Guard", module="shop.models", lookup=("pk",), routes="", answers={}, hides=[]
    )
    code = "\n".join(suggest_guards._module([guard], []))

    assert "from shop.models import Guard as ShopGuard\n" in code
    assert "@register(ShopGuard)\nclass ShopGuardGuard(Guard):\n" in code


def test_programs_get_the_same():
    """``--json`` has the guards, the reasons and the text."""
    text, found = suggested("shop"), json.loads(suggested("shop", "--json"))

    assert found["code"] == text.removesuffix("\n")
    assert {"model", "lookup", "rows", "bytes", "seconds", "answers"} <= set(found["guards"][0])
    assert {"model", "reason"} == set(found["not_suggested"][0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["shpo"], "No installed app"),
        (["--urlconf=no"], "no URLconf 'no'"),
        (["--urlconf=tests.shop.models"], r"no URLconf 'tests\.shop\.models'"),
    ],
)
def test_what_does_not_exist_is_named(arguments, text):
    """An app, a URLconf."""
    with pytest.raises(CommandError, match=text):
        suggested(*arguments)


def test_the_sites_own_urlconf_is_named(settings):
    """Also if the command was given none."""
    settings.ROOT_URLCONF = "no.urls"

    with pytest.raises(CommandError, match=r"no URLconf 'no\.urls'"):
        suggested("shop")


def test_a_store_whose_client_cannot_be_created_is_named(no_cluster):
    """As a mistake in the settings is: without a traceback."""
    with pytest.raises(CommandError, match=r"CACHES\['shared'\] cannot be created"):
        suggested("shop")


def test_nothing_to_suggest_is_said(settings):
    """An empty module would look like a failure."""
    settings.ROOT_URLCONF = urlconf()

    assert suggested("auth").splitlines()[-1] == "# No view of the URLconf looks up one row of these models."
