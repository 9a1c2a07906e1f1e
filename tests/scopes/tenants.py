"""django-tenants: a guard of the tenants' tables answers for the schema that the query would read."""

from __future__ import annotations

import asyncio
import uuid

import django
import pytest
from asgiref.sync import sync_to_async

django.setup()

from django.core.checks import run_checks  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django_tenants.clone import CloneSchema  # noqa: E402
from django_tenants.utils import schema_context, schema_rename  # noqa: E402

from bloomguard import adding  # noqa: E402
from bloomguard.exceptions import RebuildError  # noqa: E402
from bloomguard.guards import places, registry, spot_checks  # noqa: E402
from bloomguard.rebuild import Rebuild, rebuild, roll_back_all  # noqa: E402
from bloomguard.state import table  # noqa: E402
from bloomguard.state.active_filter import ActiveFilter  # noqa: E402
from bloomguard.state.verdicts import CAUGHT  # noqa: E402
from tests.scopes.customers.models import Customer, Domain  # noqa: E402
from tests.scopes.drill import Drill  # noqa: E402
from tests.scopes.site import Clock, build, decide, in_thread, queried  # noqa: E402
from tests.scopes.wares.models import Note, Ware  # noqa: E402
from tests.support import database  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def site():
    """The shared schema and two tenants."""
    call_command("migrate_schemas", shared=True, run_syncdb=True, verbosity=0)
    for name in ("one", "two"):
        tenant(name)


def tenant(name):
    """A new tenant."""
    made = Customer(schema_name=name)
    made.save(verbosity=0)
    Domain.objects.create(domain=f"{name}.test", tenant=made)
    return made


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of this process; nothing is known from the test before."""
    made = Clock()
    monkeypatch.setattr(table.table, "clock", made)
    monkeypatch.setattr(table.table, "sleep", made.sleep)
    monkeypatch.setattr(places.schemas, "clock", made)
    monkeypatch.setattr(spot_checks, "drawn", spot_checks.never)
    monkeypatch.setattr(rebuild, "EXPIRY_SECONDS", 0.0)  # of the commands; no other process is there
    places.schemas.forget()
    yield made
    connection.set_schema_to_public()


@pytest.fixture
def wares(clock):
    """Ware 1 of the one, ware 2 of the other, and a filter."""
    for number, name in enumerate(("one", "two"), 1):
        with schema_context(name):
            Ware.objects.all().delete()
            Note.objects.all().delete()
            Ware.objects.create(pk=number, name=name)
            Note.objects.create(slug="both")
    build("ware", "note")


def decisions(name, *values, guard="ware"):
    """The reasons of the guard's decisions on some values, in the schema ``name``."""
    with schema_context(name):
        return [decide(guard, value) for value in values]


def past_django(*statements):
    """Send statements as another program does."""
    with database.unseen(connection) as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_each_tenant_has_its_own_rows(wares):
    """An ID of one is absent for the other, and its query is not sent."""
    assert decisions("one", 1, 2, 3) == ["maybe", "absent", "absent"]
    assert decisions("two", 1, 2, 3) == ["absent", "maybe", "absent"]
    for name, own, other in (("one", 1, 2), ("two", 2, 1)):
        with schema_context(name):
            assert queried(connection, Ware.objects.filter(pk=own).first)[0].name == name
            assert queried(connection, Ware.objects.filter(pk=other).first) == (None, [])


def test_requests(wares):
    """The tenant comes from the host, as the site's middleware finds it."""
    found = {
        (host, pk): Client().get(f"/ware/{pk}/", headers={"host": f"{host}.test"}).status_code
        for host in ("one", "two")
        for pk in (1, 2)
    }

    assert found == {("one", 1): 200, ("one", 2): 404, ("two", 1): 404, ("two", 2): 200}


