"""A database role with fewer rights than the owner of the tables, as of a site whose tables another role migrates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from django.db import connections

from bloomguard.state.table import table
from tests.support import database
from tests.support.flush import _connect


@contextmanager
def as_role(**rights: str) -> Iterator[None]:
    """In this block all connect to the test's database as the role ``weak``.

    It may read and write every table, but has only the given ``rights`` to those that are named.
    """
    connection = connections[database.current]
    on_postgresql, owner = connection.vendor == "postgresql", connection.settings_dict["USER"]
    role = "weak" if on_postgresql else "weak@localhost"
    grants = [f"CREATE USER {role}"]
    for name in connection.introspection.table_names():
        if given := rights.get(name, "SELECT, INSERT, UPDATE, DELETE"):
            grants.append(f"GRANT {given} ON {connection.ops.quote_name(name)} TO {role}")
    if on_postgresql:
        grants.append(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
    with closing(_connect(connection.vendor, connection.settings_dict)) as raw, closing(raw.cursor()) as cursor:
        try:
            for grant in grants:
                cursor.execute(grant)
            _reconnect(role.partition("@")[0])
            yield
        finally:
            _reconnect(owner)
            for statement in ([f"DROP OWNED BY {role}"] if on_postgresql else []) + [f"DROP USER {role}"]:
                cursor.execute(statement)


def _reconnect(user: str) -> None:
    connection = connections[database.current]
    connection.close()
    connection.settings_dict["USER"] = user
    table.forget()
