"""SQLite's schema editor makes a table anew: its copy keeps the keys, unless the columns store or compare otherwise."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
from django.db import connections, transaction
from django.db.models import CharField, IntegerField

from bloomguard.state.row import ARMED, FENCED
from tests.shop.models import Article, Product
from tests.support import database

from .sending import execute, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def changed(attributes):
    """The field of the slugs, with these attributes, or another one in its place."""
    old = Article._meta.get_field("slug")
    if not isinstance(attributes, dict):
        attributes.set_attributes_from_name(old.name)
        attributes.model = Article
        return attributes
    found = copy.copy(old)
    vars(found).update(attributes)
    return found


@contextmanager
def altered(old, new):
    """In this block the table has the field ``new`` in place of ``old``, as after a migration."""
    connection = connections[database.current]
    with connection.schema_editor() as editor:
        editor.alter_field(Article, old, new)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.alter_field(Article, new, old)


CHANGES = {
    "a longer text": ({"max_length": 250}, ARMED),
    "an index": ({"db_index": False}, ARMED),
    "a NULL": ({"null": True}, ARMED),
    "a collation": ({"db_collation": "NOCASE"}, FENCED),
    "the collation that it has anyway, which is not looked into": ({"db_collation": "BINARY"}, FENCED),
    "another class of texts": (CharField(max_length=200, unique=True), ARMED),
    "numbers": (IntegerField(unique=True), FENCED),
}


@on_sqlite
@pytest.mark.parametrize(("attributes", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_column_that_changes_how_it_stores_or_compares_fences(built, attributes, expected):
    old = Article._meta.get_field("slug")
    new = changed(attributes)
    Article.objects.update(slug="7")
    assert status("article") == ARMED
    with altered(old, new):
        assert status("article") == expected


@on_sqlite
def test_a_column_of_alive_counts_too(built):
    """Text that becomes a number, or the other way round, may be equal to what `alive` compares it with."""
    old = Article._meta.get_field("deleted")
    new = CharField(max_length=5, default="0")
    new.set_attributes_from_name("deleted")
    new.model = Article
    with altered(old, new):
        assert status("article") == FENCED


#: A table with the name that the schema editor would give it.
COPY = 'CREATE TABLE "new__shop_product" ("id" integer PRIMARY KEY AUTOINCREMENT, "name" varchar(100) NOT NULL)'


@on_sqlite
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_table_that_was_there_before_may_have_other_rows(each_database, build, by_hand):
    """As an interrupted migration leaves one, or another program; and a filter was built since it was filled."""
    connection = connections[database.current]
    execute(COPY)
    try:
        execute("INSERT INTO new__shop_product (id, name) VALUES (77, 'x')")
        build("product")
        connection.disable_constraint_checking()
        with transaction.atomic(using=database.current):
            if by_hand:
                execute(COPY.replace("TABLE", "TABLE IF NOT EXISTS"))
            execute('DROP TABLE "shop_product"')
            execute('ALTER TABLE "new__shop_product" RENAME TO "shop_product"')

        assert Product.objects.filter(pk=77).exists()
        assert status("product") == FENCED
    finally:
        connection.enable_constraint_checking()
        execute("DROP TABLE IF EXISTS new__shop_product")


@on_sqlite
@pytest.mark.parametrize(("atomic", "expected"), [(True, ARMED), (False, FENCED)])
def test_a_table_that_is_made_anew_in_several_transactions_fences(built, atomic, expected):
    """Meanwhile a row may be deleted from the former table that the new one has."""
    connection = connections[database.current]
    old = Article._meta.get_field("slug")
    new = changed({"max_length": 250})
    connection.disable_constraint_checking()
    try:
        for one, other in ((old, new), (new, old)):
            with connection.schema_editor(atomic=atomic) as editor:
                editor.alter_field(Article, one, other)

            assert status("article") == expected
    finally:
        connection.enable_constraint_checking()
