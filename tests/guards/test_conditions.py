"""`alive`: one form in words for every process, and nothing that changes without a write of the row."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.postgres.functions import TransactionNow
from django.db import models
from django.db.models import Exists, F, Func, OuterRef, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Lower, Now, Random
from django.db.models.lookups import Exact
from django.test.utils import isolate_apps
from django.utils import timezone
from django.utils.translation import gettext_lazy

from bloomguard.checks.guards import check_guards
from bloomguard.guards.conditions import CURE, as_text, refusal_reasons
from tests.shop.models import Article, Bundle, Exhibit, Product
from tests.support.guarding import make_guard, registered

SAME = [
    (Q(slug__in={"a", "b", "c"}), Q(slug__in={"c", "b", "a"})),
    (Q(slug__in=frozenset("xyz")), Q(slug__in=set("zyx"))),
    (Q(a=1, b=2), Q(b=2, a=1)),
    (Q(slug=Lower("slug")), Q(slug=Lower("slug"))),
]
OTHERS = [
    Q(),
    Q(deleted=False),
    ~Q(deleted=False),
    Q(deleted=0),
    Q(deleted="False"),
    Q(deleted=None),
    Q(deleted=False) | Q(slug="a"),
    Q(deleted=False) & Q(slug="a"),
    Q(deleted=False) & ~Q(slug="a"),
    Q(slug__in=["a", "b"]),
    Q(slug__in=["b", "a"]),
    Q(slug=F("id")),
    Q(slug=Value("id")),
    Q(slug="id"),
    Q(id=1),
    Q(id=Decimal(1)),
    Q(made=datetime.date(2024, 1, 1)),
    Q(made=datetime.datetime(2024, 1, 1)),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=range(len(SAME)))
def test_what_means_the_same_reads_the_same(one, other):
    """The order of a set, or of keyword arguments, is nobody's intention."""
    assert as_text(one) == as_text(other)


def test_what_means_something_else_reads_otherwise():
    """No two different conditions share a form."""
    assert len({as_text(each) for each in OTHERS}) == len(OTHERS)


def test_another_process_reads_the_same():
    """Whatever its hash seed is: a filter that one process built is asked by all."""
    code = "import django; from django.conf import settings; from django.db.models import Q; "
    code += "settings.configure(INSTALLED_APPS=['bloomguard']); django.setup(); "
    code += "from bloomguard.guards.conditions import as_text; "
    code += "print(as_text(Q(a__in={'x', 'y', 'z', 'long', 'longer'}) | ~Q(b=None)))"
    forms = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }

    assert len(forms) == 1


def test_what_has_no_form_is_named():
    """An object that is different in every process cannot be part of the condition: only its class is."""
    condition = Q(slug=object())

    assert as_text(condition) == "(slug=object)"
    assert "has a object, which is not a constant (slug)" in list(refusal_reasons(Article, condition))


NOW = timezone.now()


class ShoutingField(models.CharField):
    """Stores something else than what it is given."""

    def get_prep_value(self, value):
        return str(value).upper()


_fields = {
    "number": models.IntegerField(),
    "share": models.DecimalField(max_digits=5, decimal_places=2),
    "weight": models.FloatField(),
    "day": models.DateField(null=True),
    "other_day": models.DateField(),
    "at": models.DateTimeField(null=True),
    "hour": models.TimeField(),
    "took": models.DurationField(),
    "uid": models.UUIDField(),
    "shown": models.BooleanField(),
    "word": models.CharField(max_length=10),
    "title": models.TextField(),
    "address": models.GenericIPAddressField(),
    "data": models.JSONField(),
    "raw": models.BinaryField(),
    "own": models.ForeignKey("self", models.CASCADE, null=True),
    "shouted": ShoutingField(max_length=10),
    "stored": models.GeneratedField(
        expression=Lower("word"), output_field=models.CharField(max_length=10), db_persist=True
    ),
    "virtual": models.GeneratedField(
        expression=Lower("word"), output_field=models.CharField(max_length=10), db_persist=False
    ),
}
with isolate_apps("tests.shop"):
    Event = type(
        "Event",
        (models.Model,),
        {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "shop"}), **_fields},
    )

#: A constant of each field; dates and times as text.
VALUES = {
    "number": 5,
    "share": Decimal("1.50"),
    "weight": 0.5,
    "day": "2024-02-29",
    "at": "2024-02-29T12:00+01:00",
    "hour": "12:30",
    "took": datetime.timedelta(days=1),
    "uid": uuid.UUID(int=7),
    "shown": True,
    "word": "live",
    "title": "x",
    "address": "192.0.2.1",
    "own": 5,
    "stored": "x",
}
ORDERED = {"number", "share", "weight", "day", "at", "hour", "took", "uid", "shown", "own"}
CERTAIN = {"exact", "in", "isnull"}
CERTAIN_IN_ORDER = {"lt", "lte", "gt", "gte", "range"}


