"""What a statement's text says that it writes: no write is overlooked, and plain reading is none."""

from __future__ import annotations

import time
import tracemalloc
from types import SimpleNamespace

import pytest

from bloomguard.writes import isolation, observer, strays
from bloomguard.writes.sql import reader as sqltext
from bloomguard.writes.sql.tokens import bare, tokens

TABLES = {"shop_product", "shop_article"}


def written(sql, columns=("id", "slug"), vendor="postgresql"):
    """The tables that a text says it gives new keys."""
    effects = sqltext.read(sql, vendor).effects
    if sqltext.ANYTHING in effects:
        return set(TABLES)
    return {
        effect.name
        for effect in effects
        if effect.name in TABLES
        and effect.verb in ("insert", "update", "alter", "copy")
        and (effect.columns is None or effect.columns & set(columns))
    }


WRITES = [
    "INSERT INTO shop_product VALUES (1)",
    "insert into shop_product (id) select 1",
    'INSERT INTO "shop_product" ("id") VALUES (1)',
    'INSERT INTO"shop_product"VALUES(1)',
    "INSERT INTO public.shop_product VALUES (1)",
    'INSERT INTO "public"."shop_product" VALUES (1)',
    'INSERT INTO "public" . "SHOP_PRODUCT" VALUES (1)',
    "INSERT OR REPLACE INTO shop_product VALUES (1)",
    "INSERT IGNORE INTO shop_product VALUES (1)",
    "REPLACE INTO shop_product VALUES (1)",
    "\n  -- a note about shop_article\n /* and one */ INSERT /* more */ INTO\n shop_product VALUES (1)",
    "-- don't\nINSERT INTO shop_product VALUES (1)",
    "WITH a AS (SELECT 1) INSERT INTO shop_product SELECT * FROM a",
    "WITH a AS (INSERT INTO shop_product VALUES (1) RETURNING id) SELECT * FROM a",
    "WITH a AS (UPDATE shop_product SET id = 2 RETURNING id) DELETE FROM shop_article",
    "EXPLAIN ANALYZE INSERT INTO shop_product VALUES (1)",
    "SELECT 1; INSERT INTO shop_product VALUES (1)",
    "SELECT ';'; UPDATE shop_product SET id = 2",
    "MERGE INTO shop_product USING shop_article ON true WHEN NOT MATCHED THEN INSERT VALUES (1)",
    "COPY shop_product (id) FROM STDIN",
    "COPY public.shop_product FROM '/tmp/x'",
    "LOAD DATA INFILE 'x' INTO TABLE shop_product",
    "UPDATE shop_product SET id = 2",
    "UPDATE shop_product SET name = now(), %s = %s WHERE id = %s",
    'UPDATE shop_product SET name = now(), "%s" = %s',
    "UPDATE shop_product SET (name, %s) = (%s, %s)",
    'UPDATE "shop_product" SET "id" = 2 WHERE "name" = \'a\'',
    "UPDATE ONLY shop_product AS p SET name = 'x', id = 2",
    "UPDATE ONLY (shop_product) SET id = 2",
    "UPDATE shop_product SET (name, id) = (SELECT name, 3 FROM other WHERE a)",
    "UPDATE shop_product SET name = (SELECT a FROM b WHERE c), id = 5",
    "UPDATE shop_product SET name = 'x where y', id = 2 WHERE id = 1",
    "UPDATE shop_product SET name = '-- ', id = 2",
    'UPDATE shop_product SET "where" = 1, id = 2',
    "UPDATE OR IGNORE shop_product SET id = 2",
    "UPDATE other JOIN shop_product ON true SET shop_product.id = 2",
    "UPDATE shop_product SET name = E'it\\'s', id = 2",
    "DO $$ BEGIN INSERT INTO shop_product VALUES (1); END $$",
    "ALTER TABLE shop_product ALTER COLUMN id TYPE bigint USING id + 1",
    'ALTER TABLE "shop_product" ADD COLUMN "slug" text DEFAULT \'a\'',
    'ALTER TABLE shop_product RENAME COLUMN "other" TO "slug"',
    "ALTER TABLE shop_product MODIFY id bigint",
    "ALTER TABLE shop_product ATTACH PARTITION p FOR VALUES IN (1)",
    "ALTER TABLE swapped RENAME TO shop_product",
    "RENAME TABLE swapped TO shop_product",
    "CREATE TABLE shop_product AS SELECT * FROM other",
    "create unlogged table if not exists shop_product (id) as (select 1)",
    "CREATE TABLE other AS WITH a AS (INSERT INTO shop_product VALUES (1) RETURNING id) SELECT id FROM a",
    "CREATE TABLE other (a) WITH (fillfactor = 70) AS WITH a AS (UPDATE shop_product SET id = 1) SELECT 1",
    "EXPLAIN (ANALYZE) CREATE TABLE a AS WITH b AS (INSERT INTO shop_product VALUES (1)) SELECT 1",
    "CREATE FOREIGN TABLE other PARTITION OF shop_product FOR VALUES IN (1) SERVER a",
    "ALTER INDEX swapped RENAME TO shop_product",
    "ALTER SEQUENCE swapped RENAME TO shop_product",
    "ALTER VIEW IF EXISTS swapped RENAME TO shop_product",
    "ALTER TABLE a.shop_product SET SCHEMA public",
    "ALTER TABLE shop_product ADD value integer",
    "ALTER TABLE shop_product RENAME key TO slug",
    "ALTER TABLE shop_product RENAME index TO slug",
    "ALTER TABLE shop_product ALTER slug TYPE text, ALTER id SET DEFAULT 1",
    "ALTER TABLE shop_product ALTER slug SET NOT NULL, ALTER slug SET DATA TYPE text",
    'ALTER TABLE shop_product ALTER COLUMN slug TYPE text USING "drop"',
    'ALTER TABLE shop_product ALTER COLUMN slug TYPE text USING "set" || "default"',
    "UPDATE shop_product FOR PORTION OF p FROM 1 TO 2 SET note = 1",
    "DELETE FROM shop_product FOR PORTION OF p FROM 1 TO 2",
    "MERGE INTO ONLY shop_product USING other ON true WHEN NOT MATCHED THEN INSERT DEFAULT VALUES",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END; INSERT INTO shop_product VALUES (1); "
    "SELECT CASE WHEN true THEN 1 END",
]
#: What need not write a key, but is rare enough to be taken for a statement that does.
WIDE = [
    "ALTER TABLE shop_product RENAME CONSTRAINT a TO slug",
    "ALTER TABLE shop_product SET (fillfactor = 70)",
    "ALTER TABLE other NO INHERIT shop_product",
    "ALTER SEQUENCE other OWNED BY shop_product.id",
    "CREATE TABLE shop_product PARTITION OF other FOR VALUES IN (1)",
    "PREPARE a AS INSERT INTO shop_product VALUES (1)",
    "EXPLAIN UPDATE shop_product SET slug = 'x'",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; INSERT INTO shop_product VALUES (1); END",
    "SELECT 1 INTO temp shop_product",
]


