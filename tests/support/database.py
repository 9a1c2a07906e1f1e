"""Sends every query of a test to one database, SQLite unless the test says another."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.support.mariadb import is_missing

current = "default"

ALL = ["sqlite", "postgresql", "mariadb"]
#: Those that cannot lose a COMMIT unnoticed: on these alone keys are forgotten.
FORGETTING = ["sqlite", "postgresql"]


#: Marks a test of what MariaDB does not have, or has in another way; it asks for ``each_database``.
without_mariadb = pytest.mark.parametrize("each_database", FORGETTING, indirect=True)


@contextmanager
def on(name: str) -> Iterator[str]:
    """Work on the database ``name`` of :data:`ALL`."""
    global current
    if name == "mariadb" and is_missing():
        pytest.skip(is_missing())
    current = "default" if name == "sqlite" else name
    try:
        yield name
    finally:
        current = "default"


def unseen(connection: Any) -> Any:
    """Return a cursor of the driver by which statements are sent as by another program: no guard learns of them."""
    connection.ensure_connection()
    driver = connection.connection
    follows = getattr(driver, "cursor_factory", None)  # psycopg's
    return follows.unhooked(driver) if hasattr(follows, "unhooked") else driver.cursor()


#: Marks a test of roles, which SQLite does not have; it asks for ``each_database``.
with_roles = pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True)


def another_way(alias: str) -> dict[str, Any]:
    """Settings that lead to the database of ``alias``, although nothing in them tells."""
    given = connections.settings[alias]
    if connections[alias].vendor == "sqlite":
        return {"NAME": f"file:{given['NAME']}?", "OPTIONS": {**given["OPTIONS"], "uri": True}}
    return {"HOST": f"/{given['HOST']}"}


@contextmanager
def second_alias(alias: str, name: str = "second", **settings: Any) -> Iterator[str]:
    """Another alias, with the settings of ``alias`` but for these; :func:`another_way` without any."""
    connections.settings[name] = copy.deepcopy(connections.settings[alias]) | (settings or another_way(alias))
    with pytest.MonkeyPatch.context() as patch:
        # A test class refuses connections of aliases that are younger than itself.
        patch.setattr(BaseDatabaseWrapper, "ensure_connection", lambda self: self.connection or self.connect())
        try:
            yield name
        finally:
            connections[name].close()
            if (left := connections[name].connection) is not None:
                left.close()  # Django keeps one to a database in memory
            del connections[name], connections.settings[name]


def conflicting(*names: str) -> list[str] | None:
    """The ``unique_fields`` of an upsert. MariaDB takes none: any row in its way is updated."""
    return list(names) if connections[current].features.supports_update_conflicts_with_target else None


class Router:
    """Everything is everywhere; ``current`` is where a test works."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return current

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return current

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True
