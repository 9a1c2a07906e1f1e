"""Builders that are killed while rows are written on a server: no row is lost, and what was served is served on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import database
from tests.support.child import STEPS

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(params=["postgresql", "mariadb"])
def rebuild(request, start) -> Iterator[Callable[..., dict[str, Any]]]:
    """``rebuild(rounds=..., ...)`` lets builders build and die, and returns what came of it."""

    def run(**wanted: Any) -> dict[str, Any]:
        director = start(json.dumps(wanted), code="from tests.soak.rebuilding import main; main()")
        said, errors = director.communicate(timeout=3_000)
        assert director.returncode == 0, errors[-3_000:]
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        print(json.dumps(found))
        return found

    with database.on(request.param):
        yield run


def hold(found: dict[str, Any], rounds: int) -> None:
    assert found["rounds"] == rounds
    assert found["harmed"] == {}
    assert (found["lost"], found["denied"]) == (0, 0)
    assert found["straddled"] > 0
    assert found["ended_early"] == 0
    assert min(found["absents"], found["asked"]) > 0


def test_a_killed_builder_loses_no_write(rebuild):
    """A builder that dies when all is ready to be published, under writes, with leases of a quarter of a second."""
    hold(rebuild(first=list(STEPS).index("publishing"), rounds=1, writes_a_second=100, lease=0.25), 1)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_twenty_killed_builders_lose_no_write(rebuild):
    """20 rounds under 200 writes a second, with a kill before and after every step."""
    found = rebuild(first=0, rounds=20, writes_a_second=200, lease=1)

    hold(found, 20)
    assert found["writes"] >= 20_000
    assert found["writes_a_second"] >= (190 if found["late"] < 0.1 else 50)  # a machine that is busy writes less
    assert {step.split()[1] for step in found["steps"]} == set(STEPS)
    assert found["straddled"] >= 20
