"""Keys that depend on a model's own table and on its parent's, while two transactions write one of them each."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from django.db import connections, models, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import Q

from bloomguard.exceptions import RebuildError
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from tests.support import database
from tests.support.guarding import registered
from tests.support.roles import as_role
from tests.support.servers import until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    # SQLite lets one write at a time.
    pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True),
]

BLOCKED = {
    # A backend that waits holds others of this database, not of another worker's.
    "postgresql": "SELECT count(*) FROM pg_locks waiting JOIN pg_locks held USING (pid) "
    "JOIN pg_database ON held.database = pg_database.oid WHERE NOT waiting.granted AND datname = current_database()",
    # The tables that list the locks show nothing new to whoever asks ten times a second.
    "mysql": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
}


class Paper(models.Model):
    country = models.CharField(max_length=50)
    published = models.BooleanField(default=False)

    class Meta:
        app_label, db_table = "shop_own", "raw_paper"


class Essay(Paper):
    slug = models.CharField(max_length=50)
    note = models.CharField(max_length=50, default="")

    class Meta:
        app_label, db_table = "shop_own", "raw_essay"


@pytest.fixture
def tables(each_database, fresh):
    connection = connections[database.current]
    with connection.schema_editor() as editor:
        editor.create_model(Paper)
        editor.create_model(Essay)
    yield
    with connection.schema_editor() as editor:
        editor.delete_model(Essay)
        editor.delete_model(Paper)


def is_blocked() -> bool:
    with connections[database.current].cursor() as cursor:
        cursor.execute(BLOCKED[connections[database.current].vendor])
        return int(cursor.fetchone()[-1]) > 0


def race(first, second, meanwhile=lambda: True) -> None:
    """``second`` runs in another transaction while that of ``first`` is not committed, or waits for it.

    ``meanwhile``: what has to hold before that is committed.
    """
    ended, errors = threading.Event(), []

    def work():
        try:
            with transaction.atomic(using=database.current):
                second()
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()
            ended.set()

    other = threading.Thread(target=work)
    with transaction.atomic(using=database.current):
        first()
        other.start()
        until(lambda: ended.is_set() or is_blocked())
        was_so = meanwhile()
    other.join()
    assert was_so
    assert errors == []


def publish():
    assert Paper.objects.update(published=True, country="fr") == 1


def rename():
    assert Essay.objects.update(slug="new") == 1


@pytest.mark.parametrize("order", [1, -1], ids=["parent first", "child first"])
@pytest.mark.parametrize(
    "options",
    [
        {"lookup": "slug", "filter": "cuckoo", "alive": Q(published=True)},
        {"lookup": ("country", "slug")},
        {"lookup": ("country", "slug"), "filter": "cuckoo"},
        {"lookup": ("country", "slug"), "filter": "cuckoo", "alive": Q(published=True)},
    ],
    ids=["alive", "key", "counted key", "counted key, alive"],
)
def test_two_updates_of_one_row_lose_no_key(tables, clock, options, order):
    """What the row has in the end, neither of them has seen."""
    Essay.objects.create(country="de", slug="old")
    with registered(Essay, name="essay", **options) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        race(*(publish, rename)[::order])

        assert Essay.objects.filter(country="fr", slug="new", published=True).exists()
        key = "new" if guard.lookup == "slug" else ("fr", "new")
        assert guard.verdict(key) is Verdict.MAYBE
        assert guard.verdict("other" if guard.lookup == "slug" else ("fr", "other")) is Verdict.ABSENT
        assert state.table.current("essay").status == ARMED


@pytest.mark.parametrize("order", [1, -1], ids=["parent first", "child first"])
@pytest.mark.parametrize("lookup", ["country", ("country", "slug")])
@pytest.mark.parametrize("filter", ["bloom", "cuckoo"])
def test_a_child_of_an_older_row_has_the_key_that_this_gets(tables, clock, lookup, filter, order):
    """As a loader saves it, without the parent's row."""
    paper = Paper.objects.create(country="de")

    def add():
        Essay(paper_ptr=paper, slug="new").save_base(raw=True, using=database.current)

    with registered(Essay, name="essay", lookup=lookup, filter=filter) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        race(*(publish, add)[::order])

        assert Essay.objects.get().country == "fr"
        assert guard.verdict("fr" if lookup == "country" else ("fr", "new")) is Verdict.MAYBE
        assert state.table.current("essay").status == ARMED


