"""Reasons not to build a filter, because it would deny rows that exist; checked before any row is scanned.

Some follow from the guard's declaration, and are a system check too. The others are read from the database on the
rebuild's own connection; ``check --deploy`` runs the same queries.

The database must compare a column as keys are compared: values that it treats as equal must have one key. On PostgreSQL
and MariaDB the catalogue gives a column's type and collation. On SQLite, and if a guard normalizes, the database
compares sample values with each other as values of the column: values that collations fold or pad, or that a column's
affinity converts to numbers.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.core.exceptions import FieldDoesNotExist
from django.db import DatabaseError, models
from django.db.backends.base.base import BaseDatabaseWrapper

from ..guards import Guard
from ..guards import conditions as alive
from ..guards.fields import kind_of, own_class, value_field
from ..guards.keys import OutOfRange, Uncertain, Unkeyable
from ..guards.scopes import SCHEMA
from ..state.connection import is_denied
from ..writes.tables import folded_column, tracked_columns
from . import backends

#: ID of the check for a table name that means several tables.
SEVERAL_TABLES = "bloomguard.E137"
#: The collations of MariaDB and MySQL that compare texts byte by byte. Others with ``bin`` ignore spaces at the end.
EXACT_COLLATIONS = {"utf8mb4_nopad_bin", "utf8mb3_nopad_bin", "utf8mb4_0900_bin"}
CURE = (
    "Give the guard a normalize(self, value) that maps equal texts to one, such as value.rstrip(' ') for char(n), or "
    "value.casefold().replace('i\\u0307', 'i') for a case-insensitive column."
)
RETYPE = "Change the column to the type that Django creates for the field, or look rows up by another field."

#: By the kind of key: PostgreSQL's types under which two values are equal only if their keys are equal.
_EXACT_TYPES = {
    "integer": {"int2", "int4", "int8", "numeric"},
    "uuid": {"uuid"},
    "text": {"text", "varchar"},
    "decimal": {"numeric"},
    "date": {"date"},
}
#: The same of MySQL and MariaDB; of texts the collation has to be exact too.
_MYSQL_TYPES = {
    "integer": {"tinyint", "smallint", "mediumint", "int", "bigint"},
    "uuid": {"uuid", "char"},
    "text": {"varchar", "tinytext", "text", "mediumtext", "longtext"},
    "decimal": {"decimal"},
    "date": {"date"},
}
#: Sample values that a collation, a type or an affinity may treat as equal though their keys differ: case, accents,
#: composed and decomposed letters, widths, spaces, punctuation, spellings of a number.
_TRIED: dict[str, Sequence[Any]] = {
    "text": (
        "a", "A", "a ", " a", "\u00e1", "a\u0301", "\uff41", "a-", "ss", "\u00df", "i", "I", "\u0131", "\u0130",
        "7", "007", "7.0", "7e0", "0x7", "-", "",
    ),
    "integer": (0, 1, -1, 7, 2**24, 2**24 + 1, 2**31 - 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1),
    "uuid": (UUID(int=7), UUID(int=0x70), UUID(int=0x7E1), UUID(int=1 << 124), UUID(int=(1 << 124) + 1)),
    "decimal": tuple(map(Decimal, ("0", "1", "-1", "0.5", "0.01", "7", "70"))),
    "date": tuple(datetime.date(*day) for day in ((1, 1, 1), (2024, 1, 1), (2024, 2, 29), (9999, 12, 31))),
}  # fmt: skip
#: Generated columns, and those that each UPDATE of a row sets; for each database of which guards are built.
_COMPUTED = {
    "sqlite": "SELECT name FROM pragma_table_xinfo(%s) WHERE hidden IN (2, 3)",
    "postgresql": "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attgenerated <> ''",
    "mysql": "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s "
    "AND (extra LIKE '%%GENERATED%%' OR extra LIKE '%%on update%%')",
}
#: By the kind of key: a plain field that prepares the sample values for the database.
_FIELDS: dict[str, models.Field[Any, Any]] = {
    "text": models.TextField(),
    "integer": models.BigIntegerField(),
    "uuid": models.UUIDField(),
    "decimal": models.DecimalField(max_digits=9, decimal_places=2),
    "date": models.DateField(),
}

#: PostgreSQL's relations whose rows depend on the session, or are stored on another server.
_RELATIONS = {
    "v": "a view, which may show other rows in another session",
    "f": "a foreign table, whose rows are written elsewhere",
}
#: Foreign tables below a partitioned or inherited table, and the subscriptions that write it or a table below it.
_FED = (
    "WITH RECURSIVE below AS (SELECT to_regclass(%s)::oid AS oid "
    "UNION SELECT inhrelid FROM pg_inherits JOIN below ON inhparent = below.oid) "
    "SELECT DISTINCT relname::text, subname::text FROM below JOIN pg_class USING (oid) "
    "LEFT JOIN pg_subscription_rel ON srrelid = pg_class.oid "
    "LEFT JOIN pg_subscription ON pg_subscription.oid = srsubid AND subenabled "
    "WHERE subname IS NOT NULL OR (relkind = 'f' AND pg_class.oid <> to_regclass(%s)) ORDER BY 1, 2"
)


@dataclass(frozen=True)
class Refusal:
    """Why a guard may not be armed: ``reason`` continues after the guard's name, ``id`` is that of the system check."""

    reason: str
    cure: str
    id: str = "bloomguard.W136"

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
            reason = f"{field.name!r} is a {kind}, whose to_python returns a {name}, of which no key can be made"
            yield Refusal(reason, f"{cure}.", "bloomguard.W105")
        elif guard._meta.converts_again(field):
            kind = type(value_field(field)).__name__
            reason = f"{field.name!r} is a {kind}, whose to_python changes what it has returned: a row has several keys"
            cure = "Let it return such a value unchanged, or look rows up by another field."
            yield Refusal(reason, cure, "bloomguard.W105")
    if guard.sync == "signals" and len({field.model for field in guard._meta.fields}) > 1:
        reason = "its key has columns of several tables, which two savers may each see half changed"
        yield Refusal(reason, 'Remove sync = "signals", or look rows up by columns of one table.')
    for doubt in dict.fromkeys(alive.refusal_reasons(guard.model, guard.alive)):
        yield Refusal(f"alive is not allowed: it {doubt}", alive.CURE, "bloomguard.W113")


