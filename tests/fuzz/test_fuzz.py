"""Random writes of every kind, with guards and without bloomguard: no row is denied, and nothing else comes of a write.

Each test runs ``python -m tests.fuzz`` in a process of its own: its models and guards are nobody else's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.mariadb import is_missing
from tests.support.processes import end, spawn

from .broken import BROKEN, OF_SOME_DATABASES, RARE

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(1200)]

DATABASES = ["sqlite", "postgresql", "mariadb"]
#: What nothing is proved without.
EVERYTHING = ("denied", "done", "failed", "checks", "looked up", "built", "went back", "restored", "dropped", "moved")
#: Where bloomguard discards the keys of deleted rows, that is tried too.
DISCARDING = ("sqlite", "postgresql")


def fuzz(*arguments: object) -> dict[str, Any]:
    if "mariadb" in arguments and is_missing():
        pytest.skip(is_missing())
    # Without coverage, which would take most of the time.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-m", "tests.fuzz", *map(str, arguments)]
    child = spawn(command, env=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, errors = child.communicate()
    finally:
        end(child)
    lines = said.splitlines()
    assert [line[:1] for line in lines[-1:]] == ["{"], errors
    found: dict[str, Any] = json.loads(lines[-1])
    assert found["wrong"] is None, f"{' '.join(command[1:])}\n{said}\n{errors}"
    return found


def hold(found: dict[str, Any], steps: int, database: str) -> None:
    """Everything was tried, and most of the time the guards answered."""
    assert found["steps"] >= steps
    assert [name for name in EVERYTHING if not found.get(name)] == []
    assert bool(found.get("discarded")) == (database in DISCARDING)
    # On MariaDB more writes fence: there an UPDATE returns no rows.
    assert found["denied"] * (2.0 if database == "mariadb" else 1.0) > found["passed"]


@pytest.mark.parametrize(("database", "steps"), [("sqlite", 5_000), ("postgresql", 3_000), ("mariadb", 2_000)])
def test_no_row_is_denied_and_no_write_comes_out_otherwise(database, steps):
    """Every committed row passes in two processes, and rows, results and errors are those of a twin without guards."""
    hold(fuzz("--database", database, "--steps", steps), steps, database)


def test_a_seed_is_a_program():
    """The same seed does the same again."""
    one, other = (fuzz("--seed", 5, "--length", 60) for _ in range(2))

    assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_every_broken_rule_is_noticed():
    """The fuzz fails if any one rule of the package is broken, as people break it."""
    found = fuzz("--broken", *sorted(BROKEN.keys() - RARE))["broken"]

    assert sorted(found) == sorted(BROKEN.keys() - RARE)
    assert [name for name, noticed in found.items() if noticed is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_every_broken_rule_is_noticed_within_10_000_steps(database):
    """Also those that take thousands of steps, and on every database that has what they are about."""
    rules = sorted(BROKEN if database in DISCARDING else BROKEN.keys() - OF_SOME_DATABASES)
    found = fuzz("--broken", *rules, "--database", database)["broken"]
    print(json.dumps(found))

    assert sorted(found) == rules
    assert [name for name, noticed in found.items() if noticed is None] == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("database", DATABASES)
def test_the_same_holds_for_150_000_steps(database):
    """The same, in full."""
    found = fuzz("--database", database, "--steps", 150_000, "--first", 1_000_000)
    print(json.dumps(found))

    hold(found, 150_000, database)
