"""Hundreds of statements of a grammar against real databases: where a table gains a key, its guard is fenced."""

from __future__ import annotations

import io
import itertools
from contextlib import ExitStack

import pytest
from django.db import connections, models, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.db.models import Q
from django.test.utils import isolate_apps

from bloomguard.rebuild import Rebuild
from bloomguard.writes import raw
from tests.shop.models import Article, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

#: What there is besides the shop: tables whose writes end in guarded ones, and some that have nothing to do with them.
BOTH = [
    "CREATE TABLE raw_other (id integer PRIMARY KEY, note varchar(50), slug varchar(50))",
    "INSERT INTO raw_other VALUES (1, 'a', 'b'), (2, 'c', 'd')",
    "CREATE TABLE raw_parent (code varchar(50) PRIMARY KEY, title varchar(50))",
    "INSERT INTO raw_parent VALUES ('misc', ''), ('toys', ''), ('wip', ''), ('gone', '')",
    "CREATE TABLE raw_owner (code varchar(50) PRIMARY KEY)",
    "INSERT INTO raw_owner VALUES ('gone')",
    "CREATE TABLE raw_child (id integer PRIMARY KEY, title varchar(50), category varchar(50) DEFAULT 'misc' REFERENCES "
    "raw_parent (code) ON UPDATE CASCADE ON DELETE SET DEFAULT, draft_of varchar(50) REFERENCES raw_parent (code) ON "
    "DELETE SET NULL, owner varchar(50) REFERENCES raw_owner (code) ON DELETE CASCADE, editor varchar(50) REFERENCES "
    "raw_owner (code) ON DELETE SET NULL)",
    "INSERT INTO raw_child VALUES (1, '', 'toys', NULL, NULL, NULL), (2, '', 'misc', 'wip', NULL, 'gone')",
    "INSERT INTO raw_child VALUES (3, '', NULL, NULL, 'gone', NULL)",
    "CREATE TABLE raw_plain (id integer PRIMARY KEY, parent varchar(50) REFERENCES raw_parent (code))",
    "CREATE TABLE raw_source (id integer PRIMARY KEY, note varchar(50))",
    "CREATE TABLE raw_audited (id integer PRIMARY KEY, note varchar(50))",
    "CREATE TABLE raw_log (id integer, note varchar(50))",
]
SQLITE = [
    "CREATE TRIGGER raw_copies AFTER INSERT ON raw_source BEGIN INSERT INTO shop_article (slug, deleted) "
    "VALUES (NEW.note, 0); END",
    "CREATE TRIGGER raw_logs AFTER UPDATE OF note ON raw_audited BEGIN INSERT INTO raw_log VALUES (NEW.id, CASE WHEN 1 "
    "THEN 'shop_article' END); END",
    "CREATE VIEW raw_window AS SELECT slug, deleted FROM shop_article",
    "CREATE TRIGGER raw_lets INSTEAD OF INSERT ON raw_window BEGIN INSERT INTO shop_article (slug, deleted) "
    "VALUES (NEW.slug, NEW.deleted); END",
]
POSTGRESQL = [
    "CREATE FUNCTION raw_copy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO shop_article (slug, deleted) "
    "VALUES (NEW.note, false); RETURN NEW; END $$",
    "CREATE TRIGGER raw_copies AFTER INSERT ON raw_source FOR EACH ROW EXECUTE FUNCTION raw_copy()",
    "CREATE FUNCTION raw_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.note = OLD.note THEN RETURN NEW; "
    "END "
    "IF; INSERT INTO raw_log VALUES (NEW.id, 'shop_article'); NEW.note = lower(NEW.note); RETURN NEW; END $$",
    "CREATE TRIGGER raw_logs BEFORE UPDATE ON raw_audited FOR EACH ROW EXECUTE FUNCTION raw_log()",
    "CREATE VIEW raw_window AS SELECT slug AS word, deleted, id FROM shop_article WHERE NOT deleted",
    "CREATE FUNCTION raw_make(word text) RETURNS integer LANGUAGE sql AS $$ INSERT INTO shop_article (slug, deleted) "
    "VALUES (word, false); SELECT 1 $$",
    "CREATE FUNCTION raw_outer(word text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RETURN raw_make(word); END $$",
    "CREATE FUNCTION raw_dynamic(word text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('INSERT INTO %I "
    "(slug, deleted) VALUES (%L, false)', 'shop' || '_article', word); END $$",
    "CREATE FUNCTION raw_pure(word text) RETURNS text LANGUAGE sql AS $$ SELECT 'INSERT INTO shop_article' || word $$",
    "CREATE FUNCTION raw_notes(word text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO raw_log VALUES (1, "
    "word); END $$",
    "CREATE TRIGGER raw_asleep AFTER INSERT ON raw_log FOR EACH ROW EXECUTE FUNCTION raw_copy()",
    "ALTER TABLE raw_log DISABLE TRIGGER raw_asleep",
    "CREATE FUNCTION raw_wake() RETURNS void LANGUAGE sql AS 'ALTER TABLE raw_log ENABLE TRIGGER raw_asleep'",
    "CREATE PROCEDURE raw_procedure(word text) LANGUAGE plpgsql AS $$ BEGIN PERFORM raw_make(word); END $$",
    "CREATE TABLE raw_calling (id integer PRIMARY KEY, made integer DEFAULT raw_make('by-default'))",
    "INSERT INTO raw_calling VALUES (7, 0)",
    "CREATE TABLE raw_ruled (id integer PRIMARY KEY)",
    "CREATE RULE raw_rule AS ON INSERT TO raw_ruled DO ALSO INSERT INTO shop_article (slug, deleted) VALUES ('ruled', "
    "false)",
    "CREATE TABLE raw_kid () INHERITS (shop_article)",
    "CREATE TABLE raw_stray (LIKE shop_article INCLUDING DEFAULTS)",
    "INSERT INTO raw_stray (id, slug, deleted) VALUES (901, 'stray', false)",
    "CREATE MATERIALIZED VIEW raw_top AS SELECT id FROM raw_other",
    "CREATE TABLE raw_event (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE raw_event_1 PARTITION OF raw_event FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE raw_event_2 (id integer PRIMARY KEY)",
    "INSERT INTO raw_event_2 VALUES (1500)",
]
PLAIN_TABLES = ["plain", "child", "owner", "parent", "other", "source", "audited", "log", "calling"]
AWAY = {
    "sqlite": ["DROP VIEW IF EXISTS raw_window"] + [f"DROP TABLE IF EXISTS raw_{name}" for name in PLAIN_TABLES],
    "postgresql": [
        "DROP MATERIALIZED VIEW IF EXISTS raw_top",
        "DROP SCHEMA IF EXISTS raw_elsewhere CASCADE",
        *(
            f"DROP TABLE IF EXISTS raw_{name} CASCADE"
            for name in [*PLAIN_TABLES, "ruled", "kid", "stray", "event", "event_2"]
        ),
        "DROP VIEW IF EXISTS raw_window",
        *(
            f"DROP FUNCTION IF EXISTS raw_{name} CASCADE"
            for name in ["copy", "log", "make", "outer", "dynamic", "pure", "notes", "wake"]
        ),
        "DROP PROCEDURE IF EXISTS raw_procedure",
    ],
}

