"""``GuardedManager``: ``get`` and ``in_bulk`` without a query for what does not exist, and everything else as ever."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, connections, transaction
from django.db.models import F, Q
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.test.utils import CaptureQueriesContext

from bloomguard.guards import guards
from bloomguard.lookups.querysets import covers
from bloomguard.managers import GuardedQuerySet
from tests.guarding import make_guard, registered
from tests.shop.models import Article, Bargain, Bundle, Order, Place, Product


@pytest.fixture
def shop(build):
    """A row of each kind, one of them soft-deleted, and the filters of all."""
    Product.objects.create(pk=7, name="tea")
    Article.objects.create(slug="alive")
    Article.objects.create(slug="dead", deleted=True)
    Place.objects.create(country="DE", slug="ulm")
    for name in ("product", "article", "place"):
        build(name)


@pytest.mark.parametrize("names", [{"pk": 8}, {"id": 8}, {"pk__exact": "8"}, {"pk": 2**70}], ids=str)
def test_what_does_not_exist_costs_no_query(shop, django_assert_num_queries, names):
    """``get`` raises Django's own ``DoesNotExist``."""
    with pytest.raises(Product.DoesNotExist) as usual:
        Product.objects.get(**names)

    with django_assert_num_queries(0), pytest.raises(Product.DoesNotExist) as guarded:
        Product.guarded.get(**names)

    assert str(guarded.value) == str(usual.value)


def test_several_fields_together_in_any_order(shop, django_assert_num_queries):
    """A guard of two fields is asked where both are given, and nothing else."""
    with django_assert_num_queries(0), pytest.raises(Place.DoesNotExist):
        Place.guarded.get(slug="ulm", country="FR")
    with django_assert_num_queries(1):
        assert Place.guarded.get(slug="ulm", country="DE").pk
    with django_assert_num_queries(1), pytest.raises(Place.DoesNotExist):
        Place.guarded.get(country="FR")


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_every_other_lookup_goes_the_usual_way(shop):
    """Anything but equality on exactly the guard's lookup, in its own database, is the database's to answer."""
    rows, elsewhere = Product.guarded, Product.guarded.using("postgresql")
    asks = [
        lambda: rows.get(Q(pk=8)),
        lambda: rows.get(pk=8, name="tea"),
        lambda: rows.get(pk__in=[8]),
        lambda: rows.filter(pk=8).get(),
        lambda: rows.get(name="coffee"),
        lambda: rows.get(pk=F("id") + 1),
        lambda: elsewhere.get(pk=8),
    ]
    for ask in asks:
        with (
            CaptureQueriesContext(connection) as here,
            CaptureQueriesContext(connections["postgresql"]) as there,
            pytest.raises(Product.DoesNotExist),
        ):
            ask()
        assert len(here) + len(there) == 1


def test_what_exists_is_fetched_with_one_query(shop, django_assert_num_queries):
    """A row comes as ever, through filters and related data."""
    with django_assert_num_queries(2):
        assert Product.guarded.get(pk=7).name == "tea"
        assert Product.guarded.filter(name="tea").only("name").get(pk=7).pk == 7


def test_filters_narrow(shop, django_assert_num_queries):
    """What does not exist is in no part of the table either."""
    with django_assert_num_queries(0), pytest.raises(Product.DoesNotExist):
        Product.guarded.filter(name="tea").order_by("name").get(pk=8)


@pytest.mark.parametrize("rows", [Product.guarded.all()[:1], Product.guarded.union(Product.objects.all())])
def test_mistakes_stay_djangos(shop, rows):
    """What Django refuses, it refuses in its own words."""
    with pytest.raises(Exception, match=r"slice|union"):
        rows.get(pk=8)


def test_in_bulk_asks_only_for_what_may_exist(shop, django_assert_num_queries):
    """The rest of the list never reaches the database; with none left there is no query."""
    with django_assert_num_queries(0):
        assert Product.guarded.in_bulk([8, 9]) == {}
    with django_assert_num_queries(1) as queries:
        assert list(Product.guarded.in_bulk(iter([7, 8, 9]))) == [7]
    assert "8" not in queries[0]["sql"].partition("WHERE")[2]
    with django_assert_num_queries(1):
        assert list(Product.guarded.in_bulk()) == [7]
    with django_assert_num_queries(0):
        assert Article.guarded.filter(deleted=False).in_bulk(["none"], field_name="slug") == {}


def test_a_dead_row_stays_in_reach(shop, django_assert_num_queries):
    """A guard with ``alive`` answers only in place of querysets that leave dead rows out."""
    for rows in (Article.guarded.all(), Article.guarded.exclude(deleted=False), Article.guarded.filter(deleted=True)):
        assert rows.get(slug="dead").deleted
        assert list(rows.in_bulk(["dead"], field_name="slug")) == ["dead"]
    with django_assert_num_queries(1), pytest.raises(Article.DoesNotExist):
        Article.guarded.get(slug="none")
    with django_assert_num_queries(0), pytest.raises(Article.DoesNotExist):
        Article.guarded.filter(deleted=False).get(slug="none")
    with pytest.raises(Article.DoesNotExist):
        Article.guarded.filter(deleted=False).get(slug="dead")


