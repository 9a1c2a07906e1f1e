"""Raw SQL on a guarded table takes its filter out of use, before the row can be seen, and costs nothing elsewhere."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from contextlib import ExitStack, nullcontext, suppress

import pytest
from django.db import (
    DataError,
    IntegrityError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connections,
    migrations,
    models,
    transaction,
)
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.db.backends.postgresql.psycopg_any import sql as composing
from django.db.backends.utils import CursorWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.operations import RunPython, RunSQL
from django.db.migrations.state import ModelState, ProjectState
from django.utils.functional import SimpleLazyObject

from bloomguard.exceptions import StoreError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.transactions import locks_table
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import consequences, fencing, raw, tables
from bloomguard.writes.sql import reader
from tests.shop.models import Article, Bundle, Order, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import MYSQL
from tests.support.orm_writes import atomic, autocommit, sent, uninstalled, without_autocommit

from . import sending
from .sending import INSERT, execute, on_postgresql, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.mark.parametrize(("limit", "most"), [("_MOST_UNREAD", 2), ("_MOST_CHARACTERS", 16)])
def test_more_texts_than_are_kept_may_have_written_anything(built, monkeypatch, limit, most):
    """While all guards are idle, a transaction's texts are kept for the COMMIT: so many, and so many characters."""
    monkeypatch.setattr(raw, limit, most)
    with transaction.atomic(using=database.current):
        connection = connections[database.current]
        for text in ("SELECT 1", "SELECT 2", "SELECT 1", "SELECT 2"):
            raw._keep_unread(text, "", connection)
        fences = fencing.CommitFences.of(connection)
        assert fences.find_more() == {}

        raw._keep_unread("SELECT 3", "", connection)

        assert {guard.name for guard in fences.find_more()} >= {"article", "product"}
        assert len(fences.unread) == 3
        transaction.set_rollback(True, using=database.current)


@pytest.mark.parametrize(
    "write", [lambda: Product.objects.create(pk=5), lambda: Product.objects.filter(pk=1).update(id=5)]
)
def test_a_transaction_of_the_orm_does_not_disturb_a_first_build(write, each_database, fresh, clock):
    """The build waits for what it wrote while the guard had no filter, so its COMMIT need not fence that filter."""
    if each_database != "postgresql":
        pytest.skip("elsewhere a build cannot be announced before the COMMIT, or no statement is kept for it")
    Product.objects.create(pk=1)
    consequences.caches.clear()
    written, announced = threading.Event(), threading.Event()

    def work() -> None:
        with transaction.atomic(using=database.current):
            write()
            written.set()
            announced.wait()
        connections[database.current].close()

    writer = threading.Thread(target=work)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        announced.set()
        writer.join()

    writer.start()
    written.wait()
    Rebuild(registry["product"], sleep=sleep, probes=1_000).run()

    assert status("product") == ARMED
    assert registry["product"].verdict(5) is Verdict.MAYBE


@pytest.mark.parametrize("where", ["autocommit", "atomic"])
def test_a_raw_insert_fences(built, clock, where):
    """The guard answers nothing from before the row can be seen, until it is rebuilt."""
    began = clock.now
    if where == "atomic":
        with transaction.atomic(using=database.current):
            execute(INSERT, [7, "x"])
    else:
        execute(INSERT, [7, "x"])

    assert clock.now - began >= 2 * state.LEASE_SECONDS
    assert status("product") == FENCED
    assert registry["product"].verdict(7) is Verdict.UNKNOWN
    assert status("article") == ARMED
    Rebuild(registry["product"], sleep=clock.sleep).run()
    assert [registry["product"].verdict(pk) for pk in (7, 8)] == [Verdict.MAYBE, Verdict.ABSENT]


def test_a_fenced_guard_costs_no_second_wait(built, clock):
    """While the guard is out of use, raw SQL goes on as it always did."""
    execute(INSERT, [7, "x"])
    clock.now += 10
    state.table.renew()
    Product.objects.create(pk=20)  # whoever meets the fence for the first time waits once
    again = clock.now

    for number in range(8, 12):
        execute(INSERT, [number, "x"])

    assert clock.now == again


MANY = {
    "raw SQL": lambda: execute(INSERT, [7, "x"]),
    "insert": lambda: Product.objects.create(pk=7, name="x"),
    "bulk_create": lambda: Product.objects.bulk_create([Product(pk=7, name="x")]),
    "update": lambda: Product.objects.filter(name="old").update(name="new"),
}


