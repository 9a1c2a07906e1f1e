"""A RETURNING is added to the ORM's statements only where the database allows it; elsewhere they fence."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from datetime import date
from uuid import UUID

import django
import pytest
from django.db import DataError, IntegrityError, connections, models, transaction
from django.db.models import Case, Value, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Upper
from django.db.models.sql.compiler import SQLInsertCompiler, SQLUpdateCompiler
from django.test.utils import CaptureQueriesContext, isolate_apps

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import consequences
from tests.shop.models import Article, Bundle, Diary, Order, Product, Review
from tests.support import database
from tests.support.guarding import registered
from tests.support.orm_writes import without_autocommit

from .raw.sending import execute, on_postgresql, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def article(each_database, build, clock):
    """A guard in use, and one row."""
    Article.objects.create(slug="a")
    build("article")
    return registry["article"]


@pytest.fixture(params=["autocommit", "atomic"])
def block(request):
    """Runs what it is given under autocommit, or in a transaction."""

    def run(work):
        if request.param == "autocommit":
            return work()
        with transaction.atomic(using=database.current):
            return work()

    return run


def slugs():
    return sorted(Article.objects.values_list("slug", flat=True))


@on_postgresql
def test_a_broken_transaction_is_asked_nothing(article):
    """Django refuses the statement in its own words, and PostgreSQL would refuse the question."""
    consequences.caches.clear()
    with transaction.atomic(using="postgresql"):
        with pytest.raises(IntegrityError):
            Article.objects.create(slug="a")
        with pytest.raises(transaction.TransactionManagementError):
            Article.objects.bulk_create([Article(slug=Upper(Value("b")))])
        transaction.set_rollback(True, using="postgresql")


@on_postgresql
@pytest.mark.parametrize("how", ["update", "save"])
def test_a_table_with_a_rule(article, block, how):
    """PostgreSQL refuses UPDATE ... RETURNING if a rule may replace the UPDATE."""
    execute("CREATE RULE raw_kept AS ON UPDATE TO shop_article WHERE OLD.deleted DO INSTEAD NOTHING")
    try:
        if how == "update":
            assert block(lambda: Article.objects.update(slug="b")) == 1
        else:
            row = Article.objects.get()
            row.slug = "b"
            block(lambda: row.save(force_update=True))
    finally:
        execute("DROP RULE raw_kept ON shop_article")

    assert slugs() == ["b"]
    assert status("article") == FENCED


@on_postgresql
def test_a_rule_that_is_gone_costs_nothing(article, clock):
    """What was found out of a table is forgotten with its definitions."""
    execute("CREATE RULE raw_kept AS ON UPDATE TO shop_article WHERE OLD.deleted DO INSTEAD NOTHING")
    Article.objects.update(slug="b")
    execute("DROP RULE raw_kept ON shop_article")
    Rebuild(article, sleep=clock.sleep).run()

    Article.objects.update(slug="c")

    assert status("article") == ARMED
    assert [article.verdict(slug) for slug in "cd"] == [Verdict.MAYBE, Verdict.ABSENT]


@pytest.fixture
def role(role):
    """One that may read, insert and update."""
    execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}")
    return role


@on_postgresql
def test_a_role_that_may_not_read_the_looked_up_column(article, role, block):
    """It may update the column all the same."""
    execute(f"REVOKE SELECT ON shop_article FROM {role}")
    execute(f"GRANT SELECT (id, deleted) ON shop_article TO {role}")
    execute(f"SET ROLE {role}")

    block(lambda: Article.objects.filter(deleted=False).update(slug="b"))

    execute("RESET ROLE")
    assert slugs() == ["b"]
    assert status("article") == FENCED


@on_postgresql
def test_a_role_that_may_not_read_the_column_back(article, role, block):
    """The instance does not hold what its new row stores, and PostgreSQL returns the primary key alone.

    By ``bulk_create``: since Django 6, ``create`` itself reads the value of an expression back.
    """
    execute(f"REVOKE SELECT ON shop_article FROM {role}")
    execute(f"GRANT SELECT (id, deleted) ON shop_article TO {role}")
    execute(f"SET ROLE {role}")

    block(lambda: Article.objects.bulk_create([Article(slug=Value("b"))]))

    execute("RESET ROLE")
    assert slugs() == ["a", "b"]
    assert status("article") == FENCED


@contextmanager
def codes(rights, role):
    """A model whose key is a text, and its table, on which the role has these rights."""
    with isolate_apps("tests.shop"):

        class Code(models.Model):
            slug = models.CharField(max_length=50, primary_key=True)

            class Meta:
                app_label = "shop"
                db_table = "raw_code"

        with connections["postgresql"].schema_editor() as editor:
            editor.create_model(Code)
        try:
            execute(f"GRANT {rights} ON raw_code TO {role}")
            yield Code
        finally:
            execute("RESET ROLE")
            execute("DROP TABLE raw_code")


@on_postgresql
def test_a_role_that_may_only_insert(role, fresh, clock, block):
    """Also if the key is an expression, which the instance does not hold."""
    with codes("INSERT", role) as Code, registered(Code, name="code") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        execute(f"SET ROLE {role}")
        block(lambda: Code(slug="plain").save(force_insert=True))
        assert status("code") == ARMED
        if django.VERSION < (6,):  # later ones ask for it, with bloomguard or without
            block(lambda: Code(slug=Value("x")).save(force_insert=True))
            assert status("code") == FENCED
        execute("RESET ROLE")

        assert Code.objects.count() == (2 if django.VERSION < (6,) else 1)


@contextmanager
def hidden_rows(table, role):
    """Row-level security lets the role write all rows of the table, and see none."""
    execute(f"CREATE POLICY added ON {table} FOR INSERT WITH CHECK (true)")
    execute(f"CREATE POLICY changed ON {table} FOR UPDATE USING (true)")
    execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    try:
        execute(f"SET ROLE {role}")
        yield
    finally:
        execute("RESET ROLE")
        execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
        execute(f"DROP POLICY added ON {table}")
        execute(f"DROP POLICY changed ON {table}")


@on_postgresql
def test_an_update_of_all_rows_changes_those_that_the_role_does_not_see(article, role, block):
    """It reads no column, so PostgreSQL changes them; with a RETURNING it would leave them as they are."""
    Article.objects.create(slug="b")
    with hidden_rows("shop_article", role):
        assert block(lambda: Article.objects.update(deleted=True)) == 2

    assert Article.objects.filter(deleted=True).count() == 2
    assert status("article") == FENCED


@on_postgresql
def test_an_update_that_reads_rows_is_followed_where_some_are_hidden(article, role, block):
    """PostgreSQL changes what the role sees, with a RETURNING or without."""
    with hidden_rows("shop_article", role):
        execute("RESET ROLE")
        execute("CREATE POLICY seen ON shop_article FOR SELECT USING (slug <> 'hidden')")
        execute(f"SET ROLE {role}")
        try:
            assert block(lambda: Article.objects.filter(slug="a").update(slug="b")) == 1
        finally:
            execute("RESET ROLE")
            execute("DROP POLICY seen ON shop_article")

    assert status("article") == ARMED
    assert [article.verdict(slug) for slug in "bc"] == [Verdict.MAYBE, Verdict.ABSENT]


@on_postgresql
def test_a_row_that_the_role_does_not_see_is_inserted(role, fresh, clock, block):
    """The INSERT returns nothing, so PostgreSQL asks for no right to see the row; with a RETURNING it would refuse."""
    with (
        codes("INSERT, SELECT", role) as Code,
        registered(Code, name="code", normalize=lambda self, value: value) as guard,
    ):
        Rebuild(guard, sleep=clock.sleep).run()
        with hidden_rows("raw_code", role):
            block(lambda: Code(slug="new").save(force_insert=True))

        assert Code.objects.get().slug == "new"
        assert status("code") == FENCED


@on_sqlite
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_process_whose_sqlite_has_no_returning(article, clock, block, monkeypatch, by_hand):
    """Another process has built the filter. An UPDATE is sent unchanged, as SQLite locks no rows, and fences."""
    features = connections["default"].features
    monkeypatch.setattr(features, "can_return_columns_from_insert", False, raising=False)
    monkeypatch.setattr(type(features), "can_return_rows_from_bulk_insert", False)

    with without_autocommit() if by_hand else nullcontext():
        block(lambda: Article.objects.update(slug="b"))

    assert slugs() == ["b"]
    assert status("article") == FENCED


@on_sqlite
def test_a_virtual_table(each_database, fresh, clock, block):
    """SQLite knows no UPDATE ... RETURNING there."""
    with isolate_apps("tests.shop"):

        class Page(models.Model):
            id = models.IntegerField(primary_key=True, db_column="rowid")
            title = models.CharField(max_length=50)

            class Meta:
                app_label = "shop"
                db_table = "raw_pages"
                managed = False

        execute("CREATE VIRTUAL TABLE raw_pages USING fts5(title)")
        try:
            with registered(Page, name="page", lookup="title") as guard:
                Rebuild(guard, sleep=clock.sleep).run()
                block(lambda: Page.objects.create(id=1, title="a"))
                assert (status("page"), guard.verdict("a")) == (ARMED, Verdict.MAYBE)

                assert block(lambda: Page.objects.filter(title="a").update(title="b")) == 1

                assert Page.objects.get().title == "b"
                assert status("page") == FENCED
        finally:
            execute("DROP TABLE raw_pages")


@contextmanager
def table_of(model):
    """The table of a model that a test has made, until the end of the block."""
    with connections["default"].schema_editor() as editor:
        editor.create_model(model)
    try:
        yield
    finally:
        execute(f"DROP TABLE {model._meta.db_table}")


@on_sqlite
@pytest.mark.parametrize("value", [5, Value(3) + 2], ids=["plain", "expression"])
def test_a_column_with_a_name_of_the_rowid(each_database, fresh, clock, block, value):
    """In raw SQL it may be the primary key. Of the ORM's UPDATE the field is known, also if it returns the column."""
    with isolate_apps("tests.shop"):

        class Node(models.Model):
            oid = models.IntegerField(default=0)

            class Meta:
                app_label = "shop"
                db_table = "raw_node"

        with table_of(Node), registered(Node, name="node") as guard:
            node = Node.objects.create()
            Rebuild(guard, sleep=clock.sleep).run()
            node.oid = value
            block(lambda: node.save(update_fields=["oid"]))

            assert Node.objects.get().oid == 5
            assert (status("node"), guard.verdict(77)) == (ARMED, Verdict.ABSENT)


