"""Queries for one row: which of them a guard answers, and which go to the database as they were."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest
from asgiref.sync import async_to_sync
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections, transaction
from django.db.models import Count, Exists, F, Max, OuterRef, Prefetch, Q, Value, prefetch_related_objects
from django.db.transaction import TransactionManagementError
from django.http import Http404
from django.shortcuts import aget_object_or_404, get_object_or_404
from guardian.models import UserObjectPermission

from bloomguard.guards import counters as counts
from bloomguard.guards import registry
from bloomguard.lookups import select
from bloomguard.lookups.context import contexts, guarded_lookups
from bloomguard.rebuild import Rebuild
from tests.management.test_verify_filter import insert_unseen
from tests.shop.models import Article, Bargain, Bundle, Diary, Exhibit, Place, Product, Review, Ticket
from tests.support import database
from tests.support.guarding import make_guard, registered

pytestmark = [
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("each_database", "fresh"),
]

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
ABSENT = 8


@pytest.fixture
def shop(clock):
    """Product 7, which is a bundle, an article, a dead one, and a place exist; the filter of products is built."""
    Bundle.objects.create(pk=7, name="tea")
    Article.objects.create(slug="ulm")
    Article.objects.create(slug="dead", deleted=True)
    Place.objects.create(country="DE", slug="ulm")
    Rebuild(registry["product"], sleep=clock.sleep).run()


@pytest.fixture
def all_filters(shop, clock):
    """Those of articles and places, too."""
    for name in ("article", "place"):
        Rebuild(registry[name], sleep=clock.sleep).run()


@pytest.fixture
def lookups(shop):
    """The test's own code may ask guards, as a view may."""
    with guarded_lookups():
        yield


@contextmanager
def sent():
    """The statements that reach the database, but for bloomguard's own and those that begin or end something."""
    found = []

    def note(execute, sql, params, many, context):
        if "bloomguard_" not in sql and sql.split()[0] in ("SELECT", "(SELECT"):
            found.append(sql)
        return execute(sql, params, many, context)

    with ExitStack() as stack:
        for connection in map(connections.__getitem__, connections):
            stack.enter_context(connection.execute_wrapper(note))
        yield found


def queries(look):
    """How many statements ``look()`` sends; threads and tasks of the test's connection included."""
    with sent() as found:
        look()
    return len(found)


def raises(error, look):
    def run():
        with pytest.raises(error):
            look()

    return run


# -- answered

rows = Product.objects

