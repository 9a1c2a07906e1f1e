"""Pages of metrics, which stores keep beside filters: fixed size, fixed retention.

A page has 240 rows of 24 cells, each an unsigned big-endian 32-bit number: 23,040 bytes. A row covers a minute (then a
page covers four hours) or an hour (ten days). Cells saturate at their maximum.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from typing import NamedTuple

from ..exceptions import StoreError

MINUTE, HOUR = 60, 3_600
ROWS, COLUMNS = 240, 24
PAGE_BYTES = 4 * ROWS * COLUMNS
#: Retention in seconds of rows that cover a minute and an hour.
KEPT_SECONDS = {MINUTE: 24 * HOUR, HOUR: 31 * 24 * HOUR}

_HIGHEST = 2**32 - 1


class Page(NamedTuple):
    """A guard's page of rows of ``step`` seconds; it starts at Unix time ``240 * step * number``."""

    guard: str
    step: int
    number: int

    def is_over(self, page: Page) -> bool:
        """Return whether to delete this page when ``page`` is written: it is expired, or its time is in the future."""
        if (self.guard, self.step) != (page.guard, page.step):
            return False
        span = ROWS * self.step
        return not -KEPT_SECONDS[self.step] - span < (self.number - page.number) * span <= span


def cells_of(page: bytes) -> array[int]:
    """Return the numbers of a page, row by row; raises :class:`StoreError` if its length is wrong."""
    if len(page) != PAGE_BYTES:
        raise StoreError(f"a page of metrics has {PAGE_BYTES:,} bytes; this one has {len(page):,}")
    cells = array("I", page)
    if sys.byteorder == "little":
        cells.byteswap()
    return cells


def add_to(page: bytes, cells: Mapping[int, int]) -> bytes:
    """Return ``page`` with numbers added to its cells."""
    numbers = cells_of(page)
    for cell, number in cells.items():
        numbers[cell] = min(numbers[cell] + number, _HIGHEST)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
