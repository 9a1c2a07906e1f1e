"""Hints for development: which guards are cold, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.signals import request_started
from django.test import Client
from django.urls import path

from bloomguard.apps import log_cold_guards
from bloomguard.exceptions import StoreUnavailable
from bloomguard.guards import registry
from bloomguard.state.connection import StateConnection
from bloomguard.state.verdicts import COLD, UNREACHABLE
from bloomguard.stores.file import FileStore
from tests.conftest import forget
from tests.shop import views
from tests.shop.models import Product
from tests.support.guarding import registered, urlconf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def developing(transactional_db, settings, monkeypatch):
    """A process of a developer, no test run."""
    settings.DEBUG = True
    monkeypatch.setattr(StateConnection, "is_temporary", False)
    yield
    request_started.disconnect(log_cold_guards)


def hints(caplog):
    return [record.getMessage() for record in caplog.records if "no filter yet" in record.getMessage()]


def test_a_cold_guard_is_told_of_at_the_first_request(developing, build, caplog):
    """One line a guard, with the command; none for a guard that has a filter, and none at the second request."""
    build("product")
    request_started.connect(log_cold_guards)
    for _ in range(2):
        Client().get("/products/8/")

    said = hints(caplog)
    assert (
        "bloomguard: guard order has no filter yet and passes every request: run manage.py rebuild_filter order" in said
    )
    assert len(said) == len(registry) - 1
    assert not any("product," in each for each in said)


def test_a_filter_that_no_command_can_build_is_told_of_as_such(developing, fresh, settings, caplog):
    """It is in the memory of this process."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}
    request_started.connect(log_cold_guards)
    with registered(Product, name="mine"):
        Client().get("/products/8/")

    do = "let the process of the site call call_command('rebuild_filter', 'mine')"
    assert [each for each in hints(caplog) if "guard mine" in each and each.endswith(do)]


def test_a_store_whose_client_cannot_be_created_fails_no_request(developing, no_cluster, caplog):
    """The command that the hint names says what is wrong with it."""
    request_started.connect(log_cold_guards)
    with registered(Product, name="mine"):
        assert Client().get("/products/8/").status_code == 404
    assert any(each.endswith("run manage.py rebuild_filter mine") for each in hints(caplog))


@pytest.mark.parametrize("case", ["no DEBUG", "a test run", "switched off"])
def test_nothing_is_told_elsewhere(developing, fresh, settings, monkeypatch, caplog, case):
    """Not in production, not in the tests of a project, not if no guard answers anyway."""
    request_started.connect(log_cold_guards)
    if case == "no DEBUG":
        settings.DEBUG = False
    elif case == "a test run":
        monkeypatch.setattr(StateConnection, "is_temporary", True)
    else:
        settings.BLOOMGUARD = {**settings.BLOOMGUARD, "ENABLED": False}
    Client().get("/products/8/")

    assert hints(caplog) == []


def test_no_query_is_sent_when_apps_start(tmp_path):
    """A process with ``DEBUG`` starts without a warning of Django's, and tells at its first request."""
    code = (
        "import django; django.setup(); print('started')\n"
        "from django.core.management import call_command; call_command('migrate', verbosity=0)\n"
        "from django.test import Client; Client(SERVER_NAME='localhost').get('/cities/7/')"
    )
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'example_project'}",
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
        },
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert child.stdout == "started\n", child.stderr
    assert child.stderr.count("run manage.py rebuild_filter") == 3
    assert "run manage.py rebuild_filter city-by-slug" in child.stderr


def test_a_fresh_process_says_that_the_store_does_not_answer(fresh, monkeypatch, clock):
    """It cannot know that there is no filter; an empty store can."""
    guard = registry["product"]
    assert guard._runtime.decide(7) is COLD
    forget()

    def unavailable(self, name):
        raise StoreUnavailable("the server is down")

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "names", unavailable)
        found = [
            guard._runtime.decide(7),
            guard._runtime.decide(7),
            async_to_sync(guard._runtime.adecide)(7),
            *guard._runtime.decide_many([7, 8]),
        ]
    assert set(found) == {UNREACHABLE}

    clock.sleep(2)
    assert guard._runtime.decide(7) is COLD


def messages(identifier):
    return [each for each in run_checks(tags=["bloomguard"]) if each.id == f"bloomguard.{identifier}"]


def test_two_patterns_of_one_name_are_both_named(settings, fresh):
    """One of them has no ID: the advice is not what was done already."""
    settings.ROOT_URLCONF = urlconf(
        path("p/<int:pk>/", views.product, name="same"), path("p/", lambda request: None, name="same")
    )
    with registered(Product, name="mine", routes={"same": "pk"}):
        (found,) = [each for each in messages("W102") if "'mine'" in each.msg]

    assert "/p/<int:pk>/ and /p/ have one name, and for /p/, route 'same' captures nothing" in found.msg
    assert found.hint == "Give each pattern a name of its own, or remove the route: the guard answers at the lookup."


def test_a_closed_rest_route_is_noted_once(settings, fresh):
    """A router makes two patterns for each view, one with a format."""
    routers = pytest.importorskip("rest_framework.routers")
    viewsets = pytest.importorskip("rest_framework.viewsets")
    viewset = type("Products", (viewsets.ReadOnlyModelViewSet,), {"queryset": Product.objects.all()})
    router = routers.DefaultRouter()
    router.register("products", viewset)
    settings.ROOT_URLCONF = urlconf(*router.urls)
    with registered(Product, name="mine", routes=["product-detail"]):
        (found,) = [each for each in messages("I015") if "'mine'" in each.msg]

    assert found.msg.count("/products/") == 2
    assert "format" in found.msg
