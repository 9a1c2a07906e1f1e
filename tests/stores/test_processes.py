"""Processes that share one file store: nothing that was added is ever lost."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bloomguard.exceptions import StoreError
from bloomguard.filters import CorruptFilter
from bloomguard.filters.codec import Frame
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.stores import disk
from bloomguard.stores.file import FileStore

from .conftest import fill, find, key, make_layout

fork = multiprocessing.get_context("fork")

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

ROOT = Path(__file__).parents[2]

ADDS, ROUND, PROCESSES = 800_000, 20_000, 4


def numbers_of(part: int, number: int) -> range:
    """What one process adds in one round; the four of them interleave, so that they write neighbouring bits."""
    return range(number * ROUND + part, (number + 1) * ROUND, PROCESSES)


def add(generation, one, tries=10) -> None:
    """On a busy machine whoever has the lock may be kept from running for longer than others wait."""
    for _ in range(tries - 1):
        with suppress(StoreError):
            return generation.add([one])
    return generation.add([one])


def add_and_check(path, part, rounds, barrier, lost) -> None:
    sys.settrace(None)  # no coverage here: it takes minutes for so many adds
    files, missed = FileStore("default", path=path), 0
    for number in range(rounds):
        generation = files.open("city", str(number), find)
        mine = numbers_of(part, number)
        barrier.wait(60)  # all of them in one small filter at once
        for at in mine:
            add(generation, key(at))
            missed += not generation.might_contain(key(random.randrange(mine.start, at + 1, PROCESSES)))
        missed += sum(not generation.might_contain(key(at)) for at in mine)
    lost.put(missed)


def test_four_processes_lose_no_bit(files):
    """4 processes add and check in the same files at once: 800,000 adds, and not one bit is lost or made up."""
    rounds = ADDS // ROUND
    for number in range(rounds):
        files.create("city", str(number), make_layout())
    barrier, lost = fork.Barrier(PROCESSES), fork.SimpleQueue()
    crew = [fork.Process(target=add_and_check, args=(files.path, part, rounds, barrier, lost)) for part in range(4)]
    for each in crew:
        each.start()
    for each in crew:
        each.join()

    assert [each.exitcode for each in crew] == [0] * PROCESSES
    assert [lost.get() for _ in crew] == [0] * PROCESSES
    for number in range(rounds):
        shared = files.open("city", str(number), find)
        alone = files.create("city", f"alone-{number}", make_layout())
        alone.add_many(np.arange(number * ROUND, (number + 1) * ROUND))
        assert Frame.open(shared._buffers[0]).body == Frame.open(alone._buffers[0]).body


def test_a_forked_child_adds_beside_its_parent(tmp_path):
    """Children that were forked while a thread of their parent was adding can add at once; none hangs."""
    # In a process of its own that nothing measures: a tracer has locks too, and a fork finds them held.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = "import sys; from tests.stores.forking import main; main(sys.argv[1])"

    done = subprocess.run([sys.executable, "-c", command, str(tmp_path)], env=unmeasured, timeout=250, cwd=ROOT)

    assert done.returncode == 0


def _die_while_adding(path) -> None:
    generation = FileStore("default", path=path).open("city", "a", find)
    add_bits = Frame.add_bits

    def cut_short(positions):
        yield from positions[:2]
        os.kill(os.getpid(), signal.SIGKILL)

    Frame.add_bits = lambda frame, positions: add_bits(frame, cut_short(positions))  # in this process, which is a copy
    generation.add([key(1_000_000)])


def _die_while_building(path) -> None:
    generation = FileStore("default", path=path).open("city", "a", find)
    _, attached = generation._shard(0)
    add_digests = attached.add_digests

    def interrupted(low, high):
        add_digests(low[: len(low) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    attached.add_digests = interrupted
    generation.add_many(np.arange(5_000, 15_000))


@pytest.mark.parametrize("die", [_die_while_adding, _die_while_building])
def test_a_writer_that_was_killed_harms_nobody(files, die):
    """Killed between two bytes of an add, or in the middle of a bulk: others still trust the filter, and the next add
    mends its checksum."""
    files.create("city", "a", make_layout()).add(list(map(key, range(100))))
    child = fork.Process(target=die, args=(files.path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert Frame.open(files.open("city", "a", find)._buffers[0]).dirty

    opened = files.open("city", "a", find)
    assert all(opened.might_contain(key(number)) for number in range(100))
    opened.add([key(200)])

    assert not Frame.open(opened._buffers[0]).dirty
    assert fill(files.open("city", "a", find)) == fill(opened)


def test_a_forked_child_opens_its_own(tmp_path, settings):
    """What a process has opened is not used by its forked child: its copy of memory sees nobody else's adds."""
    live = ActiveFilter("city", store_alias="default", definition="", width=8)
    live._opened, live.last_check = {"a": "the parent's"}, lambda key: False

    def child(queue):
        queue.put((live._opened, live.last_check is None))

    queue = fork.SimpleQueue()
    process = fork.Process(target=child, args=(queue,))
    process.start()
    process.join()

    assert queue.get() == ({}, True)


def test_a_child_whose_fork_ran_no_hooks_is_locked_out_by_its_parent(files, monkeypatch):
    """As in uWSGI, which forks in C: ``flock`` would not exclude a child that shares its parent's open file."""
    monkeypatch.setattr(disk, "LOCK_SECONDS", 0.2)
    lock = files.create("city", "a", make_layout())._locked
    with lock(True):
        pass
    with lock(True):
        child = ctypes.PyDLL(None).fork()
        if not child:  # the thread that holds the lock is the one that is copied; in a worker it is another one
            lock._thread = threading.RLock()
            try:
                lock(True).__enter__()
            except StoreError:
                os._exit(7)
            os._exit(0)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7


def test_a_reader_takes_no_lock(files):
    """Whoever only asks does not wait for writers, once the filter is open."""
    generation = files.create("city", "a", make_layout())
    with generation._locked(True):
        answered = []
        thread = threading.Thread(target=lambda: answered.append(generation.might_contain(key(1))))
        thread.start()
        thread.join(60)

    assert answered == [False]


def test_a_damaged_file_is_said_to_be_so_in_every_process(files):
    """A process that opens a damaged file refuses it, whatever others that opened it before think of it."""
    made = files.create("city", "a", make_layout())
    made._buffers[0][-200] ^= 4

    with pytest.raises(CorruptFilter):
        files.open("city", "a", find)
