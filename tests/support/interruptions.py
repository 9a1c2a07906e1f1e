"""Exceptions that come at a bad moment, as those of a time limit or Ctrl-C."""

from __future__ import annotations

from typing import Any


class InterruptedLock:
    """A lock that is taken, and whose ``acquire()`` does not return."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self.release, self._is_owned = own.release, own._is_owned

    def acquire(self, *arguments: Any, **named: Any) -> bool:
        """Take the lock and raise KeyboardInterrupt."""
        self._own.acquire(*arguments, **named)
        raise KeyboardInterrupt
