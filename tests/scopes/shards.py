"""Eight databases: a guard of all of them answers for the one that the query is sent to."""

from __future__ import annotations

from contextlib import contextmanager

import django
import pytest

django.setup()

from django.core.checks import run_checks  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402

from bloomguard import adding, get_or_load  # noqa: E402
from bloomguard.exceptions import RebuildError  # noqa: E402
from bloomguard.guards import places, registry, spot_checks  # noqa: E402
from bloomguard.rebuild import rebuild  # noqa: E402
from bloomguard.state import table  # noqa: E402
from tests.scopes import router  # noqa: E402
from tests.scopes.drill import Drill  # noqa: E402
from tests.scopes.site import Clock, build, decide, queried  # noqa: E402
from tests.scopes.wares.models import Note, Ware  # noqa: E402
from tests.support.database import second_alias, unseen  # noqa: E402

SHARDS = list(connections)


@pytest.fixture(scope="session", autouse=True)
def site():
    """The tables."""
    for alias in SHARDS:
        call_command("migrate", database=alias, verbosity=0)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of this process."""
    made = Clock()
    monkeypatch.setattr(table.table, "clock", made)
    monkeypatch.setattr(table.table, "sleep", made.sleep)
    monkeypatch.setattr(spot_checks, "drawn", spot_checks.never)
    monkeypatch.setattr(rebuild, "EXPIRY_SECONDS", 0.0)  # of the commands; no other process is there
    return made


@pytest.fixture
def wares(clock):
    """Ware 1 in the first shard, ware 2 in the second, and a filter of all."""
    for number, alias in enumerate(SHARDS, 1):
        Ware.objects.using(alias).all().delete()
        Note.objects.using(alias).all().delete()
        Ware.objects.using(alias).create(pk=number, name=alias)
        Note.objects.using(alias).create(slug="all")
    build("ware", "note")


@contextmanager
def at(alias):
    """Queries without ``using()`` go to the shard ``alias``."""
    token = router.here.set(alias)
    try:
        yield
    finally:
        router.here.reset(token)


def decisions(alias, *values, guard="ware"):
    """The reasons of the guard's decisions on some values while the router names ``alias``."""
    with at(alias):
        return [decide(guard, value) for value in values]


def past_django(alias, sql):
    """Send ``sql`` by the driver."""
    unseen(connections[alias]).execute(sql)


def test_each_shard_has_its_own_rows(wares):
    """Named by the router or by ``using()``, whatever the other one says."""
    for number, alias in enumerate(SHARDS, 1):
        other = number % len(SHARDS) + 1
        assert decisions(alias, number, other) == ["maybe", "absent"]
        rows = Ware.objects.using(alias)
        assert queried(connections[alias], rows.filter(pk=number).first)[0].name == alias
        assert queried(connections[alias], rows.filter(pk=other).first) == (None, [])


def test_every_write_adds_to_the_shard_that_it_wrote(wares):
    """Whatever the router names."""
    with at("shard3"):
        Ware(pk=11).save(using="shard1")
        Ware.objects.using("shard1").bulk_create([Ware(pk=12), Ware(pk=13)])
        if connections["shard1"].vendor == "mysql":  # where an UPDATE of a primary key fences
            Ware.objects.using("shard1").create(pk=14)
        else:
            Ware.objects.using("shard1").filter(pk=2).update(id=14)
        with transaction.atomic(using="shard1"):
            Ware.objects.create(pk=15)
        with adding(registry["ware"], "shard1") as add, connections["shard1"].cursor() as cursor:
            cursor.execute("INSERT INTO wares_ware VALUES (16, '')")
            add([16])
    assert decisions("shard1", *range(11, 17)) == ["maybe"] * 4 + ["absent", "maybe"]
    assert decisions("shard3", *range(11, 17)) == ["absent"] * 4 + ["maybe", "absent"]


