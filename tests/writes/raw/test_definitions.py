"""What the database does because of a statement: triggers, rules and functions, as they are when it is sent."""

from __future__ import annotations

import sqlite3
import threading
from unittest import mock

import pytest
from django.db import DatabaseError, ProgrammingError, connections, transaction

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state import transactions
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import consequences, introspection
from tests.shop.models import Article, Order, Product
from tests.support import database
from tests.support.mariadb import mariadb_only

from .sending import INSERT, execute, on_postgresql, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def begin_build(each_database, fresh, clock):
    """``begin_build()``: another process begins to build the idle guard of products, and time passes."""
    consequences.caches.clear()
    clock.now += 10

    def begin():
        assert state.table.swap(state.table.current("product"), building="another") is not None
        clock.now += 10
        return 1

    return begin


@on_sqlite
def test_a_script_that_fails_may_have_committed_something(begin_build):
    """What an idle guard missed before the error is missing in what is built meanwhile: that is fenced."""
    connections["default"].ensure_connection()
    connections["default"].connection.create_function("begin_build", 0, begin_build)
    try:
        with connections["default"].cursor() as cursor, pytest.raises(sqlite3.OperationalError, match="nonsense"):
            cursor.executescript(
                "INSERT INTO shop_product (id, name) VALUES (7, 'x'); SELECT begin_build(); SELECT nonsense;"
            )
    finally:
        connections["default"].close()

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


@on_postgresql
def test_a_statement_that_fails_may_have_committed_something(begin_build, monkeypatch):
    """The same of several statements in one text."""
    seem_idle = consequences.DatabaseCache.seem_idle

    def then_begin(self, connection):
        return seem_idle(self, connection) and bool(begin_build())

    monkeypatch.setattr(consequences.DatabaseCache, "seem_idle", then_begin)

    with pytest.raises(ProgrammingError, match="nonsense"):
        execute("INSERT INTO shop_product (id, name) VALUES (7, 'x'); COMMIT; SELECT nonsense")

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


#: A definition by which each order makes product 7.
MAKES = "INSERT INTO shop_product (id, name) VALUES (7, 'x')"
MAKING = {
    "default": f"CREATE TRIGGER raw_makes AFTER INSERT ON shop_order BEGIN {MAKES}; END",
    "postgresql": f"CREATE RULE raw_makes AS ON INSERT TO shop_order DO ALSO {MAKES}",
    "mariadb": f"CREATE TRIGGER raw_makes AFTER INSERT ON shop_order FOR EACH ROW {MAKES}",
}


@pytest.fixture
def in_a_build(begin_build):
    """``in_a_build()``: a build begins, and another thread reads the catalogue."""

    def work():
        begin_build()
        Article.objects.create(slug="new")
        assert consequences.current_cache(database.current).catalogue is not None
        connections.close_all()

    def run():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)

    connections[database.current].ensure_connection()
    yield run
    execute("DROP RULE raw_makes ON shop_order" if database.current == "postgresql" else "DROP TRIGGER raw_makes")


def test_a_definition_during_which_a_first_build_begins_is_followed(in_a_build):
    """The catalogue that was read meanwhile does not have it."""

    def then_sent(send, *statement):
        in_a_build()
        return send(*statement)

    with connections[database.current].execute_wrapper(then_sent):
        execute(MAKING[database.current])
    Order.objects.create()

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


@on_postgresql
def test_a_definition_that_is_committed_during_a_first_build_is_followed(in_a_build):
    """It was sent while no filter was built. On other databases no one else writes then, or it is committed at once."""
    with transaction.atomic(using="postgresql"):
        execute(MAKING["postgresql"])
        in_a_build()
    Order.objects.create()

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


def test_a_change_of_definitions_is_over_with_its_transaction(built, monkeypatch):
    """Another transaction on the same connection loads the catalogue once, not at each of its statements."""
    with connections[database.current].schema_editor() as editor:  # in a transaction, on both databases
        editor.execute("CREATE TABLE raw_new (id integer PRIMARY KEY)")
    load = mock.Mock(side_effect=consequences.load)
    monkeypatch.setattr(consequences, "load", load)

    try:
        with transaction.atomic(using=database.current):
            for number in range(5):
                execute("INSERT INTO raw_new (id) VALUES (%s)", [number])
            Order.objects.create()
            assert load.call_count == 1
    finally:
        execute("DROP TABLE raw_new")


