"""What projects use in tests of their own: guards that follow the test's database, and what to assert."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, models, transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client, SimpleTestCase, TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.urls import path

import bloomguard
from bloomguard.exceptions import ConfigurationError
from bloomguard.filters.layout import Layout
from bloomguard.guards import registry, spot_checks
from bloomguard.lookups.context import guarded_lookups
from bloomguard.models import GuardState
from bloomguard.state.verdicts import ABSENT, COLD, Verdict
from bloomguard.testing import GuardTestMixin, _Keys, assert_blocked, assert_passes, guards_armed, guards_off
from bloomguard.writes import consequences
from tests.conftest import forget
from tests.shop import views
from tests.shop.models import Article, Place, Product
from tests.shop.urls import urlpatterns as shop_urls
from tests.support import database
from tests.support.guarding import registered, urlconf

EXAMPLE = Path(__file__).parents[1] / "example_project"
GUARD = "bloomguard.middleware.BloomGuardMiddleware"


class RowsOfTheClass(GuardTestMixin, TestCase):
    """In a ``TestCase``, whose rows nobody else ever sees, the guards know them."""

    @classmethod
    def setUpTestData(cls):
        Product.objects.create(pk=7)
        Place.objects.create(country="fr", slug="nice")

    def test_what_is_not_there_is_blocked(self):
        assert self.assert_blocked("/products/8/")["Cache-Control"] == "no-store"
        self.assert_blocked(f"/products/{2**70}/")
        self.assert_blocked("/places/fr/paris/")

    def test_what_is_there_passes(self):
        assert self.assert_passes("/products/7/").status_code == 200
        self.assert_passes("/places/fr/nice/")

    def test_rows_that_come_in_the_test_pass(self):
        self.assert_blocked("/products/8/")
        Product.objects.bulk_create([Product(pk=8)])
        assert self.assert_passes("/products/8/").status_code == 200

    def test_rows_of_one_test_are_none_of_the_next(self):
        self.assert_blocked("/products/8/")

    def test_a_row_that_is_taken_back_is_no_false_404(self):
        with transaction.atomic():
            Product.objects.create(pk=9)
            transaction.set_rollback(True)
        assert self.assert_passes("/products/9/").status_code == 404

    def test_raw_sql_fences_as_it_does_in_production(self):
        with connection.cursor() as cursor:
            cursor.execute("UPDATE shop_product SET id = 11 WHERE id = 7")
        assert self.assert_passes("/products/11/").status_code == 200


class RowsThatAreCommitted(GuardTestMixin, TransactionTestCase):
    """The same where transactions are real."""

    def test_rows_are_followed(self):
        self.assert_blocked("/products/7/")
        Product.objects.create(pk=7)
        self.assert_passes("/products/7/")


@pytest.mark.usefixtures("armed_guards")
def test_the_fixture_arms_every_guard(client):
    """Without another fixture it opens the database by itself."""
    assert_blocked(client, "/products/7/")
    Product.objects.create(pk=7)
    assert_passes(client, "/products/7/")


def test_rows_that_are_there_before_are_known(transactional_db, client, request):
    """Many of them, soft-deleted ones and ones that nobody can look up: as in a rebuild."""
    Product.objects.bulk_create([Product(pk=number) for number in range(1, 3_001)])
    Article.objects.create(slug="gone", deleted=True)
    request.getfixturevalue("armed_guards")

    assert_passes(client, "/products/3000/")
    assert_blocked(client, "/products/3001/")
    assert_blocked(client, "/articles/gone/")


def test_each_block_asks_the_filter_of_its_own(transactional_db, django_assert_num_queries):
    """At the lookup too, which prepares its questions once: a row of the block before is none of this one."""
    Product.objects.create(pk=7)
    with guards_armed("product"), guarded_lookups():
        assert Product.objects.filter(pk=7).exists()
    with guards_off("product"), guarded_lookups(), django_assert_num_queries(1):
        assert Product.objects.filter(pk=7).exists()
    Product.objects.all().delete()
    with guards_armed("product"), guarded_lookups(), django_assert_num_queries(0):
        assert not Product.objects.filter(pk=7).exists()


def test_everything_works_in_a_block_as_in_production(transactional_db, client, caplog):
    """A repeated false positive is answered, commands find their state, and nothing logs an error."""
    Product.objects.create(pk=7)
    with guards_armed("product"):
        Product.objects.filter(pk=7).delete()  # which leaves its key in the filter
        with guarded_lookups():
            assert [Product.objects.filter(pk=7).first() for _ in range(2)] == [None, None]
        call_command("explain_guard", "/products/8/", stdout=(said := StringIO()))
        assert "absent" in said.getvalue().lower()
        call_command("filter_stats", "product", stdout=StringIO())
        assert_blocked(client, "/products/8/")
        call_command("switch_guards", "shadow", "product", stdout=StringIO())
        assert_passes(client, "/products/8/")
        call_command("switch_guards", "enforce", "product", stdout=StringIO())
        assert_blocked(client, "/products/8/")
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("command", ["rebuild_filter", "verify_filter"])
def test_a_command_for_filters_says_that_an_armed_guard_has_none(transactional_db, client, caplog, command):
    """It changes nothing: the guard answers as before, and knows the rows that come."""
    Product.objects.create(pk=7)
    with guards_armed("product"):
        with pytest.raises(CommandError, match=r"^product: the guard is armed in this test"):
            call_command(command, "product", stdout=StringIO(), stderr=StringIO())
        Product.objects.create(pk=9)
        assert_blocked(client, "/products/8/")
        assert_passes(client, "/products/9/")
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_without_it_every_guard_is_cold(db, client):
    """A test run is as a site before its first rebuild."""
    assert_passes(client, "/products/8/")
    cure = r"it is not armed: .* call super\(\)\.setUp\(\)"
    with pytest.raises(AssertionError, match=rf"blocked /products/8/.*'product' answers unknown: {cure}"):
        assert_blocked(client, "/products/8/")


def test_one_guard_can_be_armed_alone(db, client):
    """By name; outside of the block it is as it was."""
    with guards_armed("product"):
        assert_blocked(client, "/products/8/")
        assert_passes(client, "/places/fr/nice/")
    assert registry["product"].verdict(8) is Verdict.UNKNOWN
    with pytest.raises(ConfigurationError, match="no guard 'nothing'"), guards_armed("nothing"):
        pass


@pytest.mark.usefixtures("armed_guards")
def test_a_row_that_goes_and_comes_back_is_found(client):
    """What a guard remembers of a row that was not there ends with the row's return."""
    row = Product.objects.create(pk=7)
    row.delete()
    assert [assert_passes(client, "/products/7/").status_code for _ in range(3)] == [404] * 3
    Product.objects.create(pk=7)
    assert assert_passes(client, "/products/7/").status_code == 200


