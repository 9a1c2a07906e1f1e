"""Read a SELECT: does it look up one row of a guard, and by which key?

A guard may answer a query that gives nothing but rows of its table whose key equals a value, and only such rows as the
guard's filter has: with ``alive``, the query has to restrict to it. Whatever this module does not recognise is left to
the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db.models import F, Func, Value
from django.db.models.expressions import Col, ColPairs, RawSQL
from django.db.models.fields.related_lookups import RelatedExact
from django.db.models.fields.tuple_lookups import TupleExact
from django.db.models.lookups import Exact, IntegerFieldExact
from django.db.models.sql import Query
from django.db.models.sql.where import AND, WhereNode

from ..alive import is_of_row

if TYPE_CHECKING:
    from django.db.models import Model

    from ..guards import Guard

#: Lookups that compare a column with a value, and nothing else. A subclass may mean something else by ``exact``.
_EXACT = frozenset({Exact, IntegerFieldExact, RelatedExact})

#: What a query without the guard's key has in place of a value.
NO_KEY: Any = object()


class RowLookup:
    """How queries of ``model`` look up one row of ``guard``: the guard's own model, a proxy, or a child of it."""

    def __init__(self, guard: Guard, model: type[Model]) -> None:
        self.guard = guard
        self._width = len(guard.fields)
        #: Field -> its place in the key. Two fields of one value: a child's link to its parent has the parent's key.
        self._places: dict[int, int] = {}
        self._fields: list[Any] = []  # keeps what `id` names
        for place, field in enumerate(guard.fields):
            for column in (field, *_links_to(field, model)):
                self._places[id(column)] = place
                self._fields.append(column)

    def compares(self, field: Any) -> bool:
        """Whether a comparison with ``field`` is one with the key, or a part of it."""
        return id(field) in self._places

    @cached_property
    def _alive(self) -> tuple[Any, ...]:
        """The conditions of ``alive`` as they stand in the WHERE of a query."""
        return tuple(_conditions(self.guard.rows().query.where))

    @cached_property
    def _alive_tables(self) -> tuple[str, ...]:
        """The tables, by alias, whose columns these conditions compare."""
        return tuple(self.guard.rows().query.alias_map)

    def value(self, query: Query) -> Any:
        """The key that every row of a plain ``query`` has: one value, or a tuple; :data:`NO_KEY` if nothing says so."""
        # Nearly every query for one row is of the simplest form; a request pays for each call, so this calls nothing.
        if (
            query.group_by is not None or query.annotations or query.order_by or query.select_for_update
            or query.combinator or query.explain_info or query.extra or query.extra_tables
        ) and not is_plain(query):  # fmt: skip
            return NO_KEY
        where = query.where
        conditions: list[Any] = where.children
        if len(conditions) != 1 or where.negated or type(conditions[0]) not in _EXACT:
            return self._value_among(query)
        column, value = conditions[0].lhs, conditions[0].rhs
        if type(column) is not Col or id(column.target) not in self._places or self._width != 1:
            return NO_KEY
        table: Any = query.alias_map.get(column.alias)
        if table is None or (table.parent_alias is not None and not is_of_row(query, column.alias)):
            return NO_KEY
        return value if type(value) is int or _is_value(value) else NO_KEY

    def _value_among(self, query: Query) -> Any:
        """:meth:`value`, among several conditions."""
        found: list[Any] = [NO_KEY] * self._width
        for condition in _conditions(query.where):
            for column, value in _compared(condition):
                place = self._places.get(id(column.target))
                if place is not None and _is_value(value) and is_of_row(query, column.alias):
                    found[place] = value
        if NO_KEY in found:
            return NO_KEY
        return found[0] if self._width == 1 else tuple(found)

    def is_alive(self, query: Query) -> bool:
        """Whether ``query`` restricts to the rows that the guard has: the conditions of ``alive``, joined by AND."""
        if not self._alive:
            return True
        asked = _conditions(query.where)
        # In a child's query, a table of that name may hold another row: one that a foreign key points to.
        return all(any(condition == each for each in asked) for condition in self._alive) and all(
            is_of_row(query, alias) for alias in self._alive_tables
        )

    def is_pure(self, query: Query) -> bool:
        """Whether a row with the key would be found: no condition but the key and ``alive``, no join, no offset.

        Nor any expression: one that returns a set gives no row where the set is empty.
        """
        if query.low_mark or query.high_mark == 0 or query.select_related or len(query.alias_map) != 1:
            return False
        if _table(query.model) is not _table(self.guard.model):
            return False
        meta = query.get_meta()
        order = query.order_by or (meta.ordering if query.default_ordering else None) or ()
        if not all(isinstance(each, (str, F)) for each in order):
            return False
        if not all(type(each) is Value for each in query.annotations.values()):
            return False
        compared = 0
        for condition in _conditions(query.where):
            columns = [column for column, _ in _compared(condition)]
            if columns and all(id(column.target) in self._places for column in columns):
                compared += len(columns)
            elif not any(condition == each for each in self._alive):
                return False
        return compared == self._width  # more would be two values for one column