ANSWERED = {
    "get": raises(Product.DoesNotExist, lambda: rows.get(pk=ABSENT)),
    "get by name": raises(Product.DoesNotExist, lambda: rows.get(id=ABSENT)),
    "get by text": raises(Product.DoesNotExist, lambda: rows.get(pk=str(ABSENT))),
    "first": lambda: rows.filter(pk=ABSENT).first() is None or 1 / 0,
    "last": lambda: rows.filter(pk=ABSENT).last() is None or 1 / 0,
    "exists": lambda: rows.filter(pk=ABSENT).exists() is False or 1 / 0,
    "contains": lambda: rows.contains(Product(pk=ABSENT)) is False or 1 / 0,
    "shortcut": raises(Http404, lambda: get_object_or_404(Product, pk=ABSENT)),
    "in_bulk": lambda: rows.filter(pk=ABSENT).in_bulk() == {} or 1 / 0,
    "list": lambda: list(rows.filter(pk=ABSENT)) == [] or 1 / 0,
    "bool": lambda: not rows.filter(pk=ABSENT) or 1 / 0,
    "len": lambda: len(rows.filter(pk=ABSENT)) == 0 or 1 / 0,
    "values": lambda: list(rows.filter(pk=ABSENT).values("name")) == [] or 1 / 0,
    "values_list": lambda: list(rows.filter(pk=ABSENT).values_list("pk", flat=True)) == [] or 1 / 0,
    "named values": lambda: list(rows.filter(pk=ABSENT).values_list("pk", named=True)) == [] or 1 / 0,
    "iterator": lambda: list(rows.filter(pk=ABSENT).iterator()) == [] or 1 / 0,
    "chunks": lambda: list(rows.filter(pk=ABSENT).iterator(chunk_size=2)) == [] or 1 / 0,
    "defer": lambda: rows.filter(pk=ABSENT).defer("name").first() is None or 1 / 0,
    "only": lambda: rows.filter(pk=ABSENT).only("name").first() is None or 1 / 0,
    "order": lambda: rows.filter(pk=ABSENT).order_by("name").first() is None or 1 / 0,
    "distinct": lambda: rows.filter(pk=ABSENT).distinct().first() is None or 1 / 0,
    "slice": lambda: list(rows.filter(pk=ABSENT)[:5]) == [] or 1 / 0,
    "reverse": lambda: rows.filter(pk=ABSENT).reverse().first() is None or 1 / 0,
    "annotate": lambda: rows.filter(pk=ABSENT).annotate(one=Value(1)).first() is None or 1 / 0,
    "annotate count": lambda: rows.annotate(n=Count("review")).filter(pk=ABSENT).first() is None or 1 / 0,
    "count by group": lambda: list(rows.filter(pk=ABSENT).values().annotate(n=Count("pk"))) == [] or 1 / 0,
    "narrower": lambda: rows.filter(pk=ABSENT, name="tea").first() is None or 1 / 0,
    "excluded": lambda: rows.exclude(name="x").filter(pk=ABSENT).first() is None or 1 / 0,
    "subquery": lambda: rows.filter(Exists(Review.objects.filter(product=OuterRef("pk"))), pk=ABSENT).first(),
    "joined": lambda: rows.filter(pk=ABSENT, review__article__slug="x").first() is None or 1 / 0,
    "prefetch": lambda: list(rows.filter(pk=ABSENT).prefetch_related("review_set")) == [] or 1 / 0,
    "nested": lambda: rows.filter(Q(Q(pk=ABSENT))).first() is None or 1 / 0,
    "out of range": lambda: rows.filter(pk=2**80).first() is None or 1 / 0,
    "proxy": raises(Bargain.DoesNotExist, lambda: Bargain.objects.get(pk=ABSENT)),
    "child": raises(Bundle.DoesNotExist, lambda: Bundle.objects.get(pk=ABSENT)),
    "child by link": raises(Bundle.DoesNotExist, lambda: Bundle.objects.get(product_ptr=ABSENT)),
    "child by parent's field": raises(Bundle.DoesNotExist, lambda: Bundle.objects.get(id=ABSENT)),
    "child select_related": lambda: Bundle.objects.select_related("product_ptr").filter(pk=ABSENT).first(),
    "two fields": raises(Place.DoesNotExist, lambda: Place.objects.get(country="FR", slug="ulm")),
    "alive": raises(Article.DoesNotExist, lambda: Article.objects.get(slug="none", deleted=False)),
    "alive, apart": lambda: Article.objects.filter(deleted=False).filter(slug="none").first() is None or 1 / 0,
}


def atomically(look):
    with transaction.atomic(using=database.current):
        return look()


def test_an_absent_row_costs_no_statement(all_filters, lookups):
    """The guard answers, with Django's own empty result."""
    assert {name: queries(look) for name, look in ANSWERED.items()} == dict.fromkeys(ANSWERED, 0)


def test_outside_of_requests_every_query_is_sent(all_filters):
    """A shell, a command, a task: Django alone, which has its own answer for what no column holds."""
    sent_each = {name: queries(look) for name, look in ANSWERED.items()}

    assert sent_each == {name: 0 if name == "out of range" else 1 for name in ANSWERED}


def test_what_exists_is_found(all_filters, lookups):
    """By every way, with its related rows."""
    assert rows.get(pk=7).name == "tea"
    assert rows.filter(pk=7).exists()
    assert Bundle.objects.select_related("product_ptr").get(pk=7).size == 2
    assert Article.objects.get(slug="ulm", deleted=False)
    assert Place.objects.get(country="DE", slug="ulm")
    assert list(rows.filter(pk=7).values_list("name", flat=True)) == ["tea"]


