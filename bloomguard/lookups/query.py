"""Inspect a SELECT: does it look up one row of a guard, and by which key?

A guard may answer a query that can only return rows of its table whose key equals a value, and only rows that are in
the guard's filter: with ``alive``, the query must have its conditions. The database answers any other query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db.models.expressions import Col, ColPairs, Value
from django.db.models.fields.tuple_lookups import TupleExact
from django.db.models.sql import Query
from django.db.models.sql.where import AND, WhereNode

from ..guards.conditions import is_of_row
from ..guards.fields import EXACT, is_own_sql, parts_of

if TYPE_CHECKING:
    from django.db.models import Model

    from ..guards import Guard

#: Returned in place of a value for a query without the guard's key.
NO_KEY: Any = object()


class RowLookup:
    """How queries of ``model`` look up one row of ``guard``. ``model`` is the guard's own, a proxy, or a child."""

    def __init__(self, guard: Guard, model: type[Model]) -> None:
        self.guard = guard
        self.active_filter = guard._runtime.active_filter
        self.short = guard._runtime.short
        self._width = len(guard._meta.fields)
        self._columns = list(columns_of_key(guard, model))  # references, so that each `id` stays valid
        #: ``id`` of a field -> which part of the key it is.
        self.parts = {id(column): part for part, column in self._columns}
        #: The columns of a key of one field that is in no other guard's key: a MAYBE lets their queries pass.
        self.alone: frozenset[int] = frozenset()

    def compares(self, field: Any) -> bool:
        """Return whether ``field`` is the key or a part of it."""
        return id(field) in self.parts

    @cached_property
    def _alive(self) -> tuple[Any, ...]:
        """The conditions of ``alive``, as in the WHERE of a query."""
        return tuple(conditions_of(self.guard._meta.rows().query.where))

    @cached_property
    def _alive_tables(self) -> tuple[str, ...]:
        """The aliases of the tables in these conditions."""
        return tuple(self.guard._meta.rows().query.alias_map)

    def value(self, query: Query) -> Any:
        """Return the key of every row of a plain ``query``: one value or a tuple; :data:`NO_KEY` if it has none."""
        # Hot path: nearly all queries for one row have the simplest form, so no calls are made for it.
        if (
            query.group_by is not None or query.annotations or query.select_for_update or query.combinator
            or query.explain_info or query.extra or query.extra_tables
        ) and not is_plain(query):  # fmt: skip
            return NO_KEY
        where = query.where
        conditions: list[Any] = where.children
        if len(conditions) != 1 or where.negated or type(where) is not WhereNode or type(conditions[0]) not in EXACT:
            return self._value_among(query)
        column, value = conditions[0].lhs, conditions[0].rhs
        if type(column) is not Col or id(column.target) not in self.parts or self._width != 1:
            return NO_KEY
        table: Any = query.alias_map.get(column.alias)
        if table is None or (table.parent_alias is not None and not is_of_row(query, column.alias)):
            return NO_KEY
        return value if type(value) is int or _is_value(value) else NO_KEY

    def _value_among(self, query: Query) -> Any:
        """Return :meth:`value` of a query with several conditions."""
        found: list[Any] = [NO_KEY] * self._width
        for condition in conditions_of(query.where):
            for column, value in _compared(condition):
                part = self.parts.get(id(column.target))
                if part is not None and _is_value(value) and is_of_row(query, column.alias):
                    found[part] = value
        if NO_KEY in found:
            return NO_KEY
        return found[0] if self._width == 1 else tuple(found)

    def is_alive(self, query: Query) -> bool:
        """Return whether ``query`` has all conditions of ``alive``, joined by AND."""
        if not self._alive:
            return True
        asked = conditions_of(query.where)
        # In a child's query, a table alias may stand for another row: one that a foreign key points to.
        return all(any(condition == each for each in asked) for condition in self._alive) and all(
            is_of_row(query, alias) for alias in self._alive_tables
        )

    def has_in_alive(self, condition: Any) -> bool:
        """Return whether ``condition`` is one of ``alive``."""
        return any(condition == each for each in self._alive)

    def is_pure(self, query: Query) -> bool:
        """Return whether a row with the key is probably missing if ``query`` finds none.

        Else a statement of our own would ask for each row that exists, but that a view hides.
        """
        if query.low_mark or query.high_mark == 0 or query.select_related or len(query.alias_map) != 1:
            return False
        if concrete(query.model) is not concrete(self.guard.model):
            return False
        for condition in conditions_of(query.where):
            columns = [column for column, _ in _compared(condition)]
            is_of_key = columns and all(id(column.target) in self.parts for column in columns)
            if not is_of_key and not self.has_in_alive(condition):
                return False
        return True


