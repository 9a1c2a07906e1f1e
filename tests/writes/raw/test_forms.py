"""Forms of statements that write, and whose first words do not show it: on the databases that have them."""

from __future__ import annotations

import pytest
from django.db import connections, models
from django.test.utils import isolate_apps

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import consequences
from tests.shop.models import Article, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import EXACT, MYSQL, mariadb_only

from .sending import execute, on_postgresql, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
on_mariadb = pytest.mark.parametrize("each_database", ["mariadb"], indirect=True)

NEW = "INSERT INTO public.shop_article (id, slug, deleted) VALUES (50, 'new', false)"
ROW = "INSERT INTO shop_article (slug, deleted) VALUES ('new', 0)"
FUNCTION = f"CREATE FUNCTION raw_make() RETURNS integer LANGUAGE sql AS $$ {NEW} RETURNING 1 $$"
POSTGRESQL = {
    "CREATE TABLE AS with a CTE": [f"CREATE TABLE raw_ids AS WITH made AS ({NEW} RETURNING id) SELECT id FROM made"],
    "CREATE TEMP TABLE AS": [f"CREATE TEMP TABLE raw_ids AS WITH made AS ({NEW} RETURNING id) SELECT id FROM made"],
    "CREATE TABLE AS EXECUTE": [
        FUNCTION,
        "PREPARE raw_one AS SELECT raw_make()",
        "CREATE TABLE raw_ids AS EXECUTE raw_one",
    ],
    "EXPLAIN ANALYZE EXECUTE": [f"PREPARE raw_one AS {NEW}", "EXPLAIN ANALYZE EXECUTE raw_one"],
    "EXPLAIN (ANALYZE) EXECUTE": [f"PREPARE raw_one AS {NEW}", "EXPLAIN (COSTS off, ANALYZE) EXECUTE raw_one"],
    "a field": [
        "CREATE TABLE raw_row (id integer)",
        "INSERT INTO raw_row VALUES (1)",
        f"CREATE FUNCTION raw_field(r raw_row) RETURNS integer LANGUAGE sql AS $$ {NEW} RETURNING 1 $$",
        "SELECT r.raw_field FROM raw_row r",
    ],
    "a field of any row": [
        "CREATE TABLE raw_row (id integer)",
        "INSERT INTO raw_row VALUES (1)",
        f"CREATE FUNCTION raw_field(r anyelement) RETURNS integer LANGUAGE sql AS $$ {NEW} RETURNING 1 $$",
        "DELETE FROM raw_row WHERE (raw_row).raw_field = 1",
    ],
    "TRUNCATE CASCADE": [
        "CREATE TABLE raw_ids (id integer PRIMARY KEY)",
        "CREATE TABLE raw_row (id integer REFERENCES raw_ids)",
        f"CREATE FUNCTION raw_make() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {NEW}; RETURN NULL; END $$",
        "CREATE TRIGGER raw_empties AFTER TRUNCATE ON raw_row EXECUTE FUNCTION raw_make()",
        "TRUNCATE raw_ids CASCADE",
    ],
    "TRUNCATE of a parent": [
        "CREATE TABLE raw_ids (id integer)",
        "CREATE TABLE raw_row () INHERITS (raw_ids)",
        f"CREATE FUNCTION raw_make() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {NEW}; RETURN NULL; END $$",
        "CREATE TRIGGER raw_empties AFTER TRUNCATE ON raw_row EXECUTE FUNCTION raw_make()",
        "TRUNCATE raw_ids",
    ],
    "WHEN of a TRUNCATE trigger": [
        FUNCTION,
        "CREATE TABLE raw_ids (id integer)",
        "CREATE FUNCTION raw_field() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER raw_asks AFTER TRUNCATE ON raw_ids WHEN (raw_make() = 1) EXECUTE FUNCTION raw_field()",
        "TRUNCATE raw_ids",
    ],
    "WHEN of a trigger": [
        FUNCTION,
        "CREATE TABLE raw_ids (id integer)",
        "INSERT INTO raw_ids VALUES (1)",
        "CREATE FUNCTION raw_field() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$",
        "CREATE TRIGGER raw_asks BEFORE DELETE ON raw_ids FOR EACH ROW WHEN (raw_make() = 1) "
        "EXECUTE FUNCTION raw_field()",
        "DELETE FROM raw_ids",
    ],
    "a column of that name": [
        FUNCTION.replace("raw_make", "key"),
        "ALTER TABLE shop_product ADD key integer DEFAULT key()",
    ],
}
UNDO = {
    "postgresql": [
        "DEALLOCATE ALL",
        "ALTER TABLE shop_product DROP COLUMN IF EXISTS key",
        "DROP TABLE IF EXISTS raw_ids, raw_row CASCADE",
        "DROP FUNCTION IF EXISTS raw_make, key, raw_field",
    ],
    "mariadb": ["DROP FUNCTION IF EXISTS raw_make", "DROP TABLE IF EXISTS raw_other"],
}


