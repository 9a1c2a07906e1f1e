"""Answer a SELECT for one row without sending it, where a guard knows that there is no such row.

``SQLCompiler.execute_sql`` is wrapped, through which every query of the ORM goes: ``get``, ``first``, ``exists``,
``get_object_or_404``, generic views, REST framework, the admin. The result is empty, as for Django's own
``EmptyResultSet``, and the project's code goes on: its permissions, its redirects, its own 404. A query of a model
without a guard costs a context variable and a look-up in a dictionary.
"""

from __future__ import annotations

import time
from asyncio import _get_running_loop
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import router
from django.db.models import Model, QuerySet
from django.db.models.fields.related_descriptors import ForwardManyToOneDescriptor
from django.db.models.sql import Query
from django.db.models.sql import compiler as compilers
from django.db.models.sql.constants import GET_ITERATOR_CHUNK_SIZE, MULTI, SINGLE

from ..counting.counts import FALSE_POSITIVE
from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..log_once import LogOnce
from ..sync import adding, fencing
from ..sync.connection import has_own_transaction, is_aborted
from ..verdicts import MAYBE, OUT_OF_RANGE, SHADOW, Decision, Verdict
from . import shadow
from .query import NO_KEY, RowLookup
from .scope import Scope, scopes, unguarded

Execute = Callable[..., Any]

_log = LogOnce()

_ROW_SECURITY_SECONDS = 60.0

#: The lookups of each model that was queried so far. Made anew, in one piece, when the registry changes.
_lookups: dict[type[Model], tuple[RowLookup, ...]] = {}


_LEFT_ALONE: tuple[tuple[Any, str], ...] = (
    (ForwardManyToOneDescriptor, "get_object"),
    (Model, "refresh_from_db"),
    (Model, "save_base"),
    (Model, "delete"),
    (QuerySet, "delete"),
    (QuerySet, "get_or_create"),
    (QuerySet, "update_or_create"),
)


def connect() -> None:
    """Wrap the compiler, and leave alone what Django fetches for a row that it has; done once, for all databases."""
    select: Any = compilers.SQLCompiler
    if not hasattr(select.execute_sql, "of_bloomguard"):  # another package's wrapper may be there
        select.execute_sql = _selecting(select.execute_sql)
        select.execute_sql.of_bloomguard = True
        # A row in hand is not asked for: neither what a foreign key points to, nor the rest of its own columns. And
        # what a method writes is decided by the database alone.
        for owner, name in _LEFT_ALONE:
            setattr(owner, name, unguarded(getattr(owner, name)))
        registry.listeners.append(_forget)


def _forget() -> None:
    global _lookups
    _lookups = {}


def lookups_of(model: type[Model]) -> tuple[RowLookup, ...]:
    """The guards that queries of ``model`` ask, and how; one look-up in a dictionary after the first time."""
    known = _lookups
    found = known.get(model)
    if found is None:
        found = known[model] = tuple(RowLookup(guard, model) for guard in registry if _is_asked(guard, model))
    return found


def _is_asked(guard: Guard, model: type[Model]) -> bool:
    # A guard that follows signals alone misses rows that the ORM writes: its routes are the project's own choice.
    if not guard.lookups or guard.sync != "statements":
        return False
    try:
        if guard.keys.own_field and type(guard).normalize is Guard.normalize:
            return False  # what a query compares is not what a row holds: W002
    except ConfigurationError:  # a system check says why
        return False
    owner = guard.model._meta.concrete_model or guard.model
    return issubclass(model._meta.concrete_model or model, owner)


def _selecting(execute: Execute) -> Execute:
    sees_database = not hasattr(execute, "__wrapped__")  # a cache in between may give what was so some time ago

    @wraps(execute)
    def execute_sql(
        self: Any,
        result_type: str = MULTI,
        chunked_fetch: bool = False,
        chunk_size: int = GET_ITERATOR_CHUNK_SIZE,
    ) -> Any:
        scope = scopes.get()
        if scope is None or scope.is_over:
            return execute(self, result_type, chunked_fetch, chunk_size)
        model = self.query.model
        lookups = _lookups.get(model)
        if lookups is None:
            lookups = lookups_of(model) if model is not None else ()  # a constraint's query is of no model
        if not lookups or type(self.query) is not Query or result_type not in (MULTI, SINGLE):
            return execute(self, result_type, chunked_fetch, chunk_size)
        asked = last_check = None
        try:
            asked = _ask(scope, self, lookups)
            if asked is not None:
                last_check = asked[0].guard.live.last_check  # before the query
        except Exception as error:
            _log.error(error, "bloomguard sends a query that it could have answered because of an error of its own")
        if asked is None:
            return execute(self, result_type, chunked_fetch, chunk_size)
        lookup, value, decision = asked
        if decision.verdict is Verdict.ABSENT:
            scope.spare(lookup.guard)
            return _nothing(self, lookup, result_type)
        result = execute(self, result_type, chunked_fetch, chunk_size)
        if not chunked_fetch:
            if decision is SHADOW:
                _compare(scope, lookup.guard, value, found=bool(result))
            elif decision is MAYBE and not result and sees_database and last_check is not None:
                _learn(scope, self, lookup, value, last_check[0])
        return result

    return execute_sql


