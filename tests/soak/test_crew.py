"""Processes that are killed while they write, ask and rebuild: no row that was saved is ever denied."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.django_db(transaction=True)

SHORT = {"operations": 10_000, "kills": 8, "builds": 0, "seconds": 1.5, "patience": 240, "written": 0.1, "hits": 5}
FULL = {
    "operations": 1_000_000,
    "kills": 200,
    "builds": 10,
    "seconds": 60,
    "patience": 900,
    "written": 0.03,
    "hits": 60,
}
#: The whole suite runs on machines that are busy with other things; whoever waits for a dead process waits for ever.
BUSY = 10.0
#: With a server between, a check takes ten times as long, and a failed add a fence.
FULL_VALKEY = FULL | {"failovers": 12}


@pytest.fixture
def crew(start) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """``crew(wanted)`` lets a crew work and die, and returns what came of it."""

    def run(wanted: dict[str, Any]) -> dict[str, Any]:
        director = start(json.dumps(wanted), code="from tests.soak.crew import main; main()")
        said, errors = director.communicate(timeout=wanted["patience"] + 120)
        assert director.returncode == 0, errors[-3_000:]
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        print(json.dumps(found))
        return found

    return run


def hold(found: dict[str, Any], wanted: dict[str, Any], longest: float = 1.0) -> None:
    """``longest`` is for how many seconds at most anybody may be inside of one call of ours, on an idle machine."""
    assert found["operations"] >= wanted["operations"]
    assert found["kills"] >= wanted["kills"]
    assert found["lost"] == 0
    assert found["denied"] == 0
    assert found["not_stored"] == 0
    assert found["unknown"] == 0  # the last build mended whatever was fenced
    assert found["absents"] > 0  # and most of the time the filter answered
    assert found["builds"] >= wanted["builds"]
    # A call that waits is woken up several times, and so are those it waits for.
    assert found["longest"] < longest + 5 * found["late"]


def test_a_few_kills_lose_nothing(crew):
    """4 writers and a builder on the file store, killed 8 times: 0 false negatives, nobody stuck."""
    hold(crew(SHORT | {"filter": "cuckoo"}), SHORT, BUSY)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_two_hundred_kills_lose_nothing(kind, crew):
    """A million operations and 200 kills, also inside an add, a cuckoo's kick, a swap of the state row and a flush."""
    found = crew(FULL | {"filter": kind})

    hold(found, FULL)
    assert all(found["inside"][name] for name in ("add", "swap", "flush"))
    assert found["inside"]["kick"] or kind != "cuckoo"


def test_a_failover_loses_nothing(crew):
    """The same on Valkey, whose primary is killed once, with adds that its replica never got."""
    wanted = SHORT | {"failovers": 1, "operations": 4_000}
    found = crew(wanted)

    hold(found, wanted, BUSY)
    assert found["failovers"] == 1


@pytest.mark.slow
def test_many_failovers_lose_nothing(crew):
    """A million operations, 200 kills and 12 failovers."""
    found = crew(FULL_VALKEY)

    hold(found, FULL_VALKEY)
    assert found["failovers"] == 12
