"""A guard answers no query that might find other rows without its key, or that Django or the database might refuse."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from django.contrib.postgres.fields import IntegerRangeField
from django.core.exceptions import FieldError
from django.db import NotSupportedError, connections, models
from django.db.models import (
    Avg,
    Case,
    CharField,
    Count,
    Exists,
    F,
    FilteredRelation,
    ForeignKey,
    IntegerField,
    Lookup,
    Max,
    OuterRef,
    Q,
    Subquery,
    Transform,
    Value,
    When,
)
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast, Coalesce, Concat, Lower, Now, Upper
from django.db.models.lookups import Exact, GreaterThan
from django.test.utils import isolate_apps

from bloomguard.guards import registry
from bloomguard.lookups.certainty import _is_taken
from bloomguard.lookups.context import guarded_lookups
from bloomguard.rebuild import Rebuild
from tests.lookups.test_select import ABSENT, lookups, queries, rows, shop  # noqa: F401
from tests.shop.models import Article, Product, Review
from tests.support import database
from tests.support.guarding import registered

pytestmark = [
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("each_database", "fresh"),
]


class OrTea(Lookup):
    """A project's own lookup, whose SQL has no parentheses."""

    lookup_name = "ortea"

    def as_sql(self, compiler, connection):
        left, first = self.process_lhs(compiler, connection)
        right, second = self.process_rhs(compiler, connection)
        return f"{left} = {right} OR {left} = 'tea'", [*first, *second]


class Wide(Transform):
    """A project's own transform: the same for the left side of a comparison."""

    lookup_name = "wide"

    def as_sql(self, compiler, connection):
        left, values = compiler.compile(self.lhs)
        return f"{left} = 'tea' OR {left}", values


@pytest.fixture(autouse=True)
def own_lookups():
    for each in (OrTea, Wide):
        CharField.register_lookup(each)
    ForeignKey.register_lookup(OrTea)
    yield
    ForeignKey._unregister_lookup(OrTea)
    for each in (OrTea, Wide):
        CharField._unregister_lookup(each)


def without_a_guard_and_with(look):
    """What ``look()`` returns or raises outside and inside of guarded lookups."""

    def run():
        try:
            return look()
        except Exception as error:
            return type(error)

    outside = run()
    with guarded_lookups():
        return outside, run()


