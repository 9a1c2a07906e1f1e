"""What the page on monitoring shows does what it says."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.dispatch import Signal

from bloomguard import signals
from bloomguard.guards.counters import NAMES, counts
from bloomguard.metrics import Flusher

PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
SETTINGS = "INSTALLED_APPS"


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def city(settings):
    """Some figures of the last minute, in a store in memory."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}
    counts.forget()
    read = {"absent": 9, "blocked": 9, "query avoided": 1, "maybe": 3, "lease": 2, "false positive": 1}
    for name, times in read.items():
        for _ in range(times):
            counts.of("city")[name]()
    Flusher().flush()


def test_the_python_blocks_run(city):
    """Reading figures, and a receiver of a signal."""
    namespace = {}
    try:
        for block in blocks("python"):
            if not block.startswith(SETTINGS) and "prometheus" not in block:
                exec(block, namespace)
        found = namespace["last_hour"]
        assert len(found["blocked"]) == 61
        assert (found.total("avoided"), found.by_reason("unknown")) == (10, {"lease": 2})
        assert signals.guard_fenced.receivers
    finally:
        signals.guard_fenced.disconnect(namespace["wake_somebody"])


@pytest.mark.django_db
def test_the_gauge_of_several_processes(tmp_path, monkeypatch):
    """The registry that the page makes can be exported."""
    prometheus_client = pytest.importorskip("prometheus_client")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    [block] = [block for block in blocks("python") if "prometheus_client" in block]
    namespace = {}
    exec(block, namespace)

    assert b"bloomguard_guard_armed" in prometheus_client.generate_latest(namespace["registry"])


def test_the_commands_run(city):
    """Every command that the page shows, with the head of its table as it stands there."""
    [console] = blocks("console")
    command, head, *_ = console.splitlines()
    out = io.StringIO()
    call_command(*command.removeprefix("$ python manage.py ").split(), stdout=OutputWrapper(out))

    assert re.split("  +", out.getvalue().splitlines()[0].strip()) == re.split("  +", head)


def test_every_signal_stands_on_the_page():
    """With what it brings."""
    there = {name for name, each in vars(signals).items() if isinstance(each, Signal)}

    assert set(re.findall(r"^\| `(\w+)` \| [^|]+ \| `(?:guard|name)`", PAGE, re.MULTILINE)) == there


@pytest.mark.django_db
def test_the_metrics_of_the_page_are_exported(city):
    """Prometheus' metrics, in the table and in the alerts, have the names that are exported, and all do."""
    prometheus_client = pytest.importorskip("prometheus_client")
    from bloomguard.contrib.prometheus.metrics import Metrics, StateCollector

    registry = prometheus_client.CollectorRegistry()
    Metrics(registry).update({("city", name): 1 for name in NAMES})
    exported = {sample.name for family in registry.collect() for sample in family.samples}
    exported.add(next(iter(StateCollector().collect())).name)

    assert {name for name in exported if not name.endswith("_created")} == set(re.findall(r"bloomguard_\w+", PAGE))
