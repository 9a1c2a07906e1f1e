"""Writes in transactions that Django or the project began: they work as without bloomguard, and no row is missed."""

from __future__ import annotations

import copy
import os
import random
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest
from django import VERSION
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import Value
from django.db.models.functions import Concat
from django.utils import timezone

from bloomguard.exceptions import StoreError
from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import connection as state_connection
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import fencing
from bloomguard.writes.adding import adding
from tests.shop.models import Article, Product
from tests.support import database, orm_writes
from tests.support.guarding import registered
from tests.support.orm_writes import MODELS, TRANSACTIONS, by_hand, run, sent, uninstalled, without_autocommit

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

BY_HAND = [by_hand, without_autocommit]


@pytest.fixture
def armed(each_database, fresh, clock):
    """A guard in use on every table that is written to; half of them discard."""
    with ExitStack() as stack:
        guards = [
            stack.enter_context(registered(model, name=f"armed-{number}", filter=["bloom", "cuckoo"][number % 2]))
            for number, model in enumerate([*MODELS, Group.permissions.through])
        ]
        orm_writes.empty()
        for guard in guards:
            Rebuild(guard, sleep=clock.sleep).run()
        yield guards


@pytest.fixture
def broken(product, monkeypatch):
    """Its adds fail."""
    monkeypatch.setattr(type(product._runtime.active_filter), "add", lambda *args, **named: False)
    return product


def execute(sql, params=None):
    with connections[database.current].cursor() as cursor:
        cursor.execute(sql, params)


def lines(caplog):
    return [each for each in caplog.records if each.levelname == "ERROR" and each.name == "bloomguard"]


@pytest.mark.parametrize("block", TRANSACTIONS, ids=lambda block: block.__name__)
def test_every_write_ends_as_it_does_without_guards(armed, block, clock):
    """It gives or raises the same, whoever began the transaction, and no row that is there is answered ABSENT."""
    with uninstalled():
        expected = run(block)
    orm_writes.empty()
    connections[database.current].savepoint_state = 0
    for guard in armed:
        Rebuild(guard, sleep=clock.sleep).run()

    outcomes = run(block)

    assert outcomes == expected
    assert sum(guard.model.objects.count() for guard in armed) > 25
    for guard in armed:
        values = [
            values if len(values) > 1 else values[0] for values in guard._meta.rows().values_list(*guard._meta.attnames)
        ]
        assert Verdict.ABSENT not in [guard.verdict(value) for value in values], guard.model


@pytest.mark.parametrize("block", BY_HAND, ids=lambda block: block.__name__)
def test_a_commit_by_hand_waits_for_its_fence(broken, clock, caplog, block):
    """Whoever is told of the COMMIT is told two leases after the fence can be read."""
    with block():
        Product.objects.create(pk=90_070)
        began = clock.now

    assert clock.now - began >= (fencing.EXPIRY_SECONDS if database.current == "default" else 0)
    assert GuardState.objects.get(name="product").status == FENCED
    assert broken.verdict(90_070) is Verdict.UNKNOWN
    assert len(lines(caplog)) == 1


def test_a_connection_that_django_holds_for_broken_stays_so(product):
    """After an error in a transaction that was begun by hand, and committed, Django refuses the next write."""
    using = database.current
    Product.objects.create(pk=90_072)
    transaction.set_autocommit(False, using=using)
    with suppress(IntegrityError), transaction.atomic(using=using, savepoint=False):
        Product.objects.bulk_create([Product(pk=90_072)])
    transaction.commit(using=using)
    transaction.set_autocommit(True, using=using)

    try:
        with pytest.raises(transaction.TransactionManagementError):
            Product.objects.create(pk=90_073)
    finally:
        connections[using].rollback()


def spoiled_by_a_flag(using):
    """The project's own wish: the database itself would still accept statements."""
    transaction.set_rollback(True, using=using)


