"""Figures for OpenTelemetry, through its own SDK."""

from __future__ import annotations

import pytest

from bloomguard.guards import registry
from bloomguard.guards.counters import counts
from bloomguard.state import table as state
from tests.shop.models import Product

pytest.importorskip("opentelemetry.sdk.metrics")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from bloomguard.contrib.opentelemetry.metrics import install


@pytest.fixture
def collect(build):
    """``collect()``: name and attributes -> value, as an exporter would have them."""
    Product.objects.create(pk=7)
    build("product")
    counts.forget()
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    install(provider)

    def run():
        data = reader.get_metrics_data()
        return {
            (metric.name, *point.attributes.values()): point.value
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    yield run
    provider.shutdown()


def test_everything_is_read_when_it_is_collected(collect):
    """Sums since the process began, by guard; verdicts by what was said and why."""
    for name, times in {
        "absent": 4, "maybe": 2, "cold": 1, "blocked": 3, "query avoided": 1, "false positive": 1
    }.items():  # fmt: skip
        for _ in range(times):
            counts.of("product")[name]()
    counts.of("product")._samples.extend([2_000, 1_000])
    collect()
    counts.of("product")["maybe"]()

    found = {key: value for key, value in collect().items() if key[0] != "bloomguard.guard.armed"}
    assert found == {
        ("bloomguard.verdicts", "product", "absent", "absent"): 4,
        ("bloomguard.verdicts", "product", "maybe", "maybe"): 3,
        ("bloomguard.verdicts", "product", "unknown", "cold"): 1,
        ("bloomguard.requests.blocked", "product"): 3,
        ("bloomguard.lookups.avoided", "product"): 4,
        ("bloomguard.false_positives", "product"): 1,
        ("bloomguard.checks.timed", "product"): 2,
        ("bloomguard.checks.duration", "product"): 3,
    }


def test_the_gauge_says_which_guards_are_armed(collect, clock, monkeypatch):
    """1 with a filter, 0 without one or fenced; nothing while the database does not answer."""
    name = "bloomguard.guard.armed"
    assert collect() == {(name, guard.name): int(guard.name == "product") for guard in registry}

    state.table.fence("product", "for a test")
    clock.sleep(1)
    assert collect()[name, "product"] == 0

    clock.sleep(1)
    monkeypatch.setattr(state.table, "renew", lambda: False)
    assert collect() == {}


APP = """
import django
from django.conf import settings
settings.INSTALLED_APPS.append("bloomguard.contrib.opentelemetry")
django.setup()
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
from bloomguard.guards import registry
registry["product"].verdict(7)
print(sorted(m.name for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics))
"""


def test_the_app_is_all_that_it_takes(start):
    """With the app installed, the provider that the project sets, even later, has the instruments."""
    child = start(code=APP)
    text, errors = child.communicate(timeout=60)

    assert child.returncode == 0, errors
    assert "'bloomguard.guard.armed', 'bloomguard.verdicts'" in text
