"""What a new generation has to prove before it is published: rows that are read anew are in it, and few others are.

Two kinds of rows are read again, one by one through the ORM, and their keys made as a write makes them: a way that has
nothing in common with the scan.

- The newest: all whose primary key is above the greatest that there was before the generation was announced, 100,000
  at most. Where keys grow, as those of ``AutoField`` do, these are the rows that were inserted during the build, which
  the scan may have passed already, and writers have added.
- 10,000 at random places of the primary key where that is an integer or a UUID, and evenly spread; the others of the
  10,000 from both ends of it.

What was changed during the build in rows of before, and what was inserted where keys do not grow, is looked at no
more often than other rows. The error rate is that of absent keys drawn at random, with what chance allows for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import sqrt
from typing import Any

from ..exceptions import RebuildError
from ..sources import Source, key_of_row
from ..stores import Generation
from ..sync.state import LEASE_SECONDS

NEWEST_ROWS = 100_000
RANDOM_ROWS = 10_000
_BATCH_ROWS = 10_000
#: A store behind a network answers so many keys well within the 50 ms that it has for a check.
_KEYS_A_TRIP = 1_000
_PROBES = 100_000


class Proof:
    """Made before the generation of ``source`` is announced: it keeps in mind which rows there are by then."""

    def __init__(self, source: Source, sleep: Callable[[float], None]) -> None:
        self._source = source
        self._sleep = sleep
        self._newest = self._source.end("-pk")

    def rows_held(self, generation: Generation) -> int:
        """How many rows were read again, all of which are in ``generation``; raises :class:`RebuildError` if not."""
        keys, read, missing = self._keys(), 0, 0
        while batch := list(islice(keys, _BATCH_ROWS)):
            read += len(batch)
            absent = self._absent(generation, batch)
            if absent and self._source.guard.sync == "signals":
                self._sleep(LEASE_SECONDS)  # these are added after the commit: what we read may still be on its way
                absent = self._absent(generation, absent)
            missing += len(absent)
        if missing:
            raise RebuildError(
                f"{self._source.guard.name}: of {read:,} rows that were read again, {missing:,} are not in the new "
                "generation, which was not published. Did COPY, a trigger, another program or a process from before "
                "the guard write rows meanwhile? Run it again"
            )
        return read

    def error_rate(self, generation: Generation) -> float:
        """The share of absent keys that pass; raises :class:`RebuildError` if that is more than was promised."""
        promised = generation.layout.error_rate
        measured = generation.measure_error_rate(_PROBES)
        # Six standard deviations, and a few keys where hardly any are expected.
        if measured > promised + 6 * sqrt(promised / _PROBES) + 5 / _PROBES:
            raise RebuildError(
                f"{self._source.guard.name}: the new generation lets {measured:.4%} of absent keys pass where "
                f"{promised:.4%} were promised, and was not published"
            )
        return measured

    @staticmethod
    def _absent(generation: Generation, keys: list[bytes]) -> list[bytes]:
        trips = (keys[start : start + _KEYS_A_TRIP] for start in range(0, len(keys), _KEYS_A_TRIP))
        return [key for some in trips for key, held in zip(some, generation.might_contain_many(some)) if not held]

    def _keys(self) -> Iterator[bytes]:
        guard, seen = self._source.guard, set()
        for values in self._values():
            key = key_of_row(guard, values)
            if key is not None and key not in seen:
                seen.add(key)
                yield key

    def _values(self) -> Iterator[tuple[Any, ...]]:
        """What is looked up by, of every row that is read again."""
        names, rows = self._source.guard.attnames, self._source.rows()
        last = self._source.end("-pk")
        if last is None:
            return
        if last != self._newest:
            newest = rows if self._newest is None else rows.filter(pk__gt=self._newest)
            yield from newest.order_by("pk").values_list(*names)[:NEWEST_ROWS]
        yield from self._source.random_values(RANDOM_ROWS)
