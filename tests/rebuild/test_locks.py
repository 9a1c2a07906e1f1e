"""The barrier: a scan begins when every writer of before has ended, and waits for nobody else."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest
from django.db import OperationalError, connections, transaction

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild, locks
from bloomguard.rebuild.locks import wait_for_writers
from bloomguard.state.transactions import has_begun
from tests.shop.models import Bundle, Order, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

TABLE = {"shop_product"}


class Other:
    """Somebody else's open transaction, on a connection and thread of its own."""

    def __init__(self, work) -> None:
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,))

    def _run(self, work) -> None:
        try:
            with transaction.atomic(using=database.current):
                work()
                self._ready.set()
                self._end.wait(60)
        finally:
            self._ready.set()
            connections[database.current].close()

    def __enter__(self):
        self._thread.start()
        self._ready.wait(60)
        return self

    def __exit__(self, *error) -> None:
        self.end()

    def end(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request, monkeypatch):
    """The alias of a database where several write at a time. Of MariaDB no lock is waited for within a try."""
    monkeypatch.setattr(locks, "_TRIES", [(kind, 0) for kind, _ in locks._TRIES])
    with database.on(request.param) as name:
        yield name


@pytest.fixture
def postgresql():
    with database.on("postgresql"):
        yield


def polls_until(end, after=3):
    """A ``sleep`` that takes no time, and ends the other's transaction when it is called for the third time."""
    polls = []

    def sleep(seconds):
        polls.append(seconds)
        if len(polls) == after:
            end()

    return polls, sleep


