"""Statements whose keys are not where one would look for them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from contextlib import ExitStack, closing, suppress

import pytest
from asgiref.sync import sync_to_async
from django.core import serializers
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, OperationalError, connection, connections, migrations, models, transaction
from django.db.models import Case, F, Q, Value, When, sql
from django.db.models.functions import Concat, Lower
from django.db.models.sql.constants import ROW_COUNT
from django.test.utils import isolate_apps

from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.connection import StateConnection
from bloomguard.state.row import ARMED, FENCED, State
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Bargain, Bundle, Exhibit, Price, Product, Shelved, Tag, Ticket
from tests.support import database
from tests.support.database import without_mariadb
from tests.support.guarding import registered
from tests.support.mariadb import MYSQL
from tests.support.orm_writes import by_hand, without_autocommit

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def built(each_database, build, clock):
    """Builds guards, those of one test too; ``built(guard)`` or ``built("article")``."""

    def run(*guards):
        for guard in guards:
            guard = registry[guard] if isinstance(guard, str) else guard
            Rebuild(guard, sleep=clock.sleep).run()

    return run


def verdicts(guard, *values):
    guard = registry[guard] if isinstance(guard, str) else guard
    return [guard.verdict(value) for value in values]


def status(name):
    return state.table.current(name).status


@pytest.fixture
def no_returning(each_database, monkeypatch):
    """Call it, and the database has no RETURNING any more."""

    def forbid():
        features = connections[database.current].features
        monkeypatch.setattr(features, "can_return_columns_from_insert", False, raising=False)
        monkeypatch.setattr(type(features), "can_return_rows_from_bulk_insert", False)

    return forbid


@pytest.fixture
def upserts():
    """An upsert tells which rows it has changed."""
    if MYSQL and database.current == "mariadb":
        pytest.skip("MySQL has no RETURNING: an upsert of these columns fences")


@pytest.fixture
def with_returning():
    """An UPDATE tells which rows it has changed."""
    if database.current == "mariadb":
        pytest.skip("MariaDB has no UPDATE RETURNING: an UPDATE of a primary key fences")


# -- INSERT ... ON CONFLICT DO UPDATE


def test_an_upsert_that_revives_a_row_adds_the_row_that_there_is(built, upserts):
    """`update_conflicts` may change a row that has another key than the instance."""
    Article.objects.create(pk=5, slug="dead", deleted=True)
    built("article")

    Article.objects.bulk_create(
        [Article(pk=5, slug="unused", deleted=False)],
        update_conflicts=True,
        unique_fields=database.conflicting("id"),
        update_fields=["deleted"],
    )

    assert verdicts("article", "dead") == [Verdict.MAYBE]


def test_an_upsert_keeps_the_primary_key_of_the_row_that_there_is(built, upserts):
    """A row that is changed has its own primary key, and the instance's is nobody's."""
    with registered(Article, name="article-by-pk", alive=Q(deleted=False)) as guard:
        Article.objects.create(pk=5, slug="dead", deleted=True)
        built(guard)

        Article.objects.bulk_create(
            [Article(pk=6, slug="dead", deleted=False)],
            update_conflicts=True,
            unique_fields=database.conflicting("slug"),
            update_fields=["deleted"],
        )

        assert verdicts(guard, 5, 6) == [Verdict.MAYBE, Verdict.ABSENT]


def test_an_upsert_fences_where_the_database_does_not_tell(built, no_returning):
    """Without RETURNING nobody knows which rows an upsert changed."""
    built("article")
    no_returning()

    Article.objects.bulk_create(
        [Article(slug="some")],
        update_conflicts=True,
        unique_fields=database.conflicting("slug"),
        update_fields=["deleted"],
    )

    assert status("article") == FENCED


# -- without RETURNING


def test_an_update_of_the_primary_key_fences_where_the_database_does_not_tell(built, no_returning):
    """Without RETURNING the rows are looked up by the primary key that they had, so one that is changed is lost."""
    Product.objects.create(pk=1)
    built("product")
    no_returning()

    Product.objects.filter(pk=1).update(id=2)

    assert status("product") == FENCED


def test_ignored_conflicts_without_returning_ask_for_nothing(built, no_returning):
    """The last ID that was given out is not that of a row that was left out: keys are the instances', or none.

    On MySQL, which may cut a value instead of leaving the row out, the rows with higher primary keys are read back.
    """
    Article.objects.create(slug="old")
    built("article", "product")
    no_returning()

    Article.objects.bulk_create([Article(slug="old"), Article(slug="new")], ignore_conflicts=True)
    assert verdicts("article", "old", "new", "other") == [Verdict.MAYBE, Verdict.MAYBE, Verdict.ABSENT]

    Product.objects.bulk_create([Product(name="new")], ignore_conflicts=True)
    if database.current == "mariadb":
        assert verdicts("product", Product.objects.get(name="new").pk, 77) == [Verdict.MAYBE, Verdict.ABSENT]
    else:
        assert status("product") == FENCED


def test_a_row_is_read_back_by_its_primary_key_if_its_column_cannot_be_returned(built):
    """On SQLite, Django 5 converts no decimal of a row that may have been left out."""
    Price.objects.create(amount="6.50")
    built("price")

    Price.objects.bulk_create([Price(amount=Value("7.50"))], ignore_conflicts=True)
    Price.objects.bulk_create([Price(amount=Value("6.50"))], ignore_conflicts=True)

    assert status("price") == ARMED
    assert verdicts("price", "6.50", "7.50", "8.50") == [Verdict.MAYBE, Verdict.MAYBE, Verdict.ABSENT]


class _Selected(models.CharField):
    def get_col(self, *args, **kwargs):
        return super().get_col(*args, **kwargs)


@without_mariadb
def test_a_row_that_was_left_out_fences_nothing(each_database, fresh, clock):
    """The others are read back by the primary keys that their instances have made."""
    with isolate_apps("tests.shop"):

        class Code(models.Model):
            id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            slug = _Selected(max_length=50, unique=True)

            class Meta:
                app_label, db_table = "shop", "raw_code"

    with connections[database.current].schema_editor() as editor:
        editor.create_model(Code)
    try:
        Code.objects.create(slug="old")
        with registered(Code, name="code", lookup="slug") as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            Code.objects.bulk_create([Code(slug="old"), Code(slug="new")], ignore_conflicts=True)

            assert guard.filter_existing(["old", "new", "other"]) == ["old", "new"]
            assert status("code") == ARMED
    finally:
        with connections[database.current].schema_editor() as editor:
            editor.delete_model(Code)


def test_a_key_from_the_database_is_read_back_without_returning(built, no_returning):
    """A value that only the database knows is read by the primary key that the instance has."""
    with registered(Tag, name="tag", lookup="shout") as guard:
        built(guard)
        no_returning()

        Tag.objects.bulk_create([Tag(pk=3, shout="quiet")])

        assert verdicts(guard, "QUIET", "quiet") == [Verdict.MAYBE, Verdict.ABSENT]


# -- keys that the instance does not hold


def test_what_a_field_stores_on_its_own_account_is_what_is_added(built):
    """A field's own `pre_save` may store another value than the instance shows."""
    with registered(Tag, name="tag", lookup="shout") as guard:
        built(guard)

        tag = Tag.objects.create(shout="one")
        Tag.objects.bulk_create([Tag(shout="two"), Tag(shout="three")])
        Tag.objects.bulk_create([Tag(shout="four")], ignore_conflicts=True)
        tag.shout = "five"
        tag.save()

        assert verdicts(guard, "ONE", "TWO", "THREE", "FOUR", "FIVE") == [Verdict.MAYBE] * 5
        assert verdicts(guard, "one", "six") == [Verdict.ABSENT] * 2