@on_sqlite
def test_a_primary_key_that_the_database_chooses(each_database, fresh, clock, block):
    """For NULL in an integer primary key SQLite stores a number, which no instance holds."""
    with isolate_apps("tests.shop"):

        class Number(models.Model):
            id = models.IntegerField(primary_key=True)
            title = models.CharField(max_length=50)

            class Meta:
                app_label = "shop"
                db_table = "raw_number"

        with (
            table_of(Number),
            registered(Number, name="number") as guard,
            registered(Number, name="told", sync="signals") as told,
        ):
            for each in (guard, told):
                Rebuild(each, sleep=clock.sleep).run()
            for title in "ab":
                block(lambda: Number(title=title).save(force_insert=True))  # noqa: B023

            stored = list(Number.objects.values_list("pk", flat=True))
            assert len(stored) == 2
            assert [guard.verdict(number) for number in stored] == [Verdict.MAYBE] * 2
            assert Verdict.ABSENT not in [told.verdict(number) for number in stored]
            assert (status("number"), guard.verdict(77)) == (ARMED, Verdict.ABSENT)


OTHER = UUID(int=7)


class Rewriting(SQLInsertCompiler):
    """As other packages have one: it writes another value, and appends to the statement what must be its end."""

    def as_sql(self):
        assert not self.returning_fields
        other = Order._meta.pk.get_db_prep_save(OTHER, self.connection)
        return [(f"{sql} ON CONFLICT DO NOTHING", [other]) for sql, _ in super().as_sql()]


