"""The connection to the state rows proves itself at each use, and nobody waits for it without a limit."""

from __future__ import annotations

import _thread
import contextlib
import os
import sqlite3
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.backends.signals import connection_created

from bloomguard.models import GuardState
from bloomguard.process import seconds
from bloomguard.state import connection as connection_module
from bloomguard.state.connection import DatabaseConnection, StateConnection
from bloomguard.state.own_connections import TimedOut, new_connection
from bloomguard.state.row import State
from bloomguard.state.table import StateTable
from tests.conftest import Clock, Counting
from tests.support import database
from tests.support.servers import until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("each_database"),
]


@pytest.fixture
def kept():
    """A connection that stays open between statements, as on a site."""
    made = StateConnection(Clock())
    yield made
    made.close()


def test_a_database_file_that_was_replaced_is_opened_anew(kept, each_database, tmp_path, monkeypatch):
    """The rows are those of the file that Django would open now, not of one that lost its name to another."""
    if each_database != "sqlite":
        pytest.skip("a server's files are its own business")
    name = tmp_path / "db.sqlite3"
    connections["default"].ensure_connection()
    with contextlib.closing(sqlite3.connect(name)) as copy:
        connections["default"].connection.backup(copy)
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", str(name))
    table = StateTable(kept, Clock())
    table.swap(State("city"), active="a")
    with (
        contextlib.closing(sqlite3.connect(name)) as old,
        contextlib.closing(sqlite3.connect(tmp_path / "next")) as new,
    ):
        old.backup(new)
    os.replace(tmp_path / "next", name)
    other = StateTable(Counting(), Clock())
    other.swap(other.current("city"), active="b")

    assert table.current("city").active == "b"
    other.forget()


def test_an_interface_error_is_a_database_error(kept, each_database, monkeypatch):
    """Django's is none, and whoever reads or changes state rows expects a ``DatabaseError``."""

    def fails(*args):
        raise InterfaceError("connection already closed")

    monkeypatch.setattr(kept, "_run", fails)
    monkeypatch.setattr(kept, "_open", fails)
    with pytest.raises(DatabaseError, match="connection already closed"):
        kept.execute("SELECT 1")
    with pytest.raises(DatabaseError, match="connection already closed"):
        kept.has_table("bloomguard_state")


def test_settings_that_cannot_be_copied_are_used_as_they_are(kept, each_database, monkeypatch):
    """Such as an SSL context; a copy of all failed, so no state row was read."""
    monkeypatch.setitem(connections[database.current].settings_dict, "CONTEXT", ssl.create_default_context())

    assert kept.execute("SELECT 1")[0] == [(1,)]


def test_a_temporary_database_can_be_dropped(kept, each_database, monkeypatch):
    """A database of a test run has no connection left after a statement."""
    kept.execute("SELECT 1")
    assert kept._connection is not None
    monkeypatch.setattr(StateConnection, "is_temporary", StateConnection.in_test_run)

    assert kept.execute("SELECT 1") == ([(1,)], -1 if each_database == "sqlite" else 1)
    assert kept._connection is None


def test_a_connection_that_lay_idle_is_made_anew(kept):
    """After half a minute of silence a firewall may have forgotten it."""
    kept.execute("SELECT 1")
    first = kept._connection
    kept.clock.now += 29
    kept.execute("SELECT 1")
    assert kept._connection is first

    kept.clock.now += 31
    kept.execute("SELECT 1")
    second = kept._connection
    assert second is not first

    kept.clock.now -= 900  # the clock went back: how long it lay idle is not known
    kept.execute("SELECT 1")
    assert kept._connection is not second


def test_a_connection_to_a_database_in_memory_is_closed(each_database):
    """Django keeps its own open; ours, which each statement of a test run makes, are warned of since Python 3.13."""
    if each_database != "sqlite":
        pytest.skip("a server's database is not in memory")
    with database.second_alias("default", "memory", NAME="file:bloomguard?mode=memory&cache=shared") as alias:
        own = new_connection(alias, "state")
        own.ensure_connection()
        raw = own.connection

        own.close()

        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            raw.execute("SELECT 1")


def test_it_takes_no_connection_of_the_projects_pool(kept, each_database, monkeypatch):
    """Pools of other packages are found by the alias. Who has the last connection may wait for the state rows."""
    backend, asked = type(connections[database.current]), []
    make = backend.get_new_connection

    def pooled(connection, parameters):
        asked.append(connection.alias)
        return make(connection, parameters)

    monkeypatch.setattr(backend, "get_new_connection", pooled)
    kept.execute("SELECT 1")
    with contextlib.closing(DatabaseConnection(database.current)) as other:
        other.execute("SELECT 1")

    assert len({database.current, *asked}) == 3
    assert kept._connection.alias == database.current


def test_a_pool_that_is_exhausted_is_a_database_error(kept, each_database, monkeypatch):
    """A backend may raise what it likes: a write then fences, or is refused, as for any other failure."""

    def exhausted(*args):
        raise TimeoutError("no connection is left")

    monkeypatch.setattr(type(connections[database.current]), "get_new_connection", exhausted)
    with pytest.raises(OperationalError, match="no connection is left"):
        kept.execute("SELECT 1")


def test_the_rows_of_a_standby_are_no_rows(monkeypatch, caplog):
    """A server in recovery may lag behind: its rows renew no lease, not even the news that there are none."""
    monkeypatch.setattr(StateConnection, "is_standby", "1 = 1")
    table = StateTable(Counting(), Clock())

    for rows in range(2):
        assert not table.renew()
        assert table.lease("city") is None
        with pytest.raises(OperationalError, match="standby"):
            table.current("city")
        GuardState.objects.using(table.connection.alias).create(name=f"city{rows}", active="a")
        table.clock.now += 10
    table.forget()


