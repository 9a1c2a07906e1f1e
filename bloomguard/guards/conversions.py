"""How a field converts values on their way to the column and back, and whether all of it is Django's own.

Django's fields are known: what they store is what :mod:`bloomguard.guards.keys` makes of the value. A method of the
project's own may do anything, so the field is not trusted. Methods are looked up on the field, not on its class,
because a project may set them there. A method counts as Django's only if its module and its code are Django's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import models

#: What converts a value that is stored, read or compared, in Python or in SQL.
_CONVERSIONS = (
    "get_prep_value", "get_db_prep_value", "get_db_prep_save", "get_placeholder", "get_placeholder_sql",
    "cast_db_type", "from_db_value", "get_db_converters", "select_format", "get_col", "get_lookup", "get_transform",
)  # fmt: skip
#: What reads a column by other SQL than its name: ``RETURNING`` and a SELECT may then give different values.
_SELECTS = ("select_format", "get_col")
#: What decides which value an INSERT sends, and the type of the column, which may convert it.
_COLUMN = (
    "pre_save", "db_type", "db_type_parameters", "db_type_suffix", "db_parameters", "rel_db_type", "get_internal_type",
)  # fmt: skip
_MISSING = object()


def value_field(field: models.Field[Any, Any]) -> models.Field[Any, Any]:
    """Return the field that defines the value: for a foreign key, the field that it points to."""
    return list(_with_targets(field))[-1]


def _with_targets(field: models.Field[Any, Any]) -> Iterator[models.Field[Any, Any]]:
    """Yield the field; of a foreign key also the field that it points to, which may be one too."""
    yield field
    while field.remote_field is not None and getattr(field, "target_field", None) is not None:
        field = field.target_field  # type: ignore[attr-defined]
        yield field


def own_conversions(field: models.Field[Any, Any]) -> tuple[str, ...]:
    """Return the names of the methods, and of the lookup, by which the field may change a value or compare another."""
    found = own_methods(field, _CONVERSIONS)
    if "get_lookup" not in found:
        lookups = [each.get_lookup("exact") for each in _with_targets(field)]
        if not all(_is_named_by_django(getattr(lookup, "__module__", None)) for lookup in lookups):
            found.append("exact")
    return tuple(found)


def converts_itself(field: models.Field[Any, Any]) -> bool:
    """Return whether the field may change a value on its way to the database or back."""
    return bool(own_conversions(field))


def selects_itself(field: models.Field[Any, Any]) -> bool:
    """Return whether a SELECT may give another value of the column than ``RETURNING``."""
    return bool(own_methods(field, _SELECTS))


def stores_as_given(field: models.Field[Any, Any]) -> bool:
    """Return whether an INSERT sends what ``to_python`` makes of the instance's value, to a column of Django's type."""
    return not own_methods(field, (*_CONVERSIONS, *_COLUMN))


def is_djangos(field: models.Field[Any, Any]) -> bool:
    """Return whether the field, and the one that it points to, is of a class of Django's and converts as that does."""
    return not converts_itself(field) and all(
        type(each).__module__.startswith("django.db.models.") for each in _with_targets(field)
    )


def own_methods(field: models.Field[Any, Any], names: Sequence[str]) -> list[str]:
    """Return which of the methods, of the field or of the one that it points to, are not Django's."""
    return [name for name in names if not all(is_djangos_method(each, name) for each in _with_targets(field))]


def is_djangos_method(owner: Any, name: str) -> bool:
    """Return whether the method is Django's, or absent. ``functools.wraps`` copies only the name of a module."""
    try:
        method = getattr(owner, name, _MISSING)
    except Exception:
        return False
    if method is _MISSING:
        return True
    function = getattr(method, "__func__", method)
    code_of = getattr(function, "__globals__", {}).get("__name__")
    return _is_named_by_django(getattr(function, "__module__", None)) and _is_named_by_django(code_of)


def _is_named_by_django(module: Any) -> bool:
    return isinstance(module, str) and module.startswith("django.")


def is_djangos_compiler(compiler: Any) -> bool:
    """Return whether Django's own code makes a SELECT, of the table that the query names."""
    classes = type(compiler).__mro__[:-1]
    return all(_is_named_by_django(each.__module__) for each in classes) and all(
        is_djangos_method(compiler, name) for name in ("as_sql", "get_from_clause")
    )