def test_every_write_adds_to_the_schema_that_it_wrote(wares):
    """Single rows, many rows, updates of the key, and rows that a transaction writes in both."""
    with schema_context("one"):
        Ware(pk=11).save()
        Ware.objects.bulk_create([Ware(pk=12), Ware(pk=13)])
        Note.objects.filter(slug="both").update(slug="renamed")
        with transaction.atomic():
            Ware.objects.create(pk=14)
            connection.set_schema("two")
            Ware.objects.create(pk=15)
    assert decisions("one", 11, 12, 13, 14, 15) == ["maybe"] * 4 + ["absent"]
    assert decisions("two", 11, 12, 13, 14, 15) == ["absent"] * 4 + ["maybe"]
    assert decisions("one", "renamed", "both", guard="note") == ["maybe", "absent"]
    assert decisions("two", "renamed", "both", guard="note") == ["absent", "maybe"]


def test_a_tenant_that_is_newer_than_the_filter_passes(wares, clock):
    """Its rows may have come by any way. With the next build it is guarded."""
    made = tenant("newer")
    try:
        with schema_context("newer"):
            Ware.objects.create(pk=5)
        assert decisions("newer", 5, 6) == ["maybe", "ambiguous"]
        assert decisions("one", 6) == ["absent"]
        with schema_context("newer"):
            assert queried(connection, Ware.objects.filter(pk=6).first)[1]
        build("ware")
        assert decisions("newer", 5, 6) == ["maybe", "absent"]
    finally:
        made.delete()


def test_a_schema_that_another_program_makes_passes(wares, clock):
    """Before this process has seen it, and after."""
    past_django(
        "CREATE SCHEMA cloned", "CREATE TABLE cloned.wares_ware (LIKE one.wares_ware INCLUDING ALL)",
        "INSERT INTO cloned.wares_ware VALUES (7, '')",
    )  # fmt: skip
    try:
        assert decisions("one", 7) == ["absent"]
        assert decisions("cloned", 7, 8) == ["ambiguous"] * 2
        clock.sleep(places.SECONDS)
        assert decisions("cloned", 7, 8) == ["ambiguous"] * 2
    finally:
        past_django("DROP SCHEMA cloned CASCADE")


def test_a_clone_fences(wares):
    """It copies rows by functions, of which nobody can tell what they write. The next build has the clone too."""
    CloneSchema().clone_schema("one", "clone")
    try:
        assert decisions("clone", 1) == decisions("one", 1) == ["fenced"]
        build("ware")
        assert decisions("clone", 1, 2) == ["maybe", "absent"]
    finally:
        past_django("DROP SCHEMA clone CASCADE")


def test_a_table_that_is_made_anew_passes(wares, clock):
    """Under the name of one that the filter was built from."""
    past_django(
        "ALTER TABLE two.wares_ware RENAME TO former", "CREATE TABLE two.wares_ware (LIKE one.wares_ware)",
        "INSERT INTO two.wares_ware VALUES (7, '')",
    )  # fmt: skip
    try:
        clock.sleep(places.SECONDS)
        assert decisions("two", 7) == ["ambiguous"]
    finally:
        past_django("DROP TABLE two.wares_ware", "ALTER TABLE two.former RENAME TO wares_ware")


def test_a_table_that_is_made_anew_during_a_build_is_not_read_for_the_former_one(wares, clock):
    """When that one gets its name back, it would be denied the rows that the other one had not."""
    swap = ["ALTER TABLE two.wares_ware RENAME TO former", "CREATE TABLE two.wares_ware (LIKE one.wares_ware)"]
    back = ["DROP TABLE two.wares_ware", "ALTER TABLE two.former RENAME TO wares_ware"]

    def sleep(seconds):
        past_django(*swap)
        swap.clear()
        clock.sleep(seconds)

    try:
        with pytest.raises(RebuildError, match="its table in 'two' was replaced meanwhile"):
            Rebuild(registry["ware"], sleep=sleep, probes=1_000).run()
    finally:
        past_django(*back)
    clock.sleep(places.SECONDS)
    table.table.current("ware")

    assert decisions("two", 2) == ["maybe"]


