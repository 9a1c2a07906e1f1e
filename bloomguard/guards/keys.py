"""Convert the value of a model field to canonical key bytes.

Values that the database treats as equal must give the same bytes. Both the value from a URL and the value from a row go
through the field's own ``to_python``. Then integers and dates become 8 bytes, UUIDs 16 bytes, text its UTF-8 and
decimals their shortest form. The parts of several fields are joined with their lengths, so that two different tuples
never give the same bytes. A key of a guard with a ``scope`` begins with that, and its length.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import models

from ..filters.bulk import np
from ..state.verdicts import AMBIGUOUS, ERROR, OUT_OF_RANGE, UNKEYABLE, Decision
from .fields import LONGEST_NUMBER, kind_of, own_conversions, own_methods, python_type_of, value_field

if TYPE_CHECKING:
    from ..filters.base import RowKeys

Encode = Callable[[Any], bytes]

_LOW, _MASK = -(1 << 63), (1 << 64) - 1
#: Errors of ``normalize`` that mean that the text has no normal form. After any other, as OSError, it is uncertain.
OF_THE_TEXT = (ValidationError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
#: The number of keys that mark a scope.
MARKS = 128
#: From this many integers on, an array of them is made faster than their bytes.
_MANY = 32
_EXACT_DIGITS = 15  # SQLite stores decimals as doubles: with more digits, different decimals compare as equal


class Unkeyable(ValueError):
    """The field cannot convert the value, so the database's answer is unknown and the request passes.

    A row with such a value needs no key: a request for it has no key either, and passes.
    """


class NotNormalized(Unkeyable):
    """``normalize`` has no form for the text, nor for any text that the database treats as equal."""


class Uncertain(ValueError):
    """The value has no key, but an equal value may have one: a request passes, a written row fences the guard."""


class OutOfRange(ValueError):
    """An integer that does not fit any column: certainly absent, without a query (Django sends none either)."""


class NoScope(ValueError):
    """It is not certain in which scope the row is: a request passes, a written row fences the guard."""


def decision_for(error: Exception) -> Decision:
    """Map an exception of a key maker, or of a check, to a decision."""
    if isinstance(error, NoScope):
        return AMBIGUOUS
    if isinstance(error, (Unkeyable, Uncertain)):
        return UNKEYABLE
    return OUT_OF_RANGE if isinstance(error, OutOfRange) else ERROR


@dataclass(frozen=True)
class Scoped:
    """A value of a guard with a ``scope``, and the scope that it is looked up in; ``None`` if that is not certain."""

    scope: str | None
    value: Any


def plain(value: Any) -> Any:
    """Return ``value`` without its scope."""
    return value.value if type(value) is Scoped else value


def unwrapped(values: Sequence[Any]) -> Any:
    """Return the only one of ``values``; all of them if they are several fields' values."""
    return values[0] if len(values) == 1 else values


def head_of(scope: str) -> bytes:
    """Return what the keys of ``scope`` begin with."""
    name = scope.encode()
    return len(name).to_bytes(4, "little") + name


def scope_of(key: bytes) -> str:
    """Return the scope in a key of a guard with a ``scope``."""
    return key[4 : 4 + int.from_bytes(key[:4], "little")].decode()


def marks_of(text: str) -> list[bytes]:
    """Return keys that no row has, which a build adds for ``text``: a filter that has all of them was built for it.

    So many that a filter has them by chance once in 2**128 times if it is so full that half of all keys pass, and once
    in 2**53 times if three quarters pass.
    """
    return [b"\xff\xff\xff\xff" + bytes([number]) + text.encode() for number in range(MARKS)]


class KeyMaker:
    """Maker of one guard's keys, from the value of one field or of several.

    ``width`` is the size of a key in bytes if all keys have the same size (8 or 16), else ``None``. ``normalize`` is
    applied to text after ``to_python``, for URLs and rows alike. ``current_scope``, for a guard with a scope, returns
    the first part of the key of a value that is not :class:`Scoped`.
    """

    def __init__(
        self,
        fields: Sequence[models.Field[Any, Any]],
        normalize: Callable[[str], str] | None = None,
        current_scope: Callable[[], str] | None = None,
    ) -> None:
        self.names = tuple(field.name for field in fields)
        self.kinds = kinds = tuple(kind_of(field) for field in fields)
        #: One ``encode(value) -> bytes`` for each field.
        self.encoders = encoders = tuple(
            _encoder(value_field(field), kind, normalize) for field, kind in zip(fields, kinds)
        )
        #: Name of the first field that changes values on their way to the database or back; empty if none does.
        #: ``normalize`` allows for that of a text.
        own = (field for field, kind in zip(fields, kinds) if not (normalize and kind == "text"))
        self.own_field = next((field.name for field in own if own_conversions(field)), "")
        self.key: Encode
        if len(fields) == 1:
            self.width = {"integer": 8, "date": 8, "uuid": 16}.get(kinds[0] or "")
            self.key = encoders[0]
        else:
            self.width = None
            self.key = _joined(self.names, encoders)
        if current_scope is not None:
            self.width = None
            self.key = _scoped(self.key, current_scope)
        self._are_integers = kinds == ("integer",) and self.width is not None

    def many(self, values: Sequence[Any]) -> RowKeys:
        """Return :attr:`key` of each of ``values``; of many integers in an array, in a tenth of the time."""
        if self._are_integers and len(values) >= _MANY and set(map(type, values)) == {int}:
            with suppress(OverflowError):
                return np.fromiter(values, np.int64, len(values))
        return list(map(self.key, values))


