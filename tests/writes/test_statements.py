"""Every write path of the ORM adds its keys between the statement and the COMMIT, on both databases."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import IntegrityError, migrations, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat, Lower

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Bargain, Bundle, Diary, Order, Place, Price, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import MYSQL

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

Expected = list[tuple[str, Any]]


class _Undone(Exception):
    """Leaves a block, so that what was written in it is rolled back."""


def save_product() -> Expected:
    product = Product(name="a")
    product.save()
    return [("product", product.pk)]


def save_given_pk() -> Expected:
    Product(pk=77).save()
    return [("product", 77)]


def create_uuid() -> Expected:
    return [("order", Order.objects.create().pk)]


def get_or_create() -> Expected:
    return [("article", Article.objects.get_or_create(slug="found")[0].slug)]


def update_or_create_new() -> Expected:
    return [("article", Article.objects.update_or_create(slug="new", defaults={"deleted": True})[0].slug)]


def update_or_create_old() -> Expected:
    Article.objects.update_or_create(slug="old", defaults={"slug": "changed"})
    return [("article", "changed")]


def created(products: list[Product]) -> list[tuple[str, int]]:
    if products[0].pk is None:  # MySQL returns none
        products = Product.objects.order_by("-pk")[: len(products)]
    return [("product", product.pk) for product in products]


def bulk_create() -> Expected:
    return created(Product.objects.bulk_create([Product(), Product(), Product()]))


def bulk_create_one() -> Expected:
    return created(Product.objects.bulk_create([Product()]))


def bulk_create_in_batches() -> Expected:
    made = Article.objects.bulk_create([Article(slug=f"b{n}") for n in range(7)], batch_size=3)
    return [("article", each.slug) for each in made]


def bulk_create_ignoring_conflicts() -> Expected:
    Product.objects.bulk_create([Product(name="i"), Product(name="i")], ignore_conflicts=True)
    return [("product", pk) for pk in Product.objects.filter(name="i").values_list("pk", flat=True)]


def bulk_create_ignoring_one_conflict() -> Expected:
    Article.objects.bulk_create([Article(slug="old")], ignore_conflicts=True)
    Article.objects.bulk_create([Article(slug="old"), Article(slug="fresh")], ignore_conflicts=True)
    return [("article", "old"), ("article", "fresh")]


def bulk_create_updating_conflicts() -> Expected:
    Article.objects.bulk_create(
        [Article(slug="old", deleted=True), Article(slug="other")],
        update_conflicts=True,
        unique_fields=database.conflicting("slug"),
        update_fields=["deleted"],
    )
    return [("article", "old"), ("article", "other")]


def change_slug() -> Expected:
    article = Article.objects.get(slug="old")
    article.slug = "renamed"
    article.save()
    return [("article", "renamed")]


def change_slug_by_expression() -> Expected:
    article = Article.objects.get(slug="old")
    article.slug = Concat(F("slug"), Value("-more"))
    article.save(update_fields=["slug"])
    return [("article", "old-more")]


def create_by_expression() -> Expected:
    Article.objects.create(slug=Lower(Value("LOUD")))
    return [("article", "loud")]


def change_primary_key() -> Expected:
    product = Product.objects.get(name="old")
    product.pk = 901
    product.save()
    return [("product", 901)]


def update_with_a_value() -> Expected:
    Article.objects.filter(slug="old").update(slug="valued")
    return [("article", "valued")]


def update_with_an_expression() -> Expected:
    Article.objects.filter(slug="old").update(slug=Concat(F("slug"), Value("-x")))
    return [("article", "old-x")]


def update_the_primary_key() -> Expected:
    Product.objects.filter(name="old").update(id=902)
    return [("product", 902)] if database.current != "mariadb" else []  # there it fences


def update_one_of_two_fields() -> Expected:
    Place.objects.filter(country="de").update(country="fr")
    return [("place", ("fr", "old"))]


def bulk_update() -> Expected:
    article = Article.objects.get(slug="old")
    article.slug = "bulky"
    Article.objects.bulk_update([article], ["slug"])
    return [("article", "bulky")]


def bring_back_to_life() -> Expected:
    Article.objects.filter(slug="dead").update(deleted=False)
    return [("article", "dead")]


def save_a_proxy() -> Expected:
    return [("product", Bargain.objects.create().pk)]


def save_a_child() -> Expected:
    return [("product", Bundle.objects.create(size=3).pk)]


def composite() -> Expected:
    Place.objects.create(country="it", slug="roma")
    return [("place", ("it", "roma"))]


def decimal() -> Expected:
    Price.objects.create(amount="3.50")
    return [("price", Decimal("3.5"))]


def date() -> Expected:
    Diary.objects.create(day="2024-02-29")
    return [("diary", datetime.date(2024, 2, 29))]


def loaddata() -> Expected:
    rows = [{"model": "shop.article", "pk": 555, "fields": {"slug": "loaded", "deleted": False}}]
    from django.core import serializers

    for loaded in serializers.deserialize("json", json.dumps(rows), using=database.current):
        loaded.save(using=database.current)
    return [("article", "loaded")]


def historical_model() -> Expected:
    """A migration's model has the table's name, and nothing else in common with ours."""
    fields = [
        ("id", models.AutoField(primary_key=True)),
        ("slug", models.SlugField()),
        ("deleted", models.BooleanField()),
    ]
    operation = migrations.CreateModel("Article", fields, options={"db_table": "shop_article"})
    project = migrations.state.ProjectState()
    operation.state_forwards("shop", project)
    project.apps.get_model("shop", "Article").objects.create(slug="historic", deleted=False)
    return [("article", "historic")]


def wait(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``work`` gives, awaited."""

    async def run() -> Any:
        return await work(*args, **kwargs)

    return async_to_sync(run)()


