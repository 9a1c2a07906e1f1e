"""``filter = "auto"``: an exact bitmap where it is smaller, a Bloom filter otherwise."""

import pytest

from bloomguard.filters import InvalidShape, KeyHash
from bloomguard.filters.kinds import KeysSummary, choose
from bloomguard.filters.layout import Layout


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
    choice = choose(summary, rate)

    assert choice.kind == kind
    assert choice.bytes == min(choice.sizes.values())


@pytest.mark.parametrize("high", [2_000_000, 50_000_000])
def test_a_choice_is_what_a_layout_takes(high):
    """Kind, capacity and options go to ``Layout.plan`` as they are, and take the bytes foretold."""
    choice = choose(KeysSummary(count=1_000_000, low=1, high=high), 0.01)
    layout = Layout.plan(
        key_hash=KeyHash(8), error_rate=0.01, tag=1, kind=choice.kind, capacity=choice.capacity, **choice.options
    )

    assert sum(header.body_bytes for header in layout.headers) == choice.bytes


def test_a_bitmap_has_room_for_the_keys_to_come():
    """For twice the keys the range reaches twice as far; the largest integer is the end."""
    choice = choose(KeysSummary(count=1_000, low=101, high=1_100), 0.01, capacity=2_000)

    assert choice.options == {"low": 101, "high": 2_100}
    assert choice.capacity == 2_000
    top = (1 << 63) - 1
    assert choose(KeysSummary(count=1_000, low=top - 999, high=top), 0.01, capacity=2_000).options["high"] == top


def test_the_capacity_is_never_below_the_count():
    assert choose(KeysSummary(count=1_000), 0.01, capacity=10).capacity == 1_000
    assert choose(KeysSummary(count=0), 0.01).capacity == 1


def test_a_rate_out_of_range_is_named():
    with pytest.raises(InvalidShape, match="error_rate is 7"):
        choose(KeysSummary(count=1), 7)
