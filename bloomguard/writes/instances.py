"""Do the instances hold the values that their new rows store? If that is not certain, the database is asked.

A field of the project's own may store another value, and so may a column: PostgreSQL and MySQL cut spaces off the end
of a text that is too long, ``char(n)`` cuts or adds them, MySQL without strict mode cuts every text that is too long,
and decimals are rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..guards import Guard
from ..guards.fields import kind_of, stores_as_given, value_field


def may_be_trusted(guard: Guard, vendor: str) -> bool:
    """Return whether the guard's column has a type that Django makes: a ``normalize`` allows for any other text type.

    PostgreSQL's ``name`` cuts a text after 63 bytes, and a type of the project's own may convert it.
    """
    return vendor != "postgresql" or not guard._meta.normalizes


def hold(field: Any, values: Iterable[Any]) -> bool:
    """Return whether rows store each of ``values``, or what ``to_python`` returns for it, and no other value."""
    longest = _longest_text(field)
    if longest is None:
        return False
    for value in values:
        if type(value) is not str:
            if hasattr(value, "resolve_expression") or (longest >= 0 and value is not None):
                return False
        # The column may be shorter than its field says; but a space at the end is all that a strict database cuts.
        elif longest >= 0 and (len(value) > longest or value[-1:] == " "):
            return False
    return True


def fit(fields: Sequence[Any], values: Iterable[Any]) -> bool:
    """Return whether no text in ``values``, as :meth:`Guard.verdict` takes them, is longer than its field."""
    for place, field in enumerate(fields):
        longest = value_field(field).max_length if kind_of(field) == "text" else None
        if longest is None:
            continue
        for value in values:
            text = value if len(fields) == 1 else value[field.name] if isinstance(value, Mapping) else value[place]
            if isinstance(text, str) and len(text) > longest:
                return False
    return True


@lru_cache(maxsize=1000)
def _longest_text(field: Any) -> float | None:
    """Return the longest text that the column stores as it is, -1 for another exact type; ``None`` for all others."""
    kind = kind_of(field)
    if kind not in ("integer", "uuid", "date", "text") or not stores_as_given(field):
        return None
    if kind != "text":
        return -1
    length = value_field(field).max_length
    return float("inf") if length is None else length