def _ask(scope: Scope, compiler: Any, lookups: tuple[RowLookup, ...]) -> tuple[RowLookup, Any, Decision] | None:
    """The lookup that ``compiler``'s query is, with what its guard says; an absence comes first."""
    query = compiler.query
    asked = None
    request = scope.request
    for lookup in lookups:
        guard = lookup.guard
        if request is not None and request.method not in guard.methods:
            continue
        value = lookup.value(query)
        # On an event loop Django is about to refuse the query: it must not look as if it worked for absent rows.
        if value is NO_KEY or _get_running_loop() is not None:
            continue
        if compiler.connection.in_atomic_block and not _is_current(guard, compiler):
            continue  # whatever it said, it would not count
        decision = scope.decide(guard, value)
        if decision is MAYBE:
            asked = asked or (lookup, value, decision)
        elif decision is OUT_OF_RANGE or _is_beyond(value):
            continue  # Django sends no query either, or the database says that there is no such number
        elif decision.verdict is not Verdict.ABSENT and decision is not SHADOW:
            continue  # it has nothing to say, and another guard of the table may
        elif lookup.is_alive(query) and _is_current(guard, compiler) and scope.applies(guard):
            if decision is not SHADOW:
                return lookup, value, decision
            asked = asked or (lookup, value, decision)
    return asked


def _is_beyond(value: Any) -> bool:
    """Whether an integer, or one of several fields' values, is larger than any column holds."""
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(each, int) and each >> 63 > 0 for each in values)


def _is_current(guard: Guard, compiler: Any) -> bool:
    """Whether the query would see what the filter has: the guard's database, and no transaction that knows more."""
    connection, using = compiler.connection, compiler.using
    if using != guard.database and using != router.db_for_read(guard.model):
        return False  # the database that the router reads from is a copy of the guard's
    if connection.needs_rollback or connection.closed_in_transaction:
        return False  # Django is about to say so
    if not connection.in_atomic_block:
        return not has_own_transaction(connection)
    # A transaction may see rows that are deleted by now, which a guard that discards has forgotten; and rows of its
    # own that raw SQL wrote, which no filter has.
    if guard.discards or fencing.is_pending(guard.name, using) or adding.is_open(guard, using):
        return False
    return not is_aborted(connection)


def _nothing(compiler: Any, lookup: RowLookup, result_type: str) -> Any:
    """What ``execute_sql`` gives for ``EmptyResultSet``; raises what Django says of a query that cannot be compiled."""
    query = compiler.query
    if not lookup.is_pure(query) or query.annotations or query.distinct_fields:
        with suppress(EmptyResultSet):
            compiler.as_sql()
    elif result_type == MULTI:
        compiler.setup_query()  # whoever makes objects of the rows reads what the rows would be made of
    return iter(()) if result_type == MULTI else None


# A query that was sent although a guard said something of it shows whether that was right. Neither of these raises.


def _compare(scope: Scope, guard: Guard, value: Any, *, found: bool) -> None:
    """``guard``, in shadow mode, would not have sent the query."""
    try:
        shadow.compare_rows(scope, guard, value, found=found)
    except Exception as error:
        _log.error(error, "bloomguard compares nothing with a query because of an error of its own")


def _learn(scope: Scope, compiler: Any, lookup: RowLookup, value: Any, generation: str) -> None:
    """``generation`` said MAYBE, and the query has found no row."""
    guard = lookup.guard
    try:
        if _is_proof(compiler, lookup):
            guard.tallies[FALSE_POSITIVE]()
            guard.remember_missing(value, generation, compiler.using)
            scope.forget(guard, value)  # from now on the guard says more
    except Exception as error:
        _log.error(error, "bloomguard learns nothing from a query because of an error of its own")


def _is_proof(compiler: Any, lookup: RowLookup) -> bool:
    """Whether no row found means that there is none: the key alone, in no transaction, on the guard's database."""
    connection = compiler.connection
    return (
        lookup.is_pure(compiler.query)
        and compiler.using == lookup.guard.database
        and not connection.in_atomic_block
        and not has_own_transaction(connection)
        and not _has_row_security(connection, lookup.guard.model._meta.db_table)
    )


#: By database and table: whether PostgreSQL shows rows to some and hides them from others, and until when that holds.
_row_security: dict[tuple[str, str], tuple[bool, float]] = {}


def _has_row_security(connection: Any, table: str) -> bool:
    """Whether one person's query may find nothing where another's finds a row; asked once a minute."""
    if connection.vendor != "postgresql":
        return False
    now = time.monotonic()
    found, until = _row_security.get((connection.alias, table), (True, 0.0))
    if until <= now:
        name = connection.ops.quote_name(table)
        # Past Django's cursor: this is no query of the project's, to be counted or logged as one.
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            cursor.execute("SELECT relrowsecurity FROM pg_class WHERE oid = %s::regclass", [name])
            found = bool(cursor.fetchone()[0])
        _row_security[connection.alias, table] = found, now + _ROW_SECURITY_SECONDS
    return found
