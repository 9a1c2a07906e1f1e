"""Pages of keys that a scan reads, and adding them to a generation: a thread hashes one while the next is read."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..stores import Generation

if TYPE_CHECKING:
    from ..filters.base import Keys


@dataclass(frozen=True)
class KeyPage:
    """The number of some rows, and ``make``, which returns their keys."""

    rows: int
    make: Callable[[], Keys]

    @cached_property
    def keys(self) -> Keys:
        """The keys in a form that :meth:`KeyHash.digests` takes, unpacked by the first thread that reads them.

        Raises :class:`RebuildError` if their number differs from that of the rows.
        """
        return self.make()


def fill(generation: Generation, pages: Generator[KeyPage], read: Callable[[int], None]) -> int:
    """Add all pages to ``generation``, which the caller seals afterwards; return the number of rows.

    ``read(rows so far)`` is called after every page. Exceptions of the pages and the generation are raised here.
    """
    rows = 0
    # Close the pages here, not when they are collected: their connection may be closed by then.
    with ThreadPoolExecutor(1) as hasher, closing(pages):
        pending: Future[None] | None = None
        for page in pages:
            rows += page.rows
            if pending is not None:
                pending.result()
            pending = hasher.submit(_add, generation, page)
            read(rows)
        if pending is not None:
            pending.result()
    return rows


def _add(generation: Generation, page: KeyPage) -> None:
    generation.add_many(page.keys)
