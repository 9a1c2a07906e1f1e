"""Verification: compare filters with the rows of the database.

:class:`Verification` checks the active filter of a guard, :class:`PublishCheck` a new generation before it is
published.

A row that is committed meanwhile was added to the filter before it became visible. If a row is missing from the filter,
both are asked again, as it may have been deleted meanwhile: see :func:`bloomguard.guards.spot_checks.is_denied`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import sqrt
from typing import Any

from ..exceptions import RebuildError
from ..filters.base import BodyFilter
from ..filters.bulk import np
from ..filters.layout import Layout
from ..guards import Guard
from ..guards.keys import plain
from ..guards.spot_checks import is_denied
from ..signals import false_negative_found, send
from ..state.row import locate_store
from ..state.table import LEASE_SECONDS
from ..state.verdicts import ABSENT
from ..stores import Generation
from .pages import KeyPage, overlapped
from .plan import open_active, stale_share
from .source import Source
from .sources import Sources

#: A verification ends after this many missing rows: the guard needs a rebuild in any case.
MOST_MISSING = 1_000
#: Rows that are read a second time before a new generation is published.
NEWEST_ROWS = 100_000
RANDOM_ROWS = 10_000
_ROWS_AT_ONCE = 50_000
_BATCH_ROWS = 10_000
#: A store on a server checks so many keys well within the 50 ms that it has for a reply.
_KEYS_A_TRIP = 1_000
#: Absent keys that measure the error rate of a new generation.
PROBES = 100_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of verifying one guard.

    ``generation`` is empty if the guard has no usable filter; then nothing was verified. ``rows`` were checked, of
    which ``missing`` are not in the filter. ``error_rate_measured`` is the share of random absent keys that pass.
    ``stale_share`` is the approximate share of the filter's keys that have no row any more. ``unread_scopes`` are those
    of a guard with a ``scope`` that the filter was not built from; requests for their rows pass.
    """

    guard: str
    generation: str
    kind: str = ""
    rows: int = 0
    missing: int = 0
    error_rate: float = 0.0
    error_rate_measured: float = 0.0
    stale_share: float = 0.0
    unread_scopes: tuple[str, ...] = ()
    seconds: float = 0.0


#: Returns the value that the row of the key at this index of a page is looked up by.
_ValueAt = Callable[[int], Any]


