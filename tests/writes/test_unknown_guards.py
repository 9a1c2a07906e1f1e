"""A filter of a guard that this process does not have: the project was rolled back, or two versions serve at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from decimal import Decimal

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction
from django.db import models as fields
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import Q

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.routes.table import table_for
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import unknown_guards
from bloomguard.writes.consequences import may_add_key
from bloomguard.writes.sql.statement import Effect
from bloomguard.writes.tables import tracked_tables
from bloomguard.writes.unknown_guards import REASON
from tests.shop.models import Article, Bundle, Price, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

LEASE = state.LEASE_SECONDS


@contextmanager
def without(*guards) -> Iterator[None]:
    """Run as a version of the project without these guards."""
    for guard in guards:
        registry.remove(guard)
    try:
        yield
    finally:
        for guard in guards:
            registry.add(guard)


@contextmanager
def alone() -> Iterator[None]:
    """Run as a version without any guard."""
    with without(*registry):
        yield


def execute(sql: str, *parameters: object) -> None:
    with connections[database.current].cursor() as cursor:
        cursor.execute(sql, parameters)


def historical() -> type[Product]:
    """The model as a migration has it."""
    models = ProjectState()
    models.add_model(ModelState.from_model(Product))
    return models.apps.get_model("shop", "Product")


def by_the_driver() -> None:
    """What runs through no `execute` of Django's: a script on SQLite, a COPY on PostgreSQL, a call on MariaDB."""
    connection = connections[database.current]
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.executescript("INSERT INTO shop_product (id, name) VALUES (77, 'x')")
        elif connection.vendor == "postgresql":
            with cursor.copy("COPY shop_product (id, name) FROM STDIN") as copy:
                copy.write_row((77, "x"))
        else:
            with suppress(OperationalError):  # there is none; but what it does is not known before
                cursor.callproc("raw_unknown")


#: Each may make a key of the guard of products.
WRITES = {
    "create": lambda: Product.objects.create(name="new"),
    "bulk_create": lambda: Product.objects.bulk_create([Product(name="new"), Product(name="newer")]),
    "update": lambda: Product.objects.update(name="other"),
    "save": lambda: Product.objects.first().save(),
    "a migration": lambda: historical().objects.using(database.current).create(name="new"),
    "raw SQL": lambda: execute("INSERT INTO shop_product (id, name) SELECT MAX(id) + 1, 'x' FROM shop_product"),
    "raw UPDATE": lambda: execute("UPDATE shop_product SET name = %s", "other"),
    "driver": by_the_driver,
}
#: None of these does.
HARMLESS = {
    "delete": lambda: Product.objects.all().delete(),
    "raw DELETE": lambda: execute("DELETE FROM shop_product"),
    "another table": lambda: Group.objects.create(name="other"),
    "raw SQL on another table": lambda: execute("UPDATE auth_group SET name = 'x'"),
    "read": lambda: list(Product.objects.all()),
}


@pytest.fixture
def armed(each_database, fresh, clock):
    """The guard of products with a filter, built by this process."""
    Product.objects.create(name="first")
    Rebuild(registry["product"], sleep=clock.sleep).run()
    assert row().status == ARMED
    return registry["product"]


def row() -> GuardState:
    return GuardState.objects.get(name="product")


