"""Between a deploy and its migrations: the tables, the filters and the code are of different versions."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest
from django.apps import apps
from django.db import connections, models
from django.db.models import Q
from django.test.utils import isolate_apps

from bloomguard import adding
from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import fencing, unknown_guards
from tests.shop.models import Article, Bundle, Product
from tests.support import database
from tests.support.guarding import registered
from tests.writes.test_unknown_guards import alone, execute, historical

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

LEASE = state.LEASE_SECONDS

#: Writes to a table whose model this version has no more.
WRITES = {
    "a migration": lambda: historical().objects.using(database.current).create(pk=77, name="new"),
    "a migration, in bulk": lambda: historical().objects.using(database.current).bulk_create([Product(pk=77)]),
    "raw SQL": lambda: execute("INSERT INTO shop_product (id, name) VALUES (77, 'new')"),
    "a copy": lambda: execute(
        "INSERT INTO shop_product (id, name) SELECT 77, name FROM shop_product WHERE id = %s", 1_001
    ),
}


class Without:
    """The apps, as if the products' models were gone."""

    @staticmethod
    def get_models(**options):
        return [model for model in apps.get_models(**options) if not issubclass(model, Product)]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_a_table_of_a_model_that_is_gone(each_database, fresh, clock, monkeypatch, write):
    """A migration writes rows and then drops, renames or leaves the table: until then the old version serves it."""
    Product.objects.create(pk=1_001, name="first")
    guard = registry["product"]
    Rebuild(guard, sleep=clock.sleep).run()
    with alone():
        monkeypatch.setattr(unknown_guards, "apps", Without)
        state.table.forget()
        write()
    clock.sleep(LEASE)

    assert GuardState.objects.get(name="product").status == FENCED
    assert guard.verdict(77) is Verdict.UNKNOWN


@pytest.mark.parametrize("filter", ["bloom", "cuckoo"])
def test_a_column_that_is_not_there_yet_stops_no_write(each_database, fresh, clock, monkeypatch, filter):
    """Of the columns that the statement itself names, all are there: without bloomguard it works."""
    Article.objects.create(pk=1_001, slug="old")
    with registered(Article, name="thing", lookup="pk", alive=Q(deleted=False), filter=filter) as former:
        Rebuild(former, sleep=clock.sleep).run()
    monkeypatch.setattr(Article._meta.get_field("slug"), "column", "new_slug")
    with registered(Article, name="thing", lookup="slug", alive=Q(deleted=False), filter=filter):
        state.table.forget()
        for deleted in (True, False):
            assert Article.objects.filter(pk=1_001).update(deleted=deleted) == 1

    assert GuardState.objects.get(name="thing").status == FENCED


def test_a_guard_that_has_no_filter_yet_needs_no_column(each_database, fresh, clock, monkeypatch):
    """The table has two guards. The one that the new version brings is built after the migration."""
    Article.objects.create(pk=1_001, slug="old")
    with registered(Article, name="thing", lookup="pk", alive=Q(deleted=False)) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        monkeypatch.setattr(Article._meta.get_field("slug"), "column", "new_slug")
        with registered(Article, name="other", lookup="slug", alive=Q(deleted=False)):
            for deleted in (True, False):
                assert Article.objects.filter(pk=1_001).update(deleted=deleted) == 1

        assert GuardState.objects.get(name="thing").status == ARMED
        assert guard.verdict(1_001) is Verdict.MAYBE


@pytest.mark.parametrize("has_filter", [False, True])
def test_a_column_that_is_not_there_yet_stops_no_save(each_database, fresh, clock, monkeypatch, has_filter):
    """A guard that follows signals reads the row back only if it has a filter that it can add to."""
    article = Article.objects.create(pk=1_001, slug="old")
    if has_filter:
        with registered(Article, name="thing", lookup="pk", sync="signals") as former:
            Rebuild(former, sleep=clock.sleep).run()
    monkeypatch.setattr(Article._meta.get_field("slug"), "column", "new_slug")
    with registered(Article, name="thing", lookup="slug", sync="signals"):
        state.table.forget()
        article.deleted = True
        article.save(update_fields=["deleted"])

    assert [row.status for row in GuardState.objects.filter(name="thing")] == [FENCED] * has_filter


