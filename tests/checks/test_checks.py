"""System checks: a mistake is said at start, and names the guard, the value and the cure."""

from __future__ import annotations

import gc
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib import admin
from django.core.checks import Tags, run_checks
from django.core.checks.registry import registry as known_checks
from django.core.management import CommandError, call_command
from django.db import connections, models
from django.test.utils import isolate_apps
from django.urls import path
from django.views import View
from gazetteer.models import Listing

from bloomguard.conf import PAGES
from bloomguard.decorators import guarded
from bloomguard.guards import Guard, register, registry
from bloomguard.state import table as state
from tests.lookups.models import Coded
from tests.shop import views
from tests.shop.models import Article, Converted, Echo, Product
from tests.support import database
from tests.support.guarding import make_guard, registered, urlconf


@pytest.fixture(autouse=True)
def _fresh(fresh):
    """Each test has a store folder that may be written to."""


def messages():
    """What the checks of this package say, as ``(id, message, hint)``.

    Without that there is no guard for the URLconf's own view under ``@guarded``: these tests have others.
    """
    found = [(found.id, found.msg, found.hint) for found in run_checks(tags=["bloomguard"])]
    return [each for each in found if not each[1].startswith("no guard has the name 'product'")]


def the_message():
    """The only message there is."""
    (found,) = messages()
    return found


def test_a_plain_check_asks_no_database(only, django_db_blocker):
    """As each command runs it: Django 6.1 gives it all databases, which may not be there yet."""
    only(Product, name="product")
    plain = [each for each in known_checks.get_checks() if Tags.database not in each.tags]
    own = [each for each in plain if each.__module__.startswith("bloomguard.")]
    assert own
    with django_db_blocker.block():
        for check in own:
            assert list(check(app_configs=None, databases=list(connections))) == []


def test_a_project_without_mistakes_hears_nothing():
    """The shop's guards, and the example's under its own URLconf, have nothing wrong."""
    from django.test import override_settings

    assert [found for found in messages() if "'city" not in found[1] and "listing" not in found[1]] == []
    with override_settings(ROOT_URLCONF="config.urls"):
        assert [found for found in messages() if "'city" in found[1] or "listing" in found[1]] == []


@pytest.fixture
def only():
    """``only(model, ...)`` is the one guard that there is."""
    others, clashes = registry._guards, registry.clashes
    registry._guards, registry.clashes = {}, []
    registry.changed()

    def add(model, **attributes):
        guard = make_guard(model, **{"name": "mine", **attributes})
        registry.add(guard)
        return guard

    yield add
    registry._guards, registry.clashes = others, clashes
    registry.changed()


@pytest.mark.parametrize(
    ("model", "attributes", "identifier", "value", "cure"),
    [
        (Product, {"lookup": "nmae"}, "W101", "no field 'nmae'", "the model has id, name"),
        (Product, {"lookup": ("pk", "nmae")}, "W101", "no field 'nmae'", "lookup is ('pk', 'nmae')"),
        (Product, {"lookup": "bundle"}, "W101", "shop.Product.bundle is not a column", "the model has id, name"),
        (Product, {"lookup": "bundle__name"}, "W101", "no field 'bundle__name'", "none across a relation"),
        (Product, {"lookup": ()}, "W101", "lookup is ()", "the model has id, name"),
        (Product, {"routes": ["prodcut"]}, "W102", "no URL pattern named 'prodcut'", "Did you mean 'product'"),
        (Product, {"routes": ["xyzzy"]}, "W102", "no URL pattern named 'xyzzy'", "The URLconf has "),
        (Product, {"mode": "shade"}, "W114", "mode is 'shade'", "'enforce', 'shadow'"),
        (Product, {"routes": "product"}, "W102", "routes is 'product'", "routes = ['city-detail']"),
        (Product, {"routes": ["article"]}, "W102", "captures slug", "routes = {'route': 'kwarg'}"),
        (Product, {"routes": {"product": "number"}}, "W102", "expected number", "routes = {'route': 'kwarg'}"),
        (Product, {"store": "redis"}, "W103", "no store 'redis'", "BLOOMGUARD['STORES'] has default"),
        (Product, {"error_rate": 0}, "W104", "0", "Remove the line"),
        (Product, {"error_rate": 1.5}, "W104", "1.5", "Remove the line"),
        (Product, {"error_rate": float("nan")}, "W104", "nan", "Remove the line"),
        (Product, {"error_rate": "1%"}, "W104", "'1%'", "Remove the line"),
        (Product, {"capacity": 0}, "W104", "0", "Remove the line"),
        (Product, {"capacity": -5}, "W104", "-5", "Remove the line"),
        (Product, {"capacity": 1.5}, "W104", "1.5", "Remove the line"),
        (Article, {"lookup": "deleted"}, "W105", "'deleted' is a BooleanField", "Look rows up by an integer"),
        (Listing, {"lookup": "price"}, "W001", "price may be NULL", "The filter does not contain rows with NULL"),
    ],
)
def test_a_mistake_names_the_guard_the_value_and_the_cure(only, model, attributes, identifier, value, cure):
    """Every mistake in a guard is one message with a permanent id."""
    only(model, **attributes)

    found, message, hint = the_message()

    assert found == f"bloomguard.{identifier}"
    assert message.startswith("the guard 'mine': ")
    assert value in message
    assert cure in hint