def is_plain(query: Query) -> bool:
    """Return whether ``query`` returns no row if its WHERE matches none: no plain aggregate, union or lock.

    An aggregate in the WHERE or the ORDER BY is left to :mod:`~bloomguard.lookups.certainty`.
    """
    if query.combinator or query.select_for_update or query.explain_info or query.extra or query.extra_tables:
        return False
    if query.group_by is not None:
        # Without rows, a GROUP BY of columns gives no group. One of constants alone is not a GROUP BY.
        if query.group_by is True:
            return bool(query.default_cols)
        return any(type(column) is Col for column in query.group_by)
    # An aggregate, which custom SQL may contain, gives a row even for none.
    annotations = query.annotations.values()
    return not any(each.contains_aggregate or any(map(is_own_sql, parts_of(each))) for each in annotations)


def is_expression(value: Any) -> bool:
    """Return whether the database computes ``value``."""
    return hasattr(value, "as_sql") or hasattr(value, "resolve_expression")


# Hot path: nearly all queries have one or two flat conditions, so no generators here.


def _compared(condition: Any) -> Iterable[tuple[Col, Any]]:
    """Return the columns that ``condition`` compares with values, and the values; none for other conditions."""
    kind = type(condition)
    if kind in EXACT:
        return ((condition.lhs, condition.rhs),) if type(condition.lhs) is Col else ()
    if kind is TupleExact and type(condition.lhs) is ColPairs and isinstance(condition.rhs, (tuple, list)):
        return zip(condition.lhs.get_cols(), map(_prepared, condition.lhs.get_cols(), condition.rhs))
    return ()


def _prepared(column: Col, value: Any) -> Any:
    """Return what the database gets for a value of a tuple; a lookup of one value has it already.

    What Django cannot prepare is returned as an expression, which gives no key.
    """
    try:
        return value if is_expression(value) else column.target.get_prep_value(value)
    except Exception:  # Django raises it too
        return Value(value)


def _is_value(value: Any) -> bool:
    """Return whether ``value`` is a value that causes no database error; a guard must not hide that error."""
    if isinstance(value, str):
        return "\0" not in value  # PostgreSQL raises an error
    return not is_expression(value)


def conditions_of(where: WhereNode) -> Sequence[Any]:
    """Return the conditions that are joined by AND, from all levels of nesting.

    A node of the project's own class counts as one condition: it may join its children in its own way.
    """
    children: list[Any] = where.children
    if where.negated or (where.connector != AND and len(children) != 1) or type(where) is not WhereNode:
        return (where,)
    for child in children:
        if isinstance(child, WhereNode):
            break
    else:
        return children
    found: list[Any] = []
    for child in children:
        found += conditions_of(child) if isinstance(child, WhereNode) else (child,)
    return found


def columns_of_key(guard: Guard, model: type[Model]) -> Iterator[tuple[int, Any]]:
    """Yield which part of the key it is, and the field, for each field of ``model`` with a value of the key.

    A link to a parent has the same value as the parent's key.
    """
    for part, field in enumerate(guard._meta.fields):
        for column in (field, *_links_to(field, model)):
            yield part, column


def concrete(model: Any) -> Any:
    """Return the model with the table of ``model``: of a proxy, the model that it stands for."""
    return model._meta.concrete_model or model


def _links_to(field: Any, model: type[Model]) -> Iterator[Any]:
    """Yield the parent links of ``model`` and its parents that have the same value as ``field``."""
    for child in (concrete(model), *model._meta.all_parents):
        for link in child._meta.parents.values():
            target: Any = link
            while target is not None and target.remote_field is not None and target.remote_field.parent_link:
                target = target.target_field
                if target is field:
                    yield link
