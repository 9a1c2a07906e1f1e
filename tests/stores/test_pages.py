"""Pages of metrics: every store adds up what many processes bring, keeps it for its time, and takes no more room."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat

import pytest
import redis

from bloomguard.exceptions import StoreError, StoreUnavailable
from bloomguard.stores import disk, file
from bloomguard.stores.base import COLUMNS, HOUR, MINUTE, PAGE_BYTES, ROWS, Page, add_to, cells_of
from bloomguard.stores.file import FileStore
from bloomguard.stores.redis import RedisStore
from tests.support import servers
from tests.support.patience import PATIENT

fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

LAST = ROWS * COLUMNS - 1
PAGE = Page("city", MINUTE, 100)


@pytest.fixture
def files(files):
    """A file store in which a filter was built once."""
    files.prepare("city")
    return files


@pytest.fixture
def store(anywhere, files):
    return anywhere.store


def kept(store, page=PAGE):
    [found] = store.read_metrics([page])
    return {cell: number for cell, number in enumerate(cells_of(found)) if number} if found else None


def test_what_is_added_adds_up(store):
    """Cells add up, each for itself, the first and the last of a page too."""
    store.add_metrics(PAGE, {0: 3, 7: 1})
    store.add_metrics(PAGE, {7: 4, LAST: 2})

    assert kept(store) == {0: 3, 7: 5, LAST: 2}


def test_pages_are_read_in_their_order(store):
    """One trip reads many; in place of a page that is not there comes nothing."""
    other = Page("city", HOUR, 100)
    store.add_metrics(other, {1: 1})

    first, second = store.read_metrics([PAGE, other])
    assert (first, cells_of(second)[1]) == (b"", 1)
    assert store.read_metrics([]) == []


def test_a_cell_stops_at_its_highest_number(store):
    """A cell that is full stays full, and its neighbours are what they were."""
    store.add_metrics(PAGE, {4: 1, 5: 2**32 - 2, 6: 1})
    store.add_metrics(PAGE, {5: 5})

    assert kept(store) == {4: 1, 5: 2**32 - 1, 6: 1}


@pytest.mark.parametrize("anywhere", ["memory", "file"], indirect=True)
@pytest.mark.parametrize(("step", "pages"), [(MINUTE, 7), (HOUR, 5)])
def test_old_pages_go(store, step, pages):
    """By minute there is a day, by hour a month, and the page that is written: all else goes, a wrong clock's too."""
    for number in (900, *range(41)):
        store.add_metrics(Page("city", step, number), {0: 1})
    store.add_metrics(Page("city", HOUR if step == MINUTE else MINUTE, 3), {0: 1})

    there = [number for number in range(1_000) if kept(store, Page("city", step, number))]
    assert there == list(range(41 - pages, 41))
    assert kept(store, Page("city", HOUR if step == MINUTE else MINUTE, 3))


@pytest.mark.parametrize("anywhere", ["redis"], indirect=True)
@pytest.mark.parametrize(("step", "days"), [(MINUTE, 1), (HOUR, 31)])
def test_a_server_drops_old_pages_itself(store, step, days):
    """Each page has an expiry, counted from the last row that was written to it."""
    store.add_metrics(Page("city", step, 5), {0: 1})

    with redis.Redis.from_url(servers.valkey()) as client:
        [key] = client.keys("*metrics*")
        assert days * 86_400 - 60 < client.ttl(key) <= days * 86_400


@pytest.mark.parametrize("anywhere", ["redis"], indirect=True)
def test_a_page_on_a_server_is_no_larger_than_it_has_to_be(store):
    """A page takes its own bytes from the start, not twice as many once it has grown."""
    for cell in (0, 50, LAST):
        store.add_metrics(PAGE, {cell: 1})

    with redis.Redis.from_url(servers.valkey()) as client:
        assert client.memory_usage("bloomguard:city:metrics:60:100") < 1.15 * PAGE_BYTES


def test_a_server_that_is_gone_says_so():
    """Whoever flushes hears that metrics were not taken, within the time of an add."""
    store = RedisStore("default", url="redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        store.add_metrics(PAGE, {0: 1})
    with pytest.raises(StoreUnavailable):
        store.read_metrics([PAGE])


def test_files_are_private(files):
    """Whatever the umask, nobody else may read metrics."""
    before = os.umask(0)
    try:
        files.add_metrics(PAGE, {0: 1})
    finally:
        os.umask(before)

    assert stat.S_IMODE((files.path / "city" / "metrics-60-100").stat().st_mode) == 0o600
    assert files.names("city") == []


def test_a_site_without_filters_gets_no_folder(tmp_path):
    """A store in which nothing was built leaves no trace of metrics."""
    store = FileStore("default", path=tmp_path / "s")
    store.add_metrics(PAGE, {0: 1})

    assert not store.path.exists()
    assert kept(store) is None


def test_a_file_that_is_cut_off_is_mended(files):
    """A file that a full disk cut off in the middle of a number counts on from what it has."""
    files.add_metrics(PAGE, {0: 1, 9: 1})
    file = files.path / "city" / "metrics-60-100"
    os.truncate(file, 5)
    assert kept(files) == {0: 1}

    files.add_metrics(PAGE, {9: 4})
    assert kept(files) == {0: 1, 9: 4}


def test_a_page_that_is_none_is_refused(files):
    """What has another size is no page, and a link is not followed."""
    with pytest.raises(StoreError, match="23,040 bytes; this one has 3"):
        add_to(b"abc", {0: 1})
    (files.path / "city" / "metrics-60-100").symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="cannot read"):
        kept(files)
    with pytest.raises(StoreError, match="cannot write"):
        files.add_metrics(PAGE, {0: 1})