@pytest.mark.parametrize("block", [atomic, autocommit])
@pytest.mark.parametrize("write", MANY.values(), ids=MANY)
def test_several_guards_wait_together(each_database, fresh, build, clock, block, write, monkeypatch):
    """A statement that may have written any table would wait for minutes on a site of a hundred guards."""
    Product.objects.create(pk=1, name="old")
    with ExitStack() as stack:
        for number in range(3):
            stack.enter_context(registered(Product, name=f"guard-{number}", lookup="name"))
            build(f"guard-{number}")
        monkeypatch.setattr(ActiveFilter, "add", lambda *args, **named: False)
        began = clock.now
        with block():
            write()

        assert [status(f"guard-{number}") for number in range(3)] == [FENCED] * 3
    assert 2 * state.LEASE_SECONDS <= clock.now - began < 3 * state.LEASE_SECONDS


def test_nobody_sees_the_row_before_the_fence(seen_at_the_fence):
    """Not even under autocommit: another connection sees neither, or both."""
    execute(INSERT, [7, "x"])

    assert seen_at_the_fence
    assert not any(seen_at_the_fence)
    assert Product.objects.filter(pk=7).exists()


@on_postgresql
def test_nobody_waits_for_the_lock_of_a_definition_while_its_fence_is_waited_for(built, clock, monkeypatch):
    """A migration locks the table until its COMMIT, also for readers."""
    locked, sleep = [], state.table.sleep

    def watched(seconds):
        locked.append(locks_table(connections[database.current], "shop_article"))
        sleep(seconds)

    monkeypatch.setattr(state.table, "sleep", watched)
    with transaction.atomic(using=database.current):
        execute("ALTER TABLE shop_article RENAME COLUMN slug TO title")
        assert locks_table(connections[database.current], "shop_article")
        transaction.set_rollback(True, using=database.current)

    assert locked == [False]
    assert status("article") == FENCED


@on_postgresql
def test_a_definition_whose_second_fence_fails_is_not_committed(built, monkeypatch):
    """A build may begin between the fence before it and the one after it."""
    fence, fenced = fencing.fence, []

    def once(reasons, using):
        if fenced:
            raise StoreError("the state rows cannot be changed")
        fenced.extend(fence(reasons, using))
        return fenced

    monkeypatch.setattr(fencing, "fence", once)
    with transaction.atomic(using=database.current):
        with pytest.raises(StoreError):
            execute("ALTER TABLE shop_article RENAME COLUMN slug TO title")
        assert connections[database.current].needs_rollback

    assert fenced
    assert Article.objects.filter(slug="old").exists()


def each():
    return connections[database.current].vendor


CASE = {"mysql": ("", ""), "sqlite": ("shop_product", "SHOP_PRODUCT"), "postgresql": ("shop_product", "SHOP_PRODUCT")}
WITH = dict.fromkeys(CASE, "WITH a AS (SELECT 7 AS b) INSERT INTO shop_product (id, name) SELECT b, 'x' FROM a") | {
    "mysql": "INSERT INTO shop_product (id, name) WITH a AS (SELECT 7 AS b) SELECT b, 'x' FROM a"
}
FORMS = {
    "many": lambda: execute(INSERT, [(7, "x"), (8, "y")], many=True),
    "update": lambda: execute("UPDATE shop_product SET id = 7"),
    "comment": lambda: execute("/* report */ INSERT INTO shop_product (id, name) VALUES (7, 'x')"),
    "upper case": lambda: execute("INSERT INTO shop_product (ID, name) VALUES (7, 'x')".replace(*CASE[each()])),
    "with": lambda: execute(WITH[each()]),
    "raw queryset": lambda: list(
        Product.objects.raw("INSERT INTO shop_product (id, name) VALUES (7, 'x') RETURNING id")
    ),
}


def needs_returning():
    if MYSQL and each() == "mysql":
        pytest.skip("MySQL has no RETURNING")


@pytest.mark.parametrize("write", FORMS.values(), ids=FORMS)
def test_every_way_to_send_it_is_seen(built, write):
    """Whatever ends in a cursor's `execute` or `executemany`."""
    if write is FORMS["raw queryset"]:
        needs_returning()
    write()

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


