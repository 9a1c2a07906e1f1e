"""Raw SQL comes out as without bloomguard: the same rows, the same error, and the transaction as it would be."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import Error, connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from bloomguard.guards import registry
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article
from tests.support import database
from tests.support.orm_writes import uninstalled

from .sending import execute, on_postgresql, on_sqlite, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

A, B = (f"INSERT INTO shop_article (slug, deleted) VALUES ('{slug}', false)" for slug in "ab")
MANY = "INSERT INTO shop_article (slug, deleted) VALUES (%s, false)"
#: The third row is refused.
TWICE = [("a",), ("b",), ("a",)]


@pytest.fixture
def both(each_database, build):
    """``both(work)`` does ``work`` without bloomguard, then with a filter in use; return both outcomes."""

    def outcome(work):
        connection = connections[database.current]
        try:
            error = ""
            try:
                work()
            except Exception as raised:
                error = f"{type(raised).__name__}: {str(raised).splitlines()[0]}"
            after = not connection.get_autocommit(), connection.in_atomic_block
        finally:
            if connection.connection is not None:
                connection.connection.rollback()
        rows = sorted(Article.objects.values_list("slug", flat=True))
        return error, after, rows

    def run(work):
        Article.objects.all().delete()
        with uninstalled():
            expected = outcome(work)
        Article.objects.all().delete()
        build("article")
        execute("UPDATE shop_product SET name = 'x' WHERE id = 0")  # so the catalogue is known in a transaction too
        found = outcome(work)
        guard = registry["article"]
        assert [slug for slug in found[-1] if guard.verdict(slug) is Verdict.ABSENT] == []
        return expected, found

    return run


def sent(*statements):
    def work():
        for each in statements:
            execute(each)

    return work


def in_atomic(*statements):
    def work():
        with transaction.atomic(using=database.current):
            sent(*statements)()

    return work


TEXTS = {
    "begun by a text": (sent(f"BEGIN; {A}", "ROLLBACK"), []),
    "begun, and committed later": (sent(f"BEGIN; {A}", B, "COMMIT"), ["a", "b"]),
    "begun in standard SQL": (sent(f"START TRANSACTION; {A}", B, "ROLLBACK"), []),
    "begun behind a comment": (sent(f"/* x */ BEGIN /* ; */; {A}", "ROLLBACK"), []),
    "one transaction in one text": (sent(f"BEGIN; {A}; COMMIT; {B}"), ["a", "b"]),
    "rolled back in one text": (sent(f"BEGIN; {A}; ROLLBACK; {B}"), ["b"]),
    "rolled back, then autocommit": (sent("BEGIN", A, f"ROLLBACK; {B}"), ["b"]),
    "rolled back, then begun again": (sent("BEGIN", A, f"ROLLBACK; BEGIN; {B}", "COMMIT"), ["b"]),
    "a savepoint made": (sent("BEGIN", f"SAVEPOINT s; {A}", "ROLLBACK TO s", B, "COMMIT"), ["b"]),
    "a savepoint undone": (sent("BEGIN", "SAVEPOINT s", f"{A}; ROLLBACK TO SAVEPOINT s", B, "COMMIT"), ["b"]),
    "a savepoint in atomic": (in_atomic(f"SAVEPOINT s; {A}; RELEASE s", B), ["a", "b"]),
    "several rows": (sent(f"{A}; {B};"), ["a", "b"]),
    "several rows, the last is refused": (sent(f"{A}; {A}"), None),
}


@pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize(("work", "rows"), TEXTS.values(), ids=TEXTS)
def test_a_text_that_controls_transactions(both, work, rows):
    """What is rolled back is gone, and what is committed stays, also if one text has several statements."""
    expected, found = both(work)

    assert found == expected
    assert rows is None or found[-1] == rows


@on_postgresql
@pytest.mark.parametrize("head", ["", "/* nightly */ ", "-- nightly\n", "/* a /* b */ */"])
@pytest.mark.parametrize("kind", ["CALL", "DO"])
def test_a_procedure_that_commits(both, head, kind):
    """PostgreSQL lets it commit only outside of a transaction, also behind a comment."""
    body = f"BEGIN {A}; COMMIT; END"
    execute(f"CREATE PROCEDURE raw_commits() LANGUAGE plpgsql AS $$ {body} $$")
    try:
        expected, found = both(sent(head + ("CALL raw_commits()" if kind == "CALL" else f"DO $$ {body} $$")))
    finally:
        execute("DROP PROCEDURE raw_commits")

    assert found == expected
    assert found[-1] == ["a"]


@on_sqlite
@pytest.mark.parametrize("head", ["/* x */ ", "-- x\n"])
def test_a_pragma_and_returned_rows_behind_a_comment(both, head):
    """SQLite commits a statement that returns rows when they have been fetched, and ignores pragmas in transactions."""

    def work():
        with connections["default"].cursor() as cursor:
            cursor.execute(f"{head}{A} RETURNING slug")
            assert cursor.fetchall() == [("a",)]
        execute(f"{head}PRAGMA foreign_keys = ON")

    expected, found = both(work)

    assert found == expected
    assert found[-1] == ["a"]


OUTSIDE = [
    "COMMIT PREPARED 'raw_nothing'",
    "ROLLBACK PREPARED 'raw_nothing'",
    "CREATE SUBSCRIPTION raw_sub CONNECTION 'host=/nonexistent dbname=x' PUBLICATION p",
    "ALTER SUBSCRIPTION raw_sub REFRESH PUBLICATION",
    "DROP SUBSCRIPTION raw_sub",
    "VACUUM raw_nothing",
    "CREATE DATABASE raw_db TEMPLATE raw_nothing",
    "DROP DATABASE raw_nothing",
    "ALTER DATABASE raw_nothing SET TABLESPACE raw_nothing",
    "CREATE TABLESPACE raw_space LOCATION '/nonexistent'",
    "CREATE INDEX CONCURRENTLY ON raw_nothing (slug)",
    "DROP INDEX CONCURRENTLY raw_nothing",
    "REINDEX TABLE CONCURRENTLY raw_nothing",
    "ALTER SYSTEM SET raw_nothing = 1",
    "ALTER TABLE shop_article DETACH PARTITION raw_nothing CONCURRENTLY",
    "DECLARE raw_cursor CURSOR FOR SELECT raw_nothing()",
    "EXECUTE raw_nothing",
    "EXPLAIN ANALYZE EXECUTE raw_nothing",
]


@on_postgresql
@pytest.mark.parametrize("sql", OUTSIDE)
@pytest.mark.parametrize("head", ["", "/* x */ "])
def test_a_statement_that_works_only_outside_of_a_transaction(both, head, sql):
    """Each of these fails; but by the same error as without bloomguard."""
    expected, found = both(sent(head + sql))

    assert found == expected
    assert "transaction block" not in found[0] or sql.startswith("DECLARE")


@on_postgresql
@pytest.mark.skipif(not is_psycopg3, reason="psycopg 3's COPY")
def test_copy_freeze_in_the_transaction_that_emptied_the_table(both):
    """PostgreSQL demands that no savepoint is between the TRUNCATE and the COPY."""

    def work():
        with connections["postgresql"].cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("TRUNCATE shop_article")
            with cursor.copy("COPY shop_article (id, slug, deleted) FROM STDIN (FREEZE)") as copy:
                copy.write_row((1, "a", False))
            cursor.execute("COMMIT")

    expected, found = both(work)

    assert found == expected


def refused(sql, params=None, many=False):
    """Send what the database refuses, as a caller does that goes on."""
    with pytest.raises(Error):
        execute(sql, params, many)


def rows_of(values):
    yield from values
    raise KeyError("the rows end in the middle")


def stopped():
    with pytest.raises(KeyError):
        execute(MANY, rows_of(TWICE[:2]), many=True)


#: What is sent, and whether SQLite alone knows it.
PARTIAL = {
    "many": (lambda: refused(MANY, TWICE, many=True), False),
    "many that are stopped": (stopped, False),
    "many updates": (
        lambda: (
            execute(MANY, TWICE[:2], many=True),
            refused("UPDATE shop_article SET slug = %s WHERE slug = %s", [("c", "a"), ("c", "b")], many=True),
        ),
        False,
    ),
    "or fail": (
        lambda: refused("INSERT OR FAIL INTO shop_article (slug, deleted) VALUES ('a',0),('b',0),('a',0)"),
        True,
    ),
    "or rollback": (
        lambda: refused("INSERT OR ROLLBACK INTO shop_article (slug, deleted) VALUES ('a',0),('b',0),('a',0)"),
        True,
    ),
}


@pytest.mark.parametrize("where", ["autocommit", "atomic", "BEGIN", "set_autocommit", "set_autocommit and atomic"])
@pytest.mark.parametrize(("work", "on_sqlite_alone"), PARTIAL.values(), ids=PARTIAL)
def test_the_rows_before_an_error_stay_where_they_would(both, where, work, on_sqlite_alone, each_database):
    """And none of them is answered ABSENT, if the caller catches the error and commits."""
    if on_sqlite_alone and each_database != "sqlite":
        pytest.skip("SQLite's")
    connection = connections[database.current]

    def whole():
        if where == "atomic":
            with transaction.atomic(using=database.current):
                work()
        elif where == "BEGIN":
            execute("BEGIN")
            work()
            execute("COMMIT")
        elif where.startswith("set_autocommit"):
            connection.set_autocommit(False)
            try:
                with transaction.atomic(database.current, savepoint=False) if "atomic" in where else nullcontext():
                    work()
            finally:
                connection.commit()
                connection.set_autocommit(True)
        else:
            work()

    expected, found = both(whole)

    assert found == expected
    if each_database != "postgresql" and work is not PARTIAL["or rollback"][0]:
        assert len(found[-1]) == 2
        assert status("article") == FENCED


@on_sqlite
@pytest.mark.parametrize("where", ["autocommit", "atomic"])
@pytest.mark.parametrize("kind", ["constraint", "trigger"])
def test_the_database_itself_may_keep_the_rows_before_an_error(both, where, kind):
    """By ON CONFLICT FAIL and RAISE(FAIL), which the statement does not show."""
    if kind == "trigger":
        execute(
            "CREATE TRIGGER raw_fails BEFORE INSERT ON shop_article WHEN NEW.slug = 'c' "
            "BEGIN SELECT RAISE(FAIL, 'no'); END"
        )
        sql = "INSERT INTO shop_article (slug, deleted) VALUES ('a', 0), ('b', 0), ('c', 0)"
    else:
        execute("CREATE TABLE raw_staged (slug text UNIQUE ON CONFLICT FAIL)")
        execute(
            "CREATE TRIGGER raw_copies AFTER INSERT ON raw_staged "
            "BEGIN INSERT INTO shop_article (slug, deleted) VALUES (NEW.slug, 0); END"
        )
        sql = "INSERT INTO raw_staged VALUES ('a'), ('b'), ('a')"

    def work():
        if kind == "constraint":
            execute("DELETE FROM raw_staged")
        with transaction.atomic() if where == "atomic" else nullcontext():
            refused(sql)

    try:
        expected, found = both(work)
    finally:
        execute("DROP TRIGGER IF EXISTS raw_fails")
        execute("DROP TABLE IF EXISTS raw_staged")

    assert found == expected
    assert found[-1] == ["a", "b"]


def test_rows_that_sqlite_returns_in_a_transaction_by_hand_can_be_fetched(each_database, both):
    """Until then SQLite releases no savepoint, so none is put around the statement."""
    if each_database != "sqlite":
        pytest.skip("SQLite's")
    connection = connections[database.current]

    def work():
        connection.set_autocommit(False)
        try:
            execute(A)
            with connection.cursor() as cursor:
                cursor.execute(f"{B} RETURNING slug")
                assert cursor.fetchall() == [("b",)]
        finally:
            connection.commit()
            connection.set_autocommit(True)

    expected, found = both(work)

    assert found == expected
    assert status("article") == FENCED