@pytest.mark.parametrize("sql", WRITES + WIDE)
def test_a_write_is_recognised(sql):
    """However it is written, quoted, qualified, wrapped or commented."""
    assert written(sql, ("id", "slug", "value")) == {"shop_product"}


HARMLESS = [
    "SELECT * FROM shop_product WHERE name = 'INSERT INTO shop_product'",
    "SELECT * FROM shop_product FOR UPDATE",
    "SELECT * FROM shop_product FOR UPDATE OF shop_product SKIP LOCKED",
    "INSERT INTO other SELECT * FROM shop_product",
    "INSERT INTO other VALUES ('INSERT INTO shop_product')",
    "INSERT INTO other VALUES (1) -- INSERT INTO shop_product",
    "INSERT INTO shop_product_tags VALUES (1)",
    "INSERT INTO my_shop_product VALUES (1)",
    "INSERT INTO shop_product.other VALUES (1)",
    "UPDATE other SET id = (SELECT id FROM shop_product)",
    "UPDATE shop_product SET name = 'id' WHERE id = 3",
    "UPDATE shop_product SET name = 'x', note = lower(other) WHERE slug = 'a'",
    "UPDATE shop_product SET paid = 1 FROM shop_article WHERE shop_article.id = shop_product.id",
    "DELETE FROM shop_product",
    "DELETE FROM shop_product WHERE id IN (SELECT id FROM shop_article)",
    "TRUNCATE shop_product",
    "COPY shop_product TO STDOUT",
    "COPY (SELECT * FROM shop_product) TO STDOUT",
    "ALTER TABLE shop_product ADD COLUMN name text",
    "ALTER TABLE shop_product ADD CONSTRAINT u UNIQUE (slug)",
    "ALTER TABLE shop_product ALTER COLUMN slugs TYPE text",
    "ALTER TABLE shop_product ALTER COLUMN slug SET NOT NULL",
    "ALTER TABLE shop_product ALTER slug DROP NOT NULL, ALTER id SET DEFAULT 1",
    'ALTER TABLE "shop_product" ALTER COLUMN "slug" DROP DEFAULT',
    "ALTER TABLE shop_product RENAME TO gone",
    "CREATE INDEX i ON shop_product (slug)",
    'CREATE TABLE "shop_product" ("id" integer NOT NULL PRIMARY KEY, "slug" text)',
    'CREATE TABLE "shop_product" ("id" bigint NOT NULL PRIMARY KEY, "at" timestamp with time zone NULL)',
    "CREATE TEMP TABLE other AS SELECT * FROM shop_product",
    "CREATE TABLE other (id int REFERENCES shop_product ON DELETE SET NULL ON UPDATE SET NULL, update int)",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC INSERT INTO shop_product VALUES (1); SELECT CASE WHEN a THEN 1 END; "
    "END",
    "CREATE TABLE p PARTITION OF shop_product FOR VALUES IN (1)",
    'ALTER TABLE "shop_product" ADD COLUMN "a_id" bigint NULL CONSTRAINT "b" REFERENCES "a"("id") DEFERRABLE',
    "ALTER TABLE shop_product VALIDATE CONSTRAINT slug",
    "ALTER TABLE shop_product DETACH PARTITION p",
    "CREATE EXTENSION IF NOT EXISTS hstore",
    "ALTER INDEX shop_product_pkey RENAME TO other",
    "ALTER TABLE shop_product RENAME key TO other",
    "ALTER TABLE shop_product RENAME TO other, DROP COLUMN note",
    "ALTER TABLE shop_product OWNER TO other",
    "GRANT SELECT, INSERT, UPDATE, EXECUTE ON shop_product TO other",
    "INSERT INTO other VALUES (1) ON CONFLICT DO NOTHING",
    "UPDATE other AS shop SET id = 2",
    "SHOW search_path",
]


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_gives_no_new_key_is_let_through(sql):
    """Reading, deleting, other tables, other columns, and what only speaks of writing."""
    assert written(sql) == set()


