"""Verdicts told: to the log and to the debug toolbar's panel, with digests in place of IDs."""

from __future__ import annotations

import logging

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory

from bloomguard.guards import counters, registry
from bloomguard.guards.counters import digest, log_if_wanted, log_verdict
from bloomguard.process import log_once
from bloomguard.state.verdicts import ABSENT
from tests.shop.models import Product


@pytest.fixture
def product(build, monkeypatch):
    """The guard of product 7, and nobody who hears."""
    log_once.forget()
    before = counters.listeners[:]
    Product.objects.create(pk=7)
    build("product")
    yield registry["product"]
    counters.listeners[:] = before


def records(caplog):
    return [record for record in caplog.records if record.name == "bloomguard.verdicts"]


def test_every_verdict_is_a_record(product, caplog):
    """With the guard, a digest, the verdict and its reason; from the middleware too."""
    with caplog.at_level(logging.DEBUG, logger="bloomguard.verdicts"):
        log_if_wanted()
        log_if_wanted()
        Client().get("/products/123456789/")
        product.filter_existing([7, "tea"])

    said = [(record.guard, record.verdict, record.reason) for record in records(caplog)]
    assert said == [
        ("product", "absent", "absent"),
        ("product", "maybe", "maybe"),
        ("product", "unknown", "unkeyable"),
    ]


def test_no_record_has_an_id(product, caplog):
    """The digest is the same for the same ID of a guard, another one for another guard or secret, none for no ID."""
    with caplog.at_level(logging.DEBUG, logger="bloomguard.verdicts"):
        log_if_wanted()
        product.verdict(123456789)
        product.verdict("123456789")

    assert len({record.key_digest for record in records(caplog)}) == 1
    assert all("123456789" not in str(vars(record)) for record in records(caplog))
    assert digest(product, 1) != digest(product, 2)
    assert digest(product, "tea") == ""


def test_the_digest_is_keyed(product, settings):
    """Who does not know ``SECRET_KEY`` cannot try out IDs."""
    before = digest(product, 7)
    settings.SECRET_KEY = "another"

    assert digest(product, 7) != before


def test_nobody_hears_unless_the_log_wants_it(product):
    """At any other level than DEBUG nothing is called."""
    log_if_wanted()

    assert log_verdict not in counters.listeners


def test_a_listener_that_fails_harms_nobody(product, caplog):
    """It is said once."""
    counters.listeners.append(lambda *heard: 1 / 0)

    assert [product._runtime.decide(123456789) for _ in range(2)] == [ABSENT, ABSENT]
    assert [record.name for record in caplog.records if record.levelno == logging.ERROR] == ["bloomguard"]


@pytest.fixture
def panel(product, settings):
    """The panel of one request, and what it answers."""
    pytest.importorskip("debug_toolbar")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "debug_toolbar"]
    settings.DEBUG_TOOLBAR_PANELS = ["bloomguard.contrib.debug_toolbar.VerdictsPanel"]
    from debug_toolbar.toolbar import DebugToolbar

    DebugToolbar._panel_classes = None

    def visit(view):
        request = RequestFactory().get("/")
        toolbar = DebugToolbar(request, view)
        toolbar.init_store()
        [made] = toolbar.panels
        made.enable_instrumentation()
        response = made.process_request(request)
        made.disable_instrumentation()
        made.generate_stats(request, response)
        return made

    yield visit
    DebugToolbar._panel_classes = None


def test_the_panel_shows_the_verdicts_of_the_request(panel, product):
    """In their order, with what the reasons mean; and no ID."""

    def view(request):
        product.verdict(123456789)
        product.verdict(7)
        return HttpResponse()

    made = panel(view)
    product.verdict(8)  # another request's

    assert made.nav_subtitle == "2 verdicts, 1 absent"
    assert [each["verdict"] for each in made.get_stats()["verdicts"]] == ["absent", "maybe"]
    assert digest(product, 123456789) in made.content
    assert "the filter does not contain it" in made.content
    assert "123456789" not in made.content


def test_a_request_without_verdicts(panel):
    """Nobody was asked."""
    made = panel(lambda request: HttpResponse())

    assert made.nav_subtitle == "0 verdicts, 0 absent"
    assert "No guard was asked" in made.content
