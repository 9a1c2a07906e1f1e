"""Whether the database would certainly answer a query with no row, and not with an error, if no row has the key.

A guard must hide no error: neither Django's, when it compiles the query, nor the database's, for a value that it
refuses. And it must know all SQL of the WHERE: a condition with an OR and without parentheses finds other rows. So only
conditions of the kinds in this module are known, of Django's own classes and fields; any other query is sent. It is
inspected only if the filter does not have the key.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db.models import CharField, Choices, Func, TextField, Value
from django.db.models import lookups as builtin
from django.db.models.expressions import (
    Col,
    ColPairs,
    CombinedExpression,
    Exists,
    ExpressionWrapper,
    NegatedExpression,
    ResolvedOuterRef,
    Star,
    Subquery,
)
from django.db.models.fields import tuple_lookups as tuples
from django.db.models.functions import Cast
from django.db.models.sql import Query
from django.db.models.sql.datastructures import BaseTable, Join
from django.db.models.sql.where import WhereNode
from django.utils.safestring import SafeString

from ..guards.conditions import EQUAL, NULL, ORDER, family_of
from ..guards.fields import LONGEST_NUMBER, is_djangos_compiler, is_own_sql, makes_djangos_sql, takes_text
from .query import conditions_of, is_expression

if TYPE_CHECKING:
    from .query import RowLookup

#: Lookups that no value makes fail. Not ``regex``, nor others whose value the database parses.
_COMPARING: frozenset[Any] = frozenset({*NULL, *EQUAL, *ORDER, tuples.TupleExact})
#: The same, but for a column with a collation of its own: PostgreSQL refuses some.
_MATCHING: frozenset[Any] = frozenset(
    {
        builtin.IExact, builtin.Contains, builtin.IContains, builtin.StartsWith, builtin.IStartsWith,
        builtin.EndsWith, builtin.IEndsWith,
    }
)  # fmt: skip
#: Families of columns whose values Django itself converts: what the database gets is no text that it has to parse, as
#: for an address, a range or an interval.
_TYPED = frozenset({"number", "text", "boolean", "date", "moment", "time", "uuid"})
_PLAIN: frozenset[Any] = frozenset(
    {type(None), bool, datetime.date, datetime.datetime, datetime.time, datetime.timedelta, uuid.UUID}
)
#: Bits of integers, by the type's name; psycopg has the last three.
_BITS = {"int": 63, "Int8": 63, "Int4": 31, "Int2": 15}
#: ``Query.deferred_loading`` without ``only()`` and ``defer()``.
_ALL_COLUMNS: tuple[frozenset[str], bool] = frozenset(), True
#: More parameters or longer texts may be too many for the database.
_MOST_PARAMETERS, _LONGEST_TEXT = 500, 10_000


def is_certain(compiler: Any, lookup: RowLookup) -> bool:
    """Return whether the query of ``compiler``, which looks up a row that does not exist, certainly gives no row.

    The query is compiled, except in its simplest form, in which nothing can be wrong.
    """
    query = compiler.query
    is_djangos = type(query) is Query and is_djangos_compiler(compiler)
    if not (is_djangos or makes_djangos_sql(compiler)) or not _reads_own_table(query):
        return False  # the SELECT may be of another table
    if _is_simplest(compiler, lookup):
        compiler.setup_query()  # sets ``klass_info`` and the like, which the caller reads to build objects
        return True
    if not _is_known(query, lookup):
        return False
    try:
        _, parameters = compiler.as_sql()
    except Exception:  # the query is sent: Django raises the same again, or finds that it is empty
        return False
    vendor = compiler.connection.vendor
    are_taken = len(parameters) <= _MOST_PARAMETERS and all(_is_taken(each, vendor) for each in parameters)
    return are_taken and _orders_plainly(compiler)


def _is_simplest(compiler: Any, lookup: RowLookup) -> bool:
    """Return whether the query has only the usual comparisons, with values that the driver takes, in one table.

    To compile it takes a fifth of the time of an absent request.
    """
    query, vendor = compiler.query, compiler.connection.vendor
    return (
        len(query.alias_map) == 1
        and not query.select_related
        and query.group_by is None
        and query.deferred_loading == _ALL_COLUMNS
        and _is_bounded(query)
        and all(type(column) is Col for column in query.select)
        # `exists()` selects a number
        and all(type(each) is Value and type(each.value) is int for each in query.annotations.values())
        and _orders_by_own_columns(query)
        and all(_compares_simply(condition, lookup, vendor) for condition in conditions_of(query.where))
    )


def _compares_simply(condition: Any, lookup: RowLookup, vendor: str) -> bool:
    kind = type(condition)
    if kind not in (builtin.Exact, builtin.IntegerFieldExact, builtin.IsNull):
        return False
    column, value = condition.lhs, condition.rhs
    if type(column) is not Col or not _has_djangos_class(column.target):
        return False
    if kind is builtin.IsNull:
        return type(value) is bool  # Django refuses 1 and 0
    if not lookup.compares(column.target) and not _is_typed(column.target):
        return False
    if kind is builtin.IntegerFieldExact:
        return type(value) is int  # Django looks at its range
    return type(value) in (str, uuid.UUID, bool) and _is_taken(value, vendor)


def _is_known(query: Query, lookup: RowLookup | None = None) -> bool:
    """Return whether the query has only parts that raise nothing, apart from its order."""
    return (
        _is_bounded(query)
        and all(_joins_plainly(join) for join in _joins(query))
        and _knows(query.where, lookup)
        and all(map(_is_harmless, query.annotations.values()))
    )


def _is_bounded(query: Query) -> bool:
    """Return whether LIMIT and OFFSET fit 64 bits, and the query has no DISTINCT ON or order by ``extra()``."""
    return not (
        query.distinct_fields  # PostgreSQL compares them with the order
        or query.extra_order_by
        or query.low_mark >> 63
        or (query.high_mark or 0) >> 63
    )


def _reads_own_table(query: Query) -> bool:
    """Return whether the query begins with its model's table: a project may have put another one in its place."""
    model: Any = query.model  # not ``get_meta()``, which a package may override
    return all(
        join.parent_alias is not None or (type(join) is BaseTable and join.table_name == model._meta.db_table)
        for join in query.alias_map.values()
    )