def lookups_of(name):
    """Every lookup and transform that Django, or a package, registers for a field."""
    return sorted({"isnull", "exact", *Event._meta.get_field(name).get_lookups()})


def value_for(name, lookup):
    value = VALUES.get(name, "x")
    if lookup == "isnull":
        return False
    if lookup == "in":
        return [value]
    if lookup == "range":
        return (value, value)
    return value


@pytest.mark.parametrize("name", [*VALUES, "data", "raw", "virtual"])
def test_of_all_lookups_that_there_are_those_known_to_be_certain_are_taken(name):
    """A lookup that Django or a package adds is refused until somebody has thought it through."""
    taken = {
        lookup
        for lookup in lookups_of(name)
        if not list(refusal_reasons(Event, Q(**{f"{name}__{lookup}": value_for(name, lookup)})))
    }

    certain = CERTAIN if name in VALUES else {"isnull"}
    assert taken == certain | (CERTAIN_IN_ORDER & set(lookups_of(name)) if name in ORDERED else set())


DOUBTFUL = [
    (Permission, Q(content_type__app_label="shop"), "depends on another row, of the table django_content_type"),
    (Event, Q(own__shown=True), "depends on another row, of the table shop_event"),
    (Event, Q(number__gt=F("own__number")), "depends on another row"),
    (Product, Q(review__id=1), "depends on another row"),
    (Article, Q(slug__in=Article.objects.values("slug")), "not a constant"),
    (Article, Exists(Product.objects.filter(name=OuterRef("slug"))) & Q(), "an expression, Exists"),
    (Article, Q(Exact(F("slug"), "a")), "an expression, Exact"),
    (Article, Q(slug=Lower("slug")), "not a constant"),
    (Article, Q(id=F("id") + 1), "not a constant"),
    (Event, Q(day__lte=datetime.date.today()), "process's start"),
    (Event, Q(day__lte=timezone.localdate()), "process's start"),
    (Event, Q(day__in=[datetime.date(2024, 2, 29)]), "process's start"),
    (Event, Q(at__lte=NOW), "process's start"),
    (Event, Q(at__lte=NOW.replace(microsecond=0)), "process's start"),
    (Event, Q(at__lte=Value(NOW)), "has a Value, which is not a constant"),
    (Event, Q(hour__lte=NOW.time()), "process's start"),
    (Event, Q(at__lte="2024-02-29 12:00"), "without an offset"),
    (Event, Q(at__range=("2024-02-29T12:00Z", "2024-03-01")), "without an offset"),
    (Event, Q(at__lte="2024-02-30T12:00Z"), "cannot be queried"),
    (Event, Q(at__date="2024-02-29"), "without an offset|computed"),
    (Event, Q(at__year=2024), "YearExact|computed"),
    (Event, Q(at__year__gte=2024), "YearGte|computed"),
    (Event, Q(day__week=5), "computed"),
    (Event, Q(number=F("at__year")), "computed value, ExtractYear"),
    (Event, Q(number__lte=F("day__week")), "computed value, ExtractWeek"),
    (Event, Q(day=F("at__date")), "computed value, TruncDate"),
    (Event, Q(word=F("data__a")), "computed value, Key"),
    (Event, Q(day__lte=Value("today")), "has a Value, which is not a constant"),
    (Event, Q(hour__in=[Value("now")]), "has a Value, which is not a constant"),
    (Event, Q(day__range=(Value("today"), "2999-01-01")), "has a Value, which is not a constant"),
    (Event, Q(at__lte=Value("2024-02-29T12:00Z")), "has a Value, which is not a constant"),
    (Event, Q(number=Value(5)), "has a Value, which is not a constant"),
    (Event, Q(at__gt=F("day")), "compares a moment with a date"),
    (Event, Q(word=F("number")), "compares a text with a number"),
    (Event, Q(at__lte=TransactionNow()), "not a constant"),
    (Event, Q(at__lte=Now()), "not a constant"),
    (Event, Q(weight__lt=Random()), "not a constant"),
    (Event, Q(day__lte=Func(function="CURRENT_DATE", template="%(function)s")), "not a constant"),
    (Article, Q(slug=RawSQL("now()", [])), "not a constant"),
    (Article, Q(slug=object()), "not a constant"),
    (Article, Q(slug=gettext_lazy("Home")), "not a constant"),
    (Event, Q(own=Event(pk=1)), "not a constant"),
    (Event, Q(data__a=1), "."),
    (Event, Q(data={"a": 1}), "not a constant"),
    (Event, Q(shouted="A"), "compares a ShoutingField"),
    (Event, Q(virtual="a"), "computed at each read"),
    (Article, Q(nothing=1), "cannot be queried"),
]


