"""Scans: exactly the keys that the ORM's own iterator gives, on each database, whatever the page."""

from __future__ import annotations

import dataclasses
import datetime
import random
import sqlite3
import uuid
from contextlib import closing, contextmanager, nullcontext
from decimal import Decimal
from itertools import islice
from unittest import mock

import numpy as np
import pytest
from django.apps import apps
from django.db import DatabaseError, connections, models, transaction
from django.db.models import Q
from django.test.utils import isolate_apps

from bloomguard.exceptions import RebuildError
from bloomguard.guards import Guard, registry
from bloomguard.guards.keys import Unkeyable, head_of, unwrapped
from bloomguard.rebuild import Rebuild, pages
from bloomguard.rebuild import source as sources
from bloomguard.rebuild.pages import KeyPage
from bloomguard.rebuild.source import Source
from bloomguard.rebuild.sources import ScopedSource
from bloomguard.rebuild.verify import Verification
from bloomguard.signals import false_negative_found
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Bundle, Diary, Order, Place, Price, Product
from tests.support import database
from tests.support.guarding import make_guard, registered
from tests.support.mariadb import MYSQL

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("each_database"),
]


def keys_of(page: KeyPage, guard: Guard) -> list[bytes]:
    """A page's keys, one by one, from whatever form it has."""
    if isinstance(page.keys, np.ndarray):
        return [int(number).to_bytes(8, "little", signed=True) for number in page.keys]
    if isinstance(page.keys, (bytes, memoryview)):
        data = bytes(page.keys)
        return [data[at : at + 16] for at in range(0, len(data), 16)]
    return list(page.keys)


def scanned(guard: Guard) -> list[bytes]:
    return [key for page in Source(guard).pages() for key in keys_of(page, guard)]


def iterated(guard: Guard) -> list[bytes]:
    """The reference: the ORM's iterator and the guard's key maker, a row at a time."""
    found = []
    for row in guard._meta.rows().using(database.current).iterator():
        try:
            found.append(guard._meta.keys.key(unwrapped([getattr(row, name) for name in guard._meta.attnames])))
        except Unkeyable:
            continue
    return found


RNG = random.Random(5)
UUIDS = [uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1), uuid.UUID(int=1 << 64), uuid.UUID(int=(1 << 64) - 1)]
ROWS = {
    "none": ("product", list),
    "one": ("product", lambda: [Product(pk=1)]),
    "integers": ("product", lambda: [Product(pk=pk) for pk in range(1, 101)]),
    "integers with gaps": (
        "product",
        lambda: [
            Product(pk=pk)
            for pk in [*range(1, 30), 40, 90, *range(1_000, 1_040), *range(1_050, 1_080, 2), (1 << 63) - 1]
        ],
    ),
    "negative integers": (
        "product",
        lambda: [Product(pk=pk) for pk in [-(1 << 63), 1 << 62, 1, *RNG.sample(range(-10_000, 0), 90)]],
    ),
    "uuids": (
        "order",
        lambda: [Order(pk=pk) for pk in UUIDS + [uuid.UUID(int=RNG.getrandbits(128), version=4) for _ in range(96)]],
    ),
    "uuids that start alike": ("order", lambda: [Order(pk=uuid.UUID(int=7 << 64 | low)) for low in range(60)]),
    "text, alive or not": (
        "article",
        lambda: [Article(slug=f"ärtikel-{number}", deleted=number % 3 == 0) for number in range(100)],
    ),
    "several fields": (
        "place",
        lambda: [Place(country=code, slug=f"{code}-{number}") for code in ("de", "fr") for number in range(40)],
    ),
    "decimals": ("price", lambda: [Price(amount=Decimal(number) / 4) for number in range(-100, 101)]),
    "dates": ("diary", lambda: [Diary(day=datetime.date(1960, 1, 1) + datetime.timedelta(n)) for n in range(100)]),
}


@pytest.fixture
def numbered_anew(each_database):
    """After the test the numbers of new rows begin at 1 again: behind the greatest integer there is none."""
    yield
    begin = {"sqlite": "DELETE FROM sqlite_sequence", "mysql": "ALTER TABLE shop_product AUTO_INCREMENT = 1"}
    connection = connections[database.current]
    if connection.vendor in begin:
        Product.objects.all().delete()
        with connection.cursor() as cursor:
            cursor.execute(begin[connection.vendor])


