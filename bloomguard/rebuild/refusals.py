"""Reasons not to build a filter, because it would deny rows that exist; checked before any row is scanned.

Some follow from the guard's declaration, and are a system check too. The others are read from the database on the
rebuild's own connection; ``check --deploy`` runs the same queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.backends.base.base import BaseDatabaseWrapper

from ..guards import Guard
from ..guards import conditions as alive
from ..guards.fields import kind_of, own_class, value_field
from ..guards.scopes import SCHEMA
from ..writes.tables import columns as tracked_columns
from ..writes.tables import folded
from . import columns

#: ID of the check for a table name that means several tables.
SEVERAL_TABLES = "bloomguard.E137"


@dataclass(frozen=True)
class Refusal:
    """Why a guard may not be armed: ``reason`` continues after the guard's name, ``id`` is that of the system check."""

    id: str
    reason: str
    cure: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.cure}"


def declaration_refusals(guard: Guard) -> Iterator[Refusal]:
    """Yield the reasons that follow from the guard's declaration."""
    for field in guard._meta.fields:
        if name := own_class(field):
            cure = "Look rows up by another field, or let its to_python return a plain value"
            if kind_of(field) == "text":
                cure = "Give the guard a normalize(self, value) that returns a str, or look rows up by another field"
                if guard._meta.normalizes:
                    continue
            kind = type(value_field(field)).__name__
            yield Refusal(
                "bloomguard.W105",
                f"{field.name!r} is a {kind}, whose to_python returns a {name}, of which no key can be made",
                f"{cure}.",
            )
    for doubt in dict.fromkeys(alive.refusal_reasons(guard.model, guard.alive)):
        yield Refusal("bloomguard.W113", f"alive is not allowed: it {doubt}", alive.CURE)


def database_refusals(guard: Guard, connection: BaseDatabaseWrapper) -> Iterator[Refusal]:
    """Yield the reasons that are found in the database; raises :class:`DatabaseError`."""
    for table in sorted(guard._meta.tables):
        for refusal in _of_table(connection, table):
            if refusal.id != SEVERAL_TABLES or guard.scope != SCHEMA:
                yield refusal
        yield from _of_computed(guard, connection, table)
    for field in guard._meta.fields:
        if kind_of(field) and (reason := columns.difference(connection, guard, field)):
            found_in = f"{field.name!r} {reason} in the database {connection.alias!r}"
            if kind_of(field) == "text":
                yield Refusal("bloomguard.W106", f"{found_in}, where different texts may be equal", columns.CURE)
            else:
                reason = f"{found_in}, where equal values may have different keys"
                yield Refusal("bloomguard.W106", reason, columns.RETYPE)


def _of_computed(guard: Guard, connection: BaseDatabaseWrapper, table: str) -> Iterator[Refusal]:
    """Yield a refusal for each column that an UPDATE of others may change, though its field does not say so."""
    models = (guard.model, *guard.model._meta.all_parents)
    declared = {folded(field) for model in models for field in model._meta.local_concrete_fields if field.generated}
    watched = tracked_columns(guard, table) - declared
    for column in sorted(watched & columns.computed(connection, table)):
        yield Refusal(
            "bloomguard.W136",
            f"the database {connection.alias!r} computes the column {column!r} of {table!r} from others, and its "
            "field is no GeneratedField",
            "Look rows up by another column; for alive, declare the field as a GeneratedField.",
        )


def unreadable_columns(guard: Guard, connection: BaseDatabaseWrapper) -> str:
    """Return the columns that the PostgreSQL role lacks SELECT on, with the cure; empty if it may read all."""
    if connection.vendor != "postgresql":
        return ""
    wanted: dict[str, set[str]] = {}
    for field in {*guard._meta.fields, *guard.model._meta.pk_fields, *_alive_fields(guard)}:
        wanted.setdefault(field.model._meta.db_table, set()).add(field.column)
    for table, names in sorted(wanted.items()):
        name = connection.ops.quote_name(table)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT attname, current_user FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) "
                "AND NOT has_column_privilege(attrelid, attnum, 'SELECT') ORDER BY attname",
                [name, sorted(names)],
            )
            denied = cursor.fetchall()
        if denied:
            listed, role = ", ".join(column for column, _ in denied), denied[0][1]
            return f"the role {role!r} may not read {listed} of {table}. GRANT SELECT ON {name} TO {role}"
    return ""


