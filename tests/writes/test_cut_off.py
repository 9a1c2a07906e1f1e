"""A server takes no further connection: a write goes on by its own, and fences the guard in its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.signals import connection_created

from bloomguard.exceptions import StoreError
from bloomguard.guards import Guard
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import FENCED
from bloomguard.state.table import EXPIRY_SECONDS
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import isolation
from tests.shop.models import Short
from tests.support import database
from tests.support.flush import _connect
from tests.support.guarding import registered
from tests.support.roles import as_role
from tests.writes.test_scarcity import WRITES

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True),
]


def raw() -> None:
    with connections[database.current].cursor() as cursor:
        cursor.execute("INSERT INTO shop_short (slug) VALUES ('new')")


def raw_many() -> None:
    with connections[database.current].cursor() as cursor:
        cursor.executemany("INSERT INTO shop_short (slug) VALUES (%s)", [["new"], ["other"]])


def write_after(statement: str) -> None:
    with transaction.atomic(using=database.current):
        with connections[database.current].cursor() as cursor:
            cursor.execute(statement)
        Short.objects.create(slug="new")


@pytest.fixture(params=["bloom", "cuckoo"])
def short(request: pytest.FixtureRequest, each_database: str, fresh: None) -> Iterator[Guard]:
    with registered(Short, name="short", lookup="slug", filter=request.param) as guard:
        yield guard


@pytest.fixture
def on_postgresql(each_database: str) -> None:
    if each_database != "postgresql":
        pytest.skip("MariaDB has no search_path")


class Limit:
    """How many connections the role of the site may have."""

    def __init__(self, owner: Any, clock: Any) -> None:
        self.send, self._clock = owner.cursor().execute, clock

    def reach(self) -> None:
        """The project has a connection open, and no other can be opened; bloomguard's was closed as unused."""
        Short.objects.count()
        state.table.connection.close()
        self._allow(1)
        Short.objects.count()

    def lift(self) -> None:
        self._allow(0)

    def _allow(self, number: int) -> None:
        if database.current == "postgresql":
            self.send(f"ALTER ROLE weak CONNECTION LIMIT {number or -1}")
        else:
            connections[database.current].close()  # the limit is that of the role's first connection
            self.send(f"ALTER USER weak@localhost WITH MAX_USER_CONNECTIONS {number}")
        self._clock.now += 10


@pytest.fixture
def limit(short: Guard, clock: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Limit]:
    monkeypatch.setattr(isolation, "_changed", set())  # other tests set levels
    Short.objects.create(slug="old")
    connection = connections[database.current]
    with closing(_connect(connection.vendor, connection.settings_dict)) as owner, as_role():
        found = Limit(owner, clock)
        if connection.vendor == "mysql":
            found.send("GRANT SELECT, LOCK TABLES ON *.* TO weak@localhost")
        yield found


@pytest.mark.parametrize(
    "write", [*WRITES.values(), raw, raw_many], ids=[*WRITES, "raw SQL", "raw SQL that is sent several times"]
)
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "never built"])
def test_a_write_needs_no_second_connection(write, is_built, short, limit, clock):
    """No write fails for that, and no row is denied: not after the limit is lifted, either."""
    if is_built:
        Rebuild(short, sleep=clock.sleep).run()
    limit.reach()

    write()

    assert Verdict.ABSENT not in {short.verdict(slug) for slug in ("old", "new", "other")}
    limit.lift()
    assert Verdict.ABSENT not in {short.verdict(slug) for slug in Short.objects.values_list("slug", flat=True)}