def test_composite_keys(clock):
    """Of two columns, looked up as one."""
    Ticket.objects.create(event=1, number=2)
    with registered(Ticket, name="ticket") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            assert queries(raises(Ticket.DoesNotExist, lambda: Ticket.objects.get(pk=(1, 3)))) == 0
            assert queries(raises(Ticket.DoesNotExist, lambda: Ticket.objects.get(event=1, number=3))) == 0
            assert queries(lambda: Ticket.objects.filter(event=1).first()) == 1
            assert Ticket.objects.get(pk=(1, 2)).number == 2


def test_a_child_with_a_parent_of_another_key(clock):
    """A guard of the child, looked up by the link to its first parent or by what that links to."""
    Exhibit.objects.create(label_id=1, shelf_id=5)
    with registered(Exhibit, name="exhibit") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            assert queries(raises(Exhibit.DoesNotExist, lambda: Exhibit.objects.get(pk=2))) == 0
            assert queries(raises(Exhibit.DoesNotExist, lambda: Exhibit.objects.get(shelf_id=1))) == 1
            assert Exhibit.objects.get(shelf_id=5).pk == 1


def test_alive_may_be_given_by_a_manager(all_filters, lookups, monkeypatch):
    """A manager that leaves dead rows out asks for what ``alive`` asks for."""
    alive = Article.objects.filter(deleted=False)

    assert queries(lambda: alive.filter(slug="none").first()) == 0
    assert queries(lambda: alive.filter(slug="dead").first()) in (0, 1)
    assert alive.get(slug="ulm")


def test_prefetches_of_a_row_that_is_there_are_whole(lookups):
    """A row's own reviews are not asked of a guard."""
    Review.objects.create(product_id=7)
    product = rows.prefetch_related(Prefetch("review_set", to_attr="all_reviews")).get(pk=7)

    assert len(product.all_reviews) == 1


# -- left alone

NOT_ALIVE = {
    "alive is not given": lambda: Article.objects.filter(slug="none").first(),
    "alive is denied": lambda: Article.objects.filter(slug="none", deleted=True).first(),
    "alive is one of two": lambda: Article.objects.filter(Q(deleted=False) | Q(pk=1), slug="none").first(),
    "not alive": lambda: Article.objects.exclude(deleted=False).filter(slug="none").first(),
}
#: In a column that MariaDB compares by its bytes, letters have their case for it.
ULM = {"default": "ULM", "postgresql": "ULM", "mariadb": "ulm"}
LEFT = {
    **NOT_ALIVE,
    "count": lambda: rows.filter(pk=ABSENT).count() == 0 or 1 / 0,
    "aggregate": lambda: rows.filter(pk=ABSENT).aggregate(Max("name")) == {"name__max": None} or 1 / 0,
    "union": lambda: list(rows.filter(pk=ABSENT).union(rows.filter(pk=7))) != [] or 1 / 0,
    "intersection": lambda: list(rows.filter(pk=7).intersection(rows.filter(pk=ABSENT))) == [] or 1 / 0,
    "lock": lambda: atomically(lambda: rows.select_for_update().filter(pk=ABSENT).first() is None or 1 / 0),
    "extra": lambda: rows.extra(select={"one": "1"}).filter(pk=ABSENT).first() is None or 1 / 0,
    "raw": lambda: list(rows.raw("SELECT * FROM shop_product WHERE id = %s", [ABSENT])) == [] or 1 / 0,
    "pk__in": lambda: rows.filter(pk__in=[ABSENT, 9]).first() is None or 1 / 0,
    "in_bulk": lambda: rows.in_bulk([ABSENT, 9]) == {} or 1 / 0,
    "or": lambda: rows.filter(Q(pk=ABSENT) | Q(name="tea")).first().pk == 7 or 1 / 0,
    "not": lambda: rows.exclude(pk=ABSENT).first().pk == 7 or 1 / 0,
    "F": lambda: rows.filter(pk=F("id")).first().pk == 7 or 1 / 0,
    "expression": lambda: rows.filter(pk=Value(ABSENT)).first() is None or 1 / 0,
    "sum": lambda: rows.filter(pk=F("id") + 0).first().pk == 7 or 1 / 0,
    "iexact": lambda: Article.objects.filter(slug__iexact=ULM[database.current], deleted=False).first().pk or 1 / 0,
    "greater": lambda: rows.filter(pk__gte=ABSENT).first() is None or 1 / 0,
    "another field": lambda: rows.filter(name="none").first() is None or 1 / 0,
    "half of the key": lambda: Place.objects.filter(slug="none").first() is None or 1 / 0,
    "related rows' key": lambda: rows.filter(review__product__pk=ABSENT).first() is None or 1 / 0,
    "rows that point there": lambda: Review.objects.filter(product=ABSENT).first() is None or 1 / 0,
    "a guard without a filter": lambda: Diary.objects.filter(pk=1).first() is None or 1 / 0,
}


