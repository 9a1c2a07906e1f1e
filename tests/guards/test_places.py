"""One name for several tables: a guard without a scope answers nothing unless it is certain which one is meant."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing
from functools import partial

import pytest
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections

from bloomguard import get_or_load
from bloomguard.checks.storage import check_filters
from bloomguard.contrib.health import state_of
from bloomguard.exceptions import RebuildError
from bloomguard.guards import doubts, places, registry, runtime
from bloomguard.guards.keys import NoScope
from bloomguard.guards.places import databases_of
from bloomguard.lookups import guarded_lookups
from bloomguard.lookups.context import LookupContext, contexts
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild.plan import assess
from bloomguard.routes import explain
from bloomguard.state import connection
from bloomguard.state import table as state
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.connection import DatabaseConnection
from bloomguard.state.row import ARMED
from bloomguard.state.verdicts import ABSENT, AMBIGUOUS, LEASE, MAYBE, Verdict
from bloomguard.writes import strays
from tests.shop.models import Product
from tests.support import database
from tests.support.guarding import make_guard
from tests.support.interruptions import held_elsewhere
from tests.support.mariadb import is_missing

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def run(*statements):
    with connections["postgresql"].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def tenants(monkeypatch, build, clock):
    """The products of the schema ``public``, with a filter; ``tenants()`` gives another schema the table, unseen."""
    monkeypatch.setattr(database, "current", "postgresql")
    monkeypatch.setattr(places.schemas, "clock", clock)
    Product.objects.create(pk=1)
    build("product")

    def add():
        with database.unseen(connections["postgresql"]) as cursor:
            cursor.execute("CREATE SCHEMA tenant")
            cursor.execute("CREATE TABLE tenant.shop_product (LIKE public.shop_product INCLUDING ALL)")
            cursor.execute("INSERT INTO tenant.shop_product SELECT 7, name FROM public.shop_product")

    yield add
    run("RESET search_path", "DROP SCHEMA IF EXISTS tenant CASCADE")


def decisions(*values):
    return [registry["product"]._runtime.decide(value) for value in values]


def reported(*databases):
    checked = run_checks(databases=databases)
    return [each for each in checked if each.id == "bloomguard.E137" and each.msg.startswith("the guard 'product':")]


def found(*databases):
    return [each.msg for each in reported(*databases)]


def test_a_table_of_one_schema_is_answered_for(tenants, django_assert_num_queries):
    """On any search_path, and with no query on the connection of the request."""
    run("SET search_path TO pg_catalog, public")

    with django_assert_num_queries(0, using="postgresql"):
        assert decisions(1, 7) == [MAYBE, ABSENT]
    assert found("postgresql") == found() == []
    assert [each.partition("the databases 'default', 'postgresql' each")[1] for each in found("default", "postgresql")]


@pytest.mark.parametrize("each_database", database.ALL, indirect=True)
def test_two_aliases_of_one_database_have_one_table(each_database):
    """Through a pooler and past it, as for migrations: only the database itself tells."""
    with database.second_alias(database.current) as second:
        assert found(database.current, second) == []
        (each,) = reported(*{"default", "postgresql", database.current}, second)

    assert second not in each.msg
    assert "drop" not in each.hint  # what another alias shows may be the only table


def test_a_replica_has_no_rows_of_its_own(tenants, monkeypatch):
    """Neither a server that is a standby, nor a mirror of the settings: ``check`` counts them for no database."""
    assert found("default", "postgresql") != []
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseConnection, "is_standby", property(lambda self: str(int(self.alias == "default"))))
        assert found("default", "postgresql") == []
    monkeypatch.setitem(connections["default"].settings_dict["TEST"], "MIRROR", "postgresql")
    assert found("default", "postgresql") == []


def test_a_table_of_two_schemas_is_not(tenants, clock):
    """Whichever of them a request reads: it passes, and ``check`` says why."""
    tenants()
    clock.sleep(places.SECONDS)

    assert decisions(1, 7, 8) == [MAYBE, AMBIGUOUS, AMBIGUOUS]
    assert state_of(registry["product"]) == "ambiguous"
    run("SET search_path TO tenant, public")
    assert decisions(7, 8) == [AMBIGUOUS, AMBIGUOUS]
    assert state.table.current("product").status == ARMED
    (said,) = found("postgresql")
    assert "'shop_product' is a table of the schema 'tenant', and of 'public'" in said
    run("DROP SCHEMA tenant CASCADE")
    clock.sleep(places.SECONDS)
    assert decisions(7, 8) == [ABSENT, ABSENT]


def test_the_catalogue_is_read_once_a_minute(tenants, clock, monkeypatch):
    """A miss under attack costs no query of its own."""
    read = []
    execute = DatabaseConnection.execute
    monkeypatch.setattr(DatabaseConnection, "execute", lambda self, *given: read.append(given) or execute(self, *given))

    monkeypatch.setattr(places.schemas, "_identified", set())  # an earlier test may have asked which database it is
    places.schemas.forget()
    for number in range(100):
        registry["product"]._runtime.decide(100 + number)

    assert len(read) == 1
    clock.sleep(places.SECONDS)
    decisions(7)
    decisions(1)
    assert len(read) == 2


def test_a_copy_from_the_future_is_not_used(tenants, clock):
    """As in a container that another host restores from a checkpoint: its clock may go back by days."""
    tenants()
    assert decisions(7) == [ABSENT]
    clock.now -= 1_000_000

    assert decisions(7) == [AMBIGUOUS]


def test_a_read_that_is_under_way_is_not_kept_without_the_identity(tenants, monkeypatch):
    """A filter would be bound to no database, if its build is the first that asks which one it is."""
    own, identities, close = places.Schemas(), [], DatabaseConnection.close
    asking = threading.Thread(target=lambda: identities.append(own.identity("postgresql", ["shop_product"])))

    def ask_and_close(connection):
        if asking.ident is None:
            asking.start()
            while "postgresql" not in own._identified:
                time.sleep(0.001)  # until it waits for this read
        close(connection)

    monkeypatch.setattr(DatabaseConnection, "close", ask_and_close)
    own.of("postgresql", ["shop_product"])
    asking.join()

    with closing(DatabaseConnection("postgresql")) as other:
        assert identities == [other.identify()] != [""]


def test_a_copy_that_is_forgotten_meanwhile_is_still_an_answer(tenants, monkeypatch):
    """Else a rebuild would find no table, no tenant or no identity, because another thread ends a migration."""
    own, close = places.Schemas(), DatabaseConnection.close
    monkeypatch.setattr(DatabaseConnection, "close", lambda connection: (own.forget(), close(connection)))

    assert own.of("postgresql", ["shop_product"]) != [{}]
    with closing(DatabaseConnection("postgresql")) as other:
        assert own.identity("postgresql", ["shop_product"]) == other.identify() != ""
    assert own.is_due("postgresql", ["shop_product"])


def test_a_copy_without_the_identity_is_not_one_with_an_unknown_identity(tenants):
    """Of two threads that ask first, one may see the other's question before that has dropped the copy."""
    own = places.Schemas()
    own.of("postgresql", ["shop_product"])
    own._identified.add("postgresql")

    with closing(DatabaseConnection("postgresql")) as other:
        assert own.identity("postgresql", ["shop_product"]) == other.identify() != ""


