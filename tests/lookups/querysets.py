"""Draws Python expressions of querysets: one function for each of Django's features.

An expression is text, so that a failing case can be printed and evaluated anew: ``evaluate(text)``. Rows are numbered:
row 7 of each model has a key that is made of 7 (7, ``"a7"``, ``UUID(int=7)``). About half of what is drawn exists.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db import connections, models, transaction
from django.db.models import (
    Avg,
    BooleanField,
    Case,
    Count,
    DateField,
    DecimalField,
    Exists,
    F,
    Field,
    IntegerField,
    Max,
    Min,
    Model,
    OuterRef,
    Prefetch,
    Q,
    Subquery,
    Sum,
    UUIDField,
    Value,
    When,
    Window,
)
from django.db.models.functions import Coalesce, Length, Lower, Rank, RowNumber

from tests.support import database

from .guarded import lookups_of
from .models import ALL

#: Rows are numbered from 0 to here, and about half of them exist.
NUMBERS = 40


def in_transaction(evaluated: Callable[[], Any]) -> Any:
    """Evaluate within a transaction of its own."""
    with transaction.atomic(using=database.current):
        return evaluated()


def refreshed(row: Model) -> Model:
    """The row, read anew."""
    row.refresh_from_db()
    return row


#: What the expressions are made of.
NAMES: dict[str, Any] = {model.__name__: model for model in ALL} | {
    each.__name__: each
    for each in (Avg, Case, Coalesce, Count, Decimal, Exists, F, Length, Lower, Max, Min, OuterRef, Prefetch, Q, Rank)
} | {
    each.__name__: each
    for each in (RowNumber, Subquery, Sum, UUID, Value, When, Window, date, in_transaction, refreshed, async_to_sync)
}  # fmt: skip


def evaluate(expression: str) -> Any:
    """What the expression gives, all rows fetched."""
    return eval(expression, dict(NAMES))


# -- values


def value_of(field: Field[Any, Any], number: int) -> Any:
    """What row ``number`` has in a column that tells it from others."""
    field = target_of(field)
    if isinstance(field, models.CompositePrimaryKey):
        return number % 5, number // 5
    if isinstance(field, BooleanField):
        return number % 2 == 0
    if isinstance(field, UUIDField):
        return UUID(int=number)
    if isinstance(field, DecimalField):
        return Decimal(number) / 4
    if isinstance(field, DateField):
        return date(2024, 1, 1).replace(day=1 + number % 28, month=1 + number // 28)
    return number if isinstance(field, IntegerField) else f"a{number}"


def target_of(field: Field[Any, Any]) -> Field[Any, Any]:
    """The field whose values it has: of a foreign key the one it points at."""
    while field.remote_field is not None:
        field = field.target_field
    return field


def written(value: Any) -> str:
    """A value as Python source."""
    return repr(value).replace("datetime.", "")


def odd_spellings(value: Any) -> list[Any]:
    """What Django converts to the value, or to another one, or refuses: by its own rules."""
    if isinstance(value, tuple):
        return [list(value), tuple(str(one) for one in value), (*value, 1), value[:1], str(value)]
    if isinstance(value, bool):
        return [int(value), str(value), "t", None]
    if isinstance(value, int):
        return [
            str(value), float(value), f" {value}", f"{value} ", f"0{value}", value + 0.5, bool(value), Decimal(value),
            -value, 2**31 + value, 2**63, -(2**70), f"{value}.0", "x", "", None, "٧", "1_0", str(value).encode(),
        ]  # fmt: skip
    if isinstance(value, UUID):
        text = str(value)
        return [text, text.upper(), value.hex, f"{{{text}}}", f"urn:uuid:{text}", value.int, f" {text}", "x", None]
    if isinstance(value, Decimal):
        return [str(value), float(value), int(value), f"{value}000", value + Decimal("0.001"), "x", "NaN", 10**12, None]
    if isinstance(value, date):
        return [str(value), f"{value} ", f"{value:%Y%m%d}", f"{value} 00:00", f"{value:%Y-}1-1", "x", None]
    return [value.upper(), f"{value} ", value.encode(), value[:1], int(value[1:]), "", "a\x00", "\ud800", None, True]


# -- columns


@functools.cache
def columns(model: type[Model], hops: int) -> tuple[tuple[str, Field[Any, Any]], ...]:
    """Paths to columns that are ``hops`` joins away, with their fields."""
    meta = model._meta
    if not hops:
        names = {name: field for field in meta.concrete_fields for name in (field.name, field.attname)}
        return (("pk", meta.pk), *names.items())
    return tuple(
        (f"{relation.name}__{path}", field)
        for relation in meta.get_fields()
        if relation.is_relation
        for path, field in columns(relation.related_model, hops - 1)
    )


@functools.cache
def relations(model: type[Model], *, single: bool | None = None) -> tuple[str, ...]:
    """Names of relations as queries spell them: those to one row, to many, or all."""
    found = [one for one in model._meta.get_fields() if one.is_relation]
    return tuple(one.name for one in found if single is None or single == (one.many_to_one or one.one_to_one))


@functools.cache
def accessors(model: type[Model], *, single: bool) -> tuple[tuple[str, type[Model]], ...]:
    """Attributes of a row that lead to other rows, with these rows' model."""
    found = []
    for one in model._meta.get_fields():
        if one.is_relation and single == bool(one.many_to_one or one.one_to_one):
            name = one.get_accessor_name() if one.auto_created and not one.concrete else one.name
            found.append((name, one.related_model))
    return tuple(found)