def test_what_is_no_query_for_one_row_is_sent(all_filters, lookups):
    """As it was, and its result is the database's."""
    sent_each = {name: queries(look) for name, look in LEFT.items()}

    assert sent_each == dict.fromkeys(LEFT, 1)
    assert "shop_product" in rows.filter(pk=ABSENT).explain() or database.current != "postgresql"


def test_dead_rows_are_found_by_those_who_ask_for_all(all_filters, lookups):
    """The filter of alive rows has nothing to say of the others."""
    assert Article.objects.get(slug="dead").deleted
    assert Article.objects.get(slug="dead", deleted=True)


def test_another_database_is_asked(lookups):
    """The guard knows the rows of one database."""
    other = "postgresql" if database.current == "default" else "default"

    assert queries(lambda: rows.using(other).filter(pk=ABSENT).first()) == 1
    assert queries(lambda: rows.using(database.current).filter(pk=ABSENT).first()) == 0


def test_a_replica_that_the_router_reads_from_is_answered_for(lookups, monkeypatch):
    """What the router says is the same rows, is."""
    other = "postgresql" if database.current == "default" else "default"
    monkeypatch.setattr(database.Router, "db_for_read", lambda self, model, **hints: other)

    assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
    assert queries(lambda: Product.objects.filter(pk=7).first()) == 1


def test_what_a_foreign_key_points_to_is_fetched(lookups):
    """Whoever holds the row that points there knows that it exists, whatever the filter says."""
    if database.current == "default":
        with connections["default"].constraint_checks_disabled():
            Review.objects.bulk_create([Review(pk=1, product_id=7)])
    else:
        Review.objects.bulk_create([Review(pk=1, product_id=7)])
    insert_unseen("shop_product", id=4321, name="x")
    Review.objects.filter(pk=1).update(product_id=4321)
    review = Review.objects.get(pk=1)

    assert queries(lambda: review.product.pk == 4321 or 1 / 0) == 1


def test_what_a_generic_foreign_key_points_to_is_fetched(lookups):
    """It is no other foreign key than any."""
    insert_unseen("shop_product", id=4321, name="x")
    permission = UserObjectPermission(content_type=ContentType.objects.get_for_model(Product), object_pk="4321")

    assert queries(lambda: permission.content_object.pk == 4321 or 1 / 0) == 1


def test_a_row_in_hand_is_refreshed(lookups):
    """``refresh_from_db``, and columns that were deferred, are read from the database."""
    insert_unseen("shop_product", id=4321, name="x")
    product = Product(pk=4321)
    product.refresh_from_db()

    assert product.name == "x"
    assert queries(product.refresh_from_db) == 1
    async_to_sync(product.arefresh_from_db)()
    [deferred] = rows.filter(name="x").defer("name")
    assert deferred.name == "x"


# -- methods that write


WRITING = {
    "update": lambda: rows.filter(pk=4321).update(name="y") == 1,
    "update of a child": lambda: Bundle.objects.filter(pk=4321).update(size=9) == 1,
    "update of a child's parent": lambda: Bundle.objects.filter(pk=4321).update(name="z") == 1,
    "update of both": lambda: Bundle.objects.filter(pk=4321).update(name="z", size=9) == 1,
    "update by Model.save": lambda: Bundle(pk=4321, name="z").save(force_update=True) is None,
    "aupdate": lambda: async_to_sync(Bundle.objects.filter(pk=4321).aupdate)(name="z") == 1,
    "bulk_update": lambda: Bundle.objects.bulk_update([Bundle(pk=4321, name="b")], ["name"]) == 1,
    "get_or_create": lambda: rows.get_or_create(pk=4321)[1] is False,
    "update_or_create": lambda: rows.update_or_create(pk=4321, defaults={"name": "u"})[1] is False,
    "delete": lambda: Bundle.objects.filter(pk=4321).delete()[0] == 2,
    "save": lambda: Product(pk=4321, name="saved").save() is None and rows.count() == 2,
}