def test_the_commit_returns_when_every_process_knows(short, limit, clock):
    """The fence is committed with the row, and others may answer by their leases until then; later writes are quick."""
    Rebuild(short, sleep=clock.sleep).run()
    limit.reach()
    began = clock.now

    Short.objects.create(slug="new")
    fenced = clock.now
    Short.objects.create(slug="other")
    Short.objects.create(slug="third")
    second = clock.now
    Short.objects.create(slug="last")

    assert fenced - began >= EXPIRY_SECONDS
    assert clock.now == second
    limit.lift()
    assert state.table.current("short").status == FENCED


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_proves_nothing(level, short, limit, clock, monkeypatch):
    """It may not have the row of a filter that was built since, so the write is refused as if nothing could be read."""
    monkeypatch.setattr(isolation, "_changed", set())
    limit.reach()

    with pytest.raises(StoreError):
        write_after(f"SET TRANSACTION ISOLATION LEVEL {level}")

    assert not Short.objects.filter(slug="new").exists()


def test_a_transaction_that_has_deleted_the_state_rows_cannot_read_them(short, limit, clock):
    """It would find no filter, which all others have until its COMMIT."""
    Rebuild(short, sleep=clock.sleep).run()
    limit.reach()

    with pytest.raises(StoreError):
        write_after(f"DELETE FROM {GuardState._meta.db_table}")

    limit.lift()
    assert state.table.current("short").active


@pytest.fixture
def moved(limit: Limit) -> Iterator[Callable[[str], None]]:
    """``moved("RENAME TO it")`` moves the table of the state rows until the test ends."""
    table = GuardState._meta.db_table
    limit.send("CREATE SCHEMA hidden")
    yield lambda how: limit.send(f"ALTER TABLE {table} {how}")
    with suppress(Exception):  # MySQL has no IF EXISTS here
        limit.send(f"ALTER TABLE it RENAME TO {table}")
    if database.current == "postgresql":
        limit.send(f"ALTER TABLE IF EXISTS hidden.{table} SET SCHEMA public")
    limit.send("DROP SCHEMA hidden")


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_before_the_migration_a_write_is_saved(write, short, limit, moved):
    """A query of a table that is not there would end the project's transaction, whose COMMIT then saves nothing."""
    moved("RENAME TO it")
    limit.reach()

    write()

    assert {*Short.objects.values_list("slug", flat=True)} != {"old"}


@pytest.mark.usefixtures("on_postgresql")
def test_state_rows_that_the_search_path_hides_are_not_missing(short, limit, moved, clock):
    """Others may answer by them, so the write is refused as if nothing could be read."""
    Rebuild(short, sleep=clock.sleep).run()
    moved("SET SCHEMA hidden")
    limit.reach()

    with pytest.raises(StoreError, match="hides the state rows"):
        Short.objects.create(slug="new")

    assert not Short.objects.filter(slug="new").exists()


def set_search_path(connection, schema):
    """By the driver's own cursor, whichever driver it is."""
    with connection.connection.cursor() as cursor:
        cursor.execute(f"SET search_path TO {schema}")


@pytest.mark.usefixtures("on_postgresql")
def test_a_session_whose_search_path_was_changed_does_not_lose_the_state_rows(short, limit, clock):
    """A pooler may give bloomguard the session in which another client has set it: the table is hidden, not gone."""
    Rebuild(short, sleep=clock.sleep).run()
    state.table.connection.close()

    def hide(connection: Any, **kwargs: Any) -> None:
        if hasattr(connection, "is_own"):
            set_search_path(connection, "pg_catalog")

    connection_created.connect(hide)
    try:
        clock.now += 10
        Short.objects.create(slug="new")
    finally:
        connection_created.disconnect(hide)

    state.table.connection.close()
    clock.now += 10
    assert short.verdict("new") is not Verdict.ABSENT


def test_a_project_that_sets_its_search_path_may_write_before_its_migrate(short, limit, moved, clock):
    """By a receiver, or as django-tenants does. There is no table of state rows in any schema, so none is hidden."""

    def set_path(connection: Any, **kwargs: Any) -> None:
        if connection.vendor == "postgresql":
            set_search_path(connection, "public")

    state.table.connection.close()
    connection_created.connect(set_path)
    try:
        moved("RENAME TO it")
        clock.now += 10
        Short.objects.create(slug="new")

        assert state.table.lease("short") is not None
    finally:
        connection_created.disconnect(set_path)
        state.table.connection.close()
