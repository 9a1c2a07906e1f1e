"""Is every row in the filter that answers? All of them are read and asked for, many at once.

A row that is committed meanwhile was added before it can be seen. One that a filter lacks and that was deleted
meanwhile is told from one that it denies by asking both again, see :func:`bloomguard.spot_checks.is_denied`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..filters.base import BodyFilter
from ..filters.layout import Layout
from ..guards import Guard
from ..signals import false_negative_found, tell
from ..sources import Page, Source, key_of_row
from ..spot_checks import is_denied
from ..stores import Generation
from ..sync.state import LEASE_SECONDS
from ..verdicts import ABSENT

if TYPE_CHECKING:
    from ..filters.base import Keys

#: Rows that are missing, after which there is no need to look for more: the guard needs a rebuild.
MOST_MISSING = 1_000
_ROWS_AT_ONCE = 50_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What became of one guard's verification.

    ``generation`` is empty where no filter answers, and nothing was verified. ``rows`` were asked for, ``missing`` of
    them are denied by the filter. ``error_rate_measured`` is the share of random absent keys that pass. About
    ``stale_share`` of the filter's keys have no row any more.
    """

    guard: str
    generation: str
    rows: int = 0
    missing: int = 0
    error_rate: float = 0.0
    error_rate_measured: float = 0.0
    stale_share: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class _Batch:
    """Some rows' keys, and ``value(index)``, what the row of one of them is looked up by."""

    rows: int
    keys: Callable[[], Keys]
    value: Callable[[int], Any]


class Verification:
    """Holds the filter that answers for ``guard`` against its rows: all, or about ``sample`` random ones.

    ``progress(rows done, rows in all)`` is called after every page.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        sample: int | None = None,
        progress: Progress = lambda done, total: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guard = guard
        self._source = Source(guard)
        self._sample = sample
        self._progress = progress
        self._sleep = sleep
        self._clock = clock

    def run(self) -> Findings:
        """Verify; a guard whose filter lacks rows is fenced at the first of them.

        Raises :class:`StoreError`, :class:`FilterError`, :class:`RebuildError` and :class:`DatabaseError`.
        """
        began = self._clock()
        generation = self._answering()
        if generation is None:
            return Findings(guard=self.guard.name, generation="")
        expected = self._source.summary().count
        total = expected if self._sample is None else min(self._sample, expected)
        rows, missing = self._scan(generation, total)
        keys = generation.approximate_size()
        alive = rows if self._sample is None and missing < MOST_MISSING else expected
        return Findings(
            guard=self.guard.name,
            generation=generation.name,
            rows=rows,
            missing=missing,
            error_rate=generation.layout.error_rate,
            error_rate_measured=generation.measure_error_rate(),
            stale_share=max(0.0, 1 - alive / keys) if keys else 0.0,
            seconds=self._clock() - began,
        )

    def _answering(self) -> Generation | None:
        live = self.guard.live
        state = live.table.current(self.guard.name)
        if not state.active or not state.is_answered_by(state.active) or live.store.identity != state.identity:
            return None
        return live.store.open(self.guard.name, state.active, live.find_key_hash, state.identity)

    def _scan(self, generation: Generation, total: int) -> tuple[int, int]:
        """Rows read, and rows missing; the next page is read while the last one is checked."""
        rows = missing = 0
        filters = list(generation.filters())
        with ThreadPoolExecutor(1) as checker:
            pending: Future[list[Any]] | None = None
            for batch in self._batches():
                if pending is not None:
                    missing = self._missing(generation, pending.result(), missing)
                    if missing >= MOST_MISSING:
                        return rows, missing
                pending = checker.submit(_suspects, generation.layout, filters, batch)
                rows += batch.rows
                self._progress(rows, max(rows, total))
            if pending is not None:
                missing = self._missing(generation, pending.result(), missing)
        if rows < total:
            self._progress(rows, rows)  # there were fewer than expected
        return rows, missing

    def _batches(self) -> Iterator[_Batch]:
        if self._source.is_gathered and self._sample is None:
            for page in self._source.pages():
                yield _Batch(page.rows, partial(getattr, page, "keys"), partial(_at, page))
            return
        names = self.guard.attnames
        if self._sample is None:
            found = self._source.rows().order_by().values_list(*names).iterator(chunk_size=_ROWS_AT_ONCE)
        else:
            found = self._source.random_values(self._sample)
        while some := list(islice(found, _ROWS_AT_ONCE)):
            keys, values = [], []
            for each in some:
                key = key_of_row(self.guard, each)
                if key is not None:
                    keys.append(key)
                    values.append(each[0] if len(each) == 1 else each)
            yield _Batch(len(some), partial(list, keys), values.__getitem__)

    def _missing(self, generation: Generation, suspects: list[Any], missing: int) -> int:
        """``missing``, and one more for each of these values that is denied though a row has it; the first fences."""
        if suspects and self.guard.sync == "signals":
            self._sleep(LEASE_SECONDS)  # these are added after the commit: what we read may still be on its way
        for value in suspects:
            key = self.guard.keys.key(value)
            # Until it is fenced the guard itself is asked: its filter may have been replaced meanwhile.
            denies = partial(_lacks, generation, key) if missing else partial(self._is_absent, key)
            if is_denied(partial(self._exists, value), denies):
                missing += 1
                if missing == 1:
                    self.guard.live.table.fence(self.guard.name, "rows are missing from its filter")
                tell(false_negative_found, type(self.guard), guard=self.guard, value=value)
        return missing

    def _is_absent(self, key: bytes) -> bool:
        return self.guard.live.ask(key) is ABSENT

    def _exists(self, value: Any) -> bool:
        names = self.guard.attnames
        wanted = dict(zip(names, [value] if len(names) == 1 else value))
        return self._source.rows().filter(**wanted).exists()


def _lacks(generation: Generation, key: bytes) -> bool:
    return not generation.might_contain(key)


def _suspects(layout: Layout, filters: Sequence[BodyFilter], batch: _Batch) -> list[Any]:
    """The values that the filters deny; one thread does so while another reads."""
    import numpy as np

    found = layout.contains_many(filters, batch.keys())
    return [batch.value(int(index)) for index in np.flatnonzero(~found)[:MOST_MISSING]]


def _at(page: Page, index: int) -> Any:
    """One value out of a page of integers or UUIDs."""
    keys: Any = page.keys
    return uuid.UUID(bytes=keys[16 * index : 16 * index + 16]) if isinstance(keys, bytes) else int(keys[index])
