"""What a rebuild changes in the state row: when it announces a generation, and when it publishes it."""

from __future__ import annotations

import socket
from typing import Any

from django.utils import timezone

from ..filters.layout import Layout
from ..guards import Guard
from ..models import GuardState
from ..state.row import ARMED, State
from ..state.table import StateTable
from .locks import builder_id
from .plan import growth_baseline


def announced(guard: Guard, generation: str) -> dict[str, Any]:
    """Return the changes by which all writers add to ``generation``, which this process builds."""
    return {"building": generation, "builder": builder_id(), "builder_seen_at": timezone.now(), **_built_for(guard)}


def is_elsewhere(guard: Guard, row: State, identity: str, source: str) -> bool:
    """Return whether the generations of ``row`` are in another store than ``identity``, or of other rows or keys.

    One row cannot name both. ``source`` is where a rebuild reads the rows.
    """
    is_of_others = any(getattr(row, name) not in ("", value) for name, value in _built_for(guard).items())
    return is_of_others or not row.is_in(identity) or not row.is_ours or row.source != source


def moved(identity: str, source: str, reason: str) -> dict[str, Any]:
    """Return the further changes by which the row names another place, and fences what is in the former one.

    ``reason`` is empty if the guard is fenced already: then that reason stays, which may be a user's.
    """
    place = {"active": "", "identity": identity, "host": socket.gethostname(), "source": source}
    changes = {**StateTable.fenced_values(reason), **place}
    if not reason:
        del changes["reason"]
    return changes


def published(announced: State, row: GuardState | None, layout: Layout, rows: int, measured: float) -> dict[str, Any]:
    """Return the changes that publish the generation of ``announced``; ``row`` is the same row with all columns."""
    return {
        "active": announced.building,
        "standby": announced.active if announced.status == ARMED else "",  # a fenced one lacks rows
        "standby_until": None,
        "building": "",
        "builder": "",
        "status": ARMED,
        "rows": rows,
        "published_at": timezone.now(),
        "kind": layout.kind,
        "capacity": layout.capacity,
        "bytes": layout.total_bytes,
        "error_rate_measured": measured,
        "reason": "",
        **growth_baseline(row),
    }


def _built_for(guard: Guard) -> dict[str, str]:
    return {"tables": "\n".join(sorted(guard._meta.tables)), "definition": guard._meta.definition_hash}
