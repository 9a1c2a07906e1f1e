"""What a writer does that could not prove its add: the guard answers nothing until it is rebuilt.

Every process must know before the row can be seen. So the row commits no earlier than two leases after the fence;
where the fence cannot be committed before it, both are committed together and nobody is told of the commit until then.
"""

from __future__ import annotations

from django.db import DatabaseError, connections, transaction
from django.db.models import F
from django.utils import timezone

from ..exceptions import StoreError
from ..guards import Guard
from ..models import GuardState
from .state import FENCED, LEASE_SECONDS


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
            if changed.update(
                status=FENCED, building="", version=F("version") + 1, fenced_at=timezone.now(), reason=reason[:200]
            ):
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