class Verification:
    """Checks that the active filter of ``guard`` has all its rows, or about ``sample`` random ones.

    :meth:`run` sets ``sample`` to ``None`` if there are no more rows than that: a sample would have some twice.
    ``progress(rows done, rows in all)`` is called after every page.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        sample: int | None = None,
        progress: Progress = lambda done, total: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.guard, self.sample, self._progress, self._sleep = guard, sample, progress, sleep
        self._rows = self._missing = 0

    def run(self) -> Findings:
        """Verify, and fence the guard at the first missing row.

        Raises :class:`StoreError`, :class:`FilterError`, :class:`RebuildError` and :class:`DatabaseError`.
        """
        began = time.monotonic()
        generation = self._open_active()
        if generation is None:
            return Findings(guard=self.guard.name, generation="")
        whole = Sources(self.guard)
        sources, unread = whole.split(generation)
        marks = len(sources.marks())
        expected = sources.summary().count - marks
        if self.sample is not None and self.sample >= expected:
            self.sample = None
        total = expected if self.sample is None else self.sample
        for source in sources:
            if self._missing < MOST_MISSING:
                self._scan(source, generation, total, len(whole))
        if self._rows < total and self._missing < MOST_MISSING:
            self._progress(self._rows, self._rows)  # there were fewer than expected
        alive = self._rows if self.sample is None and self._missing < MOST_MISSING else expected
        return Findings(
            guard=self.guard.name,
            generation=generation.name,
            kind=generation.layout.kind,
            rows=self._rows,
            missing=self._missing,
            unread_scopes=tuple(unread),
            error_rate=generation.layout.error_rate,
            error_rate_measured=generation.measure_error_rate(),
            stale_share=stale_share(generation.approximate_size(), alive + marks),
            seconds=time.monotonic() - began,
        )

    def _open_active(self) -> Generation | None:
        active = self.guard._runtime.active_filter
        state = active.table.current(self.guard.name)
        if not state.answers:
            return None
        if locate_store(state.identity, active.store.patient) is None:
            return None
        return open_active(self.guard, state)

    def _scan(self, source: Source, generation: Generation, total: int, sources: int) -> None:
        layout, filters = generation.layout, list(generation.filters())

        def check(batch: tuple[KeyPage, _ValueAt]) -> tuple[int, list[Any]]:
            return batch[0].rows, _suspects(layout, filters, *batch)

        with closing(overlapped(check, self._batches(source, sources))) as checked:
            for rows, suspects in checked:
                self._rows += rows
                self._progress(self._rows, max(self._rows, total))
                self._count_missing(source, generation, suspects)
                if self._missing >= MOST_MISSING:
                    break

    def _batches(self, source: Source, sources: int) -> Iterator[tuple[KeyPage, _ValueAt]]:
        """Yield the rows of ``source``, or its share of the sample."""
        if source.is_gathered and self.sample is None:
            for page in source.pages():
                yield page, partial(_value_at, str(self.guard._meta.keys.kinds[0]), page)
            return
        if self.sample is None:
            found: Iterator[Any] = source.all_values(_ROWS_AT_ONCE)
        else:
            found = source.random_values(-(-self.sample // sources))
        while some := list(islice(found, _ROWS_AT_ONCE)):
            keys, values = [], []
            for each in some:
                if (key := source.key(each)) is not None:
                    keys.append(key)
                    values.append(source.value(each))
            yield KeyPage(len(some), partial(list, keys)), values.__getitem__

    def _count_missing(self, source: Source, generation: Generation, suspects: list[Any]) -> None:
        """Count which of these values have a row and are not in the filter, and fence the guard at the first one."""
        if suspects and self.guard.sync == "signals":
            self._sleep(LEASE_SECONDS)  # signals add a key after the commit, so maybe after the row was read
        active_filter = self.guard._runtime.active_filter
        for value in suspects:
            key, rows = self.guard._meta.keys.key(value), source.rows().filter(**self.guard._meta.conditions(value))

            def denies(key: bytes = key) -> bool:
                # Until it is fenced, ask the guard itself: its filter may have been replaced meanwhile.
                return not generation.might_contain(key) if self._missing else active_filter.ask(key) is ABSENT

            if is_denied(rows.exists, denies):
                self._missing += 1
                if self._missing == 1:
                    active_filter.table.fence(self.guard.name, "rows are missing from its filter")
                send(false_negative_found, type(self.guard), guard=self.guard, value=plain(value))


def _suspects(layout: Layout, filters: Sequence[BodyFilter], page: KeyPage, value: _ValueAt) -> list[Any]:
    """Return the values that are not in the filters."""
    found = layout.contains_many(filters, page.keys)
    return [value(int(index)) for index in np.flatnonzero(~found)[:MOST_MISSING]]


def _value_at(kind: str, page: KeyPage, index: int) -> Any:
    """Return one value of a page that was gathered, of which ``kind`` is the kind of key."""
    keys: Any = page.keys
    if isinstance(keys, np.ndarray):
        return int(keys[index])
    key = keys[16 * index : 16 * index + 16] if isinstance(keys, bytes) else keys[index]
    if kind == "text":
        return key.decode()
    return uuid.UUID(bytes=key) if kind == "uuid" else int.from_bytes(key, "little", signed=True)


class PublishCheck:
    """Checks a new generation before it is published; created before the generation is announced.

    ``source`` is one of ``sources``. Reads two kinds of rows again, by the ORM, and makes their keys as a write does:

    - The newest, at most 100,000: those whose primary key is above the greatest one before the announcement. Where
      primary keys grow, they were inserted during the build, so the scan may have missed them, but their writers have
      added them.
    - 10,000 random rows, of all scopes together.

    Other rows that changed during the build are read no more often than any.
    """

    def __init__(self, source: Source, sleep: Callable[[float], None], sources: int = 1) -> None:
        self.source, self._sleep, self._sources = source, sleep, sources
        self._newest = source.end("-pk")

    def verify_rows(self, generation: Generation) -> int:
        """Return the number of rows that were read again; raises :class:`RebuildError` if one is not in it."""
        read = missing = 0
        with self.source.entered():
            keys = self._keys()
            while batch := list(islice(keys, _BATCH_ROWS)):
                read += len(batch)
                absent = self._absent(generation, batch)
                if absent and self.source.guard.sync == "signals":
                    self._sleep(LEASE_SECONDS)  # signals add a key after the commit, so maybe after the row was read
                    absent = self._absent(generation, absent)
                missing += len(absent)
        if missing:
            raise RebuildError(
                f"{self.source.guard.name}: of {read:,} rows that were read again, {missing:,} are not in the new "
                "generation, which was not published. The cause may be COPY, a trigger, another program or a process "
                "that was started before the guard existed: run it again"
            )
        return read

    @staticmethod
    def _absent(generation: Generation, keys: list[bytes]) -> list[bytes]:
        trips = (keys[start : start + _KEYS_A_TRIP] for start in range(0, len(keys), _KEYS_A_TRIP))
        return [key for some in trips for key, held in zip(some, generation.might_contain_many(some)) if not held]

    def _keys(self) -> Iterator[bytes]:
        seen = set()
        for values in self._values():
            key = self.source.key(values)
            if key is not None and key not in seen:
                seen.add(key)
                yield key

    def _values(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of the guard's fields for every row that is read again."""
        names, rows = self.source.guard._meta.attnames, self.source.rows()
        last = self.source.end("-pk")
        if last is None:
            return
        if last != self._newest:
            newest = rows if self._newest is None else rows.filter(pk__gt=self._newest)
            yield from newest.order_by("pk").values_list(*names)[:NEWEST_ROWS]
        yield from self.source.random_values(RANDOM_ROWS // self._sources)


def check_error_rate(guard: Guard, generation: Generation, probes: int = PROBES) -> float:
    """Return the share of random absent keys that pass; raises :class:`RebuildError` if it is too large."""
    promised, measured = generation.layout.error_rate, generation.measure_error_rate(probes)
    # Allow six standard deviations, and a few keys if almost none are expected.
    if measured > promised + 6 * sqrt(promised / probes) + 5 / probes:
        raise RebuildError(
            f"{guard.name}: the new generation lets {measured:.4%} of absent keys pass where {promised:.4%} were "
            "promised, and was not published; run it again"
        )
    return measured
