"""A model field's value -> canonical key bytes.

The law: values that the database holds for equal give the same bytes. Both sides, the value out of a URL and the value
out of a row, go through the field's own ``to_python``; then integers and dates become 8 bytes, UUIDs 16, text its
UTF-8, decimals their shortest form. Several fields are joined with their lengths, so that no two tuples run together.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import models

Encode = Callable[[Any], bytes]

_LOW, _MASK = -(1 << 63), (1 << 64) - 1
#: What ``normalize`` raises for a text that has no form. Anything else, such as OSError, says nothing of the text.
_OF_THE_TEXT = (ValidationError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
#: By kind: the class that ``to_python`` has to give, and values that it is tried with.
_PLAIN: dict[str, type] = {
    "integer": int,
    "uuid": UUID,
    "text": str,
    "decimal": Decimal,
    "date": datetime.date,
}
_TRIED: dict[str, tuple[Any, ...]] = {
    "integer": (1, "1"),
    "uuid": (UUID(int=1), str(UUID(int=1))),
    "text": ("a",),
    "decimal": (Decimal(1), "1"),
    "date": (datetime.date(2024, 2, 29), "2024-02-29"),
}
_EXACT_DIGITS = 15  # SQLite keeps decimals as doubles: beyond this many digits "equal" is not what it seems


class Unkeyable(ValueError):
    """The value does not convert as the field converts: nobody can say what the database would answer, so pass.

    A row with such a value needs no key: whoever asks for it has none either, and passes.
    """


class NotNormalized(Unkeyable):
    """``normalize`` has no form for the text, and so for none that is equal to it."""


class Uncertain(ValueError):
    """No key can be made of the value, and a value that is equal to it may have one: a request passes, a row fences."""


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
    return _has_own(field, names)


def _has_own(field: models.Field[Any, Any], names: Sequence[str]) -> bool:
    methods = (getattr(type(field), name, None) for name in names)
    return any(not getattr(method, "__module__", "django.").startswith("django.") for method in methods if method)


def own_class(field: models.Field[Any, Any]) -> str:
    """The name of the class, not a plain one, that the field's ``to_python`` gives; empty if there is none."""
    field, kind = value_field(field), kind_of(field)
    if kind is None or not _has_own(field, ("to_python",)):
        return ""
    for value in _TRIED[kind]:
        with suppress(Exception):  # what it does not convert has no key
            if not isinstance(converted := field.to_python(value), (_PLAIN[kind], type(None))):
                return type(converted).__name__
    return ""


class KeyMaker:
    """Makes the key of one guard: of one field's value, or of several.

    ``width`` is the keys' size in bytes where all have the same (8 or 16), else ``None``. ``normalize`` is applied to
    text after ``to_python``, on both sides.
    """

    def __init__(self, fields: Sequence[models.Field[Any, Any]], normalize: Callable[[str], str] | None = None) -> None:
        self.names = tuple(field.name for field in fields)
        kinds = tuple(kind_of(field) for field in fields)
        #: Each field's own part: ``encode(value) -> bytes``.
        self.encoders = encoders = tuple(
            _encoder(value_field(field), kind, normalize) for field, kind in zip(fields, kinds)
        )
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
    """``encode(value) -> bytes`` for one field.

    It raises :class:`Unkeyable`, :class:`Uncertain` or :class:`OutOfRange`, none of which has the value in its text.
    """
    if kind is None:
        raise TypeError(f"{field} is a {type(field).__name__}, which cannot be a key")
    to_python, plain = field.to_python, _PLAIN[kind]
    # A field of somebody's own may convert one form of a value, and not the one that the database gives.
    failure = Uncertain if converts_itself(field) or _has_own(field, ("to_python",)) else Unkeyable

    def convert(value: Any) -> Any:
        try:
            converted = to_python(value)
        except Exception:
            raise failure(f"not a value of {field}") from None  # whose text may have the value
        if converted is None:
            raise (Unkeyable if value is None else failure)(f"no value for {field}")
        if not isinstance(converted, plain) and not (kind == "text" and normalize is not None):
            raise failure(f"{field} converts a value to a {type(converted).__name__}")
        return converted

    def integer(value: Any) -> bytes:
        if type(value) is not int:
            value = int(convert(value))
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
            value = normalized(value, normalize)
        try:
            return str.encode(value)
        except UnicodeEncodeError:
            raise Unkeyable("text that is not Unicode") from None

    def normalized(value: Any, normalize: Callable[[str], str]) -> str:
        # No value in what is raised, nor in a cause of it: it may come to a log.
        try:
            form = normalize(value)
        except _OF_THE_TEXT as error:
            raise NotNormalized(f"normalize() raised {type(error).__name__} for a value of {field}") from None
        except Exception as error:
            raise Uncertain(f"normalize() raised {type(error).__name__} for a value of {field}") from None
        if not isinstance(form, str):
            raise NotNormalized(f"normalize() gave a {type(form).__name__} for a value of {field}")
        return form

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
    return encoders[kind]
