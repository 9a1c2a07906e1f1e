"""Readers without a lock, while one writer moves fingerprints about: no member is ever denied."""

import mmap
import multiprocessing
import sys
import threading

import numpy as np
import pytest

from bloomguard.filters import CuckooFilter, KeyHash
from bloomguard.filters.codec import Frame
from bloomguard.filters.layout import Layout

from .kinds import key

CAPACITY = 2_000
MEMBERS = CAPACITY * 9 // 10


def churn(frame, filter, rounds):
    """Adds and discards at load 0.95 by planned writes, as a store applies them; the members stay."""
    spare = list(range(MEMBERS, CAPACITY))
    for number in spare:
        frame.write(filter.writes(filter.digest(key(number))))
    for number in range(CAPACITY, CAPACITY + rounds):
        frame.write(filter.discard_writes(filter.digest(key(spare.pop(0)))))
        frame.write(filter.writes(filter.digest(key(number))))
        spare.append(number)


@pytest.fixture
def built():
    layout = Layout.plan(key_hash=KeyHash(8), capacity=CAPACITY, error_rate=0.01, kind="cuckoo")
    memory = mmap.mmap(-1, layout.header.frame_bytes)
    frame = Frame.format(layout.header, memoryview(memory))
    filter = layout.attach(frame)
    filter.add_many(np.arange(MEMBERS))
    frame.seal()
    return frame, filter


def test_readers_in_threads_miss_no_member(built):
    """Threads that change places after every few instructions."""
    frame, filter = built
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writer = threading.Thread(target=churn, args=(frame, filter, 1_500))
        writer.start()
        missed = []
        while writer.is_alive():
            missed += [number for number in range(MEMBERS) if not filter.might_contain(key(number))]
            missed += np.flatnonzero(~filter.contains_many(np.arange(MEMBERS))).tolist()
        writer.join()
    finally:
        sys.setswitchinterval(interval)

    assert missed == []
    frame.verify()
    assert isinstance(filter, CuckooFilter)
    assert filter.size() == CAPACITY


@pytest.mark.slow
def test_readers_in_other_processes_miss_no_member(built):
    """The same with memory shared between processes."""
    frame, filter = built
    context = multiprocessing.get_context("fork")
    writer = context.Process(target=churn, args=(frame, filter, 100_000))
    writer.start()
    missed = 0
    while writer.is_alive():
        missed += sum(not filter.might_contain(key(number)) for number in range(MEMBERS))
        missed += int((~filter.contains_many(np.arange(MEMBERS))).sum())
    writer.join()

    assert writer.exitcode == 0
    assert missed == 0
    assert filter.size() == CAPACITY
