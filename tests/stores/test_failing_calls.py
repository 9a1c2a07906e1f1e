"""The file store, and each call to the operating system that it makes, failing in turn."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import pathlib
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from bloomguard.exceptions import StoreError
from bloomguard.filters import CorruptFilter
from bloomguard.stores.base import Page
from bloomguard.stores.file import FileStore

from .conftest import find, key, make_layout

#: All that :mod:`bloomguard.stores` may call, by itself or by :mod:`pathlib`.
CALLS = [
    (os, "open close stat lstat fstat mkdir chmod fchmod link unlink write pread pwrite posix_fallocate fsync listdir"),
    (os, "statvfs rename rmdir scandir ftruncate"),
    (fcntl, "flock"),
    (shutil, "disk_usage"),
    (mmap, "mmap"),
    # Python 3.10's pathlib keeps references of its own.
    (getattr(pathlib, "_normal_accessor", None), "stat mkdir chmod link unlink rename rmdir listdir scandir"),
]


def fail_at(place: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the call number ``place`` fail from now on; return the list of the calls, which grows."""
    made: list[str] = []

    def failing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            if len(made) - 1 != place:
                return call(*args, **kwargs)
            if name == "close":  # its number is free all the same, as on Linux
                call(*args, **kwargs)
            raise OSError(errno.EIO, "Input/output error")

        return called

    for module, names in CALLS:
        for name in names.split():
            if hasattr(module, name):
                patch.setattr(module, name, failing(name, getattr(module, name)))
    return made


def descriptors() -> set[str]:
    gc.collect(1)  # what an exception holds; all of Django's objects would take long
    return {f"{number} {os.readlink(f'/proc/self/fd/{number}')}" for number in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{number}")}  # fmt: skip


def build(store: FileStore) -> None:
    made = store.create("city", "new", make_layout())
    made.add_many([key(number) for number in range(9)])
    made.add([key(1_000)])
    made.seal()


def read(store: FileStore) -> None:
    opened = store.open("city", "old", find)
    assert opened.might_contain(key(1))
    opened.add([key(2)])
    assert opened.might_contain(key(2))


STEPS: dict[str, Callable[[FileStore], object]] = {
    "build": build,
    "open, ask and add": read,
    "add in bulk": lambda store: store.open("city", "old", find).add([key(number) for number in range(9_000)]),
    "drop": lambda store: store.drop("city", "old"),
    "look": lambda store: (store.names("city"), store.identity, store.free_bytes()),
    "count": lambda store: store.add_metrics(Page("city", 60, 1), {0: 1}),
}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="this system does not show the open descriptors")
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_call_that_fails_is_an_error_of_the_store_and_leaves_nothing(step, tmp_path, monkeypatch):
    """Whichever call it is: no other exception comes out, no descriptor stays open, all keys are there, and the step
    works afterwards, by the same store and by one of another process."""
    for place in count():
        store = FileStore("default", path=tmp_path / f"{place}")
        store.create("city", "old", make_layout()).add([key(1)])
        before = descriptors()
        with monkeypatch.context() as patch:
            calls = fail_at(place, patch)
            with suppress(StoreError, CorruptFilter):
                step(store)
        where = f"call {place}: {calls[place : place + 1]} of {calls}"
        assert not descriptors() - before, where

        for again in (store, FileStore("default", path=store.path)):
            if "old" in again.names("city"):
                assert again.open("city", "old", find).might_contain(key(1)), where
            again.drop("city", "new")
            build(again)
            assert sorted(os.listdir(store.path)) == [".gitignore", "CACHEDIR.TAG", "city"], where
        if len(calls) <= place:
            break  # all have failed in turn
    assert place


def test_a_descriptor_whose_close_failed_is_not_used_again(files):
    """Its number is free, and may soon be that of another file: to lock that one would exclude nobody."""
    made = files.create("city", "a", make_layout())
    made.add([key(1)])
    closed = []

    def close(number):
        closed.append(number)
        os.dup2(theirs.fileno(), number)  # as if another thread had opened a file at once
        raise OSError(errno.EIO, "Input/output error")

    lock = made._locked
    with open(files.path / "CACHEDIR.TAG") as theirs:
        with pytest.raises(OSError, match="Input"):
            lock._close(close)
        made.add([key(2)])
        os.close(*closed)

    assert os.path.samestat(os.fstat(lock._fd), os.stat(files.path / "city" / "a.filter"))
