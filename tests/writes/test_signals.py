"""Saves: every row that ``save()`` wrote is known to its guards' filters from then on."""

from __future__ import annotations

import json
import logging
import os
import uuid
import warnings
from datetime import date
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models import F, Q, Value
from django.db.models.functions import Concat, Lower
from django.db.models.signals import post_save

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import FENCED
from bloomguard.state.table import EXPIRY_SECONDS
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from bloomguard.writes import fencing, signals
from tests.shop.models import Article, Bargain, Bundle, Diary, Order, Place, Price, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.fixture(autouse=True)
def _by_signals(monkeypatch):
    """The guards are kept in step by signals alone."""
    for guard in registry:
        monkeypatch.setattr(type(guard), "sync", "signals", raising=False)
    registry.changed()
    yield
    monkeypatch.undo()
    registry.changed()


@pytest.fixture
def build_all(each_database, fresh, clock, transactional_db):
    """Builds every guard of the shop, of no rows unless the test made some; ``build_all(name)`` builds one."""

    def run(*names):
        for guard in registry:
            if guard.model._meta.app_label == "shop" and (not names or guard.name in names):
                Rebuild(guard, sleep=clock.sleep).run()

    return run


def known(name, *values):
    """Whether the guard lets each of the values pass."""
    verdicts = [registry[name].verdict(value) for value in values]
    assert Verdict.UNKNOWN not in verdicts
    return [verdict is Verdict.MAYBE for verdict in verdicts]


ROWS = [
    ("product", lambda: Product(pk=7), 7),
    ("order", lambda: Order(pk=uuid.UUID(int=7)), uuid.UUID(int=7)),
    ("article", lambda: Article(slug="straße"), "straße"),
    ("place", lambda: Place(country="DE", slug="ulm"), ("DE", "ulm")),
    ("price", lambda: Price(amount=Decimal("1.5")), "1.50"),
    ("diary", lambda: Diary(day=date(2024, 2, 29)), "2024-02-29"),
]
each_kind = pytest.mark.parametrize(("name", "make", "value"), ROWS, ids=[row[0] for row in ROWS])


@each_kind
def test_a_saved_row_is_known(build_all, name, make, value):
    """Integer, UUID, text, composite, decimal or date: absent before the save, not after."""
    build_all(name)
    before = known(name, value)

    make().save()

    assert (before, known(name, value)) == ([False], [True])


@pytest.mark.parametrize(
    "write",
    [
        lambda: Product.objects.create(),
        lambda: Product.objects.get_or_create(name="n")[0],
        lambda: Product.objects.update_or_create(name="n")[0],
        lambda: Bargain.objects.create(),
        lambda: Bundle.objects.create(),
        lambda: Bundle.objects.update_or_create(name="n", defaults={"size": 3})[0],
    ],
    ids=["create", "get_or_create", "update_or_create", "proxy", "child", "child update_or_create"],
)
def test_every_way_of_making_one_row_is_seen(build_all, write):
    """Whatever ends in ``save()``, of the model, its proxy or its child, adds the new primary key."""
    build_all("product")

    row = write()

    assert known("product", row.pk, row.pk + 1) == [True, False]


def test_a_changed_slug_is_known(build_all):
    """A row that gets another slug is found by it at once, and harmlessly still let through by the old."""
    article = Article.objects.create(slug="old")
    build_all("article")

    article.slug = "new"
    article.save()
    Article.objects.update_or_create(slug="new", defaults={"slug": "newer"})

    assert known("article", "old", "new", "newer", "never") == [True, True, True, False]


def test_a_changed_primary_key_is_a_row_more(build_all):
    """Saving under another primary key inserts another row."""
    product = Product.objects.create(pk=7)
    build_all("product")

    product.pk = 8
    product.save()

    assert known("product", 7, 8, 9) == [True, True, False]


def test_a_value_of_another_type_is_known_as_the_database_holds_it(build_all):
    """Attributes that the field converts on the way are keyed as they are stored."""
    build_all()

    Product(pk=" 007").save()
    Order(pk=f"{{{uuid.UUID(int=9)}}}").save()
    Price(amount=1.1).save()
    Price(amount="2.005").save()
    Diary(day="2024-2-9").save()
    Article(slug=12).save()

    assert known("product", 7) == known("order", uuid.UUID(int=9)) == known("article", "12") == [True]
    assert known("price", *Price.objects.values_list("amount", flat=True)) == [True, True]
    assert known("diary", date(2024, 2, 9)) == [True]


