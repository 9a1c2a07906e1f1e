"""Guards with a cuckoo filter: a row that goes leaves the filter at once, and no row that is there ever does."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
from django.db import DatabaseError, IntegrityError, connections, models, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Concat

from bloomguard.guards import Guard
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as states
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import discards, joined, observer
from bloomguard.writes.adding import adding
from bloomguard.writes.observer import TransactionObserver
from tests.conftest import forget
from tests.shop.models import Article, Bundle, Place, Product, Ticket
from tests.support import database, servers
from tests.support.guarding import registered
from tests.support.orm_writes import sent, uninstalled, without_autocommit
from tests.support.patience import PATIENT

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ABSENT, MAYBE = Verdict.ABSENT, Verdict.MAYBE
#: For rules that have nothing to do with the database.
on_one_database = pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)


@pytest.fixture(params=database.FORGETTING)
def each_database(request: pytest.FixtureRequest) -> Iterator[str]:
    with database.on(request.param):
        yield request.param


@pytest.fixture
def made(each_database: str, fresh: None, clock: Any) -> Iterator[Callable[..., Guard]]:
    """``made(Model, ...)``: a counting guard of a model, built."""
    open_ones = []

    def make(model: Any, **attributes: Any) -> Guard:
        block = registered(model, **{"filter": "cuckoo", "name": f"counted-{len(open_ones)}", **attributes})
        open_ones.append(block)
        guard = block.__enter__()
        Rebuild(guard, sleep=clock.sleep).run()
        return guard

    yield make
    for block in open_ones:
        block.__exit__(None, None, None)


@pytest.fixture
def articles(made) -> Guard:
    """A guard of articles by slug, those that are not soft-deleted; there are a, b and c, and d that is."""
    for slug in "abcd":
        Article.objects.create(slug=slug, deleted=slug == "d")
    return made(Article, lookup="slug", alive=Q(deleted=False))


def held(guard: Guard) -> int:
    """Keys that the guard's filter counts."""
    known = guard._runtime.active_filter
    return known.generation(known.table.current(guard.name), known.active()).approximate_size()


def atomic() -> Any:
    return transaction.atomic(using=database.current)


@on_one_database
@pytest.mark.parametrize("store", ["memory.MemoryStore", "file.FileStore", "redis.RedisStore"])
def test_created_deleted_and_restored(store, made, settings, tmp_path, django_assert_num_queries):
    """A row is MAYBE while it is there, ABSENT and without a query once it is deleted, MAYBE as soon as it is back."""
    options: dict[str, Any] = {}
    if store == "file.FileStore":
        options = {"path": tmp_path / "other"}
    elif store == "redis.RedisStore":
        options = {"url": servers.valkey(), **PATIENT}
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": f"bloomguard.stores.{store}", "OPTIONS": options}}}
    forget()
    guard = made(Product)
    seen = [guard.verdict(7)]

    Product.objects.create(pk=7)
    seen.append(guard.verdict(7))
    Product.objects.get(pk=7).delete()
    with django_assert_num_queries(0, using=database.current):
        seen.append(guard.verdict(7))
    Product.objects.create(pk=7)
    seen.append(guard.verdict(7))

    assert seen == [ABSENT, MAYBE, ABSENT, MAYBE]
    assert held(guard) == 1


def delete_instance() -> None:
    Article.objects.get(slug="a").delete()


def delete_queryset() -> None:
    Article.objects.filter(slug="a").delete()


def raw_delete() -> None:
    Article.objects.filter(slug="a")._raw_delete(database.current)


def delete_by_subquery() -> None:
    Article.objects.filter(pk__in=Article.objects.filter(slug="a").values("pk")).delete()


def soft_delete_by_save() -> None:
    article = Article.objects.get(slug="a")
    article.deleted = True
    article.save()


def soft_delete_by_save_of_a_field() -> None:
    article = Article.objects.get(slug="a")
    article.deleted = True
    article.save(update_fields=["deleted"])


def soft_delete_by_update() -> None:
    Article.objects.filter(slug="a").update(deleted=True)


def soft_delete_by_expression() -> None:
    Article.objects.filter(slug="a").update(deleted=~F("deleted"))


def soft_delete_by_bulk_update() -> None:
    article = Article.objects.get(slug="a")
    article.deleted = True
    Article.objects.bulk_update([article], ["deleted"])