@pytest.mark.parametrize("method", WRITING)
def test_a_method_that_writes_asks_no_guard(lookups, method):
    """What it changes is for the database to say: here a row that the filter does not have."""
    insert_unseen("shop_product", id=4321, name="x")
    insert_unseen("shop_bundle", product_ptr_id=4321, size=1)

    assert registry["product"].verdict(4321).value == "absent"
    assert WRITING[method]()


@pytest.mark.parametrize("clear", [False, True])
def test_related_managers_that_write_ask_no_guard(shop, clock, clear):
    """``set`` reads what there is, and adds what there is not; here by the column of the guard."""
    article, other = Article.objects.get(slug="ulm"), Article.objects.get(slug="dead")
    with registered(Review, name="review", lookup="article") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        insert_unseen("shop_review", id=50, product_id=7, article_id=article.pk)
        mine = Review.objects.create(product_id=7, article=other)
        with guarded_lookups():
            assert article.review_set.first() is None  # which is what a guard is for
            article.review_set.set([mine], clear=clear)
            article.review_set.add(mine)
        assert list(article.review_set.values_list("pk", flat=True)) == [mine.pk]
        assert Review.objects.get(pk=50).article is None


# -- transactions


def run(sql, *params):
    with connections[database.current].cursor() as cursor:
        cursor.execute(sql, params)


@pytest.mark.parametrize("adds", [False, True], ids=["unsaid", "adding"])
def test_a_transaction_that_wrote_by_raw_sql_reads_its_own_row(lookups, adds):
    """What no filter has yet is there for whoever wrote it, said by ``adding`` or not."""
    with transaction.atomic(using=database.current):
        if adds:
            from bloomguard.writes.adding import adding as said

            with said(registry["product"], database.current) as add:
                run("INSERT INTO shop_product (id, name) VALUES (9, 'raw')")
                assert rows.get(pk=9).name == "raw"
                add([9])
        else:
            run("INSERT INTO shop_product (id, name) VALUES (9, 'raw')")
        assert rows.get(pk=9).name == "raw"
    assert rows.get(pk=9).name == "raw"


def test_a_transaction_reads_what_the_orm_wrote(lookups):
    """An insert is in the filter before the row is."""
    with transaction.atomic(using=database.current):
        rows.create(pk=9)
        assert rows.get(pk=9)