@pytest.mark.usefixtures("armed_guards")
def test_guards_can_be_turned_off(client):
    """Nothing is blocked then, not even what no row can have."""
    with guards_off():
        assert_passes(client, "/products/8/")
        assert_passes(client, f"/products/{2**70}/")
        with guards_armed("product"):
            assert registry["product"].mode == "shadow"
    assert_blocked(client, "/products/8/")


@pytest.mark.django_db(databases="__all__")
@isolate_apps("tests.shop")
def test_a_guard_whose_rows_cannot_be_read_stops_no_test(each_database, client, settings):
    """Such as that of an unmanaged table, which the tests have not: the others are armed, in one transaction or not."""
    settings.ROOT_URLCONF = urlconf(*shop_urls, path("old/<int:pk>/", views.product, name="old"))

    class Legacy(models.Model):
        class Meta:
            app_label, managed, db_table = "shop", False, "legacy_of_a_test"

    with registered(Legacy, name="legacy", routes=["old"]) as legacy:
        with guards_armed(), guards_off("product"), guards_armed():
            assert_blocked(client, "/articles/gone/")
            with pytest.raises(
                AssertionError, match=r"'legacy' answers unknown.* could not be armed: \w+Error: .*legacy_of"
            ):
                assert_blocked(client, "/old/8/")
            assert legacy.verdict(8) is Verdict.UNKNOWN
        with pytest.raises(DatabaseError, match="legacy_of_a_test"), transaction.atomic(using=database.current):
            guards_armed("legacy").__enter__()