def test_a_default_of_the_database_is_added(built):
    """A key that the database fills in is what it returns."""
    with registered(Tag, name="tag", lookup="made") as guard:
        built(guard)

        Tag.objects.create()
        Tag.objects.bulk_create([Tag(made="given"), Tag()])

        assert verdicts(guard, "made-by-default", "given", "other") == [Verdict.MAYBE, Verdict.MAYBE, Verdict.ABSENT]


def test_a_generated_column_brings_rows_to_life(built):
    """An UPDATE of a column that a generated one is made of may change who is alive."""
    with registered(Tag, name="tag", lookup="shout", alive=Q(lower="shown")) as guard:
        Tag.objects.create(shout="a", title="hidden")
        built(guard)
        assert verdicts(guard, "A") == [Verdict.ABSENT]

        Tag.objects.update(title="SHOWN")

        assert verdicts(guard, "A") == [Verdict.MAYBE]


def test_a_decimal_is_added_as_it_is_stored(built):
    """The column rounds what the instance holds."""
    built("price")

    Price.objects.create(amount="2.005")
    Price.objects.bulk_create([Price(amount=1.1), Price(amount=3.14159)])

    stored = Price.objects.values_list("amount", flat=True)
    assert verdicts("price", *stored) == [Verdict.MAYBE] * 3
    assert status("price") == ARMED


