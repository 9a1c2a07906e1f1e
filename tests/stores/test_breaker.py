"""The circuit breaker: who waits for a server that is gone."""

from __future__ import annotations

import pytest

from bloomguard.stores.redis import commands
from bloomguard.stores.redis.commands import FAILURES, PROBE_SECONDS, WITHIN_SECONDS, Breaker
from tests.conftest import Clock


@pytest.fixture
def time():
    return Clock()


@pytest.fixture
def breaker(time, monkeypatch):
    monkeypatch.setattr(commands, "clock", time)
    return Breaker()


def fail(breaker, times=FAILURES):
    for _ in range(times):
        breaker.failed()


def test_it_lets_everybody_try_until_five_have_failed(breaker):
    """Four failures change nothing; the fifth opens it."""
    fail(breaker, FAILURES - 1)
    assert breaker.allows()

    breaker.failed()
    assert not breaker.allows()


def test_failures_long_ago_do_not_count(breaker, time):
    """Five failures that are spread over more than 10 s do not open it."""
    for _ in range(20):
        breaker.failed()
        time.sleep(WITHIN_SECONDS / (FAILURES - 1) + 0.01)

        assert breaker.allows()


def test_while_open_one_may_probe_every_two_seconds(breaker, time):
    """Of all who ask, one every 2 s is let through."""
    fail(breaker)
    let_through = 0
    for _ in range(100):
        time.sleep(0.1)
        let_through += sum(breaker.allows() for _ in range(10))

    assert let_through == 100 * 0.1 // PROBE_SECONDS
    time.sleep(-900)  # the clock went back
    assert breaker.allows()


def test_a_success_closes_it(breaker, time):
    """The first answer closes it, and what failed before is forgotten."""
    fail(breaker)
    time.sleep(PROBE_SECONDS)
    assert breaker.allows()

    breaker.succeeded()

    assert all(breaker.allows() for _ in range(10))
    fail(breaker, FAILURES - 1)
    assert breaker.allows()


@pytest.mark.timeout(60)
def test_the_handler_of_a_signal_does_not_wait_for_its_own_thread(breaker, time, monkeypatch):
    """It may come at any line, and ask for a guarded row itself."""
    fail(breaker)
    time.sleep(PROBE_SECONDS)

    def interrupted():
        monkeypatch.setattr(commands, "clock", time)
        breaker.failed()
        return time()

    monkeypatch.setattr(commands, "clock", interrupted)

    assert breaker.allows()
    assert not breaker.allows()


def test_a_failed_probe_leaves_it_open(breaker, time):
    """A probe that fails is no new beginning."""
    fail(breaker)
    time.sleep(PROBE_SECONDS)
    breaker.allows()

    breaker.failed()

    assert not breaker.allows()