@pytest.mark.parametrize(
    "write",
    [
        lambda: Article.objects.create(pk=1_004, slug="four"),
        lambda: Article.objects.bulk_create([Article(pk=1_004, slug="four")]),
        lambda: Article.objects.filter(pk=1_001).update(slug="four"),
    ],
    ids=["create", "bulk_create", "update"],
)
def test_the_first_build_of_a_new_version_is_not_fenced_by_its_own_processes(each_database, fresh, clock, write):
    """A process reads that the filter is of its version now, and only then decides how to follow its statement."""
    Article.objects.create(pk=1_001, slug="old")
    with registered(Article, name="thing", lookup="pk") as former:
        Rebuild(former, sleep=clock.sleep).run()
    with registered(Article, name="thing", lookup="slug") as guard:
        Article.objects.create(pk=1_002, slug="two")  # fences
        clock.sleep(3 * LEASE)
        Article.objects.create(pk=1_003, slug="three")
        known = state.table.copy
        rebuild = Rebuild(guard, sleep=clock.sleep)
        announce = rebuild.announce

        def announce_and_write():
            announce()
            clock.sleep(LEASE)
            state.table.copy = known  # as another process has it
            registry.replan_writes()
            write()
            state.table.renew(after=clock())

        rebuild.announce = announce_and_write
        rebuild.run()

        assert guard.verdict("four") is Verdict.MAYBE


def test_an_update_of_a_column_that_only_the_other_version_watches(each_database, fresh, clock):
    """Also by a process that has answered no absent ID since the filter of that version was built."""
    Article.objects.create(pk=1_001, slug="old", deleted=True)
    with registered(Article, name="thing", lookup="slug") as former:
        Rebuild(former, sleep=clock.sleep).run()
        known = state.table.copy
    with registered(Article, name="thing", lookup="slug", alive=Q(deleted=False)) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
    with registered(Article, name="thing", lookup="slug"):
        state.table.copy = known  # as the other process has it
        clock.sleep(10 * LEASE)
        Article.objects.filter(pk=1_001).update(deleted=False)
    clock.sleep(LEASE)

    assert GuardState.objects.get(name="thing").status == FENCED
    assert guard.verdict("old") is Verdict.UNKNOWN


def test_the_tables_of_one_guard_of_another_version_wait_together(each_database, fresh, clock):
    """A migration that renames a table names it as the filter has it, and as the new version has it."""
    with ExitStack() as former:
        for name in ("one", "two", "three"):
            Rebuild(former.enter_context(registered(Bundle, name=name, lookup="name")), sleep=clock.sleep).run()
    state.table.forget()
    state.table.renew()
    unknown_guards.compare_copy()
    found = [guard for _, guard in unknown_guards.unknown_guards(registry.plans)]
    began = clock.now
    fencing.fence(dict.fromkeys(found, "it was renamed"), database.current)

    assert sorted(guard.name for guard in found) == ["one", "one", "three", "three", "two", "two"]
    assert clock.now - began < 3 * LEASE
    assert {row.status for row in GuardState.objects.all()} == {FENCED}


@pytest.fixture
def hidden(each_database):
    """A second column, which a migration has made and filled, to be read instead of `deleted`."""
    execute("ALTER TABLE shop_article ADD COLUMN hidden boolean DEFAULT false NOT NULL")
    yield
    execute("ALTER TABLE shop_article DROP COLUMN hidden")


