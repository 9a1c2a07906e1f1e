"""The admin page with Django's task framework: a worker does what was asked for."""

from __future__ import annotations

from functools import partial
from importlib import reload

import django
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from bloomguard.dashboard import operations as tasks
from bloomguard.models import GuardState, GuardTask
from bloomguard.rebuild import rebuild
from tests.shop.models import Product

from .test_admin import OPERATE, PAGE, post

if django.VERSION < (6, 0):
    pytest.skip("Django 5.2 has no task framework", allow_module_level=True)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]

IMMEDIATE = "django.tasks.backends.immediate.ImmediateBackend"
DUMMY = "django.tasks.backends.dummy.DummyBackend"
OURS = "tests.support.workers.Workers"


@pytest.fixture
def workers(settings, monkeypatch):
    """The project has workers; returns their class."""
    from tests.support.workers import Workers

    configure(settings, {"default": {"BACKEND": OURS}})
    monkeypatch.setattr(Workers, "waiting", [])
    return Workers


def configure(settings, backends):
    """``TASKS`` as if the process had started with it."""
    settings.TASKS = backends
    reload(tasks)


@pytest.fixture(autouse=True)
def jobs_anew(settings):
    yield
    settings.TASKS = {"default": {"BACKEND": IMMEDIATE}}
    reload(tasks)


@pytest.mark.parametrize(
    "backends",
    [
        {"default": {"BACKEND": IMMEDIATE}},
        {"default": {"BACKEND": DUMMY}},
        {"other": {"BACKEND": OURS}},
        {"default": {"BACKEND": OURS, "QUEUES": ["mail"]}},
        {"default": {"BACKEND": "nothing.at.all"}},
    ],
)
def test_what_has_no_worker_is_no_queue(settings, backends):
    """Backends without workers, none, one without the default queue, or a mistake: the page gives the command."""
    configure(settings, backends)

    assert tasks.queue() is None


def test_a_worker_rebuilds_what_was_asked_for(workers, settings, monkeypatch, clock):
    """The POST only queues; the worker builds; page, task and log tell of it on the way."""
    settings.ROOT_URLCONF = "config.urls"
    monkeypatch.setattr(tasks, "Rebuild", partial(rebuild.Rebuild, sleep=clock.sleep))
    Product.objects.bulk_create(Product() for _ in range(20))
    client = Client()
    client.force_login(User.objects.create_superuser("alice"))

    answer = post(client, OPERATE, action="rebuild", guard="product")

    assert answer["Location"] == PAGE
    assert not GuardState.objects.exists()
    assert "1 guard is queued for a worker." in (page := client.get(PAGE).content.decode())
    assert "Rebuild: waiting for a worker" in page
    post(client, OPERATE, action="verify", guard="product")
    assert "Guard product: a task for it is already queued or running." in client.get(PAGE).content.decode()
    workers.work()
    assert GuardState.objects.get(name="product").rows == 20
    assert GuardTask.objects.get(name="product").status == "done"
    assert [entry.change_message.partition(" ")[0] for entry in LogEntry.objects.order_by("pk")] == [
        "Requested:",
        "Rebuilt",
    ]