WRITES = {
    "insert": lambda: Product.objects.create(pk=2),
    "update": lambda: Product.objects.filter(pk=1).update(name="x"),
    "delete": lambda: Product.objects.filter(pk=1).delete(),
    "nothing found": lambda: Product.objects.filter(pk=77).update(name="x"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_open_writer_is_waited_for(write, server):
    """A transaction that has written to the table holds the barrier until it ends."""
    Product.objects.create(pk=1)
    with Other(write) as other:
        polls, sleep = polls_until(other.end)
        wait_for_writers(server, TABLE, sleep)

    assert len(polls) >= 3


def test_a_long_wait_is_logged_once(server, monkeypatch, caplog):
    """Nothing else tells who watches a deployment that the rebuild is not hanging."""
    monkeypatch.setattr(locks, "_SILENT_SECONDS", 2 * locks._POLL_SECONDS)
    with Other(WRITES["insert"]) as other:
        _, sleep = polls_until(other.end, after=5)
        wait_for_writers(server, TABLE, sleep)

    assert caplog.text.count("waits for an open transaction that wrote shop_product") == 1


def test_a_writer_that_rolls_back_is_waited_for_no_longer(server):
    """However the transaction ends, the barrier opens."""

    def work():
        Product.objects.create(pk=2)
        transaction.set_rollback(True, using=server)

    with Other(work) as other:
        polls, sleep = polls_until(other.end)
        wait_for_writers(server, TABLE, sleep)

    assert len(polls) >= 3
    assert not Product.objects.exists()


OTHERS = {
    "reader": lambda: list(Product.objects.all()),
    "another table": lambda: Order.objects.create(),
}


@pytest.mark.parametrize("work", OTHERS.values(), ids=OTHERS)
def test_nobody_else_is_waited_for(work, server):
    """Readers, and writers of other tables, are not waited for, however long they take."""
    Product.objects.create(pk=1)
    with Other(work):
        wait_for_writers(server, TABLE, lambda seconds: pytest.fail("waited"))


def test_locked_rows_are_not_waited_for(postgresql):
    """Nor is whoever has only locked rows."""
    Product.objects.create(pk=1)
    with Other(lambda: list(Product.objects.select_for_update())):
        wait_for_writers("postgresql", TABLE, lambda seconds: pytest.fail("waited"))


def test_who_writes_to_a_partition_is_waited_for(postgresql):
    """He locks that alone. The same for a table that inherits, and for one below another."""
    run(
        "CREATE TABLE parted (id bigint) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1_1 PARTITION OF parted_1 FOR VALUES FROM (0) TO (1000)",
    )
    try:
        with Other(lambda: run("INSERT INTO parted_1_1 VALUES (7)")) as other:
            polls, sleep = polls_until(other.end)
            wait_for_writers("postgresql", ["parted"], sleep)
    finally:
        run("DROP TABLE parted")

    assert len(polls) >= 3


def run(*statements):
    with connections["postgresql"].cursor() as cursor:
        for sql in statements:
            cursor.execute(sql)


def test_every_table_of_a_guard_is_waited_for(server, fresh, clock):
    """A key may lie in a parent's table: its writers are waited for as well."""
    with registered(Bundle, name="bundle", lookup="name") as guard:
        bundle = Bundle.objects.create(name="old")
        rebuild = Rebuild(guard, sleep=clock.sleep)
        rebuild.announce()
        with Other(lambda: Product.objects.filter(pk=bundle.pk).update(name="new")) as other:
            polls, rebuild._sleep = polls_until(other.end)
            rebuild.wait_for_writers()
        rebuild.withdraw()

    assert len(polls) >= 3


def test_a_later_writer_is_not_waited_for(postgresql):
    """Writers that begin while the barrier waits know of the new generation: under steady writes it still ends."""
    later, polls = [], []
    with Other(lambda: Product.objects.create(pk=2)) as first:

        def sleep(seconds):
            polls.append(seconds)
            if not later:
                later.append(Other(lambda: Product.objects.create(pk=3)).__enter__())
                first.end()
            elif len(polls) > 3:
                later[0].end()
                pytest.fail("waited for a later writer")

        wait_for_writers("postgresql", TABLE, sleep)

        assert len(later) == 1
        later[0].end()


def test_ones_own_connection_is_not_waited_for(postgresql):
    """The builder's own locks do not make it wait for itself."""
    with transaction.atomic(using="postgresql"):
        Product.objects.create(pk=2)
        wait_for_writers("postgresql", TABLE, lambda seconds: pytest.fail("waited"))


@pytest.fixture
def impatient():
    """SQLite waits for nobody."""
    with connections["default"].cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 0")
    yield
    connections["default"].close()


def test_on_sqlite_the_turn_comes_after_the_writers(impatient):
    """SQLite has one writer at a time: a turn of one's own comes after everybody who had one."""
    with Other(lambda: Product.objects.create(pk=2)) as other:
        with pytest.raises(OperationalError, match="locked"):
            wait_for_writers("default", TABLE)
        other.end()
        wait_for_writers("default", TABLE)


def test_on_sqlite_a_reader_is_not_waited_for():
    """A reader has no turn."""
    Product.objects.create(pk=1)
    with Other(lambda: None):
        list(Product.objects.all())
        wait_for_writers("default", TABLE)


def test_on_sqlite_a_barrier_in_a_transaction_is_refused():
    """It would wait for itself."""
    with transaction.atomic(), pytest.raises(RebuildError, match="inside a transaction"):
        wait_for_writers("default", TABLE)


def test_a_waiting_builder_says_that_it_is_alive(server, fresh, clock):
    """However long a writer takes, its builder is not held for dead."""
    beats = []
    rebuild = Rebuild(registry["product"], sleep=clock.sleep, clock=clock)
    rebuild.announce()
    rebuild.table.heartbeat, beat = lambda state: not beats.append(state), rebuild.table.heartbeat
    try:
        with Other(lambda: Product.objects.create(pk=2)) as other:

            def sleep(seconds):
                clock.now += 15
                if len(beats) == 3:
                    other.end()

            rebuild._sleep = sleep
            rebuild.wait_for_writers()
    finally:
        rebuild.table.heartbeat = beat

    assert len(beats) >= 3


def test_a_writer_that_never_ends_stops_a_rebuild_on_sqlite(fresh, clock, impatient):
    """When the turn does not come in time, the rebuild says so, and leaves nothing behind."""
    rebuild = Rebuild(registry["product"], sleep=clock.sleep)
    rebuild.announce()
    with Other(lambda: Product.objects.create(pk=2)), pytest.raises(OperationalError, match="locked"):
        rebuild.wait_for_writers()
    rebuild.withdraw()

    assert rebuild.store.names("product") == []
    assert rebuild.table.current("product").building == ""


@pytest.mark.usefixtures("each_database")
def test_a_barrier_that_is_interrupted_leaves_no_lock():
    """At whatever line: the process may go on, and with its lock nobody could write."""
    for line in itertools.count():
        before = sys.gettrace()
        sys.settrace(interrupting(line))
        try:
            wait_for_writers(database.current, TABLE)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert not has_begun(connections[database.current])
        with Other(lambda: Product.objects.create()):
            pass
        assert Product.objects.count() == line + 1

    assert line > 5


def interrupting(line):
    """Trace the lines of the barrier, and raise KeyboardInterrupt at the one of this number."""
    lines = itertools.count()

    def trace(frame, event, arg):
        if frame.f_code.co_filename != locks.__file__:
            return None
        if event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return trace

    return trace


# -- MariaDB


@pytest.fixture
def mariadb(monkeypatch):
    monkeypatch.setattr(locks, "_TRIES", [(kind, 0) for kind, _ in locks._TRIES])
    with database.on("mariadb"):
        yield


def session():
    """What the barrier sets for its session."""
    with connections["mariadb"].cursor() as cursor:
        cursor.execute("SELECT @@autocommit, @@lock_wait_timeout, @@innodb_lock_wait_timeout")
        return cursor.fetchone()


def test_on_mariadb_the_session_is_as_it_was(mariadb):
    """The limits of the barrier's locks are not those of the statements after it."""
    before = session()
    with Other(lambda: Product.objects.create(pk=2)) as other:
        _, sleep = polls_until(other.end)
        wait_for_writers("mariadb", TABLE, sleep)

    assert session() == before
    Product.objects.create(pk=3)
    assert Product.objects.using("mariadb").count() == 2


def test_on_mariadb_a_barrier_in_a_transaction_is_refused(mariadb):
    """A lock on a table would commit it."""
    with (
        transaction.atomic(using="mariadb"),
        pytest.raises(RebuildError, match="inside a transaction"),
    ):
        wait_for_writers("mariadb", TABLE)
    with connections["mariadb"].cursor() as cursor:
        cursor.execute("BEGIN")
        with pytest.raises(RebuildError, match="inside a transaction"):
            wait_for_writers("mariadb", TABLE)
        cursor.execute("ROLLBACK")


def test_on_mariadb_a_writer_that_never_ends_stops_a_rebuild(mariadb, monkeypatch):
    """After its limit the rebuild says which table it waits for."""
    monkeypatch.setattr(locks, "MAX_WAIT_SECONDS", 1)
    polls = []
    with Other(lambda: Product.objects.create(pk=2)), pytest.raises(RebuildError, match="shop_product has been open"):
        wait_for_writers("mariadb", TABLE, polls.append)

    assert sum(polls) >= locks.MAX_WAIT_SECONDS


@pytest.mark.parametrize("locks_tables", [1, 0])
def test_on_mariadb_a_prepared_transaction_is_waited_for(locks_tables, mariadb):
    """Its session may be gone, and still it will be committed. The server's setting decides nothing."""
    Product.objects.create(pk=1)
    with connections["mariadb"].cursor() as cursor:
        for sql in ("XA START 'x'", "UPDATE shop_product SET name = 'x'", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(sql)
    connections["mariadb"].close()
    with connections["mariadb"].cursor() as cursor:
        cursor.execute("SET innodb_table_locks = %s", [locks_tables])

    def sleep(seconds):
        other = connections["mariadb"].copy()
        with other.cursor() as cursor:
            cursor.execute("XA COMMIT 'x'")
        other.close()
        polls.append(seconds)

    polls = []
    try:
        wait_for_writers("mariadb", TABLE, sleep)

        assert len(polls) == 1
    finally:
        if not polls:
            sleep(0)
