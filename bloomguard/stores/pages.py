"""Pages of metrics, which stores keep beside filters: fixed size, fixed retention.

A page has 240 rows of 24 cells, each an unsigned big-endian 32-bit number: 23,040 bytes. A row covers a minute (then a
page covers four hours) or an hour (ten days). Cells saturate at their maximum.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..exceptions import StoreError
from ..process import seconds
from . import disk
from .disk import fcntl, lock_file, opened_private

MINUTE, HOUR = 60, 3_600
ROWS, COLUMNS = 240, 24
PAGE_BYTES = 4 * ROWS * COLUMNS
#: Retention in seconds of rows that cover a minute and an hour.
KEPT_SECONDS = {MINUTE: 24 * HOUR, HOUR: 31 * 24 * HOUR}

_HIGHEST = 2**32 - 1
_NAME = re.compile(r"metrics-(\d+)-(\d+)")


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
    cells = array("I", page) if len(page) == PAGE_BYTES else None
    if cells is None or cells.itemsize != 4:
        raise StoreError(f"a page of metrics has {PAGE_BYTES:,} bytes; this one has {len(page):,}")
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


class PageFolder:
    """Pages as files in the folders of a file store, shared by the processes of a host.

    An add holds ``flock`` on the file and makes one ``pwrite``, so a killed process leaves a page with all of the add
    or none of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _file(self, page: Page) -> Path:
        return self._path / page.guard / f"metrics-{page.step}-{page.number}"

    def add(self, page: Page, cells: Mapping[int, int]) -> None:
        """Add numbers to cells; raises :class:`StoreError`. Does nothing for a guard without a folder (no filter)."""
        file = self._file(page)
        try:
            with opened_private(file, os.O_RDWR | os.O_CREAT) as fd:
                try:
                    lock_file(fd, file, fcntl.LOCK_EX, seconds() + disk.LOCK_SECONDS)
                    before = os.pread(fd, PAGE_BYTES, 0)
                    if not before:
                        os.fchmod(fd, 0o600)  # restore the bits that the umask removed
                        self._sweep(page)
                    after = add_to(_whole(before), cells)
                    start, end = 4 * min(cells), 4 * max(cells) + 4
                    os.pwrite(fd, after[start:end], start)
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)  # close() would not unlock if a child forked meanwhile has it open
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot write metrics to {file}: {error.strerror}") from error

    def read(self, page: Page) -> bytes:
        """Return the page, empty if there is none; raises :class:`StoreError`."""
        file = self._file(page)
        try:
            with opened_private(file, os.O_RDONLY) as fd:
                return _whole(os.pread(fd, PAGE_BYTES, 0))
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"cannot read metrics from {file}: {error.strerror}") from error

    def _sweep(self, page: Page) -> None:
        folder = self._path / page.guard
        for name in os.listdir(folder):
            found = _NAME.fullmatch(name)
            if found and Page(page.guard, int(found[1]), int(found[2])).is_over(page):
                with suppress(OSError):
                    (folder / name).unlink()


def _whole(page: bytes) -> bytes:
    """Pad a page with zeros: its file is only as long as the rows written so far."""
    return page.ljust(PAGE_BYTES, b"\0")