def test_definitions_of_another_thread_are_followed_past_its_connection(built, monkeypatch, each_database):
    """That thread may be using it at this moment: mysqlclient refuses one of the two, or mixes up their replies."""
    changed, finish = threading.Event(), threading.Event()

    def work():
        try:
            execute("BEGIN")
            execute("CREATE TEMPORARY TABLE raw_new (id integer PRIMARY KEY)")
            changed.set()
            finish.wait(60)
            execute("COMMIT")
        finally:
            connections.close_all()

    def ask(connection):
        asked.append(connection.vendor)
        return reported(connection)

    asked, reported = [], transactions._reported
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert changed.wait(60)
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "_reported", ask)
            assert consequences.definitions.are_changing()
            assert "mysql" not in asked
    finally:
        finish.set()
        thread.join()

    assert not consequences.definitions.are_changing()


@on_postgresql
@pytest.mark.parametrize("begun", [False, True])
def test_reading_the_catalogue_leaves_a_transaction_as_it_was(built, monkeypatch, begun):
    """One by hand is not begun for it, nor lost because the catalogue could not be read."""
    connection = connections["postgresql"]

    def reader(catalogue, query):
        query("SELECT 1")
        query("SELECT nonsense")

    monkeypatch.setitem(introspection._READERS, "postgresql", reader)
    connection.set_autocommit(False)
    try:
        if begun:
            execute(INSERT, [7, "x"])
        before = connection.connection.info.transaction_status
        with pytest.raises(ProgrammingError):
            introspection.load(connection)
        assert connection.connection.info.transaction_status == before
        assert Product.objects.filter(pk=7).exists() is begun
    finally:
        connection.rollback()
        connection.set_autocommit(True)


@on_sqlite
@pytest.mark.parametrize("sql", ["CREATE TEMP TRIGGER {}", "CREATE TRIGGER temp.{}"])
def test_a_temporary_trigger_fences(built, sql):
    """Another connection of this process does not see it, and may be the one that has read the catalogue."""
    body = "AFTER INSERT ON main.shop_article BEGIN INSERT INTO shop_product (id, name) VALUES (7, 'x'); END"
    other = threading.Thread(target=by_another_connection)
    try:
        execute(f"{sql.format('raw_temporary')} {body}")
        other.start()
        other.join()
        Article.objects.create(slug="new")
    finally:
        execute("DROP TRIGGER raw_temporary")
        consequences.definitions.beyond_catalogue.clear()

    assert Product.objects.filter(pk=7).exists()
    assert registry["product"].verdict(7) is not Verdict.ABSENT


def by_another_connection():
    """A write that does nothing, but for which the catalogue is read."""
    Article.objects.filter(pk=99).update(slug="else")
    connections.close_all()


OWN = {
    "postgresql": [
        "CREATE FUNCTION {}(n text) RETURNS bigint LANGUAGE sql AS "
        "$$ INSERT INTO shop_product (id, name) VALUES (7, n) RETURNING id $$",
        "CREATE FUNCTION raw_outer() RETURNS bigint LANGUAGE sql AS $$ SELECT {}('x') $$",
    ],
    "mariadb": [
        "CREATE FUNCTION {}(n text) RETURNS bigint "
        "BEGIN INSERT INTO shop_product (id, name) VALUES (7, n); RETURN 7; END",
        "CREATE FUNCTION raw_outer() RETURNS bigint RETURN {}('x')",
    ],
}
CALLS = ["SELECT {}('x')", "WITH a AS (SELECT 1) SELECT {}('x') FROM a", "SELECT raw_outer()"]


@pytest.mark.parametrize("sql", CALLS)
@pytest.mark.parametrize(
    ("each_database", "name"),
    [("postgresql", "first"), ("postgresql", "key"), pytest.param("mariadb", "first", marks=mariadb_only)],
    indirect=["each_database"],
)
def test_a_function_named_like_one_of_sql_fences(each_database, built, clock, name, sql):
    """Also if its call is the first statement of the process."""
    try:
        for each in OWN[each_database]:
            execute(each.format(name))
        Rebuild(registry["product"], sleep=clock.sleep).run()
        execute(sql.format(name))
    finally:
        execute("DROP FUNCTION IF EXISTS raw_outer")
        execute(f"DROP FUNCTION IF EXISTS {name}")

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


@pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True)
def test_a_read_does_not_fence_while_the_catalogue_cannot_be_read(built, monkeypatch):
    """It may be locked for a moment; but the text is not trusted from then on."""
    consequences.definitions.changed(connections[database.current])
    load = mock.Mock(side_effect=DatabaseError)
    monkeypatch.setattr(consequences, "load", load)
    sql = "SELECT COUNT(*) FROM shop_product WHERE id = %s"
    for number in range(3):
        execute(sql, [number])

    assert status("product") == ARMED
    assert load.call_count == 1  # each other read would wait for its time limit, too
    assert sql not in consequences.current_cache(database.current).texts


@pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True)
def test_a_count_is_no_call_to_be_followed(built):
    """If the database has no such function, which is known from the first such query on, it costs nothing."""
    sql = "SELECT COUNT(*) FROM shop_product"
    execute(sql)
    execute(sql)

    assert sql in consequences.current_cache(database.current).texts


RULES = {
    "ON INSERT TO shop_product DO ALSO UPDATE shop_product SET id = 7 WHERE id = 1": lambda: Product.objects.create(
        pk=2
    ),
    "ON DELETE TO shop_product DO INSTEAD (SELECT 1; UPDATE shop_product SET id = 7 WHERE id = OLD.id)": (
        lambda: Product.objects.all().delete()
    ),
}


@on_postgresql
@pytest.mark.parametrize(("rule", "write"), RULES.items(), ids=["insert", "delete"])
def test_a_rule_that_writes_its_own_table_fences(built, clock, rule, write):
    """Such as one that makes an UPDATE of a DELETE."""
    execute(f"CREATE RULE raw_rule AS {rule}")
    try:
        Rebuild(registry["product"], sleep=clock.sleep).run()
        write()
    finally:
        execute("DROP RULE raw_rule ON shop_product")

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


@on_postgresql
def test_a_rule_that_writes_another_table_fences_nothing(built, clock):
    """A rule's statements are read as any others."""
    execute("CREATE TABLE raw_log (id integer)")
    execute("CREATE RULE raw_rule AS ON DELETE TO shop_product DO ALSO INSERT INTO raw_log VALUES (OLD.id)")
    try:
        Rebuild(registry["product"], sleep=clock.sleep).run()
        execute("DELETE FROM shop_product")
    finally:
        execute("DROP RULE raw_rule ON shop_product")
        execute("DROP TABLE raw_log")

    assert status("product") == ARMED


@on_postgresql
def test_no_write_waits_for_a_table_with_a_rule(built):
    """A migration may change that table for hours. The rule may do anything meanwhile, and is read again soon."""
    execute("CREATE TABLE raw_log (id integer)")
    execute("CREATE TABLE raw_ruled (id integer)")
    execute("CREATE RULE raw_rule AS ON INSERT TO raw_ruled DO ALSO INSERT INTO raw_log VALUES (NEW.id)")
    migration = connections[database.current].copy()
    try:
        with migration.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE raw_log")
        consequences.caches.clear()
        execute("SET lock_timeout = '1s'")
        Product.objects.create(pk=7)
        assert consequences.caches[database.current].catalogue is None
    finally:
        with migration.cursor() as cursor:
            cursor.execute("ROLLBACK")  # which waits for the server, unlike a close: it may keep the lock for a moment
        migration.close()
        execute("RESET lock_timeout")
    Product.objects.create(pk=8)
    assert consequences.caches[database.current].catalogue is not None
    execute("DROP TABLE raw_ruled, raw_log CASCADE")

    assert status("product") == ARMED