def soft_delete_by_upsert() -> None:
    Article.objects.bulk_create(
        [Article(slug="a", deleted=True)],
        update_conflicts=True,
        unique_fields=database.conflicting("slug"),
        update_fields=["deleted"],
    )


def rename() -> None:
    Article.objects.filter(slug="a").update(slug="z")


def rename_by_expression() -> None:
    Article.objects.filter(slug="a").update(slug=Concat(F("slug"), Value("-z")))


def rename_by_save() -> None:
    article = Article.objects.get(slug="a")
    article.slug = "z"
    article.save()


GOING = [
    delete_instance,
    delete_queryset,
    raw_delete,
    delete_by_subquery,
    soft_delete_by_save,
    soft_delete_by_save_of_a_field,
    soft_delete_by_update,
    soft_delete_by_expression,
    soft_delete_by_bulk_update,
    soft_delete_by_upsert,
    rename,
    rename_by_expression,
    rename_by_save,
]


@pytest.mark.parametrize("block", [atomic, nullcontext], ids=["atomic", "autocommit"])
def test_what_goes_leaves_the_filter(articles, block):
    """Every way of the ORM to delete, soft-delete or rename a row takes its key out, after the COMMIT and once."""
    for go in GOING:
        with block():
            go()
            before_the_commit = articles.verdict("a")

        assert before_the_commit is (MAYBE if block is atomic else ABSENT), go.__name__
        assert articles.verdict("a") is ABSENT, go.__name__
        assert [articles.verdict(slug) for slug in "bc"] == [MAYBE] * 2, go.__name__
        assert held(articles) == Article.objects.filter(deleted=False).count(), go.__name__
        Article.objects.exclude(slug__in="bcd").delete()
        Article.objects.create(slug="a")


@pytest.mark.parametrize("how", ["atomic", "nested", "by hand", "by SQL"])
def test_what_is_rolled_back_stays(articles, how):
    """No way of rolling back lets a key go: the block, a block inside, or a savepoint made by hand.

    Nor does what the transaction deleted before: its keys stay until the next rebuild.
    """
    for go in GOING:
        roll_back(go, how)

        assert articles.verdict("a") is MAYBE, go.__name__
        assert articles.verdict("b") is MAYBE, go.__name__
        Article.objects.get_or_create(slug="b")

    assert not any(isinstance(known, TransactionObserver) for known in connections[database.current].execute_wrappers)


def roll_back(go: Callable[[], None], how: str) -> None:
    """Delete b, then ``go`` and roll back: all of it, or the second part in one of the ways there are."""
    connection = connections[database.current]
    with atomic():
        Article.objects.filter(slug="b").delete()
        if how == "nested":
            with atomic():
                go()
                transaction.set_rollback(True, using=database.current)
        elif how == "by hand":
            savepoint = connection.savepoint()
            go()
            connection.savepoint_rollback(savepoint)
        elif how == "by SQL":
            with connection.cursor() as cursor:
                cursor.execute("SAVEPOINT mine")
                go()
                cursor.execute("rollback to savepoint mine")
        else:
            go()
            transaction.set_rollback(True, using=database.current)


def save_as_it_is() -> None:
    Article.objects.get(slug="a").save()


def save_the_dead() -> None:
    Article.objects.get(slug="d").save()


def update_to_the_same() -> None:
    Article.objects.filter(slug__in="abc").update(slug=F("slug"), deleted=False)


def swap_two() -> None:
    with atomic():
        Article.objects.filter(slug="a").update(slug="-")
        Article.objects.filter(slug="b").update(slug="a")
        Article.objects.filter(slug="-").update(slug="b")


def revive_the_living() -> None:
    Article.objects.filter(slug="a").update(deleted=False)


def upsert_as_it_is() -> None:
    Article.objects.bulk_create(
        [Article(slug="a"), Article(slug="b")],
        update_conflicts=True,
        unique_fields=database.conflicting("slug"),
        update_fields=["deleted"],
    )


def ignore_conflicts() -> None:
    Article.objects.bulk_create([Article(slug="a"), Article(slug="b")], ignore_conflicts=True)