COMMENTS = ["", "/* a note; it's one */ ", "-- don't; INSERT INTO raw_other\n"]
NESTED = "/* one /* two */ it's */ "


def inserts(vendor):
    """INSERTs of the guarded table, in every spelling of its name and of a literal."""
    postgresql = vendor == "postgresql"
    names = ["shop_article", '"shop_article"', "SHOP_ARTICLE", "/* raw_other */ shop_article"]
    names += ["public.shop_article", 'public."shop_article"', '"public" . "shop_article"'] if postgresql else []
    names += [] if postgresql else ["main.shop_article", "`shop_article`", "[shop_article]", "'shop_article'"]
    names += [] if postgresql else ["\ufeffshop_article", "main.\ufeff[shop_article]"]  # white space
    words = ["'a'", "'it''s'", "'a;b'", "'-- no'", "'/* no'", "'a\\'", "'\"'"]
    words += ["E'it\\'s'", "$$it's$$", "$a$;$b$ $a$", "U&'\\0061'"] if postgresql else ["'a\\''b'"]
    false = "false" if postgresql else "0"
    heads = ["INSERT INTO {}", "insert\n\tinto {}"]
    heads += [] if postgresql else ["INSERT OR IGNORE INTO {}", "REPLACE INTO {}", "INSERT OR REPLACE INTO {}"]
    for head, name, word in itertools.product(heads, names, words):
        yield f"{head.format(name)} (slug, deleted) VALUES ({word}, {false})"
    for comment in [*COMMENTS, *([NESTED] if postgresql else [])]:
        yield f"{comment}INSERT {comment}INTO {comment}shop_article (slug, deleted) VALUES ('x', {false})"
        into = "INSERT INTO shop_article (slug, deleted)"
        yield f"{comment}WITH a AS (SELECT 'w' AS b) {comment}{into} SELECT b, {false} FROM a"
    yield f"INSERT INTO shop_article (slug, deleted) SELECT 'from ' || note, {false} FROM raw_other"
    yield f"INSERT INTO shop_article (slug, deleted) VALUES ('r', {false}) RETURNING id"
    yield (
        f"INSERT INTO shop_article (id, slug, deleted) VALUES (1, 'x', {false}) "
        "ON CONFLICT (id) DO UPDATE SET slug = 'up'"
    )
    yield f"INSERT INTO raw_window ({'word' if postgresql else 'slug'}, deleted) VALUES ('by view', {false})"
    yield "INSERT INTO raw_source VALUES (1, 'by trigger')"
    yield "INSERT INTO raw_source SELECT id, note FROM raw_other"