REMAKE = 'INSERT INTO "new__shop_article" ({}) SELECT {} FROM "shop_article"'


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        (REMAKE.format('"id", "slug", "deleted"', '"id", "slug", "deleted"'), True),
        (REMAKE.format('"id", "deleted", "slug"', '"id", coalesce("deleted", \'a, b\'), "slug"'), True),
        (REMAKE.format('"id", "slug"', '"id", coalesce("slug", \'x\')'), False),
        (REMAKE.format('"id", "slug"', '"id", "title"'), False),
        (REMAKE.format('"slug", "id"', '"id", "slug"'), False),
        (REMAKE.format('"id"', '"id"'), False),
        (REMAKE.format('"id", "slug"', '"id", "slug"') + " WHERE x", False),
        (REMAKE.format('"id", "slug"', '"id", "slug"').replace('FROM "shop_article"', 'FROM "other"'), False),
        (REMAKE.format('"id", "slug"', '"id", "slug"').replace('FROM "', 'FROM "new__'), False),
        (REMAKE.format('"id"', '"id" FROM "other" UNION SELECT "id"'), False),
        ('INSERT INTO "shop_article" ("id") VALUES (1)', False),
        ('INSERT INTO temp."shop_article" ("id") VALUES (1)', False),
    ],
)
def test_a_table_made_anew_keeps_its_keys_or_not(sql, kept):
    """SQLite's schema editor copies rows: only if the keys' columns go over as they are, nothing happened."""
    (effect,) = {effect for effect in sqltext.read(sql, "sqlite").effects if effect.verb != "call"}

    assert effect.name == "shop_article"
    assert (effect.verb == "copy" and {"id", "slug"} <= effect.columns) is kept


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("UPDATE shop_product SET paid = 5--3, id = 2", {"shop_product"}),
        ("UPDATE shop_product SET paid = 1 # it's, id = 2", set()),
        ("UPDATE shop_product SET paid = 1 # it's\n, id = 2", {"shop_product"}),
        ("UPDATE other, shop_product SET shop_product.id = 2", {"shop_product"}),
        ("UPDATE other JOIN shop_product ON true SET shop_product.id = 2", {"shop_product"}),
        ("INSERT INTO `shop_product` VALUES (1)", {"shop_product"}),
        ("INSERT shop_product VALUES (1)", {"shop_product"}),
        ("UPDATE shop_product SET name = 'it\\n', id = 2", {"shop_product"}),
        ("UPDATE shop_product SET name = 'it\\'s', id = 2", TABLES),
        ("/*! INSERT INTO shop_product VALUES (1) */", TABLES),
        ("SELECT /*+ MAX_EXECUTION_TIME(1000) */ 1 FROM shop_product", set()),
        ("UPDATE /*+ NO_MERGE(other) */ shop_product SET id = 2", {"shop_product"}),
        ("UPDATE /*+ SET_VAR(sql_mode='*/ other SET id = 1 -- ') */ shop_product SET id = 2", TABLES),
        ("CALL anything()", set()),
        ("SELECT 1 -- shop_product", set()),
        ("ALTER TABLE other RENAME shop_product", {"shop_product"}),
        ("ALTER TABLE other RENAME = `shop_product`", {"shop_product"}),
        ("ALTER TABLE other RENAME a.shop_product", {"shop_product"}),
        ("ALTER TABLE other WAIT 5 RENAME shop_product", {"shop_product"}),
        ("ALTER TABLE other FORCE, RENAME shop_product", {"shop_product"}),
        ("ALTER ONLINE IGNORE TABLE other FORCE, RENAME shop_product", TABLES),
        ("ALTER TABLE other RENAME shop_product REMOVE PARTITIONING", {"shop_product"}),
        ("ALTER TABLE shop_product CHANGE COLUMN IF EXISTS a slug int", {"shop_product"}),
        ("ALTER TABLE shop_product MODIFY IF EXISTS slug int", {"shop_product"}),
        ("ALTER TABLE shop_product RENAME COLUMN IF EXISTS a TO slug", {"shop_product"}),
        ("ALTER TABLE shop_product RENAME KEY IF EXISTS a TO slug", {"shop_product"}),
        ("ALTER TABLE shop_product ADD KEY slug (a)", set()),
        ("ALTER TABLE shop_product ADD (slug text)", {"shop_product"}),
        ("ALTER TABLE shop_product CONVERT TO CHARACTER SET utf8mb4", {"shop_product"}),
        ("ALTER TABLE other CONVERT PARTITION p TO TABLE shop_product", {"shop_product"}),
        ("ALTER TABLE other CONVERT PARTITION p TO TABLE shop_product WITH VALIDATION", {"shop_product"}),
        ("ALTER TABLE shop_product CONVERT TABLE other TO PARTITION p VALUES LESS THAN (1)", {"shop_product"}),
        ("ALTER TABLE other EXCHANGE PARTITION p WITH TABLE shop_product", {"shop_product"}),
        ("ALTER TABLE shop_product ADD other int, ALGORITHM = INPLACE, LOCK = NONE", set()),
        ("ALTER TABLE shop_product ENGINE = FEDERATED", {"shop_product"}),
        ("ALTER TABLE shop_product ENGINE MyISAM", {"shop_product"}),
        ("ALTER TABLE shop_product COMMENT 'x' ENGINE = `Aria`", {"shop_product"}),
        ("ALTER SQL SECURITY INVOKER VIEW shop_product AS SELECT 1", TABLES),
        ("CREATE DEFINER = 'a'@'b' SQL SECURITY INVOKER VIEW shop_product AS SELECT 1", TABLES),
        ("CREATE TABLE shop_product (a int) ENGINE = MERGE UNION = (other)", {"shop_product"}),
        ("CREATE TABLE other (a int) ENGINE = InnoDB DEFAULT CHARSET utf8mb4", set()),
        ("CREATE TABLE shop_product (SELECT 1)", {"shop_product"}),
        ("CREATE TABLE shop_product (VALUES (1))", {"shop_product"}),
        ("CREATE TABLE shop_product (WITH time AS (SELECT 1) TABLE time)", {"shop_product"}),
        ("CREATE TABLE shop_product (WITH time (zone) AS (VALUES (1)) TABLE time)", {"shop_product"}),
        ("CREATE TABLE other LIKE shop_product", set()),
        ("UPDATE other STRAIGHT_JOIN shop_product ON true SET shop_product.id = 2", {"shop_product"}),
        ("UPDATE other NATURAL LEFT JOIN a.shop_product SET id = 2", {"shop_product"}),
        ("BEGIN NOT ATOMIC EXECUTE IMMEDIATE 'x'; END", TABLES),
        ("BEGIN WORK", set()),
        ("SET STATEMENT max_statement_time = 1 FOR UPDATE shop_product SET id = 2", {"shop_product"}),
        ("SET STATEMENT max_statement_time = 1 FOR ALTER TABLE shop_product MODIFY slug int", {"shop_product"}),
        ("SET STATEMENT max_statement_time = 1 FOR EXECUTE IMMEDIATE 'x'", TABLES),
        ("RENAME TABLE other TO shop_product, a TO b", {"shop_product"}),
        ("ANALYZE UPDATE shop_product SET id = 2", {"shop_product"}),
        ("EXPLAIN SELECT * FROM shop_product", set()),
        ("UPDATE other.%s SET id = 1", TABLES),
        ("UPDATE shop_product SET \u0130d = 1", TABLES),
        ("UPDATE shop_product SET `\u0130d` = 1", TABLES),
        ("SELECT 1 --\x01 '\n, make(1) -- '", TABLES),
        ("SELECT 1 --\xa0b, make(1)", TABLES),
        ("SELECT 1 -- \xa0b, INSERT INTO shop_product", set()),
        ("UPDATE $shop SET id = 1", TABLES),
        ("UPDATE 2024_shop SET id = 1e5 WHERE id = 0x1F", set()),
    ],
)
def test_mysql_is_read_as_mysql_does(sql, found):
    """Its comments and quotes are others; what its settings or versions decide may be anything."""
    assert written(sql, vendor="mysql") == found


