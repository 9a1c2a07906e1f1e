"""What a rebuild would make, whether a guard needs one, and when its filter will be full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils import timezone

from ..exceptions import BloomGuardError, RebuildError, StoreError, StoreUnavailable
from ..filters import FilterError
from ..filters.layout import KeysSummary, Layout, bitmap_of, choose
from ..guards import Guard
from ..models import GuardState
from ..state.row import ARMED, State, held_by_hand, locate_store
from ..stores import Generation, Store
from .sources import Sources

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")

#: Capacity of a new filter as a multiple of today's rows, unless the guard declares one.
HEADROOM = 1.5
SMALLEST_CAPACITY = 1_000
#: A filter is full if it has more keys than this share of its capacity.
FULL = 0.9
#: A filter is stale if more than this share of its keys belongs to rows that are gone.
STALE = 0.25
#: No growth is computed from counts that are closer together than this.
SHORTEST_GROWTH = timedelta(hours=1)
#: Growth is counted from a build that is at least this much older than the last one.
_GROWTH_BASE = timedelta(days=1)
#: Errors that say enough without a traceback.
EXPECTED = (BloomGuardError, FilterError, Error)


@dataclass(frozen=True, kw_only=True)
class _Figures:
    guard: str
    kind: str
    rows: int
    capacity: int
    error_rate: float
    bytes: int

    @classmethod
    def of(cls, layout: Layout, **more: Any) -> Self:
        """Return the figures of a generation with this layout."""
        more |= {"kind": layout.kind, "capacity": layout.capacity, "bytes": layout.total_bytes}
        return cls(error_rate=layout.error_rate, **more)


@dataclass(frozen=True, kw_only=True)
class Plan(_Figures):
    """What a rebuild would make: the approximate number of rows, the capacity, and the bytes that it takes."""

    shards: int


@dataclass(frozen=True, kw_only=True)
class Report(_Figures):
    """What a rebuild made.

    ``rows_verified`` rows were read a second time and found in the filter. ``seconds`` is the time of the rebuild's own
    work, ``waited_seconds`` the time that it waited for other processes, before the scan and after the publication.
    """

    generation: str
    rows_verified: int
    error_rate_measured: float
    seconds: float
    waited_seconds: float = 0.0


def failure(guard: Guard, error: Exception) -> RebuildError:
    """Return the error as one that names ``guard``."""
    if isinstance(error, RebuildError):
        return error
    what = str(error).removeprefix(f"{guard.name}: ") if isinstance(error, EXPECTED) else repr(error)
    if isinstance(error, StoreUnavailable):
        what = f"the store {guard.store!r} cannot be used: {what.rstrip('.')}. Start its server, or correct its OPTIONS"
    why = missing_table(guard) if isinstance(error, Error) else ""
    failed = RebuildError(f"{guard.name}: {why or what}")
    failed.__cause__ = error
    return failed


def attempt(guard: Guard, work: Callable[[], Result]) -> Result | RebuildError:
    """Return what ``work`` returns for ``guard``, or its error, so that the other guards are worked on as well."""
    try:
        return work()
    except Exception as error:
        return failure(guard, error)


def missing_table(guard: Guard) -> str:
    """Return a message that the table of ``guard`` does not exist, with the cure; empty if it does or may exist."""
    meta = guard.model._meta
    if guard.scope is not None or '"' in meta.db_table:  # the latter may name a schema
        return ""
    with suppress(Exception):  # the database's, or a router's
        alias = guard._meta.database
        names = map(str.casefold, connections[alias].introspection.table_names())
        if meta.db_table.casefold() not in names:
            where = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
            cure = f": run manage.py migrate {meta.app_label}{where}, or the release that has renamed it"
            return f"the database {alias!r} has no table {meta.db_table}{cure if meta.managed else ''}"
    return ""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Why ``guard`` should be rebuilt; ``reasons`` is empty if it need not be.

    ``rows`` and ``keys`` are the approximate numbers of rows in the table and of keys in the filter, ``stale_share`` is
    the share of the keys that belongs to rows that are gone; all three are 0 if the filter cannot be opened.
    ``age_seconds`` is the time since the last publication, ``None`` if there was none. ``held`` says who disabled the
    guard by hand: then it has no reasons, as only a rebuild without ``--if-needed`` may enable it.
    """

    guard: str
    reasons: tuple[str, ...]
    held: str = ""
    rows: int = 0
    keys: int = 0
    capacity: int = 0
    stale_share: float = 0.0
    age_seconds: float | None = None


