"""A role with few rights writes whatever it may write without bloomguard; in doubt the guard is fenced."""

from __future__ import annotations

import pytest
from django.db import connections, transaction
from django.db.models import Value
from django.db.models.functions import Concat

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as states
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import consequences, isolation
from bloomguard.writes.fencing import has_locked_row
from tests.shop.models import Article, Bundle, Product
from tests.support import database
from tests.support.guarding import registered

from .raw.sending import execute, on_postgresql, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def role(role, monkeypatch):
    """The process has sent no SET ROLE yet."""
    monkeypatch.setattr(isolation, "changed_roles", set())
    return role


@pytest.fixture(params=["autocommit", "atomic"])
def as_role(request, role):
    """``as_role(write, "SELECT ON table", ...)``: the role writes, with these rights alone."""

    def run(write, *rights):
        for each in rights:
            execute(f"GRANT {each} TO {role}")
        execute(f"SET ROLE {role}")
        consequences.caches.clear()
        try:
            if request.param == "autocommit":
                return write()
            with transaction.atomic(using=database.current):
                return write()
        finally:
            execute("RESET ROLE")

    return run


COUNTED = {
    "delete": (["SELECT, DELETE ON shop_article"], lambda: Article.objects.all()._raw_delete("postgresql"), ARMED),
    "delete unread": (["DELETE ON shop_article"], lambda: Article.objects.all()._raw_delete("postgresql"), ARMED),
    "update": (
        ["SELECT (id, deleted), UPDATE (slug) ON shop_article"],
        lambda: Article.objects.filter(deleted=False).update(slug="b"),
        FENCED,
    ),
    "update unread": (["UPDATE ON shop_article"], lambda: Article.objects.update(slug="b"), FENCED),
}


