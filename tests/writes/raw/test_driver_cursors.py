"""The driver's own cursor, of psycopg 3 and 2: what the project sends by it is followed as by Django's cursor."""

from __future__ import annotations

import sys

import pytest
from django.core.management import BaseCommand
from django.db import connections, transaction
from django.db.backends.postgresql.psycopg_any import errors, is_psycopg3, sql
from django.db.backends.signals import connection_created

from bloomguard.guards import registry
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import raw
from bloomguard.writes.adding import adding
from tests.shop.guards import ProductGuard
from tests.shop.models import Product

from .sending import INSERT, execute, on_postgresql, status

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("built"),
    on_postgresql,  # the drivers of other databases have no factory for their cursors
]


def by_djangos_cursor(call):
    with connections["postgresql"].cursor() as cursor:
        call(cursor.cursor)


def by_djangos_connection(call):
    connection = connections["postgresql"]
    connection.ensure_connection()
    with connection.connection.cursor() as cursor:
        call(cursor)


def by_the_connection_alone(call):
    if not is_psycopg3:
        pytest.skip("psycopg 3's")
    connection = connections["postgresql"]
    connection.ensure_connection()
    call(connection.connection)


ways = pytest.mark.parametrize("way", [by_djangos_cursor, by_djangos_connection, by_the_connection_alone])


@ways
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_write_fences(way, settings, debug):
    """Under autocommit, with its COMMIT."""
    settings.DEBUG = debug
    way(lambda driver: driver.execute(INSERT, (7, "x")))

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


@ways
@pytest.mark.parametrize("text", [str, str.encode], ids=["str", "bytes"])
def test_a_write_in_a_transaction_fences(way, text):
    """`bytes` are how psycopg 2's `execute_values` sends them."""
    with transaction.atomic(using="postgresql"):
        way(lambda driver: driver.execute(text("INSERT INTO shop_product (id, name) VALUES (7, 'x')")))

    assert status("product") == FENCED


def test_many_rows_fence():
    by_djangos_cursor(lambda cursor: cursor.executemany(INSERT, [(7, "x"), (8, "y")]))

    assert status("product") == FENCED


@pytest.mark.skipif(is_psycopg3, reason="psycopg 2's")
def test_a_procedure_fences():
    """By `callproc`, which psycopg 3 has not."""
    execute(f"CREATE FUNCTION makes() RETURNS void LANGUAGE sql AS $$ {INSERT % (7, repr('x'))} $$")
    try:
        by_djangos_cursor(lambda cursor: cursor.callproc("makes"))
    finally:
        execute("DROP FUNCTION makes")

    assert status("product") == FENCED


@pytest.mark.skipif(is_psycopg3, reason="psycopg 2's")
def test_rows_of_execute_values_fence():
    extras = pytest.importorskip("psycopg2.extras")
    rows = [(pk, "x") for pk in range(7, 300)]
    by_djangos_cursor(
        lambda cursor: extras.execute_values(cursor, "INSERT INTO shop_product (id, name) VALUES %s", rows)
    )

    assert Product.objects.filter(pk=299).exists()
    assert status("product") == FENCED


def test_the_keys_can_be_added():
    """As for any other raw SQL."""
    with adding(registry["product"], using="postgresql") as add:
        by_djangos_cursor(lambda cursor: cursor.execute(INSERT, (7, "x")))
        add([7])

    assert status("product") == ARMED
    assert registry["product"].verdict(7) is Verdict.MAYBE


def test_a_write_that_fails_fences_nothing():
    """Its rows never were."""
    with pytest.raises(errors.UniqueViolation):
        by_djangos_cursor(lambda cursor: cursor.execute(INSERT, (1, "x")))

    assert status("product") == ARMED


@ways
def test_a_read_fences_nothing(way):
    """Nor does a write to another table."""
    way(lambda driver: driver.execute("SELECT id FROM shop_product"))
    way(lambda driver: driver.execute("INSERT INTO auth_group (name) VALUES ('x')"))

    assert status("product") == ARMED


@ways
def test_a_commit_is_seen(way):
    """The transaction's fence holds at the COMMIT, whoever sends it."""
    way(lambda driver: driver.execute("BEGIN"))
    execute(INSERT, (7, "x"))
    way(lambda driver: driver.execute("COMMIT"))

    assert status("product") == FENCED