def updates(vendor):
    """UPDATEs that give a row another key, or bring it to life."""
    postgresql = vendor == "postgresql"
    false, true = ("false", "true") if postgresql else ("0", "1")
    sets = [
        "slug = 'new-' || id",
        "SLUG = 'x' || id",
        "\"slug\" = 'x' || id",
        f"deleted = {false}",
        "deleted = (slug = 'old'), slug = 'y' || id",
        "(slug) = (SELECT 'q' || id)" if postgresql else "(slug, deleted) = (SELECT 'q' || id, 0)",
        f"(deleted, slug) = ({false}, 'r' || id)",
        "deleted = slug IS DISTINCT FROM 'x' AND false, slug = 's' || id"
        if postgresql
        else "deleted = slug IS NOT 'x' AND 0, slug = 's' || id",
        f"deleted = CASE WHEN slug = 'where, from' THEN {true} ELSE {false} END",
        "id = id + 500, slug = '-- ' || id",
        "deleted = EXISTS (SELECT 1 FROM raw_other WHERE note = 'none'), slug = (SELECT 'm' || shop_article.id)",
    ]
    sets += ["slug = E'it\\'s' || id", "slug = $$a where b$$ || id"] if postgresql else ["slug = 'a\\' || id"]
    tails = ["", " WHERE id > 0", " WHERE slug <> 'from ; where' OR id > 0"]
    heads = ["UPDATE shop_article", 'UPDATE "shop_article"', "update /* x */ Shop_Article AS a"]
    heads += ["UPDATE ONLY shop_article", "UPDATE ONLY (shop_article)", "UPDATE shop_article *"] if postgresql else []
    heads += [] if postgresql else ["UPDATE OR IGNORE shop_article", "UPDATE [shop_article]"]
    for head, each, tail in itertools.product(heads, sets, tails):
        yield f"{head} SET {each.replace('shop_article.', 'a.') if ' AS a' in head else each}{tail}"
    yield "UPDATE shop_article SET slug = 'f' || raw_other.id FROM raw_other WHERE raw_other.id = shop_article.id"
    yield "UPDATE raw_parent SET code = code || '!' WHERE code = 'toys'"
    yield "DELETE FROM raw_parent WHERE code = 'toys'"
    yield "DELETE FROM raw_parent WHERE code = 'wip'"