#: Queries with the key of a row that does not exist. They are sent, and so give what they give without a guard.
SENT = {
    # what finds a row
    "an aggregate in HAVING": lambda: rows.filter(pk=ABSENT).filter(Exact(Count("pk"), 0)).exists(),
    "an aggregate before the key": lambda: rows.filter(Exact(Count("pk"), 0), pk=ABSENT).exists(),
    "an aggregate in OR": lambda: rows.filter(Q(GreaterThan(1, Count("pk"))) | Q(name="x"), pk=ABSENT).exists(),
    "an own lookup": lambda: list(rows.filter(pk=ABSENT).filter(name__ortea="x").values_list("pk")),
    "an own lookup, denied": lambda: list(rows.filter(pk=ABSENT).exclude(name__ortea="x").values_list("pk")),
    "an own transform": lambda: list(rows.filter(pk=ABSENT).filter(name__wide="x").values_list("pk")),
    "raw SQL": lambda: list(rows.filter(RawSQL("1 = 1 OR %s = 1", [1], IntegerField()), pk=ABSENT).values_list("pk")),
    "extra": lambda: list(rows.filter(pk=ABSENT).extra(where=["1 = 1) OR (1 = 1"]).values_list("pk")),
    "an own lookup in a join": lambda: list(
        rows.annotate(r=FilteredRelation("review", condition=Q(review__article__ortea=1)))
        .filter(pk=ABSENT, r__pk=None)
        .values_list("pk")
    ),
    # what is refused
    "NUL in OR": lambda: rows.filter(Q(name="a\0b") | Q(name="x"), pk=ABSENT).first(),
    "NUL": lambda: rows.filter(pk=ABSENT, name="a\0b").first(),
    "NUL, denied": lambda: rows.exclude(name="a\0b").filter(pk=ABSENT).first(),
    "NUL in a list": lambda: rows.filter(pk=ABSENT, name__in=["a", "a\0b"]).first(),
    "NUL in a subquery": lambda: rows.filter(
        Exists(Review.objects.filter(product=OuterRef("pk"), article__slug="a\0b")), pk=ABSENT
    ).first(),
    "NUL in an annotation": lambda: rows.annotate(a=Concat("name", Value("a\0b"))).filter(pk=ABSENT).first(),
    "half of a pair": lambda: rows.filter(pk=ABSENT, name="\ud800").first(),
    "half of a pair, contained": lambda: rows.filter(pk=ABSENT, name__contains="\udfff").first(),
    "a regular expression": lambda: rows.filter(pk=ABSENT, name__regex="(").first(),
    "a regular expression, denied": lambda: rows.exclude(name__iregex="(").filter(pk=ABSENT).first(),
    "one end of a range": lambda: rows.filter(pk=ABSENT, name__range="a").first(),
    "three ends of a range": lambda: rows.filter(pk=ABSENT, id__range=[1, 2, 3]).first(),
    "what is no text": lambda: rows.filter(pk=ABSENT, name__iexact=True).first(),
    "a slice": lambda: list(rows.filter(pk=ABSENT)[10**20 : 10**20 + 10]),
    "a slice of a subquery": lambda: rows.filter(
        pk=ABSENT, pk__in=Review.objects.order_by("pk").values("product")[10**20 : 10**20 + 10]
    ).exists(),
    "a number beside the key": lambda: rows.filter(pk=ABSENT, review__product=10**30).first(),
    "a number in an annotation": lambda: rows.annotate(n=Coalesce("id", Value(10**30))).filter(pk=ABSENT).first(),
    "a number below 64 bits": lambda: rows.filter(pk=ABSENT, review__product=-(10**30)).first(),
    "an order that there is not": lambda: rows.order_by("name__foo").filter(pk=ABSENT).first(),
    "an order in a subquery": lambda: rows.filter(
        pk=ABSENT, pk__in=Review.objects.order_by(Cast(Value("x"), IntegerField())).values("product")[:1]
    ).first(),
    "DISTINCT ON in another order": lambda: rows.order_by("pk").distinct("name").filter(pk=ABSENT).first(),
    "a constant in an annotation": lambda: rows.annotate(n=Cast(Value("x"), IntegerField())).filter(pk=ABSENT).first(),
    "a constant in an order": lambda: rows.order_by(Cast(Value("x"), IntegerField())).filter(pk=ABSENT).first(),
    "a constant in a condition": lambda: rows.filter(pk=ABSENT, id__gt=Cast(Value("x"), IntegerField())).first(),
    "a division": lambda: rows.annotate(n=Value(1) / Value(0)).filter(pk=ABSENT).first(),
    "a number compared with a text": lambda: rows.filter(pk=ABSENT, name=F("pk")).first(),
    "a number among texts": lambda: rows.filter(pk=ABSENT, pk__in=Article.objects.values("slug")).first(),
    "a number compared with its text": lambda: rows.annotate(text=Cast("pk", CharField())).filter(
        pk=ABSENT, text=F("pk")
    ).first(),
    "a text, or else a number": lambda: rows.annotate(
        either=Coalesce(Cast("pk", CharField()), "pk", output_field=CharField())
    ).filter(pk=ABSENT, either="x").first(),
    "too wide a column": lambda: rows.annotate(text=Cast("pk", CharField(max_length=10**8))).filter(
        pk=ABSENT, text="x"
    ).first(),
    "several rows for one": lambda: rows.filter(pk=ABSENT, name=Subquery(Article.objects.values("slug"))).first(),
    "a number for a truth value": lambda: Article.objects.filter(slug="new", deleted__isnull=0).first(),
    "a union in a subquery": lambda: rows.filter(
        pk=ABSENT, pk__in=Review.objects.values("product").union(Review.objects.values("article"))
    ).first(),
}  # fmt: skip