@pytest.mark.parametrize(
    "expression", [Lower("slug"), Concat(F("slug"), Value("-2")), Value("plain"), F("slug")], ids=str
)
def test_an_expression_in_a_text_field_is_known_by_its_value(build_all, expression):
    """What only the database computes is read back from the row."""
    article = Article.objects.create(slug="OLD")
    build_all("article")

    article.slug = expression
    article.save()

    slug = Article.objects.get().slug
    assert known("article", slug, str(expression)) == [True, False]


def test_an_expression_in_a_number_is_known_by_its_value(build_all):
    """So is a decimal that counts itself up."""
    price = Price.objects.create(amount=1)
    build_all("price")

    price.amount = F("amount") + 1
    price.save()

    assert known("price", 2, 3) == [True, False]


def test_a_soft_deleted_row_that_comes_back_is_known(build_all):
    """A row that the last build left out is known again when it is saved alive, whichever columns are saved."""
    Article.objects.create(slug="one", deleted=True)
    Article.objects.create(slug="two", deleted=True)
    build_all("article")
    before = known("article", "one", "two")

    one, two = Article.objects.get(slug="one"), Article.objects.only("deleted").get(slug="two")
    one.deleted = two.deleted = False
    one.save()
    two.save(update_fields=["deleted"])

    assert (before, known("article", "one", "two")) == ([False, False], [True, True])


def test_a_row_that_comes_back_is_known_by_what_is_stored(build_all):
    """An attribute that was changed but not saved hides nothing."""
    article = Article.objects.create(slug="stored", deleted=True)
    build_all("article")

    article.slug, article.deleted = "elsewhere", False
    article.save(update_fields=["deleted"])

    assert known("article", "stored") == [True]


def test_a_parents_save_counts_for_its_children(build_all, each_database, clock):
    """A guard of a child by a column of its parent hears of the parent's saves."""
    with registered(Bundle, name="bundle", lookup="name", sync="signals") as guard:
        bundle = Bundle.objects.create(name="old")
        Rebuild(guard, sleep=clock.sleep).run()

        parent = Product.objects.get(pk=bundle.pk)
        parent.name = "new"
        parent.save()

        assert known("bundle", "new", "other") == [True, False]


def test_a_fixture_is_known(build_all, tmp_path):
    """``loaddata`` saves raw; its rows are known."""
    build_all("product")
    fixture = tmp_path / "rows.json"
    fixture.write_text(json.dumps([{"model": "shop.product", "pk": "70", "fields": {"name": "x"}}]))

    call_command("loaddata", fixture, database=database.current, verbosity=0)

    assert known("product", 70, 71) == [True, False]


def test_a_rolled_back_save_is_a_false_positive_at_most(build_all):
    """A rollback leaves the filter true."""
    build_all("product")

    with transaction.atomic(using=database.current):
        Product.objects.create(pk=7)
        transaction.set_rollback(True, using=database.current)

    assert known("product", 7) == [True]
    assert not Product.objects.exists()


def test_a_save_is_known_before_the_commit(build_all):
    """Inside a transaction the key is in before anybody else can see the row."""
    build_all("product")

    with transaction.atomic(using=database.current):
        Product.objects.create(pk=7)
        inside = known("product", 7)

    assert inside == [True]


def test_rows_without_a_value_are_nobodys(build_all, caplog):
    """A row whose looked-up column is NULL is in no filter and disturbs nothing."""
    from gazetteer.models import City, Listing

    city = City.objects.create(
        pk=1, name="a", slug="a", country="DE", timezone="", population=1, latitude=0, longitude=0
    )
    with (
        registered(Listing, name="listing-by-price", lookup="price", sync="signals"),
        caplog.at_level(logging.INFO, logger="bloomguard"),
    ):
        Listing.objects.create(city=city, title="t", slug="t", body="b", price=None)

    assert caplog.records == []


def test_without_a_filter_a_save_adds_nothing_and_fences_nothing(each_database, fresh, clock, transactional_db):
    """Before the first build a save changes nothing."""
    Product.objects.create(pk=7)

    assert state.table.current("product").version == 0


