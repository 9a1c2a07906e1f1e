"""Raw SQL on a guarded table takes its filter out of use, before the row can be seen, and costs nothing elsewhere."""

from __future__ import annotations

import io
import logging
import os
import re
import sqlite3
import threading
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
from django.db import DatabaseError, IntegrityError, ProgrammingError, connections, models, transaction
from django.db.backends.postgresql.psycopg_any import errors, is_psycopg3
from django.db.backends.postgresql.psycopg_any import sql as composing
from django.db.migrations.operations import RunSQL
from django.db.migrations.state import ModelState, ProjectState
from gazetteer.models import City

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.verdicts import Verdict
from bloomguard.writes import catalogue, consequences, fencing, raw, tables
from bloomguard.writes.adding import adding
from bloomguard.writes.sql import reader
from tests.shop.models import Article, Bundle, Order, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


on_sqlite = pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)


@pytest.fixture
def built(each_database, build):
    """All the shop's filters."""
    Product.objects.create(pk=1, name="one")
    Article.objects.create(pk=1, slug="old")
    for name in ("product", "article", "order", "place"):
        build(name)
    raw._warned.clear()


def execute(sql, params=None, many=False):
    with connections[database.current].cursor() as cursor:
        return cursor.executemany(sql, params) if many else cursor.execute(sql, params)


def status(name):
    return state.table.current(name).status


INSERT = "INSERT INTO shop_product (id, name) VALUES (%s, %s)"


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


@pytest.fixture
def seen_at_the_fence(built, monkeypatch):
    """What another connection sees of row 7 each time a guard has just been fenced."""
    seen = []
    fence = fencing.fence

    def watched(guard, using, reason):
        fenced = fence(guard, using, reason)
        seen.append(state.table.connection.execute("SELECT id FROM shop_product WHERE id = 7")[0])
        return fenced

    monkeypatch.setattr(fencing, "fence", watched)
    return seen


def test_nobody_sees_the_row_before_the_fence(seen_at_the_fence):
    """Not even under autocommit: another connection sees neither, or both."""
    execute(INSERT, [7, "x"])

    assert seen_at_the_fence
    assert not any(seen_at_the_fence)
    assert Product.objects.filter(pk=7).exists()


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


@pytest.mark.parametrize("write", FORMS.values(), ids=FORMS)
def test_every_way_to_send_it_is_seen(built, write):
    """Whatever ends in a cursor's `execute` or `executemany`."""
    write()

    assert Product.objects.filter(pk=7).exists()
    assert status("product") == FENCED


def test_rows_that_are_returned_can_be_fetched(built):
    """A statement that returns rows does so under autocommit too."""
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
def test_nothing_else_fences(built, work, caplog):
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


def test_one_warning_a_call_site(built, caplog):
    """It names file and line, and nothing of what was written."""
    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        for number in range(50, 53):
            execute("INSERT INTO shop_product (id, name) VALUES (%s, 'private')", [number])

    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{os.path.basename(__file__)}:" in warning
    assert "shop_product" in warning
    assert "rebuild_filter" in warning
    assert not {"private", "50", "VALUES"} & set(f"{warning} {error}".replace("'", " ").split())


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

    found = tables.tracked_tables(Order), "shop_order" in consequences.DatabaseCache().tables

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


# -- who adds the keys


@pytest.fixture
def product(built):
    return registry["product"]


def test_keys_that_are_added_keep_the_guard_in_use(product, caplog):
    """After the statement and before its COMMIT; several statements, and adds, if need be."""
    with adding(product, using=database.current) as add:
        execute(INSERT, [7, "x"])
        execute(INSERT, [(8, "x"), (9, "x")], many=True)
        add([7])
        add(iter([8, 9]))

    assert status("product") == ARMED
    assert [product.verdict(pk) for pk in (7, 8, 9, 10)] == [Verdict.MAYBE] * 3 + [Verdict.ABSENT]
    assert caplog.records == []


def test_keys_that_are_not_added_fence(product):
    """A statement that no add follows is as good as one outside of the block."""
    with adding(product, using=database.current) as add:
        execute(INSERT, [7, "x"])
        add([7])
        execute(INSERT, [8, "x"])

    assert status("product") == FENCED


def test_an_iterator_that_is_at_its_end_is_no_add(product):
    """The statement has read it already: the guard is fenced, as without an add."""
    rows = iter([(7, "x"), (8, "x")])
    with adding(product, using=database.current) as add:
        execute(INSERT, rows, many=True)
        add(pk for pk, name in rows)

    assert status("product") == FENCED


def test_only_the_guard_of_the_block_is_left_alone(product):
    """And only for as long as the block lasts."""
    with adding(product, using=database.current) as add:
        execute("UPDATE shop_article SET slug = 'else'")
        add([])
    assert (status("product"), status("article")) == (ARMED, FENCED)

    execute(INSERT, [7, "x"])

    assert status("product") == FENCED


def test_blocks_can_be_nested(product):
    """Each answers for its own statements."""
    with adding(product, using=database.current) as outer:
        with adding(product, using=database.current) as inner:
            execute(INSERT, [7, "x"])
            inner([7])
        execute(INSERT, [8, "x"])
        outer([8])

    assert status("product") == ARMED


@pytest.fixture
def second(product, clock):
    """``second(*statements)`` is done, and undone when the test ends; the filter is built between."""
    undo = []

    def make(*statements):
        for each in statements:
            made, away = each if isinstance(each, tuple) else (each, None)
            execute(made)
            undo.extend([away] if away else [])
        Rebuild(product, sleep=clock.sleep).run()

    yield make
    for sql in reversed(undo):
        execute(sql)


