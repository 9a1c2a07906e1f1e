"""Pages of keys that a scan reads, and adding them to a generation: a thread hashes one while the next is read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

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


def overlapped(work: Callable[[Any], Any], items: Iterable[Any]) -> Generator[Any]:
    """Yield ``work(item)`` of each item, done in a thread while the next item is read."""
    with ThreadPoolExecutor(1) as thread:
        pending: Future[Any] | None = None
        for item in items:
            if pending is not None:
                yield pending.result()
            pending = thread.submit(work, item)
        if pending is not None:
            yield pending.result()


def fill(generation: Generation, pages: Generator[KeyPage], progress: Callable[[int], None]) -> int:
    """Add all pages to ``generation``, which the caller seals afterwards; return the number of rows.

    ``progress(rows so far)`` is called after every page. Exceptions of the pages and the generation are raised here.
    """

    def add(page: KeyPage) -> int:
        generation.add_many(page.keys)
        return page.rows

    rows = 0
    # Close the pages here, not when they are collected: their connection may be closed by then.
    with closing(pages), closing(overlapped(add, pages)) as added:
        for more in added:
            rows += more
            progress(rows)
    return rows