@pytest.mark.django_db(databases=["default"])
def test_a_guard_whose_database_a_test_must_not_use_stops_no_test(client, monkeypatch):
    """It stays cold, unless the test names it; then the test fails."""
    monkeypatch.setattr(database, "current", "postgresql")
    with pytest.raises(AssertionError, match="not allowed"), guards_armed("product"):
        pass
    with guards_armed():
        monkeypatch.setattr(database, "current", "default")
        assert registry["product"].verdict(8) is Verdict.UNKNOWN


NESTED = pytest.mark.parametrize("block", [guards_off, guards_armed, lambda: guards_armed("product")])


@NESTED
@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_rows_that_are_written_in_a_block_are_known_after_it(transactional_db, block, kind):
    """Also in a block around that one: its filter answers again, for all rows that exist then."""
    with registered(Product, name="outer", filter=kind) as guard, guards_armed():
        with block():
            with guards_off():
                Product.objects.create(pk=7)
            Product.objects.bulk_create([Product(pk=8), Product(pk=9)])
            Product.objects.filter(pk=9).delete()
        assert [guard.verdict(pk) for pk in (7, 8, 10)] == [Verdict.MAYBE, Verdict.MAYBE, Verdict.ABSENT]
        assert registry["product"].verdict(8) is Verdict.MAYBE


@pytest.mark.parametrize("kind", ["bloom", "cuckoo", "bitmap"])
def test_the_rows_of_a_large_statement_are_known(transactional_db, kind):
    """Their integers come to the filter in an array, those of a few rows as bytes; each is found, and forgotten."""
    with registered(Product, name="large", filter=kind) as guard, guards_armed():
        Product.objects.bulk_create(Product(pk=pk) for pk in range(100))
        assert guard.filter_existing(range(200)) == list(range(100))
        Product.objects.filter(pk__lt=50).delete()
        assert guard.filter_existing(range(200)) == list(range(50 if kind == "cuckoo" else 0, 100))


