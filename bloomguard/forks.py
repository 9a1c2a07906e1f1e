"""Reset objects in forked children, which must not share file locks, connections or held locks with the parent."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_methods: list[weakref.WeakMethod[Callable[[], None]]] = []
_lock = threading.Lock()


def after_fork(method: Callable[[], Any]) -> None:
    """Call the bound ``method`` in every child that is forked from now on, as long as its object lives."""
    with _lock:
        _methods[:] = [known for known in _methods if known() is not None]
        _methods.append(weakref.WeakMethod(method))


def _run() -> None:
    global _lock
    _lock = threading.Lock()
    for known in _methods:
        method = known()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_run)
