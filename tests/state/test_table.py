"""The state rows: read under a lease, changed by compare-and-set, on both databases."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import threading
from weakref import WeakKeyDictionary

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction
from django.utils import timezone

from bloomguard import process
from bloomguard.models import GuardState
from bloomguard.state.connection import DatabaseConnection, StateConnection
from bloomguard.state.row import ARMED, FENCED, State
from bloomguard.state.table import StateTable
from tests.conftest import Clock, Counting
from tests.support import database
from tests.support.interruptions import InterruptedLock
from tests.support.roles import as_role

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("each_database"),
]

fork = multiprocessing.get_context("fork")


class Watched(StateTable):
    connection: Counting
    clock: Clock


@pytest.fixture
def table() -> Watched:
    made = Watched(Counting(), Clock())
    yield made
    made.forget()


def another(table: StateTable) -> StateTable:
    """What another process would have."""
    return StateTable(Counting(), table.clock)


@database.with_roles
def test_rows_that_the_login_may_not_read_are_not_missing(each_database):
    """MariaDB does not list a table to which a login has no right, but it is there, and others may answer by its rows.

    A process that took it for missing would add no keys. As soon as it has the right, it reads them as any other."""
    made = StateTable(Counting(), Clock())
    with as_role(bloomguard_guardstate=""), pytest.raises(DatabaseError, match="denied"):
        made.current("city")

    assert made.current("city").here == StateTable(Counting(), Clock()).current("city").here


# -- the lease


def test_a_lease_lasts_less_than_a_second(table):
    """A copy may be relied on while it was asked for less than a second ago; to look at it costs no query."""
    table.renew()
    asked = len(table.connection.statements)

    leases = []
    for step in (0.0, 0.5, 0.499, 0.001, 10.0):
        table.clock.now += step
        leases.append(table.lease("city"))

    assert leases == [State("city"), State("city"), State("city"), None, None]
    assert len(table.connection.statements) == asked


def test_a_clock_that_goes_back_ends_every_lease(table, monkeypatch):
    """As in a container that another host restores from a checkpoint: a copy from its future would be used for hours.

    Nor does a write wait for hours for a fence, or a request for the pause after a failure."""
    other = another(table)
    other.swap(State("city"), active="a")
    other.fence("city", "because")
    slept = []
    table.sleep = slept.append
    table.renew()
    table.clock.now -= 3_600

    assert table.lease("city") is None
    assert table.leased_rows() is None
    table.wait_for_fence(table.renewed("city"))
    assert slept == [2.0]

    table.clock.now += 7_200
    with monkeypatch.context() as broken:
        broken.setattr(table.connection, "execute", fail)
        assert not table.renew()
    table.clock.now -= 3_600
    assert table.renewed("city").status == FENCED


def fail(*arguments):
    raise OperationalError("gone")


def test_a_lease_counts_from_before_the_question(table):
    """While the database takes its time to answer, the lease is running."""

    class Slow(Counting):
        def execute(self, sql, parameters=()):
            found = super().execute(sql, parameters)
            table.clock.now += 0.9  # another process may change the row right after it was read
            return found

    table.connection = Slow()
    table.renew()

    assert table.lease("city") is not None
    table.clock.now += 0.1
    assert table.lease("city") is None


def test_a_read_that_takes_longer_than_the_lease_gives_none(table):
    """An answer that is older than a lease when it arrives is not relied on."""

    class Slower(Counting):
        def execute(self, sql, parameters=()):
            table.clock.now += 1
            return super().execute(sql, parameters)

    table.connection = Slower()
    table.renew()

    assert table.lease("city") is None


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lock_that_the_process_holds_itself_is_not_logged(each_database, caplog):
    """On SQLite in memory, as in a test run whose migrations change the schema and write rows: nobody else reads it."""
    if each_database != "sqlite":
        pytest.skip("a server's database is not in memory")
    with database.second_alias("default", "memory", NAME="file:bloomguard?mode=memory&cache=shared") as alias:
        made = StateTable(DatabaseConnection(alias), Clock())
        with transaction.atomic(alias):
            connections[alias].cursor().execute("CREATE TABLE other (id integer)")

            assert not made.renew()

        made.forget()
        assert made.renew()
        made.forget()
    gc.collect()  # Django leaves a connection open that fails before it is set up
    assert not caplog.messages


def test_at_most_one_query_a_second(table):
    """However often a renewal is asked for, the database is asked once a second."""
    for _ in range(300):
        table.renew()
        table.clock.now += 0.01

    assert len(table.connection.statements) == 3


def test_threads_share_one_query(table):
    """Threads that all find the lease run out at the same moment ask the database once, and all have it then."""
    barrier = threading.Barrier(16)
    found = []

    def ask():
        barrier.wait()
        found.append((table.renew(), table.lease("city")))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [(True, State("city"))] * 16
    assert len(table.connection.statements) == 1


def test_nobody_waits_long_for_another_threads_query(table, monkeypatch):
    """A thread that finds another one stuck in the database gives up at once rather than queue up behind it."""
    monkeypatch.setattr("bloomguard.state.table.RENEWAL_PATIENCE", 0.01)
    stuck, free = threading.Event(), threading.Event()

    class Stuck(Counting):
        def execute(self, sql, parameters=()):
            stuck.set()
            free.wait()
            return super().execute(sql, parameters)

    table.connection = Stuck()
    thread = threading.Thread(target=table.renew)
    thread.start()
    stuck.wait()

    assert not table.renew()
    free.set()
    thread.join()
    assert table.renew()


def test_a_failure_is_not_tried_again_for_a_second(table, caplog):
    """A database in trouble is asked once a second, warned of once until it recovers, and the lease just runs out."""
    table.connection.broken = True

    with caplog.at_level(logging.WARNING, logger="bloomguard"):
        found = []
        for _ in range(30):
            found.append(table.renew())
            table.clock.now += 0.1

    assert not any(found)
    assert len(table.connection.statements) == 3
    assert len(caplog.records) == 1
    table.connection.broken = False
    assert table.renew()


@pytest.mark.parametrize("error", [LookupError("tenant"), AssertionError("closed"), OSError("no password")])
def test_any_error_of_a_read_lets_the_lease_run_out(table, monkeypatch, caplog, error):
    """Also one of a router, or of the backend's own: requests pass, and it is no proof that there are no rows."""

    def broken(self, sql, parameters=()):
        raise error

    monkeypatch.setattr(Counting, "execute", broken)

    assert not table.renew()
    assert table.renewed("city") is None
    assert [each.message.rpartition(": ")[2] for each in caplog.records] == [str(error)]
    assert caplog.records[0].exc_info
    with pytest.raises(type(error)):
        table.current("city")


