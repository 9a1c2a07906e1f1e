"""Match URL patterns to guards by what the view looks up: ``routes = "auto"``.

A pattern matches if its view is a generic view of Django whose own code looks up one object by the guard's field. For
every other pattern, :func:`why_not_found` gives the reason.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABCMeta
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Model, QuerySet
from django.db.models.base import ModelBase
from django.db.models.manager import BaseManager
from django.db.models.sql import Query
from django.db.models.sql.where import ExtraWhere
from django.views.generic.dates import BaseDateDetailView
from django.views.generic.detail import SingleObjectMixin

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..guards.fields import EXACT, is_own_sql, parts_of
from ..lookups.query import RowLookup, columns_of_key, concrete, is_plain
from .openness import (
    OF_EVERY_CLASS,
    is_class_based,
    is_constant,
    layers,
    looks_up_first,
    view_class_of,
    why_view_is_closed,
)
from .patterns import Detail, Pattern

logger = logging.getLogger("bloomguard")


def why_not_found(guard: Guard, pattern: Pattern) -> str:
    """Return why ``guard`` does not match ``pattern`` automatically; empty if it does."""
    try:
        return _why_not_found(guard, pattern)
    except Exception as error:  # the view's own error
        logger.debug("bloomguard does not guard %s: reading its view raises %r", pattern.text, error)
        return f"reading its view raises {type(error).__name__}"


def _why_not_found(guard: Guard, pattern: Pattern) -> str:
    shown = pattern.shown
    if shown is None:
        return "its view is not a generic view of one object"
    if not issubclass(concrete(shown.model), concrete(guard.model)):
        return f"its view shows one {shown.model._meta.label}"
    if not issubclass(shown.cls, SingleObjectMixin):
        return "REST framework renders its own 404"
    *_, view = layers(pattern.callback)
    if not is_class_based(view):
        return "its view is not made by as_view()"
    if closed := why_view_is_closed(view):
        return closed
    if not looks_up_first(shown.cls):
        return f"{shown.cls.__name__}.get does not begin with get_object()"
    if shown.cls.get_object is not SingleObjectMixin.get_object:
        return f"{shown.cls.__name__} looks up more than one field"
    try:
        [field] = guard._meta.fields
    except (ValueError, ConfigurationError):
        return f"its view looks up one field, and the guard {guard.name!r} several"
    found = looked_up_by(guard, shown)
    if not found:
        return f"its view looks up {' and '.join(shown.looked_up)}, and the guard {guard.name!r} {field.name}"
    column = column_of(shown.model, next(iter(found)))
    if column.get_lookup("exact") not in EXACT:
        return f"{column} compares values in the project's own way"
    if own := why_own_queryset(shown.model, shown.queryset):
        return own
    queryset: Any = shown.model._default_manager.all() if shown.queryset is None else shown.queryset
    if own := why_own_query(guard, queryset, shown.looked_up):
        return own
    query, lookup = queryset.query, RowLookup(guard, shown.model)
    if type(query) is not Query or not is_plain(query) or query.is_sliced or not lookup.is_alive(query):
        return f"its view may show rows that are not in the filter of the guard {guard.name!r}"
    return ""


def looked_up_by(guard: Guard, shown: Detail) -> dict[str, str]:
    """Return the part of ``shown.looked_up`` that compares fields of ``guard``."""
    return {
        name: kwarg
        for name, kwarg in shown.looked_up.items()
        if is_of_key(guard, shown.model, column_of(shown.model, name))
    }


def is_of_key(guard: Guard, model: type[Model], field: Any) -> bool:
    """Return whether ``field`` of ``model`` is the key of ``guard``, or a part of it; also without a filter."""
    return any(column is field for _, column in columns_of_key(guard, model))


def why_another_lookup(guard: Guard, pattern: Pattern, kwargs: tuple[str, ...]) -> str:
    """Return why Django's own code in a generic view looks up something else than ``kwargs``; empty if it may not.

    A slug beside a primary key is only for readers: the view ignores it.
    """
    shown = pattern.shown
    if shown is None or not looks_up_first(shown.cls) or not issubclass(shown.cls, SingleObjectMixin):
        return ""
    if shown.cls.get_object is BaseDateDetailView.get_object:
        return "its view looks up a date too, and its 404 may say so"
    if any(getattr(shown.cls, name) is not getattr(SingleObjectMixin, name) for name in ("get_object", "get_queryset")):
        return ""  # the project's own code decides which row it is
    if set(kwargs) <= set(looked_up_by(guard, shown).values()):
        return ""
    return f"its view looks up {' and '.join(shown.looked_up)} of {shown.model._meta.label}"


def column_of(model: type[Model], name: str) -> Any:
    """Return the field that ``filter(**{name: ...})`` compares; ``None`` for a lookup through a relation."""
    try:
        return model._meta.pk if name == "pk" else model._meta.get_field(name)
    except FieldDoesNotExist:
        return None


def models_named_by(view: Any) -> list[type[Model]]:
    """Return the models that the code of a function view, or of the methods of a class, names."""
    cls = view_class_of(view)
    functions = vars(cls).values() if cls else [view]
    found = (model for each in functions if type(each) is FunctionType for model in _named_by(each))
    return list(dict.fromkeys(found))


def _named_by(function: FunctionType) -> Iterator[type[Model]]:
    due = [function.__code__]
    while due:
        code = due.pop()
        due += [each for each in code.co_consts if isinstance(each, CodeType)]
        known: list[Any] = [function.__globals__.get(name) for name in code.co_names]
        modules = [each for each in known if issubclass(type(each), ModuleType)]  # as in `models.City`
        known += [vars(each).get(name) for each in modules for name in code.co_names]
        for model in known:
            # By its type: a lazy object would be evaluated to say of which class it is.
            if issubclass(type(model), ModelBase) and model is not Model and not model._meta.abstract:
                yield concrete(model)


def reason_against(pattern: Pattern) -> str:
    """Return why no guard matches ``pattern`` automatically."""
    reasons = []
    for guard in registry:
        if not (reason := why_not_found(guard, pattern)):
            return f'the guard {guard.name!r} would answer for it with routes = "auto"'
        reasons.append(reason)
    kept = [reason for reason in dict.fromkeys(reasons) if not reason.startswith("its view shows one")]
    return "; ".join(kept) or (f"{reasons[0]}, which no guard protects" if reasons else "there are no guards")


# -- the rows of a view: does its queryset do what Django's own does?
#
# A manager or a queryset class of the project can change each request's query, or raise an error instead of sending it.
# No code of either is run here: what overrides any method that Django defines is not certain.

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
    # Each request asks the router of the guard's model again. Of another model's, this answer has to do.
    names_database = queryset._db or queryset._for_write or queryset.model is not guard.model  # type: ignore[attr-defined]
    if names_database and not guard._meta.place.reads(queryset.db):
        return f"its queryset reads the database {queryset.db!r}"
    if name := next((name for name in names if name in queryset.query.annotations), ""):
        return f"its queryset has an annotation named {name!r}"
    iterable: Any = queryset._iterable_class
    if iterable.__module__ != QuerySet.__module__ or not all(map(_is_known_condition, _conditions(queryset.query))):
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


def _is_known_condition(condition: Any) -> bool:
    """Whether ``condition`` is made of Django's own classes and plain values: it is the same in each request."""
    rhs = getattr(condition, "rhs", None)
    if not hasattr(type(rhs), "resolve_expression") and not is_constant(rhs):
        return False
    return not (
        type(condition) is ExtraWhere or condition.contains_aggregate or any(map(is_own_sql, parts_of(condition)))
    )