def test_a_catalogue_that_cannot_be_read_says_nothing(tenants, clock, monkeypatch):
    """No answer is no proof; a second later it is asked again."""
    with monkeypatch.context() as broken:
        broken.setattr(places, "SQL", "SELECT nonsense FROM nowhere WHERE x = %s")
        places.schemas.forget()
        assert decisions(1, 7) == [MAYBE, AMBIGUOUS]

    clock.sleep(places.AGAIN_SECONDS)

    assert decisions(7) == [ABSENT]


@pytest.mark.parametrize("home", ["default", "postgresql"])
def test_the_rows_of_another_database_are_not_those_of_the_filter(build, monkeypatch, home):
    """A router that names another database than at the build, as one that follows the request does."""
    monkeypatch.setattr(type(state.table.connection), "alias", "default")  # the state rows stay where they are
    monkeypatch.setattr(database, "current", home)
    Product.objects.create(pk=1)
    build("product")
    assert decisions(1, 7, 7) == [MAYBE, ABSENT, ABSENT]

    monkeypatch.setattr(database, "current", "default" if home == "postgresql" else "postgresql")
    assert decisions(1, 7) == [MAYBE, AMBIGUOUS]
    monkeypatch.setattr(database, "current", home)
    assert decisions(7) == [ABSENT]