def _joined(names: Sequence[str], encoders: Sequence[Encode]) -> Encode:
    def key(values: Sequence[Any] | Mapping[str, Any]) -> bytes:
        if isinstance(values, Mapping):
            values = [values[name] for name in names]
        elif isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Sequence):
            raise Unkeyable("not a sequence of values")  # a set has no order, a text no parts
        parts = [encode(value) for encode, value in zip(encoders, values, strict=True)]
        return b"".join([len(part).to_bytes(4, "little") + part for part in parts])

    return key


def _scoped(encode: Encode, current_scope: Callable[[], str]) -> Encode:
    def key(value: Any) -> bytes:
        scope, value = (value.scope, value.value) if type(value) is Scoped else (current_scope(), value)
        if scope is None:
            raise NoScope("it is not certain which scope is asked")
        return head_of(scope) + encode(value)

    return key


def _encoder(
    field: models.Field[Any, Any], kind: str | None, normalize: Callable[[str], str] | None
) -> Callable[[Any], bytes]:
    """Return ``encode(value) -> bytes`` for one field.

    It raises :class:`Unkeyable`, :class:`Uncertain` or :class:`OutOfRange`; their messages never contain the value.
    """
    if kind is None:
        raise TypeError(f"{field} is a {type(field).__name__}, which cannot be a key")
    to_python, expected = field.to_python, python_type_of(kind)
    # A custom field may convert one form of a value, but not the form that the database returns.
    failure = Uncertain if own_conversions(field) or own_methods(field, ("to_python",)) else Unkeyable

    def convert(value: Any) -> Any:
        try:
            converted = to_python(value)
        except Exception:
            raise failure(f"not a value of {field}") from None  # the message of the error may contain the value
        if converted is None:
            raise (Unkeyable if value is None else failure)(f"no value for {field}")
        if not isinstance(converted, expected) and not (kind == "text" and normalize is not None):
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
            raise OutOfRange(f"too large or too small for any column of {field}") from None

    def uuid(value: Any) -> bytes:
        return convert(value).bytes  # type: ignore[no-any-return]

    def text(value: Any) -> bytes:
        if type(value) is not str and (hasattr(value, "resolve_expression") or isinstance(value, models.Model)):
            # to_python would return its str(). But the database computes an expression, and Django uses a row's pk.
            raise Unkeyable(f"an expression or a row, not a value of {field}")
        value = convert(value)
        try:
            return str.encode(value if normalize is None else normalized(value, normalize))
        except UnicodeEncodeError:
            raise Unkeyable("text that is not Unicode") from None

    def normalized(value: Any, normalize: Callable[[str], str]) -> str:
        # Neither the error nor its cause may contain the value, because the error may be logged.
        try:
            form = normalize(value)
        except OF_THE_TEXT as error:
            raise NotNormalized(f"normalize() raised {type(error).__name__} for a value of {field}") from None
        except Exception as error:
            raise Uncertain(f"normalize() raised {type(error).__name__} for a value of {field}") from None
        if not isinstance(form, str):
            raise NotNormalized(f"normalize() returned a {type(form).__name__} instead of a str for a value of {field}")
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
        places: int | None = field.decimal_places  # type: ignore[attr-defined]
        is_cut = places is not None and -exponent > places  # since Django 6.1 a column may have any number of places
        if len(digits) > _EXACT_DIGITS or is_cut or abs(number.adjusted()) > LONGEST_NUMBER:
            raise Unkeyable("more digits than the column stores exactly")
        return f"{'-' if number < 0 else ''}{''.join(map(str, digits))}e{exponent}".encode()

    def date(value: Any) -> bytes:
        day: datetime.date = convert(value)
        return day.toordinal().to_bytes(8, "little")

    encoders = {"integer": integer, "uuid": uuid, "text": text, "decimal": decimal, "date": date}
    return encoders[kind]
