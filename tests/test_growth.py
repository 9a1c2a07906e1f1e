"""How fast a guard grows, and when it is full."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from bloomguard.building.growth import days_to_capacity, kept, rows_a_day
from bloomguard.models import GuardState

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

    assert kept(None) == kept(GuardState(name="city")) == {}
    assert kept(first) == {"former_rows": 10, "former_published_at": NOW}
    assert kept(second) == {}
    assert kept(third) == {"former_rows": 30, "former_published_at": NOW + DAY}