def save_async() -> Expected:
    product = Product(name="a")
    wait(product.asave)
    return [("product", product.pk)]


def create_async() -> Expected:
    return [("product", wait(Product.objects.acreate, name="a").pk)]


def get_or_create_async() -> Expected:
    return [("article", wait(Article.objects.aget_or_create, slug="found")[0].slug)]


def update_or_create_async() -> Expected:
    wait(Article.objects.aupdate_or_create, slug="old", defaults={"slug": "changed"})
    return [("article", "changed")]


def bulk_create_async() -> Expected:
    return created(wait(Product.objects.abulk_create, [Product(), Product()]))


def bulk_update_async() -> Expected:
    article = Article.objects.get(slug="old")
    article.slug = "bulky"
    wait(Article.objects.abulk_update, [article], ["slug"])
    return [("article", "bulky")]


def update_async() -> Expected:
    wait(Article.objects.filter(slug="old").aupdate, slug="valued")
    return [("article", "valued")]


PATHS = [
    value for value in list(globals().values()) if getattr(value, "__annotations__", {}).get("return") == "Expected"
]
if MYSQL:
    PATHS.remove(bulk_create_updating_conflicts)  # there it fences


#: The guards of those that write other tables than products and articles.
OTHER_GUARDS = {
    create_uuid: "order", update_one_of_two_fields: "place", composite: "place", decimal: "price", date: "diary",
}  # fmt: skip


@pytest.fixture
def write() -> Callable[[], Expected] | None:
    """Parametrised by those tests that write."""
    return None


@pytest.fixture
def old_rows(each_database, build, write) -> None:
    """A few rows of before, and the filters built of the tables that are written."""
    Product.objects.create(name="old")
    Article.objects.create(slug="old")
    Article.objects.create(slug="dead", deleted=True)
    Place.objects.create(country="de", slug="old")
    for name in filter(None, ("product", "article", OTHER_GUARDS.get(write))):
        build(name)


