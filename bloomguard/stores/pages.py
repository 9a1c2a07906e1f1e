"""Pages of figures: what stores keep beside filters, of a fixed size and for a fixed time.

A page has 240 rows of 24 cells, each an unsigned 32-bit number, big-endian: 23,040 bytes. A row is a minute, so that a
page is four hours, or an hour, and a page is ten days. Cells stop at their highest number.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..exceptions import StoreError
from .private import open_private

MINUTE, HOUR = 60, 3_600
ROWS, COLUMNS = 240, 24
PAGE_BYTES = 4 * ROWS * COLUMNS
#: For how many seconds rows of a minute and of an hour are to be had.
KEPT_SECONDS = {MINUTE: 24 * HOUR, HOUR: 31 * 24 * HOUR}

_HIGHEST = 2**32 - 1
_LOCK_SECONDS = 1.0
_NAME = re.compile(r"figures-(\d+)-(\d+)")


class Page(NamedTuple):
    """The page ``number`` of a guard's figures by ``step`` seconds: it begins ``240 * step * number`` after 1970."""

    guard: str
    step: int
    number: int

    def is_over(self, page: Page) -> bool:
        """Whether nobody needs this page once ``page`` is written to: it is too old, or a wrong clock wrote it."""
        if (self.guard, self.step) != (page.guard, page.step):
            return False
        span = ROWS * self.step
        return not -KEPT_SECONDS[self.step] - span < (self.number - page.number) * span <= span


def cells_of(page: bytes) -> array[int]:
    """The numbers of a page, row by row; raises :class:`StoreError` if it is none."""
    cells = array("I", page) if len(page) == PAGE_BYTES else None
    if cells is None or cells.itemsize != 4:
        raise StoreError(f"a page of figures has {PAGE_BYTES:,} bytes; this one has {len(page):,}")
    if sys.byteorder == "little":
        cells.byteswap()
    return cells


def add_to(page: bytes, cells: Mapping[int, int]) -> bytes:
    """``page`` with numbers added to its cells."""
    numbers = cells_of(page)
    for cell, number in cells.items():
        numbers[cell] = min(numbers[cell] + number, _HIGHEST)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


class PageFolder:
    """Pages as files in the folders of a file store, shared by the processes of a host.

    Whoever adds holds ``flock`` on the file and writes once: a process that is killed leaves all of it or nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _file(self, page: Page) -> Path:
        return self._path / page.guard / f"figures-{page.step}-{page.number}"

    def add(self, page: Page, cells: Mapping[int, int]) -> None:
        """Add numbers to cells; raises :class:`StoreError`. A guard that never had a filter has no folder, and none."""
        file = self._file(page)
        try:
            fd = open_private(file, os.O_RDWR | os.O_CREAT)
            try:
                _lock(fd, file)
                before = os.pread(fd, PAGE_BYTES, 0)
                if not before:
                    os.fchmod(fd, 0o600)  # whatever the umask took away
                    self._sweep(page)
                after = add_to(_whole(before), cells)
                start, end = 4 * min(cells), 4 * max(cells) + 4
                os.pwrite(fd, after[start:end], start)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked meanwhile has the open file, too: closing is not enough
                os.close(fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot write figures to {file}: {error.strerror}") from error

    def read(self, page: Page) -> bytes:
        """The page, or nothing where there is none; raises :class:`StoreError`."""
        file = self._file(page)
        try:
            fd = open_private(file, os.O_RDONLY)
            try:
                return _whole(os.pread(fd, PAGE_BYTES, 0))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"cannot read figures from {file}: {error.strerror}") from error

    def _sweep(self, page: Page) -> None:
        for file, other in self._pages(page.guard):
            if other.is_over(page):
                with suppress(OSError):
                    file.unlink()

    def _pages(self, guard: str) -> Iterator[tuple[Path, Page]]:
        for name in os.listdir(self._path / guard):
            found = _NAME.fullmatch(name)
            if found and int(found[1]) in KEPT_SECONDS:
                yield self._path / guard / name, Page(guard, int(found[1]), int(found[2]))


def _whole(page: bytes) -> bytes:
    """A file grows as its rows are written: what is not there yet is zero."""
    return page.ljust(PAGE_BYTES, b"\0")


def _lock(fd: int, file: Path) -> None:
    """Lock the file, but never wait for good: whoever holds it may have been stopped in the middle of it."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise StoreError(f"{file} has been locked for {_LOCK_SECONDS:g} s") from error
        time.sleep(0.001)