def test_a_field_of_alive_that_reads_another_column(hidden, fresh, clock, monkeypatch):
    """Nothing in the condition tells: but a filter of the rows that one column chooses lacks those of the other."""
    Article.objects.create(pk=1_001, slug="seen", deleted=True)
    options = {"name": "thing", "lookup": "slug", "alive": Q(deleted=False)}
    with registered(Article, **options) as former:
        Rebuild(former, sleep=clock.sleep).run()
        assert former.verdict("seen") is Verdict.ABSENT
    monkeypatch.setattr(Article._meta.get_field("deleted"), "column", "hidden")
    with registered(Article, **options) as guard:
        clock.sleep(LEASE)

        assert guard._meta.rows().filter(slug="seen").exists()
        assert guard.verdict("seen") is Verdict.UNKNOWN


@isolate_apps("tests.shop")
def offers(shown: Q, number: type[models.Field] = models.IntegerField) -> type[models.Model]:
    """The model of a version of the project that shows these rows."""

    class Offer(models.Model):
        stock = number()
        hidden = models.BooleanField()
        visible = models.GeneratedField(expression=shown, output_field=models.BooleanField(), db_persist=True)

        class Meta:
            app_label = "shop"

    return Offer


def test_a_generated_column_of_alive_that_is_computed_from_another_one(each_database, fresh, clock):
    """A process of the version before the migration does not know that its UPDATE shows a row."""
    before, after = offers(Q(stock__gt=0)), offers(Q(stock__gt=0, hidden=False))
    options = {"name": "thing", "alive": Q(visible=True)}
    with connections[database.current].schema_editor() as editor:
        editor.create_model(after)
    try:
        with registered(after, **options) as guard:
            after.objects.create(pk=1_001, stock=1, hidden=True)
            Rebuild(guard, sleep=clock.sleep).run()
            assert guard.verdict(1_001) is Verdict.ABSENT
        with registered(before, **options):
            state.table.forget()
            before.objects.update(hidden=False)
        clock.sleep(LEASE)

        assert guard._meta.rows().filter(pk=1_001).exists()
        assert guard.verdict(1_001) is Verdict.UNKNOWN
    finally:
        with connections[database.current].schema_editor() as editor:
            editor.delete_model(after)


def test_a_column_of_alive_of_another_type(fresh):
    """One version compares it as a number, the other one as a truth value: a row with 2 is alive for one of them."""
    hashes = set()
    for number in (models.IntegerField, models.BooleanField):
        with registered(offers(Q(hidden=False), number), name="thing", alive=Q(stock=True)) as guard:
            hashes.add(guard._meta.definition_hash)

    assert len(hashes) == 2


@isolate_apps("tests.shop")
@pytest.mark.parametrize("use_tz", [False, True])
def test_times_that_are_read_in_another_zone(fresh, monkeypatch, settings, use_tz):
    """It decides which rows a moment in `alive` is before."""

    class Event(models.Model):
        at = models.DateTimeField()

        class Meta:
            app_label = "shop"

    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Europe/Berlin"
    with registered(Event, name="thing", alive=Q(at__gte="2024-01-01T00:00Z")) as guard:
        first = guard._meta.definition_hash
        monkeypatch.setitem(connections.settings["default"], "TIME_ZONE", "America/New_York")
        second = guard._meta.definition_hash
        settings.TIME_ZONE = "America/New_York"
        third = guard._meta.definition_hash

    assert (first == second, second == third) == (not use_tz, use_tz)


def test_a_column_in_another_parents_table(each_database, fresh, monkeypatch):
    with registered(Bundle, name="thing", lookup="name") as former:
        before = former._meta.definition
        monkeypatch.setattr(Product._meta, "db_table", "shop_goods")
        with_another_table = former._meta.definition

    assert before != with_another_table


def version(normalize):
    """A guard whose class has the same name in each version of the project."""
    normalize.__qualname__ = "ArticleGuard.normalize"
    return {"name": "thing", "lookup": "slug", "normalize": normalize}