def spoiled_by_an_error(using):
    """A refused row, after which PostgreSQL refuses everything."""
    with suppress(IntegrityError), transaction.atomic(using=using, savepoint=False):
        Product.objects.bulk_create([Product(pk=90_080), Product(pk=90_080)])


#: Each write, of rows that are there or of new ones. They begin with no query of the project's own.
IN_VAIN = [
    lambda rows, new, change: rows[0].save(),
    lambda rows, new, change: rows[0].delete(),
    lambda rows, new, change: type(rows[0]).objects.create(**new),
    lambda rows, new, change: type(rows[0]).objects.bulk_create([type(rows[0])(**new)]),
    lambda rows, new, change: type(rows[0]).objects.update(**change),
    lambda rows, new, change: type(rows[0]).objects.bulk_update(rows, list(change)),
    lambda rows, new, change: type(rows[0]).objects.all().delete(),
    lambda rows, new, change: type(rows[0]).objects.all()._raw_delete(database.current),
    lambda rows, new, change: execute(f"DELETE FROM {rows[0]._meta.db_table}"),
]


@pytest.mark.parametrize("spoil", [spoiled_by_a_flag, spoiled_by_an_error], ids=lambda spoil: spoil.__name__)
def test_nothing_is_sent_in_a_transaction_that_is_to_be_rolled_back(armed, clock, spoil):
    """Every write meets Django's own error, no statement of ours goes before it, and no guard is fenced."""
    made = {}
    for number, (model, (new, change)) in enumerate(MODELS.items()):
        rows = [model.objects.create(**new(80_000 + 100 * number + each)) for each in range(2)]
        made[model] = rows, new(80_050 + 100 * number), change(80_060 + 100 * number)

    def write_all():
        outcomes = []
        for rows, new, change in made.values():
            for place, write in enumerate(IN_VAIN):
                with transaction.atomic(using=database.current):
                    spoil(database.current)
                    with sent() as statements:
                        try:
                            given = write(rows, new, change)
                        except Exception as error:
                            given = f"{type(error).__name__}: {error}"
                    outcomes.append((type(rows[0]).__name__, place, str(given), list(statements)))
                    transaction.set_rollback(True, using=database.current)
        return outcomes

    with uninstalled():
        expected = write_all()

    assert write_all() == expected
    refused = [given for _, _, given, _ in expected if given.startswith("TransactionManagementError")]
    assert len(refused) > 0.8 * len(expected)
    clock.now += 10
    fenced = GuardState.objects.filter(status=FENCED)
    assert list(fenced.values_list("name", flat=True)) == []


@pytest.mark.parametrize("write", IN_VAIN)
@pytest.mark.parametrize("filter", ["bloom", "cuckoo"])
def test_a_connection_that_was_closed_in_a_transaction_has_its_own_error(each_database, fresh, clock, filter, write):
    """As without bloomguard, the driver's comes before the one of Django."""
    row = Product.objects.create(pk=1)

    def attempt():
        try:
            with transaction.atomic(using=database.current):
                connections[database.current].close()
                write([row], {"pk": 2}, {"name": "x"})
        except Exception as error:
            return type(error), str(error)
        finally:
            connections[database.current].close()

    with uninstalled():
        expected = attempt()
    with registered(Product, filter=filter) as guard:
        Rebuild(guard, sleep=clock.sleep).run()

        assert attempt() == expected
        clock.now += 10
        assert state.table.current(guard.name).status == ARMED


@pytest.mark.parametrize("block", BY_HAND, ids=lambda block: block.__name__)
def test_raw_sql_in_a_transaction_by_hand_fences(product, clock, block):
    """It is sent, and the guard is out of use when its row can be seen."""
    with block():
        execute("INSERT INTO shop_product (id, name) VALUES (90071, 'raw')")

    assert Product.objects.filter(pk=90_071).exists()
    assert product.verdict(90_071) is Verdict.UNKNOWN