@pytest.mark.parametrize(
    "sql",
    [
        "BANANA shop_product",
        "EXECUTE anything",
        "COMMIT PREPARED 'x'",
        "ALTER TYPE color RENAME VALUE 'a' TO 'b'",
        "ALTER SCHEMA a RENAME TO b",
        "CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p",
        "DO LANGUAGE plpython3u $$ import plpy $$",
        "DO $$ BEGIN EXECUTE 'x'; END $$",
        "UPDATE pg_enum SET enumlabel = 'x'",
        'INSERT INTO U&"shop_pr\\006fduct" VALUES (1)',
        "UPDATE x SET a = 'b\\', slug = 'c'",
        "INSERT INTO x VALUES ('never ends",
        "INSERT INTO x VALUES ($$never ends",
        "INSERT INTO x /* never ends",
        "{call anything}",
        "INSERT INTO (SELECT id FROM shop_product) VALUES (1)",
        "INSERT INTO {} VALUES (1)",
        "COPY {} FROM STDIN",
        "EXPLAIN ANALYZE EXECUTE anything",
        "EXPLAIN (VERBOSE, ANALYZE) EXECUTE anything",
        "CREATE TABLE other AS EXECUTE anything",
        "CREATE TEMP TABLE other (a) ON COMMIT DROP AS EXECUTE anything(1)",
        "CREATE EXTENSION anything",
        "CREATE BANANA a",
        "ALTER SUBSCRIPTION s REFRESH PUBLICATION",
        "ALTER SERVER s OPTIONS (SET host 'x')",
        "ALTER USER MAPPING FOR a SERVER s OPTIONS (SET user 'x')",
        "ALTER TYPE row ALTER ATTRIBUTE slug TYPE text",
        "MERGE shop_product USING other",
        "UPDATE %s AS a SET slug = 'x'",
        "UPDATE ONLY %s SET slug = 'x'",
        "UPDATE public.%(table)s SET slug = 'x'",
        "INSERT INTO public.%s VALUES (1)",
        "COPY public.%s FROM STDIN",
        "REFRESH MATERIALIZED VIEW %s",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY %s",
        "ALTER TABLE other RENAME TO %s",
        "ALTER TABLE other RENAME COLUMN a TO %s",
        "ALTER MATERIALIZED VIEW other RENAME TO %s",
        "SELECT %s('x')",
        "SELECT %(it's)s; INSERT INTO shop_product SELECT %(it's)s",
        "DO E'BEGIN INSERT \\x49NTO shop_product VALUES (1); END'",
    ],
)
def test_what_cannot_be_read_may_be_anything(sql):
    """Statements that nobody knows, texts that have two readings, and those that are made when they run."""
    assert sqltext.ANYTHING in sqltext.read(sql, "postgresql").effects


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA writable_schema = 1",
        'PRAGMA main."writable_schema"(on)',
        "PRAGMA [writable_schema] = 1",
        "PRAGMA 'writable_schema' = 1",
        "PRAGMA main.schema_version = 1",
        "UPDATE sqlite_master SET sql = ''",
        "WITH a AS (SELECT $a(')) INSERT INTO shop_product SELECT $b(')",
    ],
)
def test_what_sqlite_may_do_to_its_schema_may_be_anything(sql):
    """Who writes the schema by hand may make any table another one."""
    assert sqltext.ANYTHING in sqltext.read(sql, "sqlite").effects


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER SEQUENCE other_id_seq RESTART WITH %s",
        "ALTER TABLE other AUTO_INCREMENT = %s",
        "ALTER TABLE other ALTER COLUMN a SET DEFAULT %s",
        "DELETE FROM other FOR PORTION OF p FROM %s TO %s",
    ],
)
def test_a_placeholder_for_a_value_is_no_name(sql):
    """Definitions of other tables, and deletes from them, may have some."""
    for vendor in ("postgresql", "mysql"):
        assert sqltext.ANYTHING not in sqltext.read(sql, vendor).effects