@on_postgresql
@pytest.mark.parametrize("statements", POSTGRESQL.values(), ids=POSTGRESQL)
def test_a_form_of_postgresql_that_writes_fences(built, statements):
    """Each leaves a row, and the guard fenced."""
    try:
        for sql in statements:
            execute(sql)
        assert status("article") == FENCED
    finally:
        for sql in UNDO["postgresql"]:
            execute(sql)

    assert Article.objects.filter(slug="new").exists()


@on_postgresql
def test_a_field_is_no_call_if_the_function_writes_nothing_guarded(built, clock):
    """Texts with points cost a look at the catalogue once, and then nothing."""
    execute("CREATE TABLE raw_row (id integer, note text)")
    execute("CREATE FUNCTION raw_field(r raw_row) RETURNS text LANGUAGE sql AS $$ SELECT r.note $$")
    try:
        Rebuild(registry["article"], sleep=clock.sleep).run()
        sql = "SELECT r.raw_field FROM raw_row r"
        execute(sql)
        execute(sql)
        assert sql in consequences.current_cache(database.current).texts
    finally:
        execute("DROP TABLE raw_row CASCADE")

    assert status("article") == ARMED


JOINED = "CREATE TABLE raw_other (id bigint PRIMARY KEY); INSERT INTO raw_other VALUES (1)"
MAKE = (
    "CREATE FUNCTION raw_make(word text) RETURNS integer "
    "BEGIN INSERT IGNORE INTO shop_article (slug, deleted) VALUES ('new', 0); RETURN 1; END"
)
MARIADB = {
    "STRAIGHT_JOIN": [
        *JOINED.split("; "),
        "UPDATE raw_other STRAIGHT_JOIN shop_article ON raw_other.id = shop_article.id SET shop_article.slug = 'new'",
    ],
    "NATURAL JOIN": [*JOINED.split("; "), "UPDATE raw_other NATURAL JOIN shop_article SET shop_article.slug = 'new'"],
    "SHOW": [MAKE, "SHOW VARIABLES WHERE Variable_name = 'autocommit' AND raw_make('new') > 0"],
    "SET": [MAKE, "SET @a = raw_make('new')"],
    "a comment": [MAKE, "SELECT raw_make#count\n('new')"],
    "a block": [
        f"CREATE PROCEDURE raw_make() {ROW}",
        "CALL raw_make" if MYSQL else "BEGIN NOT ATOMIC CALL raw_make; END",
    ],
}


@on_mariadb
@pytest.mark.parametrize("statements", MARIADB.values(), ids=MARIADB)
def test_a_form_of_mariadb_that_writes_fences(built, statements):
    """Each leaves a row, and the guard fenced."""
    try:
        for sql in statements:
            execute(sql)
        assert status("article") == FENCED
    finally:
        for sql in [*UNDO["mariadb"], "DROP PROCEDURE IF EXISTS raw_make"]:
            execute(sql)

    assert Article.objects.filter(slug="new").exists()


@pytest.fixture
def swapped(built):
    """Another table, for that of the products, which is away."""
    mariadb = connections[database.current].vendor == "mysql"
    like = "LIKE shop_product" if mariadb else "(LIKE shop_product INCLUDING ALL)"
    execute(f"CREATE TABLE raw_new {like}")
    execute("INSERT INTO raw_new (id, name) VALUES (77, 'x')")
    if mariadb:
        execute("SET FOREIGN_KEY_CHECKS = 0")
    execute("ALTER TABLE shop_product RENAME TO raw_old")
    yield
    execute("DROP TABLE IF EXISTS raw_new, raw_log, shop_product")
    execute("ALTER TABLE raw_old RENAME TO shop_product")
    if mariadb:
        execute("SET FOREIGN_KEY_CHECKS = 1")