def test_rows_that_are_returned_can_be_fetched(built):
    """A statement that returns rows does so under autocommit too."""
    needs_returning()
    with connections[database.current].cursor() as cursor:
        cursor.execute("INSERT INTO shop_product (id, name) VALUES (7, 'a'), (8, 'b') RETURNING id")
        rows = cursor.fetchall()

    assert list(rows) == [(7,), (8,)]
    assert connections[database.current].get_autocommit()
    assert Product.objects.count() == 3
    assert status("product") == FENCED


@on_postgresql
def test_a_composed_statement_is_seen(built):
    """psycopg's own way to build SQL, and bytes."""
    table = composing.Identifier("public", "shop_product")
    execute(composing.SQL("INSERT INTO {} (id, name) VALUES (%s, %s)").format(table), [7, "x"])

    assert status("product") == FENCED


@on_postgresql
@pytest.mark.parametrize("where", [autocommit, atomic], ids=["autocommit", "atomic"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "half of a pair"])
def test_what_the_driver_cannot_compose_raises_what_it_did(built, where, text):
    """As for a text that a user has typed. The guards go on answering, as nothing was sent."""
    composed = composing.SQL("INSERT INTO shop_product (id, name) VALUES (7, {})").format(composing.Literal(text))
    with uninstalled(), pytest.raises((DataError, ValueError)) as plain, where():
        execute(composed)
    with pytest.raises((DataError, ValueError)) as guarded, where():
        execute(composed)

    assert guarded.type is plain.type
    assert status("product") == ARMED


@on_postgresql
@pytest.mark.skipif(not is_psycopg3, reason="psycopg 3's")
@pytest.mark.parametrize("where", [autocommit, atomic], ids=["autocommit", "atomic"])
def test_what_only_its_cursor_can_compose_fences(built, where):
    """A dumper may be registered with a cursor alone, so the text is not known before the statement is sent."""
    from psycopg.types.string import StrDumper

    class Name:
        """A value of the project's own."""

    class NameDumper(StrDumper):
        def dump(self, name):
            return b"x"

    with where(), connections[database.current].cursor() as cursor:
        cursor.cursor.adapters.register_dumper(Name, NameDumper)
        cursor.execute(composing.SQL("INSERT INTO shop_product (id, name) VALUES (7, {})").format(Name()))

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


OTHERS = {
    "select": lambda: execute("SELECT * FROM shop_product"),
    "other columns": lambda: execute("UPDATE shop_product SET name = %s WHERE id = 1", ["x"]),
    "delete": lambda: execute("DELETE FROM shop_product"),
    "orm delete": lambda: Product.objects.all().delete(),
    "orm create": lambda: Order.objects.create(),
    "orm bulk_create": lambda: Product.objects.bulk_create([Product(pk=5), Product(pk=6)]),
    "orm other columns": lambda: Product.objects.update(name="x"),
    "orm key": lambda: Article.objects.update(slug="x"),
    "orm child": lambda: Bundle.objects.create(pk=5, name="a"),
    "orm like": lambda: Article.objects.filter(slug__contains="ol\\d%").update(slug="b"),
}


@pytest.mark.parametrize("work", OTHERS.values(), ids=OTHERS)
def test_nothing_else_fences(all_built, work, caplog):
    """Reads, deletes, columns that are nobody's key, and all that the ORM writes itself."""
    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        work()

    assert {status(name) for name in ("product", "article", "order", "place")} == {ARMED}
    assert caplog.records == []


def test_a_raw_update_of_what_decides_who_is_alive_fences(built):
    """A row that comes to life brings up a key."""
    execute("UPDATE shop_article SET deleted = %s", [False])

    assert status("article") == FENCED


def test_a_parents_table_counts_for_its_children(built, clock):
    """A key may lie in a parent's table."""
    with registered(Bundle, name="bundle", lookup="name") as guard:
        Rebuild(guard, sleep=clock.sleep).run()

        execute("UPDATE shop_product SET name = 'x'")

        assert status("bundle") == FENCED
        assert status("product") == ARMED


def test_a_guard_without_a_filter_is_left_alone(each_database, fresh, clock, transactional_db, caplog):
    """There is nothing to fence, to wait for or to warn of."""
    began = clock.now
    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        execute(INSERT, [7, "x"])

    assert (clock.now, caplog.records) == (began, [])