@pytest.mark.parametrize("block", [nullcontext, transaction.atomic])
def test_the_first_raw_sql_of_a_process_fences(db, block):
    """No catalogue is known yet, and the database has no state rows: but those of the test are what counts."""
    with guards_armed():
        consequences.caches.clear()
        with block(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop_product (id, name) VALUES (7, 'raw')")
        assert registry["product"].verdict(7) is Verdict.UNKNOWN


@NESTED
def test_raw_sql_in_a_block_fences_the_guards_around_it(db, block, caplog):
    """Nobody knows which keys it wrote, so the filter of the block around it must not answer for them."""
    with guards_armed():
        with block(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop_product (id, name) VALUES (7, 'raw')")
        assert registry["product"].verdict(7) is Verdict.UNKNOWN
    assert len([each for each in caplog.records if "until it is rebuilt" in each.message]) == 1


@pytest.mark.usefixtures("armed_guards")
def test_a_guard_that_forgets_is_armed_too(client):
    """A cuckoo guard counts what tests add and delete."""
    with registered(Product, name="counting", filter="cuckoo") as guard, guards_armed("counting"):
        row = Product.objects.create(pk=5)
        assert guard.verdict(5) is Verdict.MAYBE
        row.delete()
        assert guard.verdict(6) is Verdict.ABSENT


def test_deletes_register_no_callback_of_the_project(db):
    """``captureOnCommitCallbacks`` of a ``TestCase`` gives the project's own alone."""
    with registered(Product, name="counting", filter="cuckoo"), guards_armed("counting"):
        rows = [Product.objects.create() for _ in range(3)]
        with TestCase.captureOnCommitCallbacks(execute=True) as callbacks:
            rows[0].delete()
            Product.objects.filter(pk=rows[1].pk).delete()
            Product.objects.filter(pk=rows[2].pk).update(id=70)
        assert callbacks == []


def test_deleted_rows_are_forgotten_before_the_projects_callbacks_run(transactional_db):
    """Where transactions are real."""
    found = []
    with registered(Product, name="counting", filter="cuckoo") as guard, guards_armed("counting"):
        Product.objects.create(pk=7)
        with transaction.atomic():
            transaction.on_commit(lambda: found.append(guard.verdict(7)))
            Product.objects.filter(pk=7).delete()
            found.append(guard.verdict(7))
    assert found == [Verdict.MAYBE, Verdict.ABSENT]


@pytest.mark.usefixtures("armed_guards")
class TestAssertBlocked:
    """It says what is wrong, and why."""

    def test_of_a_row_that_is_there(self, client):
        Product.objects.create(pk=7)

        with pytest.raises(AssertionError, match="response was 200; the guard 'product' answers maybe"):
            assert_blocked(client, "/products/7/")

    @pytest.mark.parametrize("path", ["/products/%37/?page=2", "http://testserver/products/7/"])
    def test_of_a_path_as_a_client_takes_it(self, client, path):
        Product.objects.create(pk=7)

        with pytest.raises(AssertionError, match="response was 200; the guard 'product' answers maybe"):
            assert_blocked(client, path)

    def test_of_a_path_without_guard(self, client, settings):
        settings.ROOT_URLCONF = urlconf(
            path("free/<int:number>/", lambda request, number: HttpResponse("x"), name="free")
        )

        with pytest.raises(AssertionError, match=r"no guard blocked /free/7/; the response was 200: "):
            assert_blocked(client, "/free/7/")

    def test_of_a_database_that_is_asked_before(self, client, settings):
        settings.MIDDLEWARE = [f"{__name__}.counting", GUARD]

        with pytest.raises(AssertionError, match="blocked after 1 statements: SELECT"):
            assert_blocked(client, "/products/8/")

    def test_of_a_cache_that_is_asked_before(self, client, settings):
        settings.MIDDLEWARE = [f"{__name__}.caching", GUARD]

        cure = "last in MIDDLEWARE, or right before FetchFromCacheMiddleware and name the route"
        with pytest.raises(AssertionError, match=f"a cache was read: default.get; put BloomGuardMiddleware {cure}"):
            assert_blocked(client, "/products/8/")

    def test_of_an_answer_that_is_replaced(self, client, settings):
        settings.MIDDLEWARE = [f"{__name__}.friendly", GUARD]

        with pytest.raises(AssertionError, match="was blocked, but a middleware changed the response to 200"):
            assert_blocked(client, "/products/8/")


def test_it_names_the_transaction_in_which_a_guard_answers_no_query(db, settings):
    """That of a ``TestCase``, for a guard that forgets: its verdict is no reason."""
    settings.ROOT_URLCONF = urlconf(path("free/<int:pk>/", views.product))
    refused = pytest.raises(AssertionError, match=r"'counting' answers absent.* no query inside a transaction")
    with registered(Product, name="counting", filter="cuckoo"), guards_armed("counting"), refused:
        assert_blocked(Client(), "/free/8/")


@pytest.mark.parametrize("url", ["/products/{}/", "/products-async/{}/"])
def test_an_async_client_is_a_client(transactional_db, url):
    """Also in an async test, where the assertions run in the thread of the ORM."""
    Product.objects.create(pk=7)
    with guards_armed():
        for call in (lambda check, path: check(AsyncClient(), path), async_to_sync(call_async)):
            assert call(assert_blocked, url.format(8)).status_code == 404
            assert call(assert_passes, url.format(7)).status_code == 200
            with pytest.raises(AssertionError, match=r"no guard blocked .*answers maybe"):
                call(assert_blocked, url.format(7))


async def call_async(check, path):
    return await sync_to_async(check)(AsyncClient(), path)


@pytest.mark.usefixtures("armed_guards")
def test_assert_passes_names_the_guard(client):
    """Which one it is, and what it says."""
    with pytest.raises(AssertionError, match=r"the guard 'product' blocked /products/8/.*answers absent"):
        assert_passes(client, "/products/8/")


@pytest.mark.usefixtures("armed_guards")
def test_no_absence_is_held_against_the_database(client, django_assert_num_queries):
    """Not even the one in a thousand: a test that counts queries is not to fail now and then."""
    with django_assert_num_queries(0):
        for number in range(spot_checks.EVERY + 1):
            assert registry["product"].verdict(number) is Verdict.ABSENT


@pytest.mark.usefixtures("armed_guards")
def test_decorated_views_are_blocked_too(settings):
    """``@guarded`` answers before its view as the middleware does."""
    settings.MIDDLEWARE = []
    settings.ROOT_URLCONF = urlconf(path("one/<int:number>/", views.product_decorated, name="one"))

    assert_blocked(Client(), "/one/8/")


def counting(get_response):
    return lambda request: (Product.objects.exists(), get_response(request))[1]


def caching(get_response):
    return lambda request: (cache.get("session"), get_response(request))[1]


def friendly(get_response):
    return lambda request: HttpResponse("never mind") if get_response(request).status_code == 404 else None


def test_the_page_for_users_works(tmp_path):
    """The blocks of docs/testing.md are tests of the example project, and pass."""
    page = (Path(__file__).parents[1] / "docs" / "testing.md").read_text()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)):
        (tmp_path / f"test_page_{number}.py").write_text(block)

    ran = run_pytest(tmp_path)

    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


