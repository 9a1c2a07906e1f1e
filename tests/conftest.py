"""Fixtures that every test may ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from django.contrib.contenttypes.management import create_contenttypes
from django.db import OperationalError, connections, router
from django.db.models.signals import post_migrate

from bloomguard.guards import registry, spot_checks
from bloomguard.guards.counters import counts
from bloomguard.guards.doubts import strayed
from bloomguard.guards.places import schemas
from bloomguard.metrics import flusher
from bloomguard.models import GuardState
from bloomguard.process import log_once
from bloomguard.rebuild import rebuild, refusals, standby
from bloomguard.rebuild.verify import PublishCheck
from bloomguard.routes import table as routes
from bloomguard.state import table as state
from bloomguard.state.connection import StateConnection
from bloomguard.stores import disk, stores
from bloomguard.writes import isolation
from tests.support import database, flush, servers
from tests.support.patience import be_patient
from tests.support.processes import Watch, end, spawn


def pytest_configure(config: pytest.Config) -> None:
    """No process outlives the run, and no file waits for a disk."""
    servers.stay_in_memory()
    # The tests' router names another database in each test, so it is asked each time.
    StateConnection.asked_once = StateConnection.alias  # type: ignore[attr-defined]
    StateConnection.alias = property(lambda self: router.db_for_write(GuardState))  # type: ignore[assignment]
    # The connection to the state rows stays open, as on a site.
    StateConnection.in_test_run = StateConnection.is_temporary  # type: ignore[attr-defined]
    StateConnection.is_temporary = False  # type: ignore[assignment]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile all sources, each again
    config.pluginmanager.register(Watch(config, servers.stop_all), "bloomguard-processes")


#: What takes longest comes first, so that at the end no process of the run works alone.
LONGEST = (
    "tests/fuzz/",
    "tests/transparency/test_transparency.py",
    "tests/scopes/test_scopes.py",
    "tests/lookups/test_differential.py",
    "tests/writes/test_statements.py",
    "tests/writes/test_transactions.py",
    "tests/simulation/test_simulation.py",
    "tests/newcomer/",
    "tests/soak/",
    "tests/site/test_hostile.py",
    "tests/writes/test_idle_statements.py",
    "tests/writes/test_twins.py",
    "tests/writes/test_unknown_guards.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first; else everything stays as it is."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: next((ranks[name] for name in LONGEST if item.nodeid.startswith(name)), len(LONGEST)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Each test has a context of its own.

    Django makes a context variable each time a test overrides caches or storages. All of them are copied whenever a
    coroutine calls a thread or comes back, which took 10 ms after some thousand tests.
    """
    runner: Any = item.config.pluginmanager.get_plugin("runner")
    found: bool | None = copy_context().run(runner.pytest_runtest_protocol, item, nextitem)
    return found


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Counting(StateConnection):
    """Counts the statements, fails while it is told to, and leaves no connection open unless a test says so."""

    is_temporary = True

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


@pytest.fixture(params=database.ALL)
def each_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs on each database: ask for it, and mark the test ``django_db(databases="__all__")``."""
    with database.on(request.param):
        yield request.param


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """No lock is given up because the machine is busy."""
    be_patient()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Empty databases are empty: their content types and permissions are not made anew after each test.

    And no session that a thread of a test left open keeps PostgreSQL from dropping its database.
    """
    post_migrate.disconnect(create_contenttypes)
    post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")
    flush.replace_djangos()
    yield
    flush.flush.close()
    for connection in connections.all():
        if connection.vendor == "postgresql":
            with django_db_blocker.unblock(), connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )


@pytest.fixture(scope="session", autouse=True)
def no_flusher() -> None:
    """No thread of this process sends figures to a store while a test counts commands or connections.

    Nor after a test that overrides ``INSTALLED_APPS``, for which Django calls ``ready()`` again.
    """
    counts.begin = flusher.start = lambda: None  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def no_spot_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No absence is held against the database, unless the test says so; and then none was a moment ago.

    The process's own object keeps the time of its last check, which may be another test's clock.
    """
    monkeypatch.setattr(spot_checks, "drawn", spot_checks.never)
    monkeypatch.setattr(spot_checks, "checks", spot_checks.SpotChecks())


@pytest.fixture(autouse=True)
def nothing_logged() -> None:
    """No error was logged before: each test sees those of its own."""
    log_once.forget()


@pytest.fixture(autouse=True)
def one_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The door knows that all requests read one database, although the tests' router allows each table in all."""
    monkeypatch.setattr(routes, "is_in_one_database", lambda model: True)


@pytest.fixture(autouse=True)
def a_usual_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known against the disk that the tests run on, be it a container's."""
    monkeypatch.setattr(disk, "MOUNTS", Path(os.devnull))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every lease in this process."""
    made = Clock()
    monkeypatch.setattr(state.table, "clock", made)
    monkeypatch.setattr(state.table, "sleep", made.sleep)
    return made


#: Folders that build thousands of filters of a few rows, and whose subject is not the rebuild.
_BUILD_QUICKLY = {Path(__file__).parent / name for name in ("door", "lookups", "routes", "state", "writes")}


@pytest.fixture(autouse=True)
def quick_builds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a build asks of the database before it begins, and proves at its end, takes a third of its time.

    Both are tested in ``tests/rebuild``.
    """
    if _BUILD_QUICKLY.isdisjoint(request.path.parents):
        return
    monkeypatch.setattr(refusals, "database_refusals", lambda *arguments: [])
    monkeypatch.setattr(PublishCheck, "verify_rows", lambda *arguments: 0)
    monkeypatch.setattr(rebuild, "check_error_rate", lambda *arguments: 0.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuilds wait for no other process: nobody else writes here."""
    for module in (rebuild, standby):
        monkeypatch.setattr(module, "EXPIRY_SECONDS", 0.0)


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


@pytest.fixture
def no_cluster(fresh, settings) -> None:
    """The default store takes its client from a cache of a Cluster; to make one needs its servers, which are down."""
    settings.CACHES = {
        "shared": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:1/0",
            "OPTIONS": {
                "REDIS_CLIENT_CLASS": "redis.cluster.RedisCluster",
                "REDIS_CLIENT_KWARGS": {"host": "127.0.0.1", "port": 1},
            },
        }
    }
    store = {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"cache": "shared"}}
    settings.BLOOMGUARD = {"STORES": {"default": store}}


def forget() -> None:
    """Make this process as if it had just started."""
    stores.reset()
    state.table.forget()
    schemas.forget()
    isolation._changed.clear()  # other tests set levels
    strayed.databases = {alias: first for alias, first in strayed.databases.items() if first is not None}
    for guard in registry:
        guard._runtime.active_filter.forget()


@pytest.fixture
def build(fresh: None, transactional_db: None, clock: Clock) -> Callable[..., rebuild.Report]:
    """``build("product")`` rebuilds a guard's filter, on the test's clock, with a short measurement."""

    def run(name: str) -> rebuild.Report:
        return rebuild.Rebuild(registry[name], sleep=clock.sleep, probes=1_000).run()

    return run


@pytest.fixture
def shop(build: Callable[..., rebuild.Report]) -> None:
    """Product 7 exists, and the filter is built."""
    from tests.shop.models import Product  # not installed in the sites of some folders

    Product.objects.create(pk=7)
    build("product")


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
            [sys.executable, *(["-c", code] if code else ["-m", "tests.support.child"]), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            cwd=root,
            env={
                **os.environ,
                "PYTHONPATH": f"{root}:{root / 'example_project'}",
                "DJANGO_SETTINGS_MODULE": "tests.support.child_settings",
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
