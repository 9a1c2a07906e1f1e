"""The health view: what each guard would do with a request, and which answer a load balancer gets."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import path

from bloomguard.contrib.health import HealthView
from bloomguard.guards import registry
from bloomguard.state import table as state
from tests.shop.models import Article, Product
from tests.support.guarding import urlconf


@pytest.fixture
def health(settings, fresh, transactional_db):
    """``health(require=...)`` is the response."""

    def get(method="get", **options):
        settings.ROOT_URLCONF = urlconf(path("healthz/", HealthView.as_view(**options)))
        return getattr(Client(raise_request_exception=False), method)("/healthz/")

    return get


@pytest.fixture
def armed(build):
    """Two guards of all have a filter, one for numbers and one for text."""
    Product.objects.create(pk=7)
    Article.objects.create(slug="tea")
    build("product")
    build("article")


def test_each_guard_has_its_state(armed, health):
    """Those with a filter are armed, the others cold; and some passing is passing."""
    found = health().json()

    assert found["status"] == "passing"
    assert found["guards"]["product"] == {"state": "armed", "mode": "enforce"}
    assert found["guards"]["article"]["state"] == "armed"
    assert found["guards"]["order"]["state"] == "cold"
    assert set(found["guards"]) == {guard.name for guard in registry}


def test_the_mode_is_the_one_that_counts(armed, health):
    """A guard that somebody has switched in the admin is shown as it acts, not as it was declared."""
    state.table.set_mode("product", "shadow")
    state.table.forget()

    found = health().json()["guards"]

    assert found["product"] == {"state": "armed", "mode": "shadow"}
    assert found["article"]["mode"] == "enforce"


def test_all_armed_is_armed(build, health):
    """Then nothing passes that does not exist."""
    for guard in registry:
        build(guard.name)

    assert health().json()["status"] == "armed"
    assert health(require="all").status_code == 200


def test_guards_that_are_merely_cold_take_no_site_down(health):
    """Without ``require`` the answer is 200 whatever the guards say, and nobody stores it."""
    response = health()

    assert response.status_code == 200
    assert response.headers["Cache-Control"] == "no-store"
    assert health("head").status_code == 200
    assert health("post").status_code == 405


@pytest.mark.parametrize(
    ("require", "status"),
    [
        (["product"], 200),
        ("product", 200),
        (["product", "order"], 503),
        ("order", 503),
        (["nobody"], 503),
        ("all", 503),
    ],
)
def test_a_site_may_require_some(armed, health, require, status):
    """503 while one of them is not armed, or does not exist."""
    assert health(require=require).status_code == status


def test_a_name_that_no_guard_has_is_shown(armed, health):
    """Otherwise a mistyped one would be a 503 whose body names no reason."""
    found = health(require=["nobody"]).json()

    assert found["status"] == "passing"
    assert found["guards"]["nobody"] == {"state": "not registered", "mode": ""}


def test_a_fenced_guard_passes(armed, health, clock):
    """And is told apart from one that was never built."""
    state.table.fence("product", "for a test")
    clock.now += 5

    assert health().json()["guards"]["product"]["state"] == "fenced"
    assert health(require=["product"]).status_code == 503


def test_without_the_database_nothing_is_armed(armed, health, clock, monkeypatch):
    """What cannot read the state rows says so, and answers."""
    clock.now += 5
    monkeypatch.setattr(state.table, "renew", lambda **kwargs: False)
    response = health()

    assert response.status_code == 200
    assert response.json()["guards"]["product"]["state"] == "lease"


def test_an_error_is_a_state(armed, health, monkeypatch):
    """A guard that cannot work makes no error of the page."""
    monkeypatch.setattr(type(registry["product"]._runtime.active_filter), "answering", lambda self: 1 / 0)

    assert health().json()["guards"]["product"]["state"] == "error"
