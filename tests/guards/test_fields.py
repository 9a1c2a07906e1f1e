"""A field is trusted only if all that converts its values is Django's own."""

from __future__ import annotations

import functools

import pytest
from django.db import models
from django.db.models.lookups import Exact, IExact
from django.test.utils import isolate_apps

from bloomguard.guards.fields import is_djangos, own_conversions, stores_as_given, value_field
from bloomguard.guards.keys import KeyMaker
from tests.shop.models import Article, BoundShort, Echo, Order, Place, Price, Product, Review, Short, Shout, Tag

DJANGOS = [
    Product._meta.pk, Order._meta.pk, Article._meta.get_field("slug"), Price._meta.get_field("amount"),
    Review._meta.get_field("product"), BoundShort._meta.get_field("target"), Place._meta.get_field("country"),
]  # fmt: skip

CONVERSIONS = [
    "get_prep_value", "get_db_prep_value", "get_db_prep_save", "get_placeholder", "get_placeholder_sql",
    "cast_db_type", "from_db_value", "get_db_converters", "select_format", "get_col", "get_lookup", "get_transform",
]  # fmt: skip
COLUMN = ["pre_save", "db_type", "db_type_parameters", "db_parameters", "rel_db_type", "get_internal_type"]


def own(self, *args, **kwargs):
    """A method of the project's."""
    raise RuntimeError("nobody is to call it")


def on_class(name):
    return type("OwnField", (models.CharField,), {name: own})(max_length=5)


def on_instance(name):
    field = models.CharField(max_length=5)
    setattr(field, name, functools.partial(own, field))
    return field


def in_disguise(name):
    """``functools.wraps`` copies the name of the module of what it wraps."""
    method = functools.wraps(models.CharField.get_prep_value)(lambda self, *args: own(self, *args))
    return type("OwnField", (models.CharField,), {name: method})(max_length=5)


def without_module(name):
    """A function in C has no module."""
    field = models.CharField(max_length=5)
    setattr(field, name, str.upper)
    return field


def not_to_be_read(name):
    return type("OwnField", (models.CharField,), {name: property(own, None, None)})(max_length=5)


def to_none(name):
    field = models.CharField(max_length=5)
    setattr(field, name, None)
    return field


MAKERS = [on_class, on_instance, in_disguise, without_module, not_to_be_read, to_none]


@pytest.mark.parametrize("field", DJANGOS, ids=str)
def test_a_field_of_djangos_is_trusted(field):
    """Also a foreign key to one."""
    assert own_conversions(field) == ()
    assert is_djangos(field)
    assert stores_as_given(field)


@pytest.mark.filterwarnings("ignore:Field.get_placeholder is deprecated")
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_field_with_one_method_of_its_own_converts(make, name):
    """Wherever the method is, and whatever it says of itself."""
    field = make(name)

    assert own_conversions(field) == (name,)
    assert not stores_as_given(field)
    assert not is_djangos(field)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", COLUMN)
def test_a_field_with_a_column_of_its_own_may_store_something_else(make, name):
    """The type of the column may convert a value. A query compares what is stored, so no value changes there."""
    field = make(name)

    assert not own_conversions(field)
    assert not stores_as_given(field)


@isolate_apps("tests.shop")
@pytest.mark.parametrize("lookup", [type("OwnExact", (Exact,), {}), IExact])
def test_a_lookup_of_ones_own_compares_something_else(lookup):
    """One that a project registers for ``exact``, for the class or for one field; also another one of Django's."""
    field = models.CharField(max_length=5)
    assert own_conversions(field) == ()

    field.register_lookup(lookup, "exact")

    assert own_conversions(field) == ("exact",)
    assert KeyMaker([_named(field)]).own_field == "code"


@pytest.mark.parametrize("name", ["as_sql", "as_postgresql", "as_sqlite", "process_rhs", "get_prep_lookup"])
@pytest.mark.parametrize("make", [lambda: Article._meta.get_field("slug"), lambda: Review._meta.get_field("product")])
def test_a_method_of_djangos_lookup_may_be_the_projects(monkeypatch, make, name):
    """Such as one that compares without regard to case, on one kind of database."""
    monkeypatch.setattr(make().get_lookup("exact"), name, own, raising=False)

    assert own_conversions(make()) == ("exact",)


def _named(field):
    field.set_attributes_from_name("code")
    return field


def test_a_foreign_key_converts_as_its_target_does():
    """All questions are put to both fields."""
    link, key = Echo._meta.get_field("shout"), Shout._meta.pk

    assert value_field(link) is key
    assert own_conversions(link) == own_conversions(key) == ("get_prep_value",)
    assert not stores_as_given(link)
    assert KeyMaker([link]).own_field == "shout"


def test_a_target_may_be_trusted_and_its_foreign_key_not():
    """A class of the project's own for the foreign key."""
    own_link = type("OwnLink", (models.ForeignKey,), {"get_db_prep_save": own, "__module__": __name__})
    with isolate_apps("tests.shop"):

        class Bound(models.Model):
            target = own_link(Short, models.CASCADE)

            class Meta:
                app_label = "shop"

        assert own_conversions(Bound._meta.get_field("target")) == ("get_db_prep_save",)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_what_a_to_python_of_ones_own_makes_need_not_be_stored(make):
    """Of a number Django stores the ``int()``."""
    field = make("to_python")

    assert not own_conversions(field)
    assert not stores_as_given(field)
    assert not is_djangos(field)


def test_a_pre_save_is_no_conversion():
    """It changes the instance, and no value that is looked up."""
    field = Tag._meta.get_field("shout")

    assert (bool(own_conversions(field)), stores_as_given(field)) == (False, False)