def test_raw_sql_fences(wares):
    """In any of the databases."""
    with connections["shard5"].cursor() as cursor:
        cursor.execute("INSERT INTO wares_ware VALUES (21, '')")

    assert decisions("shard5", 21) == decisions("shard1", 21) == ["fenced"]
    build("ware")
    assert decisions("shard5", 21, 22) == ["maybe", "absent"]


def test_a_deleted_row_is_forgotten_beside_the_state_rows(wares):
    """The databases of the others may lose the delete, and nobody would see that."""
    for alias in ("default", "shard1"):
        Note.objects.using(alias).filter(slug="all").delete()

    assert decisions("default", "all", guard="note") == ["absent"]
    assert decisions("shard1", "all", guard="note") == decisions("shard2", "all", guard="note") == ["maybe"]


def test_a_spot_check_asks_the_shard(wares, monkeypatch):
    """And finds a row there that came past Django."""
    past_django("shard2", "INSERT INTO wares_ware VALUES (31, '')")
    monkeypatch.setattr(spot_checks, "drawn", lambda: True)
    monkeypatch.setattr(spot_checks, "checks", spot_checks.SpotChecks())

    assert decisions("shard1", 31) == ["absent"]
    spot_checks.checks._last = float("-inf")
    rows = Ware.objects.using("shard2")
    assert queried(connections["shard2"], rows.filter(pk=31).first)[0]
    table.table.current("ware")
    assert decisions("shard2", 31) == ["fenced"]
    build("ware")


def test_cached_values_are_those_of_the_shard(wares):
    """``get_or_load`` has an entry for each."""
    for alias in ("shard1", "shard2"):
        with at(alias):
            names = [get_or_load("ware", pk, lambda pk: Ware.objects.get(pk=pk).name) for pk in (2, 3)]
        assert names == (["shard1", None] if alias == "shard1" else [None, "shard2"])


def test_a_replica_is_asked_for_its_shard(wares, monkeypatch):
    """The router names both: reads go to one, writes to the other."""
    monkeypatch.setattr(type(registry["ware"]), "scopes", lambda self: SHARDS[:-1])
    build("ware")
    token = router.replica.set("shard7")  # no replica of this site has rows, so none is sent a query that counts
    try:
        assert decisions("shard1", 2, 3) == ["maybe", "absent"]
    finally:
        router.replica.reset(token)
    assert decisions("shard7", 3) == ["ambiguous"]


def test_a_shard_that_the_router_only_reads_from_is_no_replica(wares):
    """While rows move from one to another, for example: the filter has the rows of both."""
    with at("shard1"):
        token = router.replica.set("shard7")
        try:
            assert decide("ware", 8) == decide("ware", 9) == "ambiguous"
            assert queried(connections["shard7"], Ware.objects.filter(pk=8).first)[0].name == "shard7"
        finally:
            router.replica.reset(token)


# -- databases that the filter does not have


def test_a_write_by_another_name_of_a_database_fences(wares):
    """Requests by the name that the filter has would miss the row."""
    with second_alias("shard1", "direct") as alias:
        Ware.objects.using(alias).create(pk=41)
        assert Ware.objects.using("shard1").filter(pk=41).exists()
        assert decisions("shard1", 41) == ["fenced"]
        assert "does not have the database 'direct'" in table.table.row("ware").reason
        with pytest.raises(RebuildError, match="'shard1' and 'direct' lead to one database"):
            build("ware")
    build("ware")


def test_another_alias_with_the_same_settings_is_the_same_database(wares):
    """Its rows have the keys of the first."""
    connections.settings["again"] = {**connections.settings["shard1"]}
    try:
        Ware.objects.using("again").create(pk=51)
        assert decisions("shard1", 51) == decisions("again", 51) == ["maybe"]
        assert decisions("again", 52) == ["absent"]
    finally:
        connections["again"].close()
        del connections["again"], connections.settings["again"]


