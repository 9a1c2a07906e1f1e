"""``manage.py switch_guards``: off and on without a deploy, and what cron must not undo."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models import F

from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("each_database", "hasty"),
]


@pytest.fixture
def armed(fresh, clock, build):
    build("product")
    build("order")
    return registry["product"]


def run(command: str, *arguments: str) -> str:
    out = io.StringIO()
    call_command(command, *arguments, stdout=out)
    return out.getvalue()


def test_the_names_are_not_said_to_be_missing():
    """Without names all guards are switched: only the action has to be given."""
    with pytest.raises(CommandError, match=r"required: action$"):
        call_command("switch_guards")


def test_shadow_lasts_until_enforce(armed, clock):
    """Also through a rebuild, as cron does one."""
    said = run("switch_guards", "shadow", "product", "order")
    run("rebuild_filter", "product")
    clock.sleep(state.LEASE_SECONDS)

    assert said.startswith("product: In shadow mode: requests pass")
    assert armed._runtime.is_shadow

    assert run("switch_guards", "enforce", "product") == "product: Enforcing: absent IDs are answered 404.\n"
    clock.sleep(state.LEASE_SECONDS)
    assert not armed._runtime.is_shadow
    assert registry["order"]._runtime.is_shadow


def test_ctrl_c_says_which_guards_were_switched(armed, monkeypatch, from_the_command_line):
    """Interrupted, the command ends with 130, and names the guards of before."""
    current = state.table.current

    def interrupted(name):
        if name == "order":
            raise KeyboardInterrupt
        return current(name)

    monkeypatch.setattr(state.table, "current", interrupted)
    with pytest.raises(CommandError) as raised:
        run("switch_guards", "shadow", "product", "order")

    assert str(raised.value) == "interrupted (switched before: product)"
    assert raised.value.returncode == 130


@pytest.mark.parametrize("before", ["armed", "fenced"])
def test_a_fence_by_hand_lasts_until_somebody_rebuilds(armed, clock, before):
    """Not ``--if-needed``: what somebody disabled, cron does not enable."""
    if before == "fenced":
        state.table.fence("product", "a write was not proved")
    run("switch_guards", "fence", "product")
    clock.sleep(state.LEASE_SECONDS)
    assert armed.verdict(987_654) is Verdict.UNKNOWN
    assert GuardState.objects.get(name="product").reason.endswith(" with switch_guards")

    said = run("rebuild_filter", "--if-needed", "product")
    told = json.loads(run("rebuild_filter", "--if-needed", "--json", "-v", "0", "product"))["guards"]

    assert said.startswith("product stays disabled: fenced by ")
    assert [(each["reasons"], each["held"][:10]) for each in told] == [([], "fenced by ")]
    assert GuardState.objects.get(name="product").status == FENCED
    run("rebuild_filter", "product")
    assert GuardState.objects.get(name="product").status == ARMED


def test_what_cannot_be_switched_is_said(fresh, clock, each_database):
    """A guard without a filter, a name that nobody has, and words that name no switch."""
    assert "rebuild_filter product" in run("switch_guards", "enforce", "product")
    with pytest.raises(CommandError, match="there is no guard 'nobody'"):
        run("switch_guards", "shadow", "nobody")
    with pytest.raises(CommandError, match="invalid choice: 'off'"):
        run("switch_guards", "off")


def test_programs_get_json(armed):
    told = json.loads(run("switch_guards", "shadow", "product", "--json"))

    assert [each["name"] for each in told["guards"]] == ["product"]


def test_a_deleted_state_row_is_fenced_first(armed, clock):
    """Writers add nothing without a row, while others may still answer by it: first all of them learn of the fence."""
    statuses = []
    real = state.table.sleep

    def sleep(seconds: float) -> None:
        statuses.append([row.status for row in GuardState.objects.order_by("name")])
        real(seconds)

    began = clock.now
    state.table.sleep = sleep
    try:
        GuardState.objects.all().delete()
    finally:
        state.table.sleep = real

    assert statuses[0] == [FENCED, FENCED]  # both wait together
    assert statuses[1:] in ([], [[]])  # on SQLite a transaction that changes state rows waits after its COMMIT
    assert clock.now - began == 2 * state.LEASE_SECONDS * len(statuses)
    assert not GuardState.objects.exists()
    assert armed.verdict(987_654) is Verdict.UNKNOWN


def test_a_row_without_a_filter_is_deleted_at_once(each_database, fresh, clock):
    with registered(Product, name="gone"):
        run("switch_guards", "shadow", "gone")
    began = clock.now

    GuardState.objects.get(name="gone").delete()

    assert clock.now == began


def test_a_fence_by_hand_is_not_lost_to_another_change(armed, monkeypatch):
    """A rebuild that announces itself at the same moment, or a write that fences: the reason is still the hand's."""
    real, calls = state.StateTable.swap, []

    def swap(table, seen, **changes):
        if not calls:
            GuardState.objects.filter(name="product").update(version=F("version") + 1, status=FENCED)
        calls.append(seen)
        return real(table, seen, **changes)

    monkeypatch.setattr(state.StateTable, "swap", swap)
    run("switch_guards", "fence", "product")

    assert GuardState.objects.get(name="product").reason.startswith("fenced by ")


