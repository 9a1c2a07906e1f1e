"""Which rows exist for the public: what a guard's ``alive`` condition may be, and its one form in words.

A filter is kept true by the statements that write rows. So the condition may depend on the row's own columns alone,
and has to read the same in every process: a filter that was built for other words is never asked.
"""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from django.core.exceptions import FieldError
from django.db.models import Model, Q, QuerySet, Subquery
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now, Random
from django.db.models.sql import Query

_PLAIN = (bool, int, float, str, bytes, Decimal, uuid.UUID, datetime.date, datetime.time, datetime.timedelta)


class Unstable(ValueError):
    """A value that reads differently in every process."""


def in_words(alive: Q) -> str:
    """The condition as text, the same in every process; raises :class:`Unstable` that names what has none."""
    children = [
        f"{child[0]}={_words(child[1])}" if isinstance(child, tuple) else _words(child) for child in alive.children
    ]
    return f"{'NOT ' if alive.negated else ''}({f' {alive.connector} '.join(children)})"


def _words(value: Any) -> str:
    if isinstance(value, Q):
        return in_words(value)
    if isinstance(value, enum.Enum):
        return _words(value.value)
    if value is None or isinstance(value, _PLAIN):
        return f"{_type(value)}:{value!s}" if not isinstance(value, (str, bytes)) else repr(value)
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_words, value)))}}}"
    if isinstance(value, (list, tuple, range)):
        return f"[{', '.join(map(_words, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_words(key)}: {_words(each)}' for key, each in value.items()))}}}"
    if hasattr(value, "deconstruct") and not isinstance(value, Model):
        path, args, kwargs = value.deconstruct()[-3:]  # of an expression; a field's has its name in front
        return f"{path}{_words(args)}{_words(kwargs)}"
    raise Unstable(f"{value!r}")


def _type(value: Any) -> str:
    return next((each.__name__ for each in (bool, int) if isinstance(value, each)), type(value).__name__)


def doubts(model: type[Model], alive: Q) -> Iterator[str]:
    """Why the condition can change, or read otherwise, without a write of the row."""
    try:
        in_words(alive)
    except Unstable as error:
        yield f"has {error}, which has no form that is the same in every process"
        return
    try:
        query = QuerySet(model).filter(alive).query
    except (FieldError, ValueError, TypeError) as error:
        yield f"cannot be asked for: {error}"
        return
    own = {model._meta.db_table, *(parent._meta.db_table for parent in model._meta.all_parents)}
    for table in sorted({query.alias_map[alias].table_name for alias, used in query.alias_refcount.items() if used}):
        if table not in own:
            yield f"depends on the table {table}"
    for part in _parts(query.where):
        if isinstance(part, (Query, QuerySet, Subquery)):
            yield "asks a subquery"
        elif isinstance(part, (Now, Random)):
            yield f"calls {type(part).__name__}(), which gives something else every time"
        elif isinstance(part, RawSQL):
            yield "has raw SQL, of which nobody can tell what it depends on"
        elif isinstance(part, datetime.datetime) and part.microsecond:
            yield f"has the moment {part}, which looks like the one when a process started"


def _parts(expression: Any) -> Iterator[Any]:
    """An expression, and everything in it, its right-hand values included."""
    yield expression
    if isinstance(expression, (Query, QuerySet, Subquery)):
        return
    for part in expression.get_source_expressions() if hasattr(expression, "get_source_expressions") else ():
        yield from _parts(part)
    value = getattr(expression, "rhs", getattr(expression, "value", None))
    if isinstance(value, (datetime.datetime, list, tuple, set)):
        yield from value if not isinstance(value, datetime.datetime) else [value]
