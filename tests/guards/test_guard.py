"""Guards: what they say of a value, and how they are declared."""

from __future__ import annotations

import logging

import pytest
from django.db.models import CharField, CompositePrimaryKey, IntegerField, Model, Q
from django.test.utils import isolate_apps
from gazetteer.models import Listing

from bloomguard.exceptions import ConfigurationError
from bloomguard.filters import CorruptFilter
from bloomguard.guards import Guard
from bloomguard.guards.registry import Registry, registry
from bloomguard.process import log_once
from bloomguard.routes.table import UnclearKwargs, kwargs_for
from bloomguard.state import table as state
from bloomguard.state.verdicts import ABSENT, MAYBE, UNTRUSTED, Verdict
from tests.shop.models import Article, Bundle, Diary, Order, Place, Price, Product
from tests.support.guarding import make_guard

# -- declaring


@pytest.mark.parametrize(
    ("class_name", "name"),
    [("CityGuard", "city"), ("CityBySlugGuard", "city-by-slug"), ("Guard", "guard"), ("Api2CityGuard", "api2-city")],
)
def test_a_guard_is_named_after_its_class(class_name, name):
    """``CityBySlugGuard`` is ``city-by-slug``."""
    assert type(class_name, (Guard,), {})(Product).name == name


def test_a_guard_may_say_its_name():
    """``name`` of the class wins."""
    assert make_guard(Product, name="shop.product-2").name == "shop.product-2"


@pytest.mark.parametrize("name", ["Product", "a b", "../up", "-a", "ä", "a/b", "a" * 101])
def test_a_name_that_is_no_file_name_is_refused(name):
    """A name stands in file names and database rows, so it is short and plain; else a guard answers nothing."""
    guard = make_guard(Product, name=name)

    (mistake,) = guard._mistakes
    assert mistake.reason == f"name is {name!r}"
    assert mistake.cure.startswith("Begin with a lower-case letter")
    assert guard.name == "misnamed"
    with pytest.raises(ConfigurationError, match="name is "):
        guard._runtime.active_filter  # noqa: B018


def test_a_guard_shows_its_name_and_model():
    """``repr`` is for people who read logs."""
    assert repr(registry["product"]) == "<ProductGuard 'product' of shop.Product>"


def test_an_unknown_guard_is_an_error_that_lists_those_there_are():
    """Asking for a guard that is not there names those that are."""
    with pytest.raises(ConfigurationError, match=r"no guard 'prodcut'; known are article, .*product"):
        registry["prodcut"]


def test_of_many_guards_the_error_names_the_nearest():
    """A site may have hundreds."""
    own = Registry()
    for number in range(300):
        own.add(make_guard(Product, name=f"product-{number}"))
    own.add(make_guard(Order, name="order"))

    with pytest.raises(ConfigurationError, match=r"no guard 'ordre'; known are order, product-") as raised:
        own["ordre"]
    assert str(raised.value).count("product-") == 19


def test_an_empty_registry_says_where_guards_come_from():
    """Without any guard the error says what registers one."""
    with pytest.raises(ConfigurationError, match=r"none: an app's guards\.py registers them"):
        Registry()["city"]


def test_the_first_of_two_guards_of_one_name_stays():
    """A second guard of a name is kept aside for the system check."""
    own, first, second = Registry(), make_guard(Product), make_guard(Order)
    own.add(first)

    own.add(second)

    assert list(own) == [first]
    assert own.clashes == [second]
    assert len(own) == 1


def test_a_changed_registry_has_new_plans():
    """What is made from the registry is made anew when a guard comes or goes."""
    own, guard = Registry(), make_guard(Product)
    plans = [own.plans]

    own.add(guard)
    plans.append(own.plans)
    own.remove(make_guard(Product))
    plans.append(own.plans)
    own.remove(guard)
    plans.append(own.plans)

    assert [plans.index(each) for each in plans] == [0, 1, 1, 3]


@pytest.mark.parametrize(
    ("lookup", "message"),
    [
        ("nmae", "has no field 'nmae'"),
        (("pk", "nmae"), "has no field 'nmae'"),
        ("bundle", "bundle is not a column"),
        ((), "has to name at least one field"),
    ],
)
def test_a_lookup_that_is_no_column_is_refused(lookup, message):
    """``lookup`` names columns; the error names what is none."""
    with pytest.raises(ConfigurationError, match=message):
        make_guard(Product, lookup=lookup)._meta.fields  # noqa: B018


def test_a_composite_primary_key_is_looked_up_by_its_fields():
    """``pk`` of a model with a composite primary key stands for all its columns."""

    with isolate_apps("tests.shop"):

        class Seat(Model):
            pk = CompositePrimaryKey("row", "number")
            row = CharField(max_length=1)
            number = IntegerField()

            class Meta:
                app_label = "shop"

        guard = make_guard(Seat)

        assert [field.name for field in guard._meta.fields] == ["row", "number"]