def test_a_build_from_another_place_replaces_the_filter(build, monkeypatch, clock):
    """Nobody answers from one that holds the rows of another database."""
    Product.objects.create(pk=1)
    first = build("product")
    monkeypatch.setattr(type(state.table.connection), "alias", "default")
    monkeypatch.setattr(database, "current", "postgresql")

    one = Rebuild(registry["product"], sleep=clock.sleep)
    one.announce()
    Product.objects.create(pk=9)
    one.withdraw()
    second = build("product")

    found = state.table.current("product")
    assert (found.active, found.standby) == (second.generation, "")
    assert found.source.startswith("postgresql/public:")
    assert first.generation != second.generation
    assert decisions(9, 1) == [MAYBE, ABSENT]


@pytest.mark.parametrize(("home", "other"), [("default", "postgresql"), ("postgresql", "default")])
def test_a_database_beside_that_of_the_state_rows_was_replaced(build, monkeypatch, clock, home, other):
    """By a newer file, a restored dump or another server: it may have rows that the filter lacks."""
    monkeypatch.setattr(type(state.table.connection), "alias", other)
    monkeypatch.setattr(database, "current", home)
    monkeypatch.setattr(places, "schemas", places.Schemas())
    monkeypatch.setattr(places.schemas, "clock", clock)
    Product.objects.create(pk=1)
    build("product")
    assert decisions(1, 7) == [MAYBE, ABSENT]

    monkeypatch.setattr(places, "identity_of_file", lambda connection: "sqlite:another")
    monkeypatch.setattr(DatabaseConnection, "identify", lambda self: "another")
    clock.sleep(places.SECONDS)
    assert decisions(1, 7) == [MAYBE, AMBIGUOUS]
    with pytest.raises(CommandError, match="or rebuild_filter"):
        call_command("verify_filter", "product")
    assert "was built from" in explain._look_at(registry["product"])["fault"]
    assert ["was built from" in each.msg for each in check_filters(None) if "'product'" in each.msg] == [True]
    assert "was built from" in assess(registry["product"]).reasons[0]  # so cron rebuilds it
    build("product")
    assert decisions(1, 7) == [MAYBE, ABSENT]


@pytest.mark.parametrize("of_state_rows", ["default", "postgresql"])
def test_a_table_that_another_program_has_replaced_is_another_one(tenants, build, clock, monkeypatch, of_state_rows):
    """As ``pg_restore --clean`` does with one table, whose rows the filter may have forgotten since. It has the schema
    and the name of the former one, in the database that it was in."""
    monkeypatch.setattr(type(state.table.connection), "alias", of_state_rows)
    build("product")
    assert decisions(1, 7) == [MAYBE, ABSENT]

    with database.unseen(connections["postgresql"]) as cursor:
        cursor.execute("ALTER TABLE shop_product RENAME TO former")
        cursor.execute("CREATE TABLE shop_product (LIKE former INCLUDING ALL)")
        cursor.execute("INSERT INTO shop_product VALUES (7, '')")
    clock.sleep(places.SECONDS)

    try:
        assert decisions(1, 7) == [MAYBE, AMBIGUOUS]
        assert "if the table or the database was replaced" in assess(registry["product"]).reasons[0]
        build("product")
        assert decisions(7, 8) == [MAYBE, ABSENT]
    finally:
        run("DROP TABLE shop_product", "ALTER TABLE former RENAME TO shop_product")


class NeedsTenant:
    """Products are in the database of a tenant, and none is set."""

    def db_for_write(self, model, **hints):
        if model is Product:
            raise LookupError("no tenant is set")


def test_checks_and_commands_report_a_router_that_raises(build, settings):
    """It names the database of the rows in requests alone."""
    build("product")
    settings.DATABASE_ROUTERS = [NeedsTenant()]

    assert "no tenant is set" in explain._look_at(registry["product"])["fault"]
    assert ["no tenant is set" in each.msg for each in check_filters(None) if "'product'" in each.msg] == [True]
    with pytest.raises(CommandError, match="no tenant is set"):
        call_command("rebuild_filter", "product", "--if-needed")


