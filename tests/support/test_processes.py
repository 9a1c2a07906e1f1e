"""What the suite says of itself: no process outlives its test, nor the run, and a run that leaves one behind fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import RUN, end, find, spawn
from tests.support.servers import Sentinel, Valkey

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests.support import processes

processes._LAST_SECONDS = 0.5

def pytest_configure(config):
    config.pluginmanager.register(processes.Watch(config, lambda: print("stopped")))
"""
#: One test that leaves all kinds of processes behind. Each writes its mark to a FIFO and keeps that open.
LEAVES = """
import os, subprocess, sys, time
FIFO = os.environ["FIFO"]

def park(name):
    code = f"import os, time; os.write(os.open({FIFO!r}, os.O_WRONLY), b'.'); time.sleep(600)  # {name}"
    return [sys.executable, "-c", code]

def test_something():
    subprocess.Popen(park("a child"))
    subprocess.Popen(park("with a session of its own"), start_new_session=True)
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({park('a grandchild')!r})"])
    if not os.fork():
        os.write(os.open(FIFO, os.O_WRONLY), b".")
        time.sleep(600)
    ACT
"""


class Run:
    """A run of pytest with one file of tests."""

    def __init__(self, folder, suite, *options):
        os.mkfifo(folder / "fifo")
        self._read = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        self._write = os.open(folder / "fifo", os.O_WRONLY)
        os.set_blocking(self._read, True)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_it.py").write_text(suite)
        plain = ["-q", "-p", "no:cacheprovider", "-p", "no:django", "-p", "no:bloomguard", "--rootdir", folder]
        own = ("COV", "PYTEST_ADDOPTS")  # of the run that this test belongs to
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        self.process = spawn(
            [sys.executable, "-m", "pytest", *plain, *options, folder],
            env={**environment, "PYTHONPATH": str(ROOT), "FIFO": str(folder / "fifo")},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for_processes(self, number):
        """Until so many are parked."""
        while number:
            number -= len(os.read(self._read, number))

    def wait_until_they_are_gone(self):
        os.close(self._write)
        self._write = None
        while os.read(self._read, 100):
            pass

    def close(self):
        end(self.process)
        self.process.stdout.close()
        os.close(self._read)
        if self._write is not None:
            os.close(self._write)


@pytest.fixture
def run(tmp_path):
    """``run(suite, *options)`` starts pytest."""
    made = []

    def start(*arguments):
        made.append(Run(tmp_path, *arguments))
        return made[0]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "with workers"])
def test_a_run_that_leaves_processes_behind_fails(run, options):
    """The exit status says so, the report names each one's command line, and they are killed."""
    started = run(LEAVES.replace("ACT", "pass"), *options)
    said, _ = started.process.communicate()
    started.wait_until_they_are_gone()

    assert "1 passed" in said, said
    assert started.process.returncode == pytest.ExitCode.TESTS_FAILED, said
    left = said.partition("processes left behind")[2]
    assert [left.count(f"# {name}") for name in ("a child", "with a session of its own", "a grandchild")] == [1] * 3
    assert len(left.splitlines()) >= 2 + 4  # the forked one too, whose command line is its parent's


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "with workers"])
def test_a_run_that_leaves_nothing_passes(run, options):
    """Servers that all tests share are stopped before anything is counted."""
    process = run("def test_nothing(): pass", *options, "-s").process
    said, _ = process.communicate()

    assert "stopped" in said
    assert "left behind" not in said
    assert process.returncode == 0, said


def test_a_run_that_is_killed_leaves_nothing(run):
    """``kill -9`` of pytest: what its tests have started ends too."""
    started = run(LEAVES.replace("ACT", "time.sleep(600)"), "-n", "1")
    started.wait_for_processes(4)
    started.process.kill()

    started.wait_until_they_are_gone()


GROUP = """
import os, sys, time
if not os.fork():
    print("forked", flush=True)
    time.sleep(600)
{}
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("leader", "code"),
    [("pass", -signal.SIGTERM), ("sys.exit(3)", 3)],
    ids=["it runs", "it has ended"],
)
def test_who_is_ended_takes_its_group_along(leader, code):
    """A server's workers end with the server, also if that one has ended before or tells them nothing."""
    child = spawn([sys.executable, "-c", GROUP.format(leader)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "forked\n"
    if code > 0:
        assert child.wait(60) == code

    end(child)

    assert child.stdout.read() == ""  # nobody has the pipe any more
    assert child.returncode == code
    child.stdout.close()


def test_a_servers_own_process_keeps_the_mark():
    """By which the watcher finds it when its parent was killed."""
    primary = Valkey()
    sentinel = Sentinel(primary)
    try:
        assert {server._process.pid for server in (primary, sentinel)} <= set(find(RUN, root=-1))
    finally:
        for server in (sentinel, primary):
            server.stop()
