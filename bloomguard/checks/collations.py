"""Whether the database may hold values for equal that have different keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register
from django.db import DatabaseError, connections, models, router

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..keys import kind_of, value_field
from .tags import TAG

_CURE = "Give the guard a normalize(self, value) that maps equal texts to one, such as value.casefold()."
#: Databases whose usual collation takes different texts for equal.
_CASELESS = ("mysql", "microsoft")


def equality(guard: Guard, field: models.Field[Any, Any], error: Any) -> Iterator[CheckMessage]:
    """Whether the database may hold values for equal that have different keys."""
    if type(guard).normalize is not Guard.normalize:
        return
    target = value_field(field)
    collation = getattr(target, "db_collation", None)
    vendor = connections[router.db_for_write(guard.model)].vendor
    if collation:
        text = f"{field.name!r} has the collation {collation!r}, under which different texts may be equal"
        yield error(6, text, _CURE)
    elif vendor in _CASELESS and kind_of(field) == "text":
        yield error(6, f"{field.name!r} is text in {vendor}, which takes A for a unless told otherwise", _CURE)
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


#: Types of PostgreSQL's that take different texts for equal whatever the collation: without case, or padded.
_FOLDING_TYPES = ("citext", "bpchar")
#: Texts that SQLite's own collations, and the usual ones of a project's, take for ``a``.
_LIKE_A = ("A", "a ", "\u00e1")


@register(TAG, deploy=True)
def check_columns(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The columns as the database has them: a migration of raw SQL, or somebody by hand, may have changed them."""
    messages: list[CheckMessage] = []
    for guard in registry:
        alias = router.db_for_write(guard.model)
        if type(guard).normalize is not Guard.normalize or (databases is not None and alias not in databases):
            continue
        with suppress(ConfigurationError, DatabaseError):  # which is E001, or W034 where it is the same database
            messages += [
                Error(
                    f"the guard {guard.name!r}: {field.name!r} {found} in the database {alias!r}, which so takes "
                    "different texts for equal.",
                    hint=_CURE,
                    obj=guard.model,
                    id="bloomguard.E006",
                )
                for field in guard.fields
                if kind_of(field) == "text" and not getattr(value_field(field), "db_collation", None)
                if (found := _folding(connections[alias], field))
            ]
    return messages


def _folding(connection: Any, field: models.Field[Any, Any]) -> str:
    """What the database says of a text column that may take different texts for equal; empty if it is exact."""
    table, column = map(connection.ops.quote_name, (field.model._meta.db_table, field.column))
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            # No pragma tells a column's collation, but what stands in for one of its values is compared by it.
            asked = ", ".join([f"{column} = %s"] * len(_LIKE_A))
            cursor.execute(
                f"SELECT {asked} FROM (SELECT {column} FROM {table} WHERE 0 UNION ALL SELECT 'a')",  # noqa: S608
                _LIKE_A,
            )
            equal = [text for text, is_equal in zip(_LIKE_A, cursor.fetchone()) if is_equal]
            return f"takes {equal[0]!r} for 'a'" if equal else ""
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT coalesce(base.typname, type.typname), collname, collisdeterministic FROM pg_attribute "
                "JOIN pg_type type ON type.oid = atttypid LEFT JOIN pg_type base ON base.oid = type.typbasetype "
                "LEFT JOIN pg_collation ON pg_collation.oid = attcollation "
                "WHERE attrelid = to_regclass(%s) AND attname = %s",
                [table, field.column],
            )
            for kind, collation, is_exact in cursor.fetchall():
                if kind in _FOLDING_TYPES:
                    return f"is of the type {kind}"
                if is_exact is False:
                    return f"is of the nondeterministic collation {collation!r}"
    return ""