def test_a_rollback_to_a_savepoint_is_seen(monkeypatch, build):
    """The row is there again, so its key must not leave the filter."""
    monkeypatch.setattr(ProductGuard, "filter", "cuckoo")
    build("product")
    with transaction.atomic(using="postgresql"):
        by_djangos_cursor(lambda cursor: cursor.execute("SAVEPOINT mine"))
        Product.objects.get(pk=1).delete()
        by_djangos_cursor(lambda cursor: cursor.execute("ROLLBACK TO SAVEPOINT mine"))

    assert Product.objects.filter(pk=1).exists()
    assert registry["product"].verdict(1) is Verdict.MAYBE


def sent_by_a_tracer(monkeypatch, comment=""):
    """Let a package that traces statements make the cursors; return the texts that it has sent."""
    driver, sent = connections["postgresql"].connection, []

    class Traced(driver.cursor_factory):
        def execute(self, query, *args, **kwargs):
            sent.append(query)
            return super().execute(query + comment, *args, **kwargs)

    monkeypatch.setattr(driver, "cursor_factory", Traced)
    return sent


@pytest.mark.parametrize("comment", ["", " /* of the trace */"])
def test_the_orms_writes_are_not_followed_twice(monkeypatch, comment):
    """Also if what the driver gets is another text than Django's, it is not taken for raw SQL."""
    sent = sent_by_a_tracer(monkeypatch, comment)
    Product.objects.create(pk=7, name="x")
    with transaction.atomic(using="postgresql"):
        Product.objects.bulk_create([Product(pk=8), Product(pk=9)])

    assert len(sent) >= 2
    assert status("product") == ARMED
    assert all(registry["product"].verdict(pk) is Verdict.MAYBE for pk in (7, 8, 9))


def test_a_write_by_a_tracers_cursor_fences(monkeypatch):
    sent_by_a_tracer(monkeypatch, " /* of the trace */")
    by_djangos_cursor(lambda cursor: cursor.execute(INSERT, (7, "x")))

    assert status("product") == FENCED


class Pooled:
    """What a pool gives Django for the driver's connection, as `django-db-connection-pool` does: it passes calls on."""

    def __init__(self, driver):
        self.driver = driver

    def __getattr__(self, name):
        return getattr(self.driver, name)


@ways
def test_a_write_by_a_connection_of_a_pool_fences(way, monkeypatch):
    """Which keeps what is set on it, such as a factory of cursors, from the driver's own connection."""
    connection = connections["postgresql"]
    connection.ensure_connection()
    driver = connection.connection
    driver.cursor_factory = driver.cursor_factory.unhooked
    monkeypatch.setattr(connection, "connection", Pooled(driver))
    connection_created.send(type(connection), connection=connection)
    way(lambda driver: driver.execute(INSERT, (7, "x")))

    assert status("product") == FENCED


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14 has t-strings")
def test_a_t_string_is_read_as_the_statement_that_it_composes():
    """psycopg 3.3 takes them: one that reads fences nothing, one that writes does."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(eval("t'SELECT name FROM shop_product WHERE id = {7}'"))
        assert status("product") == ARMED
        cursor.execute(eval("t'INSERT INTO shop_product (id, name) VALUES ({7}, {str()})'"))

    assert status("product") == FENCED


def test_a_t_string_that_the_driver_cannot_compose_may_write_anything(monkeypatch):
    """So it fences; psycopg before 3.3 refuses it itself."""
    template = type("Template", (), {"__module__": "string.templatelib"})()
    driver = connections["postgresql"].Database
    monkeypatch.setattr(driver.sql, "as_string", lambda sql, context: "SELECT 1", raising=False)
    composed = raw.text_of(template, connections["postgresql"])
    monkeypatch.delattr(driver.sql, "as_string")

    assert (composed, raw.text_of(template, connections["postgresql"])) == ("SELECT 1", raw._UNREADABLE)


@ways
def test_the_warning_names_the_place_that_sent_the_statement(way, caplog):
    """Not one in the driver, which is the same for all statements."""
    way(lambda driver: driver.execute(sql.SQL(INSERT), (7, "x")))

    assert f"{__file__}:" in caplog.text
    assert "psycopg" not in caplog.text


class Command(BaseCommand):
    """Has an ``execute``, too, and passes no statement on."""

    def load(self, path):
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(INSERT, (7, path))


def test_the_warning_names_a_method_of_a_command(caplog):
    """The line that sends the statement, not the one that has called the method."""
    Command().load("x")

    line = Command.load.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}" in caplog.text