def database_refusals(guard: Guard, connection: BaseDatabaseWrapper) -> Iterator[Refusal]:
    """Yield the reasons that are found in the database; raises :class:`DatabaseError`."""
    if connection.vendor not in _COMPUTED:
        reason = f"of {connection.display_name} no way is known to wait for open transactions: rows would be missed"
        yield Refusal(reason, "Guard tables of PostgreSQL, SQLite, MariaDB or MySQL.")
        return
    if not (connection.vendor == "mysql" or connection.features.can_return_columns_from_insert):
        version = ".".join(map(str, connection.get_database_version()))
        reason = f"SQLite {version} has no RETURNING: the keys of many writes would not be known"
        yield Refusal(reason, "Run all processes on a Python whose sqlite3.sqlite_version is 3.35 or newer.")
    for table in sorted(guard._meta.tables):
        of_table = _of_postgresql if connection.vendor == "postgresql" else _of_table
        for refusal in of_table(connection, table):
            if refusal.id != SEVERAL_TABLES or guard.scope != SCHEMA:
                yield refusal
        for column in sorted(_computed(guard, connection, table)):
            yield Refusal(
                f"the database {connection.alias!r} computes the column {column!r} of {table!r} from others, and its "
                "field is no GeneratedField",
                "Look rows up by another column; for alive, declare the field as a GeneratedField.",
            )
    for doubt in backends.doubts(connection):
        reason = f"the backend of the database {connection.alias!r} {doubt}"
        cure = "Use one of Django's backends, or one that leaves this as they do."
        yield Refusal(reason, cure, "bloomguard.W106")
    for field in guard._meta.fields:
        if kind_of(field) and (reason := _difference(connection, guard, field)):
            is_text = kind_of(field) == "text"
            what = "different texts may be equal" if is_text else "equal values may have different keys"
            reason = f"{field.name!r} {reason} in the database {connection.alias!r}, where {what}"
            yield Refusal(reason, CURE if is_text else RETYPE, "bloomguard.W106")


def unreadable_columns(guard: Guard, connection: BaseDatabaseWrapper) -> Refusal | None:
    """Return the columns that the role may not read, with the cure; ``None`` if it may read all, or is on SQLite.

    Raises :class:`DatabaseError`.
    """
    if connection.vendor not in ("postgresql", "mysql"):
        return None
    fields: set[Any] = {*guard._meta.fields, *guard.model._meta.pk_fields}
    with suppress(FieldDoesNotExist):
        fields |= guard._meta.alive_fields
    for table in sorted({field.model._meta.db_table for field in fields}):
        name = connection.ops.quote_name(table)
        columns = sorted(field.column for field in fields if field.model._meta.db_table == table)
        if connection.vendor == "mysql":
            try:
                listed = ", ".join(map(connection.ops.quote_name, columns))
                _fetch(connection, f"SELECT {listed} FROM {name} WHERE 1 = 0", [])  # noqa: S608
            except DatabaseError as error:
                if not is_denied(error):
                    raise
                return Refusal(str(error).strip(), f"GRANT SELECT ON {name} TO the site's login.")
            continue
        denied = _fetch(
            connection,
            "SELECT attname, current_user FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) "
            "AND NOT has_column_privilege(attrelid, attnum, 'SELECT') ORDER BY attname",
            [name, columns],
        )
        if denied:
            listed, role = ", ".join(column for column, _ in denied), denied[0][1]
            reason = f"the role {role!r} may not read {listed} of {table}"
            return Refusal(reason, f"GRANT SELECT ON {name} TO {role}.")
    return None