@pytest.mark.parametrize("vendor", ["postgresql", "sqlite", "mysql", "oracle", ""])
@pytest.mark.parametrize(
    "sql", ["", "  ", ";", "-- only", "/* only */", "( ( SELECT 1 ) )", "COMMIT", "SAVEPOINT a; RELEASE a"]
)
def test_what_does_nothing_is_nothing(sql, vendor):
    """In every dialect."""
    found = sqltext.read(sql, vendor)

    assert (found.effects, found.defines) == (frozenset(), False)


@pytest.mark.parametrize(
    ("sql", "plain"),
    [
        ('SELECT "a"."id" FROM "a" WHERE "a"."id" IN (1, 2) ORDER BY LOWER("a"."b")', True),
        ("SELECT COUNT(*) FROM (SELECT 1) x", True),
        ("SELECT my_function(1)", False),
        ("SELECT my.count(1)", False),
        ('SELECT "my_function" (1)', False),
        ("SELECT 1; DELETE FROM a", False),
        ("SELECT 1 INTO a", False),
        ("SELECT my_function#count\n(1)", False),
        ("UPDATE a SET b = 1", False),
    ],
)
def test_the_usual_query_is_known_at_a_glance(sql, plain):
    """It need not be taken apart; whatever else there might be in it has it looked at."""
    assert sqltext.is_plain_read(sql) is plain


