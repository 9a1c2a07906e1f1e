"""What comes at a bad moment: exceptions, as those of a time limit or Ctrl-C, and threads that hold a lock."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread holds the lock: its own could take it again."""
    with ThreadPoolExecutor(1) as other:
        other.submit(lock.acquire).result()
        try:
            yield
        finally:
            other.submit(lock.release).result()
