"""What a writer does that could not prove its add: the guard answers nothing until it is rebuilt.

Every process must know before the row can be seen. So the row commits no earlier than two leases after the fence;
where the fence cannot be committed before it, both are committed together and nobody is told of the commit until then.
"""

from __future__ import annotations

from django.db import DatabaseError, connections, transaction
from django.db.models import F

from ..exceptions import StoreError
from ..guards import Guard
from ..models import GuardState
from .state import LEASE_SECONDS, State


def fence(guard: Guard, using: str, reason: str) -> None:
    """Fence ``guard`` for a write in the open transaction of ``using``.

    Raises :class:`StoreError` if that fails: then the write must not be committed.
    """
    table = guard.live.table
    settle = 2 * LEASE_SECONDS
    try:
        if connections[using].vendor == "sqlite" and table.connection.alias == using:
            # One writer at a time, and that is us: only this transaction can change the row.
            changed = (
                GuardState.objects.using(using).filter(name=guard.name).exclude(active="", standby="", building="")
            )
            if changed.update(version=F("version") + 1, **table.fencing(reason)):
                table.say_fenced(guard.name, reason)
                transaction.on_commit(lambda: table.sleep(settle), using=using)
        else:
            table.fence(guard.name, reason)
            table.sleep(settle)
    except DatabaseError as error:
        raise StoreError(
            f"{guard.name}: a row could not be added to its filter, nor could the filter be taken out of use; the "
            "write is refused, for the row might be answered 404"
        ) from error


def part_with_standby(guard: Guard, using: str, seen: State) -> bool:
    """Take the kept standby out of the row, so that an add which did not reach it may count; ``False`` if that fails.

    Whoever wants to go back to it compares and sets the row's version: either our add is known to it, or we hear of it.
    """
    table = guard.live.table
    if connections[using].vendor == "sqlite" and table.connection.alias == using:
        return False  # it could be done by this transaction alone, and undone with it after others have relied on it
    try:
        return table.swap(seen, standby="", standby_until=None) is not None
    except DatabaseError:
        return False