def plan_layout(guard: Guard, summary: KeysSummary) -> Layout:
    """Return :func:`layout_of`. Raises :class:`RebuildError` for mistaken options, or if the store has no room."""
    for mistake in guard._mistakes:
        raise RebuildError(f"{guard.name}: {mistake.reason}. {mistake.cure}")
    layout = layout_of(guard, summary)
    refuse_without_room(guard, layout)
    return layout


def refuse_without_room(guard: Guard, layout: Layout) -> None:
    """Raise :class:`RebuildError`, with the figures, if the guard's store has no room for ``layout``."""
    store = guard._runtime.active_filter.store.patient
    free = store.free_bytes()
    if free is not None and layout.total_bytes > free:
        raise RebuildError(
            f"{guard.name}: room for {layout.capacity:,} keys at {layout.error_rate:g} takes {layout.total_bytes:,} "
            f"bytes; the store {store.alias!r} has {free:,} left. Free some, or rebuild with a higher error_rate"
        )


def layout_of(guard: Guard, summary: KeysSummary) -> Layout:
    """Return the shards of a new generation for the rows that ``summary`` describes; create nothing."""
    active_filter = guard._runtime.active_filter
    key_id, key_hash = active_filter.key_hashes()[0]
    capacity = max(guard.capacity or int(summary.count * HEADROOM), summary.count, SMALLEST_CAPACITY)
    return Layout.plan(
        key_hash=key_hash,
        capacity=capacity,
        error_rate=guard.error_rate,
        key_id=key_id,
        shard_bytes=active_filter.store.shard_bytes,
        **_kind(guard, summary, capacity),
    )


def _kind(guard: Guard, summary: KeysSummary, capacity: int) -> dict[str, Any]:
    """Return the kind of filter and its options."""
    wanted = guard.filter
    if wanted == "auto":
        return choose(summary, guard.error_rate, capacity=capacity)
    if wanted != "bitmap":
        return {"kind": wanted}
    if guard._meta.keys.width != 8:
        raise RebuildError(f"{guard.name}: filter is 'bitmap', which holds only integers and dates, without scopes")
    return bitmap_of(summary, capacity)


def is_in_memory(guard: Guard) -> bool:
    """Return whether its filter is in the memory of the site's process: no other one can read or build it."""
    with suppress(BloomGuardError):  # of an unusable store, which the work itself, or a check, reports
        return guard._runtime.active_filter.store.is_of_one_process
    return False


def how_to_rebuild(guard: Guard) -> str:
    """Return what a person has to do to get a new filter. Never raises."""
    if is_in_memory(guard):
        return f"let the process of the site call call_command('rebuild_filter', {guard.name!r})"
    return f"run manage.py rebuild_filter {guard.name}"


