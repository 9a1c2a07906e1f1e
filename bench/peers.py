"""What the benchmarks of the filters share: numbers, keys, loops, and optional packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .report import Report

N = 1_000_000
CHECKS = 50_000
RATE = 0.01


def peer(report: Report, module: str, wanted_for: str) -> Any:
    """An optional package, or ``None`` and a row that says so."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        report.missing(wanted_for, module, f"not installed: {error}")
        return None


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def numbers(count: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(0, 1 << 40, count)


# Checks, one key at a time. Each contestant is a loop over the same keys; the loop itself costs both sides the same.


def loop_of_ints(check: Callable[[bytes], bool], keys: list[int]) -> Callable[[], None]:
    def loop() -> None:
        for number in keys:
            check(number.to_bytes(8, "little"))

    return loop


def loop_of(check: Callable[[Any], object], keys: list[Any]) -> Callable[[], None]:
    def loop() -> None:
        for each in keys:
            check(each)

    return loop


def loop_in(filter: Any, keys: list[Any]) -> Callable[[], None]:
    def loop() -> None:
        for each in keys:
            each in filter  # noqa: B015

    return loop
