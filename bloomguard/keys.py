"""A model field's value -> canonical key bytes.

The law: values that the database holds for equal give the same bytes. Both sides, the value out of a URL and the value
out of a row, go through the field's own ``to_python``; then integers and dates become 8 bytes, UUIDs 16, text its
UTF-8, decimals their shortest form. Several fields are joined with their lengths, so that no two tuples run together.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

Encode = Callable[[Any], bytes]

_LOW, _MASK = -(1 << 63), (1 << 64) - 1
_EXACT_DIGITS = 15  # SQLite keeps decimals as doubles: beyond this many digits "equal" is not what it seems


class Unkeyable(ValueError):
    """The value does not convert as the field converts: nobody can say what the database would answer, so pass."""


class OutOfRange(ValueError):
    """An integer that no column can hold: certainly absent, no look-up needed (Django sends no query either)."""


def value_field(field: models.Field[Any, Any]) -> models.Field[Any, Any]:
    """The field that holds the value: of a foreign key, the one it points at."""
    while field.remote_field is not None and getattr(field, "target_field", None) is not None:
        field = field.target_field  # type: ignore[attr-defined]
    return field


def kind_of(field: models.Field[Any, Any]) -> str | None:
    """``integer``, ``uuid``, ``text``, ``decimal`` or ``date``; ``None`` for a field that cannot be a key."""
    field = value_field(field)
    if isinstance(field, models.IntegerField):
        return "integer"
    if isinstance(field, models.UUIDField):
        return "uuid"
    if isinstance(field, (models.CharField, models.TextField)):
        return "text"
    if isinstance(field, models.DecimalField):
        return "decimal"
    if isinstance(field, models.DateField) and not isinstance(field, models.DateTimeField):
        return "date"
    return None


def converts_itself(field: models.Field[Any, Any]) -> bool:
    """Whether a row may hold another value than the one that the field was given, or is asked for."""
    names = ("get_prep_value", "get_db_prep_value", "get_db_prep_save", "from_db_value", "get_lookup")
    methods = (getattr(type(field), name, None) for name in names)
    return any(not getattr(method, "__module__", "django.").startswith("django.") for method in methods if method)


class KeyMaker:
    """Makes the key of one guard: of one field's value, or of several.

    ``width`` is the keys' size in bytes where all have the same (8 or 16), else ``None``. ``normalize`` is applied to
    text after ``to_python``, on both sides.
    """

    def __init__(self, fields: Sequence[models.Field[Any, Any]], normalize: Callable[[str], str] | None = None) -> None:
        self.names = tuple(field.name for field in fields)
        kinds = tuple(kind_of(field) for field in fields)
        encoders = tuple(_encoder(value_field(field), kind, normalize) for field, kind in zip(fields, kinds))
        self.kinds = kinds
        #: The first field that converts values in a way of its own on their way to the database, or back; else empty.
        self.own_field = next((field.name for field in fields if converts_itself(value_field(field))), "")
        self.key: Encode
        if len(fields) == 1:
            self.width = {"integer": 8, "date": 8, "uuid": 16}.get(kinds[0] or "")
            self.key = encoders[0]
        else:
            self.width = None
            self.key = self._joined(encoders)

    def _joined(self, encoders: Sequence[Encode]) -> Encode:
        names = self.names

        def key(values: Sequence[Any] | Mapping[str, Any]) -> bytes:
            if isinstance(values, Mapping):
                values = [values[name] for name in names]
            parts = [encode(value) for encode, value in zip(encoders, values, strict=True)]
            return b"".join([len(part).to_bytes(4, "little") + part for part in parts])

        return key


def _encoder(
    field: models.Field[Any, Any], kind: str | None, normalize: Callable[[str], str] | None
) -> Callable[[Any], bytes]:
    """``encode(value) -> bytes`` for one field; it raises :class:`Unkeyable` or :class:`OutOfRange`."""
    to_python = field.to_python

    def convert(value: Any) -> Any:
        try:
            value = to_python(value)
        except (ValidationError, ValueError, TypeError, ArithmeticError) as error:
            raise Unkeyable(f"not a value of {field}") from error
        if value is None:
            raise Unkeyable(f"no value for {field}")
        return value

    def integer(value: Any) -> bytes:
        if type(value) is not int:
            value = convert(value)
        try:
            return value.to_bytes(8, "little")  # type: ignore[no-any-return]
        except OverflowError:
            if _LOW <= value < 0:
                return (value & _MASK).to_bytes(8, "little")  # type: ignore[no-any-return]
            raise OutOfRange(f"outside every column of {field}") from None

    def uuid(value: Any) -> bytes:
        return convert(value).bytes  # type: ignore[no-any-return]

    def text(value: Any) -> bytes:
        if type(value) is not str and (hasattr(value, "resolve_expression") or isinstance(value, models.Model)):
            # It would convert, to its own name: but of an expression the database knows the value, of a row Django.
            raise Unkeyable(f"an expression or a row, not a value of {field}")
        value = convert(value)
        if normalize is not None:
            value = normalize(value)
        try:
            return value.encode()  # type: ignore[no-any-return]
        except UnicodeEncodeError as error:
            raise Unkeyable("text that is not Unicode") from error

    def decimal(value: Any) -> bytes:
        number: Decimal = convert(value)
        if not number.is_finite():
            raise Unkeyable("not a number")
        if not number:
            return b"0"
        digits, exponent = list(number.as_tuple().digits), int(number.as_tuple().exponent)
        while len(digits) > 1 and digits[-1] == 0:
            digits.pop()
            exponent += 1
        if len(digits) > _EXACT_DIGITS or -exponent > field.decimal_places:  # type: ignore[attr-defined]
            raise Unkeyable("more digits than the column is exact to")
        return f"{'-' if number < 0 else ''}{''.join(map(str, digits))}e{exponent}".encode()

    def date(value: Any) -> bytes:
        day: datetime.date = convert(value)
        return day.toordinal().to_bytes(8, "little")

    encoders = {"integer": integer, "uuid": uuid, "text": text, "decimal": decimal, "date": date}
    if kind is None:
        raise TypeError(f"{field} is a {type(field).__name__}, which cannot be a key")
    return encoders[kind]