def ignore_one_conflict() -> None:
    Article.objects.bulk_create([Article(pk=Article.objects.get(slug="a").pk, slug="a")], ignore_conflicts=True)


def create_the_dead() -> None:
    Article.objects.create(slug="e", deleted=True)


def there_and_back() -> None:
    Article.objects.filter(slug="a").update(deleted=True)
    Article.objects.filter(slug="a").update(deleted=False)


def delete_and_create_again() -> None:
    with atomic():
        Article.objects.filter(slug="a").delete()
        Article.objects.create(slug="a")


def get_or_create() -> None:
    Article.objects.get_or_create(slug="a")
    Article.objects.update_or_create(slug="a", defaults={"deleted": False})


STAYING = [
    save_as_it_is,
    save_the_dead,
    update_to_the_same,
    swap_two,
    revive_the_living,
    upsert_as_it_is,
    ignore_conflicts,
    ignore_one_conflict,
    create_the_dead,
    there_and_back,
    delete_and_create_again,
    get_or_create,
]


@pytest.mark.parametrize("then", ["write", "nothing"])
def test_what_ends_unseen_stays(articles, then):
    """The `rollback` of a backend that calls none of Django's, or the driver's own; the COMMIT of the next is seen."""
    connection = connections[database.current]
    row = Article.objects.create(slug="here")
    with without_autocommit():
        row.delete()
        connection.connection.rollback()
        if then == "write":
            Article.objects.create(slug="next")
        connection.commit()

    assert Article.objects.filter(slug="here").exists()
    assert articles.verdict("here") is MAYBE


def test_what_stays_is_counted_once(articles):
    """A write after which the same rows are alive leaves the filter's count as it was, however often it is made."""
    for stay in STAYING:
        for _ in range(3):
            stay()
            Article.objects.filter(slug="e").delete()

        assert [articles.verdict(slug) for slug in "abcde"] == [MAYBE] * 3 + [ABSENT] * 2, stay.__name__
        assert held(articles) == 3, stay.__name__


def delete_none() -> None:
    Article.objects.filter(pk__in=[]).delete()


def delete_none_at_once() -> None:
    Article.objects.filter(pk__in=[])._raw_delete(database.current)


@pytest.mark.parametrize("delete", [delete_none, delete_none_at_once], ids=lambda delete: delete.__name__)
@pytest.mark.parametrize("block", [nullcontext, atomic, without_autocommit], ids=lambda block: block.__name__)
def test_a_delete_of_nothing_locks_nothing(articles, block, delete):
    """Django knows that no row matches and sends nothing; so do we."""
    found = []
    for hooks in (uninstalled(), nullcontext()):
        with hooks, sent() as statements, block():
            delete()
        found.append(statements)

    assert found[0] == found[1]


def test_a_lock_that_the_queryset_asks_for_is_not_taken_for_the_updates(articles):
    """Django's UPDATE has neither its NOWAIT, nor the DISTINCT that PostgreSQL refuses beside a lock."""
    rows = Article.objects.select_for_update(nowait=True).distinct()
    with atomic():
        assert rows.filter(slug="a").update(slug="e") == 1

    assert [articles.verdict(slug) for slug in "abe"] == [ABSENT, MAYBE, MAYBE]


def test_a_row_that_comes_back_is_seen_at_once(articles):
    """A soft-deleted row that is restored is in the filter before the COMMIT."""
    with atomic():
        Article.objects.filter(slug="d").update(deleted=False)
        assert articles.verdict("d") is MAYBE

    assert held(articles) == 4


def test_a_cascade_takes_the_rows_with_it(made):
    """Deleting a child of multi-table inheritance takes out its parent's row, and the child's; once each."""
    parents, children = made(Product), made(Bundle)
    kept, gone = Bundle.objects.create(), Bundle.objects.create()
    assert (held(parents), held(children)) == (2, 2)

    Product.objects.get(pk=gone.pk).delete()

    assert [guard.verdict(gone.pk) for guard in (parents, children)] == [ABSENT] * 2
    assert [guard.verdict(kept.pk) for guard in (parents, children)] == [MAYBE] * 2
    assert (held(parents), held(children)) == (1, 1)


