"""What every store keeps to, whatever kind of filter it holds."""

from __future__ import annotations

import gc
import multiprocessing
import re
import sys
import threading
import weakref
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from bloomguard import process
from bloomguard.exceptions import StoreError, UnknownGeneration
from bloomguard.filters import CorruptFilter, DiscardUnsupported, KeyHash
from bloomguard.filters.codec import Frame
from bloomguard.stores import frames
from bloomguard.stores.memory import MemoryStore

from .conftest import HASH, KEY_ID, RANGE, fill, find, key, make_layout, some


def test_a_new_generation_holds_nothing(anywhere, layout):
    """A generation that was just made says no to (nearly) everything."""
    generation = anywhere.store.create("city", "a", layout)

    assert not any(generation.might_contain(key(number)) for number in some(200))
    assert fill(generation) == 0
    assert generation.measure_error_rate(1_000) == 0


def test_what_is_added_is_found(place, layout):
    """No key that was added is ever denied, one at a time or in bulk; most others are."""
    single, bulk, strangers = np.split(np.array(some(6_000)), [500, 4_000])
    generation = place.store.create("city", "a", layout)

    generation.add([key(number) for number in single.tolist()])
    generation.add_many(bulk)

    assert all(generation.might_contain(key(number)) for number in [*single.tolist(), *bulk.tolist()])
    assert sum(generation.might_contain(key(number)) for number in strangers.tolist()) < 0.03 * len(strangers)
    assert 0 < fill(generation) < 1


@pytest.mark.parametrize("shard_bytes", [1 << 25, 1 << 12])
def test_a_cuckoo_filter_counts(place, shard_bytes):
    """What was added twice is there until it is discarded twice, through whichever hold; nothing else goes with it."""
    made = place.store.create("city", "a", make_layout("cuckoo", shard_bytes))
    opened = place.again().open("city", "a", find)
    numbers = some(600)
    made.add(list(map(key, numbers)))
    opened.add(list(map(key, numbers[:400])))
    assert made.approximate_size() == opened.approximate_size() == 1_000

    opened.discard(map(key, numbers[:300]))  # once of twice
    made.discard(map(key, numbers[500:]))  # once of once
    made.discard([key(RANGE + 5_000)])  # never there

    assert [made.might_contain(key(number)) for number in numbers] == [True] * 500 + [False] * 100
    assert made.approximate_size() == 600
    assert place.again().open("city", "a", find).approximate_size() == 600  # and the checksums are true


@pytest.mark.parametrize("number", [20, 150, 4_000])
def test_what_is_added_is_recent(place, layout, number):
    """Keys of single adds, few or many, are recent for all who have the generation open; those of a build are not."""
    built, added = np.split(np.array(some(number + 3_000)), [3_000])
    made = place.store.create("city", "a", layout)
    opened = place.again().open("city", "a", find)
    made.add_many(built)

    opened.add(list(map(key, added.tolist())))
    made.seal()

    for each in (made, opened, place.again().open("city", "a", find)):
        assert all(each.is_recent(key(number)) for number in added.tolist())
        assert sum(each.is_recent(key(number)) for number in built.tolist()) < 0.03 * len(built)


@pytest.mark.parametrize("number", [5, 4_000])
def test_a_cuckoo_filter_need_not_count(anywhere, number):
    """With ``once`` a key that is in the filter is not added again, yet it is recent."""
    made = anywhere.store.create("city", "a", make_layout("cuckoo"))
    keys = [key(each) for each in some(number)]
    made.add_many(np.array(some(number)))
    made.seal()

    made.add(keys, once=True)
    made.add([key(RANGE + 1_000)], once=True)

    assert made.approximate_size() == number + 1
    assert all(map(made.is_recent, keys[:300]))
    made.discard(keys)
    assert not any(map(made.might_contain, keys))
    assert all(map(made.is_recent, keys))


@pytest.mark.parametrize("number", [5, 4_000])
def test_a_key_given_twice_need_not_be_counted_twice(anywhere, number):
    """As of rows that share a value, written by one statement, in whichever way so many keys are added."""
    made = anywhere.store.create("city", "a", make_layout("cuckoo"))
    made.seal()
    keys = [key(each) for each in some(number)]

    made.add(keys + keys, once=True)

    assert made.approximate_size() == number
    made.add(keys + keys)
    assert made.approximate_size() == 3 * number


