"""The guards that track each table, and the fields that make a row's key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from django.apps import apps
from django.db.models import Model

from ..guards import Guard, registry
from ..guards.fields import SELECTS, kind_of, own_conversions, own_methods, value_field
from ..guards.meta import with_parents
from ..models import GuardState
from ..state import table as states
from . import unknown_guards
from .unknown_guards import UnknownGuard

Fields = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class TrackedTable:
    """How the statements of one model's table concern one guard."""

    guard: Guard
    #: The guard's model, or the parent of it that has this table; ``None`` if this process does not have the guard.
    owner: Any
    #: Fields of the statement's model: the key itself, or what ``link`` leads to; ``None`` if it gives neither.
    fields: Fields | None
    #: The lookup by which the guard's own model finds its rows; empty if ``fields`` are the key.
    link: str
    #: The fields to find the guard's rows by if the key itself is unknown.
    primary_key: Fields | None
    #: Whether the key depends on several tables, so that a statement on one has to lock the rows of all.
    is_joined: bool
    #: In lower case: only an UPDATE of one of these can make a new key.
    columns: frozenset[str]
    #: Whether the model is a migration's, whose table may lack columns of the guard's model.
    historical: bool
    #: Whether keys of deleted rows are discarded.
    counted: bool

    @property
    def is_unknown(self) -> bool:
        """Whether this process does not have the guard, so that it cannot make its keys."""
        return isinstance(self.guard, UnknownGuard)


guard_of: Callable[[TrackedTable], Guard] = attrgetter("guard")


def tracked_tables(model: type[Model]) -> tuple[TrackedTable, ...]:
    """Return what to track in statements of ``model``; made at the first call."""
    if states.table.copy is not unknown_guards.compared_copy:
        unknown_guards.compare_copy()
    found = registry.plans.tracked.get(model)
    if found is None:
        unknown_guards.read_once()
        tracked, table = registry.plans.tracked, model._meta.db_table
        found = tuple(track(guard, model, table) for guard in guarded_tables().get(table, ()))
        if model._meta.apps is apps and model is not GuardState:  # a migration makes models of its own
            tracked[model] = found
    return found


def guarded_tables() -> dict[str, tuple[Guard, ...]]:
    """Return the guards with ``sync = "statements"``, by the tables that their keys and ``alive`` depend on."""
    plans = registry.plans
    if plans.tables is None:
        tables: dict[str, tuple[Guard, ...]] = {}
        for guard in registry:
            if guard.sync == "statements":
                for table in guard._meta.tables:
                    tables[table] = (*tables.get(table, ()), guard)
        for table, unknown in unknown_guards.unknown_guards(plans):
            others = [guard for guard in tables.get(table, ()) if guard.name != unknown.name]
            tables[table] = (*others, unknown)
        plans.tables = tables  # as a whole: with half of it, another thread would overlook the writes of a table
    return plans.tables


def tracked_columns(guard: Guard, table: str) -> frozenset[str]:
    """Return the columns of ``table``, in lower case, whose change can give the guard a new key."""
    return frozenset(folded_column(field) for field in guard._meta.watched_fields if _table(field) == table)


def keyless_when_null(guard: Guard, table: str) -> frozenset[str]:
    """Return the columns of ``table``, in lower case, of which a row with a NULL certainly has no key."""
    with suppress(Exception):  # a system check reports the mistake
        own = [field for field in guard._meta.fields if _table(field) == table]
        # A field of the project's may give another value for a NULL, and look up NULLs by it.
        return frozenset(folded_column(field) for field in own if not own_conversions(field))
    return frozenset()


def folded_column(field: Any) -> str:
    """Return a field's column in lower case: for SQLite and MariaDB two spellings are one column."""
    return str(field.column).lower()


def parent_path(model: type[Model], parent: type[Model]) -> str:
    """Return the lookup from ``model`` to the primary key of ``parent``: its parent, itself, or a proxy of these.

    With two parents, the rows share only the first one's primary key; the other parent has a link column of its own.
    """
    path = model._meta.get_path_to_parent(parent._meta.concrete_model or parent)
    return "__".join(step.join_field.name for step in path) or "pk"


def track(guard: Guard, model: type[Model], table: str) -> TrackedTable:
    """Return how the statements of ``model`` that write ``table`` concern the guard."""
    historical = model._meta.apps is not apps
    own = [field for field in model._meta.concrete_fields if _table(field) == table]
    if isinstance(guard, UnknownGuard):  # any column may be one of its key, also if only this model of the table has it
        columns = frozenset(map(folded_column, own))
        return TrackedTable(
            guard=guard,
            owner=None,
            fields=None,
            link="pk",
            primary_key=None,
            is_joined=False,
            columns=columns,
            historical=historical,
            counted=False,
        )
    owner = next(each for each in with_parents(guard.model) if each._meta.db_table == table)
    primary_key = same_fields(owner._meta.pk_fields, own)
    key, counted, is_joined = None, False, False
    with suppress(Exception):  # a system check reports the mistake; each write fences the guard
        if owner is guard.model and all(
            _table(field) == table and not own_methods(field, SELECTS) for field in guard._meta.fields
        ):
            key = same_fields(guard._meta.fields, own)
        counted = guard._meta.discards
        needed = set(map(_table, [*guard._meta.fields, *(guard._meta.alive_fields if counted else ())]))
        # A row of the model's own table decides which row of a parent's belongs to the key.
        is_joined = len(needed) > 1 or (owner is guard.model and table not in needed)
    return TrackedTable(
        guard=guard,
        owner=owner,
        fields=key or primary_key,
        link="" if key else parent_path(guard.model, owner),
        primary_key=primary_key,
        is_joined=is_joined,
        columns=tracked_columns(guard, table),
        historical=historical,
        counted=counted and not historical and primary_key is not None,
    )


def same_fields(fields: Iterable[Any], own: Iterable[Any]) -> Fields | None:
    """Return those of a model's ``own`` fields that give the values of ``fields``, of another model of the table.

    A migration's model, or a second model of the table, has fields of its own, maybe with other names. They have to
    convert values as ``fields`` do, and name the column in the same spelling. ``None`` if that is not certain of all.
    """
    known = {field.column: field for field in own}
    found = tuple(known.get(field.column) for field in fields)
    return found if all(map(_convert_alike, found, fields)) else None


def _convert_alike(one: Any, other: Any) -> bool:
    """Whether two fields of one column certainly convert each value in the same way, to the database and back."""
    if one is other:
        return True  # nearly always
    with suppress(Exception):  # a field of the project may raise anything
        ends = value_field(one), value_field(other)
        are_djangos = all(type(each).__module__.startswith("django.") for each in (one, other, *ends))
        return are_djangos and kind_of(ends[0]) == kind_of(ends[1]) not in (None, "decimal")
    return False


def _table(field: Any) -> str:
    return field.model._meta.db_table  # type: ignore[no-any-return]
