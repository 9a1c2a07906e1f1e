"""Which boot of a host this is, and which file: what tells a thing from a copy that has its name and its bytes."""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from pathlib import Path
from typing import Any

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_EMPTY_PATH = 0x1000  # AT_EMPTY_PATH: the descriptor itself
_BIRTH = 0x800  # STATX_BTIME
_STATX_BYTES, _BIRTH_AT = 256, 80


def boot_id() -> str:
    """Names this boot of the host: what was not on the disk when the one before ended is gone."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else f"node:{uuid.getnode()}"


def file_id(file: int | str | os.PathLike[str]) -> str:
    """Names a file by its inode and, where the file system knows it, when that was made; raises :class:`OSError`.

    A copy that takes the file's place has another. The number alone would not do: it is given again at once.
    """
    about = os.stat(file)
    return f"{about.st_ino}:{_born(file, about)}"


def _born(file: int | str | os.PathLike[str], about: os.stat_result) -> str:
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


try:
    _statx: Any = ctypes.CDLL(None).statx
except (AttributeError, OSError, TypeError):  # an older C library, or another system
    _statx = None