@pytest.mark.usefixtures("numbered_anew")
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_a_scan_gives_what_the_iterator_gives(rows, monkeypatch):
    """Each living row's key comes exactly once: no row is lost between two pages, and no other key appears."""
    name, make = rows
    made = make()
    if made:
        type(made[0]).objects.bulk_create(made)
    guard = registry[name]
    expected = sorted(iterated(guard))

    for page_rows in (1, 7, 50, 100, 1_000):
        monkeypatch.setattr(sources, "PAGE_ROWS", page_rows)

        assert sorted(scanned(guard)) == expected, page_rows
        assert sum(page.rows for page in Source(guard).pages()) == guard._meta.rows().count(), page_rows


def test_pages_are_of_the_size_that_was_set(monkeypatch):
    """A page holds as many rows as it should, and the last one the rest."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 26))
    monkeypatch.setattr(sources, "PAGE_ROWS", 10)

    assert [page.rows for page in Source(registry["product"]).pages()] == [10, 10, 5]


class AliveProducts(Guard):
    name = "alive-products"
    alive = Q(name__startswith="a") | Q(name="100%")


class BundleGuard(Guard):
    name = "bundle"


class BundleOwner(Guard):
    name = "bundle-owner"
    lookup = "product_ptr"


class Names(Guard):
    name = "names"
    lookup = "name"


class NamesInCapitals(Guard):
    name = "names-in-capitals"
    lookup = "name"

    def normalize(self, value: str) -> str:
        return value.upper()


class NamesOfShards(Guard):
    name = "names-of-shards"
    lookup = "name"
    scope = "database"


@pytest.mark.parametrize(
    "guard",
    [AliveProducts(Product), BundleGuard(Bundle), BundleOwner(Bundle), Names(Product), NamesInCapitals(Product)],
    ids=str,
)
def test_a_scan_follows_the_guard(guard, monkeypatch):
    """A condition on the rows, a child's link to its parent, a column with equal values: as the iterator gives them."""
    # Django reads a negative primary key from MySQL as a positive one.
    for number in range(0 if MYSQL else -10, 30):
        Product.objects.create(pk=number * 10 + 5, name="ab"[number % 2])
        Bundle.objects.create(pk=number * 10 + 1, name="100%")
    monkeypatch.setattr(sources, "PAGE_ROWS", 7)

    assert sorted(scanned(guard)) == sorted(iterated(guard))
    assert scanned(guard)


def test_keys_of_text_in_a_scope_begin_with_it():
    """Text is its own key only where one table has all rows."""
    Product.objects.create(pk=1, name="ab")
    source = ScopedSource(NamesOfShards(Product), database.current)

    assert [key for page in source.pages() for key in page.keys] == [head_of(source.scope) + b"ab"]


def test_the_connection_of_a_shard_is_closed_when_the_shard_has_been_read(each_database):
    """The other shards may take hours, and a firewall would cut it meanwhile; but not in a transaction."""
    connection, source = connections[database.current], ScopedSource(NamesOfShards(Product), database.current)
    for in_transaction in (False, True):
        with transaction.atomic(using=database.current) if in_transaction else nullcontext(), source.entered():
            assert list(source.pages()) == []
            is_open = connection.connection is not None
        assert is_open
        assert (connection.connection is None) == (each_database != "sqlite" and not in_transaction)


