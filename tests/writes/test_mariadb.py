"""What is MariaDB's own: its statements, its catalogue, its implicit commits, and values that it cuts short."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing, suppress

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connections, models, transaction
from django.db.models import F
from django.db.models.sql.compiler import SQLInsertCompiler
from django.test.utils import CaptureQueriesContext, isolate_apps

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from bloomguard.writes import consequences, updates
from bloomguard.writes.sql import reader
from tests.conftest import forget
from tests.shop.models import Article, Place, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import EXACT, MYSQL, mysql_only
from tests.support.orm_writes import without_autocommit

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

INSERT = "INSERT INTO shop_article (slug, deleted) VALUES"
LIMITED = "" if MYSQL else "SET STATEMENT max_statement_time = 1000 FOR"
#: Only in this mode MariaDB reads what has packages.
AS_ORACLE, AS_BEFORE = "SET @mode = @@sql_mode, sql_mode = ORACLE", "SET sql_mode = @mode"
SEVERAL = [
    "CREATE TABLE raw_source (id integer PRIMARY KEY, note varchar(50))",
    "CREATE TABLE raw_parent (code varchar(50) PRIMARY KEY)",
    "CREATE TABLE raw_log (id integer, note varchar(50))",
    "CREATE TABLE raw_slugs AS SELECT 'by table' AS slug, 0 AS deleted",
    f"CREATE TRIGGER raw_copies AFTER INSERT ON raw_source FOR EACH ROW {INSERT} (NEW.note, 0)",
    "CREATE TRIGGER raw_logs AFTER UPDATE ON raw_source FOR EACH ROW BEGIN "
    "IF NEW.id > 0 THEN INSERT INTO raw_log VALUES (NEW.id, 'shop_article'); END IF; END",
    "CREATE VIEW raw_window AS SELECT id, slug, deleted FROM shop_article",
    "CREATE VIEW raw_second AS SELECT * FROM raw_window",
    f"CREATE FUNCTION raw_make(word text) RETURNS integer BEGIN {INSERT} (word, 0); RETURN 1; END",
    "CREATE FUNCTION raw_pure(word text) RETURNS text DETERMINISTIC RETURN CONCAT('INSERT INTO shop_article', word)",
    "CREATE PROCEDURE raw_procedure(word text) BEGIN DECLARE x integer; SET x = raw_make(word); COMMIT; END",
    f"CREATE TRIGGER raw_limits BEFORE DELETE ON raw_source FOR EACH ROW {LIMITED} UPDATE shop_article "
    "SET slug = 'by limited trigger'",
    f"CREATE DATABASE test_bloomguard_away COLLATE {EXACT}",
    "CREATE VIEW test_bloomguard_away.raw_far AS SELECT id, slug, deleted FROM test_bloomguard.shop_article",
    "CREATE VIEW test_bloomguard_away.raw_farther AS SELECT * FROM test_bloomguard_away.raw_far",
]
if not MYSQL:
    SEVERAL += [
        AS_ORACLE,
        "CREATE PACKAGE raw_package AS FUNCTION raw_inner(word varchar(50)) RETURN integer; "
        "PROCEDURE raw_pure(word varchar(50)); END",
        "CREATE PACKAGE BODY raw_package AS FUNCTION raw_inner(word varchar(50)) RETURN integer AS "
        f"BEGIN {INSERT} (word, 0); RETURN 1; END; "
        f"PROCEDURE raw_pure(word varchar(50)) AS BEGIN {INSERT} (word, 0); END; END",
        AS_BEFORE,
    ]
AWAY = [
    "DROP DATABASE IF EXISTS test_bloomguard_away",
    "DROP VIEW IF EXISTS raw_window, raw_second",
    "DROP TABLE IF EXISTS raw_source, raw_parent, raw_log, raw_slugs",
    "DROP FUNCTION IF EXISTS raw_make",
    "DROP FUNCTION IF EXISTS raw_pure",
    "DROP PROCEDURE IF EXISTS raw_procedure",
    "DROP TRIGGER IF EXISTS raw_shouts",
    *([] if MYSQL else [AS_ORACLE, "DROP PACKAGE IF EXISTS raw_package", AS_BEFORE]),
]


@pytest.fixture
def mariadb():
    """The test runs on MariaDB alone."""
    with database.on("mariadb"):
        yield connections["mariadb"]


@pytest.fixture
def built(mariadb, build):
    """Some articles and products, and their filters."""
    Article.objects.create(pk=1, slug="old")
    Product.objects.create(pk=1)
    for name in ("article", "product", "place"):
        build(name)


@pytest.fixture
def several(built, build):
    """Tables, triggers, views and routines whose writes end in the table of articles."""
    for sql in [*AWAY, *SEVERAL]:
        execute(sql)
    build("article")  # the body of a routine counts as sent
    yield
    for sql in AWAY:
        execute(sql)


def execute(sql, parameters=None):
    connection = connections["mariadb"]
    with connection.cursor() as cursor:
        cursor.execute(sql.replace("test_bloomguard", connection.settings_dict["NAME"]), parameters)
        while cursor.nextset():
            pass


def status(name):
    return state.table.current(name).status


NAMES = ["shop_article", "`shop_article`", "test_bloomguard.shop_article", "/* raw_log */ shop_article"]
GAINS = [
    *(
        f"{head} {name} {row}"
        for head, name, row in itertools.product(
            ["INSERT INTO", "INSERT"], NAMES, ["(slug, deleted) VALUES ('a;b', 0)", "SET slug = 'it''s', deleted = 0"]
        )
    ),
    "insert\n\tignore into shop_article SET slug = 'x'",
    "REPLACE INTO shop_article SET slug = 'x', deleted = 0",
    "REPLACE LOW_PRIORITY `shop_article` (slug, deleted) VALUES ('x', 0)",
    *(f"{INSERT} ({word}, 0)" for word in ("'-- no'", "'# no'", "'/* no'", '"it\'s"', "_utf8mb4'x'", "'a\\\\'")),
    f"# don't\n{INSERT} ('x', 0)",
    f"/*! {INSERT} ('x', 0) */",
    f"SELECT 1; {INSERT} ('x', 0)",
    f"{INSERT} ('x', 0);",
    f"PREPARE raw_one FROM \"{INSERT} ('x', 0)\"; EXECUTE raw_one",
    "INSERT INTO shop_article (id, slug, deleted) VALUES (1, 'x', 0) ON DUPLICATE KEY UPDATE slug = 'up'",
    "INSERT INTO shop_article (slug, deleted) WITH a AS (SELECT 'w' AS b) SELECT b, 0 FROM a",
    "INSERT INTO raw_source VALUES (1, 'by trigger')",
    "DELETE FROM raw_source",
    "INSERT INTO raw_window (slug, deleted) VALUES ('by view', 0)",
    "INSERT INTO raw_second (slug, deleted) VALUES ('by two views', 0)",
    "UPDATE raw_second SET slug = 'by two views'",
    "INSERT INTO test_bloomguard_away.raw_farther (slug, deleted) VALUES ('by another database', 0)",
    "SELECT raw_make('by function')",
    "SET @made = raw_make('by variable')",
    "DO raw_make('by do')",
    "CALL raw_procedure('by procedure')",
    "UPDATE shop_article SET slug = 'new'",
    "SELECT raw_m\u00e1ke('by another letter')",
    "SELECT 1 --\x01 '\n, raw_make('after a comment') -- '",
    "SELECT 1 --\xa0b, raw_make('before') FROM (SELECT 1 AS `\xa0b`) AS a",
    "UPDATE IGNORE shop_article SET slug = 'new'",
    "UPDATE shop_article, shop_product SET slug = 'joined'",
    "UPDATE shop_product JOIN shop_article ON TRUE SET shop_article.slug = 'joined'",
    "UPDATE shop_article AS a SET a.slug = CONCAT('x', a.id)",
    "WITH a AS (SELECT 1) SELECT raw_make('by query') FROM a",
    "ALTER TABLE shop_article MODIFY slug varchar(60) NOT NULL",
    "RENAME TABLE shop_article TO raw_article, raw_article TO shop_article",
]
#: Of MariaDB alone, and of MySQL alone.
GAINS += [
    f"/*M! {INSERT} ('x', 0) */",
    f"{INSERT} ('x', 0) RETURNING id",
    f"ANALYZE {INSERT} ('x', 0)",
    f"ANALYZE FORMAT=JSON {INSERT} ('x', 0)",
    f"SET STATEMENT max_statement_time = 1000 FOR {INSERT} ('x', 0)",
    "SET STATEMENT max_statement_time = 1000 FOR UPDATE shop_article SET slug = 'x'",
    f"BEGIN NOT ATOMIC {INSERT} ('x', 0); END",
    f"EXECUTE IMMEDIATE \"{INSERT} ('x', 0)\"",
    *(
        f"{AS_ORACLE}; {call}; {AS_BEFORE}"
        for call in (
            "SELECT raw_package.raw_inner('by package')",
            "SELECT test_bloomguard.raw_package.raw_inner('by package')",
            "CALL raw_package.raw_pure('by package')",
        )
    ),
] if not MYSQL else [
    "INSERT INTO shop_article (slug, deleted) VALUES ROW('x', 0), ROW('y', 0)",
    "INSERT INTO shop_article (slug, deleted) TABLE raw_slugs",
    "REPLACE INTO shop_article (slug, deleted) TABLE raw_slugs",
    "INSERT INTO shop_article (id, slug, deleted) VALUES (1, 'x', 0) AS new ON DUPLICATE KEY UPDATE slug = new.slug",
    "WITH a AS (SELECT 1 AS b) UPDATE shop_article, a SET slug = 'x' WHERE id = b",
    "UPDATE /*+ SET_VAR(sort_buffer_size = 65536) */ shop_article SET slug = 'x'",
    f"/*!80000 {INSERT} ('x', 0) */",
    "EXPLAIN ANALYZE SELECT raw_make('by explain')",
    "SELECT raw_make('into a variable') INTO @made",
    "VALUES ROW(raw_make('by values'))",
    "SELECT * FROM (VALUES ROW(raw_make('by a table of values'))) AS a",
]  # fmt: skip


@pytest.fixture
def kept(several):
    """The table of articles is as it was, afterwards."""
    yield
    execute("ALTER TABLE shop_article MODIFY slug varchar(200) NOT NULL")


def test_whatever_brings_up_a_key_fences(kept, clock):
    """Each statement leaves the guard fenced, under autocommit and in a transaction."""
    silent = []
    for sql, block in itertools.product(GAINS, ("autocommit", "atomic")):
        Article.objects.all().delete()
        execute("DELETE FROM raw_source")
        Article.objects.create(pk=1, slug="old")
        clock.now += 10
        Rebuild(registry["article"], sleep=clock.sleep).run()
        with transaction.atomic(using="mariadb") if block == "atomic" else ExitStack():
            execute(sql)
        if status("article") != FENCED:
            silent.append((block, sql))

    assert silent == []


NOTHING = [
    "SELECT * FROM raw_window",
    "SELECT raw_pure('x')",
    "UPDATE raw_source SET note = 'x'",
    "INSERT INTO raw_log VALUES (1, 'shop_article')",
    "DELETE FROM shop_article",
    "ANALYZE TABLE shop_article",
    "SET @x = 1, SESSION lock_wait_timeout = 50",
    "CHECK TABLE shop_article",
    "CHECKSUM TABLE shop_article",
    "HANDLER shop_article OPEN; HANDLER shop_article READ FIRST; HANDLER shop_article CLOSE",
    "SELECT /*+ MAX_EXECUTION_TIME(1000) */ slug FROM shop_article",
    "UPDATE /*+ BKA(raw_log) */ raw_log SET note = 'x'",
    "TABLE shop_article" if MYSQL else "SET STATEMENT max_statement_time = 1000 FOR SELECT * FROM shop_article",
    "BEGIN; COMMIT",
    "EXPLAIN SELECT * FROM shop_article",
    "SHOW TABLES",
    "LOCK TABLES shop_article READ; UNLOCK TABLES",
    "UPDATE shop_product SET name = 'x'",
]


def test_what_brings_up_none_fences_nothing(several, caplog):
    """Reads, deletes and other tables."""
    for sql in NOTHING:
        execute(sql)
        assert (sql, status("article")) == (sql, ARMED)


def test_a_trigger_that_assigns_a_key_fences(built):
    """The row that is stored has another key than the instance; who writes by the ORM is told by RETURNING as well."""
    execute("CREATE TRIGGER raw_shouts BEFORE INSERT ON shop_article FOR EACH ROW SET NEW.slug = UPPER(NEW.slug)")
    consequences.definitions.changed(connections["mariadb"])
    try:
        Article.objects.create(slug="loud")
    finally:
        execute("DROP TRIGGER raw_shouts")

    assert registry["article"].verdict("LOUD") is not Verdict.ABSENT


@pytest.mark.parametrize("home", ["test_bloomguard", "test_bloomguard_away"])
def test_foreign_keys_of_the_databases_are_followed(built, clock, home):
    """ON UPDATE CASCADE changes the key of rows that no statement names, also by a table of another database."""
    for sql in (
        f"CREATE DATABASE IF NOT EXISTS test_bloomguard_away COLLATE {EXACT}",
        f"CREATE TABLE {home}.raw_parent (code varchar(50) PRIMARY KEY)",
        f"CREATE TABLE {home}.raw_between (code varchar(50) PRIMARY KEY, CONSTRAINT raw_first FOREIGN KEY (code) "
        "REFERENCES raw_parent (code) ON UPDATE CASCADE)",
        f"INSERT INTO {home}.raw_parent VALUES ('old')",
        f"INSERT INTO {home}.raw_between VALUES ('old')",
        f"ALTER TABLE shop_article ADD CONSTRAINT raw_key FOREIGN KEY (slug) REFERENCES {home}.raw_between (code) "
        "ON UPDATE CASCADE",
    ):
        execute(sql)
    Rebuild(registry["article"], sleep=clock.sleep).run()
    try:
        execute(f"UPDATE {home}.raw_parent SET code = 'moved'")
    finally:
        execute("ALTER TABLE shop_article DROP FOREIGN KEY raw_key")
        with suppress(OperationalError):  # MariaDB has dropped it
            execute("ALTER TABLE shop_article DROP KEY raw_key")
        execute(f"DROP TABLE {home}.raw_between, {home}.raw_parent")
        execute("DROP DATABASE test_bloomguard_away")

    assert Article.objects.filter(slug="moved").exists()
    assert status("article") == FENCED


# -- values that are not stored as they were given


@pytest.fixture(params=["returning", "without returning"])
def returning(request, mariadb, monkeypatch):
    """With RETURNING, and as on MySQL, which has none."""
    if request.param == "without returning":
        monkeypatch.setattr(mariadb.features, "can_return_columns_from_insert", False, raising=False)
        monkeypatch.setattr(type(mariadb.features), "can_return_rows_from_bulk_insert", False)


@pytest.fixture
def lenient(mariadb, returning):
    """A session without strict mode."""
    execute("SET SESSION sql_mode = ''")
    yield
    mariadb.close()


WAYS = {
    "create": lambda slug: Article.objects.create(slug=slug),
    "several": lambda slug: Article.objects.bulk_create([Article(slug=slug), Article(slug="x" * 270)]),
    "upsert": lambda slug: Article.objects.bulk_create(
        [Article(slug=slug)], update_conflicts=True, update_fields=["deleted"]
    ),
    "ignoring": lambda slug: Article.objects.bulk_create([Article(slug=slug)], ignore_conflicts=True),
    "several ignoring": lambda slug: Article.objects.bulk_create(
        [Article(slug=slug), Article(slug="old")], ignore_conflicts=True
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_is_stored_is_what_is_added(built, lenient, way):
    """Without strict mode, and by INSERT IGNORE, a text is cut to the length of its column."""
    way("y" * 210)

    assert Article.objects.filter(slug="y" * 200).exists()
    assert registry["article"].verdict("y" * 200) is not Verdict.ABSENT


def test_a_primary_key_that_does_not_fit_is_another_one(built, lenient):
    """The others of its statement are found by theirs."""
    Product.objects.bulk_create([Product(pk=2), Product(pk=1 << 70)])

    assert Product.objects.filter(pk=(1 << 63) - 1).exists()
    assert registry["product"].verdict((1 << 63) - 1) is not Verdict.ABSENT
    Product.objects.all().delete()
    execute("ALTER TABLE shop_product AUTO_INCREMENT = 1")


class Moving(SQLInsertCompiler):
    """As a package may have one: it writes another primary key than the instance has."""

    def as_sql(self):
        return [(sql, [6 if value == 1 else value for value in values]) for sql, values in super().as_sql()]


def test_a_compiler_of_another_package_may_write_another_primary_key(built, mariadb, returning, monkeypatch):
    """Reading back by the instance's would find an older row."""
    compiler = mariadb.ops.compiler
    monkeypatch.setattr(mariadb.ops, "compiler", lambda name: Moving if name == "SQLInsertCompiler" else compiler(name))
    Product.objects.bulk_create([Product(pk=1)])

    assert Product.objects.filter(pk=6).exists()
    assert registry["product"].verdict(6) is not Verdict.ABSENT


