"""Put values that the database does not have into a guard's negative cache. Nothing here raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections

from ..state.connection import has_begun
from ..verdicts import Verdict
from .keys import OutOfRange, Unkeyable

if TYPE_CHECKING:
    from .guard import Guard


def remember_missing(guard: Guard, value: Any, generation: str, using: str) -> None:
    """Put ``value`` into the negative cache, after a query for it alone found no row in the database ``using``.

    ``generation`` is :attr:`ActiveFilter.answered_last` from before the query. See
    :mod:`bloomguard.state.negative_cache`.
    """
    try:
        key = guard._meta.keys.key(value)
        if _is_exact(guard, value) and guard._meta.place.was_asked(using, key):
            guard._runtime.active_filter.negative_cache.remember(key, generation, using)
    except (Unkeyable, OutOfRange):
        pass
    except Exception as error:
        guard._runtime.log_once(error)


def confirm_missing(guard: Guard, value: Any) -> None:
    """Query the database for ``value`` after a loader found nothing, and put a miss into the negative cache.

    Does not query if the value was queried or added recently or is in the negative cache, nor inside a transaction,
    which may see other rows than other connections do.
    """
    try:
        meta, active = guard._meta, guard._runtime.active_filter
        key, generation = meta.keys.key(value), active.answered_last
        using = meta.database_of(key)
        if not generation or has_begun(connections[using]):
            return
        if guard._runtime.ask(key).verdict is not Verdict.MAYBE or not active.negative_cache.worth_asking(
            key, generation
        ):
            return
        rows = meta.rows().using(using)
        if not rows.filter(**meta.conditions(value)).exists():
            remember_missing(guard, value, generation, rows.db)
    except (Unkeyable, OutOfRange):
        pass
    except Exception as error:
        guard._runtime.log_once(error)


def _is_exact(guard: Guard, value: Any) -> bool:
    """Return whether a miss of ``value`` holds for its key; no integer of more than 64 bits has a key of its own."""
    meta = guard._meta
    if not meta.is_exact:
        return False
    values = [field.to_python(each) for field, each in zip(meta.fields, meta.conditions(value).values())]
    return not any(isinstance(each, int) and abs(each) >> 63 for each in values)