def test_a_copy_that_is_new_enough_is_not_read_again(table):
    """Whoever needs a copy younger than a moment reads only if nobody has read since."""
    table.renew()
    moment = table.clock.now
    table.clock.now += 0.1

    table.renew(after=moment)
    table.renew(after=moment)

    assert len(table.connection.statements) == 2


def test_an_older_copy_does_not_replace_a_later_one(table):
    """A thread that has just renewed the copy works by it, though another one is still busy with an earlier read."""
    execute = table.connection.execute

    def slow(sql, parameters=()):
        found = execute(sql, parameters)
        table.connection.execute = execute
        another(table).swap(State("city"), building="a")
        table.clock.now += 0.5
        assert table.renew(after=table.clock.now - 0.1)
        return found

    table.connection.execute = slow
    assert table.current("city").building == ""

    assert table.copy.read_at == table.clock.now
    assert table.lease("city").building == "a"


def test_a_row_is_seen_whole(table):
    """Everything that the lease promises comes from one statement: no row is half old and half new."""
    written = another(table).swap(State("city"), identity="here", active="a", standby="b", building="c", builder="d/1")
    table.renew()

    assert table.lease("city") == written
    assert written.generations == ("a", "b", "c")


def test_rows_come_through_no_transaction_of_the_caller(table, each_database):
    """Inside a transaction with an old snapshot, the row is read as it is now, and what is written stays written."""
    alias = table.connection.alias

    with transaction.atomic(using=alias):
        GuardState.objects.using(alias).count()
        table.swap(State("city"), active="a")
        seen = another(table).current("city")
        transaction.set_rollback(True, using=alias)

    assert seen.active == "a"
    assert GuardState.objects.using(alias).get().active == "a"