@pytest.mark.parametrize("block", BY_HAND, ids=lambda block: block.__name__)
def test_a_block_of_adding_in_a_transaction_by_hand(product, block):
    """It adds its keys, and undoes what it did if it fails, and nothing else."""
    with block():
        with adding(product, database.current) as add:
            execute("INSERT INTO shop_product (id, name) VALUES (90072, 'raw')")
            add([90_072])
        with suppress(KeyError), adding(product, database.current):
            execute("INSERT INTO shop_product (id, name) VALUES (90073, 'raw')")
            raise KeyError

    assert list(Product.objects.filter(pk__gte=90_000).values_list("pk", flat=True)) == [90_072]
    assert product.verdict(90_072) is Verdict.MAYBE


@pytest.mark.parametrize("block", BY_HAND, ids=lambda block: block.__name__)
def test_a_refused_write_is_undone_alone(broken, monkeypatch, block):
    """Where neither add nor fence can be had, the row is not there, and the rest of the transaction is committed."""

    def fail(*args):
        raise DatabaseError("no fence")

    with block():
        Group.objects.create(name="kept")
        with monkeypatch.context() as no_fence:
            no_fence.setattr(fencing, "_fence_within", fail)
            no_fence.setattr(state.StateTable, "fence", fail)
            with pytest.raises(StoreError, match=r"could not be fenced: no fence\. The write is refused"):
                Product.objects.create(pk=90_074)

    assert Group.objects.filter(name="kept").exists()
    assert not Product.objects.filter(pk=90_074).exists()


@contextmanager
def atomic_that_goes_on():
    """The project says that an error has broken nothing."""
    with transaction.atomic():
        yield
        transaction.set_rollback(False)


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("block", [*BY_HAND, atomic_that_goes_on], ids=lambda block: block.__name__)
def test_rows_that_a_failed_update_leaves_are_not_denied(product, clock, block):
    """SQLite keeps those before a RAISE(FAIL), or before a conflict with ON CONFLICT FAIL; their keys are not known."""
    with registered(Product, name="named", lookup="name") as guard:
        Product.objects.bulk_create([Product(name="a"), Product(name="b")])
        execute(
            "CREATE TRIGGER fails BEFORE UPDATE ON shop_product WHEN OLD.name = 'b' BEGIN SELECT RAISE(FAIL, 'no'); END"
        )
        try:
            Rebuild(guard, sleep=clock.sleep).run()
            with block(), suppress(IntegrityError):
                Product.objects.filter(name__in="ab").update(name=Concat("name", Value("-new")))
        finally:
            execute("DROP TRIGGER fails")

        assert Product.objects.filter(name="a-new").exists()
        assert guard.verdict("a-new") is not Verdict.ABSENT


def test_a_fence_that_is_rolled_back_is_not_logged(broken, each_database, clock, caplog):
    """Forms that fail after a save make no line, and a fence that holds makes one, however many writes follow."""
    for number in range(5):
        with transaction.atomic(using=database.current):
            Product.objects.create(pk=90_100 + number)
            transaction.set_rollback(True, using=database.current)
    by_others = 0 if each_database == "sqlite" else 1  # there the fence was committed before
    assert len(lines(caplog)) == by_others

    for number in range(5):
        with transaction.atomic(using=database.current):
            Product.objects.create(pk=90_200 + number)

    assert len(lines(caplog)) == 1


def test_a_fence_is_logged_when_it_can_be_read(broken, monkeypatch):
    """Not before its COMMIT."""
    seen = []
    monkeypatch.setattr(
        state.StateTable, "log_fenced", lambda table, name, reason: seen.append(table.current(name).status)
    )

    with transaction.atomic(using=database.current):
        Product.objects.create(pk=90_075)

    assert seen == [FENCED]


