"""How fast a guard grows, when it is full, and what becomes of it then."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from django.core.checks import run_checks
from django.db import transaction

from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild.plan import days_to_capacity, growth_baseline, rows_a_day
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product
from tests.support.guarding import registered

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def test_growth_is_counted_from_first_to_last():
    """100 rows in two days are 50 a day, whatever lies between."""
    assert rows_a_day([(NOW, 1_000), (NOW + DAY, 5_000), (NOW + 2 * DAY, 1_100)]) == 50


@pytest.mark.parametrize("counts", [[], [(NOW, 5)], [(NOW, 5), (NOW + 59 * HOUR / 60, 900)]])
def test_a_short_time_says_nothing(counts):
    """Growth over less than an hour is none that anybody could reckon with."""
    assert rows_a_day(counts) is None


@pytest.mark.parametrize(
    ("rows", "a_day", "days"),
    [(500, 50, 10), (1_000, 50, 0), (1_200, None, 0), (500, 0, None), (500, -3, None), (5, None, None)],
)
def test_days_to_capacity(rows, a_day, days):
    """What does not grow is never full; what is full is full today."""
    assert days_to_capacity(rows, 1_000, a_day) == days


def test_a_build_keeps_what_growth_is_counted_from():
    """The build before; but one within a day of what is kept already is no better place to count from."""
    first = GuardState(name="city", rows=10, published_at=NOW)
    second = GuardState(name="city", rows=20, published_at=NOW + HOUR, former_rows=10, former_published_at=NOW)
    third = GuardState(name="city", rows=30, published_at=NOW + DAY, former_rows=10, former_published_at=NOW)

    assert growth_baseline(None) == growth_baseline(GuardState(name="city")) == {}
    assert growth_baseline(first) == {"former_rows": 10, "former_published_at": NOW}
    assert growth_baseline(second) == {}
    assert growth_baseline(third) == {"former_rows": 30, "former_published_at": NOW + DAY}


@pytest.fixture(params=["bloom", "bitmap", "cuckoo"])
def product(request, fresh, clock):
    """A guard of 500 rows, with room for 1,000."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 501))
    with registered(Product, filter=request.param, name="growing") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        yield guard


def roll_back(numbers):
    """Write rows as a form does that fails in the end."""
    with transaction.atomic():
        Product.objects.bulk_create(Product(pk=pk) for pk in numbers)
        transaction.set_rollback(True)


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_no_rows_that_are_rolled_back_disable_a_guard(product, caplog):
    """Keys chosen at will, over and over and many more than foreseen: the guard answers, and denies no row."""
    for _ in range(9):
        roll_back(range(10_001, 10_061))
    roll_back(range(20_001, 22_501))
    Product.objects.bulk_create(Product(pk=pk) for pk in range(501, 1_001))
    row = GuardState.objects.get(name="growing")

    assert (row.status, Product.objects.count()) == ("armed", 1_000)
    assert all(product.verdict(pk) is Verdict.MAYBE for pk in range(1, 1_001))
    assert sum(product.verdict(pk) is Verdict.ABSENT for pk in range(1 << 40, (1 << 40) + 500)) > 400
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    codes = [each.id for each in run_checks(include_deployment_checks=True, databases=["default"])]
    assert "bloomguard.W032" in codes  # more than it has room for: rebuild_filter


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_row_that_is_deleted_is_forgotten_however_full_the_filter_was(product):
    """Rows whose keys found room leave a cuckoo filter; those whose keys did not are let through, never denied."""
    roll_back(range(20_001, 21_501))
    Product.objects.bulk_create(Product(pk=pk) for pk in range(501, 601))
    Product.objects.filter(pk__lte=250).delete()

    gone = sum(product.verdict(pk) is Verdict.ABSENT for pk in range(1, 251))
    assert gone == 0 if product.filter != "cuckoo" else gone > 200
    assert all(product.verdict(pk) is Verdict.MAYBE for pk in range(251, 601))