def test_a_stopped_writer_holds_nobody_up_for_good(files, monkeypatch):
    """A process that was stopped in the middle of a write costs the others their patience, not their lives."""
    import fcntl

    monkeypatch.setattr("bloomguard.stores.disk.LOCK_SECONDS", 0.05)
    files.add_metrics(PAGE, {0: 1})
    with open(files.path / "city" / "metrics-60-100") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=r"locked for 0\.05 s"):
            files.add_metrics(PAGE, {0: 1})

    files.add_metrics(PAGE, {0: 1})
    assert kept(files) == {0: 2}


def test_a_child_forked_in_the_middle_of_a_write_holds_nobody_up(files, monkeypatch):
    """It has the parent's open file, and with it the lock, which the parent has to let go of for both."""
    monkeypatch.setattr(disk, "LOCK_SECONDS", 0.05)
    lock, inherited = file.lock_file, []

    def forked_after(fd, *args):
        lock(fd, *args)
        inherited.append(os.dup(fd))  # as a child has it

    monkeypatch.setattr(file, "lock_file", forked_after)

    try:
        files.add_metrics(PAGE, {0: 1})
        files.add_metrics(PAGE, {0: 1})
    finally:
        for fd in inherited:
            os.close(fd)
    assert kept(files) == {0: 2}


def _add(path, barrier, times):
    store = FileStore("default", path=path)
    barrier.wait()
    for _ in range(times):
        store.add_metrics(PAGE, {3: 1, 4: 2})


def test_processes_lose_no_count(files):
    """4 processes add to one page at once: all of it is there."""
    barrier = fork.Barrier(4)
    crew = [fork.Process(target=_add, args=(files.path, barrier, 500)) for _ in range(4)]
    for each in crew:
        each.start()
    for each in crew:
        each.join(60)

    assert [each.exitcode for each in crew] == [0] * 4
    assert kept(files) == {3: 2_000, 4: 4_000}


def counted(files):
    return (kept(files) or {}).get(3, 0)


def test_a_killed_writer_leaves_whole_rows(files):
    """Writers are killed at any moment: what they bring together is there together, and the others go on."""
    for _ in range(5):
        barrier, before = fork.Barrier(3), counted(files)
        crew = [fork.Process(target=_add, args=(files.path, barrier, 10**9)) for _ in range(2)]
        for each in crew:
            each.start()
        barrier.wait()
        servers.until(lambda before=before: counted(files) > before)
        for each in crew:
            os.kill(each.pid, signal.SIGKILL)
            each.join()
    files.add_metrics(PAGE, {3: 1, 4: 2})

    found = kept(files)
    assert found[4] == 2 * found[3] > 2


def test_who_may_not_set_an_expiry_adds_nothing():
    """A server's user without the right leaves no page for good, nor counts anything twice."""
    with redis.Redis.from_url(servers.valkey()) as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", "~*", "+bitfield", "+info", "+get")
        store = RedisStore("default", url=servers.valkey().replace("redis://", "redis://few:secret@"), **PATIENT)
        try:
            with pytest.raises(StoreError, match="expire"):
                store.add_metrics(PAGE, {0: 1})
            assert kept(store) is None
        finally:
            store.close()
            client.execute_command("ACL", "DELUSER", "few")


def test_the_bytes_of_a_page_are_for_good():
    """240 rows of 24 numbers, 4 bytes each, the highest first: what one version writes, another one reads."""
    page = add_to(bytes(PAGE_BYTES), {0: 1, COLUMNS: 258})

    assert (len(page), ROWS, COLUMNS) == (23_040, 240, 24)
    assert page == b"\0\0\0\1" + bytes(92) + b"\0\0\1\2" + bytes(23_040 - 100)


def test_a_place_that_cannot_be_reached_is_a_store_error(files):
    """Not an error of another kind, which nobody would wait out; a guard that never had a filter has no metrics."""
    with pytest.raises(StoreError, match="cannot write metrics"):
        files.add_metrics(Page("x" * 300, MINUTE, 100), {0: 1})
    files.add_metrics(Page("never-built", MINUTE, 100), {0: 1})

    assert not (files.path / "never-built").exists()