def test_integers_and_uuids_are_gathered_by_the_database():
    """The fast scans are used where they fit: a page arrives as one buffer."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 26))
    Order.objects.bulk_create(Order() for _ in range(25))

    for name in ("product", "order"):
        (page,) = Source(registry[name]).pages()
        assert not isinstance(page.keys, list)


@pytest.mark.parametrize("odd", ["", "\x01", "a\x01b", "\x00", "a\x00b", "ä\U0001f600", " ", "line\nline"], ids=repr)
def test_a_text_may_have_any_character(odd, each_database, monkeypatch):
    """Also the one that is put between two texts: the rows from that page on are read one by one."""
    if each_database == "postgresql" and "\x00" in odd:
        pytest.skip("PostgreSQL takes none")
    monkeypatch.setattr(sources, "PAGE_ROWS", 4)
    Article.objects.bulk_create(Article(slug=slug) for slug in ["a", "b", "c", "d", "e", odd, "g", "h", "i", "j"])
    guard = registry["article"]

    assert sorted(scanned(guard)) == sorted(iterated(guard))
    assert sum(page.rows for page in Source(guard).pages()) == 10


class Tag(models.Model):
    text = models.CharField(max_length=50, unique=True)

    class Meta:
        app_label = "shop_own"
        db_table = "tag"


class TagGuard(Guard):
    lookup = "text"


@pytest.mark.parametrize("odd", ["c", "\x01", "a\x01b"], ids=repr)
def test_null_in_a_column_of_texts_loses_no_other_text(odd, each_database):
    """The column may allow NULL though its field does not; a NULL is no text that makes up for one too many."""
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE tag (id BIGINT PRIMARY KEY, text VARCHAR(50) UNIQUE)")
        cursor.execute("INSERT INTO tag VALUES (1, NULL), (2, 'd'), (3, %s), (4, 'e')", [odd])
    try:
        assert sorted(scanned(TagGuard(Tag))) == sorted([b"d", odd.encode(), b"e"])
    finally:
        with connections[database.current].cursor() as cursor:
            cursor.execute("DROP TABLE tag")


@pytest.mark.parametrize("odd", ["f", "a\x01b"], ids=repr)
def test_rows_with_one_primary_key_are_all_read(odd, each_database, monkeypatch):
    """As of a partitioned table, or one older than Django: what its model has as primary key is not unique there."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 2)
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE tag (id BIGINT NOT NULL, text VARCHAR(50) UNIQUE)")
        cursor.execute("INSERT INTO tag VALUES (1, 'a'), (2, 'b'), (2, 'c'), (2, 'd'), (3, 'e'), (4, %s)", [odd])
    try:
        assert set(scanned(TagGuard(Tag))) == {b"a", b"b", b"c", b"d", b"e", odd.encode()}
    finally:
        with connections[database.current].cursor() as cursor:
            cursor.execute("DROP TABLE tag")


def test_texts_are_gathered_to_the_end(each_database, monkeypatch):
    """What is read of the last row of each page is what the page has, so no page is read by rows."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 50)
    by_rows = mock.Mock()
    monkeypatch.setattr(Source, "_orm_pages", by_rows)
    Article.objects.bulk_create(Article(slug=f"ärger-{number}") for number in range(300))

    assert len(scanned(make_guard(Article, name="gathered", lookup="slug"))) == 300
    by_rows.assert_not_called()


@pytest.mark.parametrize("most_characters", [255, 10], ids=["gathered", "by rows"])
def test_the_last_row_of_a_page_may_go_before_those_of_its_primary_key_are_read(
    most_characters, each_database, monkeypatch
):
    """The other one is then the only one, and no page has it."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 2)
    monkeypatch.setattr(sources, "_MOST_CHARACTERS", most_characters)
    at_end, gone = Source._at_end, []

    def delete_first(self, pk, last):
        if pk == 2 and not gone:
            gone.append(last[0].encode())
            cursor.execute("DELETE FROM tag WHERE text = %s", last)
        return at_end(self, pk, last)

    monkeypatch.setattr(Source, "_at_end", delete_first)
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE tag (id BIGINT NOT NULL, text VARCHAR(50) UNIQUE)")
        cursor.execute("INSERT INTO tag VALUES (1, 'a'), (2, 'b'), (2, 'c'), (3, 'd')")
        try:
            assert {*scanned(TagGuard(Tag)), *gone} == {b"a", b"b", b"c", b"d"}
            assert gone
        finally:
            cursor.execute("DROP TABLE tag")


