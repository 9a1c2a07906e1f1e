"""The geometry of the admin page's charts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomguard.dashboard.drawing import HEIGHT, SPARK_HEIGHT, SPARK_WIDTH, WIDTH, bars, scale_top, spark

NUMBERS = st.lists(st.integers(0, 10**12), max_size=130)


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (2, 2), (3, 3), (7, 8), (9, 10), (11, 20), (501, 600), (999_999, 1_000_000)]
)
def test_the_scale_ends_at_a_round_number(most, top):
    """One digit and zeros, at most twice what it has to hold."""
    assert scale_top([0, most]) == top


@given(NUMBERS)
def test_every_bar_lies_within_its_chart(values):
    """Bars stand side by side on the base line, none above the top, one for each number but 0."""
    drawn = bars(values, [str(value) for value in values])

    assert [bar.words for bar in drawn] == [str(value) for value in values if value]
    for bar in drawn:
        assert 0 <= bar.x <= bar.x + bar.width <= WIDTH + 0.01
        assert bar.y >= -0.01
        assert bar.y + bar.height == pytest.approx(HEIGHT, abs=0.02)
    assert all(left.x + left.width <= right.x + 1e-6 for left, right in itertools.pairwise(drawn))


@pytest.mark.parametrize(("count", "gap"), [(24, 4.5), (96, 0)])
def test_few_bars_stand_apart(count, gap):
    """Many have no gaps between them: these would flicker on a narrow screen."""
    first, second = bars([1] * count, [""] * count)[:2]

    assert second.x - first.x - first.width == pytest.approx(gap)


def test_a_bar_is_as_high_as_its_number():
    """Half of the top is half of the height, and a single one of many can still be seen."""
    half, tiny = bars([50_000, 1, 100_000], ["", "", ""])[:2]

    assert (half.height, half.y) == (HEIGHT / 2, HEIGHT / 2)
    assert tiny.height == 1.5


@given(NUMBERS)
def test_a_spark_stays_within_its_box(values):
    """It begins and ends on the base line, and is nothing where there is next to nothing."""
    path = spark(values)

    if path:
        assert path.startswith(f"M0 {SPARK_HEIGHT} L") and path.endswith(f"L{SPARK_WIDTH} {SPARK_HEIGHT}Z")  # noqa: PT018
        points = [point.split() for point in path[1:-1].split(" L")]
        assert all(0 <= float(x) <= SPARK_WIDTH and 0 <= float(y) <= SPARK_HEIGHT for x, y in points)
        assert min(float(y) for _x, y in points) == 2
        assert len(points) <= 62


def test_a_spark_has_eight_points_or_more():
    """Fewer would be a spike on an empty line."""
    assert spark([]) == spark([0] * 96) == spark([0] * 89 + [3] * 7) == ""
    assert spark([0] * 52 + [3] * 8)
