"""Empties PostgreSQL after a test: a TRUNCATE of all tables takes ten times as long as a DELETE of the few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections
from django.db.backends.postgresql.operations import DatabaseOperations


class RowsAlone(DatabaseOperations):
    """Deletes from the tables that have rows. Django's foreign keys are checked at the COMMIT, so any order will do."""

    def sql_flush(
        self, style: Any, tables: Sequence[str], *, reset_sequences: bool = False, allow_cascade: bool = False
    ) -> list[str]:
        if reset_sequences or allow_cascade or not tables:
            return super().sql_flush(style, tables, reset_sequences=reset_sequences, allow_cascade=allow_cascade)
        names = {table: self.quote_name(table) for table in tables}
        with self.connection.cursor() as cursor:
            cursor.execute(
                " UNION ALL ".join(
                    f"SELECT {number} WHERE EXISTS (SELECT 1 FROM {name})" for number, name in enumerate(names.values())
                )
            )
            full = {number for (number,) in cursor.fetchall()}
        return [f"DELETE FROM {name}" for number, name in enumerate(names.values()) if number in full]


def delete_rows_alone() -> None:
    """Let Django's tests, which work in this thread, empty PostgreSQL so."""
    connection: Any = connections["postgresql"]
    connection.ops = RowsAlone(connection)