@on_one_database
def test_a_child_may_go_alone(made):
    """With the parent kept, the parent's key stays."""
    parents, children = made(Product), made(Bundle)
    pk = Bundle.objects.create().pk

    Bundle.objects.get(pk=pk).delete(keep_parents=True)

    assert parents.verdict(pk) is MAYBE
    assert children.verdict(pk) is ABSENT


@on_one_database
def test_a_condition_on_the_parents_table_counts_as_well(made):
    """A child whose `alive` is a column of its parent's goes and comes with it."""
    guard = made(Bundle, alive=~Q(name="gone"))
    bundle = Bundle.objects.create(name="here")
    assert held(guard) == 1

    Product.objects.filter(pk=bundle.pk).update(name="gone")
    gone = guard.verdict(bundle.pk)
    Bundle.objects.filter(pk=bundle.pk).update(name="back")

    assert (gone, guard.verdict(bundle.pk), held(guard)) == (ABSENT, MAYBE, 1)


@on_one_database
def test_several_fields(made):
    """A key of two fields goes when either of them changes."""
    guard = made(Place, lookup=("country", "slug"))
    Place.objects.create(country="de", slug="ulm")

    Place.objects.update(country="fr")

    assert guard.verdict(("de", "ulm")) is ABSENT
    assert guard.verdict(("fr", "ulm")) is MAYBE


def test_primary_keys_may_change_places(made):
    """Rows whose primary keys move in one statement: what all of them leave goes, what any of them takes stays."""
    guard = made(Product)
    Product.objects.bulk_create([Product(pk=pk) for pk in (10, 20, 30)])

    Product.objects.filter(pk__in=(10, 20)).update(id=Case(When(id=10, then=Value(40)), default=F("id") + 5))

    assert [guard.verdict(pk) for pk in (10, 20, 25, 30, 40)] == [ABSENT, ABSENT, MAYBE, MAYBE, MAYBE]
    assert held(guard) == 3


@on_one_database
def test_rows_of_one_value_are_counted(made):
    """Where several rows have the looked-up value, it goes with the last of them."""
    guard = made(Product, lookup="name")
    first, second = Product.objects.create(name="twin"), Product.objects.create(name="twin")

    first.delete()
    after_one = guard.verdict("twin")
    second.delete()

    assert (after_one, guard.verdict("twin")) == (MAYBE, ABSENT)


def test_what_two_rows_exchange_is_counted_once(made):
    """No key is new, and none is added: with both rows, both go."""
    guard = made(Product, lookup="name")
    Product.objects.bulk_create([Product(pk=1, name="one"), Product(pk=2, name="two")])

    Product.objects.update(name=Case(When(name="one", then=Value("two")), default=Value("one")))
    Product.objects.all().delete()

    assert [guard.verdict(name) for name in ("one", "two")] == [ABSENT, ABSENT]


