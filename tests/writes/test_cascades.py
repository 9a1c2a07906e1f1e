"""Rows that go, or are no longer alive, because of another row: their keys leave a filter that can discard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db.models import Q

from bloomguard.guards import Guard
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Product, Review
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(params=database.FORGETTING)
def each_database(request: pytest.FixtureRequest) -> Iterator[str]:
    with database.on(request.param):
        yield request.param


@pytest.fixture
def reviews(each_database, fresh, clock) -> Guard:
    """A guard of reviews that have an article; there are two, each with a product and an article of its own."""
    for pk in (1, 2):
        Review.objects.create(
            pk=pk, product=Product.objects.create(pk=pk), article=Article.objects.create(pk=pk, slug=f"a{pk}")
        )
    with registered(Review, name="review", filter="cuckoo", alive=Q(article__isnull=False)) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        yield guard


def verdicts(guard: Guard) -> list[Verdict]:
    return [guard.verdict(pk) for pk in (1, 2)]


def test_a_cascade_discards(reviews):
    """What goes with the row that it belongs to leaves the filter, and nothing else does."""
    Product.objects.get(pk=1).delete()

    assert verdicts(reviews) == [Verdict.ABSENT, Verdict.MAYBE]


def test_a_cascade_of_a_queryset_discards(reviews):
    """The same for rows that Django deletes by a condition, without having seen them."""
    Product.objects.filter(pk__gte=2).delete()

    assert verdicts(reviews) == [Verdict.MAYBE, Verdict.ABSENT]


def test_a_link_that_is_cut_discards(reviews):
    """`SET_NULL` writes a column that `alive` looks at."""
    Article.objects.get(pk=1).delete()

    assert Review.objects.count() == 2
    assert verdicts(reviews) == [Verdict.ABSENT, Verdict.MAYBE]


def test_a_link_that_is_mended_adds(reviews):
    """A row that was left without comes back, by `save`, `update` or `bulk_update`."""
    Article.objects.all().delete()
    assert verdicts(reviews) == [Verdict.ABSENT] * 2
    article = Article.objects.create(slug="new")

    Review.objects.filter(pk=1).update(article=article)
    review = Review.objects.get(pk=2)
    review.article = article
    Review.objects.bulk_update([review], ["article"])

    assert verdicts(reviews) == [Verdict.MAYBE] * 2
    review.article = None
    review.save()
    assert verdicts(reviews) == [Verdict.MAYBE, Verdict.ABSENT]
