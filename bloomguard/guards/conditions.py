"""Validate a guard's ``alive`` condition, and render it as text that is the same in every process.

``alive`` selects the rows that the public can see. Writes of a row keep its filter up to date, so whether the row is
alive may change only when the row itself is written: not with the time, the session, the time zone, the language, a
collation or another row. This module lists the comparisons that are safe; all others are refused. The text must be the
same in every process, because a filter that was built for another text is never queried.
"""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Field, Model, Q, QuerySet, lookups
from django.db.models.constants import LOOKUP_SEP
from django.db.models.expressions import Col, F
from django.db.models.fields import related_lookups
from django.db.models.sql import Query
from django.db.models.sql.query import get_children_from_q  # type: ignore[attr-defined]
from django.utils.dateparse import parse_datetime

from .fields import is_parent_link, own_conversions, value_field

#: Classes of constants.
CONSTANTS = (bool, int, float, str, bytes, Decimal, uuid.UUID, datetime.date, datetime.time, datetime.timedelta)

CURE = (
    "Compare columns of the row itself with constants or with each other: use exact, in and isnull; for numbers and "
    "times also lt, lte, gt, gte and range. Write dates and times as text: '2024-02-29T00:00Z'. Check everything else "
    "in the view; an extra row in the filter costs one query."
)


def _named(module: Any, prefix: str, names: str) -> set[type]:
    return {getattr(module, prefix + name) for name in names.split()}


# Lookups are compared by their exact class: a subclass, or a lookup that a project registers under the same name, may
# mean something else. Django's other lookups (patterns, case, parts of a date) depend on collations, pragmas or time
# zones.
NULL = _named(lookups, "", "IsNull") | _named(related_lookups, "Related", "IsNull")
EQUAL = _named(lookups, "", "Exact In IntegerFieldExact") | _named(related_lookups, "Related", "Exact In")
_ORDERS = "LessThan LessThanOrEqual GreaterThan GreaterThanOrEqual"
ORDER = (
    _named(lookups, "", f"{_ORDERS} Range")
    | _named(lookups, "Integer", _ORDERS)
    | _named(related_lookups, "Related", _ORDERS)
)

#: Internal type of a field -> family of its values. Only values of one family may be compared with each other.
_FAMILIES = {
    **dict.fromkeys(
        [
            *("AutoField", "BigAutoField", "SmallAutoField", "DecimalField", "FloatField"),
            *("IntegerField", "BigIntegerField", "SmallIntegerField"),
            *("PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField"),
        ],
        "number",
    ),
    **dict.fromkeys(["CharField", "SlugField", "TextField", "FileField", "FilePathField"], "text"),
    "BooleanField": "boolean",
    "DateField": "date",
    "DateTimeField": "moment",
    "DurationField": "duration",
    "GenericIPAddressField": "address",
    "TimeField": "time",
    "UUIDField": "uuid",
}
#: Families with a stable order. Text is not here: a new version of the system's library may change a collation.
_ORDERED = {"number", "boolean", "date", "moment", "duration", "time", "uuid"}


def as_text(alive: Q) -> str:
    """Return the condition as text that is the same in every process; of a value without such a text its type."""
    children = [
        f"{child[0]}={_words(child[1])}" if isinstance(child, tuple) else _words(child) for child in alive.children
    ]
    return f"{'NOT ' if alive.negated else ''}({f' {alive.connector} '.join(children)})"


def check_readable(alive: Q) -> None:
    """Raise :class:`ValueError` if the condition cannot be read: every query and every write of the table reads it."""
    try:
        _check_form(alive)
        as_text(alive)
        iter(alive.referenced_base_fields)
    except Exception as error:  # such as a RecursionError, of one that contains itself
        raise ValueError(f"alive cannot be read: {type(error).__name__}: {error}") from error


def _check_form(alive: Q) -> None:
    if alive.connector not in (Q.AND, Q.OR, Q.XOR):
        raise ValueError(f"its parts are joined by {alive.connector!r}")
    for child in alive.children:
        if isinstance(child, Q):
            _check_form(child)
        elif isinstance(child, tuple):
            if len(child) != 2 or not isinstance(child[0], str):
                raise ValueError("a comparison is not a pair of a name and a value")
        elif not hasattr(child, "resolve_expression"):
            raise ValueError(f"it contains a {type(child).__name__}, not a comparison")


def _words(value: Any) -> str:
    if isinstance(value, Q):
        return as_text(value)
    if isinstance(value, enum.Enum):
        return _words(value.value)
    if isinstance(value, (str, bytes)):
        return repr(value)
    if value is None or isinstance(value, CONSTANTS):
        kind = next((each for each in (bool, int) if isinstance(value, each)), type(value))
        return f"{kind.__name__}:{value!s}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_words, value)))}}}"
    if isinstance(value, (list, tuple, range)):
        return f"[{', '.join(map(_words, value))}]"
    if type(value) is F:
        return f"django.db.models.F[{value.name!r}]{{}}"  # type: ignore[attr-defined]
    return type(value).__name__  # its str() may query the database; `refusal_reasons` reports it


