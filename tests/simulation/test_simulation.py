"""The protocol under simulated schedules: writers, readers, builders, faults, all on the project's own code.

Each test runs ``python -m tests.simulation`` in a process of its own, for what it puts under the code is never undone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
#: What nothing of is proved without.
EVERYTHING = (
    "absent",
    "remembered",
    "maybe",
    "commits",
    "published",
    "fenced",
    "lease",
    "unreachable",
    "untrusted",
    "identity",
    "idle",
    "idle too long",
    "restored elsewhere",
)


def simulate(*arguments: object, **environment: str) -> str:
    # Without coverage, which cannot follow greenlets and would take most of the time.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    found = subprocess.run(command, env=ours | environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


def hold(found: dict[str, Any]) -> None:
    assert found["false_404s"] == []
    assert [name for name in EVERYTHING if not found.get(name)] == []


def test_no_schedule_ends_in_a_false_404():
    """Whatever happens in whatever order, a row that was committed before it is asked for is never answered 404."""
    hold(json.loads(simulate("--schedules", 150)))


def test_every_mutant_is_caught():
    """The simulation notices if any one rule of the protocol is switched off, of as many as the page says."""
    caught = json.loads(simulate("--mutants"))

    assert f" for each of {len(caught)} rules, " in PAGE.read_text()
    assert [name for name, seed in caught.items() if seed is None] == []


def test_a_seed_is_a_schedule():
    """The same seed gives the same schedule again, to the last line of its trace."""
    traces = {simulate(4711, PYTHONHASHSEED=hash_seed) for hash_seed in ("1", "2")}

    assert len(traces) == 1
    assert "COMMIT" in traces.pop()


def test_a_schedule_depends_on_its_seed_alone():
    """Not on the schedules that the same process has run before: else a false 404 could not be found again."""
    schedules = ("--digests", "--schedules", 40)
    forwards = json.loads(simulate(*schedules, PYTHONHASHSEED="1"))
    backwards = json.loads(simulate(*schedules, "--backwards", PYTHONHASHSEED="2"))
    alone = json.loads(simulate("--digests", "--schedules", 1, "--first", 20))

    assert len(set(forwards.values())) == 40
    assert [seed for seed in forwards if forwards[seed] != backwards[seed]] == []
    assert alone["20"] == forwards["20"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mutant_is_caught_and_the_rare_ones_too():
    """Also those whose race takes thousands of schedules to come up."""
    caught = json.loads(simulate("--mutants", "--rare"))
    print(json.dumps(caught))

    assert [name for name, seed in caught.items() if seed is None] == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_none_of_200_000_schedules_ends_in_a_false_404():
    """The same, in full."""
    found = json.loads(simulate("--schedules", 200_000, "--first", 1_000_000, "--processes", os.cpu_count() or 1))
    print(json.dumps(found))

    assert found["schedules"] == 200_000
    assert found["saved with an error"] > 0
    hold(found)
