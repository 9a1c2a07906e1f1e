"""Queries to the operating system: file system types, private files and folders, and file identities."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..exceptions import StoreError
from ..process import is_within, seconds

try:
    import fcntl as fcntl
except ImportError:  # Windows: the file store refuses to start, and all else works
    fcntl = None  # type: ignore[assignment]

#: Maximum time to wait for the lock of another writer, of a generation or of a page of metrics.
LOCK_SECONDS = 1.0
#: How long writers trust the disk after it has taken a byte. The kernel writes mapped pages much later, up to half a
#: minute.
WRITABLE_SECONDS = 1.0

# -- file system types

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset([
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "ocfs2",
    "gfs2", "virtiofs", "vboxsf", "prl_fs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse",
    "fuse.blobfuse", "fuse.blobfuse2", "fuse.rclone", "fuse.goofys", "fuse.mount-s3", "fuse.juicefs", "fuse.davfs",
    "fuse.grpcfuse", "fuse.vmhgfs-fuse",
])  # fmt: skip
OVERLAY = frozenset(["overlay", "aufs", "fuse.fuse-overlayfs"])


def filesystem_of(path: Path) -> str:
    """Return the type of the file system that holds ``path``, such as ``"ext4"``; empty if it is unknown."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return ""
    for line in lines:
        mount, _, kind = line.partition(" - ")  # the number of optional fields before the dash varies
        if mount.split(" ")[2:3] == [number]:
            return kind.partition(" ")[0]
    return ""


# -- private files and folders

#: ``O_NONBLOCK``: opening a named pipe returns at once, and the check of the file's type then refuses it.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"))


def open_private(path: Path, flags: int) -> int:
    """Open a regular file that belongs to this user or root, and return its descriptor; a new file gets mode 0600.

    Raises :class:`StoreError` if other users could have written the file, and :class:`OSError`.
    """
    fd = os.open(path, flags | _FLAGS, 0o600)
    try:
        if flags & os.O_EXCL:
            os.fchmod(fd, 0o600)  # restore the bits that the umask removed
        _check_owner(path, os.fstat(fd), stat.S_ISREG)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def opened_private(path: Path, flags: int) -> Iterator[int]:
    """Open a file as :func:`open_private` does, for this block."""
    fd = open_private(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def lock_file(fd: int, path: Path, how: int) -> None:
    """Take ``flock``; raises :class:`StoreError` after :data:`LOCK_SECONDS`: a stopped process may hold the lock."""
    began, pause = seconds(), 0.00002
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(fd, how | fcntl.LOCK_NB)
        if not is_within(LOCK_SECONDS, began, seconds()):
            raise StoreError(f"{path} has been locked for {LOCK_SECONDS:g} s; is a writing process stopped?")
        time.sleep(pause)
        pause = min(2 * pause, 0.001)


def allocate(fd: int, size: int) -> None:
    """Allocate the disk space now: writing to a mapped sparse file on a full disk kills the process (SIGBUS)."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    piece = bytes(1 << 20)
    with open(fd, "wb", closefd=False) as file:  # unlike os.write(), it writes all of a piece or raises an error
        for start in range(0, size, len(piece)):
            file.write(piece[: size - start])


def check_folder(path: Path, *, may_be_link: bool = False) -> None:
    """Raise :class:`StoreError` unless only this user or root can have written in ``path``; :class:`OSError`, too."""
    _check_owner(path, os.stat(path, follow_symlinks=may_be_link), stat.S_ISDIR)


def _check_owner(path: Path, about: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it has another file type", str(path))
    own = os.geteuid()
    if about.st_uid not in (0, own):
        # The cure for a shell of root is another than that for workers: a folder of root is of no use to them.
        raise StoreError(
            f"{path} belongs to user {about.st_uid}, this process is user {own}: run it as user {about.st_uid}, or "
            "give the store's folder to the workers' user (chown -R)"
        )
    if about.st_mode & 0o022:
        raise StoreError(
            f"{path} could have been written by others: {stat.filemode(about.st_mode)} of user {about.st_uid}; take "
            "write permission from group and others (chmod go-w)"
        )


# -- identities

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: The first is a UUID, which only macOS has. The time of the boot changes when the clock is set, too.
_BOOTS = (b"kern.bootsessionuuid", b"kern.boottime")
_SYSCTL_BYTES = 256
#: The content of :data:`BOOT_ID` when it was read last.
_read_before: dict[Path, str] = {}

_EMPTY_PATH = 0x1000  # AT_EMPTY_PATH: query the descriptor itself
_BIRTH = 0x800  # STATX_BTIME
_STATX_BYTES, _BIRTH_AT = 256, 80


def boot_id() -> str:
    """Return an ID of the host's current boot. Data that was not on the disk when the host went down is lost.

    Linux has a file for it, macOS and the BSDs have values of the kernel. If the file cannot be read again, as without
    a free descriptor, the boot is still that of before. Raises :class:`OSError` if it is unknown, as in a service or a
    chroot that does not see the file: no other number of the host changes at each boot, and at no other time. Only
    Windows, which has no file store, gets an ID of the host alone.
    """
    try:
        known = BOOT_ID.read_text().strip()
        if not known:
            raise OSError(errno.ENODATA, "it is empty", str(BOOT_ID))
        _read_before[BOOT_ID] = known
    except OSError:
        if BOOT_ID in _read_before:
            return _read_before[BOOT_ID]
        found = next(filter(None, map(_sysctl, _BOOTS)), b"")
        if not found and fcntl is not None:
            raise
        return f"{found.hex()}@{uuid.getnode()}" if found else f"node:{uuid.getnode()}"
    return known


def comparable_boot_id() -> str:
    """Return :func:`boot_id`, or a text that equals no other if it is unknown. Never raises."""
    try:
        return boot_id()
    except OSError:
        return f"unknown:{uuid.uuid4().hex}"


def _sysctl(name: bytes) -> bytes:
    """Return a value of the kernel; empty if there is none."""
    size = ctypes.c_size_t(_SYSCTL_BYTES)
    value = ctypes.create_string_buffer(_SYSCTL_BYTES)
    if _libc_sysctl is None or _libc_sysctl(name, value, ctypes.byref(size), None, 0):
        return b""
    return value.raw[: size.value]


def file_id(file: int | str | os.PathLike[str]) -> str:
    """Return a file's inode number and, if the file system records it, its creation time; raises :class:`OSError`.

    A copy that replaces the file gets another ID. The inode number alone is not enough: it is reused at once.
    """
    about = os.stat(file)
    return f"{about.st_ino}:{_birth_time(file, about)}"


def _birth_time(file: int | str | os.PathLike[str], about: os.stat_result) -> str:
    known: Any = getattr(about, "st_birthtime", None)
    if known is not None:
        return str(known)
    if _statx is None:
        return ""
    found = (ctypes.c_uint8 * _STATX_BYTES)()
    folder, path, flags = (file, b"", _EMPTY_PATH) if isinstance(file, int) else (-100, os.fsencode(file), 0)
    if _statx(folder, path, flags, _BIRTH, found):
        return ""
    mask = int.from_bytes(bytes(found[:4]), sys.byteorder)
    return bytes(found[_BIRTH_AT : _BIRTH_AT + 12]).hex() if mask & _BIRTH else ""


def _of_libc(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # an older C library, or another system
        return None


_statx = _of_libc("statx")
_libc_sysctl = _of_libc("sysctlbyname")
