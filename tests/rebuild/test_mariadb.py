"""Rebuilds on MariaDB: which columns and tables are refused, and that a scan misses nothing."""

from __future__ import annotations

import random
import uuid
from contextlib import closing, suppress

import pytest
from django.db import IntegrityError, OperationalError, connections, models
from django.test.utils import CaptureQueriesContext, isolate_apps

from bloomguard.exceptions import RebuildError
from bloomguard.filters.bulk import one_by_one
from bloomguard.guards import Guard, registry
from bloomguard.lookups import guarded_lookups
from bloomguard.rebuild import Rebuild, locks, pages, verify
from bloomguard.rebuild import source as sources
from bloomguard.rebuild.source import Source
from bloomguard.state import table as states
from bloomguard.state.connection import StateConnection
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Order, Price, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import EXACT, mariadb_only, mysql_only

pytestmark = [pytest.mark.django_db(transaction=True, databases="__all__"), pytest.mark.usefixtures("mariadb")]


@pytest.fixture
def mariadb():
    """The test runs on MariaDB alone."""
    with database.on("mariadb"):
        yield


def execute(sql):
    with connections["mariadb"].cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def column(build):
    """``column(type)`` gives the articles' slug another type; afterwards it has its own."""

    def alter(definition):
        execute(f"ALTER TABLE shop_article MODIFY slug {definition} NOT NULL")

    yield alter
    alter(f"varchar(50) COLLATE {EXACT}")


@pytest.mark.parametrize(
    "definition",
    [
        "varchar(50) COLLATE utf8mb4_bin",  # ignores spaces at the end
        "varchar(50) COLLATE utf8mb4_general_ci",
        pytest.param("varchar(50) COLLATE utf8mb4_unicode_520_nopad_ci", marks=mariadb_only),
        pytest.param("varchar(50) COLLATE utf8mb4_0900_as_cs", marks=mysql_only),
        "varchar(50) CHARACTER SET latin1",
        f"char(50) COLLATE {EXACT}",
        "enum('a', 'b')",
        "varbinary(50)",
        "bigint",
    ],
)
def test_a_column_that_compares_otherwise_is_refused(column, build, definition):
    """Texts that the database treats as equal have different keys."""
    column(definition)

    with pytest.raises(RebuildError, match="where different texts may be equal"):
        build("article")


@pytest.mark.parametrize("name", ["`elsewhere`.`shop_named`", "elsewhere`.`shop_named"])
def test_a_table_of_another_database_is_refused(clock, fresh, name):
    """Its collation is not known, here one that finds "Tea" for "tea", nor are its foreign keys."""
    with isolate_apps("tests.shop"):
        meta = type("Meta", (), {"app_label": "shop", "db_table": name})
        fields = {"slug": models.CharField(max_length=50)}
        named = type("Named", (models.Model,), {"__module__": __name__, "Meta": meta, **fields})
    execute("CREATE DATABASE elsewhere")
    try:
        execute(
            "CREATE TABLE elsewhere.shop_named (id bigint AUTO_INCREMENT PRIMARY KEY, slug varchar(50)) "
            "COLLATE utf8mb4_general_ci"
        )
        with registered(named, name="named", lookup="slug") as guard:
            with pytest.raises(RebuildError, match="names a database"):
                Rebuild(guard, sleep=clock.sleep).run()
            named.objects.create(slug="Tea")
            with guarded_lookups():
                assert named.objects.get(slug="tea").slug == "Tea"
    finally:
        execute("DROP DATABASE elsewhere")


@pytest.mark.parametrize(
    "definition", ["varchar(50)", "longtext", pytest.param("varchar(50) CHARACTER SET utf8mb3", marks=mariadb_only)]
)
def test_a_column_that_compares_bytes_is_fine(column, build, definition):
    """Of the collations with this end."""
    if definition == "longtext":
        execute("ALTER TABLE shop_article DROP INDEX slug")
    collation = "utf8mb3_nopad_bin" if "utf8mb3" in definition else EXACT
    try:
        column(f"{definition} COLLATE {collation}")
        assert build("article").rows == 0
    finally:
        if definition == "longtext":
            column(f"varchar(50) COLLATE {EXACT}")
            execute("ALTER TABLE shop_article ADD UNIQUE slug (slug)")