def test_another_user_of_a_database_fences(wares):
    """The user may have a schema of its own, so that the name means another table."""
    connections.settings["clerk"] = {**connections.settings["shard1"], "USER": "clerk"}
    try:
        assert decisions("clerk", 53) == ["ambiguous"]
        if connections["shard1"].vendor == "sqlite":  # elsewhere there is no such user
            Ware.objects.using("clerk").create(pk=53)
            assert decisions("shard1", 53) == ["fenced"]
    finally:
        connections["clerk"].close()
        del connections["clerk"], connections.settings["clerk"]
    build("ware")


def test_a_shard_that_is_newer_than_the_filter_passes(wares, tmp_path):
    """Until the next build; and the first row that is written to it fences the guard."""
    given = connections.settings["shard1"]
    connections.settings["shard8"] = {**given, "NAME": f"{tmp_path}/shard8.sqlite3"}
    try:
        call_command("migrate", database="shard8", verbosity=0)
        assert decisions("shard8", 61) == ["ambiguous"]
        call_command("rebuild_filter", "ware", if_needed=True, verbosity=0)
        table.table.current("ware")
        assert decisions("shard8", 61) == ["absent"]
        Ware.objects.using("shard8").create(pk=61)
        assert decisions("shard8", 61, 62) == ["maybe", "absent"]
    finally:
        connections["shard8"].close()
        del connections["shard8"], connections.settings["shard8"]
    build("ware")


def test_a_shard_whose_database_was_replaced_passes(wares, clock, monkeypatch):
    """It may have rows that the filter lacks; the other shards' filter has not changed."""
    identity = places.Place.identity
    assert decisions("shard1", 99) == ["absent"]
    monkeypatch.setattr(
        places.Place, "identity", lambda self, alias: "@new" if alias == "shard1" else identity(self, alias)
    )
    clock.now += 100

    assert decisions("shard1", 99) == ["ambiguous"]
    assert decisions("shard2", 99) == ["absent"]


def test_scopes_that_name_no_database(wares, monkeypatch):
    """A mistake builds nothing."""
    monkeypatch.setattr(type(registry["ware"]), "scopes", lambda self: ["default", "nowhere"])

    with pytest.raises(RebuildError, match="'nowhere', which is not in DATABASES"):
        build("ware")


# -- checks and commands


def test_without_a_scope_the_check_fails(wares):
    """With one it does not."""
    scoped = registry["ware"]
    assert not [each for each in run_checks(databases=SHARDS) if each.id == "bloomguard.E137"]
    plain = type("PlainGuard", (type(scoped),), {"scope": None, "name": "plain"})(Ware)
    registry.add(plain)
    try:
        (found,) = [each for each in run_checks(databases=SHARDS) if each.id == "bloomguard.E137"]
        assert found.is_serious()
        assert "scope = 'database'" in found.hint
    finally:
        registry.remove(plain)


def test_verify_filter_reads_every_shard(wares, capsys):
    """It finds a row that one of them has and the filter lacks."""
    call_command("verify_filter", "ware")
    assert "all 8 rows" in capsys.readouterr().out
    past_django("shard6", "INSERT INTO wares_ware VALUES (71, '')")
    with pytest.raises(CommandError, match="rows are missing"):
        call_command("verify_filter", "ware")
    build("ware")


# -- all at once


@contextmanager
def rows_of(alias):
    yield Ware.objects.using(alias)


def test_writers_readers_and_a_build(site, monkeypatch):
    """No request for a row of the shard is a 404, and hardly one for a row of another shard passes."""
    drill(monkeypatch, requests=60)


@pytest.mark.slow
def test_writers_readers_and_a_build_in_full_length(site, monkeypatch):
    """1,000 requests to each."""
    drill(monkeypatch, requests=1_000)


def drill(monkeypatch, requests):
    monkeypatch.undo()  # the clock is the real one
    for alias in SHARDS:
        Ware.objects.using(alias).all().delete()
    get = lambda client, alias, pk: client.get(f"/ware/{pk}/?shard={alias}")  # noqa: E731
    Drill(SHARDS, requests, get, rows_of).run()
