"""Without RETURNING, the rows that an UPDATE changes are found by its WHERE: that has to select the same ones again."""

from __future__ import annotations

import pytest
from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce, Concat, Lower, Random, Upper

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes.updates import selects_the_same_again
from tests.shop.models import Article, Place, Ticket
from tests.support import database

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.mark.parametrize(
    ("chosen", "is_stable"),
    [
        (lambda: Place.objects.all(), True),
        (lambda: Place.objects.filter(Q(slug="a", country__in=["de", "fr"]) | ~Q(pk__gt=5)), True),
        (lambda: Place.objects.filter(slug=Upper("country"), slug__icontains="x", country__isnull=False), True),
        (lambda: Place.objects.annotate(lower=Lower("slug")).filter(lower__startswith="a"), True),
        (lambda: Place.objects.filter(slug=Coalesce(Concat("country", models.Value("x")), "slug")), True),
        (lambda: Place.objects.filter(pk=models.F("pk") + 1), True),
        (lambda: Place.objects.filter(models.Case(models.When(slug="a", then=True), default=False)), True),
        (lambda: Place.objects.none(), True),
        (lambda: Ticket.objects.filter(pk__in=[(1, 2), (3, 4)]), True),
        (lambda: Place.objects.annotate(chance=Random()).filter(chance__lt=0.5), False),
        (lambda: Place.objects.filter(pk__in=[1, Random()]), False),
        (lambda: Place.objects.filter(slug=Coalesce("slug", models.functions.Now())), False),
        (lambda: Place.objects.filter(slug=Lower("slug", function="RAND")), False),
        (lambda: Place.objects.filter(slug=models.Func("slug", function="lower")), False),
        (lambda: Place.objects.filter(slug__in=Article.objects.values("slug")), False),
        (lambda: Place.objects.filter(pk__in=Place.objects.order_by("?")[:1]), False),
        (lambda: Place.objects.filter(models.Exists(Article.objects.filter(slug=models.OuterRef("slug")))), False),
        (lambda: Place.objects.filter(slug=models.expressions.RawSQL("rand()", ())), False),
        (lambda: Place.objects.extra(where=["rand() < 1"]), False),
        (lambda: Place.objects.filter(slug=models.functions.Now()), False),
    ],
)
def test_a_where_is_known_to_select_the_same_rows_again(chosen, is_stable):
    """What is in no list is not known."""
    assert selects_the_same_again(chosen().query.where) is is_stable


@pytest.mark.parametrize("by", ["chance", "subquery"])
def test_an_update_by_chance_denies_no_row(each_database, fresh, clock, by):
    """Without RETURNING the rows that were locked before may be others than those that it changes."""
    guard = registry["place"]
    Article.objects.create(slug="s1")
    for number in range(8):
        Place.objects.all().delete()
        Place.objects.bulk_create([Place(country="de", slug=f"s{number}-{other}") for other in range(2)])
        Rebuild(guard, sleep=clock.sleep).run()
        rows = Place.objects.annotate(chance=Random()).filter(chance__lt=0.5)
        rows = rows if by == "chance" else Place.objects.exclude(slug__in=Article.objects.values("slug"))

        rows.update(country="fr")

        assert state.table.current("place").status == (FENCED if database.current == "mariadb" else ARMED)
        for place in Place.objects.filter(country="fr"):
            assert guard.verdict((place.country, place.slug)) is not Verdict.ABSENT
