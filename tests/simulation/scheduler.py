"""Simulated time: agents are greenlets that run real, blocking code, and a seed decides who goes on when.

Every seam (a trip to a server, a statement, a sleep, a look at a clock) calls :meth:`Scheduler.hop` or
:meth:`Scheduler.sleep`, and whatever else is due may happen before they return. Times are multiples of a sixteenth of a
second, which binary floats add up exactly, so that "exactly a lease later" does come up.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import greenlet

TICK = 1 / 16
START = 1_000.0

#: How long a hop takes, in ticks, on a host that is quick, uneven or slow; a long one is longer than a lease.
_LONG = [10, 14, 15, 16, 17, 18, 24, 31, 32, 33, 40]
_QUICK = [0] * 80 + [1] * 20
_UNEVEN = [0] * 160 + [1] * 16 + [4, 6, 8, 10, 12] * 3 + _LONG
_SLOW = [0, 0, 1, 1, 2, 3] * 30 + [4, 6] * 6 + _LONG
PACES = [_QUICK, _UNEVEN, _UNEVEN, _SLOW]


class Killed(BaseException):
    """A process ends here, as by ``kill -9``: nothing that it still tries has any effect."""


class Agent:
    """A thread of a simulated process."""

    def __init__(self, name: str, process: Any, run: greenlet.greenlet) -> None:
        self.name = name
        self.process = process
        self.run = run


class Scheduler:
    """Runs agents by virtual time. ``trace`` collects lines if it is a list."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        self.rng = random.Random(seed)
        self.random = self.rng.random
        self.trace = trace
        self.now = START
        self.current: Agent = None  # type: ignore[assignment]
        self.events = 0
        self._over = False
        self._until = START
        self._heap: list[tuple[float, float, Agent]] = []
        self._hub = greenlet.getcurrent()
        self._agents: list[Agent] = []

    def spawn(self, name: str, process: Any, target: Callable[..., None], *arguments: Any, delay: float = 0.0) -> Agent:
        """A new agent that begins ``delay`` seconds from now."""

        def run() -> None:
            try:
                self._check(agent)
                target(*arguments)
            except Killed:
                pass

        agent = Agent(name, process, greenlet.greenlet(run, self._hub))
        self._agents.append(agent)
        self._push(agent, delay)
        return agent

    def run(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass; what an agent raises comes out here."""
        self._until, heap = self.now + seconds, self._heap
        try:
            while heap and heap[0][0] <= self._until:
                self.now, _, agent = heapq.heappop(heap)
                if agent.process.asleep_until > self.now:
                    heapq.heappush(heap, (agent.process.asleep_until, self.random(), agent))
                    continue
                self.current = agent
                self.events += 1
                agent.run.switch()
        finally:
            self._over = True
            for agent in self._agents:
                if agent.run and not agent.run.dead:
                    self.current = agent
                    agent.run.throw(Killed)

    def hop(self) -> None:
        """A moment in which others may act: a message on its way, a thread that was not scheduled."""
        hops = self.current.process.pace
        self.sleep(hops[int(self.random() * len(hops))] * TICK)

    def sleep(self, seconds: float) -> None:
        """Go on ``seconds`` later, or a little after that."""
        agent = self.current
        self._check(agent)
        entry = (self.now + seconds, self.random(), agent)
        awake = agent.process.asleep_until <= entry[0]
        if awake and entry[0] <= self._until and (not self._heap or entry < self._heap[0]):
            self.now = entry[0]
            self._check(agent)
            return
        heapq.heappush(self._heap, entry)
        self._hub.switch()
        self._check(agent)

    def note(self, *words: Any) -> None:
        """A line for the trace."""
        if self.trace is not None:
            name = self.current.name if self.current else "-"
            self.trace.append(f"{self.now - START:8.4f} {name:18} {' '.join(map(str, words))}")

    def _push(self, agent: Agent, delay: float) -> None:
        heapq.heappush(self._heap, (self.now + delay, self.random(), agent))

    def _check(self, agent: Agent) -> None:
        if self._over or agent.process.dead:
            raise Killed


class Lock:
    """A ``threading.RLock`` between agents; none takes one twice."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._holder: object = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        until = self._scheduler.now + timeout
        while self._held:
            if not blocking or (timeout >= 0 and self._scheduler.now >= until):
                return False
            self._scheduler.sleep(TICK)
        self._held, self._holder = True, greenlet.getcurrent()
        return True

    def _is_owned(self) -> bool:
        return self._held and self._holder is greenlet.getcurrent()

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()