def test_a_recent_bit_that_is_lost_is_noticed(place, layout):
    """The checksum covers the recent bits too: without one a remembered absence would outlive the row's creation."""
    made = place.store.create("city", "a", layout)
    made.add([key(7)])
    shard, digest = made.layout.locate(key(7))
    position = made.layout.recent_positions(digest)[0]
    buffer = made._buffers[shard][made.layout.header.body_offset :]
    buffer[position >> 3] &= ~(128 >> (position & 7))

    with pytest.raises(CorruptFilter):
        place.again().open("city", "a", find).is_recent(key(7))


def test_a_key_too_often_added_stays(place):
    """Once a key is in more often than can be counted, adds and discards of it change nothing, and it has no slot."""
    made = place.store.create("city", "a", make_layout("cuckoo"))
    for _ in range(20):
        made.add([key(1)])
    opened = place.again().open("city", "a", find)

    opened.discard([key(1)] * 20)

    assert made.might_contain(key(1))
    assert opened.might_contain(key(1))
    assert (fill(made), made.approximate_size()) == (0, 1)
    assert place.again().open("city", "a", find).approximate_size() == 1  # and the checksum is true


@pytest.mark.parametrize("kind", ["bloom", "bitmap"])
def test_other_kinds_discard_nothing(place, kind):
    """Where a key cannot be taken out, that is said, and it stays."""
    made = place.store.create("city", "a", make_layout(kind))
    made.add([key(1)])

    with pytest.raises(DiscardUnsupported):
        made.discard([key(1)])

    assert made.might_contain(key(1))


def test_many_are_checked_at_once(place, layout):
    """The filters of all shards together say of many keys, in their order, what the generation says of each."""
    made = place.store.create("city", "a", layout)
    made.add(list(map(key, some(2_000))))
    asked = np.array(some(3_000, seed=2))

    found = layout.contains_many(list(made.filters()), asked)

    assert found.tolist() == [made.might_contain(key(number)) for number in asked.tolist()]
    assert abs(made.approximate_size() - 2_000) < 200


def test_whoever_opens_it_sees_what_was_added(place, layout):
    """A generation opened by name holds what was added before, and what is added through any other hold on it."""
    numbers = some(200)
    made = place.store.create("city", "a", layout)
    made.add(list(map(key, numbers[:100])))
    made.seal()

    opened = place.again().open("city", "a", find)
    made.add(list(map(key, numbers[100:150])))
    opened.add_many(np.array(numbers[150:]))

    assert all(each.might_contain(key(number)) for number in numbers for each in (made, opened))


def test_a_generation_that_nobody_holds_is_gone_at_once(place, layout):
    """The process may collect cycles much later: until then a mapped file would keep its space on the disk."""
    place.store.create("city", "a", layout).add([key(1)])
    opened = place.again().open("city", "a", find)
    assert opened.might_contain(key(1))  # which looks into one shard
    gone = weakref.ref(opened)

    gc.disable()
    try:
        del opened
        assert gone() is None
    finally:
        gc.enable()


def test_a_generation_can_be_opened_before_it_is_sealed(place, layout):
    """Writers add to a generation that is still being built."""
    place.store.create("city", "a", layout).add([key(1)])

    opened = place.again().open("city", "a", find)

    assert opened.might_contain(key(1))
    assert opened.layout.capacity >= layout.capacity


def test_an_add_keeps_the_checksum_true(place, layout):
    """After adds of few, several and many keys, whichever way each took, every shard holds them and proves itself."""
    generation = place.store.create("city", "a", layout)
    sizes = [1, generation._several - 1, generation._several, generation._many - 1, generation._many]
    added = []
    for seed, size in enumerate([*sizes, *reversed(sizes)]):
        added += some(size, seed=seed)
        generation.add(list(map(key, added[-size:])))

        reopened = place.again().open("city", "a", find)  # each time: an add in bulk would mend the checksum

        assert all(reopened.might_contain(key(number)) for number in added)
        assert fill(reopened) == fill(generation)  # verified shard by shard