def _fetch(connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[Any]) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows: Sequence[Any] = cursor.fetchall()
        return rows


def _of_relation(table: str, kind: str) -> Refusal:
    cure = "Guard a model of the table that rows are written to."
    return Refusal(f"{table!r} is {_RELATIONS[kind]}", cure)


def _of_table(connection: BaseDatabaseWrapper, table: str) -> Iterator[Refusal]:
    """Yield the refusals because of the table, on databases other than PostgreSQL."""
    if connection.vendor == "mysql":
        if "`" in connection.ops.quote_name(table)[1:-1]:
            reason = f"{table!r} names a database, and the catalogue is read of the connection's own alone"
            yield Refusal(reason, "Add that database to DATABASES, and let a router choose it.")
        sql = "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s"
        for (engine,) in _fetch(connection, sql, [table]):
            if engine not in (None, "InnoDB"):
                cure = "Convert it to InnoDB: others have no transactions, or store their rows elsewhere."
                yield Refusal(f"{table!r} is of the engine {engine}", cure)
    with connection.cursor() as cursor:
        for relation in connection.introspection.get_table_list(cursor):
            if relation.name.lower() == table.lower() and relation.type == "v":
                yield _of_relation(table, "v")


def _of_postgresql(connection: BaseDatabaseWrapper, table: str) -> Iterator[Refusal]:
    name = connection.ops.quote_name(table)
    found = _fetch(
        connection,
        "SELECT relkind, relpersistence, row_security_active(pg_class.oid), nspname, current_user, "
        "pg_is_in_recovery(), ARRAY(SELECT other.nspname::text FROM pg_class same "
        "JOIN pg_namespace other ON other.oid = same.relnamespace WHERE same.relname = pg_class.relname "
        "AND same.oid <> pg_class.oid AND same.relkind IN ('r', 'p', 'v', 'm', 'f') "
        "AND other.nspname NOT LIKE 'pg\\_%%' AND other.nspname <> 'information_schema' "
        "AND has_schema_privilege(other.oid, 'USAGE') ORDER BY 1) "
        "FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(%s)",
        [name],
    )
    if not found:
        return  # no such table: the statement that reads it fails
    relation, persistence, hides_rows, schema, role, is_standby, others = found[0]
    if relation in _RELATIONS:
        yield _of_relation(table, relation)
    for part, subscription in _fetch(connection, _FED, [name, name]):
        if subscription is None:
            reason = f"{part!r}, a part of {table!r}, is a foreign table, whose rows are written elsewhere"
            yield Refusal(reason, "Detach it, or do not guard the table.")
        else:
            reason = f"the subscription {subscription!r} writes rows of {part!r}, which no guard sees"
            yield Refusal(reason, "Rebuild after it is dropped or disabled, as by a switch-over.")
    if persistence == "t":
        reason = f"{table!r} is a temporary table, of which each session has its own"
        yield Refusal(reason, "Drop it.")
    if hides_rows:
        yield Refusal(
            f"row-level security hides rows of {table!r} from the role {role!r}",
            "Run rebuild_filter and verify_filter as a role that sees all rows: one with BYPASSRLS, or the owner if "
            "row-level security is not forced.",
        )
    if others and '"."' not in name:
        yield Refusal(
            f"{table!r} is a table of the schema {schema!r}, and of {', '.join(map(repr, others))}: with another "
            "search_path a process reads other rows",
            "If the other is an unused copy, rename it, or REVOKE USAGE ON its SCHEMA. If each tenant has one, set "
            "scope = 'schema'.",
            SEVERAL_TABLES,
        )
    if is_standby:
        yield Refusal(
            f"the database {connection.alias!r} is a standby, where rows become visible later than their COMMIT",
            "Let the router's db_for_write return the primary.",
        )


def _computed(guard: Guard, connection: BaseDatabaseWrapper, table: str) -> frozenset[str]:
    """Return the tracked columns that an UPDATE of others may change, though their fields do not say so."""
    name = connection.ops.quote_name(table) if connection.vendor == "postgresql" else table
    found = _fetch(connection, _COMPUTED[connection.vendor], [name])
    parents = (guard.model, *guard.model._meta.all_parents)
    declared = {folded_column(one) for model in parents for one in model._meta.local_concrete_fields if one.generated}
    return (tracked_columns(guard, table) - declared) & {column.lower() for (column,) in found}


