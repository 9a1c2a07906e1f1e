"""What this process records of each guard: counters of verdicts and of outcomes of requests; listeners to verdicts.

Counting takes no lock and loses no count: a counter is an ``itertools.count``, and ``next()`` on it is atomic.

Listeners get every verdict: the logger ``bloomguard.verdicts`` at DEBUG, and the debug toolbar's panel; without them
nothing is logged. IDs are shown as keyed digests: equal IDs have equal ones, and a digest does not reveal its ID.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count as numbers
from itertools import cycle
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..conf import settings
from ..process import after_fork, log_once, own_lock
from ..signals import asend, request_blocked, send
from ..state.verdicts import CAUGHT, DECISIONS, DISABLED, Decision, Verdict

if TYPE_CHECKING:
    from .guard import Guard

#: A guard answered ABSENT for a row that exists.
FALSE_ABSENCE = CAUGHT.reason
#: A request was answered 404 because of a guard: at the door, at the route, or after a query that the guard answered.
BLOCKED = "blocked"
#: A guard answered a query, and the request continued.
AVOIDED = "query avoided"
#: A guard answered MAYBE, but the row did not exist.
FALSE_POSITIVE = "false positive"
#: In shadow mode: requests that would have been answered 404, and those of them for which the site had a page.
WOULD_BLOCK, WOULD_HARM = "would-be 404", "would-be false 404"
#: The number of timed checks, and their total duration.
TIMED, MICROSECONDS = "timed", "microseconds"

#: The reasons of the verdicts ABSENT and UNKNOWN.
ABSENCES, UNKNOWNS = (
    tuple(each.reason for each in DECISIONS if each.verdict is verdict and each is not DISABLED)
    for verdict in (Verdict.ABSENT, Verdict.UNKNOWN)
)
#: The counters that stores keep, in the order of their columns: add a new name at the end.
NAMES = (
    *("absent", "out of range", "maybe", "unkeyable", "cold", "fenced", "lease", "identity", "unreachable"),
    *("untrusted", "error", FALSE_ABSENCE, "shadow", BLOCKED, AVOIDED, FALSE_POSITIVE, WOULD_BLOCK, WOULD_HARM),
    *(TIMED, MICROSECONDS, "remembered", "ambiguous", "writing"),
)

#: One check in this many is timed.
EVERY = 128
#: Durations that are kept until the next read.
_SAMPLES = 10_000


def one_in(every: int) -> Callable[[], bool]:
    """Return a function that returns ``True`` once in ``every`` calls; a call takes about 20 ns.

    Each process starts at a random place, also a forked one: its worker may be replaced after a few requests.
    """
    draw = cycle([True] + [False] * (every - 1)).__next__

    def begin() -> None:
        for _ in range(random.SystemRandom().randrange(every)):
            draw()

    begin()
    after_fork(begin)
    return draw


#: ``drawn()`` returns whether to time this check.
drawn: Callable[[], bool] = one_in(EVERY)


class Counters(dict[str, Callable[[], object]]):
    """One guard's counters: ``counters["maybe"]()`` adds one to ``maybe``."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._counts: dict[str, numbers[int]] = {}
        self._reads: dict[str, int] = {}
        self._samples: deque[int] = deque(maxlen=_SAMPLES)
        self._timed = self._nanoseconds = 0

    def __missing__(self, name: str) -> Callable[[], object]:
        add_one = self.setdefault(name, self._counts.setdefault(name, numbers()).__next__)
        self._begin()
        return add_one

    def time(self, began: int) -> None:
        """Record the duration of a check that began at ``began``, in nanoseconds of ``perf_counter_ns``."""
        self._samples.append(perf_counter_ns() - began)

    def read(self) -> dict[str, int]:
        """Return all counts so far. Only one thread at a time may call this."""
        found = {}
        for name, add_one in list(self._counts.items()):
            reads = self._reads.get(name, 0)
            found[name] = next(add_one) - reads  # each read takes a number, too
            self._reads[name] = reads + 1
        with suppress(IndexError):
            while True:
                self._nanoseconds += self._samples.popleft()
                self._timed += 1
        if self._timed:
            found |= {TIMED: self._timed, MICROSECONDS: self._nanoseconds // 1_000}
        return found

    def forget(self) -> None:
        """Set all counts to 0; references to this object stay valid."""
        self.clear()
        self.__init__(self._begin)  # type: ignore[misc]


class Counts:
    """The counters of all guards. ``begin`` is called when a counter is used for the first time."""

    def __init__(self) -> None:
        self.begin: Callable[[], None] = lambda: None
        self._counters: dict[str, Counters] = {}
        self._lock = own_lock(self, "_lock")
        after_fork(self.forget)  # the parent flushes its own counts

    def of(self, guard: str) -> Counters:
        """Return the counters of the guard named ``guard``."""
        return self._counters.setdefault(guard, Counters(self._begin))

    def _begin(self) -> None:
        with suppress(Exception):  # an error must not break the request
            self.begin()

    def read(self) -> dict[tuple[str, str], int]:
        """Return all counts that are not 0 since the process started, by guard and name."""
        with self._lock:
            return {
                (guard, name): number
                for guard, counters in list(self._counters.items())
                for name, number in counters.read().items()
                if number
            }

    def forget(self) -> None:
        """Set all counts to 0, as in a new process."""
        for counters in self._counters.values():
            counters.forget()


counts = Counts()


def blocked(guard: Guard, request: Any) -> None:
    """Count a request that ``guard`` answers 404, and send ``request_blocked``. Never raises.

    ``request`` is ``None`` if Django has made none yet.
    """
    guard._runtime.counters[BLOCKED]()
    if request_blocked.receivers:
        send(request_blocked, type(guard), guard=guard, request=request)


async def ablocked(guard: Guard, request: Any) -> None:
    """Do :func:`blocked` without running sync receivers on the event loop."""
    guard._runtime.counters[BLOCKED]()
    await asend(request_blocked, type(guard), guard=guard, request=request)


# -- listeners

verdict_logger = logging.getLogger("bloomguard.verdicts")
#: ``listener(guard, value, decision)`` is called after every verdict. Each type of error that it raises is logged once.
listeners: list[Callable[[Any, Any, Decision], None]] = []


def notify(guard: Guard, value: Any, decision: Decision) -> None:
    """Call all listeners. Never raises."""
    for listener in listeners:
        try:
            listener(guard, value, decision)
        except Exception as error:
            log_once.error(error, "bloomguard: a listener for the verdicts of %s failed", guard.name)


def digest(guard: Guard, value: Any) -> str:
    """Return the digest of ``value`` for this guard as 16 hexadecimal digits; empty if the value has no key."""
    try:
        key = guard._meta.keys.key(value)
    except Exception:  # the decision has the reason
        return ""
    return hashlib.blake2b(guard.name.encode() + b"\0" + key, key=settings.secrets[0], digest_size=8).hexdigest()


def log_verdict(guard: Guard, value: Any, decision: Decision) -> None:
    """Log one verdict; the record has the attributes ``guard``, ``key_digest``, ``verdict`` and ``reason``."""
    verdict, reason = decision.verdict.value, decision.reason
    fields = {"guard": guard.name, "key_digest": digest(guard, value), "verdict": verdict, "reason": reason}
    verdict_logger.debug("%(guard)s: %(verdict)s (%(reason)s) of %(key_digest)s", fields, extra=fields)


def log_if_wanted() -> None:
    """Start logging if the project's ``LOGGING`` enables the logger; called once, when Django starts."""
    if verdict_logger.isEnabledFor(logging.DEBUG) and verdict_logger.hasHandlers() and log_verdict not in listeners:
        listeners.append(log_verdict)