@pytest.mark.parametrize("size", [1, 40, 100, 3_000])
def test_an_array_of_integers_is_added_as_their_keys_are(place, layout, size):
    """Rows with integers are given as an array; it leaves the same bits, in the range of a bitmap and outside."""
    numbers = [*some(size - size // 2), *range(-1, -1 - size // 2, -1)]
    made = [place.store.create("city", name, layout) for name in "ab"]

    made[0].add(np.array(numbers))
    made[1].add(list(map(key, numbers)))

    assert [bytes(each.body) for each in made[0].filters()] == [bytes(each.body) for each in made[1].filters()]
    assert all(made[0].might_contain(each) and made[0].is_recent(each) for each in map(key, numbers))


@pytest.mark.parametrize("way", ["few", "several", "many"])
def test_an_add_that_is_not_kept_is_no_add(place, layout, way, monkeypatch):
    """Whichever way keys are written, they are looked for before the add counts."""
    generation = place.store.create("city", "a", layout)
    keys = [key(number) for number in some({"few": 1, "several": generation._several, "many": generation._many}[way])]
    monkeypatch.setattr(Frame, "write", lambda frame, writes: None)
    monkeypatch.setattr(Frame, "add_bits", lambda frame, positions: None)
    monkeypatch.setattr(Frame, "write_bits", lambda frame, positions: None)
    monkeypatch.setattr(layout.filter_class, "add_digests", lambda held, low, high=None: None)

    with pytest.raises(CorruptFilter, match="did not keep what was written"):
        generation.add(keys)


def test_a_build_is_whole_once_it_is_sealed(place, layout):
    """While more is to come the checksums wait, and nobody minds; sealed, every shard proves itself, whoever added."""
    generation = place.store.create("city", "a", layout)
    generation.add_many(np.array(some(3_000)))
    other = place.again().open("city", "a", find)
    other.add([key(1)])
    generation.add_many(np.array(some(3_000, seed=2)))
    generation.seal()

    reopened = place.again().open("city", "a", find)

    assert not any(Frame.open(buffer).dirty for buffer in generation._buffers)
    assert fill(reopened) == fill(generation) == fill(other)


@pytest.mark.parametrize("name", ["a", "b"])
def test_missing_is_not_empty(anywhere, name):
    """A generation that is not there is unknown; it neither says no nor comes into being."""
    anywhere.store.create("other", "a", make_layout())

    with pytest.raises(UnknownGeneration):
        anywhere.store.open("city", name, find)

    assert anywhere.store.names("city") == []


def test_a_dropped_generation_is_missing(place):
    """After a drop it is unknown, to this hold on the store and to any other; a second drop is nothing."""
    place.store.create("city", "a", make_layout())

    place.store.drop("city", "a")
    place.store.drop("city", "a")

    for store in (place.store, place.again()):
        with pytest.raises(UnknownGeneration):
            store.open("city", "a", find)


def test_names_are_those_of_the_guard(place):
    """Every generation of the guard is listed, finished or not, and no other guard's."""
    for guard, name in [("city", "a"), ("city", "b"), ("listing", "c")]:
        place.store.create(guard, name, make_layout())
    place.store.drop("city", "b")

    assert place.again().names("city") == ["a"]
    assert place.again().names("listing") == ["c"]
    assert place.again().names("nobody") == []


@pytest.mark.parametrize("kind", ["bloom", "bitmap", "cuckoo"])
def test_another_builds_shard_is_not_trusted(place, kind):
    """A shard of another build among this one's is found out, whatever it holds."""
    mine = place.store.create("city", "a", make_layout(kind, 1 << 12))
    other = place.store.create("city", "b", make_layout(kind, 1 << 12))
    mine._buffers[1][:] = other._buffers[1]
    opened = place.again().open("city", "a", find)

    with pytest.raises(CorruptFilter, match="another build"):
        fill(opened)


def test_shards_that_changed_places_are_not_trusted(place):
    """A shard of this very build in the place of another one is found out."""
    mine = place.store.create("city", "a", make_layout(shard_bytes=1 << 12))
    mine._buffers[1][:] = bytes(mine._buffers[2])

    with pytest.raises(CorruptFilter):
        fill(place.again().open("city", "a", find))


def test_the_first_shard_has_to_come_first(place):
    """A generation that starts with another shard than its first is found out."""
    mine = place.store.create("city", "a", make_layout(shard_bytes=1 << 12))
    mine._buffers[0][:] = bytes(mine._buffers[1])

    with pytest.raises(CorruptFilter, match="belongs to another generation"):
        place.again().open("city", "a", find)


@pytest.mark.parametrize("shard_bytes", [1 << 25, 1 << 12])
@pytest.mark.parametrize(("guard", "name"), [("town", "a"), ("city", "b")])
def test_what_was_made_as_another_generation_is_not_trusted(place, guard, name, shard_bytes):
    """Bytes that are whole and of the same shape, but of another guard or another build, are no filter here."""
    layout = make_layout(shard_bytes=shard_bytes)
    mine, other = place.store.create("city", "a", layout), place.store.create(guard, name, layout)
    for here, there in zip(mine._buffers, other._buffers):
        here[:] = there

    with pytest.raises(CorruptFilter, match="belongs to another generation"):
        place.again().open("city", "a", find)


def test_a_header_that_was_not_made_here_is_not_believed(place):
    """Whoever lacks the secret makes no header that is taken for one, and nothing is allocated by what it claims."""
    made = place.store.create("city", "a", make_layout())
    header = made.layout.header

    for changed in ({"shards": 60_000}, {"capacity": 1}, {"error_rate": 0.5}, {"tag": header.tag ^ 1}):
        forged = replace(header, **changed)
        Frame.format(forged, made._buffers[0])
        with pytest.raises(CorruptFilter):
            place.again().open("city", "a", find)


@pytest.mark.parametrize("at", [8, -8])
def test_a_shard_whose_tags_differ_is_not_trusted(place, layout, at):
    """Both ends carry the build's tag; with either of them changed, nothing is said and nothing is added."""
    made = place.store.create("city", "a", layout)
    made.add([key(1)])
    for buffer in made._buffers:
        buffer[at] ^= 0x40

    with pytest.raises(CorruptFilter):
        place.again().open("city", "a", find).might_contain(key(1))
    with pytest.raises(CorruptFilter):
        place.again().open("city", "a", find).add([key(2)])


def test_a_changed_body_is_not_trusted(place, layout):
    """A shard whose body is not what its checksum says is found out when it is first asked."""
    made = place.store.create("city", "a", layout)
    for buffer, header in zip(made._buffers, layout.headers):
        buffer[header.body_offset + 100] ^= 1

    with pytest.raises(CorruptFilter, match="checksum"):
        place.again().open("city", "a", find).might_contain(key(1))


def test_an_unknown_key_id_is_not_trusted(anywhere):
    """A generation built with a secret or for a definition that nobody knows any more is unknown."""
    anywhere.store.create("city", "a", make_layout(key_id=KEY_ID + 1))

    with pytest.raises(UnknownGeneration, match="SECRET_KEY"):
        anywhere.again().open("city", "a", find)


def test_keys_of_another_width_are_not_trusted(anywhere):
    """A generation for keys of 8 bytes is not asked about keys of 16."""
    anywhere.store.create("city", "a", make_layout())

    with pytest.raises(CorruptFilter, match="belongs to another generation"):
        anywhere.again().open("city", "a", lambda key_id: KeyHash(16, b"0123456789abcdef"))


def test_what_a_dead_writer_left_is_healed(place, layout):
    """A writer that died in the middle of an add spoils nothing: others go on asking, and the next add heals it."""
    made = place.store.create("city", "a", layout)
    made.add(list(map(key, some(50))))
    for buffer in made._buffers:
        frame = Frame.open(buffer)
        frame.body[-100] |= 0x10  # some byte of its write...
        frame._set_trailer(frame._trailer()[0], 1)  # ...under the mark that it set first

    opened = place.again().open("city", "a", find)
    opened.add(list(map(key, some(1_000, seed=2))))  # enough for every shard

    assert all(opened.might_contain(key(number)) for number in [*some(50), *some(1_000, seed=2)])
    assert not any(Frame.open(buffer).dirty for buffer in made._buffers)
    assert fill(place.again().open("city", "a", find)) == fill(opened)


def test_threads_lose_nothing(place):
    """Threads that add at once, one by one and in bulk, lose no bit, and the checksums stay true."""
    made = place.store.create("city", "a", make_layout(shard_bytes=1 << 12))
    start = threading.Barrier(4)

    def work(mine):
        generation = place.again().open("city", "a", find)
        start.wait()
        for number in mine[:400]:
            generation.add([key(number)])
        generation.add_many(np.array(mine[400:]))

    parts = [list(range(part, 8_000, 4)) for part in range(4)]
    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(made.might_contain(key(number)) for number in range(8_000))
    assert fill(place.again().open("city", "a", find)) == fill(made)


def test_no_room_is_said_with_the_figures(tmp_path):
    """A filter that does not fit is refused: how much it takes, and how much there is."""
    store = MemoryStore("default", max_bytes=100_000)
    layout = make_layout(capacity=1_000_000)

    with pytest.raises(StoreError, match=rf"{layout.total_bytes:,}.*100,000"):
        store.create("city", "a", layout)

    assert store.names("city") == []
    assert store.free_bytes() == 100_000


def test_a_filter_larger_than_the_disk_is_refused_with_the_figures(files):
    """The disk space is taken when the filter is made; if it is not there, nothing stays behind."""
    layout = make_layout(capacity=1 << 38)
    assert layout.total_bytes > files.free_bytes()

    with pytest.raises(StoreError, match=re.escape(f"no room for a filter of {layout.total_bytes:,} bytes")):
        files.create("city", "a", layout)

    assert files.names("city") == []


def test_dropping_makes_room():
    """What a generation took is there again once it is dropped."""
    layout = make_layout()
    store = MemoryStore("default", max_bytes=layout.total_bytes)
    store.create("city", "a", layout)

    store.drop("city", "a")

    assert store.free_bytes() == layout.total_bytes
    store.create("city", "b", layout)


def test_free_bytes_are_counted_while_others_create_and_drop():
    """As the admin page does during a rebuild."""
    store, layout = MemoryStore("default"), make_layout(capacity=100)
    for number in range(200):
        store.create("city", str(number), layout)
    is_over, interval = threading.Event(), sys.getswitchinterval()

    def rebuild() -> None:
        while not is_over.is_set():
            store.create("city", "next", layout)
            store.drop("city", "next")

    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=rebuild)
    thread.start()
    try:
        found = {store.free_bytes() for _ in range(3_000)}
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()

    assert max(found) - min(found) in (0, layout.total_bytes)


def test_an_identity_is_one_stores_own(place, tmp_path):
    """The same store has the same identity for whoever comes to it; another one has another."""
    place.store.create("city", "a", make_layout())
    other = type(place.store)("default", **({} if isinstance(place.store, MemoryStore) else {"path": tmp_path / "t"}))
    other.create("city", "a", make_layout())

    assert place.store.identity == place.again().identity != other.identity
    assert 0 < len(place.store.identity) <= 200


def _identity(store, queue):
    queue.put(store.identity)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_forked_child_shares_files_and_not_memory(kind, tmp_path):
    """A child's copy of its parent's memory is another store; the files are the same one."""
    from bloomguard.stores.file import FileStore

    store = MemoryStore("default") if kind == "memory" else FileStore("default", path=tmp_path)
    store.create("city", "a", make_layout())
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_identity, args=(store, queue))
    child.start()
    child.join()

    assert (queue.get() == store.identity) == (kind == "file")


