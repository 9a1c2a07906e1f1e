"""Sites with a schema for each tenant, and with shards: each runs its own tests, in a process with its own settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support import servers
from tests.support.mariadb import MariaDB, is_missing
from tests.support.processes import end, spawn

ROOT = Path(__file__).resolve().parents[2]
SHARDS = ["default", *(f"shard{number}" for number in range(1, 8))]


@contextmanager
def database(name: str) -> Iterator[dict[str, str]]:
    """A PostgreSQL database of this test's own."""
    place = servers.postgresql()
    with psycopg.connect(
        host=place["HOST"], port=place["PORT"] or None, dbname=place["NAME"], user=place["USER"], autocommit=True
    ) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield {**place, "NAME": name}
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def run(site: str, tmp_path: Path, *arguments: str) -> None:
    """Run the tests in ``tests/scopes/SITE.py``, with the settings of that site."""
    with database(f"scopes_{os.getpid()}") as place:
        _run(site, {"folder": str(tmp_path), "postgresql": place}, *arguments)


def _run(site: str, settings: dict[str, object], *arguments: str) -> None:
    child = spawn(
        [
            *(sys.executable, "-m", "pytest", f"tests/scopes/{site}.py", "-q", "-ra", "-c", "/dev/null"),
            *("--rootdir", str(ROOT), "--confcutdir", str(ROOT / "tests/scopes"), "-p", "no:cacheprovider"),
            *("-p", "no:django", "-p", "no:xdist", "-p", "no:bloomguard", "-o", "markers=slow", *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": f"tests.scopes.{site}_settings",
            "BLOOMGUARD_SITE": json.dumps(settings),
        },
    )
    try:
        said, _ = child.communicate(timeout=1_500)
    finally:
        end(child)
    print(said)
    assert child.returncode == 0, said


def test_tenants(tmp_path):
    """A schema for each tenant, by django-tenants."""
    run("tenants", tmp_path, "-m", "not slow")


def test_tenants_with_filters_on_a_server(tmp_path):
    """The marks of the scopes are there before any process opens the filter."""
    valkey = servers.Valkey()
    with database(f"scopes_{os.getpid()}") as place:
        given = {"folder": str(tmp_path), "postgresql": place, "redis": f"redis://127.0.0.1:{valkey.port}/0"}
        _run("tenants", given, "-m", "not slow", "-k", "own_rows or every_write or newer or verify")


def test_shards(tmp_path):
    """Eight databases and a router."""
    run("shards", tmp_path, "-m", "not slow")


def test_shards_on_postgresql(tmp_path):
    """A filter knows which table of a database it was built from."""
    with ExitStack() as stack:
        made = {name: stack.enter_context(database(f"scopes_{name}_{os.getpid()}")) for name in SHARDS}
        _run("shards", {"folder": str(tmp_path), "shards": made}, "-m", "not slow", "-k", "not newer")


def test_shards_on_mariadb(tmp_path):
    """Databases of one server are as different as those of several; nothing is forgotten."""
    if is_missing():
        pytest.skip(is_missing())
    server = MariaDB("--innodb-flush-log-at-trx-commit=0")
    try:
        made = {name: server.database(name) for name in SHARDS}
        _run("shards", {"folder": str(tmp_path), "shards": made}, "-m", "not slow", "-k", "not newer and not forgotten")
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.timeout(1_600)
@pytest.mark.parametrize("site", ["tenants", "shards"])
def test_in_full_length(site, tmp_path):
    """50 tenants, or 8 shards, 1,000 requests to each, while all are written to and a filter is built."""
    run(site, tmp_path, "-m", "slow", "-s")
