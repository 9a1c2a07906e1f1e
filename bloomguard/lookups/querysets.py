"""What a queryset's rows have to do with a guard's rows.

A guard that says ABSENT speaks of its own rows: those of one table in one database, and with ``alive`` only some of
them. It may answer in place of a queryset that has no other rows than these, and learns nothing from a queryset that
might lack one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from django.db import connections
from django.db.models import Field, Model, QuerySet
from django.db.models.sql import Query
from django.db.models.sql.where import AND

from ..exceptions import ConfigurationError
from ..keys import value_field

if TYPE_CHECKING:
    from ..guards import Guard, Registry


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

    def normalize(self, value: str) -> str:
        """Text as the database compares it."""


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


def finds_all(guard: Owner, queryset: QuerySet[Any]) -> bool:
    """Whether a query of ``queryset`` sees every row of the guard's that is committed when it begins. Never raises.

    So it is a statement of its own on the guard's own database, no copy of it: a transaction may have an older
    snapshot, and sees its own deletes, which may never be committed. It has no conditions but those of ``alive``, and
    nothing that might leave a row out: no joins, no locks to skip.
    """
    try:
        query = queryset.query
        if type(query) is not Query or query.combinator or query.is_sliced or query.distinct or query.extra_tables:
            return False
        if query.select_related or query.select_for_update or len(query.alias_map) > 1:
            return False
        if _table_of(queryset.model) is not _table_of(guard.model) or not _is_djangos(type(queryset)):
            return False
        known, asked = guard.rows().query.where, query.where
        simple = asked.connector == known.connector == AND and not asked.negated and not known.negated
        if not simple or any(condition not in known.children for condition in asked.children):
            return False
        connection = connections[queryset.db]
        # A thread that has no connection is in no transaction; `get_autocommit` would open one to say so.
        return queryset.db == guard.database and (connection.connection is None or connection.get_autocommit())
    except Exception:  # nothing is learnt
        return False


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


def is_exact(guard: Owner, value: Any) -> bool:
    """Whether no two values that the database tells apart have the key of ``value``: then a miss is the key's own.

    A ``normalize``, or a field of somebody else's, may make one key of several values. Never raises.
    """
    try:
        if not all(type(value_field(field)).__module__.startswith("django.") for field in guard.fields):
            return False
        if type(guard).normalize.__module__ != "bloomguard.guards":
            return False
        values = [field.to_python(one) for field, one in zip(guard.fields, lookup_of(guard, value).values())]
        return not any(isinstance(one, int) and abs(one) >> 63 for one in values)
    except Exception:
        return False


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
            try:
                chosen = tuple(_name_of(field, names) for field in guard.fields)
            except ConfigurationError:  # a system check says so, and whoever looks something up shall not hear of it
                continue
            if "" not in chosen and len(chosen) == len(names):
                found.append((guard, chosen))
    return found


def _name_of(field: Any, names: Sequence[str]) -> str:
    usual = {field.name, field.attname} | ({"pk"} if field.primary_key else set())
    return next((name for name in names if name.removesuffix("__exact") in usual), "")


def _table_of(model: type[Model]) -> type[Model]:
    return model._meta.concrete_model or model