def assess(guard: Guard, max_age: float | None = None) -> Need:
    """Return why the guard needs a rebuild, as ``rebuild_filter --if-needed`` asks.

    Reads the state row, the number of rows and the whole filter, and changes nothing. Raises :class:`DatabaseError`,
    and :class:`RebuildError` if a rebuild would not fit into the store.
    """
    active = guard._runtime.active_filter
    state, row, age, reasons, fence = active.table.current(guard.name), active.table.row(guard.name), None, [], ""
    if row is not None and row.published_at is not None:
        age = max((timezone.now() - row.published_at).total_seconds(), 0.0)
    if held := held_by_hand(row):
        return Need(guard=guard.name, reasons=(), held=held, age_seconds=age)
    if state.active and state.status != ARMED:
        fence = row.reason.rstrip(".") if row is not None else ""
        reasons.append(f"it is fenced: {fence}")
    if max_age is not None and age is not None and age > max_age:
        reasons.append(f"it is {age / 3600:,.1f} hours old, more than {max_age / 3600:,.1f}")
    try:
        generation = open_active(guard, state)
        keys = generation.approximate_size()  # reads all of it
    except (StoreError, FilterError) as error:
        if str(error) != fence:
            reasons.append(str(error))
        return Need(guard=guard.name, reasons=tuple(reasons), age_seconds=age)
    layout = generation.layout
    if layout.header.key_id != active.key_hashes()[0][0]:
        reasons.append("it was built with an earlier SECRET_KEY")
    if layout.error_rate != guard.error_rate or guard.filter not in ("auto", layout.kind):
        reasons.append(
            f"it is a {layout.kind} filter for an error rate of {layout.error_rate:g}; the guard declares "
            f"{guard.filter!r} and {guard.error_rate:g}"
        )
    sources = Sources(guard)
    summary = sources.summary()
    if unread := sources.split(generation)[1]:
        reasons.append(f"it was built without {', '.join(unread[:5])}{', ...' if len(unread) > 5 else ''}")
    rows = summary.count
    if stale_share(keys, rows) > STALE:
        rows = sources.count()  # the number in the summary may be an estimate
    if stale_share(keys, rows) > STALE:
        reasons.append(f"{stale_share(keys, rows):.0%} of its keys belong to rows that are gone")
    # A full filter is no reason if a rebuild would not make it larger.
    if max(keys, rows) > FULL * layout.capacity and plan_layout(guard, summary).capacity > layout.capacity:
        reasons.append(f"it has or needs {max(keys, rows):,} keys, and its capacity is {layout.capacity:,}")
    return Need(
        guard=guard.name,
        reasons=tuple(reasons),
        rows=rows,
        keys=keys,
        capacity=layout.capacity,
        stale_share=round(stale_share(keys, rows), 4),
        age_seconds=age,
    )


def open_active(guard: Guard, state: State, *, name: str = "", store: Store | None = None) -> Generation:
    """Open the active generation of ``state``, or the one called ``name``, in ``store``, or where requests find it.

    Raises :class:`StoreError` or :class:`FilterError` if it cannot be used.
    """
    active = guard._runtime.active_filter
    own, name = active.store.patient, name or state.active
    store = store or locate_store(state.identity, own) or own
    if not name:
        raise StoreError("there is no filter yet")
    if not state.is_ours or not state.is_in(store.identity):
        raise StoreError(state.describe_location(store))
    try:
        place = guard._meta.place.source(guard._meta.database)
    except Exception as error:  # a router's own, or that of the guard's ``scopes``
        raise StoreError(f"nothing says from which database its rows would be read: {error!r}") from error
    if state.source not in ("", place):
        raise StoreError(
            f"its filter was built from {state.source!r} (database/schema:tables), but rows would be read from "
            f"{place or 'an unknown schema'!r}; check DATABASE_ROUTERS and search_path of this process, or "
            "rebuild_filter if the table or the database was replaced"
        )
    return store.open(guard.name, name, active.find_key_hash, state.identity)


def stale_share(keys: int, rows: int) -> float:
    """Return the share of the keys that no row has; both numbers include the marks of scopes, and are approximate."""
    return max(keys - rows, 0) / keys if keys else 0.0


def growth_baseline(row: GuardState | None) -> dict[str, Any]:
    """Return the fields that keep the count from which growth is computed; ``row`` is as before the publication."""
    if row is None or row.published_at is None:
        return {}
    former = row.former_published_at
    if former is not None and row.published_at - former < _GROWTH_BASE:
        return {}
    return {"former_rows": row.rows, "former_published_at": row.published_at}


def rows_a_day(counts: Sequence[tuple[datetime, int]]) -> float | None:
    """Return the growth in rows a day from the first to the last of ``counts``, ``None`` if that time is too short."""
    if not counts:
        return None
    (since, before), (until, after) = counts[0], counts[-1]
    if until - since < SHORTEST_GROWTH:
        return None
    return (after - before) / ((until - since) / timedelta(days=1))


def days_to_capacity(rows: int, capacity: int, a_day: float | None) -> float | None:
    """Return the days until ``rows`` reach ``capacity`` if they grow by ``a_day``; ``None`` if they do not."""
    if rows >= capacity:
        return 0.0
    return (capacity - rows) / a_day if a_day is not None and a_day > 0 else None