def test_a_filter_that_is_replaced_meanwhile_answers_nothing(wares, monkeypatch):
    """The one that gave the answer may have been built before the tenant was made, the one that is there now after."""
    real = ActiveFilter.ask

    def replaced(self, key):
        found = real(self, key)
        build("ware")
        return found

    made = tenant("newer")
    try:
        past_django("INSERT INTO newer.wares_ware VALUES (5, '')")
        with monkeypatch.context() as meanwhile, schema_context("newer"):
            meanwhile.setattr(ActiveFilter, "ask_leased", lambda self, key: None)
            meanwhile.setattr(ActiveFilter, "ask", replaced)
            assert decide("ware", 5) == "lease"
        assert decisions("newer", 5, 6) == ["maybe", "absent"]
    finally:
        made.delete()


def test_a_schema_that_is_renamed_passes(wares):
    """Its keys have the former name."""
    made = tenant("former")
    build("ware")
    assert decisions("former", 7) == ["absent"]

    schema_rename(made, "latter")
    try:
        assert decisions("latter", 7)[0] in ("ambiguous", "fenced")  # the statement was raw SQL
    finally:
        made.delete()


# -- the search_path


def test_a_path_that_was_set_by_hand_does_not_last(wares):
    """The connection sets its own before each statement, so the answer is that of its schema."""
    with schema_context("one"):
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO two")
        assert queried(connection, Ware.objects.filter(pk=2).first) == (None, [])
        assert Ware.objects.filter(pk=2).first() is None


@override_settings(TENANT_LIMIT_SET_CALLS=True)
def test_a_path_that_was_set_by_hand_may_last(wares):
    """With fewer SET statements nobody knows the schema after the first: then requests pass, and writes ask."""
    with schema_context("one"):
        assert [each.id for each in run_checks() if "TENANT_LIMIT_SET_CALLS" in each.msg] == ["bloomguard.W138"] * 2
        assert decide("ware", 2) == "absent"
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO two")
        assert decide("ware", 2) == "ambiguous"
        assert queried(connection, Ware.objects.filter(pk=2).first)[0].name == "two"
        Ware.objects.create(pk=21)
        connection.set_schema("one")
        assert decide("ware", 21) == "absent"
        connection.set_schema("two")
        assert decide("ware", 21) == "maybe"


def test_a_write_to_no_certain_schema_fences(wares, monkeypatch):
    """Nobody knows which requests would miss the row."""
    from bloomguard.guards import places

    with schema_context("one"), monkeypatch.context() as patch:
        patch.setattr(places, "_MEANT", "SELECT NULL, NULL FROM unnest(%s::text[])")
        Ware.objects.create(pk=31)

    assert decisions("one", 31) == ["fenced"]
    assert "not certain in which schema" in table.table.row("ware").reason
    build("ware")


def test_a_write_fences_if_other_code_has_changed_the_schema_since(wares):
    """Here an execute wrapper: the ``search_path`` is that of its own query."""

    def audit(execute, *given):
        result = execute(*given)
        if "INSERT" in given[0]:
            with schema_context("two"):
                Customer.objects.count()
        return result

    with schema_context("one"), connection.execute_wrapper(audit):
        Ware.objects.create(pk=32)

    assert decisions("one", 32) == ["fenced"]
    assert "in another schema" in table.table.row("ware").reason
    build("ware")


def test_a_write_to_a_schema_that_was_renamed_fences(wares, clock):
    """When it gets its name back, its table is that of the filter again, which would lack the row."""
    past_django("ALTER SCHEMA two RENAME TO away")
    try:
        with schema_context("away"):
            Ware.objects.create(pk=33)
    finally:
        past_django("ALTER SCHEMA away RENAME TO two")
    clock.sleep(places.SECONDS)

    assert decisions("two", 33) == ["fenced"]
    assert "'away' had another name" in table.table.row("ware").reason
    build("ware")


