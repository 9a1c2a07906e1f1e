"""The guards of the differential test: what each is of, and by which SQL the database tells whether a key exists."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import Field, Model, Q

from bloomguard.guards import Guard
from tests.support.guarding import registered

from .models import Annex, Article, Author, Diary, Hall, Listing, Page, Place, Seat, Tag, Tagging, Token, Writer

EVERY_ROW = Q()


@dataclass(frozen=True)
class Guarded:
    """One guard to be registered. ``alive_sql`` is ``alive`` in SQL that no compiler has made."""

    model: type[Model]
    lookup: str | tuple[str, ...]
    filter: str
    alive: Q = EVERY_ROW
    alive_sql: str = "1 = 1"
    error_rate: float = 0.001

    @property
    def name(self) -> str:
        """The guard's name."""
        return "-".join(["lookups", self.model.__name__.lower(), *self.names, self.filter])

    @property
    def names(self) -> tuple[str, ...]:
        """The lookup's names."""
        return (self.lookup,) if isinstance(self.lookup, str) else self.lookup


_GUARDED = (
    Guarded(Author, "pk", "bloom"),
    Guarded(Writer, "pk", "cuckoo"),  # of a proxy: the same rows as its model's
    Guarded(Tag, "pk", "bitmap"),
    Guarded(Tag, "slug", "bloom", error_rate=0.2),  # false positives are found, and remembered
    Guarded(Token, "pk", "cuckoo"),
    Guarded(Seat, "pk", "bloom"),
    Guarded(Place, "pk", "bloom", error_rate=0.2),
    Guarded(Place, "slug", "bloom"),
    Guarded(Hall, "pk", "bitmap"),
    Guarded(Annex, "pk", "bloom"),
    Guarded(Annex, "slug", "cuckoo"),  # a column of its parent's table
    Guarded(Article, "pk", "cuckoo", Article.ALIVE, "NOT deleted"),
    Guarded(Article, "slug", "bloom", Article.ALIVE, "NOT deleted"),
    Guarded(Tagging, "pk", "bitmap"),
    Guarded(Listing, "pk", "bloom", Listing.ALIVE, "(NOT hidden OR kept)"),
    Guarded(Diary, "day", "bitmap"),
    Guarded(Diary, "amount", "bloom"),
    Guarded(Page, ("author", "slug"), "bloom"),
    Guarded(Page, "pk", "cuckoo"),
)
GUARDED = {one.name: one for one in _GUARDED}


def register_all(stack: ExitStack) -> dict[str, Guard]:
    """Register every guard for as long as the stack lasts."""
    return {
        name: stack.enter_context(
            registered(
                one.model,
                name=name,
                lookup=one.lookup,
                filter=one.filter,
                alive=one.alive,
                error_rate=one.error_rate,
                capacity=1_000,
            )
        )
        for name, one in GUARDED.items()
    }


def lookups_of(model: type[Model]) -> list[Guarded]:
    """What guards there are of the model's rows."""
    return [one for one in _GUARDED if one.model._meta.concrete_model is model._meta.concrete_model]


def rows_with(guard: Guard, value: Any, using: str) -> int:
    """How many rows the database has with this key, by SQL that no compiler has made; ``value`` as a guard takes it."""
    meta, connection = guard.model._meta, connections[using]
    tables = {meta.concrete_model._meta.db_table: ""}
    for child in (meta.concrete_model, *meta.all_parents):
        for parent, link in child._meta.parents.items():
            own, other = child._meta.db_table, parent._meta.db_table
            tables[other] = f" JOIN {other} ON {other}.{parent._meta.pk.column} = {own}.{link.column}"
    values = value if len(guard._meta.fields) > 1 else [value]
    if isinstance(values, dict):
        values = [values[field.name] for field in guard._meta.fields]
    if any(type(one) is int and abs(one) >> 63 for one in values):
        return 0  # no column holds it, and drivers refuse it
    wheres = [f"{field.model._meta.db_table}.{field.column} = %s" for field in guard._meta.fields]
    sql = f"SELECT COUNT(*) FROM {meta.db_table}{''.join(tables.values())} WHERE {' AND '.join(wheres)}"
    with connection.cursor() as cursor:
        cursor.execute(
            f"{sql} AND {GUARDED[guard.name].alive_sql}",
            [_prepared(field, one, connection) for field, one in zip(guard._meta.fields, values)],
        )
        return cursor.fetchone()[0]


def _prepared(field: Field[Any, Any], value: Any, connection: Any) -> Any:
    while field.remote_field is not None:
        field = field.target_field
    return field.get_db_prep_value(field.to_python(value), connection)
