"""What is sent: the same as without bloomguard while every guard of a table is idle; else what the docs say."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage
from django.db import connections, models, transaction
from django.test.utils import CaptureQueriesContext, isolate_apps

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as states
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Product
from tests.support import database, orm_writes
from tests.support.guarding import registered
from tests.support.mariadb import MYSQL
from tests.support.orm_writes import MODELS, TRANSACTIONS, autocommit, by_hand, run, sent, uninstalled

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def guarded(each_database, fresh, clock):
    """A guard on every table that is written to, two on some, none of which has a filter; some would discard."""
    with ExitStack() as stack:
        for number, model in enumerate([*MODELS, Group.permissions.through]):
            kind = {"filter": "cuckoo"} if number % 2 else {}
            stack.enter_context(registered(model, name=f"idle-{number}", **kind))
        yield


@pytest.mark.parametrize("block", TRANSACTIONS, ids=lambda block: block.__name__)
def test_idle_guards_add_and_change_no_statement(guarded, block):
    """Hundreds of writes send the same bytes in the same order, BEGIN, COMMIT and savepoints included."""
    found = []
    for without in (True, False):
        orm_writes.empty()
        connections[database.current].savepoint_state = 0
        with uninstalled() if without else ExitStack(), sent() as statements:
            outcomes = run(block)
        found.append((outcomes, statements))

    (plain, expected), (outcomes, statements) = found
    assert outcomes == plain
    assert statements == expected
    assert len(statements) > 250
    assert all(
        not registry[guard.name]._runtime.active_filter.table.current(guard.name).generations for guard in registry
    )


PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
ROWS = re.findall(r"^\| (.+?) \| (`.+?) \| (`.+?) \|$", PAGE.partition("### What a write sends")[2], re.MULTILINE)

#: The table's rows: what is written, and in which transaction.
WRITES = {
    "one row under autocommit": (lambda: Article.objects.create(slug="new"), autocommit),
    "one row in a transaction of Django's": (lambda: Article.objects.create(slug="new"), orm_writes.atomic),
    "one row in a transaction begun by hand": (lambda: Article.objects.create(slug="new"), by_hand),
    "a looked-up column changed, under autocommit": (lambda: Article.objects.update(slug="other"), autocommit),
    "a looked-up column changed, in a transaction of Django's": (
        lambda: Article.objects.update(slug="other"),
        orm_writes.atomic,
    ),
    "another column changed": (lambda: Product.objects.update(name="other"), autocommit),
    "a row deleted": (lambda: Article.objects.filter(slug="old")._raw_delete(database.current), autocommit),
}


def words(query):
    """What a statement is, in the words of the table."""
    sql = query["sql"]
    return sql.split()[0] + (" RETURNING" if sql.startswith("UPDATE") and "RETURNING" in sql else "")


@pytest.mark.parametrize(("name", "without", "armed"), ROWS, ids=[name for name, *_ in ROWS])
def test_the_docs_say_what_is_added(each_database, build, clock, name, without, armed):
    """With a filter in use, what is sent is what the table says, and nothing else."""
    write, block = WRITES[name]
    Article.objects.create(slug="old")
    Product.objects.create(name="old")
    build("article")
    build("product")
    statements = {}

    for hooks in ("without", "with"):
        with uninstalled() if hooks == "without" else ExitStack(), block():
            connection = connections[database.current]
            with CaptureQueriesContext(connection) as queries:
                write()
        statements[hooks] = [words(each) for each in queries]
        Article.objects.all().delete()
        Article.objects.create(slug="old")

    assert statements["without"] == re.findall("`(.+?)`", without)
    expected = re.findall("`(.+?)`", armed)
    if each_database == "mariadb":  # as the page says below the table
        place = expected.index("UPDATE RETURNING") if "UPDATE RETURNING" in expected else len(expected)
        expected[place : place + 1] = ["SELECT", "UPDATE", "SELECT"][: 3 * (place < len(expected))]
        if MYSQL and "INSERT" in expected:
            expected.insert(expected.index("INSERT") + 1, "SELECT")
    assert statements["with"] == expected


def test_the_docs_table_is_read():
    """Every row of it is tried."""
    assert {name for name, *_ in ROWS} == set(WRITES)


class Watching(FileSystemStorage):
    """Notes in what it was asked to store a file."""

    def _save(self, name, content):
        connection = connections[database.current]
        self.found = [connection.in_atomic_block]
        transaction.on_commit(lambda: self.found.append("told"), using=database.current)
        with transaction.atomic(using=database.current, durable=True):
            pass
        self.found.append("stored")
        return super()._save(name, content)


@isolate_apps("tests.shop")
def test_files_are_stored_where_they_were_without_guards(each_database, fresh, clock, tmp_path):
    """A storage that needs to be outside of a transaction is, also if the guard is in use."""
    storage = Watching(tmp_path)

    class Document(models.Model):
        file = models.FileField(storage=storage, upload_to="")

        class Meta:
            app_label = "shop"

    connection = connections[database.current]
    with connection.schema_editor() as editor:
        editor.create_model(Document)
    try:
        with registered(Document, name="document") as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            document = Document(file=ContentFile(b"x", name="x.txt"))
            document.save()
            assert storage.found == [False, "told", "stored"]
            assert guard.verdict(Document.objects.get().pk) is Verdict.MAYBE
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Document)


@pytest.mark.parametrize("verb", ["INSERT", "UPDATE"])
@pytest.mark.parametrize(("seconds", "is_building"), [(1.2, True), (2, False)])
def test_a_build_that_begins_during_a_statement_goes_on(each_database, build, clock, verb, seconds, is_building):
    """Also if another guard of the table is in use. Its scan waits for the statement, unless that took too long."""
    article = Article.objects.create(slug="old") if verb == "UPDATE" else Article()
    build("article")

    def announce(execute, sql, *arguments):
        if sql.startswith(verb) and "shop_article" in sql:
            assert states.table.swap(states.table.current("beside"), building="another") is not None
            clock.now += seconds
        return execute(sql, *arguments)

    with registered(Article, lookup="slug", name="beside"), connections[database.current].execute_wrapper(announce):
        article.slug = "new"
        article.save()

        assert bool(states.table.current("beside").building) is is_building
    assert registry["article"].verdict("new") is Verdict.MAYBE
