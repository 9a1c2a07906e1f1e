"""Model fields: the kind of key they make, whether all their conversions are Django's, which values they refuse.

Django's fields are known: what they store is what :mod:`bloomguard.guards.keys` makes of the value. A method of the
project's own may do anything, so the field is not trusted. Methods are looked up on the field, not on its class,
because a project may set them there. A method counts as Django's only if its module and its code are Django's.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from copy import copy
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import connections, models
from django.db.models import Func
from django.db.models.expressions import RawSQL
from django.db.models.fields.related_lookups import RelatedExact
from django.db.models.lookups import Exact, IntegerFieldExact
from django.db.models.sql.datastructures import BaseTable, Join
from django.db.models.sql.where import WhereNode

if TYPE_CHECKING:
    from .guard import Guard

#: Kind of a key -> the classes of its fields, and a value of the class that their ``to_python`` must return.
_KINDS: dict[str, tuple[tuple[type, ...], Any]] = {
    "integer": ((models.IntegerField,), 1),
    "uuid": ((models.UUIDField,), UUID(int=1)),
    "text": ((models.CharField, models.TextField), "a"),
    "decimal": ((models.DecimalField,), Decimal(1)),
    "date": ((models.DateField,), datetime.date(2024, 2, 29)),
}
#: The range of a 64-bit column.
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1
#: Classes of values that mean the same in the view as in the filter. Not their subclasses, which may have attributes.
PLAIN = frozenset({str, int, bool, float, Decimal, UUID, datetime.date, datetime.datetime, type(None)})
#: What converts a value that is stored, read or compared, in Python or in SQL.
_CONVERSIONS = (
    "get_prep_value", "get_db_prep_value", "get_db_prep_save", "get_placeholder", "get_placeholder_sql",
    "cast_db_type", "from_db_value", "get_db_converters", "select_format", "get_col", "get_lookup", "get_transform",
)  # fmt: skip
#: What reads a column by other SQL than its name: a SELECT may then give another value than ``RETURNING``.
SELECTS = ("select_format", "get_col")
#: What decides which value an INSERT sends, and the type of the column, which may convert it.
_COLUMN = (
    "pre_save", "db_type", "db_type_parameters", "db_type_suffix", "db_parameters", "rel_db_type", "get_internal_type",
)  # fmt: skip
#: What converts a value on its way into an INSERT, and not one that is looked up.
INSERTED = ("pre_save", "get_db_prep_save", "get_placeholder", "get_placeholder_sql")
#: Lookups that only compare a column with a value. Not their subclasses, nor what else may be registered as ``exact``.
EXACT = frozenset({Exact, IntegerFieldExact, RelatedExact})
#: Numbers with more digits before or after the point may be too long for the database.
LONGEST_NUMBER = 100
_MISSING = object()
#: The methods by which a compiler makes a statement. One that is set on the compiler alone is not Django's.
_MAKING = frozenset({"as_sql", "get_from_clause"})


def value_field(field: models.Field[Any, Any]) -> models.Field[Any, Any]:
    """Return the field that defines the value: for a foreign key, the field that it points to."""
    return list(_with_targets(field))[-1]


def _with_targets(field: models.Field[Any, Any]) -> Iterator[models.Field[Any, Any]]:
    """Yield the field; of a foreign key also the field that it points to, which may be one too."""
    yield field
    while field.remote_field is not None and getattr(field, "target_field", None) is not None:
        field = field.target_field  # type: ignore[attr-defined]
        yield field


def is_parent_link(field: Any) -> bool:
    """Return whether the field links a child's row to its parent's. ``parent_link=True`` alone does not say so."""
    return field in field.model._meta.parents.values()


def is_foreign_key(field: models.Field[Any, Any]) -> bool:
    """Return whether the field refers to another row: a view may mean another column of that than this one holds."""
    return field.remote_field is not None and not is_parent_link(field)


def own_conversions(field: models.Field[Any, Any]) -> tuple[str, ...]:
    """Return the names of the methods, and of the lookup, by which the field may change a value or compare another."""
    found = own_methods(field, _CONVERSIONS)
    if "get_lookup" not in found:
        lookups = [each.get_lookup("exact") for each in _with_targets(field)]
        if not all(map(_is_djangos_lookup, lookups)):
            found.append("exact")
    return tuple(found)


def _is_djangos_lookup(lookup: Any) -> bool:
    """Return whether Django's own code compares: a project may give its class an ``as_postgresql``, for example."""
    if lookup not in EXACT:
        return False
    names = [name for name in dir(lookup) if name.startswith(("as_", "batch_process_", "get_", "process_"))]
    return all(is_djangos_method(lookup, name) for name in names if callable(getattr(lookup, name)))


