"""``filter = "auto"``: an exact bitmap where it is smaller, a Bloom filter otherwise."""

from functools import partial

import pytest

from bloomguard.filters import InvalidShape, KeyHash
from bloomguard.filters.layout import KeysSummary, Layout, choose


@pytest.mark.parametrize(
    ("summary", "rate", "kind"),
    [
        (KeysSummary(count=1_000_000, low=1, high=1_000_000), 0.01, "bitmap"),
        (KeysSummary(count=1_000_000, low=1, high=4_800_000), 0.01, "bitmap"),
        (KeysSummary(count=1_000_000, low=1, high=5_100_000), 0.01, "bloom"),
        (KeysSummary(count=1_000_000, low=1, high=9_500_000), 0.001, "bitmap"),
        (KeysSummary(count=1_000_000, low=-500_000, high=500_000), 0.01, "bitmap"),
        (KeysSummary(count=2, low=-(1 << 63), high=(1 << 63) - 1), 0.01, "bloom"),
        (KeysSummary(count=1_000_000), 0.01, "bloom"),
        (KeysSummary(count=0), 0.01, "bloom"),
        (KeysSummary(count=0, low=1, high=1), 0.01, "bloom"),
    ],
)
def test_the_smaller_one_is_taken(summary, rate, kind):
    assert choose(summary, rate, capacity=max(summary.count, 1))["kind"] == kind


@pytest.mark.parametrize("high", [2_000_000, 50_000_000])
def test_a_choice_is_what_a_layout_takes(high):
    """Kind and options go to ``Layout.plan`` as they are, and take the fewest bytes."""
    choice = choose(KeysSummary(count=1_000_000, low=1, high=high), 0.01, capacity=1_000_000)
    plan = partial(Layout.plan, key_hash=KeyHash(8), error_rate=0.01, capacity=1_000_000)
    layout = plan(**choice)

    assert layout.total_bytes <= min(plan(kind="bloom").total_bytes, plan(kind="bitmap", low=1, high=high).total_bytes)


def test_a_bitmap_has_room_for_the_keys_to_come():
    """For twice the keys the range reaches twice as far; the largest integer is the end."""
    choice = choose(KeysSummary(count=1_000, low=101, high=1_100), 0.01, capacity=2_000)

    assert choice == {"kind": "bitmap", "low": 101, "high": 2_100}
    top = (1 << 63) - 1
    assert choose(KeysSummary(count=1_000, low=top - 999, high=top), 0.01, capacity=2_000)["high"] == top


def test_a_rate_out_of_range_is_named():
    with pytest.raises(InvalidShape, match="error_rate is 7"):
        choose(KeysSummary(count=1), 7, capacity=1)