RENAMES = [
    ("postgresql", ["ALTER INDEX raw_new RENAME TO shop_product"]),
    ("postgresql", ["ALTER INDEX IF EXISTS raw_new RENAME TO shop_product"]),
    ("mariadb", ["ALTER TABLE raw_new RENAME shop_product"]),
    ("mariadb", ["ALTER TABLE raw_new RENAME = shop_product"]),
    ("mariadb", ["ALTER TABLE raw_new RENAME AS shop_product"]),
    pytest.param("mariadb", ["ALTER TABLE raw_new NOWAIT RENAME shop_product"], marks=mariadb_only),
    ("mariadb", ["ALTER TABLE raw_new COMMENT = 'x', RENAME `shop_product`"]),
    pytest.param(
        "mariadb",
        [
            "CREATE TABLE raw_log (id bigint PRIMARY KEY, name varchar(100) NOT NULL) PARTITION BY RANGE (id) "
            "(PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN MAXVALUE)",
            "INSERT INTO raw_log VALUES (77, 'x')",
            "ALTER TABLE raw_log CONVERT PARTITION p0 TO TABLE shop_product",
        ],
        marks=mariadb_only,
    ),
]


@pytest.mark.parametrize(("each_database", "statements"), RENAMES, indirect=["each_database"])
def test_a_table_in_the_place_of_a_guarded_one_fences(each_database, swapped, statements):
    """However it got its name."""
    for sql in statements:
        execute(sql)

    assert Product.objects.filter(pk=77).exists()
    assert status("product") == FENCED


@pytest.fixture
def declare(each_database, fresh, clock):
    """``declare(table, create, *rows, **fields)``: a guard of a new table, armed; by ``slug`` if there is one."""
    made = []

    def of(table, *statements, **fields):
        for sql in statements:
            execute(sql)
        made.append(table)
        with isolate_apps("tests.shop"):
            meta = type("Meta", (), {"db_table": table, "managed": False, "app_label": "shop"})
            return type("Declared", (models.Model,), {"__module__": __name__, "Meta": meta, **fields})

    yield of
    for table in reversed(made):
        execute(f"DROP TABLE IF EXISTS {table}")


IF_EXISTS = "" if MYSQL else "IF EXISTS"
SLUG = f"varchar(200) COLLATE {EXACT}"


@on_mariadb
@pytest.mark.parametrize(
    "sql",
    [
        f"ALTER TABLE raw_named CHANGE COLUMN {IF_EXISTS} note slug {SLUG}",
        f"ALTER TABLE raw_named CHANGE {IF_EXISTS} note slug {SLUG}",
        f"ALTER TABLE raw_named RENAME COLUMN {IF_EXISTS} note TO slug",
        "ALTER TABLE raw_named RENAME COLUMN note TO slug",
        f"ALTER TABLE raw_named MODIFY COLUMN {IF_EXISTS} was varchar(2), CHANGE note slug {SLUG}",
    ],
)
def test_a_column_in_the_place_of_a_looked_up_one_fences(declare, clock, sql):
    """IF EXISTS is no name of a column."""
    model = declare(
        "raw_named",
        f"CREATE TABLE raw_named (id integer PRIMARY KEY, slug {SLUG}, note {SLUG})",
        "INSERT INTO raw_named VALUES (1, 'old', 'new')",
        slug=models.CharField(max_length=50),
    )
    with registered(model, name="named", lookup="slug") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        execute("SET SESSION sql_mode = ''")
        execute("ALTER TABLE raw_named RENAME COLUMN slug TO was")
        execute(sql)
        connections["mariadb"].close()

        assert model.objects.filter(slug="new").exists()
        assert status("named") == FENCED


@on_mariadb
def test_a_column_that_is_cut_fences(built):
    """Also with IF EXISTS."""
    Article.objects.create(slug="abcdef")
    execute("SET SESSION sql_mode = ''")
    try:
        execute(f"ALTER TABLE shop_article MODIFY COLUMN {IF_EXISTS} slug {SLUG.replace('200', '3')} NOT NULL")
        assert Article.objects.filter(slug="abc").exists()
        assert status("article") == FENCED
    finally:
        Article.objects.all().delete()
        execute(f"ALTER TABLE shop_article MODIFY slug {SLUG} NOT NULL")
        connections["mariadb"].close()