# -- compare and set


def test_only_one_of_two_changes_the_row(table):
    """Of two who saw the same row, one changes it; the other is told so and changes nothing."""
    other = another(table)
    seen = table.swap(State("city"), active="a")

    first = table.swap(seen, active="b")
    second = other.swap(seen, active="c")

    assert first == State("city", version=2, active="b")
    assert second is None
    assert other.current("city").active == "b"


@pytest.fixture
def losing(monkeypatch):
    """A table whose connection stays open; each change of a row is made, and the connection lost before the answer."""
    made = StateTable(StateConnection(Clock()), Clock())
    made.renew()
    run, lost = made.connection._run, []

    def lose(sql, *arguments):
        found = run(sql, *arguments)
        if sql not in lost and not sql.startswith("SELECT"):
            lost.append(sql)
            raise OperationalError("the connection was lost")
        return found

    monkeypatch.setattr(made.connection, "_run", lose)
    yield made
    made.forget()


def test_a_change_whose_answer_was_lost_is_known_as_made(losing):
    """It is sent again by a new connection, and then changes nothing: that is no other process's change."""
    first = losing.swap(State("city"), active="a", building="b")
    second = losing.swap(first, active="b", building="")

    assert (first.version, second.version) == (1, 2)
    assert losing.current("city") == second
    assert losing.swap(first, active="c") is None


def test_a_fence_whose_answer_was_lost_is_logged(losing, caplog):
    """Whoever looks for the reason finds it."""
    losing.swap(State("city"), active="a")

    losing.fence("city", "for a reason")

    assert losing.current("city").status == FENCED
    assert "for a reason" in caplog.text


def test_only_one_of_two_makes_the_row(table):
    """Of two who saw no row, one makes it."""
    made = [table.swap(State("city"), active="a"), another(table).swap(State("city"), active="b")]

    assert [state and state.active for state in made] == ["a", None]
    assert table.current("city").active == "a"