@pytest.mark.parametrize("trouble", ["store", "filter", "lease"])
def test_an_add_that_is_not_proved_fences(build_all, trouble, monkeypatch, caplog):
    """Where the key cannot be put into the filter, the guard answers ABSENT no more."""
    build_all("product")
    table = state.table
    if trouble == "store":
        monkeypatch.setattr(stores["default"], "path", stores["default"].path / "nowhere")
        registry["product"]._runtime.active_filter.forget()
    elif trouble == "filter":
        stores["default"].drop("product", table.current("product").active)
        registry["product"]._runtime.active_filter.forget()
    else:
        monkeypatch.setattr(table, "lease", lambda name: None)

    Product.objects.create(pk=7)

    row = table.current("product")
    assert row.status == FENCED
    assert registry["product"].verdict(8) is Verdict.UNKNOWN


def test_a_fence_that_fails_is_set_later(build_all, monkeypatch, clock):
    """The save has succeeded; the guard is fenced as soon as its state row can be changed."""
    build_all("product")
    with monkeypatch.context() as patch:
        patch.setattr(registry["product"]._runtime.active_filter, "add", lambda *args, **named: False)

        def fail(*args):
            raise DatabaseError("gone")

        patch.setattr(state.table, "fence", fail)
        patch.setattr(fencing, "_fence_within", fail)
        Product.objects.create(pk=7)

    assert registry["product"].verdict(7) is Verdict.UNKNOWN
    assert state.table.current("product").status == FENCED