def test_the_definition_changes_with_what_a_key_stands_for():
    """Another table, column, kind of key, set of rows or normaliser is another definition, so another filter."""

    def lower(self, value):
        return value.lower()

    guards = [
        make_guard(Product),
        make_guard(Bundle),
        make_guard(Order),
        make_guard(Product, lookup="name"),
        make_guard(Product, lookup=("pk", "name")),
        make_guard(Product, alive=Q(name="")),
        make_guard(Product, lookup="name", normalize=lower),
        make_guard(Product, name="other"),
    ]

    assert len({guard._meta.definition for guard in guards}) == len(guards)
    assert make_guard(Product)._meta.definition == guards[0]._meta.definition


# -- which kwargs carry the ID


@pytest.mark.parametrize(
    ("model", "lookup", "routes", "captured", "found"),
    [
        (Product, "pk", ["r"], ["pk"], ("pk",)),
        (Product, "pk", ["r"], ["id"], ("id",)),
        (Product, "pk", ["r"], ["product_id"], ("product_id",)),
        (Product, "pk", ["r"], ["lang", "product_pk"], ("product_pk",)),
        (Product, "pk", {"r": "number"}, ["number", "pk"], ("number",)),
        (Product, "pk", {"r": "product_id"}, ["product_id", "pk"], ("product_id",)),
        (Article, "slug", ["r"], ["slug"], ("slug",)),
        (Listing, "city", ["r"], ["city"], ("city",)),
        (Listing, "city", ["r"], ["city_id"], ("city_id",)),
        (Place, ("country", "slug"), ["r"], ["slug", "country"], ("country", "slug")),
        (Place, ("country", "slug"), {"r": {"country": "code"}}, ["code", "slug"], ("code", "slug")),
        (Bundle, "pk", ["r"], ["pk"], ("pk",)),
        (Bundle, "pk", ["r"], ["bundle_id"], ("bundle_id",)),
    ],
)
def test_the_kwarg_is_found_from_the_lookup_or_named(model, lookup, routes, captured, found):
    """The kwarg has the field's name or one that people give a primary key, unless ``routes`` says which."""
    assert kwargs_for(make_guard(model, lookup=lookup, routes=routes), "r", captured) == found


@pytest.mark.parametrize(
    ("model", "lookup", "routes", "captured"),
    [
        (Product, "pk", ["r"], []),
        (Product, "pk", ["r"], ["slug"]),
        (Product, "pk", ["r"], ["order_id"]),
        (Article, "slug", ["r"], ["pk"]),
        (Place, ("country", "slug"), ["r"], ["slug"]),
        (Product, "pk", {"r": "number"}, ["pk"]),
    ],
)
def test_a_kwarg_that_cannot_be_told_is_an_error(model, lookup, routes, captured):
    """Where nothing that the pattern captures is the ID, the error says what it captures and what was looked for."""
    with pytest.raises(ConfigurationError, match=f"captures {', '.join(captured) or 'nothing'}; expected"):
        kwargs_for(make_guard(model, lookup=lookup, routes=routes), "r", captured)


@pytest.mark.parametrize(
    ("model", "lookup", "captured", "both"),
    [
        (Product, "pk", ["product_id", "pk"], "product_id and pk"),
        (Product, "pk", ["pk", "id"], "pk and id"),
        (Product, "pk", ["product", "pk"], "pk and product"),
        (Product, "pk", ["pk", "product_pk", "product_id"], "pk and product_pk and product_id"),
        (Listing, "city", ["city", "city_id"], "city and city_id"),
        (Listing, ("city", "slug"), ["slug", "city_id", "city"], "city_id and city"),
    ],
)
def test_of_two_kwargs_none_is_guessed(model, lookup, captured, both):
    """One of them may be the ID of another row: of a review, on the page of its product."""
    with pytest.raises(UnclearKwargs, match=f"route 'r' captures {both}, and each may be the (id|city) of "):
        kwargs_for(make_guard(model, lookup=lookup, routes=["r"]), "r", captured)


# -- asking


def test_a_guard_without_a_filter_knows_nothing(fresh, db):
    """Before the first build every value is UNKNOWN."""
    decision = registry["product"]._runtime.decide(1)

    assert decision[:2] == (Verdict.UNKNOWN, "cold")


def test_a_guard_without_a_filter_asks_the_database_nothing(fresh, clock, db, monkeypatch):
    """A guard that has no generation in its store does not read the state rows, however often it is asked."""
    reads = []
    monkeypatch.setattr(state.table.connection, "execute", lambda *args: reads.append(args) or ([], 0))
    for _ in range(10):
        registry["product"]._runtime.decide(1)
        clock.sleep(5)

    assert reads == []


