"""Adds by Django's ``post_save`` signal, for guards with ``sync = "signals"``.

A row is added whether or not it is alive: one key too many is a harmless false positive, and a row that becomes alive
again has its key already. Deletes are not tracked: the next rebuild drops those keys.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.models import Model
from django.db.models.signals import post_save

from ..exceptions import ConfigurationError, StoreError
from ..guards import registry
from . import fencing
from .rows import WrittenRows, stores_unchanged
from .statements import add_all
from .tables import TrackedTable, guard_of, track
from .unknown_guards import is_of_another_version

_UID = "bloomguard.writes.signals"


def tables_of(model: type[Model]) -> tuple[TrackedTable, ...]:
    """Return the tables that ``save()`` of a ``model`` writes to, for each guard that follows signals."""
    saved = registry.plans.saved
    found = saved.get(model)
    if found is None:
        written = {model._meta.db_table, *(parent._meta.db_table for parent in model._meta.get_parent_list())}
        guards = [guard for guard in registry if guard.sync == "signals"]
        found = tuple(track(guard, model, table) for guard in guards for table in written & guard._meta.tables)
        saved[model] = found
    return found


def _saved(sender: type[Model], instance: Model, using: str, **kwargs: Any) -> None:
    tables = tables_of(sender)
    if not tables:
        return
    try:
        add_all(tables, using, partial(_written_to, instance))
    except (StoreError, ConfigurationError):  # the row may be committed
        fencing.fence_soon(map(guard_of, tables))


def _written_to(instance: Model, tracked: TrackedTable) -> WrittenRows | None:
    """Return the primary key by which the row is read back; ``None`` if it is unknown, or of no use.

    The instance may hold other values: of columns that were not saved, or that a trigger or the column has changed.
    """
    fields = tracked.primary_key
    if fields is None or is_of_another_version(tracked.guard):
        return None
    primary_key = tuple(getattr(instance, field.attname) for field in fields)
    is_held = all(stores_unchanged(field, [value]) for field, value in zip(fields, primary_key))
    return WrittenRows([primary_key], tracked.link or "pk", stored=False) if is_held else None


def connect() -> None:
    """Receive ``post_save`` of every model while some guard needs it: that costs each ``save()`` 2 us."""
    if _listen not in registry.listeners:
        registry.listeners.append(_listen)
    _listen()


def _listen() -> None:
    if any(guard.sync == "signals" for guard in registry):
        post_save.connect(_saved, dispatch_uid=_UID)
    else:
        post_save.disconnect(dispatch_uid=_UID)
