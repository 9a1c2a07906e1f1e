"""The lock of writers in files: whatever interrupts one, the next gets it."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from itertools import count

import numpy as np
import pytest

from bloomguard.exceptions import StoreError
from bloomguard.process import seconds
from bloomguard.stores import disk, file, frames
from bloomguard.stores.file import FileStore
from tests.support.interruptions import InterruptedLock

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

    def write():
        with suppress(KeyboardInterrupt), made._locked(True):
            pass

    with monkeypatch.context() as patch:
        if where == "acquired":
            patch.setattr(made._locked, "_thread", InterruptedLock(made._locked._thread))
        elif where == "flock":
            patch.setattr(os, "pwrite", interrupt)
            made._locked._written_at = float("-inf")
        if where == "left":
            made._locked(True).__enter__()  # and the interruption comes before anything is unlocked
        else:
            write()

    for each in (made, other):
        assert _take_in_a_thread(each._locked)


@pytest.mark.timeout(60)
def test_a_frozen_time_ends_no_wait_late(files, monkeypatch):
    """Packages that freeze the time for tests replace `time.monotonic`: a wait for a lock still has its limit."""
    made = files.create("city", "a", make_layout())
    other = FileStore("default", path=files.path).open("city", "a", find)
    monkeypatch.setattr(disk, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)

    with made._locked(True), pytest.raises(StoreError, match="has been locked"):
        other.add([key(1)])


def test_a_file_system_that_numbers_a_file_anew_at_each_look_gets_no_filter(files, monkeypatch):
    """As some FUSE ones do: whether two writers lock one file cannot be told there."""
    numbers = count()
    for module in (disk, file):
        monkeypatch.setattr(module, "file_id", lambda opened: str(next(numbers)))

    with pytest.raises(StoreError, match="has been replaced"):
        files.create("city", "a", make_layout())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "turns"), [("cuckoo", 8), ("bloom", 1)])
@pytest.mark.parametrize(
    "add",
    [
        lambda made, numbers: made.add_many(numbers),
        lambda made, numbers: made.add(numbers),
        lambda made, numbers: made.add(numbers, once=True),
    ],
    ids=["add_many", "add", "add once"],
)
def test_a_bulk_add_lets_others_write_in_between(files, monkeypatch, kind, turns, add):
    """To place fingerprints takes the longer the fuller a filter is: a page of them took more than a writer waits.

    So did the rows of one ``bulk_create``.
    """
    made = files.create("city", "a", make_layout(kind=kind, capacity=60_000))
    taken, paused = [], []
    locked = made._locked

    def lock(exclusive):
        taken.append(exclusive)
        return locked(exclusive)

    monkeypatch.setattr(made, "_locked", lock)
    monkeypatch.setattr(time, "sleep", paused.append)
    numbers = np.arange(60_000)

    add(made, numbers)

    assert (len(taken), len(paused)) == (turns, turns - 1)
    monkeypatch.undo()
    made.seal()
    assert all(made.might_contain(key(int(number))) for number in numbers[::100])


def test_keys_added_one_by_one_let_others_write_in_between(files, monkeypatch):
    """A large filter adds thousands of keys one by one; each takes a search of many buckets if it is nearly full."""
    made = files.create("city", "a", make_layout(kind="cuckoo"))
    made._several = 1_001
    taken = []
    locked = made._locked
    monkeypatch.setattr(made, "_locked", lambda exclusive: taken.append(exclusive) or locked(exclusive))

    made.add([key(number) for number in range(1_000)])

    assert len(taken) == 4
    assert all(made.might_contain(key(number)) for number in range(1_000))


def test_a_thread_does_not_write_in_the_middle_of_its_own_write(place):
    """As the handler of a signal may try to. It does not wait for itself either."""
    made = place.store.create("city", "a", make_layout())
    with made._locked(True), pytest.raises(StoreError, match="this thread"):
        made.add([key(1)])
    made.add([key(1)])

    assert made.might_contain(key(1))


@pytest.mark.parametrize("step", [disk.WRITABLE_SECONDS, -900], ids=["later", "after the clock went back"])
def test_a_disk_that_takes_no_more_writes_takes_no_add(files, monkeypatch, step):
    """After an error ext4 is read-only, but mapped files still take bits in memory, which are lost when it is repaired
    and mounted again, without a reboot. Other file systems kill whoever writes to a mapped file (SIGBUS)."""
    made, now = files.create("city", "a", make_layout()), [seconds()]
    monkeypatch.setattr(frames, "seconds", lambda: now[0])
    made.add([key(1)])
    bits = bytes(made.read_shard(0).buffer)

    def refuse(*args):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        now[0] += step
        for keys in ([key(2)], list(map(key, range(100, 200))), list(map(key, range(1_000, 9_000)))):
            with pytest.raises(StoreError, match="Read-only"):
                made.add(keys)
        assert made.might_contain(key(1))
    assert made.read_shard(0).buffer == bits

    made.add([key(2)])
    assert made.might_contain(key(2))