def test_a_guard_that_discards_answers_in_no_transaction(shop, clock):
    """Its filter forgets what the transaction may still see."""
    with registered(Product, name="forgets", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        product = registry["product"]
        registry.remove(product)
        try:
            with guarded_lookups():
                assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
                with transaction.atomic(using=database.current):
                    assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1
        finally:
            registry.add(product)


@database.without_mariadb  # which does not say which server it is, so nothing is remembered there
def test_what_others_found_missing_is_asked_for_in_a_transaction(lookups):
    """A row that was deleted after the transaction began is still there for it, if it reads a snapshot."""
    rows.filter(pk=7).delete()
    rows.filter(pk=7).first()

    assert queries(lambda: rows.filter(pk=7).first()) == 0  # remembered
    with transaction.atomic(using=database.current):
        assert queries(lambda: rows.filter(pk=7).first()) == 1


def test_a_transaction_begun_by_hand_is_left_alone(lookups):
    """``set_autocommit(False)`` and ``BEGIN``: nobody knows what it sees."""
    transaction.set_autocommit(False, using=database.current)
    try:
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1
    finally:
        transaction.rollback(using=database.current)
        transaction.set_autocommit(True, using=database.current)
    run("BEGIN")
    try:
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1
    finally:
        run("ROLLBACK")
    assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0


def test_a_broken_transaction_says_so(lookups):
    """A query in a transaction that is to be rolled back fails as it did."""
    with transaction.atomic(using=database.current):
        transaction.set_rollback(True, using=database.current)
        with pytest.raises(TransactionManagementError):
            rows.filter(pk=ABSENT).first()
        transaction.set_rollback(True, using=database.current)


@database.without_mariadb
def test_an_aborted_transaction_says_so(lookups):
    """PostgreSQL refuses every statement after an error that nobody rolled back to a savepoint."""
    if database.current == "default":
        pytest.skip("SQLite goes on after an error")
    with transaction.atomic(using="postgresql"):
        with pytest.raises(DatabaseError, match="division by zero"):
            run("SELECT 1 / 0")
        with pytest.raises(DatabaseError, match="current transaction is aborted"):
            rows.filter(pk=ABSENT).first()
        transaction.set_rollback(True, using="postgresql")


@database.without_mariadb
def test_text_with_a_nul_is_the_databases(all_filters, lookups):
    """PostgreSQL refuses it; no 404 hides that."""
    look = lambda: Article.objects.filter(slug="a\0b", deleted=False).first()  # noqa: E731
    if database.current == "default":
        assert queries(look) == 1
    else:
        with pytest.raises((ValueError, DatabaseError), match="NUL"):
            look()


# -- event loops


def test_on_an_event_loop_django_refuses_as_ever(lookups):
    """A mistake must not look as if it worked for absent rows."""

    async def look():
        rows.filter(pk=ABSENT).first()

    with pytest.raises(SynchronousOnlyOperation):
        async_to_sync(look)()


def test_the_async_methods_are_answered(lookups):
    """``aget``, ``afirst``, ``aexists``, ``async for`` and the shortcut."""

    async def look():
        with pytest.raises(Product.DoesNotExist):
            await rows.aget(pk=ABSENT)
        with pytest.raises(Http404):
            await aget_object_or_404(Product, pk=ABSENT)
        assert await rows.filter(pk=ABSENT).afirst() is None
        assert not await rows.filter(pk=ABSENT).aexists()
        assert [row async for row in rows.filter(pk=ABSENT)] == []
        assert await rows.filter(pk=ABSENT).ain_bulk() == {}

    assert queries(async_to_sync(look)) == 0


# -- what turns it off


@pytest.mark.parametrize("attributes", [{"lookups": False}, {"sync": "signals"}], ids=str)
def test_a_guard_that_does_not_guard_lookups(clock, attributes):
    """``lookups = False``, or one that misses rows that the ORM writes: routes alone are its business."""
    with registered(Diary, name="off", **attributes) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            assert queries(lambda: Diary.objects.filter(pk=8).first()) == 1


def test_without_a_filter_the_database_answers(fresh):
    """A cold guard sends every query."""
    with guarded_lookups():
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1


@pytest.fixture
def shadow(clock):
    """A guard in shadow mode, of diaries; there is none."""
    with registered(Diary, name="watched", mode="shadow") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        counts.counts.forget()
        yield lambda name: counts.counts.read().get(("watched", name), 0)


def test_in_shadow_mode_the_query_is_sent_and_compared(shadow):
    """Nothing there: a would-be 404; a row that the filter does not have: harm. Once a request."""
    with guarded_lookups():
        assert queries(lambda: Diary.objects.filter(pk=8).first()) == 1
        Diary.objects.filter(pk=9).first()
    assert (shadow(counts.WOULD_BLOCK), shadow(counts.WOULD_HARM)) == (1, 0)

    insert_unseen("shop_diary", id=8, day="2024-12-24")
    with guarded_lookups():
        assert Diary.objects.get(pk=8)

    assert (shadow(counts.WOULD_BLOCK), shadow(counts.WOULD_HARM)) == (2, 1)
    assert shadow(counts.BLOCKED) == shadow(counts.AVOIDED) == 0


def test_in_shadow_mode_a_query_that_django_does_not_send_is_no_harm(shadow):
    """Nothing fits an empty list: the result is an iterator, which is true though it gives nothing."""
    with guarded_lookups():
        assert queries(lambda: list(Diary.objects.filter(pk=8, id__in=[]))) == 0
        assert not Diary.objects.filter(pk=8, id__in=[]).exists()
        select.compare_rows(contexts.get(), registry["watched"], 8, iter([]))
    assert (shadow(counts.WOULD_BLOCK), shadow(counts.WOULD_HARM)) == (0, 0)


@pytest.mark.parametrize("earlier", [{"mode": "shadow"}, {"store": "default"}], ids=["shadow", "cold"])
def test_every_guard_of_a_table_has_its_say(clock, earlier):
    """One in shadow mode, or without a filter, keeps no other one from answering, nor from learning."""
    with registered(Diary, name="a-first", **earlier) as first, registered(Diary, name="b-second") as second:
        if first.mode == "shadow":
            Rebuild(first, sleep=clock.sleep).run()
        Diary.objects.create(pk=7, day="2024-12-24")
        Rebuild(second, sleep=clock.sleep).run()
        counts.counts.forget()
        with guarded_lookups():
            assert queries(lambda: Diary.objects.filter(pk=8).first()) == 0
            Diary.objects.all().delete()
            assert queries(lambda: Diary.objects.filter(pk=7).first()) == 1

    found = counts.counts.read()
    learner = "a-first" if first.mode == "shadow" else "b-second"  # the first that took the key for one that it has
    assert {key: number for key, number in found.items() if key[1] == counts.FALSE_POSITIVE} == {
        (learner, counts.FALSE_POSITIVE): 1
    }


def test_a_false_positive_of_either_guard_is_counted(clock):
    """The one whose column the query compares, however many guards come after it."""
    with registered(Diary, name="a-first") as first, registered(Diary, name="b-second", lookup="day") as second:
        Diary.objects.create(pk=7, day="2024-12-24")
        for guard in (first, second):
            Rebuild(guard, sleep=clock.sleep).run()
        Diary.objects.all().delete()
        counts.counts.forget()
        with guarded_lookups():
            Diary.objects.filter(pk=8).first()  # opens the filter
            assert queries(lambda: Diary.objects.filter(pk=7).first()) == 1

    assert counts.counts.read()["a-first", counts.FALSE_POSITIVE] == 1


def test_an_error_of_our_own_sends_the_query(lookups, monkeypatch, caplog):
    """It is said once, and the database answers."""
    monkeypatch.setattr(select, "_ask_each", lambda *arguments: 1 / 0)

    assert [queries(lambda: rows.filter(pk=ABSENT).first()) for _ in range(2)] == [1, 1]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_it_is_wrapped_once(lookups):
    """``connect`` may be called again."""
    from django.db.models.sql.compiler import SQLCompiler

    before = SQLCompiler.execute_sql
    select.connect()

    assert SQLCompiler.execute_sql is before


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_guard_whose_normalize_has_failed_once_answers_again(fresh, clock):
    """What it needs may be missing for a moment after the process has started."""

    def normalize(self, value):
        if self.is_broken:
            raise OSError("no dictionary")
        return value

    with registered(Product, name="named", lookup="name", normalize=normalize, is_broken=False) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        registry.remove(guard)
        guard = type(guard)(Product)  # as another process has it
        registry.add(guard)
        guard.is_broken = True
        with guarded_lookups():
            assert queries(lambda: Product.objects.filter(name="tea").first()) == 1
            assert guard._runtime.short({}, "tea") is None
            guard.is_broken = False
            assert queries(lambda: Product.objects.filter(name="tea").first()) == 0
            assert guard._runtime.short({}, "tea") is not None
        registry.remove(guard)


def test_models_of_no_guard_are_looked_at_once(lookups):
    """Their lookups are an empty tuple, found in a dictionary."""
    assert select.lookups_of(Review) == ()
    assert select.lookups_of(Product) is select.lookups_of(Product)
    assert make_guard(Product).lookups is True
    assert queries(lambda: Review.objects.filter(pk=1).first()) == 1


def test_related_objects_of_rows_in_hand(lookups):
    """``prefetch_related_objects`` of a foreign key asks for many, which is no query for one row."""
    Review.objects.create(product_id=7)
    [review] = Review.objects.all()

    assert queries(lambda: prefetch_related_objects([review], "product")) == 1
    assert review.product.pk == 7