@on_mariadb
@mariadb_only
@pytest.mark.parametrize("head", ["DELETE FROM raw_period {}", "UPDATE raw_period {} SET note = 'z'"])
def test_a_portion_of_a_period_fences(declare, clock, head):
    """The rows' other portions are new rows, with new keys."""
    model = declare(
        "raw_period",
        "CREATE TABLE raw_period (id integer PRIMARY KEY AUTO_INCREMENT, note varchar(9), s date NOT NULL, "
        "e date NOT NULL, PERIOD FOR p(s, e))",
        "INSERT INTO raw_period (note, s, e) VALUES ('a', '2024-01-01', '2024-12-31')",
        id=models.AutoField(primary_key=True),
    )
    with registered(model, name="period") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        execute(head.format("FOR PORTION OF p FROM '2024-02-01' TO '2024-03-01'"))

        assert model.objects.count() > 1
        assert status("period") == FENCED


@on_sqlite
def test_a_copy_of_another_table_fences(built):
    """SQLite's schema editor copies the table that it recreates, and no other."""
    connection = connections["default"]
    execute("CREATE TABLE raw_stage (id integer PRIMARY KEY, name varchar(100))")
    execute("INSERT INTO raw_stage VALUES (77, 'x')")
    with connection.cursor() as cursor:
        cursor.execute("SELECT sql FROM sqlite_master WHERE name = 'shop_product'")
        (text,) = cursor.fetchone()
    connection.disable_constraint_checking()
    try:
        execute(text.replace('"shop_product"', '"new__shop_product"'))
        execute('INSERT INTO "new__shop_product" ("id", "name") SELECT "id", "name" FROM "raw_stage"')
        execute('DROP TABLE "shop_product"')
        execute('ALTER TABLE "new__shop_product" RENAME TO "shop_product"')
    finally:
        connection.enable_constraint_checking()
        execute("DROP TABLE raw_stage")

    assert Product.objects.filter(pk=77).exists()
    assert status("product") == FENCED


@on_sqlite
@pytest.mark.parametrize("space", [" ", "\n", "\t", " /* x */ "])
def test_an_action_of_a_foreign_key_is_followed_however_it_is_written(declare, clock, space):
    """The database is asked for its keys, and not their text."""
    execute("CREATE TABLE raw_master (slug varchar(50) PRIMARY KEY)")
    model = declare(
        "raw_detail",
        "CREATE TABLE raw_detail (id integer PRIMARY KEY, slug varchar(50) "
        f"REFERENCES raw_master (slug) ON{space}UPDATE{space}CASCADE)",
        "INSERT INTO raw_master VALUES ('a')",
        "INSERT INTO raw_detail VALUES (1, 'a')",
        slug=models.CharField(max_length=50),
    )
    try:
        with registered(model, name="detail", lookup="slug") as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            execute("UPDATE raw_master SET slug = 'b'")

            assert model.objects.filter(slug="b").exists()
            assert status("detail") == FENCED
    finally:
        execute("DROP TABLE raw_detail")
        execute("DROP TABLE raw_master")


@on_sqlite
@pytest.mark.parametrize(
    "name", ['"update on raw_source"', "[delete on x begin]", "'update'", "/* update on */ raw_one"]
)
@pytest.mark.parametrize("head", ["AFTER INSERT", "INSERT", "BEFORE\nINSERT"])
def test_the_event_of_a_trigger_is_not_read_from_its_name(built, clock, name, head):
    """Which may have words in it."""
    execute("CREATE TABLE raw_source (id integer PRIMARY KEY)")
    execute(f"CREATE TRIGGER {name} {head}\nON raw_source BEGIN {ROW}; END")
    try:
        Rebuild(registry["article"], sleep=clock.sleep).run()
        execute("INSERT INTO raw_source VALUES (1)")
    finally:
        execute("DROP TABLE raw_source")

    assert Article.objects.filter(slug="new").exists()
    assert registry["article"].verdict("new") is not Verdict.ABSENT
    assert status("article") == FENCED