def _alive_fields(guard: Guard) -> Iterator[Any]:
    for name in guard._meta.alive_fields:
        try:
            yield guard.model._meta.get_field(name)
        except FieldDoesNotExist:
            continue


#: PostgreSQL's relations whose rows depend on the session, or are stored on another server.
_RELATIONS = {
    "v": "a view, which may show other rows in another session",
    "f": "a foreign table, whose rows are written elsewhere",
}


_INNODB = "Convert it to InnoDB: others have no transactions, or store their rows elsewhere."


def _of_table(connection: BaseDatabaseWrapper, table: str) -> Iterator[Refusal]:
    if connection.vendor == "postgresql":
        yield from _of_postgresql(connection, table)
        return
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(
                "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
                [table],
            )
            for (engine,) in cursor.fetchall():
                if engine not in (None, "InnoDB"):
                    yield Refusal("bloomguard.W136", f"{table!r} is of the engine {engine}", _INNODB)
        for relation in connection.introspection.get_table_list(cursor):
            if relation.name.lower() == table.lower() and relation.type == "v":
                yield _of_relation(table, "v")


def _of_relation(table: str, kind: str) -> Refusal:
    return Refusal(
        "bloomguard.W136", f"{table!r} is {_RELATIONS[kind]}", "Guard a model of the table that rows are written to."
    )


def _of_postgresql(connection: BaseDatabaseWrapper, table: str) -> Iterator[Refusal]:
    name = connection.ops.quote_name(table)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relkind, relpersistence, row_security_active(pg_class.oid), nspname, current_user, "
            "pg_is_in_recovery(), ARRAY(SELECT other.nspname::text FROM pg_class same "
            "JOIN pg_namespace other ON other.oid = same.relnamespace WHERE same.relname = pg_class.relname "
            "AND same.oid <> pg_class.oid AND same.relkind IN ('r', 'p', 'v', 'm', 'f') "
            "AND other.nspname NOT LIKE 'pg\\_%%' AND other.nspname <> 'information_schema' "
            "AND has_schema_privilege(other.oid, 'USAGE') ORDER BY 1) "
            "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(%s)",
            [name],
        )
        row = cursor.fetchone()
    if row is None:
        return  # no such table: the statement that reads it fails
    relation, persistence, hides_rows, schema, role, is_standby, others = row
    if relation in _RELATIONS:
        yield _of_relation(table, relation)
    if persistence == "t":
        yield Refusal(
            "bloomguard.W136", f"{table!r} is a temporary table, of which each session has its own", "Drop it."
        )
    if hides_rows:
        yield Refusal(
            "bloomguard.W136",
            f"row-level security hides rows of {table!r} from the role {role!r}",
            "Run rebuild_filter and verify_filter as a role that sees all rows: one with BYPASSRLS, or the owner if "
            "row-level security is not forced.",
        )
    if others and '"."' not in name:
        yield Refusal(
            SEVERAL_TABLES,
            f"{table!r} is a table of the schema {schema!r}, and of {', '.join(map(repr, others))}: with another "
            "search_path a process reads other rows",
            "If the other is an unused copy, rename it, or REVOKE USAGE ON its SCHEMA. If each tenant has one, set "
            "scope = 'schema'.",
        )
    if is_standby:
        yield Refusal(
            "bloomguard.W136",
            f"the database {connection.alias!r} is a standby, where rows become visible later than their COMMIT",
            "Let the router's db_for_write return the primary.",
        )