def test_a_normalize_that_does_something_else(each_database, fresh, clock):
    """Neither version answers by the other one's keys, and a write fences."""
    Article.objects.create(slug="Mixed")
    with registered(Article, **version(lambda self, value: value.lower())) as former:
        Rebuild(former, sleep=clock.sleep).run()
        assert [former.verdict("MIXED"), former.verdict("gone")] == [Verdict.MAYBE, Verdict.ABSENT]
    with registered(Article, **version(lambda self, value: value.upper())) as guard:
        state.table.forget()

        assert guard.verdict("MIXED") is Verdict.UNKNOWN
        Article.objects.create(slug="Other")
    assert GuardState.objects.get(name="thing").status == FENCED


def test_a_normalize_that_fails_for_a_while_is_asked_again(fresh, monkeypatch):
    """Such as one that reads a file: until then the guard has no definition, and passes."""
    working = []

    def normalize(self, value):
        if not working:
            raise OSError("no file")
        return value.lower()

    with registered(Article, **version(normalize)) as guard:
        assert guard._meta.definition_hash == ""
        assert guard.verdict("a") is Verdict.UNKNOWN
        working.append(True)
        assert guard._meta.definition_hash != ""


class Unparsable(Exception):
    """As packages raise it for a text that is of another kind."""


def test_a_normalize_that_takes_few_texts_has_a_definition(fresh):
    """Its errors are the same in every process."""

    def normalize(self, value):
        if not value.startswith("+49"):
            raise Unparsable
        return value.replace(" ", "")

    with registered(Article, **version(normalize)) as guard:
        assert guard._meta.definition == guard._meta.definition
        assert guard._meta.definition_hash != ""


def test_a_version_that_learns_of_another_ones_filter_only_when_it_adds(each_database, fresh, clock):
    """The fence names the process to be stopped: after a rebuild alone it would be fenced again."""
    with registered(Article, name="thing", lookup="slug") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        known = state.table.copy
    with registered(Article, name="thing", lookup="pk") as other:
        Rebuild(other, sleep=clock.sleep).run()
    with registered(Article, name="thing", lookup="slug"):
        state.table.copy = known
        Article.objects.create(pk=1_002, slug="two")

    assert GuardState.objects.get(name="thing").reason == unknown_guards.reason()


@pytest.mark.parametrize("by_hand", [False, True], ids=["create", "adding"])
def test_a_version_with_another_store_names_itself(each_database, fresh, clock, monkeypatch, by_hand):
    """Its store is no option of the guard, so nothing else tells which process has to be stopped."""
    with registered(Article, name="thing", lookup="slug") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        monkeypatch.setattr(ActiveFilter, "add", lambda *arguments, **options: False)
        if by_hand:
            with adding(guard, using=database.current) as add:
                execute("INSERT INTO shop_article (slug, deleted) VALUES ('two', %s)", False)
                add(["two"])
        else:
            Article.objects.create(pk=1_002, slug="two")

    reason = GuardState.objects.get(name="thing").reason
    assert reason == f"a written row could not be added to its filter (process {os.getpid()} on {socket.gethostname()})"


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_a_renamed_table_that_the_old_version_reads_by_a_view(each_database, fresh, clock, monkeypatch):
    """The new version has no model of the old name, and writes to the new one."""
    Product.objects.create(name="first")
    guard = registry["product"]
    Rebuild(guard, sleep=clock.sleep).run()
    try:
        with alone():
            monkeypatch.setattr(unknown_guards, "apps", Without)
            execute("ALTER TABLE shop_product RENAME TO shop_goods")
            assert GuardState.objects.get(name="product").status == FENCED
            execute("CREATE VIEW shop_product AS SELECT * FROM shop_goods")
            # As if somebody had renamed it by another program.
            GuardState.objects.filter(name="product").update(status=ARMED, token="x")
            state.table.forget()
            registry.replan()
            execute("INSERT INTO shop_goods (name) VALUES ('new')")
        assert GuardState.objects.get(name="product").status == FENCED
    finally:
        execute("DROP VIEW IF EXISTS shop_product")
        execute("ALTER TABLE shop_goods RENAME TO shop_product")