def test_what_may_find_a_row_or_be_refused_is_sent(shop, clock):  # noqa: F811
    """The result, or the error, is that of a site without guards; some do find rows, or are refused."""
    with registered(Article, name="any-article", lookup="slug", alive=Q(deleted__isnull=False)) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        both = {what: without_a_guard_and_with(look) for what, look in SENT.items()}

    assert {what: results for what, results in both.items() if results[0] != results[1]} == {}
    found = {what: outside for what, (outside, _) in both.items()}
    assert found["an own lookup"] == [(7,)]
    assert found["an order that there is not"] is FieldError
    assert found["DISTINCT ON in another order"] is not None or database.current == "default"
    if database.current == "postgresql":
        assert found["an aggregate in HAVING"] is True
        assert isinstance(found["NUL"], type)
        assert isinstance(found["a regular expression"], type)
        assert isinstance(found["a number compared with its text"], type)
        assert isinstance(found["too wide a column"], type)
        assert isinstance(found["a number among texts"], type)
    if database.current == "default":
        assert found["a number beside the key"] is OverflowError
        assert found["DISTINCT ON in another order"] is NotSupportedError


#: What sites do ask for beside a key. None of it costs a query.
ANSWERED = {
    "a date": lambda: rows.filter(pk=ABSENT, name__gte=datetime.date(2024, 1, 1)),
    "texts": lambda: rows.filter(pk=ABSENT, name__in=["a", "é", "日本"]).exclude(name__startswith="%_"),
    "contained": lambda: rows.filter(pk=ABSENT, name__icontains="tea").filter(name__iexact="x"),
    "a range": lambda: rows.filter(pk=ABSENT, id__range=(1, 2**62)),
    "a case": lambda: rows.annotate(n=Case(When(name="x", then=Value(1)), default=Value(2))).filter(pk=ABSENT),
    "a sum": lambda: rows.annotate(n=F("pk") + 1, m=Avg("review__pk")).filter(pk=ABSENT),
    "lower case": lambda: rows.annotate(low=Lower("name")).filter(pk=ABSENT),
    "subqueries": lambda: rows.annotate(
        newest=Subquery(Review.objects.filter(product=OuterRef("pk")).order_by("-pk").values("pk")[:1]),
        has=Exists(Review.objects.filter(product=OuterRef("pk"))),
    ).filter(pk=ABSENT),
    "a subquery's rows": lambda: rows.filter(pk=ABSENT, pk__in=Review.objects.values("product")),
    "rows without": lambda: rows.exclude(review__article__slug="x").filter(pk=ABSENT),
    "rows without, by a subquery": lambda: rows.filter(
        ~Exists(Review.objects.filter(product=OuterRef("pk"))), pk=ABSENT
    ),
    "a filtered join": lambda: rows.annotate(
        r=FilteredRelation("review", condition=Q(review__article=1))
    ).filter(pk=ABSENT, r__pk=None),
    "an order by a relation": lambda: Review.objects.filter(pk=8).order_by(
        "product__name", Upper("article__slug"), "-pk"
    ),
    "a number as text": lambda: rows.annotate(text=Cast("pk", CharField())).filter(
        pk=ABSENT, text__in=Review.objects.values("article__slug")
    ),
    "only some columns": lambda: rows.filter(pk=ABSENT).values("name", n=Max("review__pk")),
}  # fmt: skip


def test_usual_conditions_cost_no_query(shop, clock):  # noqa: F811
    """The rule leaves what sites ask for."""
    with registered(Review, name="review") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            sent = {what: queries(lambda: list(look())) for what, look in ANSWERED.items()}  # noqa: B023

    assert sent == dict.fromkeys(ANSWERED, 0)


def test_a_join_that_django_leaves_out_is_not_judged(shop, clock, monkeypatch):  # noqa: F811
    """Django compares a foreign key with its own column: the other table is not read, so its class does not matter."""
    own = type("OwnForeignKey", (ForeignKey,), {"__module__": "project.fields"})
    monkeypatch.setattr(Review._meta.get_field("product"), "__class__", own)
    with registered(Review, name="review", lookup=("product", "article")) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        absent = Review.objects.filter(product=ABSENT, article=7)
        with guarded_lookups():
            assert queries(lambda: list(absent)) == 0
            assert queries(lambda: list(absent.order_by("pk"))) == 0
            assert queries(lambda: list(absent.order_by("product__name"))) == 1
            assert queries(lambda: list(absent.select_related("product"))) == 1


