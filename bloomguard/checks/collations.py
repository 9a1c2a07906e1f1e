"""Whether the database may hold values for equal that have different keys, or hide rows that have one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register
from django.db import DatabaseError, connections, models, router

from ..building.columns import CURE
from ..building.refusals import found
from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..keys import kind_of, value_field
from .tags import TAG

#: Databases that a rebuild can ask whether they take different texts for equal.
_ASKED = ("postgresql", "sqlite")


def equality(guard: Guard, field: models.Field[Any, Any], error: Any) -> Iterator[CheckMessage]:
    """Whether the database may hold values for equal that have different keys."""
    if type(guard).normalize is not Guard.normalize:
        return
    target = value_field(field)
    collation = getattr(target, "db_collation", None)
    vendor = connections[router.db_for_write(guard.model)].vendor
    if collation:
        text = f"{field.name!r} has the collation {collation!r}, under which different texts may be equal"
        yield error(6, text, CURE)
    elif vendor not in _ASKED and kind_of(field) == "text":
        yield error(6, f"{field.name!r} is text in {vendor}, which may take different texts for equal", CURE)
    if not type(target).get_prep_value.__module__.startswith("django."):
        yield Warning(
            f"the guard {guard.name!r}: {field.name!r} is a {type(target).__name__}, whose get_prep_value may store "
            "something else than its to_python gives.",
            hint="If it does, let to_python give what is stored, or give the guard a normalize(self, value).",
            obj=guard.model,
            id="bloomguard.W002",
        )


@register(TAG, deploy=True)
def check_columns(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The tables as the database has them: a migration of raw SQL, or somebody by hand, may have changed them."""
    messages: list[CheckMessage] = []
    for guard in registry:
        alias = router.db_for_write(guard.model)
        if databases is not None and alias not in databases:
            continue
        with suppress(ConfigurationError, DatabaseError):  # which is E001, or W034 where it is the same database
            said = {message.id for field in guard.fields for message in equality(guard, field, _error)}
            messages += [
                Error(
                    f"the guard {guard.name!r}: {refusal.reason}.",
                    hint=refusal.cure,
                    obj=guard.model,
                    id=refusal.id,
                )
                for refusal in found(guard, connections[alias])
                if refusal.id not in said
            ]
    return messages


def _error(number: int, text: str, hint: str) -> Error:
    return Error(text, hint=hint, id=f"bloomguard.E{number:03}")