@pytest.mark.parametrize(
    ("sql", "is_border"),
    [("BEGIN", True), ("BEGIN IMMEDIATE", True), ('SAVEPOINT "s1_x2"', True), ("ROLLBACK TO SAVEPOINT `s1`", True),
     ("BEGIN ISOLATION LEVEL SERIALIZABLE", False), ("SAVEPOINT a; COMMIT", False),
     ("BEGIN INSERT INTO shop_product (id) VALUES (7) END", False)],
)  # fmt: skip
def test_what_django_sends_around_writes_is_not_read(sql, is_border):
    """Some databases need no semicolon between a BEGIN and the next statement, so any other text is read."""
    assert bool(raw._BORDER.fullmatch(sql)) is is_border


def test_one_warning_a_call_site(built, caplog):
    """It names file and line, and nothing of what was written."""
    with caplog.at_level(logging.WARNING, logger="bloomguard"), connections[database.current].cursor() as cursor:
        for number in range(50, 53):
            cursor.execute("INSERT INTO shop_product (id, name) VALUES (%s, 'private')", [number])

    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{os.path.basename(__file__)}:" in warning
    assert "shop_product" in warning
    assert "rebuild_filter" in warning
    assert not {"private", "50", "VALUES"} & set(f"{warning} {error}".replace("'", " ").split())


def test_a_warning_names_no_package_that_only_passes_the_statement_on(built, caplog, monkeypatch):
    """Several packages replace a method of the cursor: the place would be the same for all statements."""
    original = CursorWrapper.execute
    package = "def execute(cursor, sql, *args):\n    return original(cursor, sql, *args)"
    code = {"original": original, "__name__": "package"}
    exec(compile(package, "package.py", "exec"), code)
    monkeypatch.setattr(CursorWrapper, "execute", code["execute"])

    execute(INSERT, [50, "x"])

    assert "package.py" not in caplog.text
    assert f"{os.path.basename(sending.__file__)}:" in caplog.text


@pytest.mark.parametrize("is_last", [False, True])
def test_a_warning_names_the_file_of_a_migration(built, caplog, monkeypatch, is_last):
    """Only Django's code and ``manage.py`` are on the stack, also when the editor sends its last statements."""
    sql = "INSERT INTO shop_product (id, name) VALUES (50, 'x')"
    last = RunPython(lambda apps, editor: editor.deferred_sql.append(sql))
    operation = last if is_last else RunSQL(sql)
    migration = type("Migration", (migrations.Migration,), {"operations": [operation], "__module__": sending.__name__})
    executor = MigrationExecutor(connections[database.current])
    monkeypatch.setattr(executor, "record_migration", lambda *which: None)

    executor.apply_migration(ProjectState(), migration("0002_numbers", "shop"))

    assert f"wrote to shop_product at {sending.__file__}" in caplog.text


@pytest.mark.parametrize("second", ["lazy", "text"])
def test_the_call_site_is_found_without_a_look_into_the_callers_objects(built, second):
    """One that is loaded at its first use, as ``request.user``, may send a query then, or raise anything."""

    def load():
        raise ZeroDivisionError

    def save(user, also):
        with connections[database.current].cursor() as cursor:
            cursor.execute(INSERT, [50, "x"])

    save(SimpleLazyObject(load), SimpleLazyObject(load) if second == "lazy" else "a text")

    assert status("product") == FENCED
    assert Product.objects.filter(pk=50).exists()


def test_an_error_stays_one(built):
    """A raw statement that fails raises what it did, leaves the connection as it was, and fences nothing."""
    with pytest.raises(IntegrityError):
        execute(INSERT, [1, "x"])

    assert connections[database.current].get_autocommit()
    assert status("product") == ARMED
    assert Article.objects.create(pk=7, slug="next").pk


def test_an_error_in_a_transaction_is_the_callers(built):
    """On SQLite a block goes on after an error that it caught, as it always did."""
    if database.current == "postgresql":
        pytest.skip("PostgreSQL's transaction is over then")
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            execute(INSERT, [1, "x"])
        Product.objects.create(pk=9)

    assert Product.objects.filter(pk=9).exists()


@pytest.mark.parametrize("known", [True, False])
def test_a_refused_statement_fences_nothing(built, known):
    """Not either while the catalogue is unknown, which SQLite's transactions read only after the statement."""
    if not known:
        consequences.caches.clear()
    savepoint = nullcontext if database.current == "default" else atomic  # PostgreSQL goes on only after one
    with atomic(), suppress(IntegrityError), savepoint():
        execute("INSERT INTO shop_product (id, name) VALUES (7, 'x'), (1, 'x')")

    assert not Product.objects.filter(pk=7).exists()
    assert status("product") == ARMED