def test_no_generation_is_kept_for_a_roll_back(wares, clock):
    """A schema may have another name by then, and the filter may lack what was written under the present one."""
    Rebuild(registry["ware"], sleep=clock.sleep, probes=1_000, keep_standby=3_600.0).run()
    (outcome,) = roll_back_all([registry["ware"]], clock.sleep)

    assert "none was kept" in str(outcome)


def test_raw_sql_fences(wares):
    """Also with a schema in front of the name."""
    with schema_context("one"), connection.cursor() as cursor:
        cursor.execute("INSERT INTO two.wares_ware VALUES (41, '')")

    assert decisions("two", 41) == ["fenced"]
    build("ware")
    assert decisions("two", 41, 42) == ["maybe", "absent"]


def test_a_block_that_adds_the_keys(wares):
    """In the schema of the statement."""
    guard = registry["ware"]
    with schema_context("one"), adding(guard) as add, connection.cursor() as cursor:
        cursor.execute("INSERT INTO wares_ware VALUES (51, '')")
        add([51])

    assert decisions("one", 51) == ["maybe"]
    assert decisions("two", 51) == ["absent"]


# -- what is forgotten, and remembered


def test_a_deleted_row_is_forgotten_in_its_schema_alone(wares):
    """The same slug of another tenant stays."""
    with schema_context("one"):
        Note.objects.filter(slug="both").delete()

    assert decisions("one", "both", guard="note") == ["absent"]
    assert decisions("two", "both", guard="note") == ["maybe"]


