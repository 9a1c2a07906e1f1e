"""What this process has counted of each guard since it began: verdicts by reason, and what came of them.

Counting takes no lock and loses nothing: a tally is an ``itertools.count``, whose next number is one atomic step.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count as numbers
from itertools import cycle
from time import perf_counter_ns

from ..forks import after_fork

#: A guard said ABSENT of a row that is there.
FALSE_ABSENCE = "false absence"
#: A request ended as a 404 because of a guard: at the door, at the route, or after a query that the guard answered.
BLOCKED = "blocked"
#: A guard answered a query, and the request went on.
SPARED = "spared"
#: A guard said MAYBE, and then there was nothing.
FALSE_POSITIVE = "false positive"
#: A request to a guard in shadow mode would have been answered 404, and one of these that the site had a page for.
WOULD_BLOCK, WOULD_HARM = "would-be 404", "would-be false 404"
#: How many checks were timed, and what they took together.
TIMED, MICROSECONDS = "timed", "microseconds"

#: The filter would have said MAYBE, but the database was asked before.
REMEMBERED = "remembered"

#: The reasons of an absence, and of saying nothing.
ABSENCES = ("absent", "out of range", REMEMBERED)
UNKNOWNS = (
    "unkeyable",
    "cold",
    "fenced",
    "lease",
    "identity",
    "unreachable",
    "untrusted",
    "error",
    FALSE_ABSENCE,
    "shadow",
)
#: What is kept in stores, in the order of their columns: a new name goes to the end.
NAMES = (
    *("absent", "out of range", "maybe"),
    *UNKNOWNS,
    *(BLOCKED, SPARED, FALSE_POSITIVE, WOULD_BLOCK, WOULD_HARM, TIMED, MICROSECONDS, REMEMBERED),
)

#: One check in so many is timed.
EVERY = 128
#: Times that wait for somebody to read them.
_SAMPLES = 10_000


def one_in(every: int) -> Callable[[], bool]:
    """A function that says yes once in so many times; it takes some 20 ns.

    From a place of each process's own: of many that are replaced after a few requests, some still say it.
    """
    place = random.SystemRandom().randrange(every)
    return cycle([number == place for number in range(every)]).__next__


#: ``drawn()``: whether to time this check.
drawn: Callable[[], bool] = one_in(EVERY)


class Tallies(dict[str, Callable[[], object]]):
    """One guard's tallies: ``tallies["maybe"]()`` counts one more ``maybe``."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._counts: dict[str, numbers[int]] = {}
        self._reads: dict[str, int] = {}
        self._samples: deque[int] = deque(maxlen=_SAMPLES)
        self._timed = self._nanoseconds = 0

    def __missing__(self, name: str) -> Callable[[], object]:
        tally = self.setdefault(name, self._counts.setdefault(name, numbers()).__next__)
        self._begin()
        return tally

    def time(self, began: int) -> None:
        """Note what a check took that began at ``began`` by ``perf_counter_ns``."""
        self._samples.append(perf_counter_ns() - began)

    def read(self) -> dict[str, int]:
        """All counts so far. To be called by one thread at a time."""
        found = {}
        for name, tally in list(self._counts.items()):
            reads = self._reads.get(name, 0)
            found[name] = next(tally) - reads  # which counts the looks as well
            self._reads[name] = reads + 1
        with suppress(IndexError):
            while True:
                self._nanoseconds += self._samples.popleft()
                self._timed += 1
        if self._timed:
            found |= {TIMED: self._timed, MICROSECONDS: self._nanoseconds // 1_000}
        return found

    def forget(self) -> None:
        """Begin anew; whoever holds this object goes on with it."""
        self.clear()
        self.__init__(self._begin)  # type: ignore[misc]


class Counts:
    """The tallies of all guards. ``begin`` is called when something is counted for the first time."""

    def __init__(self) -> None:
        self.begin: Callable[[], None] = lambda: None
        self._tallies: dict[str, Tallies] = {}
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self.forget()  # the parent gives account of what it counted

    def of(self, guard: str) -> Tallies:
        """The tallies of the guard named ``guard``."""
        return self._tallies.setdefault(guard, Tallies(self._begin))

    def _begin(self) -> None:
        with suppress(Exception):  # whoever counts has a request to answer
            self.begin()

    def read(self) -> dict[tuple[str, str], int]:
        """All counts since the process began, by guard and name."""
        with self._lock:
            return {
                (guard, name): number
                for guard, tallies in list(self._tallies.items())
                for name, number in tallies.read().items()
                if number
            }

    def forget(self) -> None:
        """Begin anew, as a process that has just started."""
        for tallies in self._tallies.values():
            tallies.forget()


counts = Counts()