def test_a_constant_is_computed_by_the_database(shop):  # noqa: F811
    """``Now()`` has no column: it is sent, as is any other SQL that the database computes before it looks for rows."""
    with guarded_lookups():
        assert queries(lambda: list(rows.annotate(now=Now()).filter(pk=ABSENT))) == 1


def test_a_function_in_a_condition_is_left_to_the_database(shop):  # noqa: F811
    """But for a key as text. Also an aggregate, as in HAVING: the types that they take and give differ."""
    with guarded_lookups():
        assert queries(lambda: list(rows.annotate(low=Lower("name")).filter(pk=ABSENT, low="x"))) == 1
        assert queries(lambda: list(rows.annotate(n=Count("review")).filter(pk=ABSENT, n__gt=1))) == 1


@pytest.mark.parametrize(
    "value", [0, -(2**63), 2**63 - 1, True, None, 1.5, "", "é", "\U0001f600", Decimal("1.5")], ids=repr
)
def test_parameters_that_a_driver_takes(value):
    """And the database finds nothing wrong with them."""
    assert _is_taken(value, connections[database.current].vendor) or (
        database.current == "mariadb" and value == "\U0001f600"
    )
    with connections[database.current].cursor() as cursor:
        cursor.execute("SELECT %s", [value])


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, float("nan"), float("inf"), "a\0", "\ud83d", "x" * 20_000, Decimal("1e1000"), Decimal("NaN"),
     b"bytes", [1], object(), type("Own", (str,), {})("x"), type("Own", (int,), {})(1)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_parameters_that_are_left_to_the_driver(value):
    """Or to the database."""
    assert not _is_taken(value, connections[database.current].vendor)


@pytest.fixture
def visits(each_database, clock):
    """A model with columns whose values Django hands on as they are, and its guard."""
    alive = Q(length=datetime.timedelta(1))
    connection = connections[database.current]
    with isolate_apps("tests.shop"):

        class Visit(models.Model):
            ip = models.GenericIPAddressField(null=True)
            length = models.DurationField(null=True)
            raw = models.BinaryField(null=True)
            span = IntegerRangeField(null=True) if connection.vendor == "postgresql" else models.IntegerField(null=True)

            class Meta:
                app_label = "shop"

    with connection.schema_editor() as editor:
        editor.create_model(Visit)
    with registered(Visit, name="visit") as guard, registered(Visit, name="long-visit", alive=alive) as narrow:
        Rebuild(guard, sleep=clock.sleep).run()
        Rebuild(narrow, sleep=clock.sleep).run()
        yield Visit
    with connection.schema_editor() as editor:
        editor.delete_model(Visit)


def test_what_the_database_has_to_parse_is_sent(visits):
    """An address, an interval or a range that is none is refused, or not: the database alone knows."""
    differ = []
    for name in ("ip", "ip__gt", "length", "length__in", "raw", "span", "span__gte"):
        for value in ("garbage", "[1,2", "1", 1, True, Decimal("1.5")):
            asked = {name: [value] if name.endswith("in") else value}
            outside, inside = without_a_guard_and_with(lambda: visits.objects.filter(**asked, pk=8).first())  # noqa: B023
            if inside != outside:
                differ.append((asked, outside, inside))

    assert differ == []


def test_columns_that_are_null_and_those_of_alive_cost_no_query(visits):
    """There the database has nothing to parse, or has parsed it in the rebuild."""
    narrow = visits.objects.filter(registry["long-visit"].alive)
    with guarded_lookups():
        assert queries(lambda: visits.objects.filter(pk=8, ip=None, span__isnull=False, length=None).first()) == 0
        registry["visit"].lookups = False
        registry.replan()
        assert queries(lambda: narrow.filter(pk=8).first()) == 0
        assert queries(lambda: narrow.filter(pk=8, raw=None).only("pk").first()) == 0


def test_products_are_what_they_were(lookups):  # noqa: F811
    """A query that is compiled twice finds what it finds."""
    found = rows.filter(pk=7, name__ortea="x").select_related("bundle").order_by("name").values_list("pk", "name")

    assert list(found) == [(7, "tea")]
    assert Product.objects.annotate(n=Count("review")).filter(pk=7, name__wide="x").get().n == 0
