"""Answer a SELECT for one row without sending it, if a guard knows that there is no such row.

``SQLCompiler.execute_sql`` is wrapped. It runs every query of the ORM: ``get``, ``first``, ``exists``,
``get_object_or_404``, generic views, REST framework, the admin. The result is empty, as for Django's own
``EmptyResultSet``, and the project's code continues with its permissions, its redirects, its own 404. A query of a
model without a guard costs the read of a context variable and of a dictionary.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, router
from django.db.models import Model, QuerySet
from django.db.models.fields import related_descriptors as related
from django.db.models.sql import Query
from django.db.models.sql import compiler as compilers
from django.db.models.sql.constants import GET_ITERATOR_CHUNK_SIZE, MULTI, SINGLE

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..guards.counters import FALSE_POSITIVE
from ..guards.doubts import strayed
from ..guards.fields import EXACT, djangos_class
from ..guards.scopes import DATABASE
from ..process import log_once
from ..state.transactions import is_aborted
from ..state.verdicts import MAYBE, REMEMBERED, SHADOW, Decision, Verdict
from ..writes.isolation import is_by_hand, reads_what_is_committed
from ..writes.statements import wrap
from .certainty import is_certain
from .context import LookupContext, compare_rows, contexts
from .misses import remember_missing
from .query import NO_KEY, RowLookup, concrete

Execute = Callable[..., Any]
#: The lookup by which a query asks, the value, the guard's decision, and the generation that gave it, if any.
Asked = tuple[RowLookup, Any, Decision, str]

#: Values of the hot path.
_PLAIN = frozenset({int, str, UUID})


def connect() -> None:
    """Wrap the compiler, and the methods whose queries no guard answers; once, for all databases."""
    wrap(compilers.SQLCompiler, "execute_sql", _selecting)
    for owner, name in _METHODS:
        wrap(owner, name, _unguarded)
    for name in ("create_reverse_many_to_one_manager", "create_forward_many_to_many_manager"):
        wrap(related, name, _with_unguarded_methods)
    if apps.is_installed("django.contrib.contenttypes"):
        from django.contrib.contenttypes import fields

        wrap(fields, "create_generic_related_manager", _with_unguarded_methods)
        # Another class since Django 6.1.
        wrap(getattr(fields, "GenericForeignKeyDescriptor", fields.GenericForeignKey), "__get__", _unguarded)


def lookups_of(model: Any) -> tuple[RowLookup, ...]:
    """Return the lookups of the guards that can answer queries of ``model``; made at the first call.

    After an error of a guard they are made again at the next call: it may be over by then.
    """
    plans, methods = registry.plans, registry.methods
    known = plans.lookups.get(model)
    if known is not None:
        return known
    if model is None:  # the query of a constraint has none
        return ()
    found: tuple[RowLookup, ...] = ()
    errors = 0
    for guard in registry:
        try:
            if answers_queries(guard) and issubclass(concrete(model), concrete(guard.model)):
                found = (*found, RowLookup(guard, model))
        except Exception as error:  # a mistake in one guard must not stop the queries of others
            errors += 1
            log_once.error(error, "bloomguard: guard %s answers no query, because of an internal error", guard.name)
    for lookup in found:
        others = [column for other in found if other is not lookup for column in other.parts]
        if len(lookup.guard._meta.fields) == 1 and methods <= set(lookup.guard.methods):
            lookup.alone = frozenset(lookup.parts).difference(others)
    if not errors:
        plans.lookups[model] = found
    return found


def answers_queries(guard: Guard) -> bool:
    """Return whether ``guard`` may answer queries at all."""
    # A guard that follows only signals misses some ORM writes. Its routes still answer, as the project chose them.
    if not guard.lookups or guard.sync != "statements":
        return False
    try:
        return not guard._meta.keys.own_field  # else a query compares other values than the rows hold: see check W002
    except ConfigurationError:  # a system check reports it
        return False


def _selecting(execute: Execute) -> Execute:
    def execute_sql(
        self: Any, result_type: str = MULTI, chunked_fetch: bool = False, chunk_size: int = GET_ITERATOR_CHUNK_SIZE
    ) -> Any:
        context = contexts.get()
        if context is None or context.is_over:
            return execute(self, result_type, chunked_fetch, chunk_size)
        query: Any = self.query
        lookups = registry.plans.lookups.get(query.model)  # hot path: without the call of `lookups_of`
        if lookups is None:
            lookups = lookups_of(query.model)
        if not lookups:
            return execute(self, result_type, chunked_fetch, chunk_size)
        asked = _ask_simply(context, query, lookups) or _ask(context, self, lookups, result_type)
        if asked is None:
            return execute(self, result_type, chunked_fetch, chunk_size)
        lookup, value, decision, generation = asked
        if decision.verdict is Verdict.ABSENT:
            context.note_avoided(lookup.guard)
            # As the database does, for a package's compiler may look at it; `is_certain` has compiled it.
            return (iter(()) if chunked_fetch else []) if result_type == MULTI else None
        result = execute(self, result_type, chunked_fetch, chunk_size)
        if chunked_fetch or (result and decision is MAYBE):
            return result
        if decision is not MAYBE:  # in shadow mode
            compare_rows(context, lookup.guard, value, result)
        elif generation and result_type in (MULTI, SINGLE):
            _record_false_positive(context, self, lookup, value, generation)
        return result

    return execute_sql


def _ask_simply(context: LookupContext, query: Any, lookups: tuple[RowLookup, ...]) -> Asked | None:
    """Ask the guard of a query with one condition, such as ``get(pk=1)``; ``None`` if it does not answer MAYBE.

    Hot path: nearly all rows that are asked for exist. MAYBE lets any query pass, so its other parts are not inspected.
    """
    conditions: list[Any] = query.where.children
    if len(conditions) != 1 or type(conditions[0]) not in EXACT:
        return None
    value, column = conditions[0].rhs, id(getattr(conditions[0].lhs, "target", None))
    if type(value) not in _PLAIN:
        return None
    for lookup in lookups:
        if column in lookup.alone:
            if lookup.short(context.known, value, absent=False) is not None:
                return lookup, value, MAYBE, lookup.active_filter.answered_last
            context.note_asked(lookup.guard)  # `_ask` may read no key from this query, and then it asks no guard
            return None
    return None


def _ask(context: LookupContext, compiler: Any, lookups: tuple[RowLookup, ...], result_type: str) -> Asked | None:
    """Ask the guards of any query; ``None`` if none may answer it. Never raises."""
    try:
        is_select = type(compiler.query) is Query or djangos_class(compiler.query) is Query
        if is_select and result_type in (MULTI, SINGLE):
            return _ask_each(context, compiler, lookups)
    except Exception as error:
        log_once.error(error, "bloomguard sends queries that it could answer, because of an internal error")
    return None


def _ask_each(context: LookupContext, compiler: Any, lookups: tuple[RowLookup, ...]) -> Asked | None:
    """Ask one guard after the other: the first ABSENT is the answer, without one the first guard's decision."""
    query, request = compiler.query, context.request
    asked = None
    for lookup in lookups:
        guard = lookup.guard
        if request is not None and request.method not in guard.methods:
            continue
        value = lookup.value(query)
        # On an event loop Django refuses the query; a guard's answer would hide that error for absent rows.
        if value is NO_KEY or _get_running_loop() is not None:
            continue
        if compiler.connection.in_atomic_block and not _is_current(guard, compiler):
            continue  # its answer would not be used
        value = value if guard.scope is None else guard._meta.scopes.at(value, compiler.connection)
        decision = context.ask(guard, value)
        found = lookup, value, decision, lookup.active_filter.answered_last
        if decision.verdict is Verdict.MAYBE:
            asked = asked or found
        elif decision.verdict is not Verdict.ABSENT and decision is not SHADOW:
            continue  # UNKNOWN; another guard of the table may have a verdict
        elif decision is REMEMBERED and compiler.connection.in_atomic_block:
            continue  # found out after the transaction began: it may still see a row that others have deleted since
        elif (
            lookup.is_alive(query)
            and _is_current(guard, compiler)
            and is_certain(compiler, lookup)
            and context.applies(guard)
        ):
            if decision.verdict is Verdict.ABSENT:
                return found
            asked = asked or found
    return asked