def others(vendor):
    """Everything else that brings up a key."""
    if vendor == "sqlite":
        yield "UPDATE shop_product SET rowid = 4000"
        yield "UPDATE shop_product SET _rowid_ = 4000"
        yield "INSERT \ufeffINTO shop_article (slug, deleted) VALUES ('x', 0)"
        yield "UPDATE shop_article \ufeffSET slug = 'x' || id"
        away = "DROP VIEW raw_window", "ALTER TABLE shop_article RENAME COLUMN slug TO was"
        yield *away, "ALTER TABLE shop_article ADD COLUMN slug DEFAULT 'n'"
        yield (
            *away,
            "ALTER TABLE shop_article RENAME COLUMN was TO other",
            "ALTER TABLE shop_article RENAME other TO slug",
            ("UPDATE shop_article SET slug = 'v' || id"),
        )
        swapped = "ALTER TABLE shop_article RENAME TO raw_was"
        yield "DROP VIEW raw_window", swapped, "CREATE TABLE shop_article AS SELECT 7 AS id, 'n' AS slug, 0 AS deleted"
        yield "DROP VIEW raw_window", swapped, "CREATE VIEW shop_article AS SELECT 7 AS id, 'n' AS slug, 0 AS deleted"
        return
    insert = "INSERT INTO shop_article (slug, deleted) VALUES"
    for comment in (*COMMENTS, NESTED):
        yield f"{comment}WITH a AS ({comment}{insert} ('cte', false) RETURNING id) SELECT * FROM a"
        yield f"{comment}EXPLAIN (ANALYZE) {insert} ('explained', false)"
        yield f"SELECT 1; {comment}{insert} ('second', false)"
        yield f"{comment}DO $$ BEGIN {insert} ('done', false); END $$"
        yield f"{comment}DO LANGUAGE plpgsql 'BEGIN {insert} (''done'', false); END'"
        yield f"{comment}SELECT raw_make('by function')"
    yield f"SELECT ';'; SELECT $$ ; $$; {insert} ('third', false)"
    yield f"SELECT $“$ ' $“$; {insert} ('fourth', false); SELECT $“$ ' $“$"
    yield "DO E'BEGIN \\x49NSERT INTO shop_article (slug, deleted) VALUES (''e'', false); END'"
    yield "DO E'BEGIN INSERT INTO \\u0073hop_article (slug, deleted) VALUES (''e'', false); END'"
    yield "WITH a AS (UPDATE shop_article SET slug = 'u' || id RETURNING id) DELETE FROM raw_other"
    yield f"PREPARE raw_statement AS {insert} ('prepared', false)", "EXECUTE raw_statement"
    made = "'INSERT INTO ' || n || '_article (slug, deleted) VALUES (''e'', false)'"
    yield f"DO $$ DECLARE n text := 'shop'; BEGIN EXECUTE {made}; END $$"
    changes = "UPDATE shop_article SET slug = 'o' || id RETURNING id"
    yield f"DO $$ DECLARE c refcursor; r record; BEGIN OPEN c FOR {changes}; FETCH c INTO r; END $$"
    for name, between in itertools.product(
        ("raw_make", "raw_outer", '"raw_make"', "public.raw_make", 'public . "raw_outer"'),
        ("", " ", "\n", "/**/", " /* count */ ", " -- count\n", "\t-- 'count'\n", "/* 1 + */"),
    ):
        yield f"SELECT {name}{between}('between')"
        yield f"SELECT 1 + {name}{between}('between')"
    for literal in (r"'a\'", r"'\' || ''", r"'it''s\'", r"E'\\'", r"E'\''", "$$'$$", "U&'a'"):
        yield f"SELECT raw_make({literal} || 'l')"
        yield f"SELECT {literal}, raw_make('after')"
    for call in ("raw_make", "raw_outer", "raw_dynamic", "public.raw_make", '"raw_outer"'):
        yield f"SELECT {call}('f')"
        yield f"SELECT * FROM {call}('f')"
        yield f"SELECT count(*) FROM raw_other WHERE {call}('g' || id) IS NULL"
        yield f"INSERT INTO raw_log SELECT 1 FROM {call}('h')"
        yield f"DECLARE raw_cursor CURSOR FOR SELECT {call}('c')", "FETCH 1 FROM raw_cursor"
    yield "CALL raw_procedure('p')"
    yield "INSERT INTO raw_calling (id) VALUES (1)"
    yield "UPDATE raw_calling SET made = DEFAULT"
    yield "INSERT INTO raw_ruled VALUES (1)"
    yield "INSERT INTO raw_kid (id, slug, deleted) VALUES (900, 'kid', false)"
    yield "UPDATE raw_window SET word = 'w' || id"
    yield "ALTER TABLE raw_stray INHERIT shop_article"
    typed = "ALTER TABLE shop_article ALTER"
    free = "DROP RULE raw_rule ON raw_ruled", "DROP VIEW raw_window"
    yield *free, f"{typed} COLUMN slug TYPE varchar(90) USING regexp_replace(slug, '\\w', 'z' || id)"
    yield *free, f"{typed} slug SET DATA TYPE varchar(90) USING 'u' || id"
    staged = "CREATE SCHEMA raw_staging", "CREATE TABLE raw_staging.shop_article (LIKE shop_article)"
    row = "INSERT INTO raw_staging.shop_article (id, slug, deleted) VALUES (902, 'staged', false)"
    yield (
        *staged,
        row,
        "ALTER TABLE shop_article RENAME TO raw_was",
        ("ALTER TABLE raw_staging.shop_article SET SCHEMA public"),
    )
    yield "ALTER TABLE shop_article RENAME TO raw_was", "ALTER TABLE raw_elsewhere.shop_article SET SCHEMA public"
    yield "ALTER TABLE shop_article RENAME TO raw_was", "ALTER TABLE raw_stray RENAME TO shop_article"
    renamed = "UPDATE pg_class SET relname = 'shop_article' WHERE relname = 'raw_stray'"
    yield "ALTER TABLE shop_article RENAME TO raw_was", renamed
    yield (
        "INSERT INTO raw_log VALUES (1, 'a')",
        "UPDATE pg_trigger SET tgenabled = 'O' WHERE tgname = 'raw_asleep'",
        "INSERT INTO raw_log VALUES (1, 'awake')",
    )
    yield (
        "ALTER TABLE shop_article RENAME TO raw_was",
        "SELECT 903 AS id, 'i' AS slug, false AS deleted INTO shop_article",
    )
    yield (
        "ALTER TABLE shop_article RENAME TO raw_was",
        "CREATE TABLE shop_article AS SELECT 904 AS id, 'j'::text AS slug, false AS deleted",
    )
    yield (
        "ALTER TABLE shop_article RENAME TO raw_was",
        "CREATE VIEW shop_article AS SELECT 904 AS id, 'j'::text AS slug, false AS deleted",
    )
    yield "ALTER TABLE raw_event ATTACH PARTITION raw_event_2 FOR VALUES FROM (1000) TO (2000)"
    yield "INSERT INTO raw_event VALUES (5)"
    yield "INSERT INTO raw_event_1 VALUES (6)"
    yield "INSERT INTO raw_other VALUES (7, '', '')", "REFRESH MATERIALIZED VIEW raw_top"
    yield (
        "CREATE FUNCTION raw_late() RETURNS void LANGUAGE sql AS $$ INSERT INTO shop_article (slug, deleted) VALUES "
        "('late', false) $$",
        "SELECT raw_late()",
    )
    yield (
        "CREATE TRIGGER raw_later AFTER INSERT ON raw_log FOR EACH ROW EXECUTE FUNCTION raw_copy()",
        "INSERT INTO raw_log VALUES (1, 'later')",
    )
    yield "INSERT INTO raw_log VALUES (1, 'a')", "SELECT raw_wake()", "INSERT INTO raw_log VALUES (1, 'awake')"
    yield (
        "MERGE INTO shop_article a USING raw_other o ON a.slug = o.note WHEN NOT MATCHED THEN INSERT (slug, deleted) "
        "VALUES (o.note, false)"
    )


