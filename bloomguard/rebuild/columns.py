"""Check that the database compares a column as keys are compared: values that it treats as equal must have one key.

On PostgreSQL and MariaDB the catalogue gives a column's type and collation. On SQLite, and if a guard normalizes, the
database compares sample values with each other as values of the column: values that collations fold or pad, or that a
column's affinity converts to numbers.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from ..guards import Guard
from ..guards.fields import kind_of, value_field
from ..guards.keys import OutOfRange, Uncertain, Unkeyable

#: The collations of MariaDB that compare texts byte by byte. Those without ``nopad`` ignore spaces at the end.
EXACT_COLLATIONS = {"utf8mb4_nopad_bin", "utf8mb3_nopad_bin"}
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

#: Generated columns, and those that each UPDATE of a row sets.
_COMPUTED = {
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


def difference(connection: BaseDatabaseWrapper, guard: Guard, field: models.Field[Any, Any]) -> str:
    """Return why values of ``field`` that are equal in the database may have different keys; empty if they cannot.

    Raises :class:`DatabaseError`.
    """
    kind, cast = str(kind_of(field)), "%s"
    if connection.vendor in ("postgresql", "mysql"):
        ask = _by_catalogue if connection.vendor == "postgresql" else _by_mysql_catalogue
        found, cast = ask(connection, field, kind)
        if not found or kind != "text" or not guard._meta.normalizes:
            return found
    elif connection.vendor != "sqlite":
        # Neither the catalogue nor a comparison is implemented here.
        text = kind == "text" and not guard._meta.normalizes
        return f"is text in {connection.vendor}, which may treat different texts as equal" if text else ""
    return _by_asking(connection, guard, field, kind, cast)


def computed(connection: BaseDatabaseWrapper, table: str) -> set[str]:
    """Return the columns of ``table``, in lower case, that the database computes when others of the row change.

    Raises :class:`DatabaseError`.
    """
    name = connection.ops.quote_name(table)
    sql, place, parameters = _COMPUTED.get(connection.vendor, ""), 0, [name]
    if connection.vendor == "sqlite":
        sql, place, parameters = f"SELECT * FROM pragma_table_xinfo({name}) WHERE hidden IN (2, 3)", 1, []  # noqa: S608
    elif connection.vendor == "mysql":
        parameters = [table]
    if not sql:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return {row[place].lower() for row in cursor.fetchall()}


def _by_catalogue(connection: BaseDatabaseWrapper, field: models.Field[Any, Any], kind: str) -> tuple[str, str]:
    """Return what is inexact about the type or collation of a PostgreSQL column, and the SQL that casts to its type."""
    with connection.cursor() as cursor:
        cursor.execute(
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
        row = cursor.fetchone()
    if row is None:
        return "", "%s"  # no such column: the statement that reads it fails
    name, category, collation, is_exact, written, whole = row
    cast = f"CAST(%s AS {written})"
    if name not in _EXACT_TYPES[kind] and not (kind == "text" and category == "e"):
        return f"is of the type {name}", cast
    if ",-" in whole:  # numeric(6,-2) rounds integers to hundreds
        return f"is of the type {whole}", cast
    if is_exact is False:
        return f"is of the nondeterministic collation {collation!r}", cast
    return "", cast


def _by_mysql_catalogue(connection: BaseDatabaseWrapper, field: models.Field[Any, Any], kind: str) -> tuple[str, str]:
    """Return what is inexact about the type or collation of a column of MySQL or MariaDB, and ``%s``: it needs no cast.

    By default both treat A and a as equal.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT data_type, collation_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
            [field.model._meta.db_table, field.column],
        )
        row = cursor.fetchone()
    if row is None:
        return "", "%s"  # no such column: the statement that reads it fails
    name, collation = row
    if name not in _MYSQL_TYPES[kind]:
        return f"is of the type {name}", "%s"
    if kind == "text" and collation not in EXACT_COLLATIONS:
        return f"is of the collation {collation}", "%s"
    return "", "%s"


def _by_asking(
    connection: BaseDatabaseWrapper, guard: Guard, field: models.Field[Any, Any], kind: str, cast: str
) -> str:
    """Return the first two sample values that are equal in the database and have different keys; empty if none."""
    tried = [value for value in _TRIED[kind] if _fits(connection, field, value)]
    # Prepare them as the column stores them, by a plain field: a custom field may change them.
    values = [_FIELDS[kind].get_db_prep_value(value, connection) for value in tried]
    encode = guard._meta.keys.encoders[guard._meta.fields.index(field)]
    keys = [_key(encode, value) for value in tried]
    for stored, row in zip(range(len(tried)), _compared(connection, field, values, cast)):
        for asked, is_equal in enumerate(row):
            if is_equal and None not in (keys[stored], keys[asked]) and keys[stored] != keys[asked]:
                return f"treats {tried[asked]!r} as equal to {tried[stored]!r}"
    return ""


def _compared(
    connection: BaseDatabaseWrapper, field: models.Field[Any, Any], values: Sequence[Any], cast: str
) -> Sequence[Sequence[Any]]:
    """Return for each of ``values``, as a value of the column, whether it equals each of them.

    A UNION with the column makes the database compare the values by the column's collation, type and affinity.
    """
    table, column = (connection.ops.quote_name(str(name)) for name in (field.model._meta.db_table, field.column))
    asked = ", ".join([f"it = {cast}"] * len(values))
    stand_ins = " ".join(f"UNION ALL SELECT {place}, {cast}" for place in range(len(values)))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {asked} FROM (SELECT -1 AS place, {column} AS it FROM {table} WHERE 1 = 0 {stand_ins}) stand_in "  # noqa: S608
            "ORDER BY place",
            [*values, *values],
        )
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows


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


def _key(encode: Any, value: Any) -> bytes | None:
    try:
        return encode(value)  # type: ignore[no-any-return]
    except (Unkeyable, Uncertain, OutOfRange):
        return None