def _joins(query: Query) -> list[Any]:
    """Return the tables that the query reads, without those that Django has trimmed and does not join again."""
    if query.select_related or not _orders_by_own_columns(query):
        return list(query.alias_map.values())
    return [join for alias, join in query.alias_map.items() if query.alias_refcount[alias]]


def _joins_plainly(join: Any) -> bool:
    if type(join) is BaseTable:
        return True
    if type(join) is not Join or not _has_djangos_class(join.join_field):
        return False
    condition = getattr(join.filtered_relation, "resolved_condition", None)
    return join.filtered_relation is None or (condition is not None and _knows(condition))


def _knows(condition: Any, lookup: RowLookup | None = None) -> bool:
    """Return whether a condition certainly raises nothing, and is no more than one operand of its AND.

    ``lookup``: of the guard, whose fields need not be Django's own.
    """
    kind = type(condition)
    if kind is WhereNode:
        return all(_knows(each, lookup) for each in condition.children)
    if lookup is not None and lookup.has_in_alive(condition):
        return True
    if kind in NULL and type(condition.lhs) is Col:
        return _has_djangos_class(condition.lhs.target)
    if kind in _COMPARING:
        return _compares(condition, lookup)
    if kind in _MATCHING:
        column, value = condition.lhs, condition.rhs
        is_text = isinstance(value, str) or is_expression(value)
        is_plain = type(column) is Col and not getattr(column.target, "db_collation", None)
        return is_text and is_plain and _compares(condition, lookup)
    return _is_operand(condition, lookup)


def _compares(condition: Any, lookup: RowLookup | None) -> bool:
    if condition.bilateral_transforms or not _is_operand(condition.lhs, lookup):
        return False
    right = condition.rhs
    if isinstance(right, Query):
        is_plain = isinstance(condition, builtin.In) and _is_plain_query(right) and right.output_field is not None
        return is_plain and _are_of_one_family([condition.lhs, right])
    if type(condition) is builtin.Range and not (isinstance(right, (list, tuple)) and len(right) == 2):
        return False  # two placeholders
    values = right if isinstance(right, (list, tuple, set, frozenset)) else (right,)
    operands = [each for each in values if is_expression(each)]
    return not operands or (
        all(_is_operand(each, lookup) for each in operands) and _are_of_one_family([condition.lhs, *operands])
    )