def test_a_route_without_a_pattern_names_those_that_take_an_identifier(only, settings):
    """The hint lists the project's patterns, and none of the admin's or without an ID."""
    shown = path("products/<int:pk>/", views.product, name="product")
    settings.ROOT_URLCONF = urlconf(path("admin/", admin.site.urls), path("all/", views.product, name="all"), shown)
    only(Product, routes=["xyzzy"])

    assert the_message()[2] == "The URLconf has product."


def slug_with(**options):
    with isolate_apps("tests.shop"):

        class Page(models.Model):
            slug = options.pop("field", models.CharField)(max_length=10, **options)

            class Meta:
                app_label = "shop"

    return Page


def test_a_collation_needs_a_normaliser(only):
    """Under a collation of one's own, different texts may be equal: say how, or be refused."""
    only(slug_with(db_collation="nocase"), lookup="slug")

    found, message, hint = the_message()

    assert found == "bloomguard.W106"
    assert "the guard 'mine': 'slug' has the collation 'nocase'" in message
    assert "normalize" in hint


def test_a_collation_with_a_normaliser_is_fine(only):
    """A guard that says which texts are equal may guard any collation."""
    only(slug_with(db_collation="nocase"), lookup="slug", normalize=lambda self, value: value.casefold())

    assert messages() == []


def test_a_collation_that_compares_bytes_is_fine(only):
    """MariaDB's own collation that treats no two texts as equal needs no normaliser."""
    only(slug_with(db_collation="utf8mb4_nopad_bin"), lookup="slug")

    assert messages() == []


def test_a_collation_of_postgresql_is_looked_up_there(only):
    """By nearly all of them, such as "C", only equal texts are equal; a rebuild refuses the others."""
    only(slug_with(db_collation="C"), lookup="slug")

    with database.on("postgresql"):
        assert messages() == []


class ShoutingField(models.CharField):
    def get_prep_value(self, value):
        return str(value).upper()


def test_a_field_that_changes_values_on_their_way_is_warned_of(only):
    """A field of one's own with another ``get_prep_value`` may store something else than its attribute says."""
    only(slug_with(field=ShoutingField), lookup="slug")

    found, message, hint = the_message()

    assert found == "bloomguard.W002"
    assert "the guard 'mine': 'slug' is a ShoutingField" in message
    assert "normalize" in hint


@pytest.mark.parametrize(
    ("model", "lookup", "named"),
    [
        (Converted, "lowered", "a LoweringField, whose get_placeholder, get_placeholder_sql may"),
        (Converted, "reversed", "a ReversingField, whose get_db_converters may"),
        (Converted, "selected", "a SelectingField, whose select_format may"),
        (Echo, "shout", "a UpperField, whose get_prep_value may"),
    ],
)
def test_a_field_that_converts_by_any_method_is_warned_of(only, model, lookup, named):
    """Also one that a foreign key points to."""
    only(model, lookup=lookup)

    found, message, _ = the_message()

    assert found == "bloomguard.W002"
    assert named in message


def test_a_number_that_is_converted_is_warned_of_with_a_normalizer_too(only):
    """It is called for texts alone, so it is no cure."""
    only(Coded, lookup="code", normalize=lambda self, value: value.casefold())

    found, message, hint = the_message()

    assert found == "bloomguard.W002"
    assert "'code' is a ShiftedField, whose get_prep_value, from_db_value may" in message
    assert "normalize" not in hint


def test_two_guards_of_one_name(only):
    """The second guard of a name is not registered; the message names its class."""
    only(Product)

    @register(Article)
    class SecondGuard(type(make_guard(Article))):
        name = "mine"

    found, message, hint = the_message()

    assert found == "bloomguard.W107"
    assert "SecondGuard: another guard already has the name 'mine'" in message
    assert "name = ..." in hint


