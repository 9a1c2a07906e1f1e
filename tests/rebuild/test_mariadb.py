"""Rebuilds on MariaDB: which columns and tables are refused, and that a scan misses nothing."""

from __future__ import annotations

import random
import uuid

import pytest
from django.db import OperationalError, connections

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild import source as sources
from bloomguard.rebuild.source import Source
from bloomguard.state import table as states
from bloomguard.state.connection import StateConnection
from bloomguard.verdicts import Verdict
from tests.shop.models import Article, Order, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import EXACT

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
        "varchar(50) COLLATE utf8mb4_unicode_520_nopad_ci",
        "varchar(50) CHARACTER SET latin1",
        "char(50) COLLATE utf8mb4_nopad_bin",
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


@pytest.mark.parametrize("definition", ["varchar(50)", "longtext", "varchar(50) CHARACTER SET utf8mb3"])
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
    execute("ALTER TABLE shop_other ENGINE = Aria")
    execute("RENAME TABLE shop_price TO shop_kept, shop_other TO shop_price")
    try:
        with pytest.raises(RebuildError, match="'shop_price' is of the engine Aria"):
            build("price")
    finally:
        execute("DROP TABLE shop_price")
        execute("RENAME TABLE shop_kept TO shop_price")


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