def test_a_server_that_hides_which_it_is_answers_all_the_same(build, monkeypatch, clock):
    """A service may keep the functions of PostgreSQL's control file to itself."""
    monkeypatch.setattr(type(state.table.connection), "alias", "default")
    monkeypatch.setattr(database, "current", "postgresql")
    monkeypatch.setattr(connection, "SERVER", "(SELECT no_such_function())")
    Product.objects.create(pk=1)
    build("product")

    assert decisions(1, 7) == [MAYBE, ABSENT]


# -- what a request does with the answer


@pytest.fixture
def two(build, monkeypatch):
    """The products of PostgreSQL, with a filter; ``two(alias)`` lets the router name another database."""
    monkeypatch.setattr(type(state.table.connection), "alias", "default")
    route = partial(monkeypatch.setattr, database, "current")
    route("postgresql")
    Product.objects.create(pk=1)
    build("product")
    connections["default"].ensure_connection()
    connections["default"].connection.execute("INSERT INTO shop_product (id, name) VALUES (7, '')")  # past Django
    assert decisions(1, 7) == [MAYBE, ABSENT]
    return route


def test_a_row_that_another_database_lacks_is_not_remembered(two):
    """A loader that found nothing there proves nothing here."""
    two("default")
    assert get_or_load("product", 1, lambda pk: None) is None

    two("postgresql")
    assert decisions(1) == [MAYBE]


def test_a_row_that_another_schema_lacks_is_not_remembered(tenants):
    """Nor does a query in a schema that was made a moment ago."""
    tenants()
    run("SET search_path TO tenant, public")
    with guarded_lookups():
        assert Product.objects.filter(pk=1).first() is None

    run("RESET search_path")
    assert decisions(1) == [MAYBE]


def test_an_answer_is_not_used_for_another_database(two):
    """The view may read another one than the one that the routes' guard was asked for."""
    context = LookupContext()
    token = contexts.set(context)
    try:
        context.ask(registry["product"], 7)
        two("default")
        assert Product.objects.filter(pk=7).exists()
    finally:
        contexts.reset(token)


def test_commands_say_so(two):
    """``explain_guard`` gives the reason that a request has, and ``verify_filter`` fences no filter of other rows."""
    two("default")

    assert explain._decide(registry["product"], 7)[0] == decisions(7)[0] == AMBIGUOUS
    with pytest.raises(CommandError, match="was built from 'postgresql/public:"):
        call_command("verify_filter", "product")
    assert state.table.current("product").status == ARMED


def test_a_filter_that_was_replaced_meanwhile_answers_nothing(two, build, clock, monkeypatch):
    """The answer came from the one of another place, as a thread was suspended for long."""
    clock.sleep(state.LEASE_SECONDS)
    ask = ActiveFilter.ask

    def replaced(self, key):
        found = ask(self, key)
        two("default")
        build("product")
        return found

    with monkeypatch.context() as suspended:
        suspended.setattr(ActiveFilter, "ask_leased", lambda self, key: None)
        suspended.setattr(ActiveFilter, "ask", replaced)
        assert decisions(8) == [LEASE]
    assert decisions(7, 8) == [MAYBE, ABSENT]


# -- the catalogue


def test_definitions_that_this_process_changes_count_soon(tenants, clock):
    """After a CREATE TABLE through Django nobody waits for the next look, but for a lease."""
    assert decisions(8) == [ABSENT]
    run("CREATE SCHEMA tenant", "CREATE TABLE tenant.shop_product (LIKE public.shop_product INCLUDING ALL)")
    clock.sleep(state.LEASE_SECONDS)

    assert decisions(8) == [AMBIGUOUS]


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "default/public"])
def test_a_schema_may_have_any_name(tenants, build, clock, name):
    """Also one with what stands between the alias and the schema in the state row."""
    run(
        f'CREATE SCHEMA "{name}"',
        f'ALTER TABLE shop_product SET SCHEMA "{name}"',
        f'SET search_path TO public, "{name}"',
    )
    try:
        build("product")
        clock.sleep(places.SECONDS)
        assert decisions(1, 8) == [MAYBE, ABSENT]
        assert registry["product"]._meta.place.home == "postgresql"
    finally:
        run("ALTER TABLE shop_product SET SCHEMA public", f'DROP SCHEMA "{name}"')


