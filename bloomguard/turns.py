"""Locks that are held while somebody waits for a disk or a server: others wait for them no longer than they say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .exceptions import StoreUnavailable

#: How long, in seconds, a thread waits for another one that opens a filter, or makes a store.
OPEN_SECONDS = 2.0


@contextmanager
def turn(lock: threading.Lock, what: str) -> Iterator[None]:
    """Hold ``lock``; raises :class:`StoreUnavailable` if another thread has been doing ``what`` for too long."""
    if not lock.acquire(timeout=OPEN_SECONDS):
        raise StoreUnavailable(f"another thread has been {what} for {OPEN_SECONDS:g} s", "busy")
    try:
        yield
    finally:
        lock.release()