@pytest.mark.parametrize(
    ("sql", "calls"),
    [
        ("SHOW TABLES WHERE writes('s') > 0", {"writes"}),
        ("KILL writes(1)", {"writes"}),
        ("EXPLAIN SELECT * FROM (SELECT writes(1)) a", {"writes"}),
        ("LOAD DATA INFILE 'x' INTO TABLE a (b, @c) SET d = writes(@c)", {"writes", "a"}),
        ("GRANT SELECT (a) ON b TO c", set()),
    ],
)
def test_a_call_is_found_in_any_statement(sql, calls):
    """MySQL and MariaDB have expressions in many."""
    found = sqltext.read(sql, "mysql").effects

    assert {effect.name for effect in found if effect.verb == "call"} == calls


def test_the_body_of_a_routine_is_taken_for_statements():
    """Where it ends need not be found out, so what comes after it is never overlooked."""
    text = "CREATE TRIGGER t AFTER INSERT ON b BEGIN SELECT CASE WHEN a THEN 1 END; DELETE FROM shop_product; END"

    assert written(text, vendor="sqlite") == set()
    assert written(f"{text}; INSERT INTO shop_article VALUES (1)", vendor="sqlite") == {"shop_article"}


def test_a_table_takes_the_place_of_the_one_that_it_was_copied_from():
    """The last step by which SQLite's schema editor recreates a table; elsewhere it may be another table's rows."""
    sql = 'ALTER TABLE "new__shop_product" RENAME TO "shop_product"'

    assert written(sql, vendor="sqlite") == set()
    assert written(sql) == {"shop_product"}


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("UPDATE 2024_shop SET id = 1e5", "2024_shop"),
        ("UPDATE shop.2024_shop SET id = 1", "2024_shop"),
        ("INSERT shop.2024_shop SET id = 1", "2024_shop"),
        ("UPDATE shop.set SET id = shop.where, slug = 1", "set"),
    ],
)
def test_mysql_takes_digits_and_keywords_for_names(sql, name):
    """A name may begin with digits, and after a dot a keyword is one."""
    columns = frozenset({"id"} | ({"slug"} if "slug" in sql else set()))
    found = {each.name: each.columns or columns for each in sqltext.read(sql, "mysql").effects}
    assert found[name] >= columns


