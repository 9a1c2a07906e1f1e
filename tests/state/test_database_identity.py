"""A filter is bound to the database that it was built from: a copy, a restored one and a promoted one are others."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections, transaction

from bloomguard.guards import Guard, registry
from bloomguard.lookups.misses import remember_missing
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild.standby import prefix_of
from bloomguard.state import table as states
from bloomguard.state import transactions
from bloomguard.state.identity import identity_of_file
from bloomguard.state.row import FENCED, State
from bloomguard.state.table import StateTable
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from tests.conftest import Counting, forget
from tests.shop.models import Product
from tests.support import database, servers
from tests.support.flush import flush
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ABSENT, MAYBE, UNKNOWN = Verdict.ABSENT, Verdict.MAYBE, Verdict.UNKNOWN


@pytest.fixture
def counted(fresh: None, clock: Any) -> Iterator[Callable[[], Guard]]:
    """``counted()``: a guard of products that discards, built."""
    with registered(Product, filter="cuckoo", name="counted") as guard:

        def build() -> Guard:
            Rebuild(guard, sleep=clock.sleep).run()
            return guard

        yield build


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.PostgreSQL]:
    """A PostgreSQL of this test's own, which the tests' router sends everything to."""
    made, connection = servers.PostgreSQL(), connections["postgresql"]
    connection.close()
    before = dict(connection.settings_dict)
    connection.settings_dict.update(made.settings)
    monkeypatch.setattr(database, "current", "postgresql")
    call_command("migrate", database="postgresql", run_syncdb=True, verbosity=0)
    yield made
    connection.close()
    states.table.forget()
    connection.settings_dict.clear()
    connection.settings_dict.update(before)


def let_go() -> None:
    """Everybody hangs up, as when a server goes."""
    connections["postgresql"].close()
    states.table.connection.close()


def delete(pk: int) -> None:
    with transaction.atomic(using=database.current):
        Product.objects.filter(pk=pk).delete()


def test_a_row_whose_delete_was_lost_is_no_false_404(server, counted, clock):
    """A replica that lagged behind takes over, and the row is back, which the filter and the memory have forgotten."""
    Product.objects.bulk_create(Product(pk=pk) for pk in (1, 2))
    guard = counted()
    let_go()
    server.replicate()
    delete(2)
    assert guard.verdict(2) is ABSENT
    let_go()

    server.fail_over()
    clock.sleep(1)

    assert Product.objects.filter(pk=2).exists()
    assert guard.verdict(2) is UNKNOWN
    counted()
    assert [guard.verdict(pk) for pk in (1, 2, 3)] == [MAYBE, MAYBE, ABSENT]


def test_after_a_failover_a_write_is_seen_by_all(server, counted, clock):
    """Who writes on the server that took over fences the guard before the row can be seen, and nothing fails."""
    guard = counted()
    let_go()
    server.replicate()
    let_go()
    server.fail_over()
    clock.sleep(1)

    Product.objects.create(pk=7)

    assert GuardState.objects.get(name="counted").status == FENCED
    assert guard.verdict(7) is UNKNOWN


@pytest.mark.parametrize("setting", ["synchronous_commit", "fsync"])
def test_a_server_that_does_not_wait_for_its_disk_lets_nothing_be_forgotten(server, counted, setting, clock):
    """What such a server has acknowledged a crash may undo: no key is discarded, and no absence is remembered."""
    Product.objects.create(pk=2)
    guard = counted()
    server.run(f"ALTER SYSTEM SET {setting} = off")
    server.run("SELECT pg_reload_conf()")
    let_go()
    servers.until(lambda: server.run(f"SHOW {setting}") == "off")
    clock.sleep(1)

    delete(2)

    state = states.table.renewed("counted")
    assert guard.verdict(2) is MAYBE
    assert not guard._runtime.active_filter.negative_cache.is_worth_asking(b"2", state.active)
    remember_missing(guard, 2, state.active, "postgresql")
    assert not guard._runtime.active_filter.negative_cache.marks


def test_a_transaction_that_does_not_wait_for_the_disk_discards_nothing(each_database, counted):
    """The transaction's own setting counts, as it is when it commits."""
    if each_database != "postgresql":
        pytest.skip("SQLite has no such setting of a transaction")
    Product.objects.bulk_create(Product(pk=pk) for pk in (1, 2))
    guard = counted()

    with transaction.atomic(using=database.current):
        Product.objects.filter(pk=1).delete()
        with connections[database.current].cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
    delete(2)

    assert [guard.verdict(pk) for pk in (1, 2)] == [MAYBE, ABSENT]


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_a_commit_whose_last_query_is_cancelled_fails(each_database, counted, monkeypatch):
    """PostgreSQL answers such a COMMIT by a rollback, which the driver does not report."""
    Product.objects.create(pk=1)
    counted()
    monkeypatch.setattr(transactions, "IS_DURABLE", "pg_sleep(600) IS NULL")

    @transaction.atomic(using="postgresql")
    def hurried():
        Product.objects.filter(pk=1).delete()
        with connections["postgresql"].cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 50")

    with pytest.raises(OperationalError, match="statement timeout"):
        hurried()

    assert Product.objects.filter(pk=1).exists()


