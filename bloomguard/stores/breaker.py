"""A circuit breaker: after a few failures nobody waits for a server that is gone, except one probe now and then."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ..forks import after_fork

FAILURES = 5
WITHIN_SECONDS = 10.0
PROBE_SECONDS = 2.0


class Breaker:
    """Open after 5 failures in 10 s; while it is open, :meth:`allows` says yes once every 2 s. A success closes it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=FAILURES)
        self._probe_at: float | None = None  # when the next probe is due; None while it is closed
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether reads are refused now, all but a probe now and then."""
        return self._probe_at is not None

    def allows(self) -> bool:
        """Whether to try now."""
        if self._probe_at is None:
            return True
        with self._lock:
            now = self._clock()
            if self._probe_at is None:
                return True
            if now < self._probe_at:
                return False
            self._probe_at = now + PROBE_SECONDS
            return True

    def failed(self) -> bool:
        """Count a failure; tells whether it opened the breaker."""
        with self._lock:
            now = self._clock()
            self._failures.append(now)
            full = len(self._failures) == FAILURES and now - self._failures[0] <= WITHIN_SECONDS
            if self._probe_at is None and full:
                self._probe_at = now + PROBE_SECONDS
                return True
            return False

    def succeeded(self) -> None:
        """The server answered."""
        if self._probe_at is not None:
            with self._lock:
                self._failures.clear()
                self._probe_at = None