def test_the_last_id_is_not_taken_for_another_column(returning, fresh, clock):
    """Of a second model, whose generated key is another column: the guard's primary key is an expression there."""
    with isolate_apps("tests.shop"):
        meta = type("Meta", (), {"app_label": "shop", "db_table": "raw_numbered", "managed": False})
        base = {"__module__": __name__, "Meta": meta, "id": models.IntegerField(primary_key=True)}
        own = type("Own", (models.Model,), base | {"number": models.IntegerField(unique=True)})
        number = models.AutoField(primary_key=True)
        other = type("Other", (models.Model,), base | {"id": models.IntegerField(), "number": number})
    execute("CREATE TABLE raw_numbered (id integer PRIMARY KEY, number integer UNIQUE AUTO_INCREMENT)")
    try:
        execute("INSERT INTO raw_numbered VALUES (2, 1)")
        with registered(own, name="own") as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            other.objects.create(id=models.Value(500))

            assert own.objects.get(pk=500).number == 2
            assert guard.verdict(500) is not Verdict.ABSENT
    finally:
        execute("DROP TABLE raw_numbered")


@pytest.mark.parametrize("way", [WAYS["ignoring"], WAYS["several ignoring"]])
def test_ignored_errors_cut_in_strict_mode_too(built, returning, way):
    """INSERT IGNORE makes warnings of errors."""
    way("y" * 210)

    assert Article.objects.filter(slug="y" * 200).exists()
    assert registry["article"].verdict("y" * 200) is not Verdict.ABSENT