@pytest.mark.parametrize(
    ("collation", "normalize", "fits"),
    [
        ("utf8mb4_bin", lambda self, value: value.rstrip(" "), True),
        ("utf8mb4_bin", lambda self, value: value.casefold(), False),
        ("utf8mb4_general_ci", lambda self, value: value.casefold(), False),
    ],
    ids=["spaces", "no spaces", "accents"],
)
def test_a_normalizer_is_held_against_the_column(column, clock, collation, normalize, fits):
    """It has to fold whatever the collation folds: case, accents, spaces at the end."""
    column(f"varchar(50) COLLATE {collation}")
    with registered(Article, name="folded", lookup="slug", normalize=normalize) as guard:
        rebuild = Rebuild(guard, sleep=clock.sleep)
        if fits:
            assert rebuild.run().rows == 0
        else:
            with pytest.raises(RebuildError, match="as equal"):
                rebuild.run()


def test_another_engine_is_refused(build):
    """Without transactions nothing waits for a fence."""
    execute("CREATE TABLE shop_other LIKE shop_price")
    execute("ALTER TABLE shop_other ENGINE = MyISAM")
    execute("RENAME TABLE shop_price TO shop_kept, shop_other TO shop_price")
    try:
        with pytest.raises(RebuildError, match="'shop_price' is of the engine MyISAM"):
            build("price")
    finally:
        execute("DROP TABLE shop_price")
        execute("RENAME TABLE shop_kept TO shop_price")


@pytest.mark.parametrize("engine", ["MyISAM", pytest.param("Aria", marks=mariadb_only)])
def test_a_table_that_gets_another_engine_is_guarded_no_more(build, engine):
    """Rows of a statement that fails stay there, and nobody adds their keys."""
    Price.objects.create(pk=1, amount=1)
    build("price")
    execute(f"ALTER TABLE shop_price ENGINE = {engine}")
    try:
        with suppress(IntegrityError):
            Price.objects.bulk_create([Price(pk=2, amount=2), Price(pk=1, amount=3)])

        assert Price.objects.filter(amount=2).exists()
        assert registry["price"].verdict(2) is not Verdict.ABSENT
    finally:
        Price.objects.all().delete()
        execute("ALTER TABLE shop_price ENGINE = InnoDB")


ROWS = random.Random(1)
MADE = {
    "product": lambda: Product.objects.bulk_create(
        Product(pk=pk) for pk in {-(1 << 63), -1, 1 << 62, *ROWS.sample(range(1, 9_000), 300)}
    ),
    "order": lambda: Order.objects.bulk_create(Order() for _ in range(300)),
    "article": lambda: Article.objects.bulk_create(Article(slug=f"\u00e4-{number}") for number in range(300)),
}


@pytest.mark.parametrize("name", MADE)
def test_a_rebuild_holds_every_row(name, build, monkeypatch, clock):
    """Integers from end to end, UUIDs, and text that is no ASCII."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 70)
    MADE[name]()
    report = build(name)
    clock.now += 1
    guard = registry[name]

    assert report.rows == guard._meta.rows().using("mariadb").count() >= 300
    field = guard._meta.attnames[0]
    for value in guard._meta.rows().using("mariadb").values_list(field, flat=True):
        assert guard.verdict(value) is not Verdict.ABSENT


@mysql_only
@pytest.mark.parametrize("odd", ["'no number'", "NULL"])
def test_a_uuid_that_is_none_stops_the_scan(odd):
    """The column may be older than its field."""
    Order.objects.create()
    execute("ALTER TABLE shop_order DROP PRIMARY KEY, MODIFY id char(32) NULL")
    try:
        execute(f"INSERT INTO shop_order VALUES ({odd})")
        with pytest.raises(RebuildError, match="2 rows of a page hold"):
            [page.keys for page in Source(registry["order"]).pages()]
    finally:
        execute("DELETE FROM shop_order")
        execute("ALTER TABLE shop_order MODIFY id char(32) NOT NULL, ADD PRIMARY KEY (id)")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OperationalError])
def test_rows_that_nobody_fetched_are_in_nobodys_way(error, monkeypatch):
    """A page that is left half read leaves the connection as it was: the next statement gets its own rows."""
    MySQLdb = pytest.importorskip("MySQLdb")
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 20_001))

    class Broken(MySQLdb.cursors.SSCursor):
        def fetchmany(self, size=None):
            super().fetchmany(2)
            raise MySQLdb.OperationalError(2013, "no more") if error is OperationalError else error

    monkeypatch.setattr(MySQLdb.cursors, "SSCursor", Broken)
    with pytest.raises(error):
        list(Source(registry["product"]).pages())
    monkeypatch.undo()

    assert Product.objects.using("mariadb").count() == 20_000
    assert sum(page.rows for page in Source(registry["product"]).pages()) == 20_000


def test_integers_are_fetched_a_few_at_a_time(monkeypatch):
    """A page's rows are not all Python objects at once: they would take ten times the memory of its array."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 10_001))
    MySQLdb = pytest.importorskip("MySQLdb")
    fetched = []

    class Counted(MySQLdb.cursors.SSCursor):
        def fetchmany(self, size=None):
            rows = super().fetchmany(size)
            fetched.append(len(rows))
            return rows

    monkeypatch.setattr(MySQLdb.cursors, "SSCursor", Counted)
    (page,) = Source(registry["product"]).pages()

    assert page.keys.tolist() == list(range(1, 10_001))
    assert fetched == [pages._STREAMED] * 5 + [0]