def test_a_schema_of_a_role_that_the_login_can_set(tenants):
    """``SET ROLE`` is how some sites change tenants."""
    clerk = connections["postgresql"].copy()
    clerk.settings_dict = {**clerk.settings_dict, "USER": "tenants_clerk"}
    tenants()
    run(
        "CREATE ROLE tenant_role",
        "CREATE ROLE tenants_clerk LOGIN NOINHERIT",
        "GRANT tenant_role TO tenants_clerk",
        "GRANT USAGE ON SCHEMA tenant TO tenant_role",
    )
    try:
        with clerk.cursor() as cursor:
            cursor.execute(places.SQL, [["shop_product"]])
            assert {schema for _, schema, _ in cursor.fetchall()} == {"public", "tenant"}
    finally:
        clerk.close()
        run("DROP OWNED BY tenant_role, tenants_clerk", "DROP ROLE tenant_role, tenants_clerk")


def test_a_copy_that_is_too_old_is_not_used(tenants, clock, monkeypatch):
    """Not even if another thread reads for long."""
    monkeypatch.setattr(places, "CONNECT_SECONDS", 0.01)
    monkeypatch.setattr(places, "READ_SECONDS", 0.01)
    assert decisions(8) == [ABSENT]
    clock.sleep(places.SECONDS)

    with held_elsewhere(places.schemas._lock):
        assert decisions(8) == [AMBIGUOUS]


def test_a_rebuild_that_cannot_read_the_catalogue_changes_nothing(tenants, monkeypatch, clock):
    """The filter in use stays."""
    with monkeypatch.context() as broken:
        broken.setattr(places, "SQL", "SELECT nonsense FROM nowhere WHERE x = %s")
        places.schemas.forget()
        with pytest.raises(RebuildError, match="which schema"):
            Rebuild(registry["product"], sleep=clock.sleep).run()

    places.schemas.forget()
    assert decisions(8) == [ABSENT]


def test_an_event_loop_waits_for_no_catalogue(tenants, clock, monkeypatch):
    """A thread reads it, and only for an ABSENT."""
    monkeypatch.setattr(runtime, "needs_orm_thread", lambda: False)  # as without routers of the project
    decisions(1)
    clock.sleep(places.SECONDS)
    state.table.renewed("product")
    hops = []
    for name in ("in_a_thread", "sync_to_async"):
        real = getattr(runtime, name)
        monkeypatch.setattr(runtime, name, lambda work, real=real, **how: hops.append(work) or real(work, **how))

    async def ask(pk):
        return [await registry["product"]._runtime.adecide(pk) for _ in range(3)]

    assert asyncio.run(ask(1)) == [MAYBE] * 3
    assert not hops
    assert asyncio.run(ask(8)) == [ABSENT] * 3
    assert len(hops) == 1


def test_nor_for_one_that_becomes_too_old_the_next_moment(tenants, clock, monkeypatch):
    """Between the look at its age and its use."""
    monkeypatch.setattr(runtime, "needs_orm_thread", lambda: False)
    places.schemas.forget()
    assert decisions(8) == [ABSENT]
    clock.sleep(places.SECONDS - 0.05)
    state.table.renewed("product")
    place = registry["product"]._meta.place
    must_read = place.must_read
    monkeypatch.setattr(place, "must_read", lambda: (must_read(), clock.sleep(0.06))[0])

    assert asyncio.run(registry["product"]._runtime.adecide(8)) == ABSENT


def test_only_a_query_of_its_own_database_read_the_guards_table(two):
    """Another one proves nothing, whatever the router names."""
    place = registry["product"]._meta.place

    assert [place.was_asked(alias, b"") for alias in ("postgresql", "default")] == [True, False]
    two("default")
    assert [place.was_asked(alias, b"") for alias in ("postgresql", "default")] == [False, False]


def test_databases_of(monkeypatch):
    """One alias for each database in which the table may be, and none for a replica."""
    assert databases_of(Product) == list(connections)

    monkeypatch.setattr(database.Router, "db_for_read", lambda self, model, **hints: "postgresql", raising=False)
    assert databases_of(Product) == [alias for alias in connections if alias != "postgresql"]


@pytest.mark.parametrize("option", ["service", "read_default_file"])
def test_databases_may_be_named_by_their_options(monkeypatch, option):
    """Such as a service of PostgreSQL, or a file of MySQL: neither has a name in the settings."""
    before = [*connections]
    for name in ("main", "else"):
        given = {**connections.settings["default"], "NAME": "", "OPTIONS": {option: name}}
        monkeypatch.setitem(connections.settings, name, given)

    assert databases_of(Product) == [*before, "main", "else"]