@on_postgresql
@pytest.mark.parametrize("way", COUNTED)
def test_a_guard_that_discards_locks_no_rows_that_the_role_may_not_lock(as_role, fresh, clock, way):
    """A SELECT FOR UPDATE needs the rights to SELECT and to UPDATE. The keys of deleted rows stay."""
    rights, write, after = COUNTED[way]
    Article.objects.create(slug="a")
    with registered(Article, name="counted", lookup="slug", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        as_role(write, *rights)

        assert list(Article.objects.values_list("slug", flat=True)) == ([] if "delete" in way else ["b"])
        assert status("counted") == after
        stays = "a" if "delete" in way else "b"
        assert guard.verdict(stays) is not Verdict.ABSENT


@on_postgresql
def test_a_guard_that_discards_asks_for_no_childs_table(as_role, fresh, clock):
    """Its rows are those of a child, to whose table the role has no rights; it deletes another parent."""
    Bundle.objects.create(name="a")
    Product.objects.create(name="b")
    with registered(Bundle, name="counted", lookup="name", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        as_role(lambda: Product.objects.filter(name="b")._raw_delete("postgresql"), "SELECT, DELETE ON shop_product")

        assert Product.objects.get().name == "a"
        assert guard.verdict("a") is Verdict.MAYBE


@on_postgresql
def test_rows_whose_primary_key_cannot_be_read_are_not_read_back(as_role, fresh, clock):
    """The looked-up column is in the parent's table, which the role may read, unlike the child's."""
    with registered(Bundle, name="bundle", lookup="name") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        as_role(lambda: Bundle.objects.create(name="a"), "SELECT, INSERT ON shop_product", "INSERT ON shop_bundle")

        assert Bundle.objects.get().name == "a"
        assert status("bundle") == FENCED


@on_postgresql
def test_a_catalogue_that_cannot_be_read_fences(as_role, build, clock):
    """Some servers are hardened by such a REVOKE."""
    Article.objects.create(slug="a")
    build("article")
    execute("REVOKE SELECT ON pg_catalog.pg_rewrite FROM PUBLIC")
    try:
        as_role(lambda: Article.objects.filter(slug="a").update(slug="b"), "SELECT, UPDATE ON shop_article")
    finally:
        execute("GRANT SELECT ON pg_catalog.pg_rewrite TO PUBLIC")

    assert Article.objects.get().slug == "b"
    assert status("article") == FENCED


@on_postgresql
@pytest.mark.parametrize(
    "change",
    ["SET ROLE raw_writer", "SET LOCAL ROLE raw_writer", "SELECT set_config('role', 'raw_writer', false)",
     "SET SESSION AUTHORIZATION raw_writer"],
)  # fmt: skip
def test_a_session_that_changes_its_role(role, build, change):
    """What another role may read is not taken for what this one may."""
    Article.objects.create(pk=1, slug="a")
    build("article")
    execute(f"GRANT SELECT (id), UPDATE ON shop_article TO {role}")
    try:
        with transaction.atomic(using="postgresql"):
            Article.objects.filter(pk=1).update(slug="b")
            execute(change)
            Article.objects.filter(pk=1).update(slug="c")
    finally:
        execute("RESET SESSION AUTHORIZATION")
        execute("RESET ROLE")

    assert Article.objects.get().slug == "c"
    assert status("article") == FENCED


@on_postgresql
def test_a_column_named_role_is_none(each_database, monkeypatch):
    monkeypatch.setattr(isolation, "changed_roles", set())
    for sql in ('UPDATE "user" SET "role" = %s', "SELECT role FROM raw", "SELECT set_config('app.tenant', '1', true)"):
        isolation.note(sql, connections["postgresql"])

    assert not isolation.changed_roles


@on_postgresql
def test_a_role_without_rights_to_the_state_rows_is_not_asked_for_them(role, build):
    """Another writer has locked the state row, as it fences the guard at this moment."""
    build("article")
    with database.second_alias("postgresql") as alias, transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1 FROM bloomguard_guardstate FOR UPDATE")
        with transaction.atomic(using="postgresql"):
            execute(f"SET LOCAL ROLE {role}")
            assert not has_locked_row(states.table, "article", "postgresql")
            execute("SELECT 1")


# -- MariaDB


@pytest.fixture
def login(build):
    """``login("SELECT ON table", "SET ...")`` is an alias of MariaDB with these rights alone."""
    with database.on("mariadb"):
        Article.objects.create(slug="a")
        Article.objects.create(slug="b")
        build("article")
        name, opened = connections["mariadb"].settings_dict["NAME"], []
        execute("CREATE USER raw_weak")

        def make(rights, *settings):
            execute(f"GRANT {rights} ON {name}.shop_article TO raw_weak")
            opened.append(database.second_alias("mariadb", "limited", USER="raw_weak"))
            alias = opened[0].__enter__()
            with connections[alias].cursor() as cursor:
                for each in settings:
                    cursor.execute(each)
            return alias

        yield make
        for each in opened:
            each.__exit__(None, None, None)
        execute("DROP USER raw_weak")


def written():
    return set(Article.objects.values_list("slug", flat=True))


def test_rows_that_a_login_may_not_select_are_not_locked(login):
    """An UPDATE without a condition needs no right to read."""
    Article.objects.using(login("UPDATE")).update(deleted=True)

    assert Article.objects.filter(deleted=True).count() == 2
    assert status("article") == FENCED


def test_rows_whose_primary_key_a_login_may_not_select_are_not_locked(login):
    Article.objects.using(login("SELECT (slug), UPDATE (slug)")).filter(slug="a").update(slug="c")

    assert written() == {"b", "c"}
    assert status("article") == FENCED


def test_a_login_that_may_only_insert_ignores_conflicts(login):
    rows = Article.objects.using(login("INSERT"))
    rows.bulk_create([Article(slug="a"), Article(slug="c")], ignore_conflicts=True)

    assert written() == {"a", "b", "c"}
    assert status("article") == FENCED


@pytest.mark.parametrize("setting", ["SET max_join_size = 1", "SET sql_select_limit = 1"])
def test_a_session_whose_selects_are_limited(login, setting):
    """The UPDATE is not limited: it changes all rows."""
    rows = Article.objects.using(login("SELECT, UPDATE", setting))
    rows.filter(deleted=False).update(slug=Concat("slug", Value("z")))

    assert written() == {"az", "bz"}
    assert all(registry["article"].verdict(slug) is not Verdict.ABSENT for slug in written())
    assert status("article") == FENCED
