"""A dump of the database is loaded again: its state rows are older than the filters."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.db.models import F

from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state.row import FENCED
from bloomguard.state.table import EXPIRY_SECONDS
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product
from tests.support import database


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_a_state_row_that_is_loaded_is_fenced(each_database, fresh, clock, tmp_path):
    """``loaddata`` takes no fence back: rows that were written since the dump pass until the next rebuild."""
    guard, dump, using = registry["product"], tmp_path / "dump.json", database.current
    Product.objects.create(pk=7)
    Rebuild(guard, sleep=clock.sleep).run()
    call_command("dumpdata", "bloomguard", "shop.product", output=str(dump), database=using, verbosity=0)
    with connections[using].cursor() as cursor:
        cursor.execute("INSERT INTO shop_product (id, name) VALUES (8, 'raw')")
    Product.objects.create(pk=9)
    fenced = GuardState.objects.using(using).get(name="product")

    call_command("loaddata", str(dump), database=using, verbosity=0)
    clock.sleep(5)

    loaded = GuardState.objects.using(using).get(name="product")
    assert (loaded.status, loaded.version > fenced.version) == (FENCED, True)
    assert [guard.verdict(pk) for pk in (7, 8, 9)] == [Verdict.UNKNOWN] * 3
    Rebuild(guard, sleep=clock.sleep).run()
    assert [guard.verdict(pk) for pk in (7, 8, 9, 10)] == [Verdict.MAYBE] * 3 + [Verdict.ABSENT]


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_the_log_says_why_a_guard_is_fenced(each_database, fresh, clock, caplog):
    """Also where the project itself has changed the state row: no reason is empty."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    with transaction.atomic(using=database.current):
        GuardState.objects.using(database.current).update(status=FENCED, version=F("version") + 1)

    fenced = [each.args[1] for each in caplog.records if "until it is rebuilt" in each.message]
    assert fenced == ["the project has changed its state row"] * (each_database == "sqlite")


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.parametrize("is_fenced_before", [False, True], ids=["after the dump", "before the dump"])
def test_what_a_user_has_fenced_stays_so(each_database, fresh, clock, tmp_path, is_fenced_before):
    """A loaded dump lets no scheduled rebuild use the guard again."""
    guard, dump, using = registry["product"], tmp_path / "dump.json", database.current
    Rebuild(guard, sleep=clock.sleep).run()
    if is_fenced_before:
        call_command("switch_guards", "fence", "product", verbosity=0)
    call_command("dumpdata", "bloomguard", output=str(dump), database=using, verbosity=0)
    if not is_fenced_before:
        call_command("switch_guards", "fence", "product", verbosity=0)
    reason = GuardState.objects.using(using).get(name="product").reason

    GuardState.objects.using(using).all().delete()
    call_command("loaddata", str(dump), database=using, verbosity=0)

    loaded = GuardState.objects.using(using).get(name="product")
    assert loaded.reason.startswith("fenced by ") is is_fenced_before
    assert loaded.status == FENCED
    if is_fenced_before:
        assert loaded.reason == reason


def changed_by_the_orm(name):
    GuardState.objects.using(database.current).filter(name=name).update(status="fenced")


def changed_by_raw_sql(name):
    with connections[database.current].cursor() as cursor:
        cursor.execute("UPDATE bloomguard_guardstate SET status = 'fenced' WHERE name = %s", [name])


def deleted_by_raw_sql(name):
    with connections[database.current].cursor() as cursor:
        cursor.execute("DELETE FROM bloomguard_guardstate WHERE name = %s", [name])


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "change", [changed_by_the_orm, changed_by_raw_sql, deleted_by_raw_sql], ids=lambda change: change.__name__
)
@pytest.mark.parametrize("sync", ["statements", "signals"])
def test_whatever_changes_state_rows_is_followed(each_database, fresh, clock, monkeypatch, change, sync):
    """Until its COMMIT other processes answer by the rows from before, so the COMMIT waits, each time."""
    for each in registry:
        monkeypatch.setattr(type(each), "sync", sync, raising=False)
    registry.changed()
    guard, connection = registry["product"], connections[database.current]
    Rebuild(guard, sleep=clock.sleep).run()
    Product.objects.create(pk=6)
    change("a guard that there is not")  # outside a transaction: nothing waits, and the text is known from now on

    def take_long(execute, sql, params, many, context):
        clock.sleep(1.5)
        return execute(sql, params, many, context)

    try:
        with transaction.atomic(using=database.current):
            change("product")
            with connection.execute_wrapper(take_long):
                Product.objects.create(pk=7)
            committed_at = clock.now

        assert clock.now - committed_at >= EXPIRY_SECONDS
    finally:
        monkeypatch.undo()
        registry.changed()