def harmless(vendor):
    """Reads, writes of other tables, other columns, and definitions: what must cost a guard nothing."""
    postgresql = vendor == "postgresql"
    reads = [
        "SELECT * FROM shop_article",
        "SELECT 'INSERT INTO shop_article'",
        "SELECT count(*), lower(slug) FROM shop_article WHERE id IN (1, 2) GROUP BY slug",
        'SELECT "id" AS "insert", "slug" AS "update" FROM "shop_article"',
        "SELECT coalesce(max(id), 0) FROM shop_article WHERE slug LIKE 'a\\%'",
        "WITH a AS (SELECT id FROM shop_article) SELECT * FROM a",
        "(SELECT 1) UNION (SELECT 2)" if postgresql else "SELECT 1 UNION SELECT 2",
        "VALUES (1), (2)",
        "SELECT replace(slug, 'a', 'b') FROM shop_article",
        "SELECT CASE WHEN slug = 'update shop_article set slug' THEN 1 END FROM shop_article",
        "EXPLAIN SELECT * FROM shop_article",
        "SELECT abs(-1), round(2.5), strange FROM (SELECT 1 AS strange) x",
    ]
    writes = [
        "INSERT INTO raw_other VALUES (9, 'INSERT INTO shop_article', 'b')",
        "INSERT INTO raw_other SELECT id + 50, slug, slug FROM shop_article",
        "UPDATE raw_other SET slug = (SELECT max(slug) FROM shop_article)",
        "UPDATE raw_other SET slug = 'x', note = 'y' WHERE id IN (SELECT id FROM shop_article)",
        "DELETE FROM raw_other WHERE slug = 'UPDATE shop_article SET slug'",
        "DELETE FROM shop_article",
        "DELETE FROM raw_owner WHERE code = 'gone'",
        "UPDATE raw_parent SET title = 'x'",
        "UPDATE raw_child SET title = 'x'",
        "UPDATE shop_product SET name = 'id' WHERE id = 3",
        "UPDATE shop_product SET name = (SELECT max(slug) FROM shop_article) WHERE id = 1",
        "INSERT INTO raw_audited VALUES (1, 'A')",
        "UPDATE raw_audited SET note = 'B'",
        "INSERT INTO raw_plain VALUES (1, 'misc')",
        "DELETE FROM raw_plain",
        "CREATE TABLE raw_new (id integer, slug text)",
        "CREATE INDEX raw_index ON shop_article (slug, deleted)",
        "CREATE VIEW raw_seen AS SELECT * FROM shop_article",
        "CREATE TABLE raw_copied AS SELECT * FROM shop_article",
        "ALTER TABLE raw_other ADD COLUMN more integer DEFAULT 1",
        "ALTER TABLE raw_other RENAME TO raw_else",
        "DROP TABLE raw_plain",
        "INSERT INTO raw_other VALUES (1, 'a', 'b') ON CONFLICT (id) DO UPDATE SET slug = 'x'",
        "ANALYZE",
    ]
    own = [
        "PRAGMA table_info(shop_article)",
        "PRAGMA foreign_keys",
        "PRAGMA user_version = 3",
        "SELECT json_extract('{}', '$.a'), hex(randomblob(3))",
        "INSERT OR REPLACE INTO raw_other VALUES (1, 'a', 'b')",
        "REPLACE INTO raw_other VALUES (1, 'a', 'b')",
        "UPDATE OR IGNORE raw_other SET id = 3 WHERE id = 1",
        "CREATE TRIGGER raw_more AFTER INSERT ON raw_log BEGIN DELETE FROM raw_other; "
        "UPDATE raw_audited SET note = ''; END",
    ]
    if postgresql:
        own = [
            "SELECT $$INSERT INTO shop_article$$, E'it\\'s; UPDATE shop_article SET slug'",
            "SELECT * FROM shop_article FOR UPDATE",
            "SELECT * FROM shop_article FOR NO KEY UPDATE OF shop_article SKIP LOCKED",
            "SELECT raw_pure('a'), raw_notes('b')",
            "SELECT setval('shop_article_id_seq', 10), nextval('shop_article_id_seq'), now(), gen_random_uuid()",
            "SELECT pg_advisory_xact_lock(1), current_setting('search_path')",
            "SELECT * FROM generate_series(1, 3), jsonb_array_elements('[1]'::jsonb)",
            "SET LOCAL work_mem = '8MB'",
            "SET CONSTRAINTS ALL DEFERRED",
            "SHOW search_path",
            "LOCK TABLE shop_article IN SHARE MODE",
            "TRUNCATE raw_log, ONLY raw_source",
            "DELETE FROM raw_calling",
            "TRUNCATE raw_calling",
            "DO $$ BEGIN INSERT INTO raw_log VALUES (1, 'shop_article'); PERFORM 1; END $$",
            "COPY (SELECT * FROM shop_article) TO STDOUT",
            "COPY shop_article TO STDOUT",
            "WITH a AS (INSERT INTO raw_log VALUES (1, 'a') RETURNING id) SELECT * FROM a, shop_article",
            "WITH a AS (DELETE FROM shop_article RETURNING id) INSERT INTO raw_log SELECT id FROM a",
            "ALTER TABLE shop_article ADD CONSTRAINT raw_check CHECK (slug <> '')",
            "ALTER TABLE shop_article ADD COLUMN more integer DEFAULT 3",
            "ALTER INDEX shop_article_pkey RENAME TO raw_key",
            "CREATE TABLE raw_event_3 PARTITION OF raw_event FOR VALUES FROM (5000) TO (6000)",
            "CREATE FUNCTION raw_new() RETURNS void LANGUAGE sql AS $$ INSERT INTO shop_article (slug) VALUES ('') $$",
            "CREATE OR REPLACE FUNCTION raw_make(word text) RETURNS integer LANGUAGE sql AS $$ SELECT 1 $$",
            "DROP TRIGGER raw_copies ON raw_source",
            "COMMENT ON TABLE shop_article IS 'UPDATE shop_article SET slug = 1'",
            "GRANT SELECT ON shop_article TO PUBLIC",
            "UPDATE raw_other SET note = 'x' FROM shop_article a WHERE a.id = raw_other.id RETURNING note, a.slug",
            "UPDATE shop_product SET name = 'x' FROM raw_other, shop_article WHERE raw_other.id = shop_product.id",
            "UPDATE shop_product SET name = 'x' RETURNING name, id",
            "NOTIFY raw_channel, 'UPDATE shop_article SET slug'",
            "REFRESH MATERIALIZED VIEW raw_unguarded",
        ]
    yield from writes
    for comment, each in itertools.product([*COMMENTS, *([NESTED] if postgresql else [])], reads + own):
        yield f"{comment}{each}"
        yield f"  {each.replace(' ', '  ', 1)}"


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database(request):
    """MariaDB's grammar is tested in test_mariadb.py."""
    with database.on(request.param):
        yield request.param


