"""Copies of the state rows: that of the process, and that of a thread whose transaction locks all others out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from .row import Rows


class Copy(NamedTuple):
    """The rows as one read gave them; it began at ``read_at``, by the clock of the state table."""

    read_at: float
    rows: Rows


NEVER = Copy(float("-inf"), {})


class Within(threading.local):
    """This thread's override of how the rows are read, and its copy, which other threads must not use."""

    read: Callable[[], Rows] | None = None  # set by a writer that holds the database's write lock
    copy: Copy = NEVER


class Reading:
    """The block of :meth:`StateTable.reading_by`. A class, as a generator would cost each INSERT two microseconds."""

    __slots__ = ("_before", "_read", "_within")

    def __init__(self, within: Within, read: Callable[[], Rows]) -> None:
        self._within = within
        self._read = read

    def __enter__(self) -> None:
        self._before, self._within.read = self._within.read, self._read

    def __exit__(self, *exception: object) -> None:
        self._within.read = self._before
        if self._before is None:
            self._within.copy = NEVER