def test_a_child_with_the_process_number_of_an_ancestor_has_a_memory_of_its_own(monkeypatch):
    """A number is given again when its process has ended."""
    monkeypatch.setattr(process, "_resets", WeakKeyDictionary())
    store = MemoryStore("default")
    before = store.identity

    process._run()  # what is called in a child; the number of this process stays

    assert store.identity != before


def test_a_child_whose_fork_ran_no_hooks_takes_no_add(monkeypatch):
    """For a second it trusts the state row that its parent read: its siblings would answer without its new rows."""
    store = MemoryStore("default")
    made = store.create("city", "a", make_layout())
    made.add([key(1)])

    monkeypatch.setattr("os.getpid", lambda: -1)
    for keys in ([key(2)], list(map(key, range(100, 200))), list(map(key, range(1_000, 9_000)))):
        with pytest.raises(StoreError, match="memory of another process"):
            made.add(keys)

    monkeypatch.undo()
    made.add([key(2)])
    assert made.might_contain(key(2))


def test_a_child_whose_fork_ran_no_hooks_has_a_memory_of_its_own(monkeypatch):
    """As in uWSGI: the number of its process tells it from its parent."""
    store = MemoryStore("default")
    before = store.identity

    monkeypatch.setattr("os.getpid", lambda: -1)

    assert store.identity != before


def test_key_hashes_are_asked_for_by_the_key_id_in_the_header(place):
    """The store asks its guard which hash fits the header, and says yes and no by that one."""
    asked = []
    place.store.create("city", "a", make_layout()).add([key(5)])

    opened = place.again().open("city", "a", lambda key_id: asked.append(key_id) or HASH)

    assert asked == [KEY_ID]
    assert opened.might_contain(key(5))
    assert not opened.might_contain(key(6))


def test_many_keys_are_added_in_parts(monkeypatch):
    """No part is left out, nor the end of the last one."""
    monkeypatch.setattr(frames, "_WRITTEN_AT_ONCE", 8)
    generation = MemoryStore("default").create("city", "a", make_layout())
    keys = [key(number) for number in range(100)]

    generation.add(keys)

    assert all(generation.might_contain_many(keys))