@pytest.fixture
def unseen_when_added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fails the test if another connection sees what is written when the filter gets it; counts the adds."""
    counts: list[int] = []
    tables = [model._meta.db_table for model in (Product, Order, Article, Place, Price, Diary)]
    before: dict[str, list[Any]] = {}

    def seen() -> dict[str, list[Any]]:
        other = state.table.connection  # one of its own, in autocommit: it sees what is committed
        return {table: sorted(map(repr, other.execute(f"SELECT * FROM {table}")[0])) for table in tables}

    for guard in registry:

        def watched(
            keys: Any, *rest: Any, add: Callable[..., bool] = guard._runtime.active_filter.add, **named: Any
        ) -> bool:
            assert seen() == before, "a row was visible before its filter had it"
            counts.append(len(keys))
            return add(keys, *rest, **named)

        monkeypatch.setattr(guard._runtime.active_filter, "add", watched)
    before |= seen()
    return counts


@pytest.mark.parametrize("write", PATHS, ids=lambda path: path.__name__)
def test_nobody_sees_a_row_before_its_filter_has_it(write, old_rows, unseen_when_added):
    """In a transaction: statement, add, COMMIT."""
    with transaction.atomic(using=database.current):
        expected = write()

    assert unseen_when_added or not expected
    assert [registry[name].verdict(value) for name, value in expected] == [Verdict.MAYBE] * len(expected)
    assert registry["product"].verdict(123_456) is (Verdict.ABSENT if expected else Verdict.UNKNOWN)


@pytest.mark.parametrize("write", PATHS, ids=lambda path: path.__name__)
def test_autocommit_is_no_exception(write, old_rows, unseen_when_added):
    """Under autocommit the add still stands before the COMMIT."""
    expected = write()

    assert unseen_when_added or not expected
    assert [registry[name].verdict(value) for name, value in expected] == [Verdict.MAYBE] * len(expected)


def test_a_rolled_back_savepoint_leaves_at_most_a_false_positive(old_rows, build):
    """What was rolled back may be in the filter; the guard goes on, and the next write is added."""
    for name in OTHER_GUARDS.values():
        build(name)
    for number, write in enumerate(PATHS):
        for name in ("product", "article"):
            if state.table.current(name).status == FENCED:  # by an UPDATE of the primary key, on MariaDB
                build(name)
        with transaction.atomic(using=database.current):
            with suppress(_Undone), transaction.atomic(using=database.current):
                write()
                raise _Undone
            kept = Product.objects.create(pk=31_337 + number)

        assert registry["product"].verdict(kept.pk) is not Verdict.ABSENT, write
        assert registry["article"].verdict("never-there") is Verdict.ABSENT, write


def test_an_integrity_error_stays_one(old_rows):
    """A write that the database refuses raises what it always raised, and the connection goes on."""
    with pytest.raises(IntegrityError):
        Article.objects.create(slug="old")

    assert Article.objects.create(slug="next").pk


def test_an_unproved_add_fences_before_the_row_is_told_of(old_rows, clock, monkeypatch):
    """A row whose add failed is committed two leases after the fence, or its writer is told of the commit no sooner."""
    guard = registry["product"]
    monkeypatch.setattr(state.table, "sleep", clock.sleep)
    monkeypatch.setattr(guard._runtime.active_filter, "add", lambda *args, **named: False)
    began = clock.now

    made = Product.objects.create()

    assert clock.now - began >= 2 * state.LEASE_SECONDS
    assert state.table.current("product").status == FENCED
    assert guard.verdict(made.pk) is Verdict.UNKNOWN


def test_a_rolled_back_fence_of_a_rolled_back_row_is_harmless(old_rows, clock, monkeypatch):
    """Whether the fence outlives the rollback or not, no row that exists is answered ABSENT."""
    guard = registry["product"]
    monkeypatch.setattr(state.table, "sleep", clock.sleep)
    with monkeypatch.context() as broken:
        broken.setattr(guard._runtime.active_filter, "add", lambda *args, **named: False)
        with transaction.atomic(using=database.current):
            Product.objects.create()
            transaction.set_rollback(True, using=database.current)

    clock.sleep(5)
    made = Product.objects.create()

    assert guard.verdict(made.pk) in (Verdict.MAYBE, Verdict.UNKNOWN)


def test_a_fence_that_another_process_set_is_waited_for(old_rows, clock, monkeypatch):
    """Whoever meets a fence commits no sooner than two leases after: a reader may still hold the row of before it."""
    monkeypatch.setattr(state.table, "sleep", clock.sleep)
    state.table.fence("product", "elsewhere")
    state.table.forget()
    began = clock.now

    Product.objects.create()

    assert clock.now - began >= 2 * state.LEASE_SECONDS
    again = clock.now
    Product.objects.create()
    assert clock.now == again


def test_a_guard_may_follow_signals_alone(old_rows, clock):
    """With `sync = "signals"` a save is added by post_save, and the compilers leave it alone."""
    with registered(Order, name="mine", sync="signals") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        made = Order.objects.create()
        unseen = uuid.uuid4()
        Order.objects.bulk_create([Order(id=unseen)])

        assert guard.verdict(made.pk) is Verdict.MAYBE
        assert guard.verdict(unseen) is Verdict.ABSENT


def test_makes_no_query_on_a_table_without_a_guard(old_rows, django_assert_num_queries):
    """A statement on another table is what it was: one."""
    from django.contrib.sessions.models import Session

    with django_assert_num_queries(1, using=database.current):
        Session.objects.bulk_create([Session(session_key="k", session_data="", expire_date="2030-01-01T00:00Z")][:0])
        Session.objects.filter(session_key="k").update(session_data="x")


def test_loaddata_command(old_rows, tmp_path):
    """The command that writes raw rows is a write as any other."""
    fixture = tmp_path / "rows.json"
    fixture.write_text(json.dumps([{"model": "shop.product", "pk": 4_242, "fields": {"name": "raw"}}]))

    call_command("loaddata", str(fixture), database=database.current, verbosity=0, stdout=io.StringIO())

    assert registry["product"].verdict(4_242) is Verdict.MAYBE