def test_a_catalogue_that_cannot_be_read_is_logged_with_the_error(built, monkeypatch, caplog):
    """It may be a time limit, not a right that is missing."""

    def fail(connection):
        raise OperationalError("canceling statement due to statement timeout")

    consequences.caches.clear()
    monkeypatch.setattr(consequences, "load", fail)
    execute(INSERT, [99, "x"])

    assert "rights and time limits of its user: canceling statement due to statement timeout" in caplog.text


def call_procedure():
    with connections[database.current].cursor() as cursor:
        cursor.callproc("nobody_knows", [])


#: Each may write, as far as its text shows.
DOUBTFUL = {
    "insert": lambda: execute(INSERT, [7, "x"]),
    "insert_many": lambda: execute(INSERT, [[7, "x"], [8, "x"]], many=True),
    "several": lambda: execute("INSERT INTO shop_product (id, name) VALUES (7, 'x'); SELECT 1"),
    "alter": lambda: execute("ALTER TABLE shop_product ADD COLUMN another integer"),
    "unknown": lambda: execute("FROBNICATE shop_product"),
    "procedure": call_procedure,
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("block", [atomic, without_autocommit], ids=lambda block: block.__name__)
def test_what_django_refuses_until_the_rollback_fences_nothing(all_built, clock, block, known):
    """It raises Django's own error, and the transaction is rolled back by nobody but the project."""
    began = clock.now
    for name, write in DOUBTFUL.items():
        with suppress(IntegrityError), block():
            with suppress(IntegrityError), transaction.atomic(using=database.current, savepoint=False):
                Product.objects.bulk_create([Product(pk=7), Product(pk=7)])
            if not known:
                consequences.caches.clear()
            refused = False
            with sent() as statements:
                try:
                    write()
                except transaction.TransactionManagementError:
                    refused = True
            assert refused, name
            assert "ROLLBACK" not in "".join(statements).upper(), name
            raise IntegrityError

        assert clock.now == began, name
        assert {status(each) for each in ("product", "article", "order", "place")} == {ARMED}, name


@on_postgresql
@pytest.mark.parametrize("write", ["insert", "insert_many", "alter", "procedure"])
@pytest.mark.parametrize("block", [atomic, without_autocommit], ids=lambda block: block.__name__)
def test_what_postgresql_refuses_until_the_rollback_fences_nothing(all_built, caplog, block, write):
    """Also if the catalogue cannot be read then; the log does not blame the rights of the role."""
    with suppress(IntegrityError), block():
        with suppress(IntegrityError):
            execute(INSERT, [1, "x"])
        consequences.caches.clear()
        for refused in (DOUBTFUL[write], lambda: Product.objects.update(name="x")):
            with pytest.raises(InternalError, match="transaction is aborted"):
                refused()
        raise IntegrityError

    assert {status(name) for name in ("product", "article", "order", "place")} == {ARMED}
    said = [each.getMessage() for each in caplog.records if each.name.startswith("bloomguard")]  # psycopg logs, too
    assert said == []


def test_every_connection_is_watched(built):
    """Those of other threads too; and each of them once."""
    found = []

    def work():
        try:
            execute(INSERT, [7, "x"])
            connections[database.current].close()
            execute("SELECT 1")
            found.append(connections[database.current].execute_wrappers.count(raw.watch))
        finally:
            connections[database.current].close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert found == [1]
    assert status("product") == FENCED


def test_threads_that_begin_at_once_overlook_no_table(monkeypatch):
    """Two threads may work out which tables are guarded side by side: neither ever sees half of it."""
    late_began, late_may_end = threading.Event(), threading.Event()

    class Late:
        """The registry, for a second thread that is held up before it has read the guards."""

        @property
        def plans(self):
            return registry.plans

        def __iter__(self):
            if threading.current_thread() is late:
                late_began.set()
                late_may_end.wait(60)
            return iter(registry)

    registry.replan()
    monkeypatch.setattr(tables, "registry", Late())
    late = threading.Thread(target=tables.tracked_tables, args=(Product,))
    late.start()
    assert late_began.wait(60)

    found = tables.tracked_tables(Order), "shop_order" in consequences.DatabaseCache("").tables

    late_may_end.set()
    late.join()
    assert all(found)
    assert [tracked.guard for tracked in tables.tracked_tables(Order)] == [registry["order"]]


def test_copy_as_the_first_statement_of_a_process_is_seen(monkeypatch):
    """Nothing else needs to have been executed for the tables to be known."""
    monkeypatch.setattr(consequences, "caches", {})
    effects = reader.read("COPY shop_order FROM STDIN", "postgresql").effects

    assert set(consequences.affected_guards(effects, connections["default"])) == {registry["order"]}


def test_a_wrapper_of_the_projects_comes_and_goes(built):
    """A connection that opens within one keeps ours, and lets go of theirs."""
    connection = connections[database.current]
    connection.close()
    connection.execute_wrappers.clear()
    seen = []

    def theirs(execute, sql, params, many, context):
        seen.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(theirs):
        execute("SELECT 1")
    execute("SELECT 2")

    assert [sql for sql in seen if not sql.startswith("SET SESSION")] == ["SELECT 1"]
    assert connection.execute_wrappers == [raw.watch]


@on_sqlite
def test_what_sqlite_refuses_leaves_no_trace(built):
    """Its driver takes one statement at a time, and refuses several before a transaction has begun."""
    connection = connections[database.current]
    connection.set_autocommit(False)
    try:
        with pytest.raises((ProgrammingError, sqlite3.Warning), match="one statement at a time"):  # by Python
            execute(f"DELETE FROM shop_product RETURNING *; {INSERT}", [7, "x"])
        assert not connection.connection.in_transaction
    finally:
        connection.rollback()
        connection.set_autocommit(True)

    assert status("product") == ARMED


@on_sqlite
@pytest.mark.parametrize("head", ["", "/* x */ ", "WITH old AS (SELECT 1) "])
@pytest.mark.parametrize("fails", [False, True])
def test_under_manual_commits_a_statement_begins_what_it_would_begin(built, head, fails):
    """Python's driver begins no transaction for a WITH, so such a statement is committed at once."""
    connection = connections[database.current]
    Product.objects.create(pk=7, name="x")
    connection.set_autocommit(False)
    sql = f"{head}UPDATE shop_product SET id = {'NULL' if fails else 8} WHERE id = 7"
    try:
        with pytest.raises(IntegrityError) if fails else nullcontext():
            execute(sql)
        assert connection.connection.in_transaction == (not head.startswith("WITH"))
    finally:
        connection.commit()
        connection.set_autocommit(True)

    assert status("product") == (ARMED if fails else FENCED)
    assert Product.objects.filter(pk=8).exists() is not fails


# -- migrations


def migrate(*operations):
    """Apply operations to the article's table, as a migration does."""
    before = ProjectState()
    before.add_model(ModelState.from_model(Article))
    for operation in operations:
        after = before.clone()
        operation.state_forwards("shop", after)
        with connections[database.current].schema_editor() as editor:
            operation.database_forwards("shop", editor, before, after)
        before = after


@pytest.fixture
def restored(built):
    """The article's table is as it was, afterwards."""
    yield
    connection = connections[database.current]
    with connection.constraint_checks_disabled(), connection.schema_editor() as editor:
        editor.delete_model(Article)
        editor.create_model(Article)


def test_a_migration_of_other_columns_fences_nothing(restored):
    """Not even where SQLite makes the table anew."""
    from django.db.migrations import AddField, AlterField, RemoveField

    migrate(
        AddField("Article", "extra", models.IntegerField(null=True)),
        AlterField("Article", "extra", models.IntegerField(default=3)),
        RemoveField("Article", "extra"),
    )

    assert status("article") == ARMED
    assert registry["article"].verdict("old") is Verdict.MAYBE


def test_a_migration_of_the_keys_column_fences(restored):
    """What it fills in, or takes from another column, nobody tells."""
    from django.db.migrations import AddField, RemoveField, RenameField

    migrate(
        AddField("Article", "handle", models.SlugField(default="same")),
        RemoveField("Article", "slug"),
        RenameField("Article", "handle", "slug"),
    )

    assert status("article") == FENCED


def test_run_sql_fences(restored):
    """A migration's own SQL is raw SQL."""
    migrate(RunSQL("UPDATE shop_article SET slug = 'written'"))

    assert status("article") == FENCED