@pytest.mark.parametrize("most_characters", [255, 10], ids=["gathered", "by rows"])
def test_rows_without_a_primary_key_are_all_read(most_characters, each_database, monkeypatch):
    """As of a table that is older than its model: a page of rows with a greater key has none of them."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 2)
    monkeypatch.setattr(sources, "_MOST_CHARACTERS", most_characters)
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE tag (id BIGINT, text VARCHAR(50) UNIQUE)")
        cursor.execute("INSERT INTO tag VALUES (1, 'a'), (2, 'b'), (3, 'c'), (NULL, 'd'), (NULL, 'e'), (NULL, 'f')")
    try:
        pages = islice(Source(TagGuard(Tag)).pages(), 10)  # an end that is NULL would be read again for ever

        assert sorted(key for page in pages for key in page.keys) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    finally:
        with connections[database.current].cursor() as cursor:
            cursor.execute("DROP TABLE tag")


@pytest.mark.parametrize("most_characters", [255, 10], ids=["gathered", "by rows"])
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_table_whose_primary_key_has_other_values_is_read_once(most_characters, each_database, monkeypatch):
    """SQLite takes texts and bytes there, if nobody is looking, and none of them is a number to read on from.

    If rows were read twice, a rebuild would find more of them than there is room for.
    """
    monkeypatch.setattr(sources, "PAGE_ROWS", 2)
    monkeypatch.setattr(sources, "_MOST_CHARACTERS", most_characters)
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE tag (id BIGINT PRIMARY KEY, text VARCHAR(50) UNIQUE)")
        cursor.execute("INSERT INTO tag VALUES (1, 'a'), (1.5, 'b'), ('x', 'c'), ('y', 'd'), (x'00', 'e')")
    try:
        assert sorted(scanned(TagGuard(Tag))) == [b"a", b"b", b"c", b"d", b"e"]
    finally:
        with connections["default"].cursor() as cursor:
            cursor.execute("DROP TABLE tag")


class Small(models.Model):
    code = models.DecimalField(max_digits=8, decimal_places=2)
    name = models.CharField(max_length=50, unique=True)

    class Meta:
        app_label = "shop_own"
        db_table = "small"


class SmallGuard(Guard):
    lookup = "code"


class SmallByNameGuard(Guard):
    lookup = "name"


@pytest.mark.parametrize("column", ["BIGINT", "VARCHAR(20)"])
@pytest.mark.parametrize("guard", [SmallGuard, SmallByNameGuard])
def test_a_primary_key_may_be_of_another_type_than_its_field(guard, column, each_database, monkeypatch):
    """Larger numbers than the field takes, for which Django sends no query, and texts, which have another order."""
    if (each_database, column) == ("postgresql", "VARCHAR(20)"):
        pytest.skip("PostgreSQL compares no text with a number")
    monkeypatch.setattr(sources, "PAGE_ROWS", 3)
    monkeypatch.setattr(Small._meta.pk, "get_internal_type", lambda: "IntegerField")
    rows = [(pk, f"{number}.25", f"n{number}") for number, pk in enumerate([9, 10, 11, *range(2**31, 2**31 + 10)])]
    names = [name for *_, name in rows]
    with connections[database.current].cursor() as cursor:
        cursor.execute(f"CREATE TABLE small (id {column} PRIMARY KEY, code NUMERIC(8, 2), name VARCHAR(50) UNIQUE)")
        try:
            cursor.executemany("INSERT INTO small VALUES (%s, %s, %s)", rows)
            found = sorted(scanned(guard(Small)))
        finally:
            cursor.execute("DROP TABLE small")

    keys = guard(Small)._meta.keys
    assert found == sorted(keys.key(f"{number}.25" if guard is SmallGuard else names[number]) for number in range(13))


class Leaf(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=50)

    class Meta:
        app_label = "shop_own"
        db_table = "leaf"


class LeafGuard(Guard):
    lookup = "name"


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("page_rows", [1, 2, 5, 100])
def test_so_is_one_whose_primary_key_is_a_text(page_rows, each_database, monkeypatch):
    """Numbers come before all texts, and bytes after them."""
    monkeypatch.setattr(sources, "PAGE_ROWS", page_rows)
    keys = [*map(str, range(6)), b"x", b"y", None, None]
    with connections["default"].cursor() as cursor:
        for column, more in (("CHAR(32)", []), ("BLOB", [1, 2.5])):
            cursor.execute(f"CREATE TABLE leaf (id {column}, name VARCHAR(50))")
            try:
                names = [f"a{number}" for number in range(len(keys + more))]
                cursor.executemany("INSERT INTO leaf VALUES (%s, %s)", [*zip(keys + more, names)])

                assert sorted(scanned(LeafGuard(Leaf))) == sorted(map(str.encode, names)), column
            finally:
                cursor.execute("DROP TABLE leaf")


@pytest.mark.parametrize("model", [Tag, Leaf])
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_between_two_pages_others_can_write_to_sqlite(model, each_database, monkeypatch, tmp_path):
    """Without a write-ahead log no COMMIT succeeds while a statement reads, so a scan is not one long statement.

    UUIDs are in the order of what is stored: half of them in capitals, which no query finds, and some are none.
    """
    monkeypatch.setattr(sources, "PAGE_ROWS", 50)
    monkeypatch.setattr(sources, "_MOST_CHARACTERS", 10)
    path = str(tmp_path / "site.sqlite3")
    guard, name = (TagGuard(Tag), "text") if model is Tag else (LeafGuard(Leaf), "name")
    with database.second_alias("default", NAME=path, OPTIONS={}) as alias:
        with connections[alias].schema_editor() as editor:
            editor.create_model(model)
        model.objects.using(alias).bulk_create(model(**{name: f"a{number}"}) for number in range(500))
        if model is Leaf:
            with connections[alias].cursor() as cursor:
                cursor.execute("UPDATE leaf SET id = upper(id) WHERE rowid % 2")
                cursor.execute("UPDATE leaf SET id = 'short' || rowid WHERE rowid % 3 = 0")
        with closing(Source(guard, alias).pages()) as pages, closing(sqlite3.connect(path, timeout=0.1)) as other:
            found = list(next(pages).keys)
            other.execute("CREATE TABLE another (id INTEGER)")
            other.commit()
            found += [key for page in pages for key in page.keys]

    assert sorted(found) == sorted(f"a{number}".encode() for number in range(500))


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_a_text_of_an_enum_is_gathered(each_database):
    """PostgreSQL compares it as a text only if it is asked to."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute("CREATE TYPE colour AS ENUM ('red', 'blue')")
        cursor.execute("CREATE TABLE tag (id BIGINT PRIMARY KEY, text colour UNIQUE)")
        cursor.execute("INSERT INTO tag VALUES (1, 'red'), (2, NULL), (3, 'blue')")
    try:
        assert sorted(scanned(TagGuard(Tag))) == [b"blue", b"red"]
    finally:
        with connections["postgresql"].cursor() as cursor:
            cursor.execute("DROP TABLE tag")
            cursor.execute("DROP TYPE colour")


