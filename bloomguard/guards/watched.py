"""The columns that a guard watches: whose change can give a row a new key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Model
from django.db.models.expressions import Col
from django.db.models.sql import Query

from .fields import is_own_sql, parts_of

if TYPE_CHECKING:
    from .guard import Guard


def watched_fields(guard: Guard) -> set[Any]:
    """Return the fields of these columns, in all tables.

    They are those of the key, of ``alive``, of the links between parents, and those that generated ones are computed
    from; and the primary key, as a scan that goes by it misses a row that moves to where it has been. All fields if the
    sources of one cannot be found out.
    """
    try:
        return _sources(guard)
    except Exception:  # a system check reports the missing field
        return {field for model in with_parents(guard.model) for field in model._meta.concrete_fields}


def with_parents(model: type[Model]) -> Iterable[type[Model]]:
    """Return the model and all its parents."""
    return (model, *model._meta.all_parents)


def _sources(guard: Guard) -> set[Any]:
    model = guard.model
    due: list[Any] = [*guard._meta.fields, *model._meta.pk_fields, *guard._meta.alive_fields]
    if len(guard._meta.tables) > 1:
        for one in with_parents(model):
            due += [field for field in one._meta.parents.values() if field is not None]
    found: set[Any] = set()
    while due:
        field = due.pop()
        if field in found:
            continue
        if getattr(field, "generated", False):
            due += _generated_from(field)
        if getattr(field, "fields", None):  # several columns in one
            due += field.fields
        elif not getattr(field, "column", None):
            raise FieldDoesNotExist(field.name)
        else:
            found.add(field)
    return found


def _generated_from(generated: Any) -> set[Any]:
    """Return the fields in a generated column's expression; raises :class:`FieldDoesNotExist` if its SQL is not known.

    A function or a template of the project's own may name columns in its text.
    """
    parts = list(parts_of(generated.expression.resolve_expression(Query(generated.model), allow_joins=False)))
    found = {part.target for part in parts if isinstance(part, Col)}
    if not found or any(map(is_own_sql, parts)):
        raise FieldDoesNotExist(generated.name)
    return found