@pytest.mark.parametrize(
    ("alive", "rows", "inside"),
    [
        (Q(deleted=False), Q(deleted=False), True),
        (Q(deleted=False), Q(deleted=False) & Q(slug__startswith="a"), True),
        (Q(deleted=False), Q(deleted=False) | Q(slug="dead"), False),
        (Q(deleted=False), ~Q(deleted=False), False),
        (Q(deleted=False), ~Q(deleted=True), False),  # the same, but who would prove it
        (Q(deleted=False), Q(deleted=True), False),
        (~Q(deleted=True), ~Q(deleted=True), True),
        (Q(deleted=False, slug__gt="a"), Q(slug__gt="a"), False),
        (Q(deleted=False, slug__gt="a"), Q(slug__gt="a") & Q(deleted=False), True),
        (Q(deleted=False) | Q(slug="x"), Q(deleted=False) | Q(slug="x"), True),
        (Q(deleted=False) | Q(slug="x"), Q(slug="x"), False),
        (Q(), Q(deleted=True), True),
    ],
)
def test_what_lies_within_a_guards_rows(alive, rows, inside):
    """The conditions of ``alive`` have to stand among the queryset's own, joined by AND."""
    guard = make_guard(Article, lookup="slug", alive=alive)

    assert covers(guard, Article.objects.filter(rows)) is inside


def test_what_is_not_within_whatever_its_conditions():
    """Unions, slices, other tables and other databases may hold anything; proxies and children hold no other rows."""
    guard = make_guard(Product)
    rows = Product.objects.all()

    outside = [rows.union(rows), rows[:5], Order.objects.all(), rows.using("postgresql")]

    assert [covers(guard, each) for each in outside] == [False] * 4
    assert covers(guard, Bargain.objects.all())
    assert covers(guard, Bundle.objects.all())


def test_own_uncommitted_rows_are_seen(shop):
    """A row is in the filter before it is committed, so the transaction that writes it finds it."""
    with transaction.atomic():
        Product.objects.bulk_create([Product(pk=8)])
        assert Product.guarded.get(pk=8).pk == 8


def test_get_or_create_and_update_or_create(shop):
    """They look first, and what they look for is what they write."""
    assert Product.guarded.get_or_create(pk=8)[1]
    assert not Product.guarded.get_or_create(pk=8)[1]
    assert not Product.guarded.update_or_create(pk=8, defaults={"name": "new"})[1]
    assert Product.objects.get(pk=8).name == "new"


def test_djangos_shortcut_is_guarded_too(shop, django_assert_num_queries):
    """``get_object_or_404`` and ``aget`` come down to ``get``."""
    with django_assert_num_queries(0), pytest.raises(Http404, match="No Product matches the given query"):
        get_object_or_404(Product.guarded, pk=8)
    with django_assert_num_queries(0), pytest.raises(Product.DoesNotExist):
        async_to_sync(Product.guarded.all().aget)(pk=8)
    assert async_to_sync(Product.guarded.all().aget)(pk=7).pk == 7


def test_guards_that_miss_writes_are_not_asked(shop, django_assert_num_queries, monkeypatch):
    """``sync = "signals"`` knows nothing of ``bulk_create``, so the database answers."""
    monkeypatch.setattr(type(guards["product"]), "sync", "signals")
    monkeypatch.setattr(guards, "version", guards.version + 1)

    with django_assert_num_queries(1), pytest.raises(Product.DoesNotExist):
        Product.guarded.get(pk=8)


def test_without_a_filter_everything_is_as_ever(fresh, db):
    """UNKNOWN asks the database."""
    Product.objects.create(pk=7)

    assert Product.guarded.get(pk=7).pk == 7
    assert list(Product.guarded.in_bulk([7, 8])) == [7]
    with pytest.raises(Product.DoesNotExist):
        Product.guarded.get(pk=8)
    with pytest.raises(IntegrityError):
        Product.guarded.create(pk=7)


def test_a_guard_that_cannot_work_is_no_error_of_a_lookup(db):
    """A system check tells of it; a site that was started without one answers as if the guard were not there."""
    product, article = Product.objects.create(pk=7, name="tea"), Article.objects.create(slug="alive")

    with registered(Product, name="lost", lookup="nothing"), registered(Article, name="flag", lookup="deleted"):
        assert Product.guarded.get(pk=7) == product
        assert Product.guarded.in_bulk([7]) == {7: product}
        assert GuardedQuerySet(Article).get(deleted=False) == article
        assert guards["flag"].get_object_or_404(False) == article
