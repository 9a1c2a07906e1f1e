"""Proof that the rows of a rebuild are read where they are written.

The rebuild reads by the project's connections, and a pooler, or a ``HOST`` with several names, may lead these to a
standby that lags behind, or to another server than the state rows: each statement to a different one. Rows that are not
there yet would be missing from the filter. So on PostgreSQL each statement says by itself which server has answered it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connections

from ..exceptions import RebuildError
from ..state.table import StateTable


@dataclass(frozen=True)
class Proof:
    """``sql`` is an expression for the server that evaluates it, and must be ``expected``; empty if none is needed."""

    sql: str = ""
    expected: str = ""

    @classmethod
    def of(cls, using: str, table: StateTable | None = None, database: str = "") -> Proof:
        """Return the proof for ``using``: it is no standby and, for the alias of the state rows, it is ``database``."""
        if connections[using].vendor != "postgresql":
            return cls()
        if table is not None and database and table.connection.alias == using:
            return cls(f"(SELECT here FROM (SELECT {table.connection.proofs}) AS proved)", database)  # noqa: S608
        return cls("CASE WHEN pg_is_in_recovery() THEN '' ELSE 'primary' END", "primary")

    def __bool__(self) -> bool:
        return bool(self.sql)

    def check(self, found: Any) -> None:
        """Raise :class:`RebuildError` if another server has answered."""
        if self.sql and found != self.expected:
            raise RebuildError(
                "rows would be read from a standby, or another server than the state rows. Let HOST, or a pooler, "
                "lead to the primary alone, and run it again"
            )

    def around(self, sql: str) -> str:
        """Return the query ``sql`` with two columns more, in one row at least: 1 if it is a row, and the proof."""
        return (
            f"SELECT page.*, server.proof FROM (SELECT {self.sql} AS proof) AS server LEFT JOIN "  # noqa: S608
            f"(SELECT each.*, 1 AS bloomguard_found FROM ({sql}) AS each) AS page ON TRUE"
        )


NO_PROOF = Proof()
