"""What the project itself does to state rows: it loads them from a dump, deletes or changes them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connections
from django.db.models.signals import pre_save
from django.db.transaction import TransactionManagementError

from ..models import GuardState, deleting
from ..state import table as states
from ..state.row import held_by_hand
from ..state.table import EXPIRY_SECONDS
from ..state.transactions import has_begun, lock_file
from .fencing import PendingFence, has_locked_row
from .observer import TransactionObserver

_UID = "bloomguard.writes.state_rows"


def connect() -> None:
    """Follow saves and deletes of state rows."""
    pre_save.connect(_loaded, sender=GuardState, dispatch_uid=_UID)
    deleting.connect(_deleting, sender=GuardState, dispatch_uid=_UID)


def _loaded(instance: GuardState, using: str, raw: bool = False, **kwargs: Any) -> None:
    """Fence a state row that is loaded from a dump: rows may have been written, or the guard fenced, since the dump.

    Its version becomes one more than the highest version known, so that no process takes it for a row it has read. What
    a user has fenced stays so, until that user ends it.
    """
    if raw:
        known = GuardState.objects.using(using).filter(pk=instance.pk).first()
        held = held_by_hand(known) or held_by_hand(instance)
        instance.version = max(known.version if known else 0, instance.version) + 1
        vars(instance).update(states.table.fenced_values(held or "its state row was loaded from a dump"))


def _deleting(sender: type[GuardState], names: Iterable[str], using: str, **kwargs: Any) -> None:
    """Fence the state rows that are about to be deleted on ``using``, and wait until every process knows.

    Without a row writers add nothing and wait for nothing, while others may still answer by it. Raises
    :class:`DatabaseError`, and so keeps the rows, if the open transaction keeps others from changing one.
    """
    table = states.table
    if not table.holds(using):
        return
    in_use = [state for state in map(table.current, names) if state.generations]
    for state in in_use:
        if not state.takes_adds:
            continue  # fenced already
        if has_begun(connections[using]) and (table.is_locked_by(using) or has_locked_row(table, state.name, using)):
            raise TransactionManagementError(
                f"the state row of {state.name} cannot be deleted inside this transaction, as its filter is in use: "
                "delete it outside, or run manage.py switch_guards fence before"
            )
        table.fence(state.name, "its state row was deleted")
    if in_use:
        table.sleep(EXPIRY_SECONDS)


def before_change(using: str) -> None:
    """Record that the project's transaction is about to change state rows; on SQLite, also the committed ones."""
    table, connection = states.table, connections[using]
    if connection.vendor == "mysql" and table.connection.alias == using and has_begun(connection):
        TransactionObserver.ensure(connection).has_changed_rows = True
    if table.is_locked_by(using) and has_begun(connection):
        with suppress(DatabaseError):  # the project's statement meets the same error, or makes the table
            lock_file(connection, GuardState._meta.db_table)
        known = TransactionObserver.ensure(connection).pending_fences
        for name, state in table.visible_to(using).items():
            known.setdefault(name, PendingFence(table, name, state, "the project has changed its state row"))
