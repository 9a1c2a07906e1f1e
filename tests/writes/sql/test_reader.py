"""What a statement's text says that it writes: no write is overlooked, and plain reading is none."""

from __future__ import annotations

import pytest

from bloomguard.writes.sql import reader as sqltext
from bloomguard.writes.sql.effects import bare

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
]


@pytest.mark.parametrize("sql", WRITES)
def test_a_write_is_recognised(sql):
    """However it is written, quoted, qualified, wrapped or commented."""
    assert written(sql) == {"shop_product"}


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
    "ALTER TABLE shop_product ALTER COLUMN slug SET NOT NULL",
    "ALTER TABLE shop_product ALTER COLUMN slugs TYPE text",
    "ALTER TABLE shop_product RENAME TO gone",
    'ALTER TABLE "new__shop_product" RENAME TO "shop_product"',
    "CREATE INDEX i ON shop_product (slug)",
    'CREATE TABLE "shop_product" ("id" integer NOT NULL PRIMARY KEY, "slug" text)',
    "CREATE TEMP TABLE other AS SELECT * FROM shop_product",
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
        ('INSERT INTO "shop_article" ("id") VALUES (1)', False),
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
        ("CALL anything()", set()),
        ("SELECT 1 -- shop_product", set()),
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
    ],
)
def test_what_cannot_be_read_may_be_anything(sql):
    """Statements that nobody knows, texts that have two readings, and those that are made when they run."""
    assert sqltext.ANYTHING in sqltext.read(sql, "postgresql").effects


@pytest.mark.parametrize(
    "sql", ["PRAGMA writable_schema = 1", "PRAGMA banana = 1", "UPDATE sqlite_master SET sql = ''"]
)
def test_what_sqlite_may_do_to_its_schema_may_be_anything(sql):
    """Who writes the schema by hand may make any table another one."""
    assert sqltext.ANYTHING in sqltext.read(sql, "sqlite").effects


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
        ("UPDATE a SET b = 1", False),
    ],
)
def test_the_usual_query_is_known_at_a_glance(sql, plain):
    """It need not be taken apart; whatever else there might be in it has it looked at."""
    assert sqltext.is_plain_read(sql) is plain


def test_a_table_may_be_named_with_its_schema():
    """Django projects write it with quotes that close and open."""
    assert bare('crm"."Person') == "person"
    assert bare("shop_product") == "shop_product"