class Draw:
    """Draws expressions; ``recent`` are numbers of rows that were written lately, which are drawn more often.

    ``written`` is the model of which they were, if they were of one.
    """

    def __init__(self, draw: random.Random, recent: Sequence[int], written: type[Model] | None = None) -> None:
        self.random = draw
        self.recent = recent
        self.written = written

    # -- chances

    def chance(self, share: float) -> bool:
        """True in so many cases."""
        return self.random.random() < share

    def one_of(self, *among: Any) -> Any:
        """One of these."""
        return among[self.random.randrange(len(among))]

    def weighted(self, among: dict[Any, float]) -> Any:
        """One of these, by their weights."""
        return self.random.choices(list(among), list(among.values()))[0]

    def number(self) -> int:
        """The number of a row, which is there or is not."""
        if self.recent and self.chance(0.9 if self.written else 0.35):
            return self.one_of(*self.recent)
        return self.random.randrange(NUMBERS)

    # -- conditions

    def value(self, field: Field[Any, Any], number: int | None = None) -> str:
        """A value for a column, mostly as it is."""
        value = value_of(field, self.number() if number is None else number)
        return written(self.one_of(*odd_spellings(value)) if self.chance(0.12) else value)

    def column(self, model: type[Model]) -> tuple[str, Field[Any, Any]]:
        """A column, mostly of the model's own."""
        return self.one_of(*columns(model, self.weighted({0: 60, 1: 28, 2: 12})))

    def alike(self, model: type[Model], field: Field[Any, Any]) -> str:
        """A column whose values compare with the field's, mostly; of others PostgreSQL wants to know nothing."""
        kind = type(value_of(field, 0))
        found = [path for hops in (0, 0, 1) for path, other in columns(model, hops) if type(value_of(other, 0)) is kind]
        return self.one_of(*found) if found else "pk"

    def operand(self, model: type[Model], field: Field[Any, Any], number: int | None = None) -> str:
        """The right-hand side of ``exact``: a value, or something that the database works out."""
        kind = self.weighted({"value": 90, "Value": 3, "F": 3, "queryset": 3, "row": 3})
        if kind == "Value":
            return f"Value({self.value(field, number)})"
        if kind == "F":
            return f"F({self.alike(model, field)!r})"
        if kind == "queryset":
            found = f"{self.source(model)}.filter({self.key(model)}).values({self.alike(model, field)!r})"
            return found + self.one_of("", "[:1]")
        if kind == "row" and field.remote_field is not None:
            other = field.related_model
            return f"{other.__name__}(pk={self.value(other._meta.pk, number)})"
        return self.value(field, number)

    def condition(self, model: type[Model]) -> str:
        """One keyword argument of ``filter``."""
        path, field = self.column(model)
        lookup = self.weighted({"exact": 50, "in": 15, "order": 12, "range": 5, "isnull": 8, "contains": 6, "other": 4})
        if lookup == "in":
            values = [self.value(field) for _ in range(self.random.randrange(4))]
            return f"{path}__in=[{', '.join(values)}]"
        if lookup == "order":
            return f"{path}__{self.one_of('gt', 'gte', 'lt', 'lte')}={self.value(field)}"
        if lookup == "range":
            return f"{path}__range=({self.value(field)}, {self.value(field)})"
        if lookup == "isnull":
            return f"{path}__isnull={self.one_of(True, False)}"
        if lookup == "contains":
            return f"{path}__{self.one_of('contains', 'startswith', 'iexact', 'icontains')}={str(self.number())!r}"
        if lookup == "other":
            return f"{path}__in={self.source(model)}.filter({self.condition(model)}).values({path!r})"
        return f"{path}{self.one_of('', '', '__exact')}={self.operand(model, field)}"

    def key(self, model: type[Model]) -> str:
        """Keyword arguments that look one row up by a guard's lookup, in one of many spellings."""
        guarded = self.one_of(*lookups_of(model))
        number = self.number()
        parts = []
        for name in guarded.names:
            field = model._meta.pk if name == "pk" else model._meta.get_field(name)
            spelling = self.one_of(*self.spellings(name, field))
            if len(guarded.names) > 1:
                value = number % 5 if name == "author" else f"a{number // 5}"
                parts.append(f"{spelling}={written(value)}")
            else:
                parts.append(f"{spelling}={self.operand(model, field, number)}")
        self.random.shuffle(parts)
        return ", ".join(parts)

    def spellings(self, name: str, field: Field[Any, Any]) -> list[str]:
        """How a lookup of the field can be spelled: across a foreign key as well."""
        names = [name] * 4 + [f"{name}__exact"]
        if isinstance(field, models.CompositePrimaryKey):
            return names
        names += [field.name, field.attname, f"{field.name}__exact"]
        if field.remote_field is not None:
            names += [f"{field.name}__pk", f"{field.name}__{field.target_field.name}__exact"]
        return names

    def q(self, model: type[Model], depth: int = 2) -> str:
        """A tree of conditions."""
        kind = self.weighted({"leaf": 40, "and": 20, "or": 15, "xor": 5, "not": 15, "empty": 2, "exists": 6})
        if kind == "empty":
            return "Q()"
        if kind == "exists":
            return f"Q({self.exists(model)})"
        if kind == "leaf" or not depth:
            return f"Q({self.key(model) if self.chance(0.4) else self.condition(model)})"
        if kind == "not":
            return f"~{self.q(model, depth - 1)}"
        sign = {"and": "&", "or": "|", "xor": "^"}[kind]
        return f"({self.q(model, depth - 1)} {sign} {self.q(model, depth - 1)})"

    def exists(self, model: type[Model]) -> str:
        """Whether a subquery has rows: one that asks for the outer row, mostly."""
        other = self.one_of(*ALL)
        path, field = self.one_of(*columns(other, 0))
        outer = self.one_of(f"{path}=OuterRef({self.alike(model, field)!r})", self.key(other))
        return f"{self.one_of('', '', '~')}Exists({other.__name__}.objects.filter({outer}, {self.condition(other)}))"

    # -- where a queryset comes from

    def source(self, model: type[Model]) -> str:
        """A manager, mostly the usual one."""
        managers = {"objects": 90, "_base_manager": 4, "_default_manager": 4, "objects.all()": 3, "objects.none()": 1}
        managers |= {"undeleted": 60} if model.__name__ == "Article" else {}
        managers |= {"good": 40} if model.__name__ == "Writer" else {}
        managers |= {f"objects.using({alias!r})": 3 for alias in connections}
        return f"{model.__name__}.{self.weighted(managers)}"

    def related(self, model: type[Model]) -> tuple[str, type[Model]]:
        """The manager of a relation, of a row that is fetched or only said to be there."""
        name, other = self.one_of(*accessors(model, single=False) or [("", model)])
        if not name:
            return self.source(model), model
        return f"{self.row(model)}.{name}", other

    def row(self, model: type[Model]) -> str:
        """One row, fetched or only said to be there."""
        if self.chance(0.3):
            return f"{model.__name__}(pk={written(value_of(model._meta.pk, self.number()))})"
        return self.one_of(
            f"{self.source(model)}.get({self.key(model)})",
            f"{self.source(model)}.filter({self.key(model)}).first()",
            f"{self.source(model)}.order_by('pk')[{self.random.randrange(5)}]",
        )

    # -- what is done with it

    def steps(self, model: type[Model]) -> str:
        """Calls of queryset methods, in an order that often makes sense."""
        text = self.alive(model)
        if self.chance(0.8):
            text = self.one_of(f"{text}.filter({self.key(model)})", f".filter({self.key(model)}){text}")
        for _ in range(self.weighted({0: 35, 1: 35, 2: 20, 3: 10})):
            text += self.step(model)
        if self.chance(0.08):
            text += self.slice()
        if self.chance(0.03):
            text += self.step(model)
        return text

    def alive(self, model: type[Model]) -> str:
        """The condition of a soft-deleted model: as its guard has it, in other words, or another one."""
        if model.__name__ == "Article":
            return self.weighted({
                ".filter(deleted=False)": 50, ".filter(Article.ALIVE)": 30, ".exclude(deleted=True)": 5, "": 40,
                ".filter(deleted=0)": 4, ".filter(deleted=True)": 3, ".filter(~Q(deleted=True))": 3,
                ".filter(Q(deleted=False) | Q(author=None))": 3,
            })  # fmt: skip
        if model.__name__ == "Listing":
            return self.weighted({
                ".filter(Listing.ALIVE)": 50, ".filter(Q(hidden=False) | Q(kept=True))": 30, "": 40,
                ".filter(Q(kept=True) | Q(hidden=False))": 5, ".filter(hidden=False)": 5, ".filter(kept=True)": 5,
                ".filter(Q(hidden=False) & Q(kept=True))": 3, ".exclude(hidden=True, kept=False)": 3,
            })  # fmt: skip
        return ""

    def step(self, model: type[Model]) -> str:
        """One call of a queryset method."""
        made: Callable[[type[Model]], str] = self.weighted({
            self.filter: 16, self.exclude: 6, self.tree: 14, self.annotate: 8, self.group: 5, self.subquery: 5,
            self.window: 3, self.alias: 3, self.order: 14, self.reverse: 2, self.distinct: 5, self.values: 8,
            self.select_related: 8, self.prefetch_related: 8, self.defer: 6, self.extra: 3, self.using: 3,
            self.none: 1, self.combine: 4, self.all: 2, self.lock: 1, self.complex_filter: 2, self.ands: 3,
        })  # fmt: skip
        return made(model)

    def filter(self, model: type[Model]) -> str:
        return f".filter({self.condition(model)})"

    def exclude(self, model: type[Model]) -> str:
        return f".exclude({self.key(model) if self.chance(0.3) else self.condition(model)})"

    def tree(self, model: type[Model]) -> str:
        return f".filter({self.q(model)})"

    def complex_filter(self, model: type[Model]) -> str:
        return f".complex_filter({self.q(model)})"

    def ands(self, model: type[Model]) -> str:
        """Two querysets as one, by AND or by OR."""
        return f" {self.one_of('&', '|', '^')} {self.source(model)}.filter({self.key(model)})"

    def annotate(self, model: type[Model]) -> str:
        path, _ = self.column(model)
        made = self.one_of(f"F({path!r})", f"Value({self.number()})", f"Coalesce(F({path!r}), F({path!r}))")
        case = f"Case(When({self.q(model)}, then=Value(1)), default=Value(0))"
        made = self.one_of(made, made, case, f"Q({self.key(model)})")
        return f".annotate(noted={made}){self.one_of('', '', f'.filter(noted={self.number()})')}"

    def group(self, model: type[Model]) -> str:
        """Counts rows of a relation; after ``values`` it counts the model's own."""
        path = self.one_of(*relations(model))
        options = self.one_of("", ", distinct=True", f", filter={self.q(model)}")
        before = self.one_of("", "", "", f".values({self.one_of(*columns(model, 0))[0]!r})", ".values()")
        after = self.one_of("", "", ".filter(counted__gt=0)", ".filter(counted=0)")
        return f"{before}.annotate(counted=Count({path!r}{options})){after}"

    def subquery(self, model: type[Model]) -> str:
        other = self.one_of(*ALL)
        path, field = self.one_of(*columns(other, 0))
        inner = f"{other.__name__}.objects.filter({path}={self.value(field)}).values({path!r})[:1]"
        if self.chance(0.4):
            return f".annotate(has={self.exists(model)}){self.one_of('', '.filter(has=True)', '.filter(has=False)')}"
        return f".annotate(found=Subquery({inner}))"

    def window(self, model: type[Model]) -> str:
        made = self.one_of("RowNumber()", "Rank()", "Count('pk')")
        over = self.one_of("", f", partition_by=[F({self.one_of(*columns(model, 0))[0]!r})]")
        return f".annotate(place_in=Window({made}{over}, order_by='pk')){self.one_of('', '.filter(place_in=1)')}"

    def alias(self, model: type[Model]) -> str:
        path, field = self.column(model)
        return f".alias(hid=F({path!r})).filter(hid={self.value(field)})"

    def order(self, model: type[Model]) -> str:
        names = [f"{self.one_of('', '-')}{self.column(model)[0]}" for _ in range(self.random.randrange(1, 3))]
        if self.chance(0.05):
            return ".order_by('?')"
        return f".order_by({', '.join(map(repr, names))}, 'pk')"

    def reverse(self, model: type[Model]) -> str:
        return ".order_by('pk').reverse()"

    def distinct(self, model: type[Model]) -> str:
        return self.one_of(".distinct()", ".distinct()", ".order_by('pk').distinct('pk')")

    def values(self, model: type[Model]) -> str:
        path, _ = self.column(model)
        return self.one_of(
            ".values()", ".values_list()", f".values({path!r})", f".values_list({path!r}, flat=True)",
            f".values_list('pk', {path!r}, named=True)", ".values_list('pk', flat=True)",
            f".values('pk', up=F({path!r}))",
        )  # fmt: skip

    def select_related(self, model: type[Model]) -> str:
        names = relations(model, single=True)
        others = {name: model._meta.get_field(name).related_model for name in names}
        nested = [f"{name}__{each}" for name, other in others.items() for each in relations(other, single=True)]
        return f".select_related({self.one_of('', *map(repr, names), *map(repr, nested))})"

    def prefetch_related(self, model: type[Model]) -> str:
        name, other = self.one_of(*accessors(model, single=False) + accessors(model, single=True))
        if self.chance(0.4):
            return f".prefetch_related({name!r})"
        fetched = f"{self.source(other)}{self.alive(other)}{self.filter(other)}"
        attribute = self.one_of("", ", to_attr='fetched'")
        return f".prefetch_related(Prefetch({name!r}, {fetched}{attribute}))"

    def defer(self, model: type[Model]) -> str:
        name = self.one_of(*model._meta.concrete_fields).name
        return self.one_of(f".defer({name!r})", f".only({name!r})", ".only('pk')")

    def extra(self, model: type[Model]) -> str:
        column = f"{model._meta.db_table}.{model._meta.concrete_model._meta.local_concrete_fields[0].column}"
        return self.one_of(
            f".extra(where=['{column} IS NOT NULL'])",
            ".extra(select={'more': '1 + %s'}, select_params=[1])",
            f".extra(tables=['lookups_tag'], where=['lookups_tag.id = %s'], params=[{self.number()}])",
        )

    def using(self, model: type[Model]) -> str:
        return f".using({self.one_of(*connections)!r})"

    def none(self, model: type[Model]) -> str:
        return ".none()"

    def all(self, model: type[Model]) -> str:
        return ".all()"

    def lock(self, model: type[Model]) -> str:
        return f".select_for_update({self.one_of('', '', 'skip_locked=True', 'nowait=True')})"

    def combine(self, model: type[Model]) -> str:
        """Union and the like, with another queryset that has one key, perhaps."""
        method = self.one_of("union", "union", "intersection", "difference")
        other = f"{self.source(model)}.filter({self.key(model) if self.chance(0.6) else self.condition(model)})"
        if self.chance(0.5):
            return f".{method}({other})"
        every = ", all=True" if method == "union" and self.chance(0.5) else ""
        return f".order_by().values_list('pk').{method}({other}.order_by().values_list('pk'){every}).order_by('pk')"

    def slice(self) -> str:
        start = self.one_of("", "0", "1", "2")
        return f"[{start}:{self.one_of('1', '2', '21', '')}]"

    # -- how it ends

    def end(self, queryset: str, model: type[Model]) -> str:
        """What asks the database."""
        path, field = self.one_of(*columns(model, 0))
        ended: str = self.weighted({
            f"list({queryset})": 40, f"{queryset}.get()": 10, f"{queryset}.get({self.key(model)})": 8,
            f"{queryset}.first()": 8, f"{queryset}.last()": 4, f"{queryset}.exists()": 8, f"{queryset}.count()": 6,
            f"{queryset}.earliest({path!r})": 2, f"{queryset}.latest({path!r}, 'pk')": 2, f"bool({queryset})": 2,
            f"{queryset}.aggregate(n=Count({path!r}), most=Max({path!r}))": 4, f"len({queryset})": 2,
            f"{queryset}.aggregate(total=Sum({path!r}, default=0), least=Min({path!r}))": 2,
            f"{queryset}.contains({self.row(model)})": 4, f"list({queryset}.iterator())": 4,
            f"list({queryset}.iterator(chunk_size=2))": 2, f"{queryset}.in_bulk([{self.value(model._meta.pk)}])": 3,
            f"{queryset}.in_bulk()": 1, f"{queryset}[{self.random.randrange(3)}]": 3,
            f"in_transaction(lambda: list({queryset}.select_for_update()))": 3,
            f"async_to_sync({queryset}.aget)()": 1, f"async_to_sync({queryset}.afirst)()": 1,
            f"async_to_sync({queryset}.aexists)()": 1, f"list({queryset}.dates('day', 'month'))": 1,
            f"{queryset}.in_bulk([{self.value(field)}, {self.value(field)}], field_name={path!r})": 2,
        })  # fmt: skip
        return ended

    # -- whole expressions

    def expression(self) -> str:
        """One expression."""
        model = self.written or self.one_of(*ALL)
        made: Callable[[type[Model]], str] = self.weighted({
            self.usual: 78, self.of_relation: 8, self.forward: 5, self.refresh: 3, self.raw: 2, self.write: 4,
        })  # fmt: skip
        return made(model)

    def usual(self, model: type[Model]) -> str:
        return self.end(self.source(model) + self.steps(model), model)

    def of_relation(self, model: type[Model]) -> str:
        manager, other = self.related(model)
        return self.end(manager + self.steps(other), other) if self.chance(0.8) else f"list({manager}.all())"

    def forward(self, model: type[Model]) -> str:
        names = accessors(model, single=True) or [("pk", model)]
        name, _ = self.one_of(*names)
        field = model._meta.get_field(name) if name != "pk" else None
        if field is not None and field.concrete and self.chance(0.4):
            return f"{model.__name__}({field.attname}={written(value_of(field, self.number()))}).{name}"
        return f"{self.row(model)}.{name}"

    def refresh(self, model: type[Model]) -> str:
        return f"refreshed({self.row(model)})"

    def raw(self, model: type[Model]) -> str:
        """Raw SQL, which no guard answers."""
        field = self.one_of(*model._meta.concrete_model._meta.local_concrete_fields)
        table = model._meta.db_table
        sql = f"SELECT * FROM {table} WHERE {table}.{field.column} = %s"
        return f"list({model.__name__}.objects.raw({sql!r}, [{written(value_of(field, self.number()))}]))"

    def write(self, model: type[Model]) -> str:
        """Something that looks before it writes; whoever evaluates it takes it back."""
        rows, key = self.source(model), self.key(model)
        key_field = next((field for field in model._meta.fields if field.name == "id"), None)
        new = {} if key_field is None else {"id": value_of(key_field, NUMBERS + self.number())}
        defaults = f"defaults={new}"
        field = model._meta.concrete_fields[-1]
        return self.one_of(
            f"{rows}.get_or_create({key}, {defaults})",
            f"{rows}.update_or_create({key}, {defaults})",
            f"{rows}.filter({key}).delete()",
            f"{rows}.filter({key}).update({field.name}={self.value(field)})",
        )


def writes(expression: str) -> bool:
    """Whether the expression may write."""
    return any(f".{method}(" in expression for method in ("get_or_create", "update_or_create", "delete", "update"))