def is_plain(query: Query) -> bool:
    """Whether ``query`` gives rows, and none if its WHERE finds none: no aggregate alone, no union, no lock."""
    if type(query) is not Query or query.combinator or query.select_for_update or query.explain_info:
        return False
    if query.extra or query.extra_tables:
        return False
    annotations, order = query.annotations, query.order_by
    if query.group_by is not None:
        # A GROUP BY of columns gives no group for no row; one of constants is no GROUP BY.
        if query.group_by is True:
            return bool(query.default_cols)
        return any(type(column) is Col for column in query.group_by)
    expressions = [*annotations.values(), *(each for each in order if hasattr(each, "flatten"))]
    return not any(_may_aggregate(each) for each in expressions)


def _may_aggregate(expression: Any) -> bool:
    """Whether ``expression`` is an aggregate, or SQL of the project's own that may be one: it gives a row for none."""
    return expression.contains_aggregate or any(
        type(part) in (Func, RawSQL)
        or not type(part).__module__.startswith("django.")
        or (isinstance(part, Func) and not {"function", "template"}.isdisjoint(part.extra))
        for part in expression.flatten()
    )


# Nearly every query has one condition or two, side by side: no generator for these, a request pays for each call.


def _compared(condition: Any) -> Iterable[tuple[Col, Any]]:
    """The columns that ``condition`` compares with values, each with its value; none if it does anything else."""
    kind = type(condition)
    if kind in _EXACT:
        return ((condition.lhs, condition.rhs),) if type(condition.lhs) is Col else ()
    if kind is TupleExact and type(condition.lhs) is ColPairs and isinstance(condition.rhs, (tuple, list)):
        return zip(condition.lhs.get_cols(), condition.rhs)
    return ()


def _is_value(value: Any) -> bool:
    """Whether a database takes ``value`` without an error, which the query is to have with a guard as without."""
    if isinstance(value, str):
        return "\0" not in value  # PostgreSQL takes none
    return not hasattr(value, "as_sql") and not hasattr(value, "resolve_expression")


def _conditions(where: WhereNode) -> Sequence[Any]:
    """The conditions that all have to hold, however they are nested."""
    children: list[Any] = where.children
    if where.negated or (where.connector != AND and len(children) != 1):
        return (where,)
    for child in children:
        if isinstance(child, WhereNode):
            break
    else:
        return children
    found: list[Any] = []
    for child in children:
        found += _conditions(child) if isinstance(child, WhereNode) else (child,)
    return found


def _table(model: Any) -> Any:
    return model._meta.concrete_model or model


def _links_to(field: Any, model: type[Model]) -> Iterator[Any]:
    """The columns of ``model`` and its parents that hold the same value as ``field``: links to the parent's row."""
    for child in (model._meta.concrete_model or model, *model._meta.all_parents):
        for link in child._meta.parents.values():
            target: Any = link
            while target is not None and target.remote_field is not None and target.remote_field.parent_link:
                target = target.target_field
                if target is field:
                    yield link