def test_the_fences_of_several_guards_are_waited_for_once(build_all, monkeypatch, clock):
    """A save waits no longer for many guards than for one."""
    with registered(Product, name="by-name", lookup="name", sync="signals") as other:
        build_all("product", "by-name")
        for guard in (registry["product"], other):
            monkeypatch.setattr(guard._runtime.active_filter, "add", lambda *args, **named: False)
        began = clock.now

        Product.objects.create(pk=7, name="new")

        assert EXPIRY_SECONDS <= clock.now - began < 2 * EXPIRY_SECONDS
        assert [state.table.current(name).status for name in ("product", "by-name")] == [FENCED] * 2


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_query_that_is_not_read_to_its_end_hinders_no_fence(build_all, monkeypatch):
    """Without a write-ahead log SQLite lets no other connection of the process commit meanwhile."""
    connection = connections[database.current]
    Article.objects.bulk_create(Article(slug=f"{number}" * 50) for number in range(500))
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "init_command", "PRAGMA journal_mode=DELETE")
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.1)
    connection.close()
    state.table.connection.close()
    try:
        build_all("product")
        monkeypatch.setattr(registry["product"]._runtime.active_filter, "add", lambda *args, **named: False)
        articles = Article.objects.iterator(chunk_size=1)
        next(articles)

        Product.objects.create(pk=7)

        assert state.table.current("product").status == FENCED
        articles.close()
    finally:
        connection.close()
        state.table.connection.close()


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_a_read_that_ends_the_transaction_fences_nothing(each_database, build_all, monkeypatch):
    """Nothing of the row is left."""
    build_all("product")
    is_sent = []

    def fail(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "shop_product" in sql:
            is_sent.append(sql)
            sql, params = "SELECT 1 / 0", None
        return execute(sql, params, many, context)

    connection = connections[database.current]
    with pytest.raises(DatabaseError), transaction.atomic(using=database.current), connection.execute_wrapper(fail):
        Product.objects.create(pk=7)

    assert is_sent
    assert registry["product"].verdict(7) is Verdict.ABSENT


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_no_guard_answers_for_a_temporary_table(each_database, build_all):
    """It hides the guarded one from the view's query."""
    build_all("product")
    connection = connections[database.current]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE shop_product AS SELECT 7 AS id")
    try:
        assert registry["product"].verdict(7) is Verdict.UNKNOWN
    finally:
        connection.close()


def test_a_row_that_cannot_be_read_back_for_one_guard_is_known_to_the_others(each_database, build_all, clock):
    """The row is committed before the signal, so the database's error says nothing of it."""
    refused = []

    def refuse_once(execute, sql, params, many, context):
        if sql.startswith("SELECT") and not refused:
            refused.append(sql)
            raise OperationalError("canceling statement due to statement timeout")
        return execute(sql, params, many, context)

    bundle = Bundle.objects.create(name="old")
    with (
        registered(Bundle, name="first", lookup="name", sync="signals") as first,
        registered(Bundle, name="second", lookup="name", sync="signals") as second,
    ):
        for guard in (first, second):
            Rebuild(guard, sleep=clock.sleep).run()
        product = Product.objects.get(pk=bundle.pk)
        product.name = "new"
        with pytest.raises(OperationalError), connections[database.current].execute_wrapper(refuse_once):
            product.save(update_fields=["name"])

        assert Bundle.objects.get().name == "new"
        assert Verdict.ABSENT not in [first.verdict("new"), second.verdict("new")]


def test_another_process_sees_a_saved_row_at_once(build_all):
    """A process that answered ABSENT a moment ago answers MAYBE when another one has saved the row."""
    build_all("product")
    connections.close_all()
    asked, saved = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads are idle
        child = os.fork()
    if child == 0:
        code = 1
        try:
            before = registry["product"].verdict(7)
            os.write(asked[1], b".")
            os.read(saved[0], 1)
            after = registry["product"].verdict(7)
            code = 0 if (before, after) == (Verdict.ABSENT, Verdict.MAYBE) else 2
        finally:
            os._exit(code)
    os.read(asked[0], 1)

    Product.objects.create(pk=7)
    os.write(saved[1], b".")

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (*asked, *saved):
        os.close(end)


def test_an_unguarded_model_costs_one_look_up(fresh, db, monkeypatch, django_assert_num_queries):
    """A model that no guard minds is looked up in a dictionary, and that is all."""
    from django.contrib.auth.models import Group

    Group.objects.create(name="first")
    monkeypatch.setattr(signals, "_written_to", None)
    monkeypatch.setattr(signals, "track", None)  # not worked out a second time

    with django_assert_num_queries(1):
        Group.objects.create(name="second")

    assert signals.tables_of(Group) == ()


def test_a_guard_that_comes_later_hears_of_saves(fresh, db):
    """What is remembered of a model is forgotten when the registry changes."""
    before = names_of(Product)

    with registered(Product, name="late", alive=Q(), sync="signals"):
        during = names_of(Product)

    assert names_of(Product) == before == during - {"late"} != during


def names_of(model):
    return {tracked.guard.name for tracked in signals.tables_of(model)}


@pytest.mark.parametrize(("model", "guards"), [(Product, {"product"}), (Bargain, {"product"}), (Bundle, {"product"})])
def test_guards_are_found_by_table(model, guards):
    """A proxy writes its model's table, a child its parent's too."""
    assert names_of(model) == guards


def test_saves_are_listened_to_only_where_a_guard_needs_it(each_database, monkeypatch):
    """Every other project's saves pay nothing for it."""
    assert signals._saved in post_save._live_receivers(Product)[0]

    for guard in registry:
        monkeypatch.setattr(type(guard), "sync", "statements")
    registry.changed()

    assert signals._saved not in post_save._live_receivers(Product)[0]


@pytest.fixture
def rewritten(each_database):
    """The database stores other values than it is given: by a trigger, or because MariaDB clips numbers."""
    on_mariadb = each_database == "mariadb"
    body = "BEGIN NEW.size := 5; RETURN NEW; END"
    made = (
        ["SET SESSION sql_mode = ''"]
        if on_mariadb
        else [
            f"CREATE FUNCTION raw_before() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$",
            "CREATE TRIGGER raw_before BEFORE INSERT ON shop_bundle FOR EACH ROW EXECUTE FUNCTION raw_before()",
        ]
    )
    connection = connections[database.current]
    with connection.cursor() as cursor:
        for sql in made:
            cursor.execute(sql)
        yield
        if not on_mariadb:
            cursor.execute("DROP FUNCTION raw_before CASCADE")
    connection.close()  # its mode ends with it


@pytest.mark.filterwarnings("ignore:.*Out of range")
@pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True)
def test_the_key_is_that_of_the_stored_row(rewritten, fresh, clock):
    """Whatever the instance holds, and whoever changed it on its way."""
    with registered(Bundle, name="mine", lookup="size", sync="signals") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        Bundle.objects.create(size=3_000_000_000 if database.current == "mariadb" else 3)
        stored = Bundle.objects.get().size

        assert stored in (5, 2_147_483_647)
        assert guard.verdict(stored) is Verdict.MAYBE
        assert state.table.current("mine").status != FENCED
