"""A file store lies on a disk of its host, or it is said what that means."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bloomguard.stores import disk
from bloomguard.stores.file import FileStore

LINES = """\
22 27 9999:21 / /proc rw,relatime - proc proc rw
27 1 9999:0 / / rw,relatime - ext4 /dev/vda rw,discard
a line that nobody understands
30 27 {device} / /somewhere rw,relatime shared:7 master:1 - {kind} there:/export rw,vers=4.2
"""


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """``mounted(kind)`` is a folder with a file system of that kind, as the kernel would tell."""

    def mount(kind):
        device = tmp_path.stat().st_dev
        table = tmp_path / "mountinfo"
        table.write_text(LINES.format(device=f"{os.major(device)}:{os.minor(device)}", kind=kind))
        monkeypatch.setattr(disk, "MOUNTS", table)
        (folder := tmp_path / "folder").mkdir()
        return folder

    return mount


def test_the_device_tells(mounted, tmp_path):
    """A path is on the file system of its device, links are followed; of other devices nothing is said."""
    folder = mounted("nfs4")
    (tmp_path / "link").symlink_to(folder)

    assert disk.filesystem_of(folder) == disk.filesystem_of(tmp_path / "link") == "nfs4"
    assert disk.filesystem_of(Path("/proc/self")) == ""


def test_where_nobody_tells_nothing_is_said(monkeypatch, tmp_path):
    """Without the kernel's table, as elsewhere than on Linux, the check is silent."""
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "none")

    assert disk.filesystem_of(tmp_path) == ""
    assert FileStore("default", path=tmp_path).check() == []


@pytest.mark.skipif(shutil.which("findmnt") is None, reason="nobody else to ask")
def test_the_kernel_is_understood(monkeypatch):
    """What is read from the real table is what ``findmnt`` reads from it."""
    monkeypatch.setattr(disk, "MOUNTS", Path("/proc/self/mountinfo"))
    for place in ("/proc", "/dev/shm", "/", os.getcwd()):
        told = subprocess.run(
            ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", place],
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode == 0:
            assert disk.filesystem_of(Path(place)) == told.stdout.split()[-1]


@pytest.mark.parametrize(
    ("kind", "identifier", "text", "cure"),
    [
        ("nfs4", "W026", "if the network fails", "on a local disk"),
        ("cifs", "W026", "if the network fails", "on a local disk"),
        ("fuse.sshfs", "W026", "do not trust", "Redis store"),
        ("overlay", "W027", "lost with the container", "a volume of the host"),
    ],
)
def test_a_file_store_on_another_file_system(mounted, kind, identifier, text, cure):
    """Never an error: the message names the store, the kind, the place, and what to do."""
    folder = mounted(kind)

    (found,) = FileStore("mine", path=folder / "filters").check()

    assert found.id == f"bloomguard.{identifier}"
    assert found.msg.startswith(f"the store 'mine' is on a file system of type {kind}, at {folder / 'filters'}: ")
    assert text in found.msg
    assert cure in found.hint
    assert not found.is_serious(level=40)  # that of an error


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_local_disk_is_fine(mounted, kind):
    """The disks of a host are what the file store is for; after a reboot no filter is trusted, wherever it was."""
    folder = mounted(kind)

    assert FileStore("mine", path=folder).check() == []