def fields_of(model: type[Model], alive: Q) -> set[Any]:
    """Return the fields in the condition, on either side of a comparison, and the parent links on the way to them.

    Raises :class:`FieldDoesNotExist`.
    """
    found: set[Any] = set()
    for path in get_children_from_q(alive):
        owner: Any = model
        for name in path.split(LOOKUP_SEP):
            try:
                fields = owner._meta.pk_fields if name == "pk" else [owner._meta.get_field(name)]
            except FieldDoesNotExist:
                if owner is model:
                    raise
                break  # of the link itself, as in ``place_ptr__in``
            found.update(fields)
            if not is_parent_link(fields[0]):
                break
            owner = fields[0].related_model
    return found


def refusal_reasons(model: type[Model], alive: Q) -> Iterator[str]:
    """Yield each reason why the condition may change without a write of the row, or differ between processes."""
    for child in alive.children:
        if isinstance(child, Q):
            yield from refusal_reasons(model, child)
        elif not isinstance(child, tuple):
            yield f"has an expression, {type(child).__name__}"
        elif doubt := _doubt(model, *child):
            yield f"{doubt} ({child[0]})"


def _doubt(model: type[Model], path: str, value: Any) -> str:
    """Return why one comparison is refused; empty if it is safe."""
    try:
        return _doubt_of_value(value) or _doubt_of_moment(model, path, value) or _doubt_of_query(model, path, value)
    except Exception as error:  # Django has converted the value, and converting it may raise anything
        return f"cannot be queried: {error}"


def _doubt_of_query(model: type[Model], path: str, value: Any) -> str:
    query = QuerySet(model).filter(**{path: value}).query
    for alias, used in query.alias_refcount.items():
        if used and not is_of_row(query, alias):
            return f"depends on another row, of the table {query.alias_map[alias].table_name}"
    if len(query.where.children) != 1:
        return "is not a single comparison"
    compared: Any = query.where.children[0]
    right: Any = getattr(compared, "rhs", None)
    columns: list[Any] = [getattr(compared, "lhs", None), *([right] if hasattr(right, "resolve_expression") else [])]
    for each in columns:  # F("at__year") is the year in the current time zone
        if type(each) is not Col:
            return f"compares a computed value, {type(each).__name__}"
    if type(compared) in NULL:
        return ""
    for each in columns:
        if doubt := _doubt_of_field(each.target):
            return doubt
    family, other = family_of(columns[0].target), family_of(columns[-1].target)
    if family != other:
        return f"compares a {family} with a {other}"
    if type(compared) in EQUAL or (type(compared) in ORDER and family in _ORDERED):
        return ""
    return f"compares a {family} by {type(compared).__name__}, whose result depends on more than the row"


def _doubt_of_value(value: Any) -> str:
    values = value if isinstance(value, (list, tuple, set, frozenset, range)) else [value]
    for each in values:
        if type(each) is F and each is value:
            continue
        constant = each.value if isinstance(each, enum.Enum) else each
        if isinstance(constant, (datetime.date, datetime.time)):
            return f"has the {type(constant).__name__} {constant}, which may be the time of the process's start"
        if constant is not None and not isinstance(constant, CONSTANTS):
            return f"has a {type(constant).__name__}, which is not a constant"
    return ""


def _doubt_of_moment(model: type[Model], path: str, value: Any) -> str:
    """Return why a date and time given as text is refused: without a UTC offset it depends on the time zone."""
    fields = fields_of(model, Q((path, None)))
    if not any(isinstance(field, Field) and family_of(field) == "moment" for field in fields):
        return ""
    for text in value if isinstance(value, (list, tuple, set, frozenset)) else [value]:
        if isinstance(text, str):
            moment = parse_datetime(text)
            if moment is None or moment.tzinfo is None:
                return f"has the moment {text!r} without an offset from UTC"
    return ""


def _doubt_of_field(field: Any) -> str:
    if family_of(field) is None or own_conversions(field):
        return f"compares a {type(field).__name__}"
    if getattr(field, "generated", False) and not field.db_persist:
        return "compares a generated column that is computed at each read"
    return ""


def family_of(field: Any) -> str | None:
    """Return the family of a column's values, such as ``text``; ``None`` if it is not one of Django's usual fields."""
    return _FAMILIES.get(value_field(field).get_internal_type())


def is_of_row(query: Query, alias: str) -> bool:
    """Return whether the table ``alias`` holds the row, or its part in a parent's table (multi-table inheritance)."""
    join: Any = query.alias_map.get(alias)
    while join is not None and join.parent_alias is not None:
        if not is_parent_link(join.join_field):
            return False
        join = query.alias_map.get(join.parent_alias)
    return join is not None
