"""What is committed, by a connection of its own and SQL that no compiler has made."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
from django.db import connection

from .models import ALL


class Plain:
    """A plain connection to the database of this process; no hook of Django's or bloomguard's is on it."""

    def __init__(self) -> None:
        self._lite: sqlite3.Connection | None = None
        self._post: Any = None
        self._maria: Any = None
        settings = connection.settings_dict
        if connection.vendor == "sqlite":
            self._lite = sqlite3.connect(settings["NAME"], isolation_level=None, timeout=20, check_same_thread=False)
        elif connection.vendor == "mysql":
            import MySQLdb

            self._maria = MySQLdb.connect(
                unix_socket=settings["HOST"], user=settings["USER"], db=settings["NAME"], autocommit=True,
                charset="utf8mb4",
            )  # fmt: skip
        else:
            self._post = psycopg.connect(
                dbname=settings["NAME"], user=settings["USER"], host=settings["HOST"], port=settings["PORT"] or None,
                autocommit=True, options="-c lock_timeout=10s",
            )  # fmt: skip
        # A table of a union that is made of others comes once.
        self.tables = sorted({model._meta.db_table for model in ALL} | {"fuzz_club_members"})

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        if self._lite is not None:
            return self._lite.execute(sql).fetchall()
        with (self._maria or self._post).cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def execute(self, sql: str) -> None:
        self.fetch(sql)

    def rows(self) -> dict[str, list[str]]:
        """Every row of every table."""
        if self._post is None:
            return {table: sorted(map(repr, self.fetch(f"SELECT * FROM {table}"))) for table in self.tables}
        union = " UNION ALL ".join(f"SELECT '{table}', t::text FROM {table} t" for table in self.tables)
        found: dict[str, list[str]] = {table: [] for table in self.tables}
        for table, row in self.fetch(union):
            found[table].append(row)
        return {table: sorted(rows) for table, rows in found.items()}

    def clear(self) -> None:
        """No rows, and numbers from 1 on."""
        if self._lite is not None:
            self.execute("PRAGMA foreign_keys = OFF")
            for table in self.tables:
                self.execute(f"DELETE FROM {table}")
            self.execute("DELETE FROM sqlite_sequence")
        elif self._maria is not None:
            self.execute("SET FOREIGN_KEY_CHECKS = 0")
            for table in self.tables:
                self.execute(f"TRUNCATE {table}")
        else:
            self.execute(f"TRUNCATE {', '.join(self.tables)} RESTART IDENTITY CASCADE")

    def close(self) -> None:
        (self._lite or self._maria or self._post).close()
