"""Decide whether a generic view's queryset does what Django's own does: for ``routes = "auto"``.

A manager or a queryset class of the project can change each request's query, or raise an error instead of sending it.
No code of either is run here: what overrides any method that Django defines is not certain.
"""

from __future__ import annotations

import datetime
import inspect
from abc import ABCMeta
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import router
from django.db.models import Model, QuerySet
from django.db.models.manager import BaseManager
from django.db.models.sql import Query
from django.db.models.sql.where import ExtraWhere
from django.utils.datastructures import OrderedSet

from ..guards import Guard
from ..lookups.query import is_own_sql
from .openness import OF_EVERY_CLASS

#: Methods of a queryset that a view of one object does not call.
_WRITES = frozenset(
    {
        *("create", "acreate", "bulk_create", "abulk_create", "update", "aupdate", "bulk_update", "abulk_update"),
        *("delete", "adelete", "get_or_create", "aget_or_create", "update_or_create", "aupdate_or_create"),
        "as_manager",
    }
)
#: Attributes of a manager that say something about it, and do not change its queries.
_OF_EVERY_MANAGER = frozenset({"creation_counter", "auto_created", "use_in_migrations", "_queryset_class"})
_PLAIN = (str, bytes, int, float, type(None), datetime.date, datetime.time, datetime.timedelta, Decimal, UUID)


def why_own_queryset(model: type[Model], queryset: Any) -> str:
    """Return which code of the project makes the rows of a view; empty if all of it is Django's.

    ``queryset`` is the view's; ``None`` if it uses the default manager of ``model``.
    """
    if queryset is not None:
        own = _own_of_queryset(type(queryset), vars(queryset))
        return own and f"its queryset is of the project's own class: {own}"
    manager: Any = model._default_manager
    own = _own(type(manager), vars(manager), BaseManager, _OF_EVERY_MANAGER)
    if not own:
        own = _own_of_queryset(getattr(manager, "_queryset_class", object), {})
    return own and f"the manager {model._meta.object_name}.{manager.name} is the project's: {own}"


def why_own_query(guard: Guard, queryset: QuerySet[Any], names: Iterable[str]) -> str:
    """Return why ``queryset``, filtered by ``names``, may find rows that the guard's database does not have."""
    if queryset.db not in (guard._meta.database, router.db_for_read(guard.model)):
        return f"its queryset reads the database {queryset.db!r}"
    if name := next((name for name in names if name in queryset.query.annotations), ""):
        return f"its queryset has an annotation named {name!r}"
    iterable: Any = queryset._iterable_class
    if iterable.__module__ != QuerySet.__module__ or not all(map(_is_djangos, _conditions(queryset.query))):
        return "its queryset has code of the project's own"
    return ""


def _own_of_queryset(cls: Any, attributes: Iterable[str]) -> str:
    if not issubclass(cls, QuerySet):
        return f"{cls.__name__} is not a QuerySet"
    return _own(cls, attributes, QuerySet, _WRITES)


def _own(cls: type, attributes: Iterable[str], base: type, harmless: frozenset[str]) -> str:
    """Return the first override of anything that ``base`` has, by ``cls`` or in ``attributes`` of its instance."""
    if type(cls) not in (type, ABCMeta):
        return f"{cls.__name__} has a metaclass"
    names = [name for name in dir(base) if name not in harmless and name not in OF_EVERY_CLASS]
    for name in names:
        if inspect.getattr_static(cls, name) is not inspect.getattr_static(base, name):
            owner = next((each for each in cls.__mro__ if name in vars(each)), cls)
            return f"{owner.__name__}.{name}"
    return next((f"{cls.__name__}().{name}" for name in attributes if name in names), "")


def _conditions(query: Query) -> Iterator[Any]:
    """Yield the conditions in the WHERE of ``query`` and of its subqueries."""
    for condition in query.where.leaves():
        yield condition
        if isinstance(inner := getattr(condition, "rhs", getattr(condition, "query", None)), Query):
            yield from _conditions(inner)


def _is_djangos(condition: Any) -> bool:
    """Whether ``condition`` is made of Django's own classes and plain values: it is the same in each request."""
    if not type(condition).__module__.startswith("django.") or getattr(condition, "contains_aggregate", False):
        return False
    if type(condition) is ExtraWhere:
        return False
    rhs = getattr(condition, "rhs", None)
    if not (hasattr(rhs, "resolve_expression") or _is_plain(rhs)):
        return False
    parts = condition.flatten() if hasattr(condition, "flatten") else ()
    return not any(is_own_sql(part) for part in parts if hasattr(part, "resolve_expression"))


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset, OrderedSet):
        return all(map(_is_plain, value))
    return issubclass(type(value), _PLAIN)  # a lazy object claims to be of the class of its value