@contextmanager
def numbered(kind):
    """A guard that discards, of a table whose column is unique by its model alone, and values for its rows."""
    fields = {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "shop", "managed": False})}
    model = type("Numbered", (models.Model,), {"number": kind(unique=True), **fields})
    values = [uuid.UUID(int=number) if kind is models.UUIDField else number for number in (5, 7, 7, 7, 9)]
    number = model._meta.get_field("number").db_type(connections[database.current])
    with connections[database.current].cursor() as cursor:
        cursor.execute(f"CREATE TABLE shop_numbered (id BIGINT PRIMARY KEY, number {number})")
    try:
        with registered(model, lookup="number", filter="cuckoo") as guard:
            yield guard, [model(pk=pk, number=value) for pk, value in enumerate(values, 1)]
    finally:
        with connections[database.current].cursor() as cursor:
            cursor.execute("DROP TABLE shop_numbered")
        apps.all_models["shop"].pop("numbered", None)
        apps.clear_cache()


@pytest.mark.parametrize("kind", [models.IntegerField, models.UUIDField])
def test_rows_with_one_key_are_all_counted_by_a_filter_that_discards(kind, fresh, clock, monkeypatch, each_database):
    """Also if a page ends between them, as of a table whose column is unique by its model alone."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 2)
    with numbered(kind) as (guard, rows):
        guard.model.objects.bulk_create(rows)
        Rebuild(guard, sleep=clock.sleep).run()
        clock.now += 10
        for row in guard.model.objects.filter(number=rows[1].number)[:2]:
            row.delete()

        assert guard.verdict(rows[1].number) is Verdict.MAYBE


@pytest.mark.parametrize("kind", [models.IntegerField, models.UUIDField])
def test_rows_with_one_key_are_all_verified(kind, fresh, clock, monkeypatch, each_database):
    """Also if they are missing: each is told by its value."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 2)
    found = []
    with numbered(kind) as (guard, rows):
        Rebuild(guard, sleep=clock.sleep).run()
        with closing(database.unseen(connections[database.current])) as cursor:
            for row in rows:
                stored = repr(row.number.hex) if kind is models.UUIDField else row.number
                cursor.execute(f"INSERT INTO shop_numbered (id, number) VALUES ({row.pk}, {stored})")

        def note(sender, value, **more):
            found.append(value)

        false_negative_found.connect(note, sender=type(guard))
        findings = Verification(guard).run()

        assert findings.missing == findings.rows == len(found) >= len(rows)
        assert set(found) == {row.number for row in rows}


