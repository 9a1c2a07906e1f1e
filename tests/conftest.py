"""Fixtures that every test may ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections

from bloomguard import middleware, rebuild, spot_checks
from bloomguard.counting.counts import counts
from bloomguard.guards import registry
from bloomguard.lookups import scope, select, shadow
from bloomguard.routes import not_found
from bloomguard.stores import mounts, stores
from bloomguard.sync import state
from bloomguard.sync.connection import StateConnection

from . import database, servers
from .patience import be_patient
from .processes import Watch, end, spawn


def pytest_configure(config: pytest.Config) -> None:
    """No process outlives the run."""
    config.pluginmanager.register(Watch(config, servers.stop_all), "bloomguard-processes")


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Counting(StateConnection):
    """Counts the statements, and fails while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []
        self.broken = False

    def execute(self, sql, parameters=()):
        self.statements.append(sql)
        if self.broken:
            raise OperationalError("the database is gone")
        return super().execute(sql, parameters)

    def has_table(self, name):
        if self.broken:
            raise OperationalError("the database is gone")
        return super().has_table(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs on both databases: ask for it, and mark the test ``django_db(databases="__all__")``."""
    database.current = {"sqlite": "default", "postgresql": "postgresql"}[request.param]
    yield request.param
    database.current = "default"


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """No lock is given up because the machine is busy."""
    be_patient()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """No session that a thread of a test left open keeps PostgreSQL from dropping its database."""
    yield
    with django_db_blocker.unblock(), connections["postgresql"].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture(scope="session", autouse=True)
def no_flusher() -> None:
    """No thread of this process sends figures to a store while a test counts commands or connections."""
    counts.begin = lambda: None


@pytest.fixture(autouse=True)
def no_spot_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No absence is held against the database, unless the test says so."""
    monkeypatch.setattr(spot_checks, "drawn", spot_checks.never)


@pytest.fixture(autouse=True)
def nothing_logged() -> None:
    """No error was logged before: each test sees those of its own."""
    for module in (middleware, scope, select, shadow, not_found):
        module._log.forget()


@pytest.fixture(autouse=True)
def a_usual_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known against the disk that the tests run on, be it a container's."""
    monkeypatch.setattr(mounts, "TABLE", Path(os.devnull))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every lease in this process."""
    made = Clock()
    monkeypatch.setattr(state.table, "clock", made)
    monkeypatch.setattr(state.table, "sleep", made.sleep)
    return made


@pytest.fixture
def fresh(tmp_path, settings) -> Iterator[None]:
    """A file store of this test's own, and nothing known of any other."""
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": tmp_path / "filters"}}
        }
    }
    forget()
    yield
    forget()


def forget() -> None:
    """Make this process as if it had just started."""
    stores.reset()
    state.table.forget()
    for guard in registry:
        guard.live.forget()


@pytest.fixture
def build(fresh: None, transactional_db: None, clock: Clock) -> Callable[..., rebuild.Report]:
    """``build("product")`` rebuilds a guard's filter, on the test's clock: its waits take no time."""

    def run(name: str) -> rebuild.Report:
        return rebuild.Rebuild(registry[name], sleep=clock.sleep).run()

    return run


@pytest.fixture
def start(fresh: None, transactional_db: None, settings: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start("rebuild_filter", "product")`` runs a command in a process of its own, on this test's data."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, code: str = "", **environment: str) -> subprocess.Popen[str]:
        root = Path(__file__).resolve().parents[1]
        given = {
            "secret_key": settings.SECRET_KEY,
            "databases": {alias: connections[alias].settings_dict for alias in connections},
            "bloomguard": settings.BLOOMGUARD,
            "current": database.current,
        }
        child = spawn(
            [sys.executable, *(["-c", code] if code else ["-m", "tests.child"]), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            cwd=root,
            env={
                **os.environ,
                "PYTHONPATH": f"{root}:{root / 'example_project'}",
                "DJANGO_SETTINGS_MODULE": "tests.child_settings",
                "BLOOMGUARD_CHILD": json.dumps(given, default=str),
                **environment,
            },
        )
        started.append(child)
        return child

    yield run
    for child in started:
        end(child)
        child.communicate()
