"""The databases that benchmarks compare: SQLite, and servers of their own, which go when they end."""

from __future__ import annotations

from typing import Any

from .report import Report

VENDORS = {"default": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}  # by the alias of the database


def servers(report: Report) -> dict[str, dict[str, Any]]:
    """Django's ``DATABASES`` entries of a PostgreSQL and, where it is installed, a MariaDB."""
    from tests.support.mariadb import MariaDB, is_missing
    from tests.support.servers import postgresql

    found: dict[str, dict[str, Any]] = {"postgresql": postgresql()}
    if is_missing():
        report.missing("MariaDB", "", is_missing())
    else:
        found["mariadb"] = MariaDB("--max-allowed-packet=1G").database("bench")  # all IDs in one value are a packet
    return found


def use(alias: str) -> None:
    """Work on this database from now on; it has the state rows, too."""
    from django.db import router

    from bloomguard.state import table as state
    from tests.support import database

    database.current = alias
    router.routers = list(router.routers)  # so that bloomguard asks again which database has its state rows
    state.table.forget()
    assert state.table.connection.alias == alias
