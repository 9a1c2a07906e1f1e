"""Rows by their numbers: row 7 of each model has a key that is made of 7, on either database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import Field, Model
from django.db.models.functions import Concat

from .models import (
    ALL,
    Annex,
    Article,
    Author,
    Diary,
    Entry,
    Hall,
    Label,
    Note,
    Page,
    Place,
    Price,
    Profile,
    Seat,
    Tag,
    Tagging,
    Token,
)

#: Models whose rows are one row of one table each.
PLAIN = tuple(model for model in ALL if model not in (Label, Hall, Annex))
#: The columns that guards look up, or that say who is alive, and that may change.
KEYS: dict[type[Model], Sequence[str]] = {
    Author: ["id"],
    Profile: ["code", "author"],
    Tag: ["slug", "id"],
    Label: ["slug", "id"],
    Token: ["id"],
    Seat: ["free", "number"],
    Place: ["slug", "closed"],
    Hall: ["slug", "closed", "chairs"],
    Annex: ["slug", "code"],
    Article: ["slug", "deleted", "id", "topic"],
    Tagging: ["tag", "article"],
    Diary: ["day", "amount"],
    Price: ["code", "net"],
    Page: ["slug", "author", "hidden", "kept"],
    Note: ["about"],
    Entry: ["serial", "code", "day"],
}
#: Numbers are few, so that rows meet.
NUMBERS = 10


def value_of(field: Field[Any, Any], number: int) -> Any:
    """What row ``number`` has in ``field``, as Python has it."""
    kind = field.get_internal_type()
    if kind == "BooleanField":
        return number % 3 == 0
    if kind == "BigIntegerField":
        return (number - 3) * 10_000_000_000 if field.model is Entry else (1 << 40) + number
    if kind == "UUIDField":
        return UUID(int=number + 1)
    if kind == "DateField":
        return date(2024, 2, 27) + timedelta(days=number)
    if kind == "DecimalField":
        return Decimal(number * 25) / 100
    if kind in ("CharField", "SlugField"):
        return f"{'A' if number % 2 else 'a'}{number}"
    if field.model is Seat:
        return number % 3 if field.name == "bench" else number // 3
    return number * 3 - 6 if field.primary_key else number % 5 - 1


def some(model: type[Model], draw: Random, name: str = "pk", null: bool = True) -> Any:
    """The value of some row, or ``None``."""
    found = list(model._base_manager.order_by("pk").values_list(name, flat=True)[:30])
    return draw.choice([*found, None] if null else found) if found else None


def row_of(model: type[Model], draw: Random) -> Any:
    """Some row that is there, or ``None``."""
    pk = some(model, draw, null=False)
    return None if pk is None else model._base_manager.filter(pk=pk).first()


def made(model: type[Model], number: int, draw: Random) -> Any:
    """Row ``number``, not saved; what the database has a default for is left to it at times."""
    if model in (Hall, Annex):  # a place is one of them: Django deletes a parent's row and not its other child's
        number = number // 2 * 2 + (model is Annex)
    values: dict[str, Any] = {}
    for field in model._meta.concrete_fields:
        if getattr(field, "generated", False) or (field.primary_key and model in (Note, Tagging)):
            continue
        if field.has_db_default() and draw.random() < 0.5:
            continue
        if field.remote_field is None:
            values[field.attname] = value_of(field, number)
            if field.null and draw.random() < 0.2:
                values[field.attname] = None
            elif field.get_internal_type() in ("CharField", "SlugField") and draw.random() < 0.05:
                values[field.attname] = Concat(models.Value("a"), models.Value(str(number)))
        elif not field.remote_field.parent_link:
            values[field.attname] = some(field.related_model, draw, field.target_field.attname, null=field.null)
    if model is Annex:
        values["code"] = f"x{number}"
    return model(**values)


def shape(row: Any) -> Any:
    """What a row holds after it was written."""
    if not isinstance(row, Model):
        return repr(row)
    values = [row.__dict__.get(field.attname, "-") for field in row._meta.concrete_fields]
    plain = [type(value).__name__ if hasattr(value, "resolve_expression") else repr(value) for value in values]
    return [type(row).__name__, row._state.adding, plain]