def stores_as_given(field: models.Field[Any, Any]) -> bool:
    """Return whether an INSERT sends what ``to_python`` makes of the instance's value, to a column of Django's type.

    Django itself makes a number's ``int()``, whatever a ``to_python`` of the project's own makes of it.
    """
    return not own_methods(field, ("to_python", *_CONVERSIONS, *_COLUMN))


def is_djangos(field: models.Field[Any, Any]) -> bool:
    """Return whether the field, and the one that it points to, is of a class of Django's and converts as that does."""
    return not (own_conversions(field) or own_methods(field, ("to_python",))) and all(
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
    return method is _MISSING or _is_djangos_function(method)


def _is_djangos_function(method: Any) -> bool:
    function = getattr(method, "__func__", method)
    code_of = getattr(function, "__globals__", {}).get("__name__")
    return _is_named_by_django(getattr(function, "__module__", None)) and _is_named_by_django(code_of)


def _is_named_by_django(module: Any) -> bool:
    return isinstance(module, str) and module.startswith("django.")


def is_djangos_compiler(compiler: Any) -> bool:
    """Return whether Django's own code makes the statement, of the table that the query names."""
    kind: Any = type(compiler)
    return _MAKING.isdisjoint(vars(compiler)) and _is_djangos_class(kind, kind.as_sql, kind.get_from_clause)


@lru_cache(maxsize=100)
def _is_djangos_class(compiler: type, *methods: Any) -> bool:
    """Return whether the class of a compiler, and those of its ``methods`` that make the statement, are Django's."""
    classes = compiler.__mro__[:-1]
    return all(_is_named_by_django(each.__module__) for each in classes) and all(map(_is_djangos_function, methods))


def djangos_class(thing: Any) -> Any:
    """Return the class of Django's that an object's class is, or is made from."""
    return next((each for each in type(thing).__mro__ if _is_named_by_django(each.__module__)), object)


def makes_djangos_sql(compiler: Any, compiled: Any = None, *, text_only: bool = False) -> bool:
    """Return whether a package's compiler, or its class of queries, makes what Django's own would make of the query.

    ``compiled``: what ``as_sql`` has returned already. ``text_only``: the parameters may differ. Not for an INSERT that
    calls ``pre_save`` of fields, which may store files.
    """
    try:
        compiler = copy(compiler)
        compiler.query = compiler.query.clone()  # a package may change the query while it is compiled
        query = object.__new__(djangos_class(compiler.query))
        vars(query).update(vars(compiler.query))
        twin = djangos_class(compiler)(query, compiler.connection, compiler.using)
        if compiled:  # the setup is done; that of an UPDATE of several tables queries, and replaces the WHERE
            twin.pre_sql_setup = lambda: None
        twin.returning_fields = getattr(compiler, "returning_fields", None)
        if not is_djangos_compiler(twin):
            return False  # patched
        made, compiled = twin.as_sql(), compiled or compiler.as_sql()
    except Exception:  # Django raises it too, or finds that nothing is to be sent
        return False
    return _texts(made) == _texts(compiled) if text_only else bool(made == compiled)


def _texts(compiled: Any) -> list[str]:
    return [text for text, _ in (compiled if isinstance(compiled, list) else [compiled])]


def is_djangos_select(compiler: Any) -> bool:
    """Return whether Django's own code makes a plain SELECT: its compiler, and the FROM and the WHERE in it."""
    names = "as_sql", f"as_{compiler.connection.vendor}"  # a compiler prefers the second
    return (
        is_djangos_compiler(compiler)
        and is_djangos_method(compiler, "compile")
        and all(is_djangos_method(part, name) for part in (BaseTable, Join, WhereNode) for name in names)
    )


def kind_of(field: models.Field[Any, Any]) -> str | None:
    """Return ``integer``, ``uuid``, ``text``, ``decimal`` or ``date``; ``None`` for a field that cannot be a key."""
    field = value_field(field)
    for kind, (classes, _) in _KINDS.items():
        if isinstance(field, classes) and not isinstance(field, models.DateTimeField):
            return kind
    return None


def python_type_of(kind: str) -> type:
    """Return the class of values that ``to_python`` of a field of this kind must return."""
    return type(_KINDS[kind][1])


def form_of(field: models.Field[Any, Any]) -> str:
    """Return, as text, what decides which bytes a value of the field becomes, but for ``normalize``."""
    field = value_field(field)
    form = str(kind_of(field))
    if isinstance(field, models.DecimalField):
        form += f"({field.decimal_places})"  # values with more places are read as others on SQLite, and have no key
    if own_methods(field, ("to_python",)):
        form += f"({getattr(field.to_python, '__qualname__', type(field).__qualname__)})"
    return form


def own_class(field: models.Field[Any, Any]) -> str:
    """Return the name of the class that a custom ``to_python`` returns; empty if it returns the plain class."""
    field, kind = value_field(field), kind_of(field)
    if kind is None or not own_methods(field, ("to_python",)):
        return ""
    _, plain = _KINDS[kind]
    for value in (plain, str(plain)):
        with suppress(Exception):  # a value that fails to convert has no key
            if not isinstance(converted := field.to_python(value), (type(plain), type(None))):
                return type(converted).__name__
    return ""


def may_raise(guard: Guard, value: Any, captured: Collection[Any], *, by_link: bool = False) -> bool:
    """Return whether the query of a view for ``value`` may raise an error, with all that the path has ``captured``.

    ``value`` is one value, or a sequence of several fields' values. Then an ABSENT has to pass: databases refuse some
    texts, and numbers that no column can hold. Of one integer field Django knows that no row has such a number, and
    sends no query; ``by_link`` if the view may compare a foreign key with it instead, such as a child's parent link.

    ``True`` also for an object that a path converter of the project returns: the view may look up an attribute of it.
    And for a text of digits in place of a foreign key: the view may take it for the name of the row that it points to.
    """
    if type(value) is int and not value >> 63 and len(captured) == 1:
        return False  # hot path
    try:
        fields = guard._meta.fields
        values = (value,) if len(fields) == 1 else value
        numbers = guard._meta.ignores_overflow and not by_link
        for each in captured:
            if isinstance(each, str):
                if not takes_text(each, "" if each.isascii() else connections[guard._meta.place.home].vendor):
                    return True
            elif isinstance(each, int) and not _LOW <= each <= _HIGH and not (numbers and each is value):
                return True
        if not all(type(each) in PLAIN for each in values):
            return True
        for field, each in zip(fields, values, strict=True):
            if isinstance(each, str) and is_foreign_key(field) and kind_of(field) == "integer":
                return True
        if numbers:
            return False
        return any(_is_refused(value_field(field), each) for field, each in zip(fields, values, strict=True))
    except Exception:  # not a value of the field, or a router does not name the database
        return True


def takes_text(text: str, vendor: str) -> bool:
    """Return whether the driver and the database, of this vendor, certainly accept a text, but for its length."""
    if text.isascii():
        return "\0" not in text
    # Neither halves of a pair, nor on MySQL and MariaDB what a column of three bytes a character cannot have.
    highest = "\uffff" if vendor == "mysql" else "\U0010ffff"
    return not any(each == "\0" or "\ud800" <= each <= "\udfff" or each > highest for each in text)


def may_raise_beside(field: models.Field[Any, Any], value: Any) -> bool:
    """Return whether a query may raise an error that compares a field beside the guard's with ``value``."""
    try:
        known = is_djangos(field) and kind_of(field) in ("integer", "uuid", "text", "date")
        field = value_field(field)
        return not known or field.to_python(value) is None or _is_refused(field, value)
    except Exception:  # not a value of the field
        return True


def _is_refused(field: models.Field[Any, Any], value: Any) -> bool:
    kind = kind_of(field)
    if kind == "integer":
        return not _LOW <= int(field.to_python(value)) <= _HIGH
    if kind == "decimal":
        return bool(abs(field.to_python(value).adjusted()) > LONGEST_NUMBER)
    return isinstance(value, str) and "\0" in value


def parts_of(expression: Any) -> Iterator[Any]:
    """Yield an expression and all its parts, also the conditions in it, but no constants and no subquery's parts.

    ``flatten()`` stops at conditions: at the ``Q`` of a ``When``, or that of an annotation.
    """
    if isinstance(expression, (list, tuple, set, frozenset)):
        for each in expression:
            yield from parts_of(each)
    elif hasattr(expression, "resolve_expression") or hasattr(expression, "as_sql"):
        yield expression
        if isinstance(expression, models.Lookup):
            yield from parts_of((expression.lhs, expression.rhs))
        elif hasattr(expression, "get_source_expressions"):
            yield from parts_of(expression.get_source_expressions())


def is_own_sql(part: Any) -> bool:
    """Return whether a part of an expression may be any SQL: a class, a function or a template of the project's own."""
    return (
        type(part) in (Func, RawSQL)
        or not type(part).__module__.startswith("django.")
        or (isinstance(part, Func) and not {"function", "template", "arg_joiner"}.isdisjoint(part.extra))
    )