@pytest.mark.parametrize("order", [1, -1], ids=["parent first", "child first"])
@pytest.mark.parametrize("filter", ["bloom", "cuckoo"])
def test_a_row_that_gets_another_parent_has_the_key_that_this_gets(tables, clock, filter, order):
    """The link decides which row the key is of."""
    Essay.objects.create(country="it", slug="old")
    paper = Paper.objects.create(country="de")

    def link():
        assert Essay.objects.update(paper_ptr=paper) == 1

    def change():
        assert Paper.objects.filter(pk=paper.pk).update(country="fr") == 1

    with registered(Essay, name="essay", lookup="country", filter=filter) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        race(*(change, link)[::order])

        assert Essay.objects.get().country == "fr"
        assert guard.verdict("fr") is not Verdict.ABSENT


def test_a_row_may_get_a_parent_that_is_not_committed_yet(tables, clock):
    """Without a constraint: whoever links it sees no key, and who makes the parent's row sees no link."""
    Essay.objects.create(country="it", slug="old")
    connection = connections[database.current]
    with connection.schema_editor() as editor, connection.cursor() as cursor:
        for name, found in connection.introspection.get_constraints(cursor, "raw_essay").items():
            if found["foreign_key"]:
                editor.execute(editor._delete_fk_sql(Essay, name))

    def make():
        Paper(pk=77, country="fr").save(force_insert=True, using=database.current)

    with registered(Essay, name="essay", lookup="country") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        race(make, lambda: Essay.objects.update(paper_ptr=77))

        assert Essay.objects.get().country == "fr"
        assert guard.verdict("fr") is not Verdict.ABSENT


@pytest.mark.parametrize("lookup", ["country", ("country", "slug")])
def test_a_child_that_an_older_snapshot_does_not_show_fences(tables, clock, lookup):
    """The UPDATE finds the parent's row, and no query of the transaction the child's."""
    paper = Paper.objects.create(country="de")
    connection = connections[database.current]

    def add():
        Essay(paper_ptr=paper, slug="new").save_base(raw=True, using=database.current)

    with registered(Essay, name="essay", lookup=lookup) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        level = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
        with connection.cursor() as cursor, ThreadPoolExecutor(1) as other:
            if connection.vendor == "mysql":
                cursor.execute(level)
            with transaction.atomic(using=database.current):
                if connection.vendor == "postgresql":
                    cursor.execute(level)
                assert not Essay.objects.exists()
                other.submit(add).result()
                other.submit(connections.close_all).result()
                assert Paper.objects.update(country="fr") == 1

        assert Essay.objects.get().country == "fr"
        assert guard.verdict("fr" if lookup == "country" else ("fr", "new")) is not Verdict.ABSENT


def test_a_rebuild_waits_for_whoever_has_not_seen_a_writer_that_it_waits_for(each_database, tables, clock):
    """The first adds nothing to the new filter, and the second adds the key that the row had before."""
    if each_database == "mariadb":
        pytest.skip("its rebuild lets nobody write meanwhile")
    Essay.objects.create(country="de", slug="old")
    blocks = [ExitStack(), ExitStack()]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        threads = [one, two]

        def begin(number, write):
            threads[number].submit(blocks[number].enter_context, transaction.atomic(using=database.current)).result()
            threads[number].submit(write).result()

        def commit(number):
            threads[number].submit(blocks[number].close).result()
            threads[number].submit(connections.close_all).result()

        sleeps = []

        def sleep(seconds):
            clock.sleep(seconds)
            sleeps.append(seconds)
            if len(sleeps) == 2:  # after the wait for the leases
                begin(1, publish)
                commit(0)
            elif len(sleeps) == 3:
                commit(1)

        with registered(Essay, name="essay", lookup="slug", alive=Q(published=True)) as guard:
            begin(0, rename)
            Rebuild(guard, sleep=sleep).run()
            if len(sleeps) < 3:
                commit(1)

            assert guard.verdict("new") is Verdict.MAYBE


