"""Reset objects in forked children, which must not share file locks, connections or held locks with the parent."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

#: Each returns what to call in a child, or ``None`` if its object is gone.
_methods: list[Callable[[], Callable[[], Any] | None]] = []
_lock = threading.Lock()
_pruned = 100  # the number of methods after the last removal of those whose objects are gone


def after_fork(method: Callable[[], Any]) -> None:
    """Call the bound ``method`` in every child that is forked from now on, as long as its object lives."""
    _append(weakref.WeakMethod(method))


def own_lock(owner: object, name: str) -> threading.Lock:
    """Return a lock for the attribute ``name`` of ``owner``, which gets a new one in every child."""
    weak = weakref.ref(owner)

    def renewal() -> Callable[[], None] | None:
        known = weak()
        return None if known is None else partial(setattr, known, name, threading.Lock())

    _append(renewal)
    return threading.Lock()


def _append(each: Callable[[], Callable[[], Any] | None]) -> None:
    global _pruned
    with _lock:
        if len(_methods) > 2 * _pruned:  # not at each call: it looks at all of them
            _methods[:] = [known for known in _methods if known() is not None]
            _pruned = max(len(_methods), 100)
        _methods.append(each)


def _run() -> None:
    global _lock
    _lock = threading.Lock()
    for known in _methods:
        method = known()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_run)