def test_an_attribute_that_was_not_loaded_hides_nothing(built):
    """A row that comes to life by a save of other columns is known by the key that is stored."""
    Article.objects.create(slug="stored", deleted=True)
    built("article")

    article = Article.objects.defer("slug").get()
    article.deleted = False
    article.save(update_fields=["deleted"])

    assert verdicts("article", "stored") == [Verdict.MAYBE]


def test_a_bulk_update_by_expressions(built):
    """Each row's value is the database's."""
    one, two = Article.objects.create(slug="one"), Article.objects.create(slug="two")
    built("article")

    one.slug, two.slug = Concat(F("slug"), Value("-a")), Lower(Value("TWO-B"))
    Article.objects.bulk_update([one, two], ["slug"])
    Article.objects.update(
        slug=Case(When(slug="one-a", then=Value("one-c")), default=F("slug"), output_field=models.SlugField())
    )

    assert verdicts("article", "one-a", "two-b", "one-c", "two-c") == [Verdict.MAYBE] * 3 + [Verdict.ABSENT]


def test_a_primary_key_may_be_an_expression(built, with_returning):
    """F() on the key itself."""
    Product.objects.create(pk=10)
    built("product")

    Product.objects.update(id=F("id") + 5)

    assert verdicts("product", 15, 16) == [Verdict.MAYBE, Verdict.ABSENT]


# -- composite primary keys


def test_a_composite_primary_key(built, with_returning):
    """Its columns are taken one by one."""
    with registered(Ticket, name="ticket") as guard:
        built(guard)

        Ticket.objects.create(event=1, number=2)
        Ticket.objects.bulk_create([Ticket(event=1, number=3), Ticket(event=2, number=3)])
        Ticket.objects.bulk_create([Ticket(event=4, number=4)], ignore_conflicts=True)
        Ticket.objects.filter(event=4).update(event=5)
        ticket = Ticket.objects.get(event=1, number=2)
        ticket.note = "x"
        ticket.save()

        known = [(1, 2), (1, 3), (2, 3), (4, 4), (5, 4)]
        assert verdicts(guard, *known, (2, 2)) == [Verdict.MAYBE] * 5 + [Verdict.ABSENT]
        assert status("ticket") == ARMED


@pytest.mark.parametrize("each_database", ["mariadb"], indirect=True)
def test_a_composite_primary_key_without_returning(built):
    """Rows are looked up by both columns."""
    with registered(Ticket, name="ticket", lookup="note") as guard:
        Ticket.objects.create(event=1, number=2, note="a")
        built(guard)

        Ticket.objects.update(note="b")

        assert verdicts(guard, "b", "c") == [Verdict.MAYBE, Verdict.ABSENT]


# -- multi-table inheritance


def test_a_second_parent_is_found_by_its_own_link(built):
    """The second parent's rows have other primary keys than the child's."""
    for number in range(3):
        Shelved.objects.create(shelf=f"s{number}")
    with registered(Exhibit, name="exhibit", lookup="shelf") as guard:
        exhibit = Exhibit.objects.create(label="l", shelf="old")
        assert exhibit.label_id != exhibit.shelf_id
        built(guard)

        Shelved.objects.filter(pk=exhibit.shelf_id).update(shelf="new")
        Exhibit.objects.filter(pk=exhibit.pk).update(shelf=Concat(F("shelf"), Value("er")))
        Exhibit.objects.create(shelf="second")
        Shelved.objects.create(shelf="no exhibit")

        assert verdicts(guard, "new", "newer", "second") == [Verdict.MAYBE] * 3
        assert verdicts(guard, "no exhibit", "") == [Verdict.ABSENT] * 2


