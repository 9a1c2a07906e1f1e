"""In a transaction a guard answers only where the SELECT has no effect on what the transaction sees, or may commit."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest
from django.db import OperationalError, connections, transaction

from bloomguard.lookups.context import guarded_lookups
from bloomguard.state import transactions
from bloomguard.writes import consequences, isolation
from tests.lookups.test_select import ABSENT, atomically, lookups, queries, rows, run, shop  # noqa: F401
from tests.support import database
from tests.support.mariadb import MYSQL

pytestmark = [
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("each_database", "fresh"),
]

#: By database and level: whether a guard may answer.
LEVELS = {
    "default": {None: True, "DEFERRED": True, "IMMEDIATE": True, "EXCLUSIVE": True},
    "postgresql": {None: True, "READ_COMMITTED": True, "REPEATABLE_READ": False, "SERIALIZABLE": False},
    "mariadb": {"read committed": True, "repeatable read": False, "serializable": False, None: False},
}


@pytest.fixture(autouse=True)
def levels_are_known():
    consequences.caches.clear()  # which have the texts that were looked at before
    isolation._changed.clear()
    isolation._default_level.cache_clear()
    isolation._begun.clear()
    yield
    isolation._begun.clear()
    isolation._changed.clear()
    isolation._default_level.cache_clear()


@contextmanager
def transactions_of(level):
    """The settings name this level, or none: then it is the server's."""
    connection = connections[database.current]
    connection.close()
    before = dict(connection.settings_dict["OPTIONS"])
    options = connection.settings_dict["OPTIONS"]
    if database.current == "postgresql":
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        if level is not None:
            options["isolation_level"] = IsolationLevel[level]
    else:
        options["transaction_mode" if database.current == "default" else "isolation_level"] = level
    try:
        yield connection
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = before
        connection.ensure_connection()


@pytest.mark.parametrize("number", range(4))
def test_a_guard_answers_where_each_statement_reads_what_is_committed(lookups, number):  # noqa: F811
    """And on SQLite, which has one writer at a time."""
    level, answers = list(LEVELS[database.current].items())[number]
    with transactions_of(level):
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
        assert queries(lambda: atomically(lambda: rows.filter(pk=ABSENT).first())) == (not answers)
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0


CHANGING = {
    "postgresql": [
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "set  session characteristics as\ntransaction isolation level repeatable read",
        "SET LOCAL default_transaction_isolation = 'serializable'",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "SELECT set_config('default_transaction_isolation', 'serializable', false)",
    ],
    "mariadb": [
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        f"SET SESSION {'transaction' if MYSQL else 'tx'}_isolation = 'REPEATABLE-READ'",
    ],
}


@pytest.mark.parametrize("number", range(5))
def test_a_statement_that_sets_a_level_sends_what_follows(lookups, number):  # noqa: F811
    """From then on the levels of this database are not known."""
    if number >= len(CHANGING.get(database.current, ())):
        pytest.skip("no such statement")
    look = lambda: atomically(lambda: rows.filter(pk=ABSENT).first())  # noqa: E731
    assert queries(look) == 0
    try:
        with transaction.atomic(using=database.current):
            run(CHANGING[database.current][number])
            assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1
        assert queries(look) == 1
    finally:
        connections[database.current].close()


@pytest.mark.parametrize("column", ["characteristics", "snapshot"])
def test_a_column_named_like_a_word_of_levels_sets_none(lookups, column):  # noqa: F811
    """Or no guard would answer in a transaction from the first UPDATE of that column on."""
    isolation.note(f"UPDATE shop_product SET {column} = %s WHERE id = %s", connections[database.current])

    assert not isolation._changed


def test_what_django_sends_to_a_new_connection_sets_no_other_level(lookups):  # noqa: F811
    """MariaDB's session gets the level of the settings, again with each connection."""
    connections[database.current].close()
    rows.get(pk=7)

    assert not isolation._changed


def test_the_servers_default_is_asked_for(lookups, clock, monkeypatch):  # noqa: F811
    """A role of PostgreSQL may have a level of its own, and get another; the question begins no snapshot."""
    if database.current != "postgresql":
        pytest.skip("PostgreSQL's alone")
    monkeypatch.setattr(isolation, "seconds", clock)
    connection = connections["postgresql"]
    connection.ensure_connection()
    try:
        for level, sent in (("repeatable read", 1), ("read committed", 0)):
            database.unseen(connection).execute(f"SET default_transaction_isolation = '{level}'")  # past Django
            clock.sleep(60)
            assert queries(lambda: atomically(lambda: rows.filter(pk=ABSENT).first())) == sent
    finally:
        connection.close()


# -- what the rule is for


@contextmanager
def another_session():
    other = connections.create_connection(database.current)
    other.ensure_connection()
    try:
        yield other
    finally:
        other.close()


def insert(connection, pk):
    database.unseen(connection).execute(f"INSERT INTO shop_product (id, name) VALUES ({pk}, 'theirs')")
    connection.connection.commit()


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_snapshot_begins_with_the_query_for_an_absent_row(shop, is_guarded):  # noqa: F811
    """A row that others commit after it is not seen, with a guard as without."""
    if database.current == "default":
        pytest.skip("on SQLite the guard answers: docs/limits.md")
    level = {"postgresql": "REPEATABLE_READ", "mariadb": "repeatable read"}[database.current]
    with transactions_of(level), another_session() as other, transaction.atomic(using=database.current):
        if is_guarded:
            with guarded_lookups():
                assert not rows.filter(pk=ABSENT).exists()
        else:
            assert not rows.filter(pk=ABSENT).exists()
        insert(other, 100)
        assert not rows.filter(name="theirs").exists()


@pytest.mark.parametrize("is_guarded", [False, True])
def test_of_two_who_found_no_row_one_may_insert(shop, is_guarded):  # noqa: F811
    """At SERIALIZABLE the database has to know what both have read."""
    if database.current != "postgresql":
        pytest.skip("PostgreSQL's alone")

    def write():
        with transaction.atomic(using="postgresql"):
            assert not rows.filter(pk=100).exists()  # so 101 may be taken
            raw = other.connection
            raw.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
            assert raw.execute("SELECT 1 FROM shop_product WHERE id = 101").fetchone() is None
            insert(other, 100)
            rows.create(pk=101)

    context = guarded_lookups() if is_guarded else nullcontext()
    with transactions_of("SERIALIZABLE"), another_session() as other, context:
        with pytest.raises(OperationalError, match="could not serialize"):
            write()
        assert not rows.filter(pk=101).exists()


@pytest.mark.parametrize("begin", ["BEGIN", "START TRANSACTION", "SELECT 1; BEGIN"])
def test_a_server_is_asked_only_after_sql_that_may_have_begun_a_transaction(lookups, begin, monkeypatch):  # noqa: F811
    """The drivers of MySQL and MariaDB do not know it, and an answer costs no round trip."""
    if database.current != "mariadb":
        pytest.skip("the driver knows")
    connection, ask, asked = connections["mariadb"], transactions._ask, []
    monkeypatch.setattr(transactions, "_ask", lambda *args: asked.append(args) or ask(*args))
    assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
    assert connection.connection is not None
    assert not asked
    try:
        with connection.cursor() as cursor:
            cursor.execute(begin)
            while cursor.nextset():
                pass
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1
    finally:
        connection.close()
