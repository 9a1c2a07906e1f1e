"""Processes that the suite starts: each leads a group of its own, which ends with its test, and none outlives the run.

Each has the environment variable ``BLOOMGUARD_TEST_RUN`` of the pytest process that it comes from. A run fails if at
its end a process is left that descends from it or has that variable. If pytest itself is killed, a watcher kills them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MARK = "BLOOMGUARD_TEST_RUN"
#: This process's, after that of the run that it belongs to, if there is one. Set before the first server is started.
RUN = "/".join(filter(None, (os.environ.get(MARK), str(os.getpid()))))
os.environ[MARK] = RUN
#: How long a process that was told to end may take; then it is killed.
_GRACE_SECONDS = 60.0
#: How long the run waits at its end for processes that are about to end by themselves.
_LAST_SECONDS = 30.0
_PROC = Path("/proc")
_POLL_SECONDS = 0.02

WATCH = "from tests.support.processes import kill_when_gone; import sys; kill_when_gone(int(sys.argv[1]), sys.argv[2])"


def spawn(command: Sequence[Any], **options: Any) -> subprocess.Popen[Any]:
    """Start ``command`` as the leader of a process group, for :func:`end`."""
    return subprocess.Popen(command, start_new_session=True, **options)


def end(child: subprocess.Popen[Any]) -> None:
    """Tell ``child`` to end, as servers do together with their workers; then kill whatever is left of its group."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


# -- what is left at the end


class Process(NamedTuple):
    parent: int
    is_marked: bool
    command: str


def _running(mark: str) -> Iterator[tuple[int, Process]]:
    """All processes of this host that have not ended, where ``/proc`` tells of them."""
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                yield int(folder.name), Process(int(parent), _has_mark(folder, mark), command)


def _has_mark(folder: Path, mark: str) -> bool:
    start = f"{MARK}={mark}".encode()
    with suppress(OSError):  # another user's, such as PostgreSQL's, is read by root alone
        words = (folder / "environ").read_bytes().split(b"\0")
        return any(word == start or word.startswith(start + b"/") for word in words)
    return False


def find(mark: str, root: int, but: int = 0) -> dict[int, str]:
    """Command lines of processes that have ``mark`` or descend from the process ``root``, which is none of them."""
    running = dict(_running(mark))
    running.pop(but, None)
    found = {pid for pid, process in running.items() if process.is_marked or process.parent == root} - {root}
    while more := {pid for pid, process in running.items() if process.parent in found} - found - {root}:
        found |= more
    return {pid: running[pid].command for pid in sorted(found)}


def kill(pids: Any) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_when_gone(parent: int, mark: str) -> None:
    """Wait for the end of the process ``parent``, which started this one, and kill whatever it leaves behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    kill(find(mark, os.getpid()))


class Watch:
    """A plugin of pytest that fails the run if a process of its is left. ``stop()`` ends the servers that tests share.

    Of a worker of pytest-xdist the controller reports it.
    """

    def __init__(self, config: pytest.Config, stop: Callable[[], None]) -> None:
        self._config = config
        self._stop = stop
        self._left: list[str] = []
        unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        self._watcher = subprocess.Popen(
            [sys.executable, "-c", WATCH, str(os.getpid()), RUN],
            cwd=Path(__file__).resolve().parents[2],
            env=unmeasured,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """After all teardown, and before anybody reports."""
        found = yield
        self._stop()
        left = self._wait()
        kill(left)
        self._left += left.values()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["left_behind"] = self._left
        elif self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return found

    def _wait(self) -> dict[int, str]:
        deadline = time.monotonic() + _LAST_SECONDS
        while (left := self._find()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return left

    def _find(self) -> dict[int, str]:
        return find(RUN, os.getpid(), but=self._watcher.pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker has found."""
        self._left += getattr(node, "workeroutput", {}).get("left_behind", [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._left:
            terminalreporter.section("processes left behind", red=True)
            terminalreporter.write_line("The run fails: a test started these and did not end them. They were killed.")
            for command in self._left:
                terminalreporter.write_line(command)

    def pytest_unconfigure(self) -> None:
        self._watcher.kill()
        self._watcher.wait()