@database.without_mariadb
@pytest.mark.parametrize("normalizes", [False, True])
def test_a_compiler_of_another_package_may_write_other_values(
    each_database, fresh, clock, monkeypatch, block, normalizes
):
    """What the instances hold is not trusted, and its statement stays as it is: too little is known."""
    operations = connections[database.current].ops
    compiler = operations.compiler
    own = {"normalize": lambda self, value: value} if normalizes else {}
    with registered(Order, name="mine", **own) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        monkeypatch.setattr(operations, "compiler", lambda name: Rewriting if "Insert" in name else compiler(name))
        block(Order.objects.create)

        assert Order.objects.get().pk == OTHER
        assert guard.verdict(OTHER) is not Verdict.ABSENT
        assert status("mine") == FENCED


class Commenting(SQLUpdateCompiler):
    """It ends in a comment, in which a ``RETURNING`` would be lost."""

    def as_sql(self):
        sql, parameters = super().as_sql()
        return f"{sql} -- of a package", parameters


def test_an_update_of_another_packages_compiler_is_sent_as_it_is(each_database, fresh, clock, monkeypatch, block):
    """Which rows it changes is unknown, so the guard is fenced."""
    operations = connections[database.current].ops
    compiler = operations.compiler
    Article.objects.create(slug="old")
    with registered(Article, name="mine", lookup="slug") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        monkeypatch.setattr(operations, "compiler", lambda name: Commenting if "Update" in name else compiler(name))
        block(lambda: Article.objects.update(slug="new"))

        assert Article.objects.get().slug == "new"
        assert guard.verdict("new") is not Verdict.ABSENT
        assert status("mine") == FENCED


