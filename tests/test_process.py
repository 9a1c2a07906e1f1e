"""A forked child resets every object that asked for it; what goes wrong at every request is logged once; its clock."""

from __future__ import annotations

import _thread
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from bloomguard import process
from bloomguard.process import LogOnce, is_within, seconds_left


@pytest.mark.parametrize(
    ("now", "is_there", "left"),
    [(100, True, 2), (101, True, 1), (102, False, 0), (9_000, False, 0), (99, False, 2), (-9_000, False, 2)],
)
def test_what_was_known_before_a_clock_went_back_is_of_unknown_age(now, is_there, left):
    """It counts as too old. A wait since then begins again, and takes no longer than it would have."""
    assert is_within(2, 100, now) is is_there
    assert seconds_left(2, 100, now) == left


class Told:
    """Counts how often it is called."""

    def __init__(self):
        self.times = 0
        process.after_fork(self.tell)

    def tell(self):
        self.times += 1


def test_objects_that_threads_make_at_once_are_all_told(monkeypatch):
    """Two requests may make the first locks and filters of a process side by side."""
    monkeypatch.setattr(process, "_resets", WeakKeyDictionary())
    barrier = threading.Barrier(20)
    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(lambda _: (barrier.wait() and None) or Told(), range(20)))

    process._run()

    assert [each.times for each in made] == [1] * 20


def test_what_is_gone_is_not_told(monkeypatch):
    """No object is kept alive, and none that is gone is remembered."""
    monkeypatch.setattr(process, "_resets", WeakKeyDictionary())
    kept = Told()
    for _ in range(1_000):
        Told()

    process._run()

    assert kept.times == 1
    assert list(process._resets) == [kept]


def test_a_lock_of_ones_own_is_made_anew(monkeypatch):
    """Another thread of the parent may hold it while it forks: the child's is free."""
    monkeypatch.setattr(process, "_resets", WeakKeyDictionary())

    class Owner:
        def __init__(self):
            self.turn = process.own_lock(self, "turn")

    kept, before = [Owner() for _ in range(2)], []
    for each in kept:
        before.append(each.turn)
        assert each.turn.acquire(blocking=False)
    del kept[1], each

    process._run()

    assert kept[0].turn is not before[0]
    assert kept[0].turn.acquire(blocking=False)
    assert list(process._resets) == kept


def test_a_child_whose_fork_ran_no_hooks_is_noticed_once(monkeypatch):
    """As in uWSGI: by the number of its process."""
    monkeypatch.setattr(process, "_resets", WeakKeyDictionary())
    monkeypatch.setattr(process, "pid", process.pid)
    told = Told()
    process.notice_fork()
    assert told.times == 0

    with monkeypatch.context() as child:
        child.setattr(process.os, "getpid", lambda: -1)
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda _: process.notice_fork(), range(20)))
        assert told.times == 1

    process.notice_fork()
    assert told.times == 2


def test_each_message_is_logged_once_for_each_type_of_error(caplog):
    """Two guards that fail alike are both named."""
    log = LogOnce()
    for _ in range(3):
        for name in ("city", "order"):
            log.error(ValueError("a text that differs"), "guard %s failed", name)
        log.error(KeyError("x"), "guard %s failed", "city")

    assert [record.getMessage() for record in caplog.records] == [
        "guard city failed",
        "guard order failed",
        "guard city failed",
    ]
    log.forget()
    log.error(ValueError("x"), "guard %s failed", "city")
    assert len(caplog.records) == 4


def test_nobody_waits_for_a_thread_that_never_begins(monkeypatch):
    """Without memory, a new thread dies before its first line; a request, or a write, must not wait for it."""
    monkeypatch.setattr(_thread, "start_new_thread", lambda run, given: 0)
    monkeypatch.setattr(threading.Thread, "start", None)  # which would wait

    assert not process.start_thread(print).is_set()


def test_no_thread_is_started_that_is_waited_for():
    """But pools at the start of a process and in a rebuild, which no request and no write runs."""
    starts = re.compile(r"\b(?:Thread|Timer)\(")
    files = Path(process.__file__).parent.rglob("*.py")

    assert [file.name for file in files if starts.search(file.read_text())] == []
