"""Adds by Django's ``post_save`` signal, for guards with ``sync = "signals"``.

Guards are found by table: a proxy saves into its model's table, a child of multi-table inheritance into its parents'
too. A row is added whether or not it is alive: one key too many is a harmless false positive, and a row that becomes
alive again has its key already. Deletes are not tracked: the next rebuild drops those keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connections
from django.db.models import Model, QuerySet
from django.db.models.signals import post_save

from ..exceptions import ConfigurationError, StoreError
from ..guards import Guard, registry
from ..guards.keys import OutOfRange, Unkeyable, unwrapped
from ..state.fresh_rows import fresh_rows
from ..state.transactions import is_aborted
from . import fencing
from .rows import hold
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


def _saved(
    sender: type[Model], instance: Model, using: str, update_fields: frozenset[str] | None = None, **kwargs: Any
) -> None:
    failure: DatabaseError | None = None
    for guard in guards_of(sender):
        try:
            confirmed = _add(guard, instance, using, update_fields)
        except DatabaseError as error:
            if is_aborted(connections[using]):
                raise  # nothing of the row is left
            confirmed, failure = False, failure or error
        except Exception:
            confirmed = False
        if not confirmed:
            _fence(guard, using)
    if failure is not None:
        raise failure


def _add(guard: Guard, instance: Model, using: str, update_fields: frozenset[str] | None) -> bool:
    """Add the row's key to the guard's filter; return whether that is confirmed, or not needed."""
    # A save of other columns only may make the row alive again: then its key is the stored one, not the attribute.
    stored = bool(guard.alive) and not _wrote_key(guard, update_fields)
    with fencing.writing(guard, using):
        if fencing.needs_no_add(guard, using):
            return True  # nor is the row read back: between a deploy and its migrations, a column may be missing
        return not is_of_another_version(guard) and _try_add(guard, instance, using, stored=stored)


def _fence(guard: Guard, using: str) -> None:
    try:
        fencing.fence({guard: guard._runtime.active_filter.why_not_added()}, using)
    except (StoreError, ConfigurationError):
        fencing.fence_soon([guard])


def _wrote_key(guard: Guard, update_fields: frozenset[str] | None) -> bool:
    if update_fields is None:
        return True
    return all(field.name in update_fields or field.attname in update_fields for field in guard._meta.fields)


def _holds(instance: Model, fields: Iterable[Any]) -> bool:
    return all(hold(field, [getattr(instance, field.attname)]) for field in fields)


def _try_add(guard: Guard, instance: Model, using: str, *, stored: bool) -> bool:
    # Only on SQLite can no trigger have changed the row, and no column have cut or clipped a value.
    is_trusted = connections[using].vendor == "sqlite"
    if isinstance(instance, guard.model) and not stored and is_trusted and _holds(instance, guard._meta.fields):
        with suppress(Unkeyable, OutOfRange):
            return guard._runtime.add(guard._meta.value_of(instance), using)
    if isinstance(instance, guard.model):
        if not _holds(instance, guard.model._meta.pk_fields):
            return False  # the row may have another primary key
        found = _add_stored(guard, {"pk": getattr(instance, guard.model._meta.pk.attname)}, using)
        return found is not None and bool(found or guard.alive)  # else the row has another primary key
    model = type(instance)
    written = _tables(model) & guard._meta.tables
    for owner in (guard.model, *guard.model._meta.all_parents):
        if owner._meta.db_table in written:
            fields = same_fields(owner._meta.pk_fields, model._meta.concrete_fields)
            if fields is None or not _holds(instance, fields):
                return False  # a second model of the table, or a value that is stored otherwise: which row is unknown
            primary_key = unwrapped(tuple(getattr(instance, field.attname) for field in fields))
            found = _add_stored(guard, {parent_path(guard.model, owner): primary_key}, using)
            if found is None or (not found and owner is guard.model):
                return False
    return True


def _add_stored(guard: Guard, where: dict[str, Any], using: str) -> int | None:
    """Add the keys of the rows ``where``, as they are stored; return their number, ``None`` if one was not added."""
    rows = list(fresh_rows(QuerySet(guard.model, using=using).filter(**where).values_list(*guard._meta.attnames)))
    for values in rows:
        # NULL, or a value that no request converts to, cannot be looked up.
        with suppress(Unkeyable, OutOfRange):
            if not guard._runtime.add(unwrapped(values), using):
                return None
    return len(rows)


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