def test_a_compiler_that_knows_only_its_connection(built):
    """`get_compiler(connection=...)` gives it no alias."""
    Article.objects.create(pk=1, slug="a")
    built("article")
    connection = connections[database.current]
    update, delete = sql.UpdateQuery(Article), sql.DeleteQuery(Article)
    update.add_update_values({"slug": "b"})
    delete.add_filter("slug", "b")

    assert update.get_compiler(connection=connection).execute_sql(ROW_COUNT) == 1
    assert verdicts("article", "b", "c") == [Verdict.MAYBE, Verdict.ABSENT]

    assert delete.get_compiler(connection=connection).execute_sql(ROW_COUNT) == 1
    assert (status("article"), Article.objects.count()) == (ARMED, 0)


def test_an_update_of_two_tables_fails_as_without_us(built):
    """Under autocommit Django commits the child's table before its parent's, and that stays if the other one fails."""
    bundle, other = Bundle.objects.create(size=2), Product.objects.create()
    with registered(Bundle, name="bundle", alive=Q(size__gt=0)) as guard:
        built(guard)

        with pytest.raises(IntegrityError):
            Bundle.objects.filter(pk=bundle.pk).update(size=5, id=other.pk)

        bundle.refresh_from_db()
        assert bundle.size == 5
        with pytest.raises(IntegrityError), transaction.atomic(using=database.current):
            Bundle.objects.filter(pk=bundle.pk).update(size=7, id=other.pk)
        bundle.refresh_from_db()
        assert bundle.size == 5


def test_a_child_that_is_loaded_alone_is_read_back(built):
    """A raw save writes the child's table alone: what the parent's columns hold, the parent's row tells."""
    Product.objects.create(pk=4, name="the parent's")
    with registered(Bundle, name="bundle", lookup="name") as guard:
        built(guard)

        rows = [{"model": "shop.bundle", "pk": 4, "fields": {"size": 3}}]
        for loaded in serializers.deserialize("json", json.dumps(rows), using=database.current):
            loaded.save(using=database.current)

        assert verdicts(guard, "the parent's", "") == [Verdict.MAYBE, Verdict.ABSENT]


@pytest.mark.parametrize("write", ["save", "bulk_create"])
def test_a_proxy_writes_its_models_table(built, write):
    """By whatever path."""
    built("product")

    if write == "save":
        Bargain(pk=8).save(force_insert=True)
    else:
        Bargain.objects.bulk_create([Bargain(pk=8), Bargain(pk=9)])

    assert verdicts("product", 8, 10) == [Verdict.MAYBE, Verdict.ABSENT]


# -- races and async


def test_a_lost_race_of_get_or_create_goes_on(built):
    """The row that somebody else made meanwhile is found, and the transaction is whole."""
    built("article")
    lookups = []

    def racing(execute, sql, params, many, context):
        if sql.startswith("SELECT") and not lookups:
            lookups.append(sql)
            result = execute(sql, params, many, context)
            with connections[database.current].cursor() as other:
                other.execute("INSERT INTO shop_article (slug, deleted) VALUES ('raced', %s)", [False])
            return result
        return execute(sql, params, many, context)

    with transaction.atomic(using=database.current):
        with connections[database.current].execute_wrapper(racing):
            article, made = Article.objects.get_or_create(slug="raced")
        Article.objects.create(slug="after")

    assert (article.slug, made) == ("raced", False)
    assert verdicts("article", "after")[0] in (Verdict.MAYBE, Verdict.UNKNOWN)


def run(write):
    """Await ``write()`` on a loop of its own, and close the connections of its threads."""

    async def main():
        await write()
        await sync_to_async(connections.close_all)()

    asyncio.run(main())


ASYNC = {
    "asave": lambda: Article(slug="a").asave(),
    "acreate": lambda: Article.objects.acreate(slug="a"),
    "aget_or_create": lambda: Article.objects.aget_or_create(slug="a"),
    "aupdate_or_create": lambda: Article.objects.aupdate_or_create(slug="old", defaults={"slug": "a"}),
    "abulk_create": lambda: Article.objects.abulk_create([Article(slug="a")]),
    "aupdate": lambda: Article.objects.filter(slug="old").aupdate(slug="a"),
}


@pytest.mark.parametrize("write", ASYNC.values(), ids=ASYNC)
def test_the_async_twins(built, write):
    """They are the same statements, in another thread."""
    Article.objects.create(slug="old")
    built("article")

    run(write)

    assert verdicts("article", "a", "b") == [Verdict.MAYBE, Verdict.ABSENT]


def test_abulk_update(built):
    """So is this one."""
    article = Article.objects.create(slug="old")
    built("article")

    article.slug = "a"
    run(lambda: Article.objects.abulk_update([article], ["slug"]))

    assert verdicts("article", "a") == [Verdict.MAYBE]