SECOND = "INSERT INTO shop_product (id, name) VALUES (70, 'second')"
AFTER = {
    "trigger on SQLite": (
        "sqlite",
        [
            (
                f"CREATE TRIGGER raw_second AFTER INSERT ON shop_product WHEN NEW.id = 7 BEGIN {SECOND}; END",
                "DROP TRIGGER raw_second",
            )
        ],
        INSERT,
    ),
    "trigger": (
        "postgresql",
        [
            (
                "CREATE FUNCTION raw_second() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF NEW.id = 7 THEN {SECOND}; END IF; RETURN NULL; END $$",
                "DROP FUNCTION raw_second CASCADE",
            ),
            "CREATE TRIGGER raw_second AFTER INSERT ON shop_product FOR EACH ROW EXECUTE FUNCTION raw_second()",
        ],
        INSERT,
    ),
    "function": (
        "postgresql",
        [
            (
                f"CREATE FUNCTION raw_second() RETURNS text LANGUAGE sql AS $$ {SECOND} RETURNING name $$",
                "DROP FUNCTION raw_second",
            )
        ],
        "INSERT INTO shop_product (id, name) SELECT %s, %s || raw_second()",
    ),
    "prepared statement": (
        "postgresql",
        [
            (
                f"PREPARE raw_two AS WITH a AS ({SECOND}) {INSERT.replace('%s', '7', 1).replace('%s', '$1')}",
                "DEALLOCATE raw_two",
            )
        ],
        "EXECUTE raw_two('x') /* %s %s */",
    ),
}


@pytest.mark.parametrize(("each_database", "objects", "sql"), AFTER.values(), ids=AFTER, indirect=["each_database"])
def test_a_block_is_for_the_rows_of_the_statement_itself(product, second, objects, sql):
    """Its caller does not know those that the database writes because of it, nor those of an unclear text."""
    second(*objects)
    with adding(product, using=database.current) as add:
        execute(sql, [7, "x"])
        add([7])

    assert Product.objects.filter(pk=70).exists()
    assert product.verdict(70) is not Verdict.ABSENT


def test_a_view_shows_the_rows_of_the_statement_itself(product, second, each_database):
    """So its caller can add them, also through a view, and through a partition's parent."""
    if each_database == "sqlite":
        pytest.skip("a view of SQLite has a trigger")
    second(("CREATE VIEW raw_shown AS SELECT id, name FROM shop_product", "DROP VIEW raw_shown"))
    with adding(product, using=database.current) as add:
        execute(INSERT.replace("shop_product", "raw_shown"), [7, "x"])
        add([7])

    assert status("product") == ARMED
    assert product.verdict(7) is Verdict.MAYBE


def test_a_block_that_fails_is_rolled_back(product):
    """Nothing is written then, so nothing is fenced."""

    def work():
        with adding(product, using=database.current) as add:
            execute(INSERT, [7, "x"])
            add(["abc"])

    with pytest.raises(ValueError, match="not a value"):
        work()

    assert status("product") == ARMED
    assert not Product.objects.filter(pk=7).exists()


def test_an_add_that_cannot_be_proved_fences(product):
    """As one of the ORM's does."""
    with (
        mock.patch.object(product._runtime.active_filter, "add", return_value=False),
        adding(product, using=database.current) as add,
    ):
        execute(INSERT, [7, "x"])
        add([7])

    assert status("product") == FENCED


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


# -- the page


@pytest.mark.skipif(not is_psycopg3, reason="psycopg 3's COPY")
@pytest.mark.django_db(transaction=True)
def test_the_pages_block_does_what_it_says(build):
    """Their keys are added, and their guards stay in use."""
    place = {"country": "DE", "timezone": "Europe/Berlin", "population": 1, "latitude": 0, "longitude": 0}
    City.objects.create(pk=1, name="Munich", slug="MUNICH", **place)
    build("city-by-slug")
    page = (Path(__file__).parents[2] / "docs" / "raw-sql.md").read_text()
    namespace = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, namespace)

    namespace["rename_cities"]()

    assert status("city-by-slug") == ARMED
    assert registry["city-by-slug"].verdict(("DE", "munich")) is Verdict.MAYBE


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


@on_postgresql
@pytest.mark.parametrize("begun", [False, True])
def test_reading_the_catalogue_leaves_a_transaction_as_it_was(built, monkeypatch, begun):
    """One by hand is not begun for it, nor lost because the catalogue could not be read."""
    connection = connections["postgresql"]

    def reader(catalogue, query):
        query("SELECT 1")
        query("SELECT nonsense")

    monkeypatch.setitem(catalogue._READERS, "postgresql", reader)
    connection.set_autocommit(False)
    try:
        if begun:
            execute(INSERT, [7, "x"])
        before = connection.connection.info.transaction_status
        with pytest.raises(errors.UndefinedColumn):
            catalogue.load(connection)
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
        consequences.definitions.temporary.clear()

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
    [("postgresql", "first"), ("postgresql", "key"), ("mariadb", "first")],
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
    monkeypatch.setattr(consequences, "load", mock.Mock(side_effect=DatabaseError))
    sql = "SELECT COUNT(*) FROM shop_product WHERE id = %s"
    execute(sql, [1])

    assert status("product") == ARMED
    assert sql not in consequences.current_cache(database.current).harmless


@pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True)
def test_a_count_is_no_call_to_be_followed(built):
    """If the database has no such function, which is known from the first such query on, it costs nothing."""
    sql = "SELECT COUNT(*) FROM shop_product"
    execute(sql)
    execute(sql)

    assert sql in consequences.current_cache(database.current).harmless


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
