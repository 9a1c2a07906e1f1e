"""What each process has for itself: its clock, what a fork resets, errors logged once, whether it is a test run."""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

logger = logging.getLogger("bloomguard")

#: Linux has a clock of its own that includes sleep. On macOS CLOCK_MONOTONIC does, and Python's ``monotonic`` does not.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
#: Returns monotonic seconds that include the host's sleep, so that no process trusts on wake-up what it read before.
#: All waits and caches use it: packages that freeze the time replace ``time.monotonic`` wherever a module names it.
seconds: Callable[[], float] = partial(time.monotonic) if _CLOCK is None else partial(time.clock_gettime, _CLOCK)

#: Each object that a forked child must reset, because it must not share file locks, connections or held locks with the
#: parent -> functions of the object that do it.
_resets: WeakKeyDictionary[object, list[Callable[[Any], object]]] = WeakKeyDictionary()
_lock = threading.RLock()
#: The process for which the objects were made, or reset.
pid = os.getpid()
_noticing = threading.RLock()


# The clock goes back in a container that another host restores from a checkpoint. What a process knows is then of
# unknown age, and a wait that has begun would take hours.


def is_within(duration: float, since: float, now: float) -> bool:
    """Return whether less than ``duration`` seconds have passed since ``since``; not if the clock went back."""
    return 0.0 <= now - since < duration


def seconds_left(duration: float, since: float, now: float) -> float:
    """Return how long to wait until ``duration`` seconds have passed since ``since``: all if the clock went back."""
    return max(0.0, duration - (now - since)) if now >= since else duration


def after_fork(call: Callable[[], Any]) -> None:
    """Call a function in every child that is forked from now on; a bound method as long as its object lives."""
    if hasattr(call, "__func__"):
        _append(call.__self__, call.__func__)  # type: ignore[attr-defined]
    else:
        _append(sys.modules[__name__], lambda _: call())


def own_lock(owner: object, name: str) -> Any:
    """Return a lock for the attribute ``name`` of ``owner``, which gets a new one in every child.

    Its own thread may take it again: a signal's handler, or a ``__del__``, may ask a guard in the middle of the block.
    """
    _append(owner, lambda known: setattr(known, name, threading.RLock()))
    return threading.RLock()


def _append(owner: object, reset: Callable[[Any], object]) -> None:
    with _lock:
        _resets.setdefault(owner, []).append(reset)


def notice_fork() -> None:
    """Reset all objects if this is a child whose fork ran none of Python's hooks, as a worker of uWSGI.

    Call it before a file lock or a connection is used that a parent may share.
    """
    if os.getpid() != pid:
        with _noticing:  # not in another thread's way, which has begun to use what is reset
            if os.getpid() != pid:
                _run()


def _run() -> None:
    global _lock, pid
    _lock = threading.RLock()
    for owner, resets in list(_resets.items()):
        for reset in resets:
            reset(owner)
    pid = os.getpid()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_run)


def start_thread(run: Callable[[], object]) -> threading.Event:
    """Run ``run`` in a thread that does not outlive the process; return an event that is set when it has ended.

    Raises :class:`RuntimeError` if no thread can be started. ``Thread.start`` waits for its thread to begin, without a
    limit, and one that finds no memory dies before.
    """
    ended = threading.Event()

    def run_and_set() -> None:
        try:
            run()
        finally:
            ended.set()

    _thread.start_new_thread(run_and_set, ())
    return ended


def is_test_run() -> bool:
    """Return whether Django's test environment is set up: a test run replaces the databases, and drops them later."""
    tests = sys.modules.get("django.test.utils")  # not imported here: a site does not need it
    return tests is not None and hasattr(tests._TestState, "saved_data")


class LogOnce:
    """A logger that logs each message once for each type of exception, so that requests do not flood the log."""

    def __init__(self) -> None:
        self._logged: set[tuple[object, ...]] = set()

    def error(self, error: Exception, message: str, *args: object) -> None:
        """Log ``error`` with the traceback; ``message`` and ``args`` as for :meth:`logging.Logger.error`, no IDs."""
        self.log(logging.ERROR, message, *args, error=error)

    def warning(self, message: str, *args: object) -> None:
        """:meth:`log` a warning."""
        self.log(logging.WARNING, message, *args)

    def log(self, level: int, message: str, *args: object, error: Exception | None = None) -> None:
        """Log ``message`` once with these ``args``; without ``error``, no traceback, which may contain an ID."""
        kind = (type(error), message, *args)
        if kind not in self._logged:
            self._logged.add(kind)
            logger.log(level, message, *args, exc_info=error)

    def forget(self) -> None:
        """Forget what was logged, as in a new process."""
        self._logged.clear()


#: For all messages that may come with each request.
log_once = LogOnce()
