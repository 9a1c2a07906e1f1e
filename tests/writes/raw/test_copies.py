"""COPY, and what else goes past Django's wrappers: it fences as other raw SQL does."""

from __future__ import annotations

import io

import pytest
from django.db import connections, transaction
from django.db.backends.postgresql.psycopg_any import errors, is_psycopg3
from django.db.backends.postgresql.psycopg_any import sql as composing

from bloomguard.guards import registry
from bloomguard.guards.doubts import strayed
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.table import EXPIRY_SECONDS
from bloomguard.state.verdicts import Verdict
from bloomguard.writes.adding import adding
from tests.shop.models import Product
from tests.support import database

from .sending import execute, on_postgresql, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


# -- COPY


@pytest.fixture
def copy(built):
    """Copies IDs into the products, as psycopg has it."""
    if database.current != "postgresql":
        pytest.skip("PostgreSQL's")

    def run(statement="COPY shop_product (id, name) FROM STDIN", ids=(7,)):
        lines = "".join(f"{pk}\tx\n" for pk in ids)
        with connections["postgresql"].cursor() as cursor:
            if is_psycopg3:
                with cursor.copy(statement) as rows:
                    rows.write(lines)
            else:
                cursor.copy_expert(statement, io.StringIO(lines))

    return run


@pytest.mark.parametrize("statement", ["text", "composed"])
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_copy_fences(copy, settings, debug, statement):
    """psycopg's `copy`, which goes past Django's wrappers: with its COMMIT, not after it."""
    settings.DEBUG = debug
    text = "COPY shop_product (id, name) FROM STDIN"
    copy(composing.SQL(text) if statement == "composed" else text)

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED
    assert connections["postgresql"].get_autocommit()


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_copy_fences_if_the_cursors_are_another_packages(copy, settings, debug):
    """A package that traces statements gives the open connection a factory of its own; a pool's never takes ours."""
    settings.DEBUG = debug
    driver = connections["postgresql"].connection
    driver.cursor_factory = driver.cursor_factory.unhooked
    copy()

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


def test_nobody_sees_a_copied_row_before_the_fence(copy, seen_at_the_fence):
    """Not even under autocommit."""
    copy()

    assert seen_at_the_fence
    assert not any(seen_at_the_fence)


def test_copying_out_or_elsewhere_fences_nothing(copy):
    """Reading by COPY, and tables that no guard minds."""
    copy("COPY auth_group (id, name) FROM STDIN")
    with connections["postgresql"].cursor() as cursor:
        if is_psycopg3:
            with cursor.copy("COPY shop_product TO STDOUT") as rows:
                assert b"one" in b"".join(rows)
        else:
            cursor.copy_expert("COPY shop_product TO STDOUT", out := io.StringIO())
            assert "one" in out.getvalue()

    assert status("product") == ARMED


def test_a_copy_that_fails_fences_nothing(copy):
    """Its rows never were."""
    with pytest.raises(errors.UniqueViolation):
        copy(ids=(7, 1))

    assert status("product") == ARMED
    assert not Product.objects.filter(pk=7).exists()


def test_copied_keys_can_be_added(copy):
    """Who knows them keeps the guard in use."""
    with adding(registry["product"], using="postgresql") as add:
        copy(ids=range(100, 200))
        add(range(100, 200))

    assert status("product") == ARMED
    assert all(registry["product"].verdict(pk) is Verdict.MAYBE for pk in range(100, 200))


@pytest.mark.skipif(is_psycopg3, reason="psycopg 2's")
@on_postgresql
def test_copying_from_a_file_fences(built):
    """psycopg 2's `copy_from`."""
    with connections["postgresql"].cursor() as cursor:
        cursor.copy_from(io.StringIO("7\tx\n"), "shop_product", columns=("id", "name"))

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


# -- what goes past Django's wrappers


@pytest.mark.skipif(not is_psycopg3, reason="psycopg 3's")
@on_postgresql
def test_streamed_rows_fence(built):
    """psycopg's `stream`, under autocommit, also if nobody fetches all of them."""
    with connections["postgresql"].cursor() as cursor:
        for row in cursor.stream("INSERT INTO shop_product (id, name) VALUES (7, 'x'), (8, 'x') RETURNING id"):
            assert row == (7,)
            break

    assert status("product") == FENCED


@on_sqlite
def test_a_script_fences(built):
    """SQLite's `executescript`, which commits by itself."""
    with connections["default"].cursor() as cursor:
        cursor.executescript("SELECT 1; INSERT INTO shop_product (id, name) VALUES (7, 'x');")

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


@on_sqlite
def test_a_script_in_a_transaction_waits_for_its_fence(built, clock):
    """It commits its rows, whatever block of Django's is open around it."""
    with transaction.atomic(), connections["default"].cursor() as cursor:
        began = clock.now
        cursor.executescript("INSERT INTO shop_product (id, name) VALUES (7, 'x');")
        waited = clock.now - began

    assert waited >= EXPIRY_SECONDS
    assert status("product") == FENCED


@on_sqlite
@pytest.mark.parametrize("script", ["SELECT 1\0", None, b"SELECT 1", "SELECT '\ud800'"], ids=repr)
def test_a_script_that_python_refuses_commits_nothing(built, script):
    """The transaction goes on, and is rolled back."""
    with transaction.atomic(), connections["default"].cursor() as cursor:
        Product.objects.create(pk=7)
        with pytest.raises((TypeError, ValueError)):
            cursor.executescript(script)
        transaction.set_rollback(True)

    assert not Product.objects.filter(pk=7).exists()


class Traced:
    """Stands for a driver's connection, as packages that trace statements put it in its place."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)


@on_sqlite
def test_a_script_fences_on_a_connection_that_another_package_stands_for(built, monkeypatch):
    """The cursor names the driver's own connection, by which Django's is not found: so it may be any."""
    connection = connections["default"]
    monkeypatch.setattr(connection, "connection", Traced(connection.connection))
    with connection.cursor() as cursor:
        cursor.executescript("INSERT INTO shop_product (id, name) VALUES (7, 'x');")

    assert status("product") == FENCED


@on_sqlite
def test_a_script_may_hide_a_guarded_table(built):
    """As any other statement may: no guard answers by that alias any more, whoever builds a filter."""
    with connections["default"].cursor() as cursor:
        cursor.executescript("CREATE TEMP TABLE shop_product AS SELECT 7 AS id, '' AS name")
    try:
        assert "default" in strayed
    finally:
        connections["default"].close()


@on_sqlite
def test_a_script_runs_though_another_alias_cannot_be_used(built, monkeypatch):
    """Its driver may be missing in this process."""
    other = {**connections.settings["default"], "ENGINE": "driver_that_is_not_installed"}
    monkeypatch.setitem(connections.settings, "other", other)
    with connections["default"].cursor() as cursor:
        cursor.executescript("INSERT INTO shop_product (id, name) VALUES (7, 'x');")

    assert status("product") == FENCED


@on_postgresql
def test_a_procedure_fences(built):
    """`callproc`, by what the function does."""
    body = "INSERT INTO shop_product (id, name) VALUES (7, 'x')"
    execute(f"CREATE FUNCTION makes() RETURNS void LANGUAGE sql AS $$ {body} $$")
    try:
        with connections["postgresql"].cursor() as cursor:
            cursor.callproc("makes")
    finally:
        execute("DROP FUNCTION makes")

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED
