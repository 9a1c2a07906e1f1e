"""The data of the admin page: which steps of time its charts show, and how their axes name them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone as django_timezone

from bloomguard import metrics as figures
from bloomguard.dashboard.overview import PERIODS, Overview
from bloomguard.guards import registry
from bloomguard.metrics import HOUR, MINUTE

NOW = datetime(2026, 3, 5, 17, 20, 30, tzinfo=timezone.utc)


@pytest.fixture
def counted_since(monkeypatch):
    """``counted_since(hours=3)`` lets every guard have blocked one request a minute since then."""

    def begin(**ago: int) -> None:
        begun = (NOW - timedelta(**ago)).timestamp()

        def read_series(guards, start, end, step):
            length = -(-int((end - start).total_seconds()) // step)
            times = [start.timestamp() + step * number for number in range(length)]
            counts = {"blocked": [step // MINUTE if time >= begun else 0 for time in times]}
            return {
                guard.name: figures.Series(guard.name, int(start.timestamp()), step, length, counts) for guard in guards
            }

        monkeypatch.setattr(figures, "read_series", read_series)

    return begin


def overview(period: str) -> Overview:
    return Overview([registry["product"]], PERIODS[period], now=NOW)


@pytest.mark.parametrize(
    ("ago", "step", "count"), [({"hours": 3}, HOUR, 24), ({"hours": 22}, HOUR, 24), ({"days": 2}, 15 * MINUTE, 96)]
)
def test_a_day_is_drawn_in_hours_until_there_is_a_day_of_figures(counted_since, ago, step, count):
    """Bars of a quarter of an hour would be a few hairs at the edge of an empty chart."""
    counted_since(**ago)

    page = overview("day")

    assert page.series["product"].step == step
    assert len(page.times) == count


@pytest.mark.parametrize(("zone", "end"), [("UTC", "18:00"), ("Asia/Kolkata", "23:00"), ("America/New_York", "13:00")])
def test_a_day_ends_at_a_full_hour_of_local_time(counted_since, zone, end):
    """So that bars begin at round times; the hour that is going on is the last."""
    counted_since(days=2)
    with django_timezone.override(ZoneInfo(zone)):
        times = overview("day").times

        last = times[-1] + timedelta(minutes=15)

    assert f"{last:%H:%M}" == end
    assert times[0] <= NOW - timedelta(hours=23) < NOW < last


def test_an_axis_has_dates(counted_since):
    """An hour's and a day's have the time, and the date below where it begins or changes; a month's has dates alone."""
    counted_since(days=40)
    with django_timezone.override(timezone.utc):
        marks = {name: overview(name).charts[0].marks for name in PERIODS}

    assert marks == {
        "hour": [["4:21 p.m.", "March 5"], ["4:51 p.m."], ["5:20 p.m."]],
        "day": [["6 p.m.", "March 4"], ["6 a.m.", "March 5"], ["5:45 p.m."]],
        "month": [["February 3"], ["February 18"], ["March 5"]],
    }


def test_a_bar_has_its_date_in_words(counted_since):
    """Its tooltip, as the language writes a date and a time."""
    counted_since(days=2)
    with django_timezone.override(timezone.utc):
        bar = overview("day").charts[0].bars[0]

    assert bar.words == "March 4, 2026, 6 p.m.: 15"