def test_a_server_that_does_not_answer_is_cut_off(kept, each_database, monkeypatch):
    """The statement fails when its time is over, and the next one has a connection of its own."""
    if each_database != "postgresql":
        pytest.skip("SQLite has no server")
    kept.execute("SELECT 1")

    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "READ_SECONDS", 0.2)
        with pytest.raises(TimedOut, match="has not answered"):
            kept.execute("SELECT pg_sleep(600)")

    assert kept.execute("SELECT 1")[0] == [(1,)]
    end_sleepers()


def test_a_server_that_answers_the_login_alone_is_cut_off(kept, each_database, monkeypatch):
    """A pooler may have no server for what Django, or the project, sends to a new connection."""
    if each_database != "postgresql":
        pytest.skip("SQLite has no server")

    def send(connection, **more):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(600)")

    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "READ_SECONDS", 0.2)
        connection_created.connect(send)
        try:
            with pytest.raises(TimedOut, match="has not answered"):
                kept.execute("SELECT 1")
        finally:
            connection_created.disconnect(send)

    assert kept.execute("SELECT 1")[0] == [(1,)]
    end_sleepers()


def end_sleepers() -> None:
    """Or the server sleeps on, and its database cannot be copied."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND datname = "
            "current_database()"
        )
        assert cursor.fetchall() == [(True,)]


def test_a_process_that_can_start_no_thread_sends_its_statements(kept, monkeypatch):
    """As at its end since Python 3.12, when ``atexit`` and threads that are left may save rows; or at a limit."""

    def refuse(run, given):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)

    assert kept.execute("SELECT 1")[0] == [(1,)]


def test_nobody_waits_for_ever_for_another_threads_statement(kept, monkeypatch):
    """Who is kept from the connection for too long gets an error, and a write that needs it is refused."""
    monkeypatch.setattr(connection_module, "READ_SECONDS", 0.05)
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS", 0)
    with ThreadPoolExecutor(1) as other:
        other.submit(kept._lock.acquire).result()

        with pytest.raises(OperationalError, match="another thread"):
            kept.execute("SELECT 1")

        other.submit(kept._lock.release).result()


def test_what_a_writer_reads_is_its_own(each_database):
    """Rows read through a writer's snapshot renew no lease of other threads, and none after the write."""
    table = StateTable(Counting(), Clock())
    table.connection.broken = True
    elsewhere = []

    with table.within.reading_by(lambda: {"city": State("city", version=3)}):
        assert table.renewed("city").version == 3
        thread = threading.Thread(target=lambda: elsewhere.append(table.lease("city")))
        thread.start()
        thread.join()

    assert elsewhere == [None]
    assert table.lease("city") is None
    assert table.copy.read_at == float("-inf")


def test_a_writer_reads_again_after_the_clock_went_back(each_database):
    """What the process, or the writer itself, had read before is of unknown age."""
    table, versions = StateTable(Counting(), Clock()), iter([3, 4])
    assert table.renewed("city").version == 0
    table.clock.now -= 900

    with table.within.reading_by(lambda: {"city": State("city", version=next(versions))}):
        assert table.renewed("city").version == 3
        table.clock.now -= 900
        assert table.renewed("city").version == 4


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has another clock that goes on")
def test_leases_run_out_while_the_host_sleeps():
    """The clock of the leases counts the time that a laptop or a virtual machine was suspended.

    So does that of the connection, which a firewall may have dropped meanwhile.
    """
    before = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before <= seconds() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert (StateTable().clock, StateConnection().clock) == (seconds, seconds)


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("level", ["repeatable\\ read", "serializable"])
def test_a_change_is_sent_again_if_another_one_was_first(each_database, level, monkeypatch):
    """Where sessions have such a level by default, PostgreSQL refuses an UPDATE that has waited for another one."""
    settings = connections["postgresql"].settings_dict
    monkeypatch.setitem(settings, "OPTIONS", {"options": "-c default_transaction_isolation=" + level})
    GuardState.objects.create(name="city", reason="before")
    made = StateConnection()
    done = []

    def change():
        sql = "UPDATE bloomguard_guardstate SET version = version + 1 WHERE name = 'city'"
        done.append(made.execute(sql)[1])

    def is_waiting():
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(waiting)
            return cursor.fetchone()

    changing = threading.Thread(target=change)
    with transaction.atomic(using="postgresql"):
        GuardState.objects.filter(name="city").update(reason="meanwhile")
        changing.start()
        until(is_waiting)
    changing.join()
    made.close()

    assert done == [1]


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("took", "sent"), [(0.1, 3), (-900, 1)], ids=["in time", "by a clock that went back"])
def test_a_change_is_sent_again_until_the_time_limit(each_database, took, sent):
    """By a clock that went back nobody knows how much of that is left: it is not sent again."""
    made = StateConnection(clock=Clock())
    tries = []

    def conflict(*arguments):
        tries.append(arguments)
        made.clock.now += took
        if len(tries) < 3:
            refused = OperationalError("could not serialize access")
            refused.sqlstate = "40001"
            raise OperationalError("could not serialize access") from refused
        return [], 1

    made._run = conflict
    with pytest.raises(OperationalError) if sent == 1 else contextlib.nullcontext():
        made.execute("UPDATE bloomguard_guardstate SET version = 2")

    assert len(tries) == sent
