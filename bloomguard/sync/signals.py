"""Keeps filters in step with ``save()`` alone, by Django's signals: for guards with ``sync = "signals"``.

Dispatch is by table: a proxy saves into its model's table, a child of multi-table inheritance into its parents' too.
A row is added whether it is alive for the public or not: one too many is a harmless false positive, and a row that
comes back is in already. ``post_delete`` waits for filters that can discard: a Bloom filter forgets at the next build.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import DatabaseError
from django.db.models import Model
from django.db.models.signals import post_save

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..keys import OutOfRange, Unkeyable

logger = logging.getLogger("bloomguard")

_guards_of: dict[type[Model], tuple[Guard, ...]] = {}
_version = -1


def guards_of(model: type[Model]) -> tuple[Guard, ...]:
    """The guards of the tables that saving a ``model`` writes to."""
    global _version
    if _version != registry.version:
        _guards_of.clear()
        _version = registry.version
    found = _guards_of.get(model)
    if found is None:
        tables = {model._meta.db_table, *(parent._meta.db_table for parent in model._meta.get_parent_list())}
        found = tuple(guard for guard in registry if guard.sync == "signals" and guard.model._meta.db_table in tables)
        _guards_of[model] = found
    return found


def _saved(sender: type[Model], instance: Model, using: str, **kwargs: Any) -> None:
    for guard in guards_of(sender):  # those with `sync = "signals"`
        _add(guard, instance, using)


def _add(guard: Guard, instance: Model, using: str) -> None:
    """Add the row's key to the guard's filter, or fence the guard if that cannot be proved."""
    try:
        try:
            proved = guard.add(guard.value_of(instance))
        except (Unkeyable, OutOfRange):
            # The attribute holds an expression or what the field converts on the way: the row itself knows.
            values = guard.model._base_manager.using(using).filter(pk=instance.pk).values_list(*guard.attnames).first()
            if values is None or None in values:
                return  # no row, or no value: nothing that a request could look up
            proved = guard.add(values[0] if len(values) == 1 else values)
        if not proved:
            guard.live.table.fence(guard.name, "a saved row could not be added to its filter")
    except (DatabaseError, ConfigurationError, Unkeyable, OutOfRange) as error:
        logger.critical(
            "bloomguard could neither add a saved row to the filter of %s nor fence it; run rebuild_filter: %s",
            guard.name,
            type(error).__name__,
        )


def connect() -> None:
    """Listen to every ``save()`` of the project."""
    post_save.connect(_saved, dispatch_uid="bloomguard.sync.signals")
