"""What commands that read whole tables show and say."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from tqdm import tqdm

from ..guards import Guard


class Bar:
    """A guard's progress bar, there from its first page to the next guard's."""

    def __init__(self, guard: Guard, stack: ExitStack, quiet: bool) -> None:
        self._guard, self._stack, self._quiet = guard, stack, quiet
        self._bar: tqdm[Any] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._stack.close()
            bar = tqdm(desc=self._guard.name, unit=" rows", unit_scale=True, disable=self._quiet, file=sys.stderr)
            self._bar = self._stack.enter_context(bar)
        self._bar.total = total
        self._bar.update(done - self._bar.n)