# -- historical models


def historical(table, **fields):
    """A migration's model of ``table`` with these columns."""
    project = migrations.state.ProjectState()
    operation = migrations.CreateModel(
        "Past", [("id", models.BigAutoField(primary_key=True)), *fields.items()], options={"db_table": table}
    )
    operation.state_forwards("shop", project)
    return project.apps.get_model("shop", "Past")


@pytest.fixture
def before_the_column(each_database, fresh, clock):
    """A table that lacks the looked-up column as yet."""
    with connections[database.current].schema_editor() as editor:
        editor.create_model(historical("shop_later", title=models.CharField(max_length=10)))

    class Later(models.Model):
        title = models.CharField(max_length=10)
        slug = models.SlugField()

        class Meta:
            app_label = "later"
            db_table = "shop_later"

    with registered(Later, name="later", lookup="slug") as guard:
        yield guard
    with connections[database.current].schema_editor() as editor:
        editor.delete_model(Later)
    del Later._meta.apps.all_models["later"]


def test_a_migration_may_write_before_the_column_is_there(before_the_column):
    """A guard without a filter asks a historical model for nothing."""
    past = historical("shop_later", title=models.CharField(max_length=10))

    made = past.objects.create(title="a")
    past.objects.bulk_create([past(title="b"), past(title="c")])
    past.objects.filter(pk=made.pk).update(title="d", id=77)

    assert past.objects.count() == 3
    assert status("later") == ARMED


def test_a_migration_that_cannot_know_the_key_fences(before_the_column):
    """A guard that has a filter, of before the table was made anew, goes out of use."""
    past = historical("shop_later", title=models.CharField(max_length=10))
    row = state.table.swap(State("later"), active="a")
    state.table.forget()

    past.objects.create(title="a")

    assert row is not None
    assert past.objects.count() == 1
    assert status("later") == FENCED


def test_a_historical_model_is_matched_by_column(built):
    """A field may have had another name."""
    built("article")
    past = historical(
        "shop_article", handle=models.SlugField(db_column="slug"), deleted=models.BooleanField(default=False)
    )

    past.objects.create(handle="once")
    past.objects.filter(handle="once").update(handle="twice")

    assert verdicts("article", "once", "twice", "thrice") == [Verdict.MAYBE, Verdict.MAYBE, Verdict.ABSENT]


@pytest.mark.parametrize("block", [by_hand, without_autocommit], ids=lambda block: block.__name__)
def test_a_migration_in_a_transaction_by_hand_commits_nothing(built, block):
    """Its rows are read back inside the transaction, and the project may still roll it back."""
    Article.objects.create(slug="old")
    built("article")
    past = historical("shop_article", slug=models.SlugField(), deleted=models.BooleanField(default=False))

    with suppress(KeyboardInterrupt), block():
        past.objects.filter(slug="old").update(slug="undone")
        raise KeyboardInterrupt
    with block():
        past.objects.filter(slug="old").update(slug="new")

    assert [each.slug for each in past.objects.all()] == ["new"]
    assert verdicts("article", "new", "never") == [Verdict.MAYBE, Verdict.ABSENT]


def test_a_migration_that_changes_many_rows_of_a_parent_adds_their_keys(built):
    """They are read back by the guard's own model."""
    past = historical("shop_product", name=models.CharField(max_length=100))

    with registered(Bundle, name="bundle", lookup="name") as guard:
        bundle = Bundle.objects.create(name="old")
        Product.objects.bulk_create(Product(name="old") for _ in range(9))
        built(guard)

        assert past.objects.filter(id__gte=bundle.pk).update(name="new") == 10

        assert verdicts(guard, "new", "never") == [Verdict.MAYBE, Verdict.ABSENT]


# -- what goes wrong


FAULTS = {"normalize": ValueError("theirs"), "permission": PermissionError("boot_id")}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_unexpected_error_fences_and_the_write_goes_on(built, monkeypatch, fault):
    """Whatever is wrong with the filter, or with the project's own code for it, a save is a save."""
    built("article")

    def fail(*args, **named):
        raise fault

    monkeypatch.setattr(registry["article"]._runtime.active_filter, "add", fail)

    Article.objects.create(slug="kept")

    assert Article.objects.get().slug == "kept"
    assert status("article") == FENCED
    assert verdicts("article", "kept") == [Verdict.UNKNOWN]


