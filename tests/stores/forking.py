"""A program: children that were forked while a thread of their parent was adding add beside it, and none hangs."""

from __future__ import annotations

import multiprocessing
import threading
import warnings

from bloomguard.stores import disk
from bloomguard.stores.file import FileGeneration, FileStore

from .conftest import fill, find, key, make_layout

fork = multiprocessing.get_context("fork")


def _add(generation: FileGeneration, numbers: range) -> None:
    for number in numbers:
        generation.add([key(number)])


def main(path: str) -> None:
    """Raises if a child hangs or fails, or if anything that was added is not there."""
    warnings.simplefilter("ignore", DeprecationWarning)  # that forking beside threads is dangerous is the point
    disk.LOCK_SECONDS = 60.0  # a busy machine is no fault of a lock's
    files = FileStore("default", path=path)
    generation = files.create("city", "a", make_layout())
    started, enough = threading.Event(), threading.Event()
    added, errors = [], []

    def parent() -> None:
        try:
            for number in range(0, 20_000, 5):
                generation.add([key(number)])
                added.append(number)
                started.set()
                if enough.is_set():
                    return
        except Exception as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=parent)
    thread.start()
    started.wait()
    children = [fork.Process(target=_add, args=(generation, range(part, 5_000, 5))) for part in range(1, 5)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    enough.set()
    thread.join()

    assert errors == []
    assert [child.exitcode for child in children] == [0] * 4
    assert all(generation.might_contain(key(number)) for number in [*added, *(n for n in range(5_000) if n % 5)])
    assert fill(files.open("city", "a", find)) == fill(generation)
