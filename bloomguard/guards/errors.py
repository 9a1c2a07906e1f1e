"""Find values that a guard must leave to the view: its query may raise an error, or look up another value."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import models

from .conversions import is_djangos, value_field
from .keys import kind_of

if TYPE_CHECKING:
    from .guard import Guard

#: The range of a 64-bit column.
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1
#: Classes of values that mean the same in the view as in the filter. Not their subclasses, which may have attributes.
PLAIN = frozenset({str, int, bool, float, Decimal, UUID, datetime.date, datetime.datetime, type(None)})


def may_raise(guard: Guard, value: Any, captured: Iterable[Any], *, by_link: bool = False) -> bool:
    """Return whether the query of a view for ``value`` may raise an error, with all that the path has ``captured``.

    ``value`` is one value, or a sequence of several fields' values. Then an ABSENT has to pass: databases refuse text
    with NUL, and numbers that no column can hold. Of one integer field Django knows that no row has such a number, and
    sends no query; ``by_link`` if the view may compare a foreign key with it instead, such as a child's parent link.

    ``True`` also for an object that a path converter of the project returns: the view may look up an attribute of it.
    """
    fields = guard._meta.fields
    values = (value,) if len(fields) == 1 else value
    numbers = guard._meta.ignores_overflow and not by_link
    for each in captured:
        if isinstance(each, str):
            if "\0" in each:
                return True
        elif isinstance(each, int) and not _LOW <= each <= _HIGH and not (numbers and each is value):
            return True
    try:
        if not all(type(each) in PLAIN for each in values):
            return True
        if numbers:
            return False
        return any(_is_refused(value_field(field), each) for field, each in zip(fields, values, strict=True))
    except Exception:  # not a value of the field
        return True


def may_raise_beside(field: models.Field[Any, Any], value: Any) -> bool:
    """Return whether a query may raise an error that compares a field beside the guard's with ``value``."""
    try:
        known = is_djangos(field) and kind_of(field) in ("integer", "uuid", "text", "date")
        field = value_field(field)
        return not known or field.to_python(value) is None or _is_refused(field, value)
    except Exception:  # not a value of the field
        return True


def _is_refused(field: models.Field[Any, Any], value: Any) -> bool:
    if kind_of(field) == "integer":
        return not _LOW <= int(field.to_python(value)) <= _HIGH
    return isinstance(value, str) and "\0" in value