def test_two_guards_whose_names_cannot_be_used(only):
    """Each is reported by the name that its class has, not by the one that both got instead."""
    only(Product, name="No Name")

    @register(Article)
    class SecondGuard(type(make_guard(Article))):
        name = "Nor This"

    found = [message for id, message, _ in messages() if id in ("bloomguard.W118", "bloomguard.W107")]

    assert len(found) == 2
    assert any("name is 'No Name'" in message for message in found)
    assert any("name is 'Nor This'" in message for message in found)


def test_an_unknown_key_of_the_setting(only, settings):
    """A key of ``BLOOMGUARD`` that nothing reads is a slip of the pen."""
    settings.BLOOMGUARD = {**settings.BLOOMGUARD, "STORE": {}}

    assert the_message() == (
        "bloomguard.W108",
        "BLOOMGUARD has the unknown key 'STORE'.",
        "Known keys are ENABLED, STORES.",
    )


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("route", ["product"], "routes"),
        ("fp_rate", 0.01, "error_rate"),
        ("eror_rate", 0.01, "error_rate"),
        ("lookups_", True, "lookups"),
    ],
)
def test_a_misspelt_option(only, name, value, meant):
    """An attribute that looks like an option, and is none, is named with the option that was meant."""
    only(Product, **{name: value})

    found, message, hint = the_message()

    assert found == "bloomguard.W018"
    assert f"the guard 'mine': it has an attribute {name!r}" in message
    assert f"Did you mean {meant!r}?" in hint


def test_an_attribute_of_the_projects_own_is_nobodys_business(only):
    """A guard may have methods and attributes that look like no option."""
    only(Product, cities_of=lambda self: [], TABLE="x", _route="y")

    assert messages() == []


def test_the_field_in_lookups(only):
    """``lookups`` is a switch; whoever gives it a field means ``lookup``."""
    only(Product, lookups="name")

    assert the_message() == (
        "bloomguard.W116",
        "the guard 'mine': lookups is 'name'.",
        "Set True or False; lookup names the field.",
    )


def test_a_guard_that_is_not_registered(only):
    """A class in an app's ``guards.py`` without ``@register`` guards nothing; a base of others need not be."""
    base = type("BaseGuard", (Guard,), {"__module__": "tests.shop.guards"})
    lost = type("LostGuard", (base,), {"__module__": "tests.shop.guards"})
    names = [message for found, message, _ in messages() if found == "bloomguard.W019"]
    del base, lost
    gc.collect()

    assert "tests.shop.guards.LostGuard is not registered, so it guards nothing." in names
    assert not any("BaseGuard" in name for name in names)


@pytest.mark.parametrize("name", ["BLOOM_GUARD", "BLOOMGUARDS", "BLOOMGARD", "BLOMGUARD", "BLOOMGAURD"])
def test_a_misspelt_setting(only, settings, name):
    """A setting that is nearly ``BLOOMGUARD`` is read by nothing."""
    setattr(settings, name, {})

    assert the_message() == (
        "bloomguard.W038",
        f"the settings have {name}, which bloomguard does not read.",
        "The setting is named BLOOMGUARD.",
    )


def test_an_unknown_key_of_a_store(only, settings):
    """``LOCATION``, as caches have it, is no key of a store."""
    stores = settings.BLOOMGUARD["STORES"]
    settings.BLOOMGUARD = {"STORES": {"default": {**stores["default"], "LOCATION": "/var/lib"}}}

    found, message, hint = the_message()

    assert (found, message) == ("bloomguard.W115", "the store 'default' has the unknown key 'LOCATION'.")
    assert "OPTIONS" in hint