def _difference(connection: BaseDatabaseWrapper, guard: Guard, field: models.Field[Any, Any]) -> str:
    """Return why values of ``field`` that are equal in the database may have different keys; empty if they cannot."""
    kind, cast, found = str(kind_of(field)), "%s", ""
    if connection.vendor == "postgresql":
        found, cast = _by_catalogue(connection, field, kind)
    elif connection.vendor == "mysql":
        found = _by_mysql_catalogue(connection, field, kind)
    if connection.vendor != "sqlite" and not (found and kind == "text" and guard._meta.normalizes):
        return found
    return _by_comparing(connection, guard, field, kind, cast)


def _by_catalogue(connection: BaseDatabaseWrapper, field: models.Field[Any, Any], kind: str) -> tuple[str, str]:
    """Return what is inexact about the type or collation of a PostgreSQL column, and the SQL that casts to its type."""
    found = _fetch(
        connection,
        "WITH RECURSIVE base AS ("
        " SELECT atttypid AS oid, atttypmod AS modifier, attcollation AS compared_by FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped"
        " UNION ALL SELECT typbasetype, typtypmod, compared_by FROM base JOIN pg_type USING (oid)"
        " WHERE typtype = 'd') "
        "SELECT typname, typtype, collname, collisdeterministic, format_type(pg_type.oid, -1), "
        "format_type(pg_type.oid, modifier) "
        "FROM base JOIN pg_type USING (oid) LEFT JOIN pg_collation ON pg_collation.oid = compared_by "
        "WHERE typtype <> 'd'",
        [connection.ops.quote_name(field.model._meta.db_table), field.column],
    )
    if not found:
        return "", "%s"  # no such column: the statement that reads it fails
    name, category, collation, is_exact, written, whole = found[0]
    cast = f"CAST(%s AS {written})"
    if name not in _EXACT_TYPES[kind] and not (kind == "text" and category == "e"):
        return f"is of the type {name}", cast
    if ",-" in whole:  # numeric(6,-2) rounds integers to hundreds
        return f"is of the type {whole}", cast
    if is_exact is False:
        return f"is of the nondeterministic collation {collation!r}", cast
    return "", cast


def _by_mysql_catalogue(connection: BaseDatabaseWrapper, field: models.Field[Any, Any], kind: str) -> str:
    """Return what is inexact about the type or collation of a column: by default both treat A and a as equal."""
    found = _fetch(
        connection,
        "SELECT data_type, collation_name FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
        [field.model._meta.db_table, field.column],
    )
    for name, collation in found:  # none: the statement that reads the column fails
        if name not in _MYSQL_TYPES[kind]:
            return f"is of the type {name}"
        if kind == "text" and collation not in EXACT_COLLATIONS:
            return f"is of the collation {collation}"
    return ""


def _by_comparing(
    connection: BaseDatabaseWrapper, guard: Guard, field: models.Field[Any, Any], kind: str, cast: str
) -> str:
    """Return the first two sample values that are equal in the database and have different keys; empty if none.

    A UNION with the column makes the database compare the values by the column's collation, type and affinity.
    """
    tried = [value for value in _TRIED[kind] if _fits(connection, field, value)]
    # Prepare them as the column stores them, by a plain field: a custom field may change them.
    values = [_FIELDS[kind].get_db_prep_value(value, connection) for value in tried]
    table, column = (connection.ops.quote_name(str(name)) for name in (field.model._meta.db_table, field.column))
    asked = ", ".join([f"it = {cast}"] * len(values))
    stand_ins = " ".join(f"UNION ALL SELECT {place}, {cast}" for place in range(len(values)))
    compared = _fetch(
        connection,
        f"SELECT {asked} FROM (SELECT -1 AS place, {column} AS it FROM {table} WHERE 1 = 0 {stand_ins}) stand_in "  # noqa: S608
        "ORDER BY place",
        [*values, *values],
    )
    encode = guard._meta.keys.encoders[guard._meta.fields.index(field)]
    keys = [_key(encode, value) for value in tried]
    for stored, stored_key, row in zip(tried, keys, compared):
        for asked_for, key, is_equal in zip(tried, keys, row):
            if is_equal and None not in (stored_key, key) and stored_key != key:
                return f"treats {asked_for!r} as equal to {stored!r}"
    return ""


def _fits(connection: BaseDatabaseWrapper, field: models.Field[Any, Any], value: Any) -> bool:
    target = value_field(field)
    if isinstance(value, str):
        return target.max_length is None or len(value) <= target.max_length
    if isinstance(target, models.DecimalField) and target.decimal_places is not None:
        return bool(value == round(value, target.decimal_places))
    if isinstance(value, int):
        low, high = connection.ops.integer_field_range(target.get_internal_type())
        return (low is None or low <= value) and (high is None or value <= high)
    return True


def _key(encode: Callable[[Any], bytes], value: Any) -> bytes | None:
    with suppress(Unkeyable, Uncertain, OutOfRange):
        return encode(value)
    return None
