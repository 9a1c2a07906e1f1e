"""Adds by Django's ``post_save`` signal, for guards with ``sync = "signals"``.

Guards are found by table: a proxy saves into its model's table, a child of multi-table inheritance into its parents'
too. A row is added whether or not it is alive: one key too many is a harmless false positive, and a row that becomes
alive again has its key already. Deletes are not tracked: the next rebuild drops those keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connections
from django.db.models import Model
from django.db.models.signals import post_save

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard, registry
from ..guards.keys import OutOfRange, Unkeyable, unwrapped
from ..state.transactions import is_aborted
from . import fencing
from .rows import WrittenRows, hold, stored_rows
from .tables import parent_path, same_fields
from .unknown_guards import is_of_another_version

_UID = "bloomguard.writes.signals"


def guards_of(model: type[Model]) -> tuple[Guard, ...]:
    """Return the guards of the tables that ``save()`` of a ``model`` writes to."""
    saved = registry.plans.saved
    found = saved.get(model)
    if found is None:
        tables = _tables(model)
        found = tuple(guard for guard in registry if guard.sync == "signals" and tables & guard._meta.tables)
        saved[model] = found
    return found


def _tables(model: type[Model]) -> set[str]:
    return {model._meta.db_table, *(parent._meta.db_table for parent in model._meta.get_parent_list())}


def _saved(sender: type[Model], instance: Model, using: str, **kwargs: Any) -> None:
    failure: DatabaseError | None = None
    left: list[Guard] = []
    for guard in guards_of(sender):
        try:
            confirmed = _add(guard, instance, using)
        except DatabaseError as error:
            if is_aborted(connections[using]):
                raise  # nothing of the row is left
            confirmed, failure = False, failure or error
        except Exception:
            confirmed = False
        if not confirmed:
            left.append(guard)
    if left:
        _fence(left, using)
    if failure is not None:
        raise failure


def _add(guard: Guard, instance: Model, using: str) -> bool:
    """Add the row's key to the guard's filter; return whether that is confirmed, or not needed."""
    with fencing.writing(guard, using):
        if fencing.needs_no_add(guard, using):
            return True  # nor is the row read back: between a deploy and its migrations, a column may be missing
        return not is_of_another_version(guard) and _add_stored(guard, instance, using)


def _fence(guards: Sequence[Guard], using: str) -> None:
    """Fence them and wait once, or fence later those for which that fails."""
    reasons: dict[Guard, str] = {}
    for guard in guards:
        try:
            reasons[guard] = guard._runtime.active_filter.why_not_added()
        except ConfigurationError:
            fencing.fence_soon([guard])
    try:
        fencing.fence(reasons, using)
    except (StoreError, ConfigurationError):
        fencing.fence_soon(reasons)


def _add_stored(guard: Guard, instance: Model, using: str) -> bool:
    """Add the keys of the guard's rows that the save wrote, or wrote a part of, as they are stored.

    The instance may hold other values: of columns that were not saved, or that a trigger or the column has changed.
    """
    model = type(instance)
    written = _tables(model) & guard._meta.tables
    for owner in (guard.model, *guard.model._meta.all_parents):
        if owner._meta.db_table not in written:
            continue
        fields = same_fields(owner._meta.pk_fields, model._meta.concrete_fields)
        if fields is None or not all(hold(field, [getattr(instance, field.attname)]) for field in fields):
            return False  # a second model of the table, or a value that is stored otherwise: which row is unknown
        primary_key = tuple(getattr(instance, field.attname) for field in fields)
        written_row = WrittenRows([primary_key], parent_path(guard.model, owner), stored=False)
        found = stored_rows(guard, using, written_row)
        if not found and owner is guard.model:
            return False  # the row has another primary key
        for values in found:
            # NULL, or a value that no request converts to, cannot be looked up.
            with suppress(Unkeyable, OutOfRange):
                if not guard._runtime.add(unwrapped(values), using):
                    return False
    return True


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