def test_a_row_that_the_filter_never_had_is_not_forgotten(wares):
    """To forget it might take away the key of another row."""
    forgot = []
    active = registry["note"]._runtime.active_filter
    made = tenant("newer")
    try:
        past_django("INSERT INTO newer.wares_note VALUES (1, 'unseen', false)")
        with schema_context("newer"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(active, "discard", lambda *given: forgot.append(given))
            Note.objects.get(slug="unseen").delete()
        assert forgot == []
    finally:
        made.delete()


def test_a_miss_is_remembered_for_its_schema(wares):
    """A false positive of one tenant is none of another."""
    generation = registry["ware"]._runtime.active_filter.answering()
    for name, pk in (("one", 2), ("two", 1)):
        with schema_context(name):
            key = registry["ware"]._meta.keys.key(pk)
            generation.add_many([key])  # not as a row: no recent bits
            assert queried(connection, Ware.objects.filter(pk=pk).first)[1]
            assert decide("ware", pk) == "remembered"
    assert decisions("one", 1) == decisions("two", 2) == ["maybe"]


def test_a_spot_check_asks_the_schema(wares, monkeypatch):
    """And finds a row there that came past Django."""
    past_django("INSERT INTO two.wares_ware VALUES (61, '')")
    monkeypatch.setattr(spot_checks, "drawn", lambda: True)
    monkeypatch.setattr(spot_checks, "checks", spot_checks.SpotChecks())

    assert decisions("one", 61) == ["absent"]
    spot_checks.checks._last = float("-inf")
    assert decisions("two", 61) == [CAUGHT.reason]
    build("ware")


# -- threads and event loops


def test_a_thread_has_the_schema_of_its_own_connection(wares):
    """Not that of another thread."""
    with schema_context("one"):
        assert in_thread(decisions, "two", 2) == ["maybe"]
        assert decide("ware", 2) == "absent"


def test_an_event_loop_asks_the_thread_of_the_orm(wares):
    """The connection of the loop's own thread is that of no request."""

    async def ask():
        await sync_to_async(lambda: connection.set_schema("two"))()
        guard = registry["ware"]
        here = guard.verdict(2)
        there = await guard.averdict(2), await guard.averdict(1), await guard.afilter_existing([1, 2])
        await sync_to_async(lambda: connection.set_schema_to_public())()
        return here.name, there[0].name, there[1].name, there[2]

    connection.set_schema("one")  # in the loop's own thread
    assert decide("ware", 2) == "absent"
    assert asyncio.run(ask()) == ("UNKNOWN", "MAYBE", "ABSENT", [2])


# -- routes, checks and commands


def test_routes_are_left_to_the_lookup(wares):
    """The view may change the schema before its query. ``public = True`` says that none does."""
    from bloomguard.routes.table import guarded_routes

    (route,) = guarded_routes(registry["ware"])
    assert route.closed == route.not_at_door == "the schema that the view reads is certain at its query"
    registry["ware"].public = True
    try:
        (route,) = guarded_routes(registry["ware"])
        assert (route.closed, route.not_at_door) == ("", "the schema that the view reads is not in the path")
        registry.replan()
        test_requests(wares)
    finally:
        registry["ware"].public = None
        registry.replan()


def test_without_a_scope_the_check_fails(wares):
    """And the guard lets requests pass, and no filter is built."""
    scoped = registry["ware"]
    plain = type("PlainGuard", (type(scoped),), {"scope": None, "name": "plain"})(Ware)
    assert not [each for each in run_checks(databases=["default"]) if each.id == "bloomguard.E137"]
    registry.add(plain)
    try:
        with schema_context("one"):
            connection.close()  # the check opens another one
            (found,) = [each for each in run_checks(databases=["default"]) if each.id == "bloomguard.E137"]
            assert found.is_serious()
            assert "'plain'" in found.msg
            with pytest.raises(RebuildError, match="scope = 'schema'"):
                build("plain")
            assert decide("plain", 7) != "absent"
    finally:
        registry.remove(plain)


def test_verify_filter_reads_every_schema(wares, capsys):
    """It finds a row that one of them has and the filter lacks."""
    call_command("verify_filter", "ware")
    assert "all 2 rows" in capsys.readouterr().out
    past_django("INSERT INTO two.wares_ware VALUES (71, '')")
    with pytest.raises(CommandError, match="rows are missing"):
        call_command("verify_filter", "ware")
    build("ware")


def test_a_new_tenant_is_a_reason_to_build(wares, capsys):
    """``verify_filter`` does not take its rows for missing: their requests pass."""
    made = tenant("newer")
    try:
        past_django("INSERT INTO newer.wares_ware VALUES (81, '')")
        call_command("verify_filter", "ware")
        assert "built without newer" in capsys.readouterr().out
        assert table.table.current("ware").status == "armed"
        call_command("rebuild_filter", "ware", if_needed=True)
        assert decisions("newer", 81, 82) == ["maybe", "absent"]
    finally:
        made.delete()


def test_a_build_leaves_the_connection_as_it_was(wares):
    """Whoever calls it goes on in the schema of before."""
    with schema_context("two"):
        build("ware")
        assert connection.schema_name == "two"
        assert Ware.objects.get().pk == 2


def test_scopes_that_are_left_out_pass(wares, monkeypatch):
    """A project may override ``scopes``."""
    monkeypatch.setattr(type(registry["ware"]), "scopes", lambda self: ["one"])
    build("ware")
    assert decisions("one", 9) == ["absent"]
    assert decisions("two", 9) == ["ambiguous"]
    monkeypatch.setattr(type(registry["ware"]), "scopes", lambda self: [])
    with pytest.raises(RebuildError, match="names none"):
        build("ware")


def test_the_test_helper(wares):
    """``guards_armed`` reads every schema."""
    from bloomguard.testing import guards_armed

    with guards_armed("ware"):
        assert decisions("one", 1, 2) == ["maybe", "absent"]


# -- all at once


def test_writers_readers_and_a_build(site, monkeypatch):
    """No request for a row of the tenant is a 404, and hardly one for a row of another tenant passes."""
    drill(monkeypatch, tenants=4, requests=60)


@pytest.mark.slow
def test_writers_readers_and_a_build_of_50_tenants(site, monkeypatch):
    """1,000 requests to each."""
    drill(monkeypatch, tenants=50, requests=1_000)


def drill(monkeypatch, tenants, requests):
    monkeypatch.undo()  # the clock is the real one
    names = [f"t{number}x{uuid.uuid4().hex[:6]}" for number in range(tenants)]
    for name in names:
        tenant(name)
    Drill(names, requests).run()