def test_a_state_row_that_the_transaction_deletes_is_not_waited_for(product, clock, each_database):
    """An import in an atomic migration: delete the state row, import, commit; by its end all know."""
    if each_database == "sqlite":
        state.table.fence("product", "else it is not deleted within a transaction")
    began = clock.now
    with transaction.atomic(using=database.current):
        GuardState.objects.filter(name="product").delete()
        execute("INSERT INTO shop_product (id, name) VALUES (90076, 'imported')")

    assert clock.now - began >= fencing.EXPIRY_SECONDS
    assert not GuardState.objects.filter(name="product").exists()
    assert product.verdict(90_076) is Verdict.UNKNOWN


def test_a_state_row_that_the_transaction_has_locked_is_not_waited_for(product, clock, caplog):
    """The fence is then part of the transaction, and logged after it."""
    with transaction.atomic(using=database.current):
        list(GuardState.objects.select_for_update().filter(name="product"))
        GuardState.objects.filter(name="product").update(reason="looked at")
        execute("INSERT INTO shop_product (id, name) VALUES (90077, 'imported')")
        assert lines(caplog) == []

    assert GuardState.objects.get(name="product").status == FENCED
    assert len(lines(caplog)) == 1


LOCKS = {
    "LOCK TABLE": lambda: execute("LOCK TABLE bloomguard_guardstate"),
    "a weaker lock": lambda: execute("LOCK TABLE bloomguard_guardstate IN SHARE MODE"),
    "TRUNCATE": lambda: execute("TRUNCATE bloomguard_guardstate"),
    "flush": lambda: call_command(
        "flush", interactive=False, database=database.current, verbosity=0, inhibit_post_migrate=True
    ),
}


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
@pytest.mark.parametrize("how", ["ORM", "raw"])
@pytest.mark.parametrize("is_armed", [False, True], ids=["idle", "in use"])
@pytest.mark.parametrize("is_undone", [False, True], ids=["", "undone"])
def test_a_transaction_that_locks_the_state_table_does_not_wait_for_itself(
    each_database, fresh, clock, lock, how, is_armed, is_undone, monkeypatch
):
    """It fences by its own connection, if it has not unlocked the table by a savepoint, and its writes work."""
    monkeypatch.setattr(state_connection, "CHANGE_SECONDS", 60.0)  # for so long it does not wait
    guard, began = registry["product"], time.monotonic()
    if is_armed:
        Rebuild(guard, sleep=clock.sleep).run()
    with transaction.atomic(using=database.current):
        savepoint = transaction.savepoint(using=database.current)
        for pk in (90_090, 90_091):
            is_locked = not is_undone or pk == 90_090
            if is_locked:
                lock()
            else:
                transaction.savepoint_rollback(savepoint, using=database.current)
            is_readable = not is_locked or lock is LOCKS["a weaker lock"]
            monkeypatch.setattr(state_connection, "READ_SECONDS", 60.0 if is_readable else 0.05)
            clock.now += 5
            if how == "ORM":
                Product.objects.create(pk=pk)
            else:
                execute(f"INSERT INTO shop_product (id, name) VALUES ({pk}, 'raw')")
    clock.now += 5

    assert Product.objects.filter(pk=90_091).exists()
    is_added = is_armed and how == "ORM" and (is_undone or lock is LOCKS["a weaker lock"])
    assert guard.verdict(90_091) is (Verdict.MAYBE if is_added else Verdict.UNKNOWN)
    assert time.monotonic() - began < 60


WRITES = {
    "ORM": lambda: Product.objects.create(),
    "raw": lambda: execute("INSERT INTO shop_product (name) VALUES ('x')"),
    "adding": lambda: adding_one(),
}


def adding_one():
    with adding(registry["product"], using=database.current) as add:
        execute("INSERT INTO shop_product (id, name) SELECT MAX(id) + 1, 'x' FROM shop_product")
        add([Product.objects.latest("pk").pk])


