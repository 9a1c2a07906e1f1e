"""A block of `adding` adds the keys of its statements' rows, and the guard stays in use."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
from django.db import connections
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from gazetteer.models import City

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state.row import ARMED, FENCED
from bloomguard.verdicts import Verdict
from bloomguard.writes.adding import adding
from tests.shop.models import Product, Short
from tests.support import database
from tests.support.guarding import registered

from .sending import INSERT, execute, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


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


@pytest.mark.parametrize(("lookup", "given"), [("slug", "abcde "), (("id", "slug"), (1, "abcde "))], ids=str)
def test_a_text_that_its_column_may_have_cut_fences(built, clock, lookup, given):
    """PostgreSQL and MariaDB store another text than the statement was given; SQLite stores all of it."""
    with registered(Short, name="short", lookup=lookup) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with adding(guard, using=database.current) as add:
            execute("INSERT INTO shop_short (id, slug) VALUES (1, 'abcde ')")
            add([given])

        stored = Short.objects.values_list(*guard._meta.attnames, flat=lookup == "slug").get()
        assert guard.verdict(stored) is not Verdict.ABSENT
        assert status("short") == (ARMED if connections[database.current].vendor == "sqlite" else FENCED)


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


@pytest.mark.skipif(not is_psycopg3, reason="psycopg 3's COPY")
@pytest.mark.django_db(transaction=True)
def test_the_pages_block_does_what_it_says(build):
    """Their keys are added, and their guards stay in use."""
    place = {"country": "DE", "timezone": "Europe/Berlin", "population": 1, "latitude": 0, "longitude": 0}
    City.objects.create(pk=1, name="Munich", slug="MUNICH", **place)
    build("city-by-slug")
    page = (Path(__file__).parents[3] / "docs" / "raw-sql.md").read_text()
    namespace = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, namespace)

    namespace["rename_cities"]()

    assert status("city-by-slug") == ARMED
    assert registry["city-by-slug"].verdict(("DE", "munich")) is Verdict.MAYBE