def test_spaces_that_do_not_fit_are_cut_in_strict_mode_too(built, returning):
    """No mode makes that an error."""
    Article.objects.create(slug="z" * 200 + "  ")

    assert Article.objects.filter(slug="z" * 200).exists()
    assert registry["article"].verdict("z" * 200) is not Verdict.ABSENT


class _Later(models.IntegerField):
    def pre_save(self, instance, add):
        return getattr(instance, self.attname) + 1


class _Coded(models.BigAutoField):
    def from_db_value(self, value, expression, connection):
        return value + 1000

    def get_prep_value(self, value):
        return super().get_prep_value(value) - 1000


AUTO = "bigint AUTO_INCREMENT"
#: The primary key's field and column, and an INSERT; there are rows 0, 1 and 77.
OTHER_KEYS = {
    "a field that stores another": (_Later, "bigint", lambda rows: rows.create(id=1, name="new")),
    "a field that converts it": (_Coded, AUTO, lambda rows: rows.bulk_create([rows.model(name="new")])),
    "a default": (models.BigAutoField, "bigint DEFAULT 5", lambda rows: rows.bulk_create([rows.model(name="new")])),
    "a default, ignoring": (
        models.BigAutoField, "bigint DEFAULT 5",
        lambda rows: rows.bulk_create([rows.model(name="new")], ignore_conflicts=True),
    ),
    "a default, and the last ID is 0": (
        models.BigAutoField, "bigint DEFAULT 5",
        lambda rows: rows.create(name="new"),
    ),
    "a trigger that renames what an upsert updates": (
        models.BigAutoField, AUTO,
        lambda rows: rows.bulk_create(
            [rows.model(name="new", number=1), rows.model(name="second", number=2)],
            update_conflicts=True, update_fields=["note"],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("field", "column", "write"), OTHER_KEYS.values(), ids=OTHER_KEYS)
def test_a_row_is_not_taken_for_another(returning, fresh, clock, field, column, write):
    """Whatever makes the primary key: the inserted rows are found by it, or the guard is fenced."""
    with isolate_apps("tests.shop"):

        class Made(models.Model):
            id = field(primary_key=True)
            name = models.CharField(max_length=50, db_collation=EXACT)
            number = models.IntegerField(null=True)
            note = models.CharField(max_length=50, default="")

            class Meta:
                app_label, db_table = "shop", "raw_made"

    execute(
        f"CREATE TABLE raw_made (id {column} PRIMARY KEY, name varchar(50) COLLATE {EXACT} NOT NULL, "
        "number integer UNIQUE, note varchar(50) NOT NULL)"
    )
    try:
        execute("INSERT INTO raw_made VALUES (1, 'old', 1, ''), (77, 'last', NULL, '')")
        execute("INSERT INTO raw_made VALUES (0, 'zero', NULL, '')")
        execute("CREATE TRIGGER raw_renames BEFORE UPDATE ON raw_made FOR EACH ROW SET NEW.name = 'renamed'")
        with registered(Made, name="made", lookup="name") as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            write(Made.objects)

            names = list(Made.objects.values_list("name", flat=True))
            assert len(names) > 3
            assert [name for name in names if guard.verdict(name) is Verdict.ABSENT] == []
    finally:
        execute("DROP TABLE raw_made")


# -- transactions


def test_at_serializable_no_insert_waits_for_another(built, mariadb, returning, monkeypatch):
    """A SELECT of the new rows would lock what comes after them: two of such INSERTs would be a deadlock."""
    options = {**mariadb.settings_dict["OPTIONS"], "isolation_level": "serializable"}
    monkeypatch.setitem(mariadb.settings_dict, "OPTIONS", options)
    mariadb.close()
    with closing(mariadb.copy()) as other, transaction.atomic(using="mariadb"):
        Product.objects.bulk_create([Product(), Product()])
        with other.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
            cursor.execute("INSERT INTO shop_product (id, name) VALUES (77, 'other')")
    mariadb.close()

    assert Product.objects.filter(pk=77).exists()


@mysql_only
@pytest.mark.parametrize(
    "write", [lambda rows: rows.create(name="new"), lambda rows: rows.bulk_create([Product(name="new")])]
)
def test_a_login_that_may_only_insert(built, mariadb, write):
    """Its rows cannot be read back, so the guard is fenced, and the row is stored."""
    name = mariadb.settings_dict["NAME"]
    execute("CREATE USER inserts")
    try:
        execute(f"GRANT INSERT ON {name}.shop_product TO inserts")
        with database.second_alias("mariadb", "limited", USER="inserts") as alias:
            write(Product.objects.using(alias))
    finally:
        execute("DROP USER inserts")

    assert Product.objects.filter(name="new").exists()
    assert status("product") == FENCED


@pytest.mark.parametrize("begin", ["BEGIN", "START TRANSACTION", "SET autocommit = 0"])
def test_a_begin_by_hand_is_noticed(built, mariadb, begin):
    """A write joins it, and a ROLLBACK takes it back. Without autocommit, the write itself begins the transaction."""
    with closing(mariadb):  # so the next test has another session
        execute(begin)
        Article.objects.create(slug="new")
        execute("ROLLBACK")

        assert not Article.objects.filter(slug="new").exists()

        execute(begin)
        execute("INSERT INTO shop_product (id, name) VALUES (7, '')")
        execute("ROLLBACK")

        assert not Product.objects.filter(pk=7).exists()

        execute(begin)
        Article.objects.create(slug="new")
        execute("COMMIT")
        execute("ROLLBACK")

    assert Article.objects.filter(slug="new").exists()
    assert registry["article"].verdict("new") is Verdict.MAYBE


def test_a_statement_that_may_commit_is_sent_under_a_fence(several):
    """Its rows may be committed before it returns."""
    seen = []

    def look(run, sql, *rest):
        if sql.startswith("CALL"):
            seen.append(state.table.current("article").status)
        return run(sql, *rest)

    with connections["mariadb"].execute_wrapper(look):
        execute("CALL raw_procedure('new')")

    assert seen == [FENCED]


@mysql_only
def test_a_level_for_the_next_transaction_is_that_of_the_next_write(built, mariadb):
    """To ask MySQL whether a transaction is open does not use it up."""
    with closing(mariadb.copy()) as other, mariadb.cursor() as cursor, other.cursor() as asking:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        Product.objects.create()
        asking.execute(
            "SELECT isolation_level FROM performance_schema.events_transactions_current "
            "JOIN performance_schema.threads USING (thread_id) WHERE processlist_id = %s",
            [mariadb.connection.thread_id()],
        )
        assert asking.fetchall() == (("SERIALIZABLE",),)


def test_a_definition_that_commits_leaves_no_row_behind(built, clock):
    """What was written before it is committed by it, and was added before."""
    execute("DROP TABLE IF EXISTS raw_log")
    with transaction.atomic(using="mariadb"):
        Article.objects.create(slug="before")
        execute("CREATE TABLE raw_log (id integer)")
        Article.objects.create(slug="after")
        transaction.set_rollback(True, using="mariadb")
    execute("DROP TABLE raw_log")

    assert set(Article.objects.values_list("slug", flat=True)) == {"old", "before"}
    assert registry["article"].verdict("before") is Verdict.MAYBE


def test_rows_that_come_to_match_between_lock_and_update_fence(built, monkeypatch):
    """At READ COMMITTED the UPDATE may change a row that was not there when its rows were locked."""
    Place.objects.create(country="de", slug="ulm")
    locked = updates._locked

    def then_another(compiler):
        keys = locked(compiler)
        if compiler.query.model is Place:
            other = connections["mariadb"].copy()
            with other.cursor() as cursor:
                cursor.execute("INSERT INTO shop_place (country, slug) VALUES ('de', 'bonn')")
            other.close()
        return keys

    monkeypatch.setattr(updates, "_locked", then_another)
    Place.objects.filter(country="de").update(country="fr")

    assert Place.objects.filter(country="fr").count() == 2
    assert registry["place"].verdict(("fr", "bonn")) is not Verdict.ABSENT


def test_databases_that_share_a_store_leave_each_other_their_filters(mariadb, build, monkeypatch, caplog):
    """Two sites on one server, or a copy of production: a filter of the other database is neither trusted nor removed,
    and the rebuild warns of it."""
    Product.objects.create(pk=1)
    build("product")
    original, copied = state.table.current("product"), f"{mariadb.settings_dict['NAME']}_copied"

    def run(sql):  # as another program, which fences nothing
        mariadb.ensure_connection()
        with closing(mariadb.connection.cursor()) as cursor:
            cursor.execute(sql)

    run(f"CREATE DATABASE {copied}")
    try:
        for table in mariadb.introspection.table_names():
            run(f"CREATE TABLE {copied}.{table} LIKE {table}")
            with suppress(mariadb.Database.OperationalError):  # MySQL copies no generated column
                run(f"INSERT INTO {copied}.{table} SELECT * FROM {table}")
        with monkeypatch.context() as patch:
            patch.setitem(mariadb.settings_dict, "NAME", copied)
            mariadb.close()
            forget()
            is_ours = state.table.current("product").is_ours
            build("product")
            mine = state.table.current("product")
        mariadb.close()
        forget()
    finally:
        run(f"DROP DATABASE {copied}")

    assert not is_ours
    assert {original.active, mine.active} <= set(stores["default"].names("product"))
    assert "their own prefix or path" in caplog.text
    assert registry["product"].verdict(2) is Verdict.ABSENT


def test_an_error_fences_nothing(built):
    """A statement that fails raises what it did."""
    with pytest.raises(IntegrityError):
        execute("INSERT INTO shop_article (id, slug, deleted) VALUES (1, 'x', 0)")
    Article.objects.filter(pk=1).update(slug=F("slug"))

    assert status("article") == ARMED


@pytest.mark.parametrize("sql", GAINS[-15:])
def test_nothing_is_taken_for_a_plain_read(sql):
    """No statement of the grammar is skipped before it is read."""
    assert not reader.is_plain_read(sql) or sql.startswith("SELECT raw_make")


def test_the_servers_own_procedures_slow_no_write(built):
    """No write can call those of `mysql`, so what one may cause is found out once a table; a CALL of one fences."""
    Product.objects.create(pk=2)
    quiet = consequences.current_cache("mariadb").is_quiet("shop_product")
    before = status("product")
    with suppress(DatabaseError):
        execute("CALL mysql.DropGeometryColumn('', '', 'nothing', 'place')")

    assert quiet
    assert (before, status("product")) == (ARMED, FENCED)


def test_a_cuckoo_filter_costs_no_query_of_living_rows(built, clock):
    """None of its keys is discarded there, so nobody asks which rows are gone; LOCK TABLES would refuse it."""
    with registered(Place, name="counted", lookup="slug", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        execute("LOCK TABLES shop_place WRITE")
        try:
            Place.objects.create(country="de", slug="two")
            assert Place.objects.filter(slug="two").update(slug="new") == 1
            with CaptureQueriesContext(connections["mariadb"]) as sent:
                assert Place.objects.filter(slug="new").delete() == (1, {"shop.Place": 1})
        finally:
            execute("UNLOCK TABLES")

        assert [each["sql"] for each in sent if each["sql"].startswith("SELECT")] == []
        assert guard.filter_existing(["two", "new"]) == ["two", "new"]
        assert status("counted") == ARMED


def test_changed_rows_that_cannot_be_counted_again_fence(built, monkeypatch):
    """The UPDATE is done when a trigger makes it count the rows, and an error of that does not undo it."""

    def fail(*args):
        raise OperationalError("the query was interrupted")

    monkeypatch.setattr(updates, "_are_all_there", fail)
    execute("CREATE TRIGGER raw_shouts BEFORE UPDATE ON shop_article FOR EACH ROW SET NEW.slug = LOWER(NEW.slug)")
    try:
        with without_autocommit(), suppress(DatabaseError):
            Article.objects.update(slug="new")
    finally:
        execute("DROP TRIGGER raw_shouts")

    assert Article.objects.filter(slug="new").exists()
    assert registry["article"].verdict("new") is not Verdict.ABSENT
