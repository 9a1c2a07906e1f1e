"""What several commands share: guards and durations as arguments, and a progress bar per guard."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from ..exceptions import ConfigurationError
from ..guards import Guard, registry


def seconds(text: str) -> float:
    """Convert ``90s``, ``30m``, ``1h`` or ``7d`` to seconds; for ``type=`` of an option."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a duration; write a number with s, m, h or d, as in 30m or 1h")
    return int(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[found[2]]


def chosen(names: Sequence[str], purpose: str) -> list[Guard]:
    """Return the guards of a command's arguments, in their order, or all.

    Raises :class:`ConfigurationError` if there is no guard of a name, or none at all for the ``purpose``.
    """
    guards = [registry[name] for name in dict.fromkeys(names)] or list(registry)
    if not guards:
        raise ConfigurationError(f"there is no guard to {purpose}: register one in an app's guards.py")
    return guards


def named(figures: Any) -> dict[str, Any]:
    """Return the fields of a dataclass about one guard for ``--json``, with ``name`` in place of ``guard``."""
    found = asdict(figures)
    return {"name": found.pop("guard"), **found}


class ProgressBar:
    """The progress bar of one guard, shown from its first page until the next guard's first page."""

    def __init__(self, guard: Guard, stack: ExitStack, quiet: bool) -> None:
        self._guard, self._stack, self._quiet = guard, stack, quiet
        self._bar: tqdm[Any] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._stack.close()
            # `None` shows it on a terminal alone: cron would mail every step.
            off = True if self._quiet else None
            bar = tqdm(desc=self._guard.name, unit=" rows", unit_scale=True, disable=off, file=sys.stderr)
            self._bar = self._stack.enter_context(bar)
        self._bar.total = total
        self._bar.update(done - self._bar.n)


def size_in_words(count: int) -> str:
    """Return a number of bytes as text, such as ``1.2 MiB``."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "bytes" else f"{count} bytes"