def test_of_two_that_delete_one_row_one_discards(made):
    """Two transactions delete one row at the same time, and two rows share a key: it stays for the one that is left."""
    guard = made(Product, lookup="name")
    for _ in range(10):
        gone, kept = Product.objects.create(name="twin"), Product.objects.create(name="twin")
        start = threading.Barrier(2)
        using = database.current

        def delete(pk=gone.pk, start=start, using=using):
            start.wait()
            Product.objects.using(using).filter(pk=pk).delete()
            connections.close_all()

        threads = [threading.Thread(target=delete) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert guard.verdict("twin") is MAYBE
        assert held(guard) == 1
        kept.delete()


def test_a_copy_in_another_database_is_nobodys_to_discard(articles):
    """Deleting from a database that rebuilds do not read leaves the filter alone."""
    other = "postgresql" if database.current == "default" else "default"
    Article.objects.using(other).create(slug="a")

    Article.objects.using(other).filter(slug="a").delete()

    assert articles.verdict("a") is MAYBE


def test_a_commit_that_is_a_rollback_lets_nothing_go(articles, each_database):
    """An error that was swallowed makes PostgreSQL answer COMMIT by rolling back: the row is still there."""
    with atomic():
        Article.objects.filter(slug="a").delete()
        with pytest.raises(DatabaseError), connections[database.current].cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")

    assert Article.objects.filter(slug="a").exists() == (each_database == "postgresql")
    assert articles.verdict("a") is MAYBE


def test_a_transaction_that_failed_unseen_lets_nothing_go(articles, each_database):
    """The same where the error came past Django: the connection itself is asked before the COMMIT."""
    connection = connections[database.current]
    with atomic():
        Article.objects.filter(slug="a").delete()
        if each_database == "postgresql":
            with connection.connection.cursor() as cursor, pytest.raises(Exception, match="nowhere"):
                cursor.execute("SELECT nonsense FROM nowhere")
        else:
            connection.connection.rollback()

    assert Article.objects.filter(slug="a").exists()
    assert articles.verdict("a") is MAYBE


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_a_child_that_ends_its_parents_transaction_loses_no_key(made, settings, tmp_path, each_database, end):
    """It shares its parent's session: `sys.exit()` in an `atomic` block rolls back for both.

    If both commit, a key that two rows have goes once at most.
    """
    options = {"path": tmp_path / "filters"}  # which children write too
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": options}}}
    forget()
    Product.objects.create(name="twin")
    twins = Product.objects.filter(pk__gte=Product.objects.create(name="twin").pk if end == "commit" else 0)
    guard = made(Product, lookup="name")
    connection = connections[database.current]
    with atomic():
        twins.delete()
        child = os.fork()
        if child == 0:
            try:  # as the end of an `atomic` block does
                connection.in_atomic_block = False
                getattr(connection, end)()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0) == (child, 0)
    connection.close()

    # On SQLite, a child that rolls back undoes nothing of its parent's, so no twin is left.
    is_left = end == "commit" or connection.vendor != "sqlite"
    assert Product.objects.filter(name="twin").exists() == is_left
    assert guard.verdict("twin") is (MAYBE if is_left else ABSENT)


def test_an_error_keeps_the_keys_that_were_deleted_before_it(articles):
    """Those that are deleted after a refused write in an inner block go."""
    with atomic():
        Article.objects.filter(slug="a").delete()
        with pytest.raises(IntegrityError), atomic():
            Article.objects.create(slug="b")
        Article.objects.filter(slug="b").delete()

    assert articles.verdict("a") is MAYBE
    assert articles.verdict("b") is ABSENT


@on_one_database
def test_a_token_is_for_the_generation_that_was_active(articles, clock):
    """A row deleted before a rebuild, and committed after it, is not taken out of the new generation."""
    token = discards.Alive(articles._runtime.active_filter.active(), {})
    Rebuild(articles, sleep=clock.sleep).run()

    articles._runtime.active_filter.discard([articles._meta.keys.key("a")], token.generation)

    assert articles.verdict("a") is MAYBE


@on_one_database
def test_a_fenced_guard_discards_nothing(articles):
    """While the guard is out of use there is no generation to discard from, and deleting goes on."""
    articles._runtime.active_filter.table.fence(articles.name, "for a test")
    articles._runtime.active_filter.table.forget()

    Article.objects.filter(slug="a").delete()

    assert articles._runtime.active_filter.active() == ""


@on_one_database
def test_a_store_that_fails_keeps_the_key(articles, monkeypatch, caplog):
    """A discard that fails is not tried again and fails no delete: the key is one too many until the next build."""
    from bloomguard.exceptions import StoreError
    from bloomguard.stores.memory import FrameGeneration

    tried = []

    def fail(self, keys):
        tried.append(keys)
        raise StoreError("full of woe")

    monkeypatch.setattr(FrameGeneration, "discard", fail)
    with caplog.at_level("INFO", "bloomguard"):
        Article.objects.filter(slug="a").delete()

    assert len(tried) == 1
    assert "full of woe" in caplog.text
    assert articles.verdict("a") is MAYBE


def test_deletes_of_a_transaction_go_to_the_store_together(articles, monkeypatch):
    """After its COMMIT the store is asked once, also if it does not respond; keys beyond a limit stay."""
    monkeypatch.setattr(observer, "MOST_DELETES", 2)
    discard = mock.Mock(wraps=articles._runtime.active_filter.discard)
    monkeypatch.setattr(articles._runtime.active_filter, "discard", discard)

    with atomic():
        for article in Article.objects.order_by("slug"):
            article.delete()
        discard.assert_not_called()

    discard.assert_called_once()
    assert [articles.verdict(slug) for slug in "abcd"] == [ABSENT, ABSENT, MAYBE, ABSENT]