class SameInsert(SQLInsertCompiler):
    """Of a package, but it makes what Django's makes."""

    def as_sql(self):
        return list(super().as_sql())


class SameUpdate(SQLUpdateCompiler):
    """The same."""


def renames(manager):
    manager.update(slug="new")


def renames_by_a_join(manager):
    Review.objects.create(product=Product.objects.create(), article=manager.get())
    manager.filter(review__product__name="").update(slug="new")


def saves(manager):
    row = manager.get()
    row.slug = "new"
    row.save()


@database.without_mariadb
@pytest.mark.parametrize("write", [renames, renames_by_a_join, saves])
def test_statements_of_another_packages_compiler_are_followed_if_djangos_are_the_same(
    each_database, fresh, clock, monkeypatch, block, write
):
    """Its backend has compilers for all models, which add something to few statements."""
    operations = connections[database.current].ops
    compiler, same = operations.compiler, {"SQLInsertCompiler": SameInsert, "SQLUpdateCompiler": SameUpdate}
    Article.objects.create(slug="old")
    with registered(Article, name="mine", lookup="slug") as guard, registered(Order, name="orders") as orders:
        for each in (guard, orders):
            Rebuild(each, sleep=clock.sleep).run()
        monkeypatch.setattr(operations, "compiler", lambda name: same.get(name) or compiler(name))
        block(lambda: write(Article.objects))
        block(lambda: Order.objects.create(pk=OTHER))
        block(lambda: Order.objects.bulk_create([Order(pk=UUID(int=8)), Order(pk=UUID(int=9))]))

        assert (status("mine"), status("orders")) == (ARMED, ARMED)
        assert guard.verdict("new") is Verdict.MAYBE
        assert [orders.verdict(UUID(int=each)) for each in (7, 8, 9)] == [Verdict.MAYBE] * 3
        assert orders.verdict(UUID(int=10)) is Verdict.ABSENT


class Counting(models.IntegerField):
    def pre_save(self, instance, add):
        instance.saves += 1
        return instance.saves


@on_sqlite
def test_another_packages_insert_calls_pre_save_once(each_database, fresh, clock, monkeypatch):
    """It may store a file, or draw a number: what Django would make of the INSERT is compiled without."""
    operations = connections[database.current].ops
    compiler = operations.compiler
    with isolate_apps("tests.shop"):

        class Draw(models.Model):
            id = models.UUIDField(primary_key=True)
            saves = Counting(default=0)

            class Meta:
                app_label = "shop"
                db_table = "raw_draw"

        with table_of(Draw), registered(Draw, name="draw") as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            monkeypatch.setattr(operations, "compiler", lambda name: SameInsert if "Insert" in name else compiler(name))
            Draw.objects.bulk_create([Draw(id=OTHER)])

            assert Draw.objects.get().saves == 1
            assert (status("draw"), guard.verdict(OTHER)) == (ARMED, Verdict.MAYBE)


@database.without_mariadb
def test_another_packages_update_of_two_tables_selects_its_rows_once(each_database, fresh, clock, monkeypatch):
    """Its setup reads the rows of a child and its parent; what Django would make of it is compiled without."""
    connection = connections[database.current]
    compiler = connection.ops.compiler
    Bundle.objects.create(name="old")
    with registered(Bundle, name="mine", lookup="size") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        monkeypatch.setattr(connection.ops, "compiler", lambda name: SameUpdate if "Update" in name else compiler(name))
        with CaptureQueriesContext(connection) as sent:
            Bundle.objects.filter(name="old").update(size=5, name="new")

        assert len([each for each in sent if each["sql"].startswith("SELECT") and "shop_" in each["sql"]]) == 1
        assert (status("mine"), guard.verdict(5)) == (ARMED, Verdict.MAYBE)


@on_postgresql
def test_a_returned_row_that_the_driver_refuses_fences(each_database, build, clock):
    """The UPDATE has changed the other rows too, and the project may commit them."""
    first, _ = (Diary.objects.create(day=date(2024, 1, day)) for day in (1, 2))
    build("diary")
    assert registry["diary"].verdict("2024-03-01") is Verdict.ABSENT

    days = [RawSQL(f"'{day}'::date", ()) for day in ("2024-03-01", "infinity")]
    with without_autocommit(), suppress(DataError):
        Diary.objects.update(day=Case(When(pk=first.pk, then=days[0]), default=days[1]))

    assert Diary.objects.extra(where=["day = '2024-03-01'"]).exists()
    # psycopg 2 refuses nothing: it reads another date.
    assert registry["diary"].verdict("2024-03-01") is not Verdict.ABSENT
