"""``BLOOMGUARD = {"ENABLED": False}``: no guard answers, and no row that is written meanwhile is missed."""

from __future__ import annotations

import logging

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext

from bloomguard import get_or_load
from bloomguard.contrib.health import state_of
from bloomguard.guards import registry
from bloomguard.guards.counters import NAMES, counts
from bloomguard.lookups import guarded_lookups
from bloomguard.state.verdicts import Verdict
from bloomguard.wsgi import shield
from tests.shop.models import Product

PATHS = ["/products/8/", "/products-async/8/", "/decorated/8/", "/decorated-async/8/"]


@pytest.fixture
def shop(build):
    """One product, whose guard is armed."""
    Product.objects.create(pk=7)
    build("product")
    return registry["product"]


@pytest.fixture
def off(settings):
    """The switch: ``off()``, ``off(False)`` to switch on again."""

    def switch(is_off=True):
        settings.BLOOMGUARD = {**getattr(settings, "BLOOMGUARD", {}), "ENABLED": not is_off}

    return switch


def get(path):
    """The response, the statements that the request sent, and what was counted."""
    before = counted()
    with CaptureQueriesContext(connection) as sent:
        response = Client().get(path)
    return response, [each["sql"] for each in sent], {name: n - before[name] for name, n in counted().items()}


def counted():
    found = counts.read()
    return {name: found.get(("product", name), 0) for name in NAMES}


@pytest.mark.parametrize("path", PATHS)
def test_no_guard_answers_a_request(shop, off, path):
    """At the route, at the lookup and under ``@guarded`` the view asks the database, and nothing is counted."""
    on, _, _ = get(path)
    off()
    response, _, figures = get(path)

    assert (on.status_code, response.status_code) == (404, 404)
    assert on["Cache-Control"] == "no-store"
    assert not response.has_header("Cache-Control")
    assert set(figures.values()) == {0}
    assert async_to_sync(AsyncClient().get)(path).has_header("Cache-Control") is False


def test_the_statement_is_sent(shop, off):
    """What the guard would have saved is asked."""
    assert get("/products/8/")[1] == []
    off()
    assert len(get("/products/8/")[1]) == 1


def test_no_guard_answers_a_call(shop, off):
    """Neither a verdict, nor many, nor a query in ``guarded_lookups()``, and not what no column can hold."""
    off()

    assert {shop.verdict(value) for value in (7, 8, 2**70, "tea")} == {Verdict.UNKNOWN}
    assert async_to_sync(shop.averdict)(8) is Verdict.UNKNOWN
    assert shop.filter_existing([7, 8]) == async_to_sync(shop.afilter_existing)([7, 8]) == [7, 8]
    assert get_or_load("product", 31_415_926, lambda value: "loaded") == "loaded"  # nobody has cached that one
    with guarded_lookups(), CaptureQueriesContext(connection) as sent:
        assert Product.objects.filter(pk=8).first() is None
    assert len(sent) == 1


def test_a_row_that_exists_is_not_counted(shop, off):
    """Nor is the filter asked for it."""
    for is_off in (False, True):
        off(is_off)
        before = counted()
        with guarded_lookups():
            assert Product.objects.get(pk=7).pk == 7
        assert (counted() == before) is is_off


def test_the_door_stays_shut(shop, off, caplog, settings):
    """No probe is sent, and the log has the reason."""
    from django.core.wsgi import get_wsgi_application

    off()
    application = get_wsgi_application()
    with caplog.at_level(logging.INFO, "bloomguard"):
        assert shield(application) is application

    assert "bloomguard's door stays shut: BLOOMGUARD['ENABLED'] is not True" in caplog.text


def test_rows_written_meanwhile_are_found_later(shop, off):
    """Writes stay in step: however often it is switched, no row is answered 404, and absent ones are again."""
    off()
    row = Product.objects.create(pk=8)
    Product.objects.bulk_create([Product(pk=9)])
    row.name = "changed"
    row.save()
    off(False)

    assert [shop.verdict(pk) for pk in (7, 8, 9, 10)] == [Verdict.MAYBE] * 3 + [Verdict.ABSENT]
    assert [Client().get(f"/products/{pk}/").status_code for pk in (7, 8, 9)] == [200] * 3


def test_fenced_guards_cost_a_write_nothing(shop, off):
    """Switched off and fenced, a write sends what it sends without bloomguard."""
    off()
    shop._runtime.active_filter.table.fence("product", "switched off")
    shop._runtime.active_filter.table.renew(after=shop._runtime.active_filter.table.copy.read_at)
    Product.objects.create(pk=20)  # waits for the fence, once
    with CaptureQueriesContext(connection) as sent:
        Product.objects.create(pk=21)

    assert [each["sql"].split()[0] for each in sent] == ["INSERT"]


def test_it_is_said(shop, off, capsys, settings):
    """By the admin, ``explain_guard``, ``guard_routes``, the health check and ``check --deploy``."""
    off()
    call_command("explain_guard", "/products/8/")
    call_command("guard_routes")
    out = capsys.readouterr().out
    found = {each.id: each.msg for each in run_checks(tags=["bloomguard"], include_deployment_checks=True)}
    staff = Client()
    staff.force_login(User.objects.create_superuser("me"))
    settings.ROOT_URLCONF = "config.urls"

    assert "unknown (disabled): BLOOMGUARD['ENABLED'] is not True, so no guard answers" in out
    assert "BLOOMGUARD['ENABLED'] is not True, so no guard answers now" in out
    assert state_of(shop) == "disabled"
    assert "so no guard answers; writes still update the filters" in found["bloomguard.I039"]
    assert "switched off" in staff.get("/admin/bloomguard/guardstate/").content.decode()


def test_a_plain_check_has_no_note_of_it(off):
    """Whoever switches guards off knows; only a deployment is reminded."""
    off()

    assert "bloomguard.I039" not in [each.id for each in run_checks(tags=["bloomguard"])]


@pytest.mark.parametrize("value", ["False", "0", 0, None])
def test_what_is_no_boolean_is_off_and_said(shop, settings, value):
    """A text from the environment would be true: it switches off, and ``check`` names it."""
    settings.BLOOMGUARD = {**settings.BLOOMGUARD, "ENABLED": value}

    (found,) = [each for each in run_checks(tags=["bloomguard"]) if each.id == "bloomguard.W117"]
    assert repr(value) in found.msg
    assert shop.verdict(8) is Verdict.UNKNOWN