def test_databases_of_makes_no_connection(monkeypatch):
    """With replicas each query asks for them, and one of them may have a driver that this host lacks."""
    elsewhere = {**connections.settings["default"], "ENGINE": "missing.backend", "NAME": "elsewhere"}
    with monkeypatch.context() as patch:
        patch.setitem(connections.settings, "elsewhere", elsewhere)
        found = databases_of(Product)

    assert found == [*connections, "elsewhere"]


def test_a_database_may_be_added_while_they_are_counted(monkeypatch):
    """By another thread of a project that adds one for each tenant; here by a router, which is asked in between."""

    def allow_migrate(self, db, app_label, **hints):
        connections.settings.setdefault("late", {**connections.settings["default"], "NAME": "late"})

    before = list(connections)
    monkeypatch.setattr(database.Router, "allow_migrate", allow_migrate, raising=False)
    try:
        assert databases_of(Product) == before
    finally:
        del connections.settings["late"]


# -- a temporary table


@pytest.mark.parametrize(
    ("each_database", "made"),
    [("sqlite", "TEMP TABLE {}"), ("mariadb", "TEMPORARY TABLE {}"), ("postgresql", "TEMPORARY TABLE {}"),
     ("postgresql", "temp table if not exists {}"), ("postgresql", 'TABLE pg_temp."{}"'),
     ("sqlite", "TEMP /* today's */ TABLE {}"), ("postgresql", "TEMP TABLE -- today's\n{}"),
     ("postgresql", "DO $$ BEGIN CREATE TEMP TABLE {} AS {}; END $$")],
    indirect=["each_database"],
)  # fmt: skip
def test_a_temporary_table_that_hides_the_guards_is_not_answered_for(each_database, build, clock, made, caplog):
    """For as long as its connection lives, though a rebuild by another one reads the real table."""
    connection = connections[database.current]
    real = {"sqlite": "main.", "postgresql": "public."}.get(connection.vendor, "") + "shop_product"
    Product.objects.create(pk=1)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE products_of_today AS SELECT id FROM shop_product")
        assert connection.alias not in doubts.strayed
        sql = made if made.startswith("DO") else f"CREATE {made} AS {{}}"
        cursor.execute(sql.format("shop_product", f"SELECT 7 AS id, name FROM {real}"))

    def rebuild():
        Rebuild(registry["product"], sleep=clock.sleep).run()
        connections.close_all()

    thread = threading.Thread(target=rebuild)
    thread.start()
    thread.join()
    try:
        with guarded_lookups():
            assert Product.objects.filter(pk=7).exists()
        assert state.table.current("product").status == ARMED
        assert decisions(7) == [AMBIGUOUS]
        assert "they pass every request; restart the process" in caplog.text
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("vendor", "sql", "hides"),
    [
        ("postgresql", 'CREATE TEMP TABLE "order details" (id int)', True),
        ("mysql", "CREATE OR REPLACE TEMPORARY TABLE `order details` LIKE other", True),
        ("sqlite", "CREATE TABLE temp.[Order Details] (id int)", True),
        ("postgresql", "CREATE LOCAL TEMPORARY VIEW city AS SELECT 1", True),
        ("postgresql", "SELECT 1 AS id INTO TEMP TABLE city", True),
        ("postgresql", "CREATE TABLE pg_temp_3.city (id int)", True),
        ("postgresql", "CREATE TEMP TABLE %s (id int)", True),
        ("mysql", "CREATE TEMPORARY TABLE a (b text DEFAULT 'it\\'s')", True),  # unclear
        ("postgresql", "DO $$ BEGIN CREATE TEMP TABLE city (id int); END $$", True),
        ("postgresql", "DO $$ BEGIN EXECUTE 'CREATE TEMP TABLE city (id int)'; END $$", True),
        ("postgresql", "DO $$ BEGIN EXECUTE E'CREATE TEMP TABLE\\ncity (id int)'; END $$", True),
        ("mysql", "EXECUTE IMMEDIATE 'CREATE TEMPORARY TABLE City (id int)'", True),
        ("mysql", 'PREPARE made FROM "CREATE TEMPORARY TABLE city (id int)"', True),
        ("postgresql", "INSERT INTO log VALUES ('the city''s temp fell')", True),  # unclear
        ("postgresql", "INSERT INTO log VALUES ('it''s a temp worker', 'a temp of the city')", False),
        ("postgresql", "CREATE TEMP TABLE today AS SELECT * FROM city", False),
        ("sqlite", "CREATE TEMP TABLE IF NOT EXISTS today (city text)", False),
        ("postgresql", "SELECT temp FROM city", False),
    ],
)
def test_a_temporary_table_is_known_by_its_name_alone(vendor, sql, hides):
    """Whatever stands before it or in it. What is read from a guarded table hides none."""
    assert strays._hides_one(sql, vendor, {"city", "order details"}) is hides


