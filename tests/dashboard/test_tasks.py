"""Rebuilds and verifications by a worker: they end in the guard's task and in the admin's log, whatever comes."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import DatabaseError, OperationalError
from django.utils import timezone

from bloomguard.dashboard import operations as tasks
from bloomguard.exceptions import ConfigurationError, RebuildError
from bloomguard.guards import registry
from bloomguard.models import GuardState, GuardTask
from bloomguard.rebuild import rebuild, verify
from tests.conftest import forget
from tests.management.test_verify_filter import insert_unseen
from tests.shop.models import Product
from tests.support.guarding import registered

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]


@pytest.fixture
def user(transactional_db):
    return User.objects.create(username="alice", is_staff=True)


@pytest.fixture
def at_once(monkeypatch, clock):
    """Rebuilds whose waits take no time."""
    monkeypatch.setattr(tasks, "Rebuild", partial(rebuild.Rebuild, sleep=clock.sleep))


def ended():
    """What became of each guard's task, and what the log says."""
    return (
        {task.name: (task.status, task.outcome) for task in GuardTask.objects.all()},
        sorted((entry.object_id, entry.change_message) for entry in LogEntry.objects.all()),
    )


def test_a_rebuild_is_done_told_and_logged(user, at_once):
    """The guards answer afterwards; their tasks and the log say what was built."""
    Product.objects.bulk_create(Product() for _ in range(20))

    for name in ("product", "order"):
        tasks.run("rebuild", name, str(user.pk))

    assert set(GuardState.objects.filter(status="armed").exclude(active="").values_list("name", flat=True)) == {
        "product",
        "order",
    }
    now, log = ended()
    assert now["product"][0] == now["order"][0] == "done"
    assert now["product"][1].startswith("Rebuilt from 20 rows in ")
    assert [name for name, _words in log] == ["order", "product"]
    task = GuardTask.objects.get(name="product")
    assert (task.work, task.done, task.total) == ("rebuild", 20, 20)
    assert LogEntry.objects.first().user == user


def test_a_verification_tells_what_it_found(user, build, at_once):
    """All rows are there; a row that was written past the ORM fences, and a cold guard has nothing to verify."""
    Product.objects.bulk_create(Product() for _ in range(20))
    build("product")
    for name in ("product", "order"):
        tasks.run("verify", name, str(user.pk))
    well, _log = ended()
    insert_unseen("shop_product", id=5_000_000, name="x")
    tasks.run("verify", "product", str(user.pk))

    assert well == {
        "product": ("done", "Verified: all 20 rows are in its filter."),
        "order": ("done", "Nothing was verified: no filter is active."),
    }
    assert ended()[0]["product"] == ("done", "Verified and fenced: 1 of 21 rows are missing from its filter.")
    assert GuardState.objects.get(name="product").status == "fenced"


@pytest.mark.parametrize("work", ["rebuild", "verify"])
def test_one_that_fails_stops_no_other(user, build, at_once, monkeypatch, work):
    """A guard that cannot be worked on fails alone; a name that no guard has fails as well."""
    build("product")
    with registered(Product, name="broken", lookup="nothing"):
        for name in ("broken", "product", "nobody"):
            tasks.run(work, name, str(user.pk))

    now, log = ended()
    assert {name: status for name, (status, _words) in now.items()} == {
        "broken": "failed",
        "product": "done",
        "nobody": "failed",
    }
    assert len(log) == 3


def test_what_the_database_says_is_not_repeated(user, at_once, monkeypatch):
    """Its words may hold a value of a row; the outcome names the kind of error and the command that tells more."""

    def fail(self):
        raise OperationalError("duplicate key (id)=(4242)")

    monkeypatch.setattr(rebuild.Rebuild, "announce", fail)
    monkeypatch.setattr(verify.Verification, "run", fail)
    for work in ("rebuild", "verify"):
        tasks.run(work, "product", str(user.pk))

    now, log = ended()
    assert "4242" not in f"{now}{log}"
    assert log == [
        ("product", "Failed (OperationalError). Run “manage.py rebuild_filter product” to see the reason."),
        ("product", "Failed (OperationalError). Run “manage.py verify_filter product” to see the reason."),
    ]