@on_postgresql
@pytest.mark.parametrize("calls", [False, True])
def test_a_transaction_with_definitions_loads_the_catalogue_once_after_them(built, monkeypatch, calls):
    """As a migration does, for all that it reads and writes after a definition, or after one was rolled back."""
    load = mock.Mock(side_effect=consequences.load)
    monkeypatch.setattr(consequences, "load", load)
    made = "INSERT INTO shop_product (id, name) VALUES (7, 'x') RETURNING id"
    with transaction.atomic(using="postgresql"):
        execute("CREATE TABLE raw_new (id integer)")
        execute("INSERT INTO raw_new VALUES (1)")
        if calls:
            execute(f"CREATE FUNCTION raw_field(r raw_new) RETURNS bigint LANGUAGE sql AS $$ {made} $$")
        load.reset_mock()
        assert list(Article.objects.filter(slug="old"))
        assert Article.objects.count() == 1
        Article.objects.create(pk=50, slug="new")
        execute("SELECT r.raw_field FROM raw_new r" if calls else "SELECT r.id FROM raw_new r")
        assert load.call_count == calls  # the INSERT has loaded it
        assert status("product") == (FENCED if calls else ARMED)
    execute("DROP TABLE raw_new CASCADE")


@on_postgresql
def test_the_reads_of_other_threads_load_the_catalogue_once_beside_a_definition(built, monkeypatch):
    """As while a long report has a temporary table; but each read that calls a function of the database's own does."""
    execute("CREATE FUNCTION raw_reads() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    execute("CREATE FUNCTION raw_other() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    load = mock.Mock(side_effect=consequences.load)
    monkeypatch.setattr(consequences, "load", load)

    def read():
        for count in (1, 1, 1):
            assert Article.objects.count() == count
        found.append(load.call_count)
        execute("SELECT raw_reads()")
        execute("SELECT raw_other()")
        found.append(load.call_count)
        connections.close_all()

    found = []
    try:
        with transaction.atomic(using="postgresql"):
            execute("CREATE TEMPORARY TABLE raw_new (id integer)")
            execute("DROP FUNCTION raw_other")
            Article.objects.count()  # by a catalogue without that function, which others still have
            load.reset_mock()
            in_thread(read)
            transaction.set_rollback(True, using="postgresql")
    finally:
        execute("DROP FUNCTION raw_reads, raw_other")
    assert found == [1, 3]


@on_postgresql
def test_a_definition_that_is_undone_is_followed_as_it_was(built, clock):
    """A rule that is dropped in a savepoint holds again after the rollback."""
    execute(MAKING["postgresql"])
    Rebuild(registry["product"], sleep=clock.sleep).run()
    try:
        with transaction.atomic(using="postgresql"):
            execute("CREATE TABLE raw_new (id integer)")
            with transaction.atomic(using="postgresql"):
                execute("DROP RULE raw_makes ON shop_order")
                Article.objects.create(pk=50, slug="new")  # by the catalogue without it
                transaction.set_rollback(True, using="postgresql")
            Order.objects.create()
    finally:
        execute("DROP RULE raw_makes ON shop_order")
        execute("DROP TABLE raw_new")

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


@on_postgresql
def test_a_text_is_harmless_only_by_a_catalogue_that_is_kept(built, clock):
    """A statement sent while another transaction changes a trigger's function is looked at again after its COMMIT."""
    function = (
        "CREATE OR REPLACE FUNCTION raw_does() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} RETURN NULL; END $$"
    )
    execute("CREATE TABLE raw_noted (id integer PRIMARY KEY, note varchar(50))")
    execute("INSERT INTO raw_noted VALUES (1, 'a')")
    execute(function.format(""))
    execute("CREATE TRIGGER raw_does AFTER UPDATE ON raw_noted FOR EACH ROW EXECUTE FUNCTION raw_does()")
    try:
        Rebuild(registry["article"], sleep=clock.sleep).run()
        with transaction.atomic(using="postgresql"):
            execute(function.format("INSERT INTO shop_article (id, slug, deleted) VALUES (60, NEW.note, false);"))
            in_thread(lambda: update_note("b"))
            stamp = consequences.definitions.stamp
        assert consequences.definitions.stamp > stamp  # at the COMMIT, and not when somebody asks
        in_thread(lambda: update_note("c"))
    finally:
        execute("DROP TABLE raw_noted")
        execute("DROP FUNCTION raw_does")

    assert set(Article.objects.values_list("slug", flat=True)) >= {"c"}
    assert registry["article"].verdict("c") is not Verdict.ABSENT


def update_note(note):
    execute("UPDATE raw_noted SET note = %s WHERE id = %s", [note, 1])
    connections.close_all()


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