@pytest.mark.parametrize(("depth", "hides"), [(10, False), (1_000, True)])
def test_a_literal_in_others_is_looked_into_up_to_a_depth(depth, hides):
    """A text that a user has written raises no error, and takes no time, whatever it is made of."""
    text = "a temp of the city"
    for number in range(depth):
        text = f"$a{number}${text}$a{number}$"

    assert strays._hides_one(f"INSERT INTO log VALUES ({text})", "postgresql", {"city"}) is hides


# -- MySQL and MariaDB, where a statement may lead a session to other rows of the same name


@pytest.fixture
def on_mariadb(monkeypatch, build):
    """Product 1, with a filter, and 8, which was deleted before. Another database has such a table, with product 7."""
    if is_missing():
        pytest.skip(is_missing())
    monkeypatch.setattr(database, "current", "mariadb")
    connection = connections["mariadb"]
    home = connection.settings_dict["NAME"]

    def send(*statements):  # past Django, as another program does
        for statement in statements:
            connection.connection.query(statement)

    Product.objects.create(pk=1)
    send(
        "CREATE DATABASE elsewhere",
        "CREATE TABLE elsewhere.shop_product LIKE shop_product",
        "INSERT INTO elsewhere.shop_product (id, name) VALUES (7, 'tea')",
        "ALTER TABLE shop_product ADD SYSTEM VERSIONING",
        "INSERT INTO shop_product (id, name) VALUES (8, 'past')",
        "SET @then = NOW(6)",
        "DO SLEEP(0.01)",
        "DELETE FROM shop_product WHERE id = 8",
    )
    build("product")
    caches["default"].clear()  # of what other tests have loaded
    with guarded_lookups():
        yield connection
    send(
        f"USE {home}",
        "SET system_versioning_asof = DEFAULT",
        "DROP DATABASE elsewhere",
        "ALTER TABLE shop_product DROP SYSTEM VERSIONING",
    )


@pytest.mark.parametrize(
    ("statement", "pk"),
    [("USE elsewhere", 7), ("SELECT 1; /* of a tenant */ use`elsewhere`", 7), ("-- mine\nUSE elsewhere", 7),
     ("/*! USE elsewhere */", 7), ("SET SESSION system_versioning_asof = @then", 8)],
    ids=["database", "after another", "after a comment", "in a comment", "time"],
)  # fmt: skip
def test_a_session_that_may_read_other_rows_is_not_answered(on_mariadb, statement, pk):
    """Neither at a lookup nor elsewhere."""
    assert decisions(7, 8) == [ABSENT] * 2
    assert decisions(7, 8) == [ABSENT] * 2  # by the short check
    with on_mariadb.cursor() as cursor:
        cursor.execute(statement)
        while cursor.nextset():
            pass

    assert Product.objects.filter(pk=pk).exists()
    assert {each.verdict for each in decisions(7, 8)} == {Verdict.UNKNOWN}
    with pytest.raises(NoScope):
        make_guard(Product, name="shards", scope="database")._meta.scopes.of_query(on_mariadb)
    assert get_or_load("product", pk, lambda pk: Product.objects.filter(pk=pk).first()).pk == pk


@pytest.mark.parametrize(
    "statement", ["SELECT id FROM shop_product\nUSE INDEX (PRIMARY)", "SELECT 'use', `use` FROM (SELECT 1 AS `use`) t"]
)
def test_other_uses_of_the_word_do_not_matter(on_mariadb, statement):
    """An index hint, a text, a name."""
    with on_mariadb.cursor() as cursor:
        cursor.execute(statement)

    assert decisions(7) == [ABSENT]
