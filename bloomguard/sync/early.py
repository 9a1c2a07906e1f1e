"""Writes of other apps' ``ready()``, before all guards are known: they fence the guards that come to be known later."""

from __future__ import annotations

import logging
import warnings

from django.db import DatabaseError, connections

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard, registry
from . import fencing
from .consequences import written
from .effects import Effect

logger = logging.getLogger("bloomguard")

#: What was written, in which database, and the guards that were known then.
_notes: list[tuple[str, frozenset[Effect], frozenset[Guard]]] = []
is_early = False


def begin() -> None:
    """Take note of what is written from now on, until :func:`complete`."""
    global is_early
    is_early = True


def complete() -> None:
    """All guards that an app's ``guards.py`` declares are known: fence those whose tables were written before."""
    global is_early
    is_early = False
    if _notes and _fence not in registry.listeners:
        registry.listeners.append(_fence)  # for a guard that is declared elsewhere, and later
    _fence()


def note(effects: frozenset[Effect], alias: str) -> None:
    """Take note of a statement with these effects."""
    made = (alias, effects, frozenset(registry))
    if effects and made not in _notes:
        _notes.append(made)


def _fence() -> None:
    for alias, effects, known in list(_notes):
        connection = connections[alias]
        new = {guard: cause for guard, cause in written(effects, connection).items() if guard not in known}
        for guard, cause in new.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # Django's, of a query while apps are made ready
                    fencing.fence(guard, alias, f"{cause.table} was written before the guard was known")
            except (StoreError, ConfigurationError, DatabaseError) as error:
                logger.critical(
                    "bloomguard could not fence %s, written before it was known; run rebuild_filter: %s",
                    guard.name,
                    type(error).__name__,
                )
    _notes[:] = [(alias, effects, known | set(registry)) for alias, effects, known in _notes]