@pytest.mark.parametrize("block", [by_hand, without_autocommit], ids=lambda block: block.__name__)
def test_a_row_that_cannot_be_read_back_for_one_guard_is_in_the_filters_of_all(built, block, monkeypatch):
    """A database error is the caller's, who may commit the row all the same."""

    def refuse(execute, sql, params, many, context):
        if sql.startswith("SELECT") and has_changed:
            raise OperationalError("canceling statement due to statement timeout")
        has_changed.extend([sql] if sql.startswith("UPDATE") else [])
        return execute(sql, params, many, context)

    for name in ("a", "b"):
        Bundle.objects.create(name=name)
    has_changed = []
    with ExitStack() as stack:
        guards = [
            stack.enter_context(registered(model, name=name, lookup="name"))
            for name, model in (("first", Bundle), ("second", Bundle), ("third", Product))
        ]
        built(*guards)
        with block():
            with suppress(OperationalError), connections[database.current].execute_wrapper(refuse):
                Product.objects.update(name=Concat(F("name"), Value("-new")))
            has_changed.clear()

        assert {bundle.name for bundle in Bundle.objects.all()} == {"a-new", "b-new"}
        assert Verdict.ABSENT not in [guard.verdict(name) for guard in guards for name in ("a-new", "b-new")]


def test_a_guard_that_no_longer_works_fences(built, monkeypatch):
    """A lookup that cannot be a key any more: the filter of before goes out of use."""
    built("article")
    guard = registry["article"]
    for cached, name in ((guard._runtime, "active_filter"), (guard._meta, "keys")):
        monkeypatch.delitem(cached.__dict__, name, raising=False)
    monkeypatch.setattr("bloomguard.guards.keys.kind_of", lambda field: None)

    Article.objects.create(slug="kept")

    monkeypatch.undo()
    guard._runtime.__dict__.pop("active_filter", None)
    assert Article.objects.get().slug == "kept"
    assert status("article") == FENCED


def insert_product():
    """Send the INSERT alone: the `save` of Django 6.1 asks the fields for their values before that, without us too."""
    fields = [Product._meta.get_field("name")]
    Product._base_manager._insert([Product(name="x")], fields=fields, using=database.current)


def test_no_field_stores_anything_if_the_database_cannot_be_reached(each_database, built, monkeypatch):
    """As in Django, which connects before it asks the fields for their values: a file would stay without its row."""
    built("product")
    stored = []
    monkeypatch.setattr(models.CharField, "pre_save", lambda self, *_, **__: stored.append(self))

    def refuse():
        raise OperationalError("the database is gone")

    connection = connections[database.current]
    connection.close()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connect", refuse)  # not of the class: Django's test cases leave one on the object
        with suppress(OperationalError):
            insert_product()

    assert stored == []


def test_no_field_stores_anything_on_an_event_loop(each_database, built, monkeypatch):
    """Django refuses to write there before it asks the fields for their values."""
    built("product")
    stored = []
    monkeypatch.setattr(models.CharField, "pre_save", lambda self, *_, **__: stored.append(self))

    async def insert():
        insert_product()

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(insert())
    assert stored == []


# -- SQLite, where a writer locks out everybody


@pytest.fixture
def unproved(built, monkeypatch):
    """Adds to the products' filter fail."""
    built("product")
    monkeypatch.setattr(registry["product"]._runtime.active_filter, "add", lambda *args, **named: False)


@pytest.fixture
def told(monkeypatch):
    """What happens, in its order: waits, and hooks of the project's."""
    events = []
    monkeypatch.setattr(state.table, "sleep", lambda seconds: events.append("wait"))
    return events


@pytest.fixture
def sqlite(each_database):
    if each_database != "sqlite":
        pytest.skip("on SQLite alone")


def test_nobody_is_told_of_the_commit_before_the_wait(sqlite, unproved, told):
    """The wait comes before every hook of the project's, however early that was set; one wait is enough."""
    with transaction.atomic():
        transaction.on_commit(lambda: told.append("hook"))
        Product.objects.create()
        Product.objects.create()

    assert told == ["wait", "hook"]
    assert status("product") == FENCED