@pytest.mark.parametrize("started", ["before", "after"])
@pytest.mark.parametrize("version", ["without it", "without guards"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_without_the_guard_fences_it(armed, clock, write, version, started):
    """Also by a process that has read the state rows before, and by one that has just started."""
    if started == "after":
        state.table.forget()
    with without(armed) if version == "without it" else alone():
        began = clock.now
        write()

    assert row().status == FENCED
    by_raw_sql = "raw SQL wrote to shop_product", "a statement that may have written anything"
    assert row().reason.startswith((f"{REASON} (process {os.getpid()} on ", *by_raw_sql))
    assert clock.now - began >= 2 * LEASE  # so that no process answers from before the fence
    assert armed.verdict(987_654) is Verdict.UNKNOWN


@pytest.mark.parametrize("write", HARMLESS.values(), ids=HARMLESS)
def test_no_other_statement_fences(armed, clock, write):
    with without(armed):
        write()

    assert row().status == ARMED


def test_a_refused_insert_raises_the_databases_error_though_the_guard_is_gone(armed, clock):
    """Its state row was deleted, so that the INSERT, sent for a guard, has none when it is sent."""

    def refuse(execute, sql, params, many, context):
        if sql.startswith("INSERT"):
            raise OperationalError("disk I/O error")
        return execute(sql, params, many, context)

    with without(armed):
        Product.objects.create(name="new")
        GuardState.objects.all().delete()
        clock.sleep(2 * LEASE)
        with connections[database.current].execute_wrapper(refuse), pytest.raises(OperationalError, match="disk I/O"):
            Product.objects.create(name="newer")


def test_the_fence_comes_before_the_commit(armed):
    """Whatever others see of the transaction, they see the fence no later."""
    with without(armed), transaction.atomic(using=database.current):
        Product.objects.create(name="new")
        if database.current == "postgresql":  # on SQLite both are committed together
            assert state.table.current("product").status == FENCED

    assert state.table.current("product").status == FENCED


def test_a_rolled_back_version_hides_no_row(armed, clock):
    """The guard goes with a version, and comes back with the next one: the rows of the time between are found."""
    with without(armed):
        new = Product.objects.create(name="new")
    clock.sleep(LEASE)

    assert armed.verdict(new.pk) is Verdict.UNKNOWN


def test_a_filter_that_another_version_builds_is_noticed(each_database, fresh, clock):
    """The old version has read the state rows before; it follows each copy that it reads after that."""
    old = Product.objects.create(name="first")
    product = registry["product"]
    with without(product):
        Product.objects.create(name="second")
    Rebuild(product, sleep=clock.sleep).run()
    with without(product):
        clock.sleep(LEASE)
        registry["article"].verdict(1)  # another guard's request reads the rows
        Product.objects.create(name="third")

    assert row().status == FENCED
    assert product.verdict(old.pk) is Verdict.UNKNOWN


@pytest.mark.parametrize("own", ["built", "idle"])
@pytest.mark.parametrize("write", ["create", "bulk_create", "update", "save", "raw SQL"])
def test_a_guard_that_the_statement_itself_makes_known_is_fenced(each_database, fresh, clock, own, write):
    """The old version has another guard of the table, and has not read the state rows for long: its statement does."""
    Product.objects.create(name="first")
    product = registry["product"]
    with registered(Product, name="former", lookup="name") as former:
        with without(product):
            if own == "built":
                Rebuild(former, sleep=clock.sleep).run()
            Product.objects.create(name="second")
            known = state.table.copy
        Rebuild(product, sleep=clock.sleep).run()
        clock.sleep(LEASE)
        with without(product):
            execute("UPDATE auth_group SET name = 'x'")  # for which the catalogue is read
            state.table.copy = known
            WRITES[write]()

    assert row().status == FENCED


def test_a_guard_of_the_same_name_at_another_table(each_database, fresh, clock):
    """What a guard's former table gets fences it as long as the filter of that table may answer somewhere."""
    with registered(Product, name="thing") as former:
        Rebuild(former, sleep=clock.sleep).run()
    with registered(Article, name="thing") as now:
        Product.objects.create(name="new")
        assert GuardState.objects.get(name="thing").status == FENCED
        Rebuild(now, sleep=clock.sleep).run()
        assert GuardState.objects.get(name="thing").tables == "shop_article"
        clock.sleep(LEASE)
        assert now.verdict(987_654) is Verdict.ABSENT
        Product.objects.create(name="newer")

        assert GuardState.objects.get(name="thing").status == ARMED


#: What two versions say of one guard, and a write that only the first of them follows.
VERSIONS = {
    "lookup": ({"lookup": "slug"}, {"lookup": "pk"}, lambda: Article.objects.filter(pk=1_001).update(slug="new")),
    "lookup, raw": ({"lookup": "slug"}, {"lookup": "pk"}, lambda: execute("UPDATE shop_article SET slug = 'new'")),
    "alive": (
        {"lookup": "slug", "alive": Q(deleted=False)},
        {"lookup": "slug"},
        lambda: Article.objects.filter(pk=1_001).update(deleted=False),
    ),
    "sync": (
        {"lookup": "slug"},
        {"lookup": "slug", "sync": "signals"},
        lambda: Article.objects.bulk_create([Article(pk=1_002, slug="new")]),
    ),
}


@pytest.mark.parametrize("options", VERSIONS.values(), ids=VERSIONS)
def test_a_write_fences_a_guard_that_has_other_options_in_the_filters_version(each_database, fresh, clock, options):
    """The version that writes has a guard of that name, but watches other columns, or other statements."""
    built, other, write = options
    Article.objects.create(pk=1_001, slug="old", deleted=True)
    with registered(Article, name="thing", **built) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
    with registered(Article, name="thing", **other):
        state.table.forget()
        write()
    clock.sleep(LEASE)

    row = Article.objects.latest("pk")
    assert GuardState.objects.get(name="thing").status == FENCED
    assert guard.verdict(row.slug) is Verdict.UNKNOWN


def lower(value):
    return value.lower()


#: What two versions say of a field: the versions make other keys of one value.
FIELDS = {
    "decimal_places": (Price, "amount", "decimal_places", 4, Decimal("1.2345")),
    "to_python": (Article, "slug", "to_python", lower, "seen"),
}


@pytest.mark.parametrize(("model", "name", "attribute", "changed", "value"), FIELDS.values(), ids=FIELDS)
def test_a_field_that_makes_other_keys_is_another_option(
    fresh, clock, monkeypatch, model, name, attribute, changed, value
):
    """No version asks a filter that another one has built, and the first write of the other one fences it."""
    with registered(model, name="thing", lookup=name) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
    monkeypatch.setattr(model._meta.get_field(name), attribute, changed)
    with registered(model, name="thing", lookup=name) as guard:
        state.table.forget()
        before = guard.verdict(value)
        model.objects.create(**{name: value})

    assert before is Verdict.UNKNOWN
    assert GuardState.objects.get(name="thing").status == FENCED


def test_all_generations_of_a_row_are_of_one_version(each_database, fresh, clock, monkeypatch):
    """A rebuild with other options first fences the filter: no process follows the writes of both versions."""
    with registered(Article, name="thing", lookup="pk") as former:
        Rebuild(former, sleep=clock.sleep).run()
    with registered(Article, name="thing", lookup="slug") as guard:
        failing = Rebuild(guard, sleep=clock.sleep)
        monkeypatch.setattr(failing, "_fill", lambda *arguments: 1 / 0)
        with pytest.raises(RebuildError, match="ZeroDivisionError"):
            failing.run()
    row = GuardState.objects.get(name="thing")

    assert (row.status, row.active, row.standby, row.building) == (FENCED, "", "", "")
    assert row.definition == guard._meta.definition_hash != former._meta.definition_hash


def test_a_row_of_a_release_that_named_no_tables_costs_nothing(each_database, fresh, clock):
    """Nor does it help: see the page on later releases."""
    product = registry["product"]
    Rebuild(product, sleep=clock.sleep).run()
    GuardState.objects.filter(name="product").update(tables="", token="x")
    state.table.forget()
    with without(product):
        began = clock.now
        Product.objects.create(name="new")

    assert clock.now == began
    assert row().status == ARMED


def test_a_database_that_a_test_must_not_query_is_no_hindrance(each_database, fresh, clock, monkeypatch):
    """A project's tests may forbid queries to the database of the state rows, and yet write to another one."""

    def forbidden(self):
        raise AssertionError("queries are not allowed in this test")

    monkeypatch.setattr(state.StateTable, "_read", forbidden)
    with alone():
        Group.objects.create(name="new")


def test_a_read_that_failed_does_not_count_for_a_process_that_starts_anew(armed, clock, monkeypatch):
    with monkeypatch.context() as patch, alone():
        patch.setattr(state.StateTable, "renew", lambda self, after: False)
        state.table.forget()
        Product.objects.create(name="new")
    assert row().status == ARMED

    state.table.forget()
    with alone():
        Product.objects.create(name="newer")

    assert row().status == FENCED


def test_a_read_that_failed_is_tried_again_after_a_clock_went_back(armed, clock, monkeypatch):
    """Else no write would be compared with the state rows until it is where it was."""
    with alone():
        with monkeypatch.context() as patch:
            patch.setattr(state.StateTable, "renew", lambda self, after: False)
            state.table.forget()
            Product.objects.create(name="new")
            Product.objects.create(name="newer")
        assert row().status == ARMED
        clock.now -= 900
        Product.objects.create(name="newest")

    assert row().status == FENCED


@pytest.mark.parametrize("has_guards", [False, True])
def test_a_process_that_has_nothing_to_follow_keeps_no_connection(each_database, fresh, clock, has_guards):
    """It wrote to a database whose file may be moved, and has no guard or no filter."""
    if not has_guards:
        Rebuild(registry["product"], sleep=clock.sleep).run()
    state.table.forget()
    registry.replan()
    with nullcontext() if has_guards else alone():
        Group.objects.create(name="new")

    assert state.table.copy.read_at > 0
    assert state.table.connection._connection is None


def test_a_process_waits_once_for_a_guard(each_database, fresh, clock):
    """Not for each of its tables, and not again when plans are made anew: the row of a guard may stay for ever.

    For several guards it waits once, too.
    """
    for name in ("thing", "other"):
        with registered(Bundle, name=name, lookup="name") as thing:
            assert len(thing._meta.tables) == 2
            Rebuild(thing, sleep=clock.sleep).run()
        state.table.fence(name, "by another process")
    state.table.forget()
    waits = []
    for _ in range(3):
        began = clock.now
        Bundle.objects.create(name="new")
        waits.append(clock.now - began)
        registry.replan()

    assert waits == [2 * LEASE, 0, 0]


def test_a_column_that_only_another_model_of_the_table_has(armed):
    """The guard may look its rows up by it."""
    models = ProjectState()
    models.add_model(
        ModelState("shop", "Product", [("id", fields.BigAutoField(primary_key=True)), ("slug", fields.SlugField())])
    )
    with without(armed):
        state.table.renew(after=state.table.clock())
        (tracked,) = tracked_tables(models.apps.get_model("shop", "Product"))
        effect = Effect("update", "shop_product", frozenset({"slug"}))

        assert "slug" in tracked.columns
        assert may_add_key(effect, tracked.guard, "shop_product")


def test_the_rows_of_guards_that_this_process_has_make_no_new_plans(each_database, fresh, clock):
    """New plans find all routes again."""
    Product.objects.create(name="first")
    plans = registry.plans
    Rebuild(registry["product"], sleep=clock.sleep).run()
    clock.sleep(LEASE)
    Product.objects.create(name="second")

    assert registry.plans is plans


def test_a_row_that_was_deleted_by_sql_stays_that_of_a_guard_that_this_process_has(each_database, fresh, clock):
    """It counts as fenced for two leases, and as built for the same keys."""
    Product.objects.create(name="first")
    Rebuild(registry["product"], sleep=clock.sleep).run()
    plans = registry.plans
    execute("DELETE FROM bloomguard_guardstate")
    state.table.renew(after=clock.now)
    assert state.table.copy.rows["product"].status == FENCED
    Product.objects.create(name="second")

    assert registry.plans is plans


def test_an_unknown_guard_costs_no_route_table(armed):
    with without(armed):
        routes = table_for()
        state.table.forget()
        Product.objects.create(name="second")

        assert table_for() is routes


def test_no_thread_relies_on_old_plans(armed, monkeypatch):
    """A copy counts as compared when the old plans are gone, not before."""
    seen = []
    monkeypatch.setattr(
        registry, "replan_writes", lambda: seen.append(unknown_guards.compared_copy is state.table.copy)
    )
    monkeypatch.setattr(unknown_guards, "compared_copy", None)
    monkeypatch.setattr(unknown_guards, "_named", lambda: frozenset({("gone", "shop_product")}))
    unknown_guards.compare_copy()

    assert seen == [False]
    assert unknown_guards.compared_copy is state.table.copy


@pytest.mark.parametrize("write", [WRITES["create"], WRITES["raw SQL"]], ids=["ORM", "raw"])
def test_a_forked_child_has_read_nothing(each_database, fresh, clock, write, monkeypatch):
    """Its parent may have read the state rows long before the filter was built."""
    product = registry["product"]
    Product.objects.create(name="first")
    with without(product):
        write()
    old = state.table.copy
    Rebuild(product, sleep=clock.sleep).run()
    clock.sleep(LEASE)
    with alone():
        monkeypatch.setattr(state.table, "copy", old)
        monkeypatch.setattr(unknown_guards, "_forked_at", unknown_guards._forked_at)
        write()  # the parent's texts and models are known
        assert row().status == ARMED
        unknown_guards._begin_as_child()
        write()

    assert row().status == FENCED
