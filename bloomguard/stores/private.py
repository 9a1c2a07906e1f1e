"""Files and folders that nobody but this user, and root, could have made or changed: others are not used."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ..exceptions import StoreError

#: Nothing that a name leads to is waited for: a pipe opens at once, and is then seen to be none of ours.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NotPrivate(StoreError):
    """Another user could have made or changed it."""


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a regular file of this user, or of root; raises :class:`NotPrivate`, and :class:`OSError`.

    A file that this makes has mode 0600.
    """
    fd = os.open(path, flags | _FLAGS, 0o600)
    try:
        if flags & os.O_EXCL:
            os.fchmod(fd, 0o600)  # whatever the umask took away
        _check(path, os.fstat(fd), stat.S_ISREG)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_private(path: Path, most: int) -> bytes:
    """What a file has, of ``most`` bytes; raises :class:`NotPrivate`, also if it has more, and :class:`OSError`."""
    fd = open_private(path, os.O_RDONLY)
    try:
        found = os.pread(fd, most + 1, 0)
    finally:
        os.close(fd)
    if len(found) > most:
        raise NotPrivate(f"{path} has more than the {most:,} bytes that it was made with")
    return found


def check_folder(path: Path, *, may_be_link: bool = False) -> None:
    """Raise :class:`NotPrivate` unless it is a folder of this user, or of root; and :class:`OSError`."""
    _check(path, os.stat(path, follow_symlinks=may_be_link), stat.S_ISDIR)


def _check(path: Path, about: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "what is there is of another type", str(path))
    if not about.st_mode & 0o022 and about.st_uid in (0, os.geteuid()):
        return
    raise NotPrivate(
        f"{path} could have been written by others: {stat.filemode(about.st_mode)} of user {about.st_uid}; files and "
        f"folders of a store have to belong to user {os.geteuid()}, or to root, and nobody else may write them"
    )