def test_texts_are_not_read_through_the_orm(monkeypatch):
    """Short texts of rows with an integer as primary key are read as fast as the database sends them."""
    Article.objects.bulk_create(Article(slug=f"slug-{number}") for number in range(25))
    monkeypatch.delattr(Source, "_orm_pages")

    assert len(scanned(registry["article"])) == 25


def test_long_texts_are_read_through_the_orm(monkeypatch):
    """A page of texts without a limit may take any amount of memory."""
    monkeypatch.setattr(sources, "_MOST_CHARACTERS", 199)
    Article.objects.bulk_create(Article(slug=f"slug-{number}") for number in range(25))

    assert Source(registry["article"])._scan() is None
    assert sorted(scanned(registry["article"])) == sorted(iterated(registry["article"]))


class Shouted(models.BigIntegerField):
    """A field of somebody's own, which keeps something else than it gives."""

    def from_db_value(self, value, expression, connection):
        return -value

    def get_prep_value(self, value):
        return -int(value)


class Own(models.Model):
    number = Shouted(unique=True)

    class Meta:
        app_label = "shop_own"


class Optional(models.Model):
    number = models.BigIntegerField(null=True, unique=True)

    class Meta:
        app_label = "shop_own"


class Loose(models.Model):
    id = models.BigIntegerField(primary_key=True)

    class Meta:
        app_label = "shop_own"
        db_table = "loose"


class NumberGuard(Guard):
    lookup = "number"


class LooseGuard(Guard):
    pass


class PlaceGuard(Guard):
    lookup = ("country", "slug")


@pytest.fixture
def own_models(each_database):
    """Tables of the models above, for one test."""
    connection = connections[database.current]
    with connection.schema_editor() as editor:
        editor.create_model(Own)
        editor.create_model(Optional)
    yield
    with connection.schema_editor() as editor:
        editor.delete_model(Own)
        editor.delete_model(Optional)


def test_a_field_of_somebodys_own_is_read_by_itself(own_models):
    """A field that converts what its column holds is read through the ORM."""
    Own.objects.bulk_create(Own(number=number) for number in range(20))
    guard = NumberGuard(Own)

    assert sorted(scanned(guard)) == sorted(guard._meta.keys.key(number) for number in range(20))


def test_a_column_of_null_has_no_keys(own_models):
    """NULL is nobody's key: such rows are counted and left out, and a range is not made of them."""
    guard = NumberGuard(Optional)
    Optional.objects.bulk_create(Optional(number=None) for _ in range(5))
    nothing = Source(guard).summary()
    Optional.objects.create(number=7)

    assert (nothing.count, nothing.low, nothing.high) == (5, None, None)
    assert scanned(guard) == [guard._meta.keys.key(7)]
    assert Source(guard).summary().high == 7