@pytest.mark.parametrize("building", [False, True], ids=["", "being built"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_fence_without_a_filter_is_waited_for_once(each_database, fresh, clock, write, building):
    """A loaded dump may have replaced a row that others still answer by: the first write waits for two leases."""
    Product.objects.create()
    if building:
        Rebuild(registry["product"], sleep=clock.sleep).announce()
    fenced = {"status": FENCED, "fenced_at": timezone.now(), "token": "x"}
    row, _ = GuardState.objects.get_or_create(name="product")
    GuardState.objects.filter(name="product").update(version=row.version + 1, **fenced)
    clock.sleep(state.LEASE_SECONDS)
    waits = []
    for _ in range(3):
        began = clock.now
        write()
        waits.append(clock.now - began)

    assert waits[0] == 2 * state.LEASE_SECONDS
    assert waits[2] == 0  # raw SQL fences the build, and waits for that fence too


@pytest.mark.parametrize("write", [WRITES["ORM"], WRITES["raw"]], ids=["ORM", "raw"])
def test_fences_of_several_guards_are_waited_for_together(each_database, fresh, clock, write):
    """As after ``switch_guards fence``: what one read has found was set before it, so one wait is enough for all."""
    with registered(Product, name="by-name", lookup="name"), registered(Product, name="third", lookup=("id", "name")):
        Product.objects.create()
        for name in ["product", "by-name", "third"]:
            fenced = {"version": 2, "status": FENCED, "fenced_at": timezone.now(), "token": name}
            GuardState.objects.update_or_create(name=name, defaults=fenced)
        state.table.forget()  # another process has set them
        clock.sleep(state.LEASE_SECONDS)
        began = clock.now

        write()

        assert clock.now - began == 2 * state.LEASE_SECONDS


@pytest.mark.parametrize("leases", [0, 1, 2, 3])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_fence_is_waited_for_from_the_time_when_it_was_read(each_database, fresh, clock, write, leases):
    """A worker that has answered requests since then does not wait at its first write."""
    Product.objects.create()
    row, _ = GuardState.objects.get_or_create(name="product")
    fenced = {"status": FENCED, "fenced_at": timezone.now(), "token": "x"}
    GuardState.objects.filter(name="product").update(version=row.version + 1, **fenced)
    state.table.forget()  # another process has set it
    clock.sleep(state.LEASE_SECONDS)
    assert state.table.renew()  # as each request for a fenced guard does
    clock.sleep(leases * state.LEASE_SECONDS)
    began = clock.now

    write()

    assert clock.now - began == max(0, 2 - leases) * state.LEASE_SECONDS


def test_a_fence_that_comes_back_is_waited_for_again(each_database, product, clock):
    """A database that is restored has the row of a former fence, while others still answer by the row from before."""
    state.table.fence("product", "a former fence")
    fenced = GuardState.objects.get(name="product")
    clock.sleep(3 * state.LEASE_SECONDS)
    Product.objects.create(pk=90_400)
    Rebuild(registry["product"], sleep=clock.sleep).run()
    assert state.table.current("product").status == ARMED
    GuardState.objects.filter(name="product").update(
        version=fenced.version, status=FENCED, fenced_at=fenced.fenced_at, token=fenced.token
    )
    clock.sleep(state.LEASE_SECONDS)
    began = clock.now

    Product.objects.create(pk=90_401)

    assert clock.now - began == 2 * state.LEASE_SECONDS


@pytest.mark.parametrize("names", [(), ("by-name", "third")], ids=["one guard", "three"])
def test_whoever_commits_a_fence_waits_once(each_database, product, clock, monkeypatch, names):
    """Also where it is committed with the rows, as on SQLite: the next write knows that it was waited for."""
    with ExitStack() as block:
        guards = [registry["product"]]
        guards += [block.enter_context(registered(Product, name=name, lookup=("id", "name"))) for name in names]
        for guard in guards:
            Rebuild(guard, sleep=clock.sleep).run()
            monkeypatch.setattr(guard._runtime.active_filter, "add", lambda *args, **options: False)
        with transaction.atomic(using=database.current):
            Product.objects.create(pk=90_300)
        assert {row.status for row in GuardState.objects.all()} == {FENCED}
        began = clock.now

        Product.objects.create(pk=90_301)

        assert clock.now == began


def test_a_fence_that_came_during_the_statement_is_waited_for(each_database, fresh, clock):
    """What was sent as it is, because there was no filter, and took long, looks again before its COMMIT."""
    GuardState.objects.update_or_create(name="product", defaults={"status": FENCED, "fenced_at": timezone.now()})
    clock.sleep(state.LEASE_SECONDS)

    began = clock.now
    assert fencing.needs_no_add(registry["product"], database.current)
    assert clock.now - began == 2 * state.LEASE_SECONDS


@pytest.mark.parametrize("work", ["create", "bulk_create", "update"])
def test_a_guard_that_is_armed_meanwhile_misses_no_row(each_database, fresh, clock, work):
    """What was sent as it is, because there was no filter, and takes until there is one, is added or fences."""
    guard = registry["product"]
    old = Product.objects.create(pk=1, name="old")  # SQLite continues its numbers from test to test
    built = []

    def build():
        Rebuild(guard, sleep=clock.sleep).run()
        connections.close_all()

    def slow(execute, sql, params, many, context):
        if sql.startswith(("INSERT", "UPDATE")) and "shop_product" in sql and not built:
            built.append(sql)
            thread = threading.Thread(target=build)
            thread.start()
            thread.join()
        return execute(sql, params, many, context)

    with connections[database.current].execute_wrapper(slow):
        if work == "create":
            Product.objects.create(pk=90_078)
        elif work == "bulk_create":
            Product.objects.bulk_create([Product(pk=90_078), Product(pk=90_079)])
        else:
            Product.objects.filter(pk=old.pk).update(id=90_078)

    assert len(built) == 1
    assert guard.verdict(90_078) is not Verdict.ABSENT
    assert guard.verdict(123_456) is (Verdict.UNKNOWN if work == "update" else Verdict.ABSENT)


SPELLINGS = {
    "make": ["SAVEPOINT {0}", "savepoint  {0};", 'SAVEPOINT "{0}"', "/* x */ SAVEPOINT {0}", "-- y\nSAVEPOINT {0}"],
    "release": ["RELEASE SAVEPOINT {0}", "release {0}", "RELEASE {0} ;", "/* x */ RELEASE SAVEPOINT {0}"],
    "undo": ["ROLLBACK TO SAVEPOINT {0}", "rollback to {0}", "ROLLBACK TRANSACTION TO {0}", " ROLLBACK  TO {0} -- z"],
}


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "in any spelling"])
def test_no_order_of_savepoints_lets_a_key_go(each_database, fresh, clock, plain):
    """Rows that are deleted between savepoints of the same few names are discarded only if they are gone."""
    rng = random.Random(1)
    discarded = 0
    with registered(Article, name="savepoints", lookup="slug", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        for _ in range(60):
            Article.objects.all().delete()
            Article.objects.bulk_create([Article(slug=f"row-{number}") for number in range(6)])
            due, open_ones = [f"row-{number}" for number in range(6)], []
            with transaction.atomic(using=database.current):
                Article.objects.filter(slug=due.pop()).delete()
                for _ in range(rng.randrange(2, 9)):
                    step = rng.choice(["make", "make", "release", "undo", "delete"])
                    if step == "delete":
                        Article.objects.filter(slug=rng.choice(due)).delete()
                        continue
                    name = rng.choice(["a", "b", "A"] if step == "make" or not open_ones else open_ones)
                    if step == "make":
                        open_ones.append(name)
                    elif name not in open_ones:
                        continue
                    else:
                        place = len(open_ones) - 1 - open_ones[::-1].index(name)
                        del open_ones[place + (step == "undo") :]
                    spelling = SPELLINGS[step][0] if plain else rng.choice(SPELLINGS[step])
                    try:
                        with transaction.atomic(using=database.current, savepoint=False):
                            execute(spelling.format(name))
                    except DatabaseError:  # a quoted name is another one, perhaps
                        transaction.set_rollback(True, using=database.current)
                        break
            there = set(Article.objects.values_list("slug", flat=True))
            verdicts = {f"row-{number}": guard.verdict(f"row-{number}") for number in range(6)}
            assert [slug for slug in there if verdicts[slug] is not Verdict.MAYBE] == []
            gone = [slug for slug in verdicts if slug not in there]
            discarded += sum(verdicts[slug] is Verdict.ABSENT for slug in gone)
    if each_database in database.FORGETTING:
        assert discarded > (20 if plain else 3)
    else:
        assert discarded == 0


@pytest.fixture
def second_alias():
    """The file of the test's database under another alias, as for a ``transaction_mode`` of its own."""
    settings = copy.deepcopy(connections.settings["default"])
    settings["NAME"] = connections["default"].settings_dict["NAME"]
    settings["OPTIONS"] |= {"transaction_mode": "IMMEDIATE"} if VERSION >= (5, 1) else {}
    connections.settings["second"] = settings
    connections["second"].connect()  # Django's tests refuse `ensure_connection` for an alias that is new
    try:
        yield "second"
    finally:
        connections["second"].close()
        del connections["second"], connections.settings["second"]


def raw_on_second(pk):
    with connections["second"].cursor() as cursor:
        cursor.execute(f"INSERT INTO shop_product (id, name) VALUES ({pk}, 'raw')")


def adding_on_second(pk):
    with adding(registry["product"], "second") as add:
        raw_on_second(pk)
        add([pk])


ON_SECOND = {
    "raw": raw_on_second,
    "adding": adding_on_second,
    "ORM": lambda pk: Product.objects.using("second").create(pk=pk),
    "the add fails": lambda pk: Product.objects.using("second").create(pk=pk),
}


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("block", ["autocommit", "atomic", "by hand"])
@pytest.mark.parametrize("how", ON_SECOND)
@pytest.mark.parametrize("is_read", [False, True], ids=["", "after a lease"])
def test_a_writer_by_another_alias_of_the_file_does_not_lock_itself_out(
    product, clock, second_alias, settings, monkeypatch, block, how, is_read
):
    """It reads the state rows by its own connection, as the file has one writer, and fences by it."""
    if how == "the add fails":
        monkeypatch.setattr(type(product._runtime.active_filter), "add", lambda *args, **named: False)
    connection = connections[second_alias]
    began = time.monotonic()
    for pk in (90_080, 90_081):
        if is_read:
            clock.now += 10
        if block == "atomic":
            with transaction.atomic(using=second_alias):
                ON_SECOND[how](pk)
        elif block == "by hand":
            connection.cursor().execute("BEGIN")
            ON_SECOND[how](pk)
            connection.cursor().execute("COMMIT")
        else:
            ON_SECOND[how](pk)

    assert time.monotonic() - began < settings.DATABASES["default"]["OPTIONS"]["timeout"]
    assert Product.objects.filter(pk__gte=90_080).count() == 2
    assert product.verdict(90_080) is (Verdict.UNKNOWN if how in ("raw", "the add fails") else Verdict.MAYBE)
    assert product.verdict(123_456) is (Verdict.UNKNOWN if how in ("raw", "the add fails") else Verdict.ABSENT)


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_aliases_of_one_file_are_known_by_the_file(product, second_alias, tmp_path):
    """Not by their settings: a URI or a link may lead there, too. Databases in memory are different ones."""
    path = os.path.abspath(connections["default"].settings_dict["NAME"])
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "other").touch()
    settings = connections[second_alias].settings_dict
    for name in (path, f"file:{path}?mode=rw", str(tmp_path / "link")):
        settings["NAME"] = name
        assert state.table.holds(second_alias)
    for name in (str(tmp_path / "other"), str(tmp_path / "none"), ":memory:", "file::memory:?cache=shared"):
        settings["NAME"] = name
        assert not state.table.holds(second_alias)
    assert not state.table.holds("postgresql")