@pytest.fixture
def guards(each_database, fresh, clock, monkeypatch):
    """Guards of tables and partitions, all armed; and the list of what would be fenced."""
    vendor = connections[database.current].vendor
    with connections[database.current].cursor() as cursor:
        for sql in AWAY[vendor] + BOTH + (SQLITE if vendor == "sqlite" else POSTGRESQL):
            cursor.execute(sql)
        if vendor == "postgresql":
            cursor.execute("CREATE MATERIALIZED VIEW raw_unguarded AS SELECT id FROM raw_other")
            cursor.execute("SELECT setval('shop_article_id_seq', 5000)")
            cursor.execute("CREATE SCHEMA raw_elsewhere")
    Product.objects.create(pk=1, name="one")
    Article.objects.create(pk=1, slug="old")
    Article.objects.create(pk=2, slug="hidden", deleted=True)
    fenced = []
    with isolate_apps("tests.shop"), ExitStack() as stack:
        made = [stack.enter_context(guard) for guard in declared(vendor)]
        for guard in made:
            Rebuild(guard, sleep=clock.sleep).run()
        monkeypatch.setattr(
            raw.fencing, "fence", lambda reasons, using: fenced.extend(guard.name for guard in reasons) or []
        )
        if vendor == "postgresql":
            with connections[database.current].cursor() as cursor:  # no guard of one of two such tables is built
                cursor.execute("CREATE TABLE raw_elsewhere.shop_article (LIKE shop_article)")
                cursor.execute("INSERT INTO raw_elsewhere.shop_article (id, slug, deleted) VALUES (902, 'e', false)")
        yield made, fenced
    with connections[database.current].cursor() as cursor:
        for sql in (["DROP MATERIALIZED VIEW raw_unguarded"] if vendor == "postgresql" else []) + AWAY[vendor]:
            cursor.execute(sql)


