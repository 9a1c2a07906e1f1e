"""Whether a guard needs a rebuild, and why: what ``rebuild_filter --if-needed`` goes by."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from ..exceptions import StoreError
from ..filters import FilterError
from ..guards import Guard
from ..models import GuardState
from ..sources import Source
from ..stores import Generation
from ..sync.state import ARMED, State
from .plans import lay_out

#: The share of a filter's capacity above which it is full.
FULL = 0.9
#: The share of a filter's keys above which too many belong to rows that are gone.
STALE = 0.25


@dataclass(frozen=True, kw_only=True)
class Need:
    """Why ``guard`` should be rebuilt; ``reasons`` is empty if it need not be.

    ``rows`` is about how many there are, ``keys`` about how many the filter has, ``stale_share`` the share of them that
    belongs to rows that are gone; all are 0 where no filter can be looked at. ``age_seconds`` counts from the last
    publication, if there was one.
    """

    guard: str
    reasons: tuple[str, ...]
    rows: int = 0
    keys: int = 0
    capacity: int = 0
    stale_share: float = 0.0
    age_seconds: float | None = None


def assess(guard: Guard, max_age: float | None = None) -> Need:
    """Look at the guard's row, store, filter and number of rows; reads the whole filter, and changes nothing.

    Raises :class:`DatabaseError`, and :class:`RebuildError` if a rebuild would not fit into the store.
    """
    state = guard.live.table.current(guard.name)
    row = GuardState.objects.using(guard.live.table.connection.alias).filter(name=guard.name).first()
    age = None
    if row is not None and row.published_at is not None:
        age = max((timezone.now() - row.published_at).total_seconds(), 0.0)
    reasons = []
    if state.active and state.status != ARMED:
        reasons.append(f"it is fenced: {row.reason if row else ''}")
    if max_age is not None and age is not None and age > max_age:
        reasons.append(f"it is {age / 3600:,.1f} hours old, more than {max_age / 3600:,.1f}")
    try:
        generation = opened(guard, state)
    except (StoreError, FilterError) as error:
        return Need(guard=guard.name, reasons=(*reasons, str(error)), age_seconds=age)
    layout = generation.layout
    if layout.key_id != guard.live.key_hashes()[0][0]:
        reasons.append("it was built with a former SECRET_KEY")
    if layout.error_rate != guard.error_rate or guard.filter not in ("auto", layout.kind):
        reasons.append(
            f"it is a {layout.kind} filter for an error rate of {layout.error_rate:g}; the guard asks for "
            f"{guard.filter!r} and {guard.error_rate:g}"
        )
    source = Source(guard)
    summary = source.summary()
    keys, rows = generation.approximate_size(), summary.count
    if _stale(keys, rows) > STALE:
        rows = source.rows().count()  # what there was before may have been an estimate
    if _stale(keys, rows) > STALE:
        reasons.append(f"{_stale(keys, rows):.0%} of its keys belong to rows that are gone")
    # Where a rebuild would make no more room than there is, being full is no reason for one.
    if max(keys, rows) > FULL * layout.capacity and lay_out(guard, summary).capacity > layout.capacity:
        reasons.append(f"{max(keys, rows):,} keys are in it or due, and it has room for {layout.capacity:,}")
    return Need(
        guard=guard.name,
        reasons=tuple(reasons),
        rows=rows,
        keys=keys,
        capacity=layout.capacity,
        stale_share=round(_stale(keys, rows), 4),
        age_seconds=age,
    )


def opened(guard: Guard, state: State) -> Generation:
    """The active generation; raises what is wrong with it."""
    store = guard.live.store
    if not state.active:
        raise StoreError("there is no filter yet")
    if not state.is_ours:
        raise StoreError("its filter was built from another database, or from this one before it was restored")
    if state.identity != store.identity:
        raise StoreError("its filter is in another store, or in this one as it was before a restart")
    return store.open(guard.name, state.active, guard.live.find_key_hash, state.identity)


def _stale(keys: int, rows: int) -> float:
    return max(keys - rows, 0) / keys if keys else 0.0
