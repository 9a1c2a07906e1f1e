"""What a rebuild is going to make, before it makes anything, and what it has made: figures for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from ..exceptions import RebuildError
from ..filters.choose import Choice, KeysSummary, choose
from ..filters.layout import Layout
from ..guards import Guard

#: What a filter has room for beyond today's rows, unless the guard says how many.
HEADROOM = 1.5
SMALLEST_CAPACITY = 1_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rebuild would make: about how many rows, room for how many, and the bytes that takes."""

    guard: str
    kind: str
    rows: int
    capacity: int
    error_rate: float
    bytes: int
    shards: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rebuild made.

    ``rows_verified`` rows were read once more and found in it. ``seconds`` is its own work, ``waited_seconds`` the wait
    for writers of other processes.
    """

    guard: str
    generation: str
    kind: str
    rows: int
    rows_verified: int
    capacity: int
    bytes: int
    error_rate: float
    error_rate_measured: float
    seconds: float
    waited_seconds: float


def lay_out(guard: Guard, summary: KeysSummary, *, tag: int = 0) -> Layout:
    """The shards of a new generation for rows such as ``summary`` tells of; makes nothing.

    Raises :class:`RebuildError`, with the figures, if the guard's store has no room for it.
    """
    store = guard.live.store
    key_id, key_hash = guard.live.key_hashes()[0]
    choice = _choice(guard, summary)
    layout = Layout.plan(
        key_hash=key_hash,
        capacity=choice.capacity,
        error_rate=guard.error_rate,
        tag=tag,
        key_id=key_id,
        kind=choice.kind,
        shard_bytes=store.shard_bytes,
        **choice.options,
    )
    free = store.free_bytes()
    if free is not None and layout.total_bytes > free:
        raise RebuildError(
            f"{guard.name}: room for {layout.capacity:,} keys at {guard.error_rate:g} takes {layout.total_bytes:,} "
            f"bytes; the store {store.alias!r} has {free:,} left. Free some, or raise error_rate"
        )
    return layout


def _choice(guard: Guard, summary: KeysSummary) -> Choice:
    wanted = guard.filter
    capacity = max(guard.capacity or int(summary.count * HEADROOM), summary.count, SMALLEST_CAPACITY)
    if wanted == "auto":
        return choose(summary, guard.error_rate, capacity=capacity)
    if wanted != "bitmap":
        return Choice(kind=wanted, capacity=capacity)
    if guard.keys.width != 8:
        raise RebuildError(f"{guard.name}: filter is 'bitmap', which holds integers and dates alone")
    low = 1 if summary.low is None else summary.low
    high = low if summary.high is None else summary.high
    # Room above, in the proportion that the rows have to grow.
    reach = (high - low + 1) * capacity // max(summary.count, 1)
    return Choice(kind=wanted, capacity=capacity, options={"low": low, "high": max(high, low + reach - 1)})
