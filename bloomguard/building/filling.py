"""Pages of keys into a generation: the next ones are read while the last ones are hashed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..sources import Page
from ..stores import Generation

_BATCH_KEYS = 400_000


def fill(generation: Generation, pages: Iterable[Page], read: Callable[[int], None]) -> int:
    """Add all pages to ``generation``, which is to be sealed afterwards; returns the number of rows.

    ``read(rows so far)`` is called after every page. Raises what the pages and the generation raise.
    """
    rows = 0
    with ThreadPoolExecutor(1) as hasher:
        pending: Future[None] | None = None
        batch: list[Page] = []
        held = 0
        for page in pages:
            batch.append(page)
            held += page.rows
            rows += page.rows
            if held >= _BATCH_KEYS:
                if pending is not None:
                    pending.result()
                pending = hasher.submit(_add, generation, batch)
                batch, held = [], 0
            read(rows)
        if pending is not None:
            pending.result()
        _add(generation, batch)
    return rows


def _add(generation: Generation, batch: list[Page]) -> None:
    import numpy as np

    keys: list[Any] = [page.keys for page in batch]
    if not keys:
        return
    if isinstance(keys[0], np.ndarray):
        generation.add_many(np.concatenate(keys), more=True)
    elif isinstance(keys[0], bytes):
        generation.add_many(b"".join(keys), more=True)
    else:
        for some in keys:
            generation.add_many(some, more=True)