ALONE = """
import pytest
from django.db import connection
from gazetteer.models import City

NAME = str(connection.settings_dict["NAME"])


@pytest.mark.usefixtures({fixtures})
def test_database():
    assert str(connection.settings_dict["NAME"]) != NAME
    assert connection.in_atomic_block is {atomic}
    assert not City.objects.exists()
"""


@pytest.mark.parametrize(
    ("fixtures", "atomic"), [(["armed_guards"], True), (["armed_guards", "transactional_db"], False)]
)
def test_the_fixture_alone_never_opens_the_real_database(tmp_path, fixtures, atomic):
    """Whichever tests run beside it: even if none of them requests a database, the test has one of its own."""
    (tmp_path / "test_alone.py").write_text(ALONE.format(fixtures=", ".join(map(repr, fixtures)), atomic=atomic))

    ran = run_pytest(tmp_path)

    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


LOADED = """
import bloomguard
from django.conf import settings


def test_every_name_that_is_listed_can_be_loaded():
    assert not settings.configured
    assert [getattr(bloomguard, name) for name in dir(bloomguard)]
"""


def test_the_plugin_leaves_the_tests_of_other_projects_alone(tmp_path):
    """pytest imports bloomguard in each environment that has it, and freezegun loads all names of all modules."""
    (tmp_path / "test_loaded.py").write_text(LOADED)

    ran = run_pytest(tmp_path, DJANGO_SETTINGS_MODULE="")

    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert {*bloomguard.__all__} <= {*dir(bloomguard)}


