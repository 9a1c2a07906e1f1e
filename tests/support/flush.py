"""Empties a server after a test: a TRUNCATE of all tables takes ten times as long as a DELETE of the few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections


class RowsAlone:
    """Deletes from the tables that have rows.

    PostgreSQL checks Django's foreign keys at the COMMIT, so any order will do; MariaDB is told not to check them.
    """

    connection: Any
    quote_name: Any

    def sql_flush(
        self, style: Any, tables: Sequence[str], *, reset_sequences: bool = False, allow_cascade: bool = False
    ) -> list[str]:
        if reset_sequences or allow_cascade or not tables:
            options = {"reset_sequences": reset_sequences, "allow_cascade": allow_cascade}
            found: list[str] = super().sql_flush(style, tables, **options)  # type: ignore[misc]
            return found
        names = [self.quote_name(table) for table in tables]
        with self.connection.cursor() as cursor:
            cursor.execute(
                " UNION ALL ".join(
                    f"SELECT {number} FROM (SELECT 1 AS one) always WHERE EXISTS (SELECT 1 FROM {name})"
                    for number, name in enumerate(names)
                )
            )
            full = {number for (number,) in cursor.fetchall()}
        deletes = [f"DELETE FROM {name}" for number, name in enumerate(names) if number in full]
        if self.connection.vendor == "mysql" and deletes:
            return ["SET FOREIGN_KEY_CHECKS = 0", *deletes, "SET FOREIGN_KEY_CHECKS = 1"]
        return deletes


def delete_rows_alone() -> None:
    """Let Django's tests, which work in this thread, empty the servers so."""
    for connection in map(connections.__getitem__, connections):
        if connection.vendor != "sqlite":
            own: Any = type(connection.ops)
            connection.ops = type("RowsAlone", (RowsAlone, own), {})(connection)