@pytest.mark.parametrize(
    ("name", "create", "present", "absent"),
    [
        ("product", lambda: Product.objects.create(pk=7), ["7", 7, "+7", "007"], ["8", 8, "-7"]),
        ("order", lambda: Order.objects.create(pk=f"{7:032x}"), [f"{7:032X}"], [f"{8:032x}"]),
        ("article", lambda: Article.objects.create(slug="straße"), ["straße"], ["strasse", "", "\0"]),
        ("place", lambda: Place.objects.create(country="DE", slug="ulm"), [("DE", "ulm")], [("DE", ""), ("D", "Eulm")]),
        ("price", lambda: Price.objects.create(amount="1.5"), ["1.50", "15e-1"], ["1.51", "1e20"]),
        ("diary", lambda: Diary.objects.create(day="2024-02-29"), ["2024-2-29"], ["2024-03-01"]),
    ],
)
def test_existing_values_are_maybe_and_others_absent(name, create, present, absent, build):
    """However a value is written: MAYBE if a row has it, ABSENT if none has."""
    create()
    build(name)
    guard = registry[name]

    assert [guard.verdict(value) for value in present] == [Verdict.MAYBE] * len(present)
    assert [guard.verdict(value) for value in absent] == [Verdict.ABSENT] * len(absent)


@pytest.mark.parametrize("value", ["seven", None, "", object(), "9" * 5000, float("nan"), ["7"], "7\0"])
def test_a_value_that_does_not_convert_is_unknown(value, build):
    """What the field does not convert is for the view to judge."""
    build("product")

    assert registry["product"]._runtime.decide(value)[:2] == (Verdict.UNKNOWN, "unkeyable")


@pytest.mark.parametrize("value", [2**64, str(2**70), -(2**70)])
def test_an_integer_beyond_every_column_is_absent_without_a_look_up(value, fresh, db):
    """An integer of more than 64 bits is ABSENT even before the first build."""
    assert registry["product"]._runtime.decide(value)[:2] == (Verdict.ABSENT, "out of range")


def test_several_values_where_one_is_expected_are_an_error_that_passes(build, caplog, monkeypatch):
    """A mistake in what is asked is UNKNOWN and logged, never raised."""
    build("place")
    log_once.forget()  # none was said already

    with caplog.at_level(logging.ERROR, logger="bloomguard"):
        decision = registry["place"]._runtime.decide(("DE",))

    assert decision[:2] == (Verdict.UNKNOWN, "error")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("error", [RuntimeError("oops"), CorruptFilter("bits"), MemoryError()])
def test_an_error_inside_is_unknown(error, build, monkeypatch):
    """Whatever goes wrong in a filter, the guard says UNKNOWN."""
    build("product")

    def fail(key):
        raise error

    monkeypatch.setattr(registry["product"]._runtime.active_filter, "ask_leased", fail)

    assert registry["product"].verdict(1) is Verdict.UNKNOWN


def test_rows_are_those_that_exist_for_the_public(db):
    """``alive`` says which rows a rebuild takes."""
    alive = Article.objects.create(slug="here")
    Article.objects.create(slug="gone", deleted=True)

    assert list(registry["article"]._meta.rows()) == [alive]


# -- an absence whose grounds have not changed


@pytest.fixture
def denied(build, monkeypatch):
    """A guard that has denied 8 a moment ago, and has no call left to ask for its grounds."""
    Product.objects.create(pk=7)
    build("product")
    guard = registry["product"]
    assert guard._runtime.decide(8) is ABSENT
    monkeypatch.setattr(guard._runtime.active_filter, "ask_leased", lambda key: UNTRUSTED)
    return guard


def test_it_is_decided_at_once(denied):
    """By the filter and the lease alone."""
    assert [denied._runtime.decide(value) for value in (8, 7, 9)] == [ABSENT, MAYBE, ABSENT]


@pytest.mark.parametrize("change", ["lease", "filter", "mode", "fault"])
def test_it_is_decided_anew_after_a_change(denied, clock, monkeypatch, change):
    """Whatever has changed: its grounds are asked for."""
    active = denied._runtime.active_filter
    if change == "lease":
        clock.now += 1
    elif change == "filter":
        active.last_check = active.last_check[0], active.last_check[1]
    elif change == "mode":
        monkeypatch.setattr(denied, "mode", "shadow")
    else:
        active.last_check = active.last_check[0], fail_for_good
        monkeypatch.setattr(denied._runtime, "last_absent", (active.last_check, *denied._runtime.last_absent[1:]))

    assert denied._runtime.decide(8) is UNTRUSTED


def fail_for_good(key):
    raise CorruptFilter("the file is damaged")