def _is_current(guard: Guard, compiler: Any) -> bool:
    """Return whether the query sees the rows in the filter: on the guard's database, in no transaction with others."""
    connection, using = compiler.connection, compiler.using
    if strayed.has(connection):
        return False
    # Of a guard of several databases, the key has the alias. Without routers, the rows are in the default one.
    may_differ = guard.scope != DATABASE and (router.routers or using != DEFAULT_DB_ALIAS)
    if may_differ and not guard._meta.place.reads(using):
        return False
    if connection.needs_rollback or connection.closed_in_transaction:
        return False  # Django raises an error for the query
    if not connection.in_atomic_block:
        return not is_by_hand(connection)
    # A transaction may still see rows that others have deleted, whose keys the guard has discarded. Of its own rows,
    # those whose keys are not in the filter yet let the guard pass by itself: `bloomguard.guards.runtime`.
    if guard._meta.discards:
        return False
    return not is_aborted(connection) and reads_what_is_committed(connection)


def _record_false_positive(
    context: LookupContext, compiler: Any, lookup: RowLookup, value: Any, generation: str
) -> None:
    """Count and cache a false positive: ``generation`` gave MAYBE, and the query found no row. Never raises."""
    guard, query = lookup.guard, compiler.query
    try:
        if lookup.is_pure(query) and remember_missing(guard, value, generation, compiler.using):
            guard._runtime.counters[FALSE_POSITIVE]()
            context.forget(guard, value)  # the next check finds it in the negative cache
    except Exception as error:
        log_once.error(error, "bloomguard could not record a false positive, because of an internal error")


# -- the methods whose queries no guard answers

# For a row that the project has, such as the target of its foreign key, the database is asked. And the database alone
# decides what a method that writes will write: a SELECT that it sends first must not miss a row that the filter lacks.

#: Their async versions call them.
_METHODS: tuple[tuple[Any, str], ...] = (
    (related.ForwardManyToOneDescriptor, "get_object"),
    (Model, "refresh_from_db"),
    (Model, "save_base"),
    (Model, "delete"),
    (QuerySet, "bulk_create"),
    (QuerySet, "bulk_update"),
    (QuerySet, "delete"),
    (QuerySet, "get_or_create"),
    (QuerySet, "update"),
    (QuerySet, "update_or_create"),
    (compilers.SQLUpdateCompiler, "pre_sql_setup"),  # reads the rows of an UPDATE of several tables, also for `_update`
)
#: Of related managers, whose classes are made when they are needed.
_OF_MANAGERS = ("add", "clear", "remove", "set")


def _unguarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``method`` so that guards answer none of its queries."""

    def fetch(*args: Any, **kwargs: Any) -> Any:
        before = contexts.get()
        if before is None:
            return method(*args, **kwargs)
        contexts.set(None)
        try:
            return method(*args, **kwargs)
        finally:
            contexts.set(before)

    return fetch


def _with_unguarded_methods(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``make``, which makes the class of a related manager."""

    def make_manager(*args: Any, **kwargs: Any) -> Any:
        manager = make(*args, **kwargs)
        for name in _OF_MANAGERS:
            if name in vars(manager):
                wrap(manager, name, _unguarded)
        return manager

    return make_manager