def test_signals_cannot_follow_a_key_of_several_tables(tables, clock):
    """Two of them read what neither has committed; to wait for each other would be a deadlock."""
    with (
        registered(Essay, name="essay", lookup=("country", "slug"), sync="signals") as guard,
        pytest.raises(RebuildError, match='Remove sync = "signals"'),
    ):
        Rebuild(guard, sleep=clock.sleep).run()


def test_a_soft_delete_by_save_leaves_the_filter(each_database, tables, clock):
    """It writes both tables, one after the other: the key goes once, and is not added again."""
    if each_database == "mariadb":
        pytest.skip("it discards nothing there")
    essay = Essay.objects.create(country="de", slug="old", published=True)
    with registered(Essay, name="essay", lookup="slug", filter="cuckoo", alive=Q(published=True)) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        for published in (False, True, False):
            essay.published = published
            essay.save()
            assert guard.verdict("old") is (Verdict.MAYBE if published else Verdict.ABSENT)


@pytest.mark.parametrize("rights", ["SELECT", "INSERT"])
def test_a_role_that_may_not_lock_the_other_table_may_write(tables, clock, rights):
    """What bloomguard may not lock, or read, fences the guard, and fails no write."""
    Essay.objects.create(country="de", slug="old")
    with registered(Essay, name="essay", lookup=("country", "slug")) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with as_role(raw_essay=rights):
            assert Paper.objects.update(country="fr") == 1

        assert guard.verdict(("fr", "old")) is not Verdict.ABSENT


def test_rows_that_a_policy_hides_from_locks_are_not_taken_for_none(each_database, tables, clock):
    """A policy for UPDATE leaves them out of a SELECT FOR UPDATE without an error."""
    if each_database == "mariadb":
        pytest.skip("it has no row-level security")
    Essay.objects.create(country="de", slug="old")
    with registered(Essay, name="essay", lookup=("country", "slug")) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with connections[database.current].cursor() as cursor:
            cursor.execute("ALTER TABLE raw_essay ENABLE ROW LEVEL SECURITY")
            cursor.execute("CREATE POLICY raw_reads ON raw_essay FOR SELECT USING (true)")
            cursor.execute("CREATE POLICY raw_writes ON raw_essay FOR UPDATE USING (false)")
        with as_role():
            assert Paper.objects.update(country="fr") == 1

        assert guard.verdict(("fr", "old")) is not Verdict.ABSENT


def test_a_migration_that_has_dropped_a_column_may_write(tables, clock):
    """In the middle of one, the child's table lacks a column of the key."""
    Essay.objects.create(country="de", slug="old")
    connection = connections[database.current]
    with registered(Essay, name="essay", lookup=("country", "slug")) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        models = ProjectState()
        models.add_model(ModelState.from_model(Paper))
        paper = models.apps.get_model("shop_own", "Paper")
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE raw_essay DROP COLUMN slug")
        try:
            with transaction.atomic(using=database.current):
                assert paper.objects.using(database.current).update(country="fr") == 1
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE raw_essay ADD COLUMN slug varchar(50) DEFAULT ''")

        assert state.table.current("essay").status == FENCED


@pytest.mark.parametrize("write", [publish, rename])
def test_rows_that_cannot_be_locked_fence(tables, clock, write):
    """In a transaction that Django does not know of, a locking query would be refused."""
    Essay.objects.create(country="de", slug="old")
    with registered(Essay, name="essay", lookup=("country", "slug")) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with connections[database.current].cursor() as cursor:
            cursor.execute("BEGIN")
            write()
            cursor.execute("COMMIT")

        assert state.table.current("essay").status == FENCED


def test_other_columns_of_a_row_lock_no_table(tables, clock):
    """Only an UPDATE that may change a key has to see both."""
    Essay.objects.create(country="de", slug="old")
    with registered(Essay, name="essay", lookup=("country", "slug")) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        done = threading.Event()

        def first():
            assert Essay.objects.update(note="seen") == 1

        def second():
            Paper.objects.update(published=True)
            done.set()

        race(first, second, meanwhile=done.is_set)
