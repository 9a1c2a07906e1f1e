"""Put values that the database does not have into a guard's negative cache. Nothing here raises.

That a query of the project finds nothing proves nothing: an ``execute_wrapper``, a patched cursor or compiler may add a
condition, such as that of a request's tenant, and a cache of results may give an old one. So a statement of our own
asks again, past all of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import EmptyResultSet
from django.db import connections

from ..guards.fields import is_djangos_select
from ..guards.scopes import DATABASE
from ..state.transactions import has_begun
from ..state.verdicts import Verdict

if TYPE_CHECKING:
    from ..guards import Guard

#: PostgreSQL: row-level security, or a view in the table's place, may hide rows from one user that another one sees.
_HIDES = (
    "SELECT 1 FROM pg_class WHERE oid = ANY (SELECT each::regclass FROM unnest(%s::text[]) AS each) "
    "AND (relrowsecurity OR relkind NOT IN ('r', 'p'))"
)


def remember_missing(guard: Guard, value: Any, generation: str, using: str) -> bool:
    """Put ``value`` into the negative cache, if ``using`` certainly has no row of it: a query has found none there.

    Nothing else writes to the negative cache, so all conditions are checked here, but that ``value`` has a key: the
    filter gave MAYBE for it. ``generation`` is :attr:`ActiveFilter.answered_last` from before the query. See
    :mod:`bloomguard.state.negative_cache`. Return whether the row does not exist. A value that shares its key with
    others is not cached.
    """
    try:
        meta, active = guard._meta, guard._runtime.active_filter
        key, cache = meta.keys.key(value), active.negative_cache
        # Not in a transaction, whose snapshot may be old; not on a replica, or on another table of the same name.
        connection = connections[using]
        if (guard.scope != DATABASE and using != meta.place.home) or has_begun(connection):
            return False
        # No connection is opened for this: without one, a cache of results has answered, and will again.
        if connection.connection is None or not (active.table.holds(using) and cache.is_in_use(generation)):
            return True  # as far as the project's query says
        against = _against(guard, value, using)
        if against is None or not cache.is_proved(generation, using, *against) or not meta.place.was_asked(using, key):
            return False
        if meta.is_exact(value):
            cache.remember(key, generation)
        return True
    except EmptyResultSet:  # no column can hold the value, so Django sent no query
        pass
    except Exception as error:
        guard._runtime.log_once(error)
    return False


def _against(guard: Guard, value: Any, using: str) -> tuple[str, Any] | None:
    """Return a query that gives a row if ``value`` may have one, and its parameters.

    ``None`` if other code than Django's makes it.
    """
    rows = guard._meta.rows().using(using).order_by().filter(**guard._meta.conditions(value)).values_list("pk")[:1]
    compiler, connection = rows.query.get_compiler(using), connections[using]
    if not is_djangos_select(compiler):
        return None
    sql, parameters = compiler.as_sql()
    if connection.vendor != "postgresql":
        return sql, parameters
    names = [connection.ops.quote_name(table) for table in sorted(guard._meta.tables)]
    return f"SELECT 1 WHERE EXISTS ({sql}) OR EXISTS ({_HIDES})", (*parameters, names)


def confirm_missing(guard: Guard, value: Any) -> None:
    """Query the database for ``value`` after a loader found nothing, and put a miss into the negative cache.

    Does not query if the value cannot be put there, was queried or added recently, or inside a transaction.
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
    except Exception as error:
        guard._runtime.log_once(error)
