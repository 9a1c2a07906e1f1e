"""Keys that depend on a model's own table and on its parent's, while two transactions write one of them each."""

from __future__ import annotations

import threading

import pytest
from django.db import connections, models, transaction
from django.db.models import Q

from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from tests.support import database
from tests.support.guarding import registered
from tests.support.servers import until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    # SQLite lets one write at a time.
    pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True),
]

BLOCKED = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
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


def race(first, second) -> None:
    """``second`` runs in another transaction while that of ``first`` is not committed, or waits for it."""
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
    other.join()
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


def test_a_guard_that_follows_signals_reads_after_the_commit(tables, clock):
    """There is no transaction any more, in which a row could be locked."""
    essay = Essay.objects.create(country="de", slug="old")
    with registered(Essay, name="essay", lookup=("country", "slug"), sync="signals") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        essay.country = "fr"
        essay.save()

        assert guard.verdict(("fr", "old")) is Verdict.MAYBE
        assert state.table.current("essay").status == ARMED


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
        seen = []
        race(publish, lambda: seen.append(Essay.objects.update(note="seen")))

        assert seen == [1]
