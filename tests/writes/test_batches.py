"""The keys of ``bulk_create`` are added together, after the last of its statements and before the COMMIT."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import IntegrityError, connections, models, transaction

from bloomguard.guards import registry
from bloomguard.guards.doubts import unadded
from bloomguard.lookups import guarded_lookups
from bloomguard.state import table as state
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import statements
from tests.shop.models import Article, Product
from tests.support import database
from tests.support.mariadb import MYSQL

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def guard(each_database, build):
    """A guard in use."""
    Article.objects.create(slug="old")
    build("article")
    return registry["article"]


@pytest.fixture
def added(guard, monkeypatch):
    """The number of keys of each add."""
    counts, active = [], guard._runtime.active_filter
    monkeypatch.setattr(
        active,
        "add",
        lambda keys, *args, add=active.add, **named: counts.append(len(keys)) or add(keys, *args, **named),
    )
    return counts


def articles(*slugs):
    return [Article(slug=slug) for slug in slugs]


def verdicts(guard, *slugs):
    return [guard.verdict(slug) for slug in slugs]


def test_the_keys_of_all_its_statements_are_added_at_once(guard, added):
    """Three statements, one add. Django 6.1 begins its own transaction too late for that: then each has its own."""
    with transaction.atomic(using=database.current):
        Article.objects.bulk_create(articles(*"abcde"), batch_size=2)

    assert added == ([2, 2, 1] if MYSQL and database.current == "mariadb" else [5])  # there they are read back
    assert verdicts(guard, *"abcde") == [Verdict.MAYBE] * 5


def test_a_row_that_is_written_elsewhere_meanwhile_is_added_too(guard, monkeypatch):
    """A field writes to another database between two of the statements: that is no part of the batch's transaction."""
    other = "default" if database.current != "default" else "postgresql"

    def pre_save(field, instance, add):
        if instance.slug == "b":
            Article.objects.using(other).create(slug="elsewhere")
        return getattr(instance, field.attname)

    monkeypatch.setattr(models.SlugField, "pre_save", pre_save)

    Article.objects.bulk_create(articles("a", "b"), batch_size=1)

    assert verdicts(guard, "a", "b", "elsewhere") == [Verdict.MAYBE] * 3


def test_a_field_sees_the_rows_of_earlier_statements(guard, monkeypatch):
    """A query between two of the statements finds the rows of the first: no guard answers it meanwhile."""
    seen = []

    def pre_save(field, instance, add):
        if instance.slug == "b":
            with guarded_lookups():
                seen.append(Article.objects.filter(slug="a", deleted=False).exists())
        return getattr(instance, field.attname)

    monkeypatch.setattr(models.SlugField, "pre_save", pre_save)

    Article.objects.bulk_create(articles("a", "b"), batch_size=1)

    assert seen == [True]


def test_no_row_that_a_field_writes_to_another_table_is_absent(guard, build, monkeypatch):
    """Only the batch's own guards let its queries pass, so the keys of other tables are added at once."""
    build("product")
    seen = []

    def pre_save(field, instance, add):
        seen.append(registry["product"].verdict(Product.objects.create(name="x").pk))
        return getattr(instance, field.attname)

    monkeypatch.setattr(models.SlugField, "pre_save", pre_save)

    Article.objects.bulk_create(articles("a", "b"), batch_size=1)

    assert set(seen) == {Verdict.MAYBE}


def test_rows_of_before_an_error_are_added(guard):
    """If a later statement fails, the project may commit the earlier ones in a transaction that it began by hand."""
    connection = connections[database.current]
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL rolls back all of it")
    connection.set_autocommit(False)
    try:
        with pytest.raises(IntegrityError):
            Article.objects.bulk_create(articles("kept", "old"), batch_size=1)
        connection.needs_rollback = False
        connection.commit()
    finally:
        connection.set_autocommit(True)

    assert Article.objects.filter(slug="kept").exists()
    assert verdicts(guard, "kept", "other") == [Verdict.MAYBE, Verdict.ABSENT]


def test_statements_that_commit_one_by_one_are_added_one_by_one(guard, added, monkeypatch):
    """A package may send the statements of Django's ``bulk_create`` without its transaction."""
    rows = Article.objects.all()
    rows._for_write = True

    rows._batched_insert(articles("a", "b"), [Article._meta.get_field(name) for name in ("slug", "deleted")], 1)

    assert added == [1, 1]


def test_an_add_that_fails_fences_before_the_commit(guard, clock, monkeypatch):
    """As after any other statement."""
    monkeypatch.setattr(state.table, "sleep", clock.sleep)
    monkeypatch.setattr(guard._runtime.active_filter, "add", lambda *args, **named: False)
    began = clock.now

    Article.objects.bulk_create(articles("a", "b"), batch_size=1)

    assert clock.now - began >= 2 * state.LEASE_SECONDS
    assert state.table.current("article").status == FENCED


def test_a_batch_that_is_interrupted_at_its_beginning_keeps_no_later_key(guard, monkeypatch):
    """Nothing that this thread inserts later is collected for a batch that no longer runs."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt), transaction.atomic(using=database.current):
        patch.setattr(unadded, "begin", interrupted)
        Article.objects.bulk_create(articles("a", "b"))
    Article.objects.create(slug="later")

    assert statements.running.batch is None
    assert verdicts(guard, "later") == [Verdict.MAYBE]