def test_a_fence_by_hand_before_the_first_build_lasts_too(each_database, fresh, clock):
    """An older version, which adds no keys, may write rows now; cron must not build a filter that lacks them."""
    said = "product: Fenced: requests pass until rebuild_filter product, without --if-needed.\n"
    assert run("switch_guards", "fence", "product") == said

    assert run("rebuild_filter", "--if-needed", "product").startswith("product stays disabled: fenced by ")
    Product.objects.create(pk=7)
    run("rebuild_filter", "product")
    assert registry["product"].verdict(7) is Verdict.MAYBE
    assert registry["product"].verdict(8) is Verdict.ABSENT


def test_a_fence_by_hand_during_the_first_build_lasts_too(each_database, fresh, clock):
    Rebuild(registry["product"], sleep=clock.sleep).announce()
    run("switch_guards", "fence", "product")

    assert run("rebuild_filter", "--if-needed", "product").startswith("product stays disabled: fenced by ")


def test_a_state_row_is_fenced_before_a_transaction_deletes_it(armed, clock, each_database):
    """After its COMMIT other writers find no row to wait for. On SQLite nobody can fence it, so it stays."""
    with transaction.atomic(using=database.current):
        if each_database == "sqlite":
            with pytest.raises(transaction.TransactionManagementError, match="switch_guards fence"):
                GuardState.objects.get(name="product").delete()
        else:
            began = clock.now
            GuardState.objects.get(name="product").delete()
            assert clock.now - began == 2 * state.LEASE_SECONDS
            assert state.table.current("product").status == FENCED

    assert GuardState.objects.filter(name="product").exists() == (each_database == "sqlite")


def test_a_fenced_state_row_is_deleted_within_a_transaction(armed, each_database):
    run("switch_guards", "fence", "product")
    with transaction.atomic(using=database.current):
        GuardState.objects.filter(name="product").delete()

    assert not GuardState.objects.filter(name="product").exists()


def test_a_router_that_reads_elsewhere_prevents_no_fence(armed, each_database, monkeypatch):
    """The rows are deleted where the router writes, not where it reads."""
    replica = "postgresql" if database.current == "default" else "default"
    monkeypatch.setattr(database.Router, "db_for_read", lambda self, model, **hints: replica)
    fenced, real = [], state.StateTable.fence

    def fence(table, name, reason):
        fenced.append(name)
        real(table, name, reason)

    monkeypatch.setattr(state.StateTable, "fence", fence)
    GuardState.objects.all().delete()

    assert sorted(fenced) == ["order", "product"]


def test_a_manager_deletes_nothing():
    """As Django's: who deletes all rows says ``all()``."""
    assert not hasattr(GuardState.objects, "delete")


def test_a_fence_by_hand_after_the_decision_to_rebuild_lasts_too(armed, clock, monkeypatch):
    """To decide takes long: the whole filter is read."""
    state.table.fence("product", "a write was not proved")

    def then_by_hand(self):
        run("switch_guards", "fence", "product")

    monkeypatch.setattr(Rebuild, "prepare", then_by_hand)
    with pytest.raises(CommandError, match="stays disabled: fenced by") as caught:
        run("rebuild_filter", "--if-needed", "product")

    assert caught.value.returncode == 75
    assert GuardState.objects.get(name="product").status == FENCED