@pytest.mark.parametrize(
    ("store", "value"),
    [
        ({"BACKEND": "bloomguard.stores.nowhere.Store"}, "bloomguard.stores.nowhere.Store"),
        ({"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"colour": "red"}}, "colour"),
        ({}, "has no BACKEND"),
    ],
)
def test_a_store_that_cannot_be_made(only, settings, store, value):
    """A backend that is not there, or does not know an option, is named."""
    settings.BLOOMGUARD = {"STORES": {"default": store}}

    found, message, hint = the_message()

    assert found == "bloomguard.W109"
    assert "BLOOMGUARD['STORES']['default']" in message
    assert value in message
    assert hint == f"See {PAGES}settings.md."


def test_a_missing_driver_names_its_extra(settings, monkeypatch):
    """Installed as on the page of the store, and from no registry."""
    missing = Mock(side_effect=ModuleNotFoundError("No module named 'redis'", name="redis"))
    monkeypatch.setattr("bloomguard.stores.import_string", missing)
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.redis.RedisStore"}}}

    found, message, hint = the_message()

    assert found == "bloomguard.W109"
    assert "redis" in message
    assert hint == (
        f"Install bloomguard with the extra redis (in a clone: python -m pip install '.[redis]'), see {PAGES}redis.md."
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (["stores"], "list"),
        ({"STORES": ["default"]}, "['STORES'] is of type list"),
        ({"STORES": {"default": "x"}}, "str"),
    ],
)
def test_a_setting_of_another_form(only, settings, setting, value):
    """``BLOOMGUARD`` and what it holds are dictionaries; of anything else the type is named."""
    only(Product)
    settings.BLOOMGUARD = setting

    found, message, hint = the_message()
    deployed = run_checks(tags=["bloomguard"], include_deployment_checks=True)

    assert found == "bloomguard.W109"
    assert value in message
    assert "dictionary" in message
    assert "docs/settings.md" in hint
    assert {each.id for each in deployed} - {"bloomguard.W043"} == {"bloomguard.W109"}


def test_a_guard_by_signals_is_warned_of(only):
    """``sync = "signals"`` says what it misses."""
    only(Product, sync="signals")

    found, message, hint = the_message()

    assert found == "bloomguard.W005"
    assert "bulk_create, QuerySet.update, raw SQL and migrations bypass it" in message
    assert "rebuild_filter" in hint


GUARD = "bloomguard.middleware.BloomGuardMiddleware"
SECURITY = "django.middleware.security.SecurityMiddleware"
UPDATE, FETCH = (f"django.middleware.cache.{name}CacheMiddleware" for name in ("Update", "FetchFrom"))
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
BOTH = "django.middleware.cache.CacheMiddleware"


@pytest.mark.parametrize(
    ("order", "identifier", "named"),
    [
        ([UPDATE, FETCH, GUARD], "W012", FETCH),
        ([BOTH, GUARD], "W012", BOTH),
        ([GUARD, SECURITY], "W011", SECURITY),
        ([GUARD, FETCH, SECURITY], "W011", SECURITY),
        ([GUARD, UPDATE, SECURITY, FETCH, BOTH, CSRF], "W011", f"{UPDATE}, {SECURITY}, {FETCH} and 2 more after"),
    ],
)
def test_the_guard_stands_last_or_right_before_the_cache(only, settings, order, identifier, named):
    """Behind the cache an absent ID costs a look-up; what comes after it has not had its say."""
    settings.MIDDLEWARE = order

    found, message, hint = the_message()

    assert found == f"bloomguard.{identifier}"
    assert named in message
    assert ("as the last but one" if identifier == "W012" else "Put 'bloomguard.middleware") in hint


@pytest.mark.parametrize(
    "order", [[SECURITY, GUARD], [UPDATE, SECURITY, GUARD, FETCH], [UPDATE, GUARD], [FETCH, UPDATE]]
)
def test_an_order_that_costs_nothing_is_fine(only, settings, order):
    """The half of the cache that keeps pages looks none up, so it may be outermost."""
    settings.MIDDLEWARE = order

    assert messages() == []


def test_guards_that_nobody_asks(only, settings):
    """Without the middleware nobody asks a guard, unless views ask themselves."""
    settings.MIDDLEWARE, settings.WSGI_APPLICATION = [SECURITY], None
    only(Product, routes=["product"])

    found, message, hint = the_message()

    assert found == "bloomguard.W013"
    assert "so requests do not ask the guards 'mine'" in message
    assert GUARD in hint


def test_of_hundreds_of_guards_a_message_names_some(only, settings):
    """A message has to be read."""
    settings.MIDDLEWARE = [SECURITY]
    only(Product)
    for number in range(300):
        registry.add(make_guard(Product, name=f"guard-{number:03}"))

    found, message, _ = the_message()

    assert found == "bloomguard.W013"
    assert message.endswith(
        "the guards 'guard-000', 'guard-001', 'guard-002', 'guard-003', 'guard-004', 'guard-005', "
        "'guard-006', 'guard-007', 'guard-008', 'guard-009' and 291 more."
    )


@pytest.mark.parametrize("of_class", [False, True], ids=["function", "method"])
def test_views_that_ask_themselves_need_no_middleware(only, settings, of_class):
    """A guard that some view's ``@guarded`` names is asked."""
    view: Any = views.product
    if of_class:
        get = guarded("mine")(lambda self, request, pk: view(request, pk))
        view = type("ProductView", (View,), {"get": get}).as_view()
    else:
        view = guarded("mine")(view)
    settings.ROOT_URLCONF = urlconf(path("products/<int:pk>/", view, name="product"))
    settings.MIDDLEWARE = [SECURITY]
    only(Product)

    assert messages() == []


def test_a_view_under_guarded_with_a_name_that_no_guard_has(only, settings):
    """All requests reach it: a guard was renamed, or the name is misspelt."""
    settings.ROOT_URLCONF = urlconf(path("products/<int:pk>/", guarded("mien")(views.product), name="product"))
    only(Product)

    found, message, hint = the_message()

    assert found == "bloomguard.W043"
    assert "no guard has the name 'mien'" in message
    assert "/products/<int:pk>/" in message
    assert hint == "Did you mean 'mine'?"


def test_check_fails_the_command(only):
    """``manage.py check`` ends with an error, so that no deployment goes on."""
    only(Product, routes=["prodcut"])

    with pytest.raises(CommandError, match=r"the guard 'mine': there is no URL pattern named 'prodcut'"):
        call_command("check")


def test_registered_guards_are_gone_after_the_block():
    """The tests' own helper leaves nothing behind."""
    with registered(Product, name="passing-by"):
        assert "passing-by" in [guard.name for guard in registry]

    assert "passing-by" not in [guard.name for guard in registry]


class Split:
    """Sends the state rows to one database and all other rows to another."""

    def __init__(self, states, rows):
        self.states, self.rows = states, rows

    def db_for_write(self, model, **hints):
        return self.states if model._meta.app_label == "bloomguard" else self.rows


def test_rows_in_another_database_than_the_state_rows(only, settings):
    """It works, and its consequences are told."""
    settings.DATABASE_ROUTERS = [Split("default", "postgresql")]
    only(Product)

    found, message, hint = the_message()

    assert found == "bloomguard.I017"
    assert "the rows of 'mine' are written to the database 'postgresql', and the state rows to 'default'" in message
    assert "while 'default' does not answer, requests for them pass" in message
    assert "rebuild_filter" in hint


@pytest.mark.parametrize(
    ("place", "name", "value", "shown"),
    [
        ("TEST", "MIRROR", "default", "TEST['MIRROR'] is 'default'"),
        ("OPTIONS", "target_session_attrs", "prefer-standby", "OPTIONS['target_session_attrs'] is 'prefer-standby'"),
        ("OPTIONS", "options", "-c default_transaction_read_only=on", "has default_transaction_read_only=on"),
    ],
)
def test_state_rows_on_a_replica(only, settings, monkeypatch, place, name, value, shown):
    """What the settings say of a database tells a replica before the first write fails."""
    monkeypatch.setitem(connections["postgresql"].settings_dict[place], name, value)
    settings.DATABASE_ROUTERS = [Split("postgresql", "postgresql")]
    only(Product)

    found, message, hint = the_message()

    assert found == "bloomguard.W016"
    assert "the state rows are written to the database 'postgresql'" in message
    assert shown in message
    assert "db_for_write" in hint


def test_state_rows_in_a_file_that_may_only_be_read(only, monkeypatch):
    """The same of SQLite."""
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", "file:site.sqlite3?mode=ro")
    only(Product)

    found, message, _ = the_message()

    assert found == "bloomguard.W016"
    assert "NAME has mode=ro" in message


def test_state_rows_on_a_primary(only, settings, monkeypatch):
    """Options that ask for a primary, and other options, are fine."""
    monkeypatch.setitem(connections["postgresql"].settings_dict["OPTIONS"], "target_session_attrs", "read-write")
    settings.DATABASE_ROUTERS = [Split("postgresql", "postgresql")]
    only(Product)

    assert messages() == []


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_checks_leave_no_connection_to_a_server_open(monkeypatch):
    """``manage.py test --parallel`` runs them and forks workers, which would share it, or the pool that it is from."""
    monkeypatch.setattr(type(state.table.connection), "alias", "default")  # check_filters, for deployments, reads by it
    for alias in set(connections) - {"default"}:
        monkeypatch.setattr(database, "current", alias)
        connections[alias].close()
        run_checks(tags=["bloomguard", Tags.database], include_deployment_checks=True, databases=list(connections))
        assert connections[alias].connection is None