def run_pytest(tmp_path, **variables):
    paths = f"{EXAMPLE.parent}:{EXAMPLE}"
    environment = {**os.environ, "PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "config.settings"} | variables
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def statements(queries):
    return [each["sql"].split()[0] for each in queries]


@pytest.mark.parametrize("model", [Product, Article])
def test_arming_reads_each_table_once_and_makes_no_filter(db, monkeypatch, model):
    """One SELECT a guard, no savepoint, and not a byte of a filter: that is what makes it cheap."""
    made, plan = [], Layout.plan
    monkeypatch.setattr(Layout, "plan", lambda **options: made.append(options) or plan(**options))
    with registered(model, name="armed", lookup="pk"), CaptureQueriesContext(connection) as sent:
        before = len(sent)
        for _ in range(3):
            with guards_armed("armed"):
                assert registry["armed"].verdict(7) is Verdict.ABSENT
        queries = sent.captured_queries[before:]

    assert statements(queries) == ["SELECT"] * 3
    assert len(made) <= 1  # once a process


WRITES = {
    "create": lambda: Product.objects.create(pk=8),
    "bulk_create": lambda: Product.objects.bulk_create([Product(pk=8), Product(pk=9)]),
    "save": lambda: Product.objects.get(pk=7).save(),
    "update": lambda: Product.objects.filter(pk=7).update(name="x"),
    "update of the key": lambda: Article.objects.filter(slug="a").update(slug="b"),
    "get_or_create": lambda: Product.objects.get_or_create(pk=8),
    "update_or_create": lambda: Product.objects.update_or_create(pk=7, defaults={"name": "y"}),
    "delete": lambda: Product.objects.filter(pk=7).delete(),
    "select": lambda: [*Product.objects.filter(pk=8)],
}


class StateRowsElsewhere:
    """The state rows are in ``default``, everything else in ``postgresql``."""

    def db_for_read(self, model, **hints):
        return "default" if model is GuardState else "postgresql"

    db_for_write = db_for_read


def send_raw():
    with connections["postgresql"].cursor() as cursor:
        cursor.execute("INSERT INTO shop_product (id, name) VALUES (8, 'raw')")
        cursor.execute("UPDATE auth_group SET name = 'raw'")
        cursor.execute("CREATE TABLE of_a_test (id int)")
        cursor.execute("DROP TABLE of_a_test")


ONE_DATABASE = [
    pytest.param(kind, marks=pytest.mark.django_db(databases=["postgresql"], transaction=kind == "TransactionTestCase"))
    for kind in ("TestCase", "TransactionTestCase")
]


@pytest.mark.parametrize("kind", ONE_DATABASE)
@pytest.mark.parametrize("write", [*WRITES, "raw"])
def test_a_test_need_not_use_the_database_of_the_state_rows(client, fresh, settings, clock, caplog, write, kind):
    """Its ``databases`` name those that it uses itself, as without bloomguard. In such a test guards are cold."""
    settings.DATABASE_ROUTERS = [f"{__name__}.StateRowsElsewhere"]
    Product.objects.create(pk=7)
    Article.objects.create(slug="a")
    for _ in range(2):  # with a lease on the rows, and without one
        with transaction.atomic(using="postgresql"):
            (WRITES | {"raw": send_raw})[write]()
            transaction.set_rollback(True, using="postgresql")
        clock.sleep(1.1)
        assert [client.get(f"/products/{pk}/").status_code for pk in (7, 99)] == [200, 404]
    assert registry["product"]._runtime.decide(7) is COLD
    assert not [each for each in caplog.records if each.name == "bloomguard"]


def test_a_test_without_databases_asks_no_filter_of_the_site(shop, caplog):
    """Not even one that a store of the site has: its guards are cold, and nothing is logged."""

    class UsesNoDatabase(SimpleTestCase):
        def runTest(self):
            assert registry["product"]._runtime.decide(8) is COLD

    assert registry["product"]._runtime.decide(8) is ABSENT
    forget()
    ran = unittest.TestSuite([UsesNoDatabase()]).run(unittest.TestResult())

    assert (ran.testsRun, ran.errors, ran.failures) == (1, [], [])
    assert not caplog.records
    forget()
    assert registry["product"]._runtime.decide(8) is ABSENT


@pytest.mark.parametrize("write", WRITES)
def test_armed_guards_add_no_statement_inside_a_test_case(db, write):
    """``assertNumQueries`` counts the same with and without ``armed_guards``, inside the transaction of a test."""
    found = []
    for block in (nullcontext, guards_armed):
        with transaction.atomic():
            Product.objects.create(pk=7)
            Article.objects.create(slug="a")
            with block(), CaptureQueriesContext(connection) as sent:
                WRITES[write]()
            found.append(statements(sent.captured_queries))
            transaction.set_rollback(True)

    assert found[0] == found[1]
    assert found[0]


def test_a_guard_that_forgets_counts_in_a_test():
    """A key that was added twice is discarded twice."""
    keys = _Keys("cuckoo")
    keys.add([b"a", b"a", b"b"])
    keys.discard([b"a", b"b", b"c"])

    assert [keys.might_contain(key) for key in (b"a", b"b", b"c")] == [True, False, False]
    assert keys.approximate_size() == 1
    keys.discard([b"a"])
    assert not keys.might_contain(b"a")