def test_rows_in_another_database_than_the_state_rows_stay_in_the_filter(counted, monkeypatch):
    """Nobody reads along which server that is, so it may lose a delete and nobody would know."""
    Product.objects.create(pk=2)
    guard = counted()
    monkeypatch.setattr(StateTable, "holds", lambda self, using: using == "elsewhere")

    delete(2)

    assert guard.verdict(2) is MAYBE


# -- copies


@pytest.fixture
def copied(each_database: str, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """``copied()``: from here on this process works on a copy of the database, as a staging site does."""
    connection = connections[database.current]
    before = dict(connection.settings_dict)

    def copy() -> None:
        connection.close()
        states.table.forget()
        if each_database == "sqlite":
            connection.settings_dict["NAME"] = str(tmp_path / "staging.sqlite3")
            with (
                closing(sqlite3.connect(before["NAME"])) as old,
                closing(sqlite3.connect(tmp_path / "staging.sqlite3")) as new,
            ):
                old.backup(new)
            return
        flush.close()  # PostgreSQL copies no database that somebody is connected to
        with connection._nodb_cursor() as administrator:  # as Django makes its test databases
            administrator.execute("DROP DATABASE IF EXISTS staging")
            administrator.execute(f'CREATE DATABASE staging TEMPLATE "{before["NAME"]}"')
        connection.settings_dict["NAME"] = "staging"

    yield copy
    connection.close()
    states.table.forget()
    connection.settings_dict.clear()
    connection.settings_dict.update(before)


@database.without_mariadb
def test_a_copy_of_the_database_takes_nothing_out_of_the_filter(copied, counted, clock, caplog):
    """A staging site on a copy that reaches the same store: it passes, says so once, and changes nothing there."""
    Product.objects.bulk_create(Product(pk=pk) for pk in (1, 2))
    guard = counted()
    state = states.table.renewed("counted")
    generation = guard._runtime.active_filter.generation(state, state.active)
    before = generation.approximate_size()
    copied()
    forget()
    caplog.clear()

    verdicts = [guard.verdict(pk) for pk in (1, 2, 3)]
    delete(2)
    Product.objects.create(pk=9)

    assert verdicts == [UNKNOWN] * 3
    assert [line.getMessage() for line in caplog.records if line.levelname == "WARNING"] == [
        "bloomguard: guard counted passes every request: its filter was built from another database: this one is a "
        "copy of that, or was restored, or another server took over; run rebuild_filter"
    ]
    assert generation.approximate_size() == before
    assert [generation.might_contain(guard._meta.keys.key(pk)) for pk in (1, 2, 9)] == [True, True, False]


@database.without_mariadb
def test_a_copys_rebuild_leaves_the_originals_filter(copied, counted, clock, caplog):
    """Databases that share a store by mistake: neither removes what the other answers from, and each hears of it."""
    Product.objects.create(pk=1)
    guard = counted()
    original = states.table.current("counted")
    copied()
    forget()

    counted()
    mine = states.table.current("counted")

    assert {original.active, mine.active} <= set(stores["default"].names("counted"))
    assert original.active not in mine.generations
    assert caplog.text.count("their own prefix or path") == 1
    theirs = stores["default"].location("counted", original.active)
    assert theirs in caplog.text  # so that the file can be deleted
    assert Path(theirs).is_file()
    assert guard.verdict(2) is ABSENT
    assert mine.active.startswith(prefix_of(mine.here))
    assert not original.active.startswith(prefix_of(mine.here))


def test_processes_with_databases_in_memory_leave_each_others_filters(counted, monkeypatch):
    """As the workers of one test run that share a store; what an ended process left is removed."""
    monkeypatch.setattr("bloomguard.state.connection.identity_of_file", lambda connection: "")
    monkeypatch.setattr(database, "current", "default")
    ended = subprocess.Popen(["true"])
    ended.wait()
    forget()
    active_filter = counted()._runtime.active_filter
    store, state = stores["default"], states.table.current("counted")
    mine, layout = state.active, active_filter.generation(state, state.active).layout
    left, others = (mine.replace(f"{os.getpid():08x}", f"{pid:08x}") for pid in (ended.pid, os.getppid()))
    for name in (left, others):
        store.create("counted", name, layout)

    counted()

    assert set(store.names("counted")) == {others, states.table.current("counted").active}


def test_a_database_file_that_was_put_in_place_is_another(fresh, counted, clock, tmp_path):
    """A backup takes the file's name, and may even get its inode's number: its birth tells it from the one before."""
    counted()
    here, name = states.table.current("counted").here, connections["default"].settings_dict["NAME"]
    connections["default"].close()
    states.table.forget()
    shutil.copy(name, tmp_path / "backup")
    os.remove(name)

    shutil.copy(tmp_path / "backup", name)

    assert states.table.current("counted").here != here
    assert not states.table.current("counted").is_ours


def test_another_boot_of_the_host_is_another_database(fresh, counted, monkeypatch, tmp_path):
    """SQLite's last commits may be lost when the host goes down; its litter is swept all the same."""
    counted()
    (tmp_path / "boot_id").write_text("another boot")
    monkeypatch.setattr("bloomguard.stores.disk.BOOT_ID", tmp_path / "boot_id")

    after = states.table.current("counted")

    assert not after.is_ours
    assert after.active.startswith(prefix_of(after.here))


# -- what is not told


def test_a_server_that_does_not_say_which_it_is_lets_nothing_be_forgotten(each_database, counted, clock, caplog):
    """A service that keeps the functions of its control file to itself: guards answer, and never forget a key."""
    if each_database != "postgresql":
        pytest.skip("SQLite is a file")
    Product.objects.create(pk=2)
    with connections["postgresql"].cursor() as cursor:
        cursor.execute("CREATE ROLE plain LOGIN")
        cursor.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain")
        cursor.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    settings = connections["postgresql"].settings_dict
    before = settings["USER"]
    settings["USER"] = "plain"
    try:
        states.table.forget()
        guard = counted()
        read = StateTable(Counting()).current("counted")
        connections["postgresql"].close()
        delete(2)

        assert (read.is_answered_by(read.active), read.may_forget(read.active)) == (True, False)
        assert [guard.verdict(pk) for pk in (2, 3)] == [MAYBE, ABSENT]
        assert "discards no keys" in caplog.text
    finally:
        settings["USER"] = before
        connections["postgresql"].close()
        states.table.connection._hides_identity = False
        with connections["postgresql"].cursor() as cursor:
            cursor.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
            cursor.execute("DROP OWNED BY plain")
            cursor.execute("DROP ROLE plain")


# -- versions


def test_a_version_that_comes_round_again_is_another_change(each_database, fresh):
    """A database that was restored counts its versions a second time: nobody changes a row that he has not read."""
    table = StateTable(Counting())
    first = table.swap(State("city"), active="a")
    seen = table.swap(first, standby="b")
    GuardState.objects.filter(name="city").update(version=first.version, token=first.token)
    again = table.swap(table.current("city"), standby="c")

    assert again.version == seen.version
    assert table.swap(seen, status=FENCED) is None
    assert table.swap(again, status=FENCED) is not None
    assert len({each.token for each in (first, seen, again)}) == 3


def test_a_generation_is_bound_when_it_is_announced(each_database, fresh):
    """Not when it is published: a database that another server took over meanwhile is not what was scanned."""
    table = StateTable(Counting())
    mine = table.swap(table.current("city"), building="a")

    published = table.swap(replace(mine, here="another"), active="a", building="")

    assert mine.is_ours
    assert published.database == mine.database
    assert not published.is_ours


@database.without_mariadb
def test_every_guard_is_bound(each_database, fresh, clock):
    """Whatever a rebuild makes names the database in its row."""
    Rebuild(registry["product"], sleep=clock.sleep).run()

    state = states.table.current("product")
    assert state.database.startswith(each_database)
    assert state.database == state.here


@pytest.mark.parametrize(("uri", "has_one"), [("file:{}?mode=ro", True), ("file:{}?mode=memory", False), ("{}", True)])
def test_a_file_that_is_named_by_a_uri_has_its_identity(tmp_path, uri, has_one):
    """As one that is opened for reading alone; a database in memory has none."""
    (tmp_path / "db").touch()
    named = connections.create_connection("default")
    named.settings_dict = {**named.settings_dict, "NAME": uri.format(tmp_path / "db")}

    assert bool(identity_of_file(named)) is has_one