@pytest.mark.parametrize(
    ("name", "model", "values", "summary"),
    [
        ("product", Product, [5, -3, 9], (3, -3, 9)),
        ("product", Product, [], (0, None, None)),
        ("diary", Diary, [datetime.date(1, 1, 2), datetime.date(1, 1, 5)], (2, 2, 5)),
        ("price", Price, [Decimal(1)], (1, None, None)),
    ],
)
def test_a_summary_tells_what_to_choose_a_filter_by(name, model, values, summary):
    """How many keys there are, and between which numbers, in the numbers that a filter sees."""
    field = registry[name]._meta.fields[0].name
    model.objects.bulk_create(model(**{field: value}) for value in values)

    found = Source(registry[name]).summary()

    assert (found.count, found.low, found.high) == summary


@pytest.fixture
def new_table(each_database):
    """PostgreSQL counts the pages of a table; a DELETE, which empties it after each test, leaves them there.

    Only the test analyses it: an ANALYZE of autovacuum's in the middle of an INSERT counts its pages, but not its rows.
    """
    if each_database != "postgresql":
        yield
        return
    with connections[database.current].cursor() as cursor:
        cursor.execute("ALTER TABLE shop_product SET (autovacuum_enabled = false)")
        cursor.execute("TRUNCATE shop_product CASCADE")
        yield
        cursor.execute("ALTER TABLE shop_product RESET (autovacuum_enabled)")


@pytest.mark.usefixtures("new_table")
def test_a_large_table_is_estimated_from_its_pages(monkeypatch, each_database):
    """PostgreSQL's statistics of a table that has grown since are scaled by its size, as the planner does."""
    monkeypatch.setattr(sources, "_COUNT_BELOW", 500)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    if each_database == "postgresql":
        with connections[database.current].cursor() as cursor:
            cursor.execute("ANALYZE shop_product")
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1_001, 10_001))

    assert 9_000 <= Source(registry["product"])._count() <= 11_000


@pytest.mark.usefixtures("new_table")
@pytest.mark.parametrize(
    ("ids", "count"),
    [
        (range(-3_100, -100), 3_000),  # no gap
        ([*range(1, 3_000, 2)], 1_500),  # every other one
        ([*range(1, 1_500), 3_000], 1_500),  # a hole at the end
        ([1, 3_000], 2),
    ],
)
def test_a_dense_range_need_not_be_counted(ids, count, monkeypatch):
    """Where stretches all over a large table have nearly every id, the range bounds the rows; else they are counted.
    Never are there said to be fewer than there are."""
    monkeypatch.setattr(sources, "_COUNT_BELOW", 2_000)
    monkeypatch.setattr(sources, "_STRETCH", 50)
    Product.objects.bulk_create(Product(pk=pk) for pk in ids)

    assert Source(registry["product"]).summary().count == count


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
@isolate_apps("tests.shop")
def test_a_copied_table_without_its_primary_key(each_database, fresh, clock):
    """`CREATE TABLE ... AS SELECT` drops the constraint, so rows may have NULL there; they are found all the same."""

    class Copied(models.Model):
        slug = models.CharField(max_length=20)

        class Meta:
            app_label = "shop"

    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE shop_copied AS SELECT 1 AS id, 'one' AS slug UNION SELECT NULL, 'none'")
    with registered(Copied, name="copied", lookup="slug") as guard:
        Rebuild(guard, sleep=clock.sleep).run()

        assert [guard.verdict(slug) for slug in ("one", "none")] == [Verdict.MAYBE, Verdict.MAYBE]
    with connections[database.current].cursor() as cursor:
        cursor.execute("DROP TABLE shop_copied")


def test_a_condition_is_always_counted(monkeypatch):
    """Where only some rows are alive, the range says nothing."""
    monkeypatch.setattr(sources, "_COUNT_BELOW", 10)
    Product.objects.bulk_create(Product(pk=pk, name="ab"[pk % 2]) for pk in range(1, 2_001))

    assert Source(AliveProducts(Product)).summary().count == 1_000


def test_a_table_that_was_never_analyzed_is_counted():
    """Without statistics, and where a condition picks the rows, they are counted."""
    Article.objects.bulk_create(Article(slug=str(number), deleted=number < 3) for number in range(10))

    assert Source(registry["article"]).summary().count == 7
    assert Source(registry["product"]).summary().count == 0


