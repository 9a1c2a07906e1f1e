"""A block of `adding` adds the keys of its statements' rows, and the guard stays in use."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import wraps
from pathlib import Path
from unittest import mock
from uuid import UUID

import pytest
from django.db import connections, models
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from gazetteer.models import City

from bloomguard.guards import registry
from bloomguard.guards.doubts import unadded
from bloomguard.rebuild import Rebuild
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes.adding import _check_class, adding
from tests.shop.models import Article, Product, Short
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


def test_a_field_of_the_projects_own_takes_what_it_converts():
    """Also if its ``to_python`` has the name of Django's: ``functools.wraps`` copies that of the module."""

    class Level(models.IntegerField):
        @wraps(models.IntegerField.to_python)
        def to_python(self, value):
            return len(value)

    _check_class(Level(), "integer", {"a", "b"})
    with pytest.raises(ValueError, match="not a value"):
        _check_class(models.IntegerField(), "integer", {"a", "b"})


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


ROWS = {
    "tuples": lambda slugs: [(slug,) for slug in slugs],
    "lists": lambda slugs: [[slug] for slug in slugs],
    "a mapping": lambda slugs: [{"slug": slug} for slug in slugs],
    "a cursor's": lambda slugs: fetched(f"SELECT slug FROM shop_article WHERE slug IN ({str(slugs)[1:-1]})"),
    "the only row": lambda slugs: [
        fetched(f"SELECT slug FROM shop_article WHERE slug = '{slug}'")[0] for slug in slugs
    ],
    "texts": lambda slugs: slugs,
}


def fetched(sql):
    with connections[database.current].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_rows_of_a_cursor_are_added_by_their_value(built, rows):
    """A cursor gives a row of one column as a tuple, whose str() is a valid text, but no value of the column."""
    guard = registry["article"]
    with adding(guard, using=database.current) as add:
        execute("INSERT INTO shop_article (id, slug, deleted) VALUES (7, 'new', false), (8, 'newer', false)")
        add(rows(["new", "newer"]))

    assert status("article") == ARMED
    assert [guard.verdict(slug) for slug in ("new", "newer", "else")] == [Verdict.MAYBE] * 2 + [Verdict.ABSENT]


#: Products first: the INSERT is theirs, so a block of another guard fences them.
WRONG = {
    "a fraction": ("product", [7.5]),
    "a fraction of a decimal": ("product", [Decimal("7.5")]),
    "bytes of a number": ("product", [b"7"]),
    "no number": ("product", [float("nan")]),
    "a tuple of two": ("article", [("new", False)]),
    "a tuple in a tuple": ("article", [(("new",),)]),
    "bytes": ("article", [b"new"]),
    "a number": ("article", [7]),
    "a UUID": ("article", [UUID(int=7)]),
    "a text instead of its list": ("article", "new"),
    "a mapping instead of its list": ("article", {"slug": "new"}),
    "another column's mapping": ("article", [{"name": "new"}]),
    "two letters for two fields": ("place", ["de"]),
    "one field of two": ("place", [("de",)]),
    "three fields for two": ("place", [("de", "x", "y")]),
}


def test_what_may_be_another_value_in_the_database_is_refused(all_built):
    """By its type, which the error names; the value itself is not in it."""

    def work(name, values):
        with adding(registry[name], using=database.current) as add:
            execute(INSERT, [7, "x"])
            add(values)

    for what, (name, values) in WRONG.items():
        said = ""
        try:
            work(name, values)
        except ValueError as error:
            said = str(error)

        assert re.search(r"adding\(\) |is not a value of", said), what
        assert "new" not in said, what
        assert not Product.objects.filter(pk=7).exists(), what
        assert status(name) == ARMED, what


@pytest.mark.parametrize("value", ["7", 7.0, Decimal(7), True + 6])
def test_numbers_of_any_class_are_added(product, value):
    """As a file or an aggregate gives them."""
    with adding(product, using=database.current) as add:
        execute(INSERT, [7, "x"])
        add([value])

    assert [product.verdict(pk) for pk in (7, 8)] == [Verdict.MAYBE, Verdict.ABSENT]
    assert status("product") == ARMED


def test_rows_without_a_key_are_skipped(built, clock):
    """A NULL, and a text without a normal form: the ORM's rows of that kind are not added either."""

    def normalize(self, value):
        if value.startswith("-"):
            raise ValueError
        return value

    with registered(Article, name="normalized", lookup="slug", normalize=normalize) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with adding(guard, using=database.current) as add, adding(registry["article"], database.current) as also:
            execute("INSERT INTO shop_article (id, slug, deleted) VALUES (7, '-new', false), (8, 'new', false)")
            add(["-new", None, (None,), "new"])
            also(["-new", "new"])

        assert (status("normalized"), status("article")) == (ARMED, ARMED)
        verdicts = [guard.verdict(slug) for slug in ("-new", "new", "else")]
        assert verdicts == [Verdict.UNKNOWN, Verdict.MAYBE, Verdict.ABSENT]


def test_a_null_in_one_of_several_fields_is_skipped(all_built):
    """No request can ask for such a row."""
    with adding(registry["place"], using=database.current) as add:
        execute("INSERT INTO shop_place (country, slug) VALUES ('de', 'x')")
        add([("de", None), ("de", "x")])

    assert status("place") == ARMED
    assert registry["place"].verdict(("de", "x")) is Verdict.MAYBE


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


def test_a_block_that_is_interrupted_at_its_beginning_is_not_open(product, monkeypatch):
    """What this thread sends later fences, as outside of a block."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(unadded, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            adding(product, using=database.current).__enter__()
    execute(INSERT, [7, "x"])

    assert status("product") == FENCED
