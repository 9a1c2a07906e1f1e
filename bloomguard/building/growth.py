"""How fast a guard's rows grow, by what its builds have counted, and when its filter will be full."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from ..models import GuardState

#: Growth over less than this says nothing.
SHORTEST = timedelta(hours=1)
#: A build this long before the last one is what growth is counted from.
_APART = timedelta(days=1)


def kept(row: GuardState | None) -> dict[str, Any]:
    """What the next publication has to keep of ``row``, as it is before, if it is: where growth is counted from."""
    if row is None or row.published_at is None:
        return {}
    former = row.former_published_at
    if former is not None and row.published_at - former < _APART:
        return {}
    return {"former_rows": row.rows, "former_published_at": row.published_at}


def rows_a_day(counts: Sequence[tuple[datetime, int]]) -> float | None:
    """How many rows came a day, from the first to the last of ``counts``; ``None`` where that is too short a time."""
    if not counts:
        return None
    (since, before), (until, after) = counts[0], counts[-1]
    if until - since < SHORTEST:
        return None
    return (after - before) / ((until - since) / timedelta(days=1))


def days_to_capacity(rows: int, capacity: int, a_day: float | None) -> float | None:
    """Days until ``rows`` are ``capacity``; 0 once they are, and ``None`` where they do not grow, or nobody knows."""
    if rows >= capacity:
        return 0.0
    return (capacity - rows) / a_day if a_day is not None and a_day > 0 else None