def test_of_many_at_once_one_wins(table):
    """Threads with tables of their own, all at once on one row: one in each round, and no change is lost."""
    table.swap(State("city"))
    barrier = threading.Barrier(4)
    won = []

    def change(part):
        mine = another(table)
        for number in range(10):
            seen = mine.current("city")
            barrier.wait()
            if mine.swap(seen, reason=f"{part}/{number}"):
                won.append(part)
            barrier.wait()

    threads = [threading.Thread(target=change, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 10
    assert table.current("city").version == 11


def test_columns_beyond_the_copy_are_written_too(table):
    """Figures and times that no request needs are changed with the rest."""
    now = timezone.now()
    table.swap(table.swap(State("city"), published_at=now, rows=5), rows=7)

    row = GuardState.objects.using(table.connection.alias).get()
    assert (row.name, row.version, row.rows, row.published_at) == ("city", 2, 7, now)


def test_a_beat_changes_no_version(table):
    """A builder that says it is alive changes nothing that a lease depends on, and nobody else's build.

    It learns whether the row still names its own.
    """
    table.swap(State("city"), building="a")
    assert not table.heartbeat(State("city", building="another"))
    silent = GuardState.objects.using(table.connection.alias).get().builder_seen_at

    assert table.heartbeat(State("city", building="a"))

    assert silent is None
    assert GuardState.objects.using(table.connection.alias).get().builder_seen_at is not None
    assert table.current("city").version == 1


def test_a_database_error_is_no_lost_race(table):
    """What the database refuses is an error, not somebody else having been faster."""
    seen = table.swap(State("city"))

    with pytest.raises(DatabaseError):
        table.swap(seen, active=None)
    with pytest.raises(DatabaseError):
        table.swap(State("town"), active=None)


def test_a_project_that_is_not_migrated_has_no_rows(table):
    """Before ``migrate`` there is nothing to guard: no error, no row."""
    with connections[table.connection.alias].schema_editor() as editor:
        editor.delete_model(GuardState)
    try:
        assert table.renew()
        assert table.lease("city") == State("city")
    finally:
        with connections[table.connection.alias].schema_editor() as editor:
            editor.create_model(GuardState)


# -- the fence


def test_a_fence_is_seen_within_a_lease(table):
    """After a fence, no process that reads the row in time goes on answering; a build that was going on is given up."""
    reader = another(table)
    table.swap(State("city"), active="a", building="b")
    reader.renew()

    table.fence("city", "because " + "x" * 300)
    table.clock.now += 1
    reader.renew()

    assert reader.lease("city") == State("city", version=2, status=FENCED, active="a")
    row = GuardState.objects.using(table.connection.alias).get()
    assert row.reason.startswith("because x")
    assert len(row.reason) == 200
    assert row.reason.endswith("xx...")
    assert row.fenced_at is not None


@pytest.mark.parametrize("reason", ["the folder /ä/\u2026", "\N{COMBINING ACUTE ACCENT}" * 300, "\N{WAVE DASH}\n" * 50])
def test_the_reason_of_a_fence_is_what_every_database_takes(table, reason):
    """One in LATIN1 refuses others, and no text may be too long: then the write would be refused with its fence."""
    table.swap(State("city"), active="a")

    table.fence("city", reason)

    stored = GuardState.objects.using(table.connection.alias).get().reason
    assert stored
    assert stored.isascii()
    assert len(stored) <= 200


def test_no_lease_is_valid_while_a_fence_is_overdue(table, monkeypatch):
    """Also not by a read of the rows for another purpose, such as a rebuild's: the next lease sets the fence first."""
    table.swap(State("city"), active="one")

    def refused(seen, **changes):
        raise OperationalError("the database refuses")

    with monkeypatch.context() as broken:
        broken.setattr(table, "swap", refused)
        table.fence_soon("city", "a row was saved")
    assert table.current("city").status == ARMED
    assert table.lease("city") is None
    assert table.renewed("city").status == FENCED


def test_a_fence_that_is_noted_while_another_is_set_stays(table, monkeypatch):
    """A receiver of `guard_fenced` may take seconds: meanwhile the guard was rebuilt, and another row came late."""
    table.swap(State("city"), active="one")
    set_now = table.fence

    def slowly(name, reason):
        set_now(name, reason)
        table.fence = set_now
        another(table).swap(another(table).current("city"), active="two", status=ARMED)
        with monkeypatch.context() as broken:
            broken.setattr(table, "swap", lambda seen, **changes: [][0])
            with pytest.raises(IndexError):
                table.fence_soon("city", "a second row was saved")

    table.fence = slowly
    table.fence_soon("city", "a row was saved")

    assert table.current("city").status == ARMED
    assert table.lease("city") is None
    assert table.renewed("city").status == FENCED
    assert not table.overdue


def test_rows_may_vanish_while_another_thread_reads(table):
    """Each read looks through what has vanished, and notes more."""

    gone = table._vanished._gone

    class Meanwhile(tuple):
        def __iter__(self):
            gone[f"town-{len(gone)}"] = table.clock(), State("town")
            return super().__iter__()

    gone["city"] = Meanwhile((table.clock(), State("city")))

    assert table.current("city").status == FENCED


def test_a_row_that_vanishes_is_a_fence_for_two_leases(table):
    """Others may still answer by it: so a writer that has known it waits, as for a fence."""
    table.swap(State("city"), active="a")
    table.renew()
    GuardState.objects.using(table.connection.alias).all()._raw_delete(table.connection.alias)
    table.clock.now += 1

    found = [(table.renewed("city").status, table.lease("city").generations)]
    assert table.lease("city").here == another(table).renewed("city").here  # a rebuild names its filter by it
    table.clock.now += 1.9
    found += [(table.renewed("city").status, table.lease("city").generations)]
    table.clock.now += 1
    assert found == [(FENCED, ())] * 2
    assert table.renewed("city") == State("city")
    assert another(table).renewed("city") == State("city")


def test_a_row_that_comes_back_is_as_it_is(table):
    """Whatever vanished before."""
    table.swap(State("city"), active="a")
    table.renew()
    GuardState.objects.using(table.connection.alias).all()._raw_delete(table.connection.alias)
    assert table.current("city").status == FENCED
    table.swap(table.current("city"), active="b", status=ARMED)

    assert table.current("city") == State("city", version=1, active="b")


def take_away(table, how):
    """A program that is no process of the site takes the state rows away; return what puts them back as they were."""
    alias, name = table.connection.alias, GuardState._meta.db_table

    def run(sql):
        with connections[alias].cursor() as cursor:
            cursor.cursor.execute(sql)  # unseen

    if how == "rename":
        run(f"ALTER TABLE {name} RENAME TO hidden_rows")
        return lambda: run(f"ALTER TABLE hidden_rows RENAME TO {name}")
    run(f"CREATE TABLE hidden_rows AS SELECT * FROM {name}")
    run(f"DELETE FROM {name}")
    return lambda: (run(f"INSERT INTO {name} SELECT * FROM hidden_rows"), run("DROP TABLE hidden_rows"))


@pytest.mark.parametrize("how", ["rename", "delete"])
@pytest.mark.parametrize("later", [1, -3_600])
def test_a_row_that_is_put_back_is_fenced(table, how, later, caplog):
    """While it was away, each process that writes has added nothing to the filter that it names.

    Also if the clock went back in between."""
    other = another(table)
    table.connection.is_temporary = False
    table.swap(State("city"), active="a")
    table.renew()
    put_back = take_away(table, how)
    try:
        table.clock.now += 1
        assert not table.renewed("city").takes_adds
        table.clock.now += 5
        assert not table.renewed("city").generations
    finally:
        put_back()
    table.clock.now += later

    found = [table.renewed("city"), table.renewed("city").status]
    assert found == [None, FENCED]
    assert other.current("city").status == FENCED
    assert "was taken away and put back" in caplog.text


@pytest.mark.parametrize("is_read_meanwhile", [True, False])
def test_an_older_state_row_of_the_same_filter_is_fenced(table, is_read_meanwhile):
    """As one that an administrator restores from a dump, without Django: a fence since then would be undone."""
    table.connection.is_temporary = False
    table.swap(State("city"), active="a")
    old = table.current("city")
    table.fence("city", "because")
    if is_read_meanwhile:
        table.current("city")
    table._update("city", {"version": old.version, "token": old.token, "status": ARMED, "fenced_at": None})

    table.clock.now += 1
    table.renewed("city")
    assert table.renewed("city").status == (FENCED if is_read_meanwhile else ARMED)


def test_a_slow_read_of_rows_is_no_older_row(table):
    """Another thread may read later rows while one waits for its answer."""
    table.connection.is_temporary = False
    table.swap(State("city"), active="a")
    table.renew()
    fetch = table._fetch

    def slowly():
        rows = fetch()
        table._fetch = fetch
        table.swap(table.current("city"), rows=7)
        table.swap(table.current("city"), rows=8)
        table.current("city")
        return rows

    table._fetch = slowly
    table.current("city")

    assert not table.overdue
    assert table.lease("city").is_answered_by("a")


def test_a_row_of_another_filter_is_not_one_that_was_put_back(table):
    """After a flush and a rebuild the guard answers."""
    table.connection.is_temporary = False
    table.swap(State("city"), active="a")
    table.renew()
    GuardState.objects.using(table.connection.alias).all()._raw_delete(table.connection.alias)
    table.current("city")
    table.clock.now += 5
    table.renew()
    other = another(table)
    other.swap(other.current("city"), active="b")
    table.clock.now += 1

    assert table.renewed("city").is_answered_by("b")
    assert not table.overdue


def test_a_fence_is_built_once(table, caplog):
    """A guard that is fenced already, or that has no generation, is left as it is."""
    table.swap(State("city"), active="a")
    table.fence("city", "one")
    table.fence("city", "two")
    table.fence("town", "three")

    assert table.current("city").version == 2
    assert table.current("town").version == 0
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_a_fence_beats_whoever_changes_the_row_meanwhile(table):
    """A fence is tried until it stands, however often the row changes under it."""
    other = another(table)
    table.swap(State("city"), active="a", status=ARMED)
    swap, left = table.swap, [3]

    def contended(seen, **changes):
        if left[0]:
            left[0] -= 1
            other.swap(other.current("city"), rows=left[0])
        return swap(seen, **changes)

    table.swap = contended
    table.fence("city", "because")

    assert other.current("city") == State("city", version=5, status=FENCED, active="a")


# -- the connection


def test_a_connection_that_went_away_is_opened_again(table, monkeypatch, each_database):
    """A connection that the server ended while it lay idle is replaced, once, and the statement is run."""
    connection = table.connection
    connection.is_temporary = False
    connection.execute("SELECT 1")
    first = connection._connection
    first.connection.close()

    assert connection.execute("SELECT 1")[0] == [(1,)]
    assert connection._connection is not first
    connection.close()


def test_a_connection_is_kept(table, monkeypatch):
    """One connection serves all the statements of all threads."""
    connection = table.connection
    connection.is_temporary = False
    connection.execute("SELECT 1")
    first = connection._connection
    found = []

    threads = [threading.Thread(target=lambda: found.append(connection.execute("SELECT 2")[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [[(2,)]] * 4
    assert connection._connection is first
    assert first.get_autocommit()
    connection.close()


def test_a_new_connection_that_fails_is_not_tried_twice(table, monkeypatch):
    """A server that cannot be reached is asked once, and says why."""
    attempts = []

    def refuse(self):
        attempts.append(1)
        raise OperationalError("nobody there")

    monkeypatch.setattr(StateConnection, "_open", refuse)

    with pytest.raises(OperationalError, match="nobody there"):
        table.connection.execute("SELECT 1")

    assert len(attempts) == 1


def test_a_bad_statement_on_a_kept_connection_is_an_error(table, monkeypatch):
    """What fails again on a new connection is raised."""
    table.connection.is_temporary = False
    table.connection.execute("SELECT 1")

    with pytest.raises(DatabaseError):
        table.connection.execute("SELECT nonsense FROM nowhere")

    assert table.connection.execute("SELECT 1")[0] == [(1,)]
    table.connection.close()


@pytest.mark.parametrize("name", ["NAME", "HOST", "PORT"])
def test_another_database_behind_the_alias_is_another_connection(table, name):
    """When the alias comes to mean another database, on the same server or another, the connection follows."""
    connection = table.connection
    connection.is_temporary = False
    connection.execute("SELECT 1")
    first = connection._connection
    first.settings_dict[name] = "another"

    connection.execute("SELECT 1")

    assert connection._connection is not first
    connection.close()


def _child(table, queue):
    parents = table.connection._abandoned
    table.renew()
    queue.put((len(parents), table.lease("city"), table.connection._connection is parents[0]))
    table.connection.close()


def test_a_child_whose_fork_ran_no_hooks_has_a_connection_of_its_own(table, monkeypatch):
    """As in uWSGI: it closes none of its parent's, and reads none of its replies."""
    table.connection.is_temporary = False
    table.connection.execute("SELECT 1")
    parents = table.connection._connection
    resets = WeakKeyDictionary({each: process._resets[each] for each in (table, table.connection)})
    with monkeypatch.context() as child:
        child.setattr(process, "_resets", resets)
        child.setattr(process, "pid", process.pid)
        child.setattr("os.getpid", lambda: -1)
        assert table.renew()

        assert table.connection._connection is not parents
        assert table.connection._abandoned == [parents]
        assert parents.connection is not None
        table.connection.close()
    parents.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_has_a_connection_of_its_own(table, monkeypatch):
    """A child reads the rows through a connection of its own, and its parent's goes on working."""
    table.connection.is_temporary = False
    written = table.swap(State("city"), active="a")
    mine = table.connection._connection
    queue = fork.SimpleQueue()
    with table._lock, table.connection._lock:  # as if other threads were reading at that very moment
        child = fork.Process(target=_child, args=(table, queue))
        child.start()
    child.join(60)

    assert child.exitcode == 0
    assert queue.get() == (1, written, False)
    assert table.connection.execute("SELECT 1")[0] == [(1,)]
    assert table.connection._connection is mine
    table.connection.close()


def test_an_interrupted_reader_leaves_nothing_locked(table, monkeypatch):
    """A time limit may raise its exception right after the lock was taken."""
    with monkeypatch.context() as patch:
        patch.setattr(table, "_lock", InterruptedLock(table._lock))
        with pytest.raises(KeyboardInterrupt):
            table.renew()
    done = []
    thread = threading.Thread(target=lambda: (done.append(table.renew()), connections.close_all()))
    thread.start()
    thread.join(60)

    assert done == [True]