def test_a_driver_without_such_a_cursor_is_read_by_the_orm(monkeypatch):
    """Other drivers than mysqlclient and PyMySQL get the same keys, slower."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    Article.objects.create(slug="slug")
    monkeypatch.delattr("MySQLdb.cursors.SSCursor")

    (page,) = Source(registry["product"]).pages()
    assert page.keys == [pk.to_bytes(8, "little") for pk in range(1, 101)]
    (page,) = Source(registry["article"]).pages()
    assert page.keys == [b"slug"]


class Wide(models.Model):
    number = models.PositiveBigIntegerField(unique=True)

    class Meta:
        app_label = "shop_unsigned"


class WideGuard(Guard):
    lookup = "number"


@pytest.mark.parametrize("page_rows", [1, 2, 3, 100])
def test_integers_without_a_sign_have_the_keys_of_requests(page_rows, monkeypatch):
    """An unsigned column has numbers from 2**63 on too."""
    monkeypatch.setattr(sources, "PAGE_ROWS", page_rows)
    guard = WideGuard(Wide)
    numbers = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 63) + 5, (1 << 64) - 1]
    with connections["mariadb"].schema_editor() as editor:
        editor.create_model(Wide)
    try:
        Wide.objects.using("mariadb").bulk_create(Wide(number=number) for number in numbers)
        found = [key for page in Source(guard, "mariadb").pages() for key in one_by_one(page.keys)]
    finally:
        with connections["mariadb"].schema_editor() as editor:
            editor.delete_model(Wide)

    assert found == [guard._meta.keys.key(number) for number in numbers]


@pytest.mark.parametrize("verified", [False, True], ids=["rebuild_filter", "verify_filter"])
def test_rows_of_other_keys_are_read_in_pages(verified, build, clock, monkeypatch):
    """The driver holds a whole result in memory, so no statement asks for more rows than a page has.

    But for the rows without a primary key, or with the last one of a page: unless the table is older than its model,
    there are none, and one.
    """
    monkeypatch.setattr(sources, "PAGE_ROWS", 70)
    monkeypatch.setattr(verify, "_ROWS_AT_ONCE", 70)
    Price.objects.bulk_create(Price(amount=number) for number in range(300))
    build("price")
    clock.now += 1
    with CaptureQueriesContext(connections["mariadb"]) as sent:
        if verified:
            assert verify.Verification(registry["price"]).run().rows == 300
        else:
            assert sum(len(page.keys) for page in Source(registry["price"]).pages()) == 300

    reads = [each["sql"] for each in sent.captured_queries if "LIMIT 70" in each["sql"]]
    assert len(reads) == 6
    rows = [each["sql"] for each in sent.captured_queries if "amount" in each["sql"]]
    assert not [sql for sql in rows if "LIMIT" not in sql and "`id` IS NULL" not in sql and "`id` = " not in sql]


def test_random_uuids_are_read(build):
    """MariaDB sorts UUIDs by other bytes than Python; the rows that a rebuild reads again come from both ends."""
    Order.objects.bulk_create(Order(pk=uuid.uuid4()) for _ in range(300))

    assert len(set(Source(registry["order"]).random_values(100))) == 100


def test_a_server_that_is_read_only_is_no_primary(fresh):
    """A replica may lag, so its state rows are not used."""
    table = states.StateTable(StateConnection())
    execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(OperationalError, match="standby"):
            table.current("product")
    finally:
        execute("SET GLOBAL read_only = 0")
        table.forget()

    assert table.current("product").version == 0
    table.forget()


def test_a_login_that_may_not_lock_is_told_what_it_lacks():
    """The server's own error names no right."""
    execute("CREATE USER raw_reader@localhost")
    try:
        execute("GRANT SELECT ON *.* TO raw_reader@localhost")
        with closing(connections["mariadb"].copy()) as other:
            other.settings_dict = {**other.settings_dict, "USER": "raw_reader"}
            with pytest.raises(RebuildError, match="GRANT LOCK TABLES"), other.cursor() as cursor:
                locks._wait_for_mysql_writers(cursor, "shop_article", sleep=None)
    finally:
        execute("DROP USER raw_reader@localhost")
