"""A cuckoo filter without room: what spills is never denied, and no key takes more than its share of the room."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from bloomguard.filters import CuckooFilter
from bloomguard.filters.cuckoo_table import SLOTS, SPILLED

from .kinds import key

BITS = [8, 16, 32]


def twin(bits, fingerprint, bucket, salt=0):
    """A digest with this fingerprint and first bucket; one with another salt is its twin."""
    return fingerprint << (128 - bits) | salt << 60 | bucket


def split(digests):
    """The low and high parts of digests, as bulk adds take them."""
    both = np.array([[digest & (1 << 60) - 1, digest >> 64] for digest in digests], np.uint64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


class Crowd(RuleBasedStateMachine):
    """All keys are made to have one of few fingerprints and one of few pairs of buckets; ``model`` counts them."""

    bits = 32

    def __init__(self):
        super().__init__()
        self.filter = CuckooFilter(12, 0.05, fingerprint_bits=self.bits, width=8)
        shape = self.filter.layout
        pairs = [(0, 5), (1, 5), (2, 5), (shape.other(5, 0), 5), (0, 6), (3, 7)]
        self.digests = [twin(self.bits, f, bucket, salt) for bucket, f in pairs for salt in (0, 1)]
        self.digests += [twin(self.bits, f, f % shape.buckets) for f in range(20, 60)]
        self.model = Counter()

    choice = st.integers(0, 51)

    @rule(number=choice, times=st.integers(1, 12))
    def add(self, number, times):
        for _ in range(times):
            self.filter._apply(self.filter.writes(self.digests[number]))
            self.model[number] += 1

    @rule(number=choice, after=st.integers(0, 12))
    def crash_in_an_add(self, number, after):
        self.filter._apply(self.filter.writes(self.digests[number])[:after])

    @rule(numbers=st.lists(choice, max_size=60))
    def add_in_bulk(self, numbers):
        self.filter.add_digests(*split([self.digests[number] for number in numbers]))
        self.model.update(numbers)

    @rule(number=choice, planned=st.booleans())
    def discard_a_member(self, number, planned):
        if self.model[number]:
            self.filter._apply(self.filter.discard_writes(self.digests[number]))
            self.model[number] -= 1

    @rule()
    def through_bytes(self):
        self.filter = CuckooFilter.from_bytes(self.filter.to_bytes())

    @invariant()
    def members_are_found(self):
        members = [self.digests[number] for number, count in self.model.items() if count]
        assert all(map(self.filter.might_contain_digest, members))
        assert self.filter.contains_digests(*split(members)).all()

    @invariant()
    def all_checks_agree(self):
        singly = [self.filter.might_contain_digest(digest) for digest in self.digests]
        assert self.filter.contains_digests(*split(self.digests)).tolist() == singly


def run(bits, examples, steps):
    machine = type("Machine", (Crowd,), {"bits": bits})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None)
    )


@pytest.mark.parametrize("bits", BITS)
def test_no_crowd_makes_it_deny_a_member(bits):
    """Adds, discards, bulk adds and crashes of keys that share fingerprints and buckets, against a counter."""
    run(bits, 40, 30)


@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
def test_no_large_crowd_makes_it_deny_a_member(bits):
    """The same for longer."""
    run(bits, 1_500, 100)


@given(order=st.permutations(range(10)), bits=st.sampled_from(BITS))
@settings(max_examples=50, deadline=None, database=None)
def test_a_discard_of_a_twin_that_spilled_changes_nothing(order, bits):
    """Ten twins, one more than their buckets hold: whichever of them are discarded, the others are found."""
    filter = CuckooFilter(100, 0.05, fingerprint_bits=bits, width=8)
    twins = [twin(bits, 9, 3, salt) for salt in range(10)]
    for digest in twins:
        filter._apply(filter.writes(digest))
    before = bytes(filter.body)

    for number in order[:9]:
        filter._apply(filter.discard_writes(twins[number]))

    assert filter.might_contain_digest(twins[order[9]])
    assert bytes(filter.body) == before


def test_eight_copies_are_counted():
    """What fills both of its buckets can still be taken out, copy by copy."""
    filter = CuckooFilter(100)
    for _ in range(2 * SLOTS):
        filter.add(b"a")
    assert len(filter) == 2 * SLOTS

    assert all(filter.discard(b"a") for _ in range(2 * SLOTS))

    assert b"a" not in filter
    assert filter.is_empty()


@pytest.mark.parametrize("times", [9, 30])
def test_a_ninth_copy_spills(times):
    """The key gives its slots back, and stays: adds and discards of it change nothing."""
    filter = CuckooFilter(100)
    for _ in range(times):
        filter.add(b"a")

    assert len(filter) == 0
    assert filter.has_spilled(b"a")
    for _ in range(times):
        assert not filter.discard(b"a")
    assert b"a" in filter
    assert filter.approximate_size() == 1


@pytest.mark.parametrize("rows", [10, 1_000])
def test_keys_that_many_rows_share_take_bounded_room(rows):
    """Many rows a key are built as one row a key is: the table keeps its room for others, and the rate holds."""
    filter = CuckooFilter(2_000, 0.001, fingerprint_bits=32, width=8)
    shared, alone = np.arange(200), np.arange(1_000, 2_500)
    filter.add_many(np.concatenate((np.repeat(shared, rows), alone)))

    assert filter.contains_many(np.concatenate((shared, alone))).all()
    assert len(filter) <= 2 * SLOTS * len(shared) + len(alone)
    assert sum(map(filter.has_spilled, map(key, alone.tolist()))) < 0.05 * len(alone)
    assert filter.contains_many(np.arange(1 << 30, (1 << 30) + 100_000)).mean() < 0.001


def test_a_million_rows_of_one_key_are_one_key():
    filter = CuckooFilter(1_000, fingerprint_bits=32, width=8)
    filter.add_many(np.full(1_000_000, 7))
    filter.add_many([8] * 3)

    assert (len(filter), filter.approximate_size()) == (3, 4)
    assert filter.contains_many([7, 8, 9]).tolist() == [True, True, False]


def test_spilling_gives_others_their_room_back():
    """Keys that were added over and over, as by forms that fail, leave the table to those that come later."""
    filter = CuckooFilter(1_000, fingerprint_bits=32, width=8)
    for number in range(120):
        for _ in range(9):
            filter.add(key(number))
    assert len(filter) <= 120

    for number in range(1_000, 1_900):
        filter.add(key(number))

    assert not any(filter.has_spilled(key(number)) for number in range(1_000, 1_900))
    assert all(filter.discard(key(number)) for number in range(1_000, 1_900))


@pytest.mark.parametrize("bits", BITS)
def test_a_full_filter_takes_all_that_comes(bits):
    """Far past its capacity every key is found, one at a time and in bulk, and what was in can be discarded."""
    one, many = (CuckooFilter(1_000, 0.04, fingerprint_bits=bits, width=8) for _ in range(2))
    for number in range(5_000):
        one.add(key(number))
    many.add_many(np.arange(5_000))

    for filter in (one, many):
        assert filter.contains_many(np.arange(5_000)).all()
        assert all(filter.might_contain(key(number)) for number in range(5_000))
        assert filter.fill > 0.9
        for number in range(0, 5_000, 2):
            filter.discard(key(number))
        assert filter.contains_many(np.arange(1, 5_000, 2)).all()


def test_a_reader_misses_no_twins_on_their_way_to_the_spill():
    """Their bits are set, then the first word says so, then their slots are freed: any reader finds them somewhere."""
    filter = CuckooFilter(100, fingerprint_bits=32, width=8)
    for _ in range(2 * SLOTS):
        filter.add(key(1))
    writes = filter.writes(filter.digest(key(1)))
    words = [at for at, (offset, _) in enumerate(writes) if offset == 0]
    spill = [at for at, (offset, _) in enumerate(writes) if offset >= filter.layout.spill_offset]

    assert len(words) == 1
    assert spill == list(range(words[0]))
    assert len(writes) == len(spill) + 1 + 2 * SLOTS
    assert int.from_bytes(writes[words[0]][1], "little") >= SPILLED

    for write in writes:
        filter._apply([write])
        assert filter.might_contain(key(1))
        assert filter.contains_many([1]).all()


def test_a_reader_that_twins_overtook_looks_again():
    """Twins that spill between a reader's look at the table and its look at the first word are still found."""
    filter = CuckooFilter(100, fingerprint_bits=32, width=8)
    filter.add(key(1))
    digest = filter.digest(key(1))
    unpack, place = filter._unpack, filter.layout.place(digest)
    calls = []

    def overtaken(table, offset):
        calls.append(offset)
        if len(calls) == 1:
            filter._unpack = unpack
            filter._apply(filter._spill_writes(*place))
        return unpack(table, offset)

    filter._unpack = overtaken
    filter._compile()

    assert filter.might_contain_digest(digest)
    assert len(calls) > 2
