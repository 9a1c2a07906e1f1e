"""The lock of writers in files: whatever interrupts one, the next gets it."""

from __future__ import annotations

import os
import threading
from contextlib import _GeneratorContextManager, suppress

import pytest

from bloomguard.exceptions import StoreError
from bloomguard.stores.file import FileStore

from .conftest import find, key, make_layout


def _take_in_a_thread(lock):
    """Whether another thread, which has another open file, gets the lock."""
    taken = []

    def take():
        with lock(True):
            taken.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(60)
    return bool(taken)


@pytest.mark.parametrize("where", ["acquired", "flock", "left"])
def test_an_interrupted_writer_leaves_nothing_locked(files, monkeypatch, where):
    """A time limit may raise its exception at any line: else the adds of all processes would fail from then on."""
    made = files.create("city", "a", make_layout())
    other = FileStore("default", path=files.path).open("city", "a", find)
    with made._locked(True):
        pass

    def interrupt(*args, **named):
        raise KeyboardInterrupt

    class Interrupted:
        def __init__(self, own):
            self.own, self.release, self._is_owned = own, own.release, own._is_owned

        def acquire(self, **named):
            self.own.acquire(**named)
            raise KeyboardInterrupt

    def write():
        with suppress(KeyboardInterrupt), made._locked(True):
            pass

    with monkeypatch.context() as patch:
        if where == "acquired":
            patch.setattr(made._locked, "_thread", Interrupted(made._locked._thread))
        elif where == "flock":
            patch.setattr(os, "fstat", interrupt)
        else:
            patch.setattr(_GeneratorContextManager, "__exit__", interrupt)
        write()

    for each in (made, other):
        assert _take_in_a_thread(each._locked)


def test_a_thread_does_not_write_in_the_middle_of_its_own_write(files):
    """As the handler of a signal may try to."""
    made = files.create("city", "a", make_layout())
    with made._locked(True), pytest.raises(StoreError, match="this thread holds"):
        made.add([key(1)])
    made.add([key(1)])

    assert made.might_contain(key(1))
