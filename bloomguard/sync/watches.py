"""Which guards mind the rows of a table, and what has to be known of such a row to have its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Model, Subquery
from django.db.models.expressions import Col, RawSQL
from django.db.models.sql import Query

from ..guards import Guard, registry
from .links import link

Fields = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Watch:
    """What a statement of one model has to tell one guard.

    ``fields`` are the statement's own whose values have to be known of every row; ``None`` where its model lacks one,
    as a migration's may. They are the key itself if ``link`` is empty; else the guard's rows are found by it, the
    look-up to those values. ``primary_key`` are the fields to find them by where the key is not told. An UPDATE of none
    of the ``columns`` can bring up no new key. ``historical``: the table may lack what the guard's model has.
    ``counted``: what is gone can be told from what is new, and is discarded.
    """

    guard: Guard
    fields: Fields | None
    link: str
    primary_key: Fields | None
    columns: frozenset[str]
    historical: bool
    counted: bool


Tables = dict[str, tuple[Guard, ...]]

#: The guards by table, and what is known of models so far. Made anew in one piece: half of it, seen by another thread,
#: would be a table whose writes are overlooked.
_known: tuple[Tables, dict[type[Model], tuple[Watch, ...]]] = ({}, {})
_version = -1


def watching(model: type[Model]) -> tuple[Watch, ...]:
    """The watches on statements of ``model``; one look-up in a dictionary after the first time."""
    if _version != registry.version:
        _renew()
    tables, watches = _known
    found = watches.get(model)
    if found is None:
        found = _of(model, tables)
        if model._meta.apps is apps:  # others come and go with their migration
            watches[model] = found
    return found


def guarded_tables() -> Tables:
    """The guards that follow statements, by the tables that their keys, or who is alive, depend on."""
    if _version != registry.version:
        _renew()
    return _known[0]


def columns(guard: Guard, table: str) -> frozenset[str]:
    """The columns of ``table`` whose change can give the guard a new key: of the key, of ``alive``, links between.

    A generated column changes with those that it is made of, and so on. Where that cannot be told, it is all of them.
    """
    models = (guard.model, *guard.model._meta.all_parents)
    try:
        found = _sources(guard)
    except Exception:  # a system check names the field that is missing
        found = {field for model in models for field in model._meta.concrete_fields}
    return frozenset(field.column for field in found if _table(field) == table)


def _sources(guard: Guard) -> set[Any]:
    model = guard.model
    due: list[Any] = list(guard.fields)
    for name in guard.alive.referenced_base_fields:
        due += model._meta.pk_fields if name == "pk" else [model._meta.get_field(name)]
    if len(guard.tables) > 1:
        due += model._meta.pk_fields
        for one in _family(model):
            due += [field for field in one._meta.parents.values() if field is not None]
    found: set[Any] = set()
    while due:
        field = due.pop()
        if field in found:
            continue
        if getattr(field, "generated", False):
            due += _made_of(field)
        if getattr(field, "fields", None):  # several columns in one
            due += field.fields
        elif not getattr(field, "column", None):
            raise FieldDoesNotExist(field.name)
        else:
            found.add(field)
    return found


def _renew() -> None:
    global _known, _version
    version, tables = registry.version, Tables()
    for guard in registry:
        if guard.sync == "statements":
            for table in guard.tables:
                tables[table] = (*tables.get(table, ()), guard)
    _known = tables, {}
    _version = version


def _of(model: type[Model], tables: Tables) -> tuple[Watch, ...]:
    table = model._meta.db_table
    return tuple(_watch(guard, model, table) for guard in tables.get(table, ()))


def _watch(guard: Guard, model: type[Model], table: str) -> Watch:
    known: dict[Any, Any] = {field.column: field for field in model._meta.concrete_fields if _table(field) == table}
    owner = next(each for each in _family(guard.model) if each._meta.db_table == table)
    primary_key = _same(owner._meta.pk_fields, known)
    whole = owner is guard.model and all(_table(field) == table for field in guard.fields)
    historical = model._meta.apps is not apps
    return Watch(
        guard=guard,
        fields=_same(guard.fields, known) if whole else primary_key,
        link="" if whole else link(guard.model, owner),
        primary_key=primary_key,
        columns=columns(guard, table),
        historical=historical,
        counted=guard.discards and not historical,
    )


def _same(fields: Iterable[Any], known: dict[Any, Any]) -> Fields | None:
    """The statement's fields of the same columns: a model of a migration has others, which may be called otherwise."""
    found = tuple(known.get(field.column) for field in fields)
    return None if None in found else found


def _family(model: type[Model]) -> Iterable[type[Model]]:
    return (model, *model._meta.all_parents)


def _table(field: Any) -> str:
    return field.model._meta.db_table  # type: ignore[no-any-return]


def _made_of(generated: Any) -> set[Any]:
    """The fields that a generated column's expression names; raises :class:`FieldDoesNotExist` if it does not say."""
    found = set(_targets(generated.expression.resolve_expression(Query(generated.model), allow_joins=False)))
    if not found:
        raise FieldDoesNotExist(generated.name)
    return found


def _targets(expression: Any) -> Iterator[Any]:
    if expression is None:
        return
    if isinstance(expression, Col):
        yield expression.target
        return
    is_known = type(expression).__module__.startswith("django.") and not isinstance(expression, (RawSQL, Subquery))
    # A function of the project's, or with a template of its own, may name columns in its text.
    if not is_known or not hasattr(expression, "get_source_expressions") or getattr(expression, "extra", None):
        raise FieldDoesNotExist(repr(expression))
    for part in expression.get_source_expressions():
        yield from _targets(part)
