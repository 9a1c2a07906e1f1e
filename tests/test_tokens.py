"""Discards by token lose no row, however writers and builders race; whatever is simpler does."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from .conftest import forget
from .tokens import NAIVE, World


@pytest.fixture
def world(settings: Any, clock: Any) -> Any:
    """``world(mode)``: a model of writers and a builder around a filter in memory."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}
    forget()
    yield lambda mode, seed=1: World(mode, seed, clock)
    forget()


def test_no_row_is_lost(world):
    """Deleters that race, rows that come back, rollbacks, rebuilds, full counters: every row that is there passes."""
    made = world("tokens")

    assert made.run(4_000) == 0
    assert min(made.saturated, made.builds - made.schedules) >= 20
    assert made.discarded > 300


@pytest.mark.parametrize("mode", NAIVE)
def test_what_is_simpler_loses_rows(world, mode):
    """The model notices each of the ways that others discard in."""
    assert world(mode).run(15_000, patient=False) > 0


@pytest.mark.slow
def test_no_row_is_lost_in_a_million_writes(world):
    """The same in full length."""
    began, seed = time.monotonic(), random.randrange(2**32)
    made = world("tokens", seed)

    assert made.run(1_000_000) == 0, f"seed {seed}"
    print(
        f"\n{made.operations:,} writes in {made.schedules:,} schedules, {made.discarded:,} discards, "
        f"{made.saturated:,} of full counters, {made.builds:,} builds: no row denied; "
        f"{time.monotonic() - began:.0f} s"
    )