def test_mysql_calls_a_function_with_or_without_accents():
    """The names of tables and columns are compared with them."""
    assert sqltext.read("SELECT \u00c9crire(1)", "mysql").effects == {sqltext.Effect("call", "ecrire")}
    assert sqltext.read("SELECT \u00c9crire(1)", "postgresql").effects == {sqltext.Effect("call", "\u00e9crire")}


def test_a_column_may_be_a_call():
    """On PostgreSQL, if there is no such column: the catalogue knows."""
    found = sqltext.read('SELECT a.b, (c)."D" FROM x.y a', "postgresql")

    assert (found.effects, {each.name for each in found.known if each.verb == "field"}) == (set(), {"b", "d", "y"})
    assert not sqltext.read("SELECT a.b FROM x.y a", "sqlite").known


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("CREATE TRIGGER a AFTER UPDATE OF slug ON b BEGIN UPDATE c SET slug = NEW.slug; END", {"c"}),
        ("CREATE TRIGGER [begin] INSTEAD OF UPDATE ON b BEGIN UPDATE c SET slug = 1; END", {"c"}),
        ("CREATE TRIGGER 'never ends", {""}),
    ],
)
def test_what_a_trigger_does(sql, tables):
    """Its head names the table that fires it, which it need not write."""
    assert {effect.name for effect in sqltext.read_body(sql, "sqlite")} == tables


@pytest.mark.parametrize("body", ["INSERT INTO c VALUES (1) ON CONFLICT (id) DO NOTHING", "UPDATE c SET slug = 1"])
def test_what_a_trigger_writes_may_replace_rows(body):
    """SQLite does so if the statement that fires it says OR REPLACE."""
    found = sqltext.read_body(f"CREATE TRIGGER a AFTER INSERT ON b BEGIN {body}; END", "sqlite")

    assert sqltext.Effect("delete", "c") in found


@pytest.mark.parametrize(
    ("sql", "deletes"),
    [
        ("INSERT INTO shop_product VALUES (1) ON CONFLICT DO NOTHING", False),
        ("INSERT INTO shop_product VALUES (1) ON CONFLICT (id) DO UPDATE SET slug = 'x'", False),
        ("INSERT INTO shop_product VALUES (1) ON DUPLICATE KEY UPDATE slug = 'x'", False),
        ("INSERT OR REPLACE INTO shop_product VALUES (1)", True),
        ("REPLACE INTO shop_product VALUES (1)", True),
        ("MERGE INTO shop_product USING other ON true WHEN MATCHED THEN DELETE", True),
    ],
)
@pytest.mark.parametrize("vendor", ["postgresql", "sqlite", "mysql"])
def test_an_upsert_deletes_nothing(sql, deletes, vendor):
    """So it fires no `ON DELETE SET NULL` of a table that refers to it. REPLACE deletes the rows in its way."""
    assert (sqltext.Effect("delete", "shop_product") in sqltext.read(sql, vendor).effects) is deletes


