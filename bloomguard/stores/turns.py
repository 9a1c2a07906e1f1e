"""Locks that one thread holds during disk or network I/O, so that other threads wait for a limited time only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..exceptions import StoreUnavailable

#: Maximum seconds that a thread waits while another one opens a filter or creates a store.
OPEN_SECONDS = 2.0


@contextmanager
def turn(lock: threading.Lock, what: str) -> Iterator[None]:
    """Hold ``lock``; raises :class:`StoreUnavailable` if another thread has held it for ``what`` for too long."""
    if not lock.acquire(timeout=OPEN_SECONDS):
        raise StoreUnavailable(f"another thread has been {what} for {OPEN_SECONDS:g} s")
    try:
        yield
    finally:
        lock.release()
