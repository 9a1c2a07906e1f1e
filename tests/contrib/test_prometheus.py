"""Figures for Prometheus, of one process and of several."""

from __future__ import annotations

import _thread
import asyncio
import threading

import pytest

from bloomguard.contrib import health
from bloomguard.guards import registry as guards
from bloomguard.guards.counters import counts
from bloomguard.metrics import Flusher
from bloomguard.process import start_thread
from bloomguard.state import table as state
from tests.shop.models import Product

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bloomguard.contrib.prometheus.metrics import Metrics, StateCollector, install


def samples(text):
    """Name and the labels' values, sorted by the labels -> value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("bloomguard") and not sample.name.endswith("_created")
    }


def exported(registry):
    return samples(generate_latest(registry).decode())


@pytest.fixture
def shop(shop):
    """Nothing is counted yet."""
    counts.forget()


def test_the_counters_follow_the_counts(shop, monkeypatch):
    """Each flush adds what is new; verdicts have their reason, and what is blocked is avoided as well."""
    registry = CollectorRegistry()
    flusher = Flusher()
    flusher.listeners.append(Metrics(registry).update)
    for name, times in {
        "absent": 4, "maybe": 2, "cold": 1, "blocked": 3, "query avoided": 1, "false positive": 1
    }.items():  # fmt: skip
        for _ in range(times):
            counts.of("product")[name]()
    counts.of("product")._samples.extend([2_000_000, 1_000_000])
    flusher.flush()
    flusher.flush()
    counts.of("product")["maybe"]()
    flusher.flush()

    found = exported(registry)
    for guard in guards:  # there from the start: what begins with its first count shows no increase
        assert found.pop(("bloomguard_verdicts_total", guard.name, "false absence", "unknown")) == 0
    assert found == {
        ("bloomguard_verdicts_total", "product", "absent", "absent"): 4,
        ("bloomguard_verdicts_total", "product", "maybe", "maybe"): 3,
        ("bloomguard_verdicts_total", "product", "cold", "unknown"): 1,
        ("bloomguard_blocked_requests_total", "product"): 3,
        ("bloomguard_avoided_lookups_total", "product"): 4,
        ("bloomguard_false_positives_total", "product"): 1,
        ("bloomguard_timed_checks_total", "product"): 2,
        ("bloomguard_timed_check_seconds_total", "product"): pytest.approx(0.003),
    }


def test_the_gauge_says_which_guards_are_armed(shop, clock):
    """1 with a filter, 0 without one or fenced; nothing is said while the database does not answer."""
    registry = CollectorRegistry()
    registry.register(StateCollector())
    name = "bloomguard_guard_armed"

    assert exported(registry) == {(name, guard.name): float(guard.name == "product") for guard in guards}

    state.table.fence("product", "for a test")
    clock.sleep(1)
    assert exported(registry)[name, "product"] == 0


def test_a_database_that_is_away_breaks_no_scrape(shop, clock, monkeypatch):
    """The other metrics of the process are exported as ever."""
    from django.db import OperationalError

    def gone(*args):
        raise OperationalError("the database is gone")

    registry = CollectorRegistry()
    registry.register(StateCollector())
    clock.sleep(1)
    monkeypatch.setattr(state.table.connection, "execute", gone)
    monkeypatch.setattr(state.table.connection, "has_table", gone)

    assert exported(registry) == {}


def test_an_asgi_app_gets_the_same(shop, clock, monkeypatch):
    """It collects on the event loop, which waits for the database only for a moment: without an answer, no sample."""
    registry, began, end = CollectorRegistry(), threading.Event(), threading.Event()
    registry.register(StateCollector())
    execute = state.table.connection.execute

    async def scrape():
        clock.sleep(1)
        return exported(registry)

    def hang(*args):
        began.set()
        assert end.wait(60)
        return execute(*args)

    asking = []
    monkeypatch.setattr(health, "start_thread", lambda run: asking.append(start_thread(run)) or asking[-1])
    monkeypatch.setattr(health, "_LOOP_SECONDS", 60)
    assert asyncio.run(scrape()) == {
        ("bloomguard_guard_armed", guard.name): float(guard.name == "product") for guard in guards
    }

    monkeypatch.setattr(state.table.connection, "execute", hang)
    monkeypatch.setattr(health, "_LOOP_SECONDS", 0.01)
    try:
        assert asyncio.run(scrape()) == {}
        assert began.wait(60)
    finally:
        end.set()
    assert all(ended.wait(60) for ended in asking)
    assert len(asking) == 2, "one thread for all guards: so the loop waits once, however many there are"


def test_an_asgi_app_gets_no_samples_where_no_thread_can_be_started(shop, monkeypatch):
    """At the limit of threads too, the state of a guard is never an error."""
    registry = CollectorRegistry()
    registry.register(StateCollector())

    def refuse(run, given):
        raise RuntimeError("can't start new thread")

    async def scrape():
        monkeypatch.setattr(_thread, "start_new_thread", refuse)
        return exported(registry)

    assert asyncio.run(scrape()) == {}


def test_registering_asks_nothing(django_assert_num_queries, monkeypatch):
    """Nothing is asked of the database before the first scrape: apps register while Django starts."""
    from bloomguard.contrib.prometheus import metrics as module

    listeners = []
    monkeypatch.setattr(module.flusher, "listeners", listeners)
    monkeypatch.setattr(state.table.connection, "execute", None)
    metrics = install(CollectorRegistry())

    assert listeners == [metrics.update]


WORKER = """
import os, sys
import django
from django.conf import settings
settings.INSTALLED_APPS.append("bloomguard.contrib.prometheus")
django.setup()
from django.test import Client
for number in range(20):
    assert Client(headers={"host": "localhost"}).get("/products/%d/" % (10 + number)).status_code == 404
from bloomguard.metrics import flusher
flusher.flush()
from prometheus_client import CollectorRegistry, REGISTRY, generate_latest
if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    from prometheus_client.multiprocess import MultiProcessCollector
    from bloomguard.contrib.prometheus.metrics import StateCollector
    REGISTRY = CollectorRegistry()
    MultiProcessCollector(REGISTRY)
    REGISTRY.register(StateCollector())
print(generate_latest(REGISTRY).decode())
"""


@pytest.mark.parametrize("processes", [1, 3])
def test_the_app_is_all_that_it_takes(build, settings, clock, start, tmp_path, processes):
    """With the app installed the figures are in the project's own registry; of several processes they add up."""
    settings.ALLOWED_HOSTS = ["testserver"]
    Product.objects.create(pk=7)
    build("product")
    given = {}
    if processes > 1:
        folder = tmp_path / "metrics"
        folder.mkdir()
        given = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    for _ in range(processes):
        child = start(code=WORKER, **given)
        text, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors

    found = samples(text)
    assert found["bloomguard_blocked_requests_total", "product"] == 20 * processes
    assert found["bloomguard_verdicts_total", "product", "absent", "absent"] == 20 * processes
    assert found["bloomguard_guard_armed", "product"] == 1


def test_the_app_may_be_readied_again(monkeypatch):
    """``override_settings(INSTALLED_APPS=...)`` does so in a project's test."""
    from bloomguard.contrib.prometheus import metrics as module
    from bloomguard.contrib.prometheus.apps import PrometheusConfig

    installed = []
    monkeypatch.setattr(module, "install", lambda: installed.append(True))
    monkeypatch.setattr(PrometheusConfig, "_is_installed", False)
    for _ in range(2):
        PrometheusConfig("bloomguard.contrib.prometheus", module).ready()

    assert installed == [True]