@on_one_database
def test_a_great_many_rows_wait_for_the_next_build(articles, monkeypatch):
    """Beyond the limit no list of keys is kept; the rows go, and their keys at the next build."""
    monkeypatch.setattr(discards, "MOST_ROWS", 2)

    Article.objects.all().delete()

    assert [articles.verdict(slug) for slug in "abc"] == [MAYBE] * 3


class Label(models.Model):
    """A row of a table that is older than its model: what it has as primary key is neither unique nor always there."""

    text = models.CharField(max_length=50)

    class Meta:
        app_label, db_table = "shop_own", "raw_labels"


@pytest.fixture
def labels(each_database: str) -> Iterator[Any]:
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE raw_labels (id bigint, text varchar(50) NOT NULL)")
        cursor.execute("INSERT INTO raw_labels VALUES (1, 'a'), (1, 'b'), (2, 'c'), (NULL, 'd')")
        try:
            yield Label
        finally:
            cursor.execute("DROP TABLE raw_labels")


@pytest.mark.parametrize("alive", [Q(), ~Q(text="")], ids=["all rows", "alive rows"])
@pytest.mark.parametrize("text", "ab")
def test_of_rows_that_share_a_primary_key_none_is_lost(labels, made, text, alive):
    """Which of them has changed cannot be told, so no key goes."""
    guard = made(labels, lookup="text", alive=alive)

    labels.objects.filter(text=text).update(text="new")

    texts = list(labels.objects.values_list("text", flat=True))
    assert sorted(texts) == sorted({*"abcd", "new"} - {text})
    assert ABSENT not in map(guard.verdict, texts)
    labels.objects.filter(text="new").delete()
    assert ABSENT not in map(guard.verdict, labels.objects.values_list("text", flat=True))
    labels.objects.create(pk=1, text="more")
    assert ABSENT not in map(guard.verdict, labels.objects.values_list("text", flat=True))


def test_the_key_of_a_row_without_a_primary_key_is_not_lost(labels, made):
    """By a NULL no row is found again."""
    guard = made(labels, lookup="text")

    labels.objects.filter(text="d").update(text="new")

    assert guard.verdict("new") is not ABSENT


def test_a_key_is_not_discarded_again_by_each_piece_of_an_update(made, monkeypatch):
    """An UPDATE of too many rows is added in pieces, none of which shows what is gone: another row may have the key."""
    monkeypatch.setattr(discards, "MOST_ROWS", 3)
    Product.objects.create(name="x")
    twin = Product.objects.create(name="x")
    Product.objects.bulk_create([Product(name="") for _ in range(6)])
    guard = made(Product, lookup="name", alive=~Q(name=""))

    assert Product.objects.exclude(pk=twin.pk).update(name=Concat("name", Value("-new"))) == 7

    assert [guard.verdict(name) for name in ("x", "x-new", "-new", "y")] == [MAYBE, MAYBE, MAYBE, ABSENT]


@on_one_database
def test_a_guard_that_follows_signals_keeps_what_it_has(made):
    """With `sync = "signals"` nothing is discarded, so a save adds nothing twice."""
    guard = made(Product, sync="signals")
    product = Product.objects.create()
    for _ in range(20):
        product.save()
    Product.objects.all().delete()

    assert guard.verdict(product.pk) is MAYBE
    assert held(guard) == 1


@on_one_database
def test_a_guard_that_counts_does_not_trust_one_that_did_not(made):
    """A filter built under `sync = "signals"` holds a key once for many rows: to discard from it would lose some."""
    guard = made(Product, sync="signals")

    other = type("Other", (type(guard),), {"sync": "statements", "name": guard.name})(Product)

    assert guard._meta.definition != other._meta.definition


@on_one_database
def test_nothing_is_read_for_guards_that_cannot_discard(made, django_assert_num_queries):
    """A Bloom filter's guard costs a DELETE nothing."""
    made(Product, filter="bloom")

    with django_assert_num_queries(1, using=database.current):
        Product.objects.filter(pk=1)._raw_delete(database.current)