@pytest.mark.filterwarnings("ignore:string or file could not be read")  # what older versions of numpy say
@pytest.mark.parametrize("value", ["abc", "1.5", "7th"])
def test_a_column_with_other_values_stops_the_scan(value, each_database):
    """SQLite takes text in an integer column, if nobody is looking: the scan says so rather than lose a row."""
    if each_database != "sqlite":
        pytest.skip("the others take none")
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE loose (id BIGINT UNIQUE NOT NULL)")
        cursor.execute("INSERT INTO loose VALUES (1), (%s), (3)", [value])
    try:
        with pytest.raises(RebuildError, match="the column has other values too"):
            scanned(LooseGuard(Loose))
    finally:
        with connections["default"].cursor() as cursor:
            cursor.execute("DROP TABLE loose")


def test_null_in_a_column_of_numbers_stops_the_scan(each_database):
    """The column may allow NULL though its field does not: every database says so in the same way."""
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE loose (id BIGINT UNIQUE)")
        cursor.execute("INSERT INTO loose VALUES (1), (NULL), (3)")
    try:
        with pytest.raises(RebuildError, match="the column has other values too"):
            scanned(LooseGuard(Loose))
    finally:
        with connections[database.current].cursor() as cursor:
            cursor.execute("DROP TABLE loose")


def test_bytes_in_a_column_of_text_have_the_key_that_a_request_has(each_database):
    """SQLite takes bytes in a column of text, if nobody is looking: such a row has its key, and so have all others."""
    if each_database == "postgresql":
        pytest.skip("PostgreSQL takes none")
    Article.objects.bulk_create(Article(slug=f"slug-{number}") for number in range(3))
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE shop_article SET slug = %s WHERE slug = 'slug-1'", [b"bytes"])

    assert sorted(scanned(registry["article"])) == sorted(iterated(registry["article"]))


def test_what_the_database_refuses_is_djangos_error(monkeypatch):
    """A scan that fails raises what every caller of Django catches."""
    guard = registry["product"]
    Product.objects.create(pk=1)
    broken = dataclasses.replace(Source(guard)._scan(), gather="no_such_function(bloomguard_key)")
    monkeypatch.setattr(Source, "_scan", lambda self: broken)

    with pytest.raises(DatabaseError, match="no_such_function"):
        scanned(guard)


def test_uuids_of_another_length_stop_the_scan(each_database):
    """The same for UUIDs."""
    for hexadecimal in ("123", "1234"):
        with pytest.raises(RebuildError, match="other values"):
            pages.SCANS["sqlite", "uuid"].unpack(hexadecimal, 1)


def test_uuids_of_other_lengths_that_add_up_stop_the_scan_too():
    """Or the keys of all rows between them would be those of other bytes."""
    gathered = " ".join(["1" * 30, UUIDS[2].hex, "3" * 34])

    with pytest.raises(RebuildError, match="other values"):
        pages.SCANS["sqlite", "uuid"].unpack(gathered, 3)


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_uuid_in_another_form_may_end_a_page_of_sqlite(each_database, monkeypatch):
    """SQLite orders capitals before all others, and a next page by Django's form of it would leave these out."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 2)
    known = [uuid.UUID(digits + 30 * "0") for digits in ("f0", "f1", "a0", "a1", "f2")]
    stored = [known[0].hex.upper(), known[1].hex.upper(), known[2].hex, known[3].hex, str(known[4])]
    with connections["default"].cursor() as cursor:
        cursor.executemany("INSERT INTO shop_order (id) VALUES (%s)", [[each] for each in stored])

    assert sorted(scanned(registry["order"])) == sorted(each.bytes for each in known)


def test_psycopg_2_is_read_too(monkeypatch, each_database):
    """Without psycopg 3's binary cursor, pages come through Django's."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 26))
    Order.objects.bulk_create(Order() for _ in range(20))
    Article.objects.bulk_create(Article(slug=f"slug-{number}") for number in range(20))
    monkeypatch.setattr(sources, "binary_cursor", lambda *query: None)

    for name in ("product", "order", "article"):
        assert sorted(scanned(registry[name])) == sorted(iterated(registry[name]))
