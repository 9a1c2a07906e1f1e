"""Writes in other apps' ``ready()``: they fence the guards of their tables that are declared later."""

from __future__ import annotations

import warnings

from django.db import DatabaseError, connections

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard, registry
from . import fencing, unknown_guards
from .consequences import affected_guards
from .sql.statement import Effect

#: Database alias, effects of the statement, and the guards that were registered then.
_writes: list[tuple[str, frozenset[Effect], frozenset[Guard]]] = []


def complete() -> None:
    """Fence the guards whose tables were written before; call it when all ``guards.py`` are imported."""
    unknown_guards.begin()
    if _writes and _fence not in registry.listeners:
        registry.listeners.append(_fence)  # for guards that are declared elsewhere, later
    _fence()


def record_write(effects: frozenset[Effect], alias: str) -> None:
    """Record a statement with these effects, sent before :func:`complete`."""
    write = (alias, effects, frozenset(registry))
    if effects and write not in _writes:
        _writes.append(write)


def _fence() -> None:
    if not _writes:
        return
    reasons: dict[str, dict[Guard, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Django warns of queries in ready()
        unknown_guards.read_once()
        for alias, effects, known in list(_writes):
            for guard, cause in affected_guards(effects, connections[alias]).items():
                if guard not in known:
                    reason = f"{cause.table} was written before the guard was registered"
                    reasons.setdefault(alias, {})[guard] = reason
        for alias, new in reasons.items():  # waits once for all guards
            try:
                fencing.fence(new, alias)
            except (StoreError, ConfigurationError, DatabaseError):
                fencing.fence_soon(new)
    _writes[:] = [(alias, effects, known | set(registry)) for alias, effects, known in _writes]