def _is_operand(operand: Any, lookup: RowLookup | None) -> bool:
    """Return whether an expression is a column of one of Django's fields, a value, or a plain subquery."""
    kind = type(operand)
    if kind is Cast:  # a key as text, by which django-guardian finds its permissions; a length may be too high
        text, (column,) = operand.output_field, operand.get_source_expressions()
        is_text = type(text) in (CharField, TextField) and text.max_length is None
        return is_text and type(column) is Col and _is_operand(column, lookup)
    if kind is Exists:
        return _is_plain_query(operand.query)
    if kind in (NegatedExpression, ExpressionWrapper):
        return _knows(operand.expression, lookup)
    if kind is Col:
        return _is_typed(operand.target) or (lookup is not None and lookup.compares(operand.target))
    if kind is ColPairs:
        return all(_is_operand(each, lookup) for each in operand.get_cols())
    return kind in (Value, ResolvedOuterRef)


def _are_of_one_family(operands: list[Any]) -> bool:
    """Return whether no database refuses to compare the operands, as PostgreSQL does for a text and a number."""
    try:
        return len({family_of(each.output_field) for each in operands if type(each) is not ResolvedOuterRef}) < 2
    except FieldError:  # Django raises it too
        return False


def _is_plain_query(query: Any) -> bool:
    """Return whether a subquery certainly raises nothing."""
    return (
        type(query) is Query
        and not (query.combinator or query.extra or query.extra_tables or query.explain_info or query.select_for_update)
        and all(isinstance(each, str) for each in query.order_by)
        and _is_known(query)
    )


def _is_harmless(expression: Any) -> bool:
    """Return whether an expression of each row raises nothing if there is no row.

    It may if it has no column: PostgreSQL computes constants before it looks for rows.
    """
    kind = type(expression)
    if kind is WhereNode or isinstance(expression, builtin.Lookup):
        return _knows(expression)
    if isinstance(expression, Subquery):
        return kind in (Subquery, Exists) and _is_plain_query(expression.query)
    if is_own_sql(expression) or not kind.__module__.startswith("django.db.models."):
        return False
    has_column = any(type(part) in (Col, Star, ResolvedOuterRef) for part in expression.flatten())
    if isinstance(expression, (Func, CombinedExpression)) and not has_column:
        return False
    return all(_is_harmless(each) for each in expression.get_source_expressions() if each is not None)


def _orders_plainly(compiler: Any) -> bool:
    """Return whether the ORDER BY of the compiled query has no aggregate, and raises nothing."""
    query = compiler.query
    if _orders_by_own_columns(query):
        return True
    references = query.alias_refcount.copy()
    try:
        return all(
            _is_harmless(each) and (query.group_by is not None or not each.contains_aggregate)
            for each, _ in compiler.get_order_by()
        )
    finally:
        query.reset_refcounts(references)


def _orders_by_own_columns(query: Query) -> bool:
    meta: Any = query.get_meta()
    order = query.order_by or (meta.ordering if query.default_ordering else None) or ()
    return all(isinstance(each, str) and _is_own_column(each.lstrip("-+"), meta) for each in order)


def _is_own_column(name: str, meta: Any) -> bool:
    if name == "pk":
        return True
    try:
        field = meta.get_field(name)
    except FieldDoesNotExist:
        return False
    return bool(field.concrete and not field.is_relation)


def _has_djangos_class(field: Any) -> bool:
    return type(field).__module__.startswith("django.")


def _is_typed(field: Any) -> bool:
    return _has_djangos_class(field) and family_of(field) in _TYPED


def _is_taken(value: Any, vendor: str) -> bool:
    """Return whether the driver and the database certainly accept a parameter."""
    kind = type(value)
    bits = _BITS.get(kind.__name__)
    if bits is not None and isinstance(value, int):
        return -(1 << bits) <= value < 1 << bits
    if kind is str or (isinstance(value, str) and isinstance(value, (Choices, SafeString))):
        return len(value) <= _LONGEST_TEXT and takes_text(value, vendor)
    if kind is float:
        return math.isfinite(value)
    if kind is decimal.Decimal:
        digits = len(value.as_tuple().digits)
        return value.is_finite() and abs(value.adjusted()) <= LONGEST_NUMBER and digits <= LONGEST_NUMBER
    return kind in _PLAIN
