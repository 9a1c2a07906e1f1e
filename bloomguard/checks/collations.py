"""Whether the database may hold values for equal that have different keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Warning
from django.db import connections, models, router

from ..guards import Guard
from ..keys import kind_of, value_field

#: Databases whose usual collation takes different texts for equal.
_CASELESS = ("mysql", "microsoft")


def equality(guard: Guard, field: models.Field[Any, Any], error: Any) -> Iterator[CheckMessage]:
    """Whether the database may hold values for equal that have different keys."""
    if type(guard).normalize is not Guard.normalize:
        return
    target = value_field(field)
    cure = "Give the guard a normalize(self, value) that maps equal texts to one, such as value.casefold()."
    collation = getattr(target, "db_collation", None)
    vendor = connections[router.db_for_write(guard.model)].vendor
    if collation:
        text = f"{field.name!r} has the collation {collation!r}, under which different texts may be equal"
        yield error(6, text, cure)
    elif vendor in _CASELESS and kind_of(field) == "text":
        yield error(6, f"{field.name!r} is text in {vendor}, which takes A for a unless told otherwise", cure)
    if kind_of(field) == "text" and not target.model._meta.managed:
        yield Warning(
            f"the guard {guard.name!r}: {field.name!r} is text in a table that Django does not manage; if its column "
            "pads or folds text, as char(n) and citext do, rows are found under other texts than theirs.",
            hint="If it is, give the guard a normalize(self, value), such as value.rstrip(' ') for char(n).",
            obj=guard.model,
            id="bloomguard.W006",
        )
    if not type(target).get_prep_value.__module__.startswith("django."):
        yield Warning(
            f"the guard {guard.name!r}: {field.name!r} is a {type(target).__name__}, whose get_prep_value may store "
            "something else than its to_python gives.",
            hint="If it does, let to_python give what is stored, or give the guard a normalize(self, value).",
            obj=guard.model,
            id="bloomguard.W002",
        )
