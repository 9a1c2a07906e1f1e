"""A process that is short of threads or descriptors, or at its end: what works without bloomguard works with it."""

from __future__ import annotations

import _thread
import errno
import os
from pathlib import Path

import pytest
from django.db import OperationalError, transaction

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.connection import StateConnection
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import disk
from tests.shop.models import Product, Short
from tests.support import database
from tests.support.guarding import registered

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("each_database", "fresh"),
]


def in_transaction():
    with transaction.atomic(using=database.current):
        Short.objects.create(slug="new")


WRITES = {
    "create": lambda: Short.objects.create(slug="new"),
    "create in a transaction": in_transaction,
    "bulk_create": lambda: Short.objects.bulk_create([Short(slug="new"), Short(slug="other")]),
    "update": lambda: Short.objects.filter(slug="old").update(slug="new"),
    "delete": lambda: Short.objects.filter(slug="old").delete(),
}


@pytest.fixture
def short(each_database, fresh, clock):
    """The guard of a built filter, whose lease has expired."""
    with registered(Short, name="short", lookup="slug") as guard:
        Short.objects.create(slug="old")
        Rebuild(guard, sleep=clock.sleep).run()
        Short.objects.create(slug="known")
        clock.now += 10
        yield guard


def verdicts(guard):
    return {guard.verdict(slug) for slug in Short.objects.values_list("slug", flat=True)}


@pytest.fixture
def no_threads(short, monkeypatch):
    """From now on, after the build, no thread can be started."""

    def refuse(run, given):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_needs_no_new_thread(write, short):
    """At the limit of threads, and at a program's end, the state rows are read without the thread that cuts a read."""
    write()

    assert state.table.current("short").status == ARMED
    assert verdicts(short) == {Verdict.MAYBE}


@pytest.mark.usefixtures("no_threads")
def test_a_request_needs_no_new_thread(short):
    """Nor does an answer: absent IDs are blocked, as ever."""
    assert short.verdict("never") == Verdict.ABSENT


#: Its identity has the boot ID; servers have one of their own.
on_sqlite = pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_after_a_read_of_the_state_rows_that_failed_reads_them_again(write, short, clock, monkeypatch):
    """A server that resets connections for a moment disables no guard; requests alone wait for a second."""

    def refuse(*arguments):
        raise OperationalError("the connection was reset")

    with monkeypatch.context() as patches:
        patches.setattr(StateConnection, "execute", refuse)
        patches.setattr(StateConnection, "has_table", refuse)
        assert short.verdict("never") is Verdict.UNKNOWN
    clock.now += 0.1
    assert short.verdict("never") is Verdict.UNKNOWN

    write()

    assert state.table.current("short").status == ARMED
    clock.now += 1
    assert verdicts(short) <= {Verdict.MAYBE}
    assert short.verdict("never") is Verdict.ABSENT


def unreadable(monkeypatch, error):
    """The file with the boot ID cannot be opened any more."""
    read = Path.read_text

    def refuse(self, *args, **kwargs):
        if self == disk.BOOT_ID:
            raise OSError(error, "refused", str(self))
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refuse)


@on_sqlite
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_needs_no_free_descriptor_for_the_boot_id(write, short, monkeypatch):
    """A process lives in one boot: what it knows of that is as true if it cannot read it again."""
    unreadable(monkeypatch, errno.EMFILE)

    write()

    assert state.table.current("short").status == ARMED
    assert verdicts(short) == {Verdict.MAYBE}


@on_sqlite
@pytest.mark.skipif(not disk.BOOT_ID.exists(), reason="this system has no such file")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_boot_id_that_was_never_readable_is_no_error_of_a_write(write, short, monkeypatch):
    """Whether the host has rebooted is then unknown: nothing is answered by its filters, and each write works."""
    unreadable(monkeypatch, errno.EACCES)
    monkeypatch.setattr(disk, "_read_before", {})
    short._runtime.active_filter.forget()

    write()

    assert short.verdict("never") == Verdict.UNKNOWN
    assert Verdict.ABSENT not in verdicts(short)


LATE = """
import threading
import django

django.setup()
from tests.shop.models import Product

def write():
    threading.main_thread().join()
    Product.objects.create(pk=3)
    print("written", flush=True)

threading.Thread(target=write).start()
"""


def test_a_thread_that_outlives_the_program_writes(start, clock):
    """Since Python 3.12 no thread can start another one once the main thread has ended, nor can an ``atexit`` hook."""
    Rebuild(registry["product"], sleep=clock.sleep).run()
    child = start(code=LATE)
    out, err = child.communicate()

    assert (out, child.returncode) == ("written\n", 0), err
    assert Product.objects.filter(pk=3).exists()
    assert state.table.current("product").status == ARMED
    clock.now += 10
    assert registry["product"].verdict(3) == Verdict.MAYBE


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_disk_that_takes_no_writes_fails_no_write(write, short, monkeypatch):
    """The database may be on another one: the row is saved, and the filter, which could lose its key, is not used."""

    def refuse(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(disk, "WRITABLE_SECONDS", 0.0)

    write()

    assert Verdict.ABSENT not in verdicts(short)
    is_written = Short.objects.filter(slug="new").exists()
    assert state.table.current("short").status == (FENCED if is_written else ARMED)