@pytest.mark.parametrize(
    ("body", "vendor"),
    [
        ("BEGIN OPEN c FOR UPDATE shop_product SET slug = 'x' RETURNING id; END", "postgresql"),
        ("DECLARE c CURSOR FOR UPDATE shop_product SET slug = 'x' RETURNING id; BEGIN END", "postgresql"),
        ("BEGIN SET STATEMENT max_statement_time = 1 FOR UPDATE shop_product SET slug = 'x'; END", "mysql"),
    ],
)
def test_an_update_after_for_is_no_lock(body, vendor):
    """A cursor of PL/pgSQL may update rows, and so may MariaDB's SET STATEMENT in a routine."""
    assert sqltext.read_body(body, vendor) == {sqltext.Effect("update", "shop_product", frozenset({"slug"}))}


def test_a_table_may_be_named_with_its_schema():
    """Django projects write it with quotes that close and open."""
    assert bare('crm"."Person') == "person"
    assert bare("shop_product") == "shop_product"


@pytest.mark.parametrize("vendor", ["postgresql", "sqlite", "mysql"])
@pytest.mark.parametrize(
    "begin",
    ["INSERT INTO a VALUES ('", 'INSERT INTO a VALUES ("', "INSERT INTO a VALUES (E'", "INSERT INTO a VALUES (x"],
)
def test_a_long_literal_takes_no_more_memory_than_itself(vendor, begin):
    """A picture or a geometry in a statement's text may have megabytes."""
    sql = begin + 500_000 * "0" + begin[-1] + ")"
    sqltext.tokens("SELECT 1", vendor)  # the pattern is compiled
    tracemalloc.start()
    try:
        sqltext.tokens(sql, vendor)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(sql)
    finally:
        tracemalloc.stop()


def test_literals_within_literals_are_read_ten_deep(monkeypatch):
    """Deeper ones count as code that hides a table: reading each of thousands again would take minutes."""
    read = []

    def counted(text, vendor):
        read.append(text)
        return tokens(text, vendor)

    def nested(text, depth):
        for number in range(depth):
            text = f"$a{number}${text}$a{number}$"
        return f"DO {text}"

    monkeypatch.setattr(strays, "tokens", counted)
    harmless = "CREATE TEMP TABLE other AS SELECT * FROM shop_product"

    assert not strays._hides_one(nested(harmless, 5), "postgresql", {"shop_product"})
    assert strays._hides_one(nested("CREATE TEMP TABLE shop_product ()", 5), "postgresql", {"shop_product"})
    read.clear()
    assert strays._hides_one(nested(harmless, 2_000), "postgresql", {"shop_product"})
    assert len(read) <= 11


@pytest.mark.parametrize(
    ("look", "sql"),
    [
        (sqltext.is_plain_read, f"SELECT a FROM b WHERE c = '{200_000 * '0'}' AND (d OR e)"),
        (
            lambda sql: isolation.note(sql, SimpleNamespace(vendor="sqlite", alias="none")),
            "INSERT INTO a VALUES " + 20_000 * "('a set of things')",
        ),
        (
            lambda sql: observer._PLAIN.fullmatch(sql) or observer._ROLLBACK.fullmatch(sql),
            f"INSERT INTO a VALUES ('{200_000 * ' '}; ')",
        ),
        (strays._leads_elsewhere, f"INSERT INTO a VALUES ('{200_000 * chr(10)} used')"),
    ],
    ids=["a literal", "a word again and again", "spaces", "lines"],
)
def test_the_time_for_a_long_text_grows_with_its_length(look, sql):
    """Not with the square of it, which is minutes for a dump of some hundred kilobytes."""
    began = time.process_time()
    look(sql)

    assert time.process_time() - began < 2
