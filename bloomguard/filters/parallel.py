"""Blocks of numpy work on all cores: numpy lets other threads run while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

_MOST = 4  # more threads than that wait for memory, and for the interpreter between two calls of numpy


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system tells
        return os.cpu_count() or 1


class Crew:
    """Threads for the time of one ``with``, made when the first work comes that is worth it.

    None is left behind for a later fork to lose.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._threads = min(most, cores())
        self._pool: Executor | None = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def spread(self, worker: Callable[[Iterator[int]], None], count: int, step: int, least: int) -> None:
        """Run ``worker`` on the starts of all blocks of ``step`` items, shared by this thread and the others.

        Fewer than ``least`` items stay in this thread: handing them out would take longer than it saves.
        """
        starts = iter(range(0, count, step))
        if self._threads == 1 or count < least:
            worker(starts)
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads - 1)
        others = [self._pool.submit(worker, starts) for _ in range(self._threads - 1)]
        worker(starts)
        for other in others:
            other.result()
