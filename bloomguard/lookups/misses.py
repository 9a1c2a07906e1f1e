"""Put values that the database does not have into a guard's negative cache. Nothing here raises."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from django.core.exceptions import EmptyResultSet
from django.db import connections

from ..guards.fields import is_djangos_select
from ..guards.keys import OutOfRange, Unkeyable
from ..guards.scopes import DATABASE
from ..process import seconds
from ..state.connection import fetch_uncounted
from ..state.transactions import has_begun
from ..verdicts import Verdict

if TYPE_CHECKING:
    from ..guards import Guard

_HIDING_SECONDS = 60.0

#: Row-level security, or a view in the table's place, may hide rows from one user that another one sees.
_HIDES = (
    "SELECT relrowsecurity OR relkind NOT IN ('r', 'p') FROM pg_class "
    "WHERE oid = ANY (SELECT each::regclass FROM unnest(%s::text[]) AS each)"
)


def remember_missing(guard: Guard, value: Any, generation: str, using: str, *, is_proved: bool = False) -> bool:
    """Put ``value`` into the negative cache, if ``using`` certainly has no row of it: a query has found none there.

    Nothing else writes to the negative cache, so all conditions are checked here. ``generation`` is
    :attr:`ActiveFilter.answered_last` from before the query. See :mod:`bloomguard.state.negative_cache`. ``is_proved``:
    nothing can have changed that query, so :func:`_is_missing` sends none. Return whether the row does not exist; even
    then, a value that shares its key with others is not cached.
    """
    try:
        key = guard._meta.keys.key(value)
        if not _sees_every_row(guard, key, using) or not (is_proved or _is_missing(guard, value, using)):
            return False
        if guard._meta.is_exact(value):
            is_pooled = connections[using].vendor == "postgresql"  # it may be: each statement to another server
            rows = _rows(guard, value, using) if is_pooled else None
            if rows is not None or not is_pooled:
                guard._runtime.active_filter.negative_cache.remember(key, generation, using, rows)
        return True
    except (Unkeyable, OutOfRange, EmptyResultSet):
        pass
    except Exception as error:
        guard._runtime.log_once(error)
    return False


def _is_missing(guard: Guard, value: Any, using: str) -> bool:
    """Return whether the table has no row of ``value``, by a statement of our own, past what may change the project's.

    An ``execute_wrapper``, a patched cursor or compiler may add a condition, such as that of a request's tenant.
    """
    connection, rows = connections[using], _rows(guard, value, using)
    if rows is None:
        return False
    with connection.wrap_database_errors, closing(connection.create_cursor()) as cursor:
        cursor.execute(*rows)
        return cursor.fetchone() is None


def _rows(guard: Guard, value: Any, using: str) -> tuple[str, Any] | None:
    """Return the query for the rows of ``value``, with its parameters; ``None`` if Django alone does not make it."""
    rows = guard._meta.rows().using(using).order_by().filter(**guard._meta.conditions(value)).values_list("pk")[:1]
    compiler = rows.query.get_compiler(using)
    return compiler.as_sql() if is_djangos_select(compiler) else None


def confirm_missing(guard: Guard, value: Any) -> None:
    """Query the database for ``value`` after a loader found nothing, and put a miss into the negative cache.

    Does not query if the value cannot be put there, or was queried or added recently, nor inside a transaction, which
    may see other rows than other connections do.
    """
    try:
        meta, active = guard._meta, guard._runtime.active_filter
        key, generation = meta.keys.key(value), active.answered_last
        using = meta.database_of(key)
        if not generation or has_begun(connections[using]):
            return
        is_maybe = guard._runtime.ask(key).verdict is Verdict.MAYBE
        if is_maybe and meta.is_exact(value) and active.negative_cache.is_worth_asking(key, generation):
            connections[using].ensure_connection()
            remember_missing(guard, value, generation, using)
    except (Unkeyable, OutOfRange):
        pass
    except Exception as error:
        guard._runtime.log_once(error)


def _sees_every_row(guard: Guard, key: bytes, using: str) -> bool:
    """Return whether a query by ``using`` finds the row with ``key``, whoever has written it.

    Not in a transaction, whose snapshot may be old; not on a replica, or on another table of the same name; not if the
    database may hide rows from the user.
    """
    connection = connections[using]
    return (
        (guard.scope == DATABASE or using == guard._meta.place.home)
        and not has_begun(connection)
        and not _hides_rows(connection, guard)
        and guard._meta.place.was_asked(using, key)
    )


#: (database, schema of a tenant, guard) -> whether PostgreSQL may hide rows, and until when this is cached.
_hiding: dict[tuple[str, str, str], tuple[bool, float]] = {}


def _hides_rows(connection: Any, guard: Guard) -> bool:
    """Return whether PostgreSQL may hide rows of the guard's tables from this user; queried once a minute."""
    if connection.vendor != "postgresql":
        return False
    now = seconds()
    place = connection.alias, getattr(connection, "schema_name", ""), guard.name
    found, until = _hiding.get(place, (True, 0.0))
    if until <= now:
        names = [connection.ops.quote_name(table) for table in sorted(guard._meta.tables)]
        with connection.wrap_database_errors:
            rows = fetch_uncounted(connection, _HIDES, [names])
        found = len(rows) != len(names) or any(row[0] for row in rows)
        _hiding[place] = found, now + _HIDING_SECONDS
    return found