def declared(vendor):
    """The guards, by models that are there for this test alone."""

    def model(table, **fields):
        meta = type("Meta", (), {"db_table": table, "managed": False, "app_label": "shop"})
        return type(table.title().replace("_", ""), (models.Model,), {"__module__": __name__, "Meta": meta, **fields})

    yield registered(Article, name="raw-article", lookup="slug", alive=Q(deleted=False))
    yield registered(Product, name="raw-product")
    names = {name: models.CharField(max_length=50, null=True) for name in ("draft_of", "editor")}
    child = model("raw_child", category=models.CharField(max_length=50), **names)
    yield registered(child, name="raw-child", lookup=("category", "id"))
    yield registered(child, name="raw-drafts", alive=Q(draft_of=None))
    yield registered(child, name="raw-editor", lookup=("editor", "category"))  # a row without one has no key
    if vendor == "postgresql":
        yield registered(model("raw_top"), name="raw-top")
        yield registered(model("raw_event"), name="raw-event")


def keys(guard):
    rows = guard._meta.rows().using(database.current).values_list(*guard._meta.attnames)
    return {row for row in rows if None not in row}


class Undo(Exception):
    """Takes a statement back."""


def run(statements, made, fenced):
    """What the statements did to the guards' keys, and who was fenced; all of it is undone."""
    fenced.clear()
    gained = set()
    before = {guard: keys(guard) for guard in made}
    try:
        with transaction.atomic(using=database.current):
            with connections[database.current].cursor() as cursor:
                for sql in [statements] if isinstance(statements, str) else statements:
                    if "TO STDOUT" in sql and is_psycopg3:
                        with cursor.copy(sql) as copied:
                            list(copied)
                    elif "TO STDOUT" in sql:
                        cursor.copy_expert(sql, io.StringIO())
                    else:
                        cursor.execute(sql)
                        if cursor.description and not isinstance(statements, tuple):
                            cursor.fetchall()
            gained = {guard.name for guard in made if keys(guard) - before[guard]}
            raise Undo
    except Undo:
        pass
    return gained, set(fenced)


@pytest.mark.parametrize(("grammar", "least"), [(inserts, 60), (updates, 60), (others, 0)])
def test_whatever_brings_up_a_key_fences(guards, grammar, least):
    """However it is written, and whatever the database does because of it."""
    made, fenced = guards
    missed, hits, total = [], 0, 0
    for statements in grammar(connections[database.current].vendor):
        gained, found = run(statements, made, fenced)
        total, hits = total + 1, hits + bool(gained)
        if gained - found:
            missed.append((statements, gained - found))

    assert missed == []
    assert hits >= max(least, total - 5), f"{hits} of {total} statements brought up a key"


def test_what_brings_up_none_fences_nothing(guards):
    """Reads, other tables, other columns, definitions, and words of writing in literals and comments."""
    made, fenced = guards
    wrong, total = [], 0
    for sql in harmless(connections[database.current].vendor):
        gained, found = run(sql, made, fenced)
        total += 1
        if gained or found:
            wrong.append((sql, gained, found))

    assert wrong == []
    assert total > 80