def test_ctrl_c_in_the_wait_takes_no_hook_away(sqlite, unproved, told, monkeypatch):
    """The rows are committed, so what the project does after its COMMIT is done."""

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(state.table, "sleep", interrupted)

    with suppress(KeyboardInterrupt), transaction.atomic():
        transaction.on_commit(lambda: told.append("hook"))
        Product.objects.create(pk=8)

    assert Product.objects.filter(pk=8).exists()
    assert told == ["hook"]


def test_a_fence_that_an_inner_block_took_back_is_set_again(sqlite, unproved, told):
    """With the inner block the fence is gone as the row is; the next row has its own."""
    with transaction.atomic():
        with transaction.atomic():
            Product.objects.create()
            transaction.set_rollback(True)
        Product.objects.create()

    assert told == ["wait"]
    assert status("product") == FENCED


def test_a_fence_that_a_savepoint_took_back_is_set_again(sqlite, unproved, told):
    """So it is with a savepoint of one's own, of which Django's hooks know nothing."""
    with transaction.atomic():
        savepoint = connections["default"].savepoint()
        Product.objects.create()
        connections["default"].savepoint_rollback(savepoint)
        Product.objects.create()

    assert told == ["wait"]
    assert status("product") == FENCED


def test_a_fence_in_a_savepoint_that_holds_is_enough(sqlite, unproved, told):
    """What is written after the savepoint is covered by the same fence."""
    with transaction.atomic():
        with transaction.atomic():
            Product.objects.create()
        Product.objects.create()

    assert told == ["wait"]
    assert GuardState.objects.get(name="product").version == state.table.current("product").version


def test_a_fence_that_is_rolled_back_leaves_this_process_as_it_was(sqlite, built, monkeypatch, clock):
    """Nothing that was read within the transaction is believed after it."""
    built("product")
    guard = registry["product"]
    with monkeypatch.context() as broken, transaction.atomic():
        broken.setattr(guard._runtime.active_filter, "add", lambda *args, **named: False)
        Product.objects.create()
        clock.now += 2  # the lease has run out: the rows are read within the transaction
        Article.objects.create(slug="other")
        transaction.set_rollback(True)

    made = Product.objects.create()

    assert guard.verdict(made.pk) is Verdict.MAYBE
    assert status("product") == ARMED


@pytest.fixture
def rollback_journal(settings, tmp_path, sqlite, monkeypatch):
    """SQLite as it comes: a big transaction keeps every other connection from reading."""
    connection.ensure_connection()
    with closing(sqlite3.connect(tmp_path / "own.sqlite3")) as own:  # a thread may still have the usual file
        connection.connection.backup(own)
    state.table.connection.close()
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "own.sqlite3"))
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "init_command", "")  # no connection makes it WAL again
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = DELETE")
        cursor.execute("PRAGMA cache_size = 1")
    yield
    state.table.connection.close()
    connection.close()


def test_a_big_transaction_reads_the_state_rows_itself(rollback_journal, built, clock, monkeypatch):
    """A writer that has the file for itself finds that out once, asks by its own connection, and waits no more."""
    built("product")
    real, refused = StateConnection.execute, []

    def execute(self, *args):
        try:
            return real(self, *args)
        except OperationalError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(StateConnection, "execute", execute)

    with transaction.atomic():
        for number in range(20):
            clock.now += 2
            Product.objects.bulk_create([Product(pk=500 * number + n, name="x" * 100) for n in range(1, 501)])
            Product.objects.create(pk=100_000 + number)

    assert len(refused) == 1
    assert verdicts("product", 1, 10_000, 100_019) == [Verdict.MAYBE] * 3
    assert status("product") == ARMED


def test_a_locked_database_is_not_asked_twice(transactional_db):
    """To wait for a writer takes as long as SQLite is told to wait: once is enough."""
    asked = []

    class Locked(StateConnection):
        def _run(self, sql, parameters, seconds):
            asked.append(sql)
            raise OperationalError("database is locked")

        def has_table(self, name):
            pytest.fail("asked for the table")

    locked = Locked()
    locked._connection = connections["default"]
    table = state.StateTable(locked)

    assert not table.renew()
    assert len(asked) == 1


def test_a_failure_counts_from_its_end(transactional_db, clock):
    """However long the failure took, the next try comes a lease later."""
    asked = []

    class Slow(StateConnection):
        def execute(self, sql, parameters=()):
            asked.append(sql)
            clock.now += 5
            raise OperationalError("database is locked")

    table = state.StateTable(Slow(), clock)

    assert not table.renew()
    assert not table.renew()
    assert len(asked) == 1
