"""Any order of operations, against a plain ``Counter``: no member is ever denied."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from .kinds import KINDS, key

KEYS = st.integers(0, 60)


class Machine(RuleBasedStateMachine):
    """Adds, discards, bulk adds, clears, and a way through bytes; ``model`` counts what is in."""

    kind = KINDS[0]

    def __init__(self):
        super().__init__()
        self.filter = self.kind.make(64)
        self.model = Counter()

    @rule(number=KEYS)
    def add(self, number):
        self.filter.add(key(number))
        self.model[number] += 1

    @rule(numbers=st.lists(KEYS, max_size=20))
    def add_many(self, numbers):
        self.filter.add_many(numbers)
        self.model.update(numbers)

    @rule(number=KEYS)
    def discard_a_member(self, number):
        if self.filter.supports_discard and self.model[number]:
            self.filter.discard(key(number))
            self.model[number] -= 1

    @rule()
    def clear(self):
        self.filter.clear()
        self.model.clear()

    @rule()
    def through_bytes(self):
        again = self.kind.cls.from_bytes(self.filter.to_bytes())
        assert again == self.filter
        self.filter = again

    @invariant()
    def members_are_found(self):
        members = [number for number, count in self.model.items() if count]
        assert all(self.filter.might_contain(key(number)) for number in members)
        assert self.filter.contains_many(members).all()

    @invariant()
    def both_checks_agree(self):
        probes = np.arange(-5, 80)
        singly = [self.filter.might_contain(key(number)) for number in probes.tolist()]
        assert self.filter.contains_many(probes).tolist() == singly


def run(kind, examples, steps):
    machine = type("Machine", (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None)
    )


def test_no_order_of_operations_denies_a_member(kind):
    """Each kind against a counter, in short runs."""
    run(kind, 15, 20)


@pytest.mark.slow
def test_no_long_order_of_operations_denies_a_member(kind):
    """The same in long runs."""
    run(kind, 300, 80)


class Frequencies(RuleBasedStateMachine):
    """The spectral filter's frequency is at least the true count, and saturated counters never go down."""

    def __init__(self):
        super().__init__()
        from bloomguard.filters import SpectralBloomFilter

        self.filter = SpectralBloomFilter(64, 0.01, width=8)
        self.model = Counter()

    @rule(number=KEYS, times=st.integers(1, 40))
    def add(self, number, times):
        self.filter.add_many([number] * times)
        self.model[number] += times

    @rule(number=KEYS)
    def discard(self, number):
        if self.model[number]:
            assert self.filter.discard(key(number))
            self.model[number] -= 1

    @invariant()
    def never_too_low(self):
        for number, count in self.model.items():
            assert self.filter.frequency(key(number)) >= count
        assert self.filter.frequencies(list(self.model)).tolist() == [
            self.filter.frequency(key(number)) for number in self.model
        ]


def test_a_frequency_is_never_too_low():
    run_state_machine_as_test(
        Frequencies, settings=settings(max_examples=20, stateful_step_count=20, deadline=None, database=None)
    )
