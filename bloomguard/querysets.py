"""What a queryset's rows have to do with a guard's rows.

A guard that says ABSENT speaks of its own rows: those of one table in one database, and with ``alive`` only some of
them. It may answer in place of a queryset that has no other rows than these, and nothing is learnt from a queryset
that might lack one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from django.db.models import Field, Model, QuerySet
from django.db.models.sql.where import AND

if TYPE_CHECKING:
    from .guards import Guard, Registry


class Owner(Protocol):
    """What of a guard matters here."""

    model: type[Model]

    @property
    def fields(self) -> tuple[Field[Any, Any], ...]:
        """The fields of the lookup."""

    @property
    def database(self) -> str:
        """The alias of the database that holds the rows."""

    def rows(self) -> QuerySet[Any]:
        """The rows that the guard knows."""


def covers(guard: Owner, queryset: Any) -> bool:
    """Whether ``guard`` certainly knows every row that ``queryset`` can give: what is ABSENT is not in it.

    A row that only ``queryset`` has would be a false 404. The conditions of ``alive`` have to be among the queryset's
    own, joined by AND, as ``filter(guard.alive)`` puts them there; in other words they are not recognised. Never
    raises, never asks the database.
    """
    try:
        return isinstance(queryset, QuerySet) and _is_plain(guard, queryset) and _is_alive(guard, queryset)
    except Exception:  # a database that is not there, an alive that names no field: system checks say so
        return False


def _is_plain(guard: Owner, queryset: QuerySet[Any]) -> bool:
    """Whether all rows are of the guard's table, in the database that it is built from."""
    query, database = queryset.query, guard.database
    if query.combinator or query.is_sliced or not issubclass(queryset.model, _table_of(guard.model)):
        return False
    if not _is_djangos(type(queryset)):
        return False
    if queryset._db is None and not queryset._hints:  # type: ignore[attr-defined]
        return True  # the router's choice: a copy of that database, if it is not the same
    return queryset.db == database


@lru_cache(maxsize=1_000)
def _is_djangos(cls: type[QuerySet[Any]]) -> bool:
    """Whether a look-up means what Django means by it: some packages turn it into another."""
    own = (cls.filter, cls.get, cls._filter_or_exclude)  # type: ignore[attr-defined]
    return all(method.__module__.startswith(("django.", "bloomguard.")) for method in own)


def _is_alive(guard: Owner, queryset: QuerySet[Any]) -> bool:
    known, asked = guard.rows().query.where, queryset.query.where
    if not known:
        return True
    simple = asked.connector == known.connector == AND and not asked.negated and not known.negated
    return simple and all(condition in asked.children for condition in known.children)


def lookup_of(guard: Owner, value: Any) -> dict[str, Any]:
    """``value``, of one field, or of several as a sequence or a mapping, as arguments for ``filter``."""
    if len(guard.fields) == 1:
        return {guard.fields[0].attname: value}
    if isinstance(value, Mapping):
        return {field.attname: value[field.name] for field in guard.fields}
    return {field.attname: one for field, one in zip(guard.fields, value, strict=True)}


def guards_for(registry: Registry, model: type[Model], names: Sequence[str]) -> list[tuple[Guard, tuple[str, ...]]]:
    """The guards that ``get(**{name: value, ...})`` on ``model`` can ask: each with the names in its fields' order.

    Only plain equality on exactly the guard's lookup counts, and only guards that hear of every write of the ORM.
    """
    return _guards_for(registry, registry.version, model, tuple(names))


@lru_cache(maxsize=1_000)
def _guards_for(
    registry: Registry, version: int, model: type[Model], names: tuple[str, ...]
) -> list[tuple[Guard, tuple[str, ...]]]:
    found = []
    for guard in registry:
        if guard.sync == "statements" and _table_of(guard.model) is _table_of(model):
            chosen = tuple(_name_of(field, names) for field in guard.fields)
            if "" not in chosen and len(chosen) == len(names):
                found.append((guard, chosen))
    return found


def _name_of(field: Any, names: Sequence[str]) -> str:
    usual = {field.name, field.attname} | ({"pk"} if field.primary_key else set())
    return next((name for name in names if name.removesuffix("__exact") in usual), "")


def _table_of(model: type[Model]) -> type[Model]:
    return model._meta.concrete_model or model
