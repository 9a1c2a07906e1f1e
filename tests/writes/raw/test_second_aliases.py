"""A statement that may have written anything fences the guards of its database, by whichever alias it is sent."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext

import pytest
from django.db import connections, transaction

from bloomguard.guards import places
from bloomguard.state import table as state
from bloomguard.state.connection import DatabaseConnection
from bloomguard.state.row import ARMED, FENCED
from bloomguard.writes import consequences
from tests.shop.models import Product
from tests.support import database
from tests.support.database import second_alias
from tests.support.mariadb import MYSQL
from tests.support.servers import PostgreSQL

from .sending import on_postgresql, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

#: By vendor: what may have written anything.
ANYTHING = {
    "sqlite": "PRAGMA writable_schema = OFF",
    "postgresql": "DO $$ BEGIN EXECUTE 'SELECT 1'; END $$",
    "mysql": "/*!80000 SELECT 1 */" if MYSQL else "EXECUTE IMMEDIATE 'SELECT 1'",
}


def send(alias):
    with connections[alias].cursor() as cursor:
        cursor.execute(ANYTHING[connections[alias].vendor])


@pytest.fixture
def same(built):
    """The current database under a second alias, and nothing in its settings tells."""
    with second_alias(database.current):
        yield


@pytest.fixture
def other(built, tmp_path):
    """Another database of the same server, for the same login, as the alias ``second``."""
    if connections[database.current].vendor == "sqlite":
        sqlite3.connect(tmp_path / "other.sqlite3").close()
        with second_alias(database.current, NAME=str(tmp_path / "other.sqlite3")):
            yield
        return
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE DATABASE other")
    with second_alias(database.current, NAME="other"):
        yield
    with connections[database.current].cursor() as cursor:
        cursor.execute("DROP DATABASE other")


@pytest.fixture
def read(monkeypatch):
    """The aliases of the databases whose identity was read."""
    found = []
    execute = DatabaseConnection.execute
    monkeypatch.setattr(
        DatabaseConnection, "execute", lambda self, *given: found.append(self.alias) or execute(self, *given)
    )
    return found


def test_another_way_to_the_guards_database_fences(same):
    """Through a pooler and past it, or by another name of the host: only the database itself tells that it is one."""
    send("second")

    assert status("product") == FENCED


def test_another_database_fences_nothing_but_on_a_server_that_writes_all_of_its_own(other, read):
    """As MariaDB's does. What both databases are is read once, not for each statement."""
    for _ in range(3):
        send("second")

    assert status("product") == (FENCED if connections["second"].vendor == "mysql" else ARMED)
    assert sorted(read) in ([], sorted([database.current, "second"]))


@on_postgresql
def test_another_server_fences_nothing(built):
    """Also if its database has the same name and number, as those that come with a server do."""
    with second_alias(database.current, **PostgreSQL().settings):
        send("second")

    assert status("product") == ARMED


def test_a_database_that_cannot_be_identified_may_be_the_guards(other, monkeypatch):
    """A role may not be allowed to ask, and a server may not answer."""
    monkeypatch.setattr(places, "_lasting_identity", lambda alias: 1 / 0)
    send("second")

    assert status("product") == FENCED


@pytest.fixture
def routed(built, monkeypatch):
    """``routed(route)``: the router of this request, while the state rows stay where they are."""
    monkeypatch.setattr(type(state.table.connection), "alias", database.current)
    return lambda route: monkeypatch.setattr(database.Router, "db_for_write", lambda self, model, **hints: route())


def test_a_router_that_names_another_database_now_fences(routed):
    """It may follow the request; the guard's rows are where its filter was built from."""
    routed(lambda: "default" if database.current != "default" else "postgresql")
    send(database.current)

    assert status("product") == FENCED


def refuse():
    raise LookupError("no tenant is set")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_router_that_raises_is_not_needed(routed, where):
    """The statement runs as without bloomguard, and fences if it is sent to the database of the filter."""
    routed(refuse)
    elsewhere = "default" if database.current != "default" else "postgresql"
    send(database.current if where == "here" else elsewhere)

    assert status("product") == (FENCED if where == "here" else ARMED)


def test_the_database_that_the_router_names_counts_too(routed, same, monkeypatch):
    """The next filter may be built from it, and this process may not have read the state row since."""
    monkeypatch.setattr(places, "_lasting_identity", lambda alias: (alias,))
    routed(lambda: "second")
    send("second")

    assert status("product") == FENCED


def test_a_connection_without_settings_is_the_projects_own(built):
    """No alias says which database it is, so its statements are sent as they are."""
    connection = connections[database.current].copy(alias="unknown")
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)
    finally:
        connection.close()


@on_sqlite
@pytest.mark.parametrize("block", [nullcontext, transaction.atomic], ids=["autocommit", "atomic"])
def test_a_file_that_another_alias_has_attached_may_be_the_state_rows(other, block):
    """The statement locks it, so the guard is fenced before."""
    with connections["second"].cursor() as cursor:
        cursor.execute("ATTACH %s AS home", [str(connections["default"].settings_dict["NAME"])])
        with block(using="second") if block is not nullcontext else block():
            cursor.execute("INSERT INTO home.shop_product (id, name) VALUES (7, 'seven')")

    assert Product.objects.filter(pk=7).exists()
    assert (status("product"), status("article")) == (FENCED, ARMED)


@on_sqlite
@pytest.mark.parametrize(
    ("action", "write"),
    [
        (
            "CREATE TRIGGER raw_copies AFTER INSERT ON raw_parent "
            "BEGIN INSERT INTO shop_article (id, slug, deleted) VALUES (7, NEW.code, 0); END",
            "INSERT INTO home.raw_parent VALUES ('seven')",
        ),
        (
            "CREATE TABLE raw_child (code text REFERENCES raw_parent (code) ON UPDATE CASCADE)",
            "UPDATE home.raw_parent SET code = 'seven'",
        ),
    ],
    ids=["trigger", "foreign key"],
)
def test_what_an_attached_file_does_by_itself_fences(other, build, action, write):
    """Its triggers and foreign keys are in no catalogue of the connection's own file."""
    home = str(connections["default"].settings_dict["NAME"])

    def run(script):  # as another program
        with closing(sqlite3.connect(home)) as program, program:
            program.executescript(script)

    run(f"CREATE TABLE raw_parent (code text PRIMARY KEY); {action}")
    build("article")
    try:
        with connections["second"].cursor() as cursor:
            cursor.execute("ATTACH %s AS home", [home])
            cursor.execute(write)
        after = status("article")
    finally:
        consequences.definitions.beyond_catalogue.clear()
        run("DROP TABLE IF EXISTS raw_child; DROP TABLE raw_parent")

    assert after == FENCED