@on_one_database
def test_nothing_is_read_before_sqlite_gives_the_lock(articles, made, clock, monkeypatch):
    """Not even the state rows, because of what a trigger writes: after a read SQLite does not wait for the lock."""
    made(Product)
    connection, found, renew = connections["default"], [], states.table.renew
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TRIGGER goes AFTER DELETE ON shop_article BEGIN INSERT INTO shop_product (name) VALUES (''); END"
        )
    try:
        Article.objects.filter(slug="b").update(slug="e")  # so the catalogue is known
        clock.now += 10
        # Another thread has the connection to the state rows for too long.
        monkeypatch.setattr(states.table, "renew", lambda **how: states.table.within.read is not None and renew(**how))
        connection.connection.set_trace_callback(found.append)

        Article.objects.filter(slug="a").update(slug="f")
    finally:
        connection.connection.set_trace_callback(None)
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER goes")

    assert found[found.index("BEGIN") + 1] == 'DELETE FROM "shop_article" WHERE 0'


def test_others_may_go_on_pointing_to_a_row_that_is_changed(articles):
    """A foreign key to it is checked while its change is not committed, as without the guard."""
    if database.current != "postgresql":
        pytest.skip("SQLite locks no rows")
    other = connections.create_connection("postgresql")
    try:
        with atomic(), other.cursor() as cursor:
            Article.objects.filter(slug="a").update(deleted=True)
            cursor.execute("SELECT slug FROM shop_article WHERE slug = 'a' FOR KEY SHARE NOWAIT")
            assert cursor.fetchall() == [("a",)]
    finally:
        other.close()


def two_rows(guard: Guard, values: Any) -> None:
    """Two places that raw SQL writes, with one slug; ``values`` are added."""
    sql = "INSERT INTO shop_place (id, country, slug) VALUES (901, 'de', 'Ulm'), (902, 'DE', 'Ulm')"
    with adding(guard, using=database.current) as add, connections[database.current].cursor() as cursor:
        cursor.execute(sql)
        add(values)


ONCE = {
    "not unique": ({"lookup": "slug"}, {"Ulm"}, "Ulm"),
    "normalized": (
        {"lookup": ("country", "slug"), "normalize": lambda self, value: value.lower()},
        {("de", "ulm")},
        ("DE", "Ulm"),
    ),
}


@pytest.mark.parametrize(("options", "values", "asked"), ONCE.values(), ids=ONCE)
def test_a_key_that_was_added_once_for_two_rows_outlives_the_first(made, options, values, asked):
    """Who adds keys of raw SQL cannot be held to one add for each row."""
    guard = made(Place, **options)
    two_rows(guard, values)
    Place.objects.filter(country="de").delete()

    assert guard.verdict(asked) is not ABSENT


@pytest.mark.parametrize(
    ("lookup", "values"), [("pk", (901, 902)), (("country", "slug"), [("de", "Ulm"), ("us", "Ulm")])]
)
def test_unique_keys_of_raw_sql_are_discarded(made, lookup, values):
    """One key is one row there, however often it is added."""
    guard = made(Place, lookup=lookup)
    if lookup == "pk":
        with adding(guard, using=database.current) as add, connections[database.current].cursor() as cursor:
            cursor.execute("INSERT INTO shop_place (id, country, slug) VALUES (901, 'de', 'Ulm'), (902, 'us', 'Ulm')")
            add(values)
    else:
        two_rows(guard, values)
    Place.objects.filter(country="de").delete()

    assert [guard.verdict(value) for value in values] == [ABSENT, MAYBE]


@on_one_database
def test_rows_are_read_again_in_parts(articles, monkeypatch):
    """What an UPDATE leaves alive is found again in every part, so that none of it counts as gone."""
    monkeypatch.setattr(joined, "_PARAMETERS", 2)

    Article.objects.filter(slug__in="abc").update(deleted=False)

    assert [articles.verdict(slug) for slug in "abc"] == [MAYBE] * 3
    assert held(articles) == 3


@on_one_database
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python sets no limits of SQLite")
def test_a_primary_key_of_two_columns_keeps_below_the_limit_of_parameters(made):
    """SQLite took 999 before version 3.32; each row needs two."""
    Ticket.objects.bulk_create([Ticket(event=1, number=number) for number in range(600)])
    guard = made(Ticket)
    connections[database.current].connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)

    Ticket.objects.update(number=F("number") + 1_000)

    assert [guard.verdict((1, number)) for number in (599, 1_599)] == [ABSENT, MAYBE]