def test_our_own_reasons_are_told(user, at_once, monkeypatch):
    """Where bloomguard itself refuses, its words are the outcome."""

    def refuse(self):
        raise RebuildError("product: there is no room")

    monkeypatch.setattr(rebuild.Rebuild, "announce", refuse)
    tasks.run("rebuild", "product", str(user.pk))

    assert ended()[0]["product"] == ("failed", "Failed: product: there is no room")


@pytest.mark.parametrize("work", ["rebuild", "verify"])
def test_a_filter_in_the_memory_of_the_site_is_no_work_for_a_worker(user, build, settings, work):
    """One that the worker built in its own memory would make the site's useless."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}
    forget()
    build("product")

    tasks.run(work, "product", str(user.pk))

    status, words = ended()[0]["product"]
    assert status == "failed"
    assert words.endswith(f"which has to call call_command('{work}_filter', 'product') itself")
    assert GuardState.objects.get(name="product").status == "armed"


@pytest.mark.parametrize("surprise", [MemoryError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(("work", "cls"), [("rebuild", rebuild.Rebuild), ("verify", verify.Verification)])
def test_a_worker_that_is_hit_by_surprise_says_so_and_raises(user, monkeypatch, work, cls, surprise):
    """No task is left running because of an error that nobody thought of; the framework sees the error as well."""

    def fail(self):
        raise surprise

    monkeypatch.setattr(cls, "run", fail)
    with pytest.raises(surprise):
        tasks.run(work, "product", str(user.pk))

    why = f"Failed ({surprise.__name__}). Run “manage.py {work}_filter product” to see the reason."
    assert ended() == ({"product": ("failed", why)}, [("product", why)])


def test_a_user_who_is_gone_is_not_logged(user, at_once):
    """The work is done all the same."""
    gone = str(user.pk)
    user.delete()

    tasks.run("rebuild", "product", gone)

    assert ended()[0]["product"][0] == "done"
    assert LogEntry.objects.count() == 0


def test_work_is_asked_for_once(user, monkeypatch):
    """A guard that a worker is at, or that waits for one, is not queued again, until it is lost."""
    asked = []
    monkeypatch.setattr(tasks, "queue", lambda: lambda *given: asked.append(given))
    product, order = registry["product"], registry["order"]

    first = tasks.queue_work("rebuild", [product], user)
    second = tasks.queue_work("verify", [product, order], user)
    third = tasks.queue_work("verify", [product], user)
    GuardTask.objects.update(seen_at=timezone.now() - timedelta(hours=1))
    fourth = tasks.queue_work("verify", [product], user)

    assert (first, second, third, fourth) == ([product], [order], [], [product])
    pk = str(user.pk)
    assert asked == [("rebuild", "product", pk), ("verify", "order", pk), ("verify", "product", pk)]


def test_a_queue_that_does_not_answer_leaves_nothing_waiting(user, monkeypatch):
    """If the work cannot be queued, no task says that it is."""

    def fail(*given):
        raise DatabaseError

    monkeypatch.setattr(tasks, "queue", lambda: fail)
    with pytest.raises(DatabaseError):
        tasks.queue_work("rebuild", [registry["product"]], user)

    assert not any(map(tasks.is_under_way, GuardTask.objects.all()))


def test_a_queue_that_fails_in_the_middle_has_what_the_log_says(user, monkeypatch):
    """Each guard's task is one of its own: what was queued before the error will be done."""
    asked = []

    def fail_second(work, name, user_pk):
        if asked:
            raise DatabaseError
        asked.append(name)

    monkeypatch.setattr(tasks, "queue", lambda: fail_second)
    with pytest.raises(DatabaseError):
        tasks.queue_work("rebuild", [registry["product"], registry["order"]], user)

    assert asked == [task.name for task in GuardTask.objects.all() if tasks.is_under_way(task)] == ["product"]
    assert ended()[1] == [("product", "Requested: Rebuild.")]


def test_without_workers_nothing_is_asked_for(user, monkeypatch):
    """Django's own backends run a task within the request or never: they count as none."""
    with pytest.raises(ConfigurationError):
        tasks.queue_work("rebuild", [registry["product"]], user)

    assert tasks.queue() is None
    assert GuardTask.objects.count() == 0