@pytest.mark.parametrize(("model", "alive", "said"), DOUBTFUL, ids=range(len(DOUBTFUL)))
@pytest.mark.parametrize("where", ["alone", "denied", "or", "deep"])
def test_what_is_not_certain_to_change_with_the_row_alone_is_refused(model, alive, said, where):
    """Other rows, subqueries, the time, what goes by a session or a library, and what nobody can look into."""
    alive = {"alone": alive, "denied": ~alive, "or": Q(pk=1) | alive, "deep": Q(pk=1) & ~(Q(pk=2) | ~alive)}[where]

    assert re.search(said, "; ".join(refusal_reasons(model, alive)))


@isolate_apps("tests.shop")
def test_parent_link_makes_no_parent():
    """Django takes the option for any model: what it leads to is another row, whose writes are not followed."""

    class Account(models.Model):
        active = models.BooleanField()

        class Meta:
            app_label = "shop"

    class Profile(models.Model):
        account = models.OneToOneField(Account, models.CASCADE, parent_link=True)

        class Meta:
            app_label = "shop"

    alive = Q(account__active=True)
    assert "another row" in "".join(refusal_reasons(Profile, alive))
    assert make_guard(Profile, alive=alive)._meta.tables == {"shop_profile"}


@isolate_apps("tests.shop")
def test_a_moment_may_be_the_primary_key():
    """By that name too, and by a child's link, its text needs an offset."""

    class Reading(models.Model):
        at = models.DateTimeField(primary_key=True)

        class Meta:
            app_label = "shop"

    class Sample(Reading):
        class Meta:
            app_label = "shop"

    for model, names in {Reading: ("pk", "at"), Sample: ("pk", "at", "reading_ptr", "reading_ptr__at")}.items():
        for name in names:
            assert "without an offset" in "".join(refusal_reasons(model, Q(**{f"{name}__lte": "2024-02-29 12:00"})))
            assert list(refusal_reasons(model, Q(**{f"{name}__lte": "2024-02-29T12:00Z"}))) == []


def test_the_check_tells_the_comparison_and_the_cure():
    """As W113."""
    with registered(Event, name="doubtful", alive=Q(shown=True, at__year=2024), lookup="pk"):
        (message,) = [each for each in check_guards(None) if each.id == "bloomguard.W113"]

    assert "alive is not allowed: it " in message.msg
    assert "(at__year)" in message.msg
    assert message.hint == CURE


class Status(models.TextChoices):
    LIVE = "live"


SOUND = [
    (Article, Q(deleted=False)),
    (Article, Q(slug__in={"a", "b"}) | ~Q(deleted=True)),
    (Article, Q(deleted=False) ^ Q(slug="a")),
    (Bundle, Q(name="x", size__gt=1)),
    (Bundle, Q(size__gt=F("id"))),
    (Exhibit, Q(shelf="x", label="y")),
    (Permission, Q(content_type__isnull=False)),
    (Permission, Q(content_type_id=3)),
    (Permission, Q(content_type__pk=3)),
    (Event, Q(own=None)),
    (Event, Q(own__in=[1, 2])),
    (Event, Q(at=None)),
    (Event, Q(day__lte=F("other_day"))),
    (Event, Q(number__gt=F("share"))),
    (Event, Q(word=Status.LIVE)),
    (Event, Q(word__in=[Status.LIVE])),
    (Event, Q(pk__gt=5)),
    (Event, Q(at__range=("2024-02-29T12:00Z", "2024-03-01T00:00+00:00"))),
    (User, Q(last_login__lt="2024-01-01T00:00Z")),
    (Bundle, Q(product_ptr__name="tea")),
    (Bundle, Q(pk__name="tea")),
    (Article, Q(pk__in=[])),
    (Article, Q()),
]


@pytest.mark.parametrize(("model", "alive"), SOUND, ids=range(len(SOUND)))
def test_columns_of_the_row_are_sound(model, alive):
    """Its parents' tables' too, and a foreign key's own column."""
    assert list(refusal_reasons(model, alive)) == []


def test_a_guards_definition_is_stable():
    """A filter that was built before a restart is asked after it."""
    one = make_guard(Article, alive=Q(slug__in={"a", "b", "c"}), name="one")
    other = make_guard(Article, alive=Q(slug__in={"c", "b", "a"}), name="one")

    assert one._meta.definition == other._meta.definition
    assert make_guard(Article, alive=Q(slug=object()), name="one")._meta.definition
