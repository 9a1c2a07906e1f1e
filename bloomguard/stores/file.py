"""A store for one host: one private folder per guard, one file per generation, mapped into every worker.

Readers take no lock. Writers take ``flock``: setting a bit reads and writes its byte, so of two processes that set
neighbouring bits at the same time, one could lose its bit.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Warning

from ..exceptions import ConfigurationError, StoreError, UnknownGeneration
from ..filters import CorruptFilter
from ..filters.codec import Frame, Header
from ..filters.layout import MAX_BYTES, Layout
from . import disk
from .base import PAGE_BYTES, FindKeyHash, Generation, Page, Store, add_to, bound
from .disk import check_folder, fcntl, file_id, lock_file, opened_private
from .frames import FrameGeneration, WriteLock

_SUFFIX = ".filter"
_PAGE_NAME = re.compile(r"metrics-(\d+)-(\d+)")
#: Tells backup programs to skip the folder: https://bford.info/cachedir/
_CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Filters of bloomguard. An older copy is of no use.\n"


class FileStore(Store):
    """Generations in files under ``path``, by default ``".bloomguard"``, in ``BASE_DIR`` unless it is absolute.

    The folder belongs to the user that runs the workers and ``rebuild_filter``; other users may not read or write it.
    """

    def __init__(self, alias: str, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(alias)
        if fcntl is None:
            raise ConfigurationError(
                f"the store {alias!r}: a FileStore needs flock, which this system ({sys.platform}) does not have; "
                "use bloomguard.stores.redis.RedisStore, or bloomguard.stores.memory.MemoryStore for one process"
            )
        self.path = Path(path or ".bloomguard")
        if not self.path.is_absolute():  # the working directory is another one in other processes
            base = getattr(django_settings, "BASE_DIR", None)
            if base is None:
                raise ConfigurationError(
                    f"the store {alias!r}: nothing says where the folder {str(self.path)!r} is; set BASE_DIR, or "
                    f"{_option(alias)} to the absolute path of a folder on a local disk"
                )
            self.path = Path(base).absolute() / self.path
        if b"\0" in os.fsencode(self.path):
            raise ConfigurationError(f"the store {alias!r}: {_option(alias)} has a NUL, which no path can have")

    @property
    def place(self) -> str:
        return f"the folder {self.path}"

    def location(self, guard: str, name: str) -> str:
        return str(self._file(guard, name))

    @property
    def identity(self) -> str:
        """Hash of the boot ID and of the folder's device, inode and creation time, empty without a folder.

        The boot ID is part of it because a crash of the host may lose writes; the others, because containers from one
        image each have a copy of the folder. A new folder that gets the identity of a former one, as on a file system
        without creation times, has none of its generations. Raises :class:`StoreError` if other users could have
        written it, or if the boot is unknown.
        """
        try:
            check_folder(self.path, may_be_link=True)
            place = f"{self._boot_id()}:{os.stat(self.path).st_dev}:{file_id(self.path)}"
        except PermissionError as error:
            raise StoreError(self._cannot("read", error)) from error
        except OSError:
            return ""
        return "file:" + hashlib.sha256(place.encode()).hexdigest()[:40]

    def _boot_id(self) -> str:
        try:
            return disk.boot_id()
        except OSError as error:
            raise StoreError(
                f"the store {self.alias!r} cannot tell whether the host has restarted, as this process cannot read "
                f"{disk.BOOT_ID}: {error.strerror}; a service needs ProcSubset=all, a chroot its own /proc"
            ) from error

    def _folder(self, guard: str) -> Path:
        return self.path / guard

    def _file(self, guard: str, name: str) -> Path:
        return self._folder(guard) / (name + _SUFFIX)

    def prepare(self, guard: str) -> None:
        """Create the private folders; raises :class:`StoreError` with the user and the path if that fails."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.path, self._folder(guard)):
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                    folder.chmod(0o700)  # restore the bits that the umask removed
                check_folder(folder, may_be_link=folder == self.path)
            self._write_once(self.path / ".gitignore", "*\n")
            self._write_once(self.path / "CACHEDIR.TAG", _CACHE_TAG)
        except OSError as error:
            raise StoreError(self._cannot("write", error)) from error
        self._boot_id()  # a filter is not trusted without it

    @staticmethod
    def _write_once(path: Path, text: str) -> None:
        """Create a file if it is missing."""
        with suppress(FileExistsError), opened_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            os.write(fd, text.encode())

    def _cannot(self, what: str, error: OSError) -> str:
        return (
            f"the store {self.alias!r} cannot {what} {error.filename or self.path} as user {os.geteuid()}: "
            f"{error.strerror}; the folder {self.path} has to be on a local disk and belong to this user"
        )

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        self.prepare(guard)
        path, size, free = self._file(guard, name), layout.total_bytes, self.free_bytes()
        wanted = f"a filter of {size:,} bytes" + ("" if free is None else f", {free:,} are free")
        if free is not None and size > free:
            raise StoreError(f"no room for {wanted} in the store {self.alias!r} at {self.path}")
        try:
            with opened_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
                try:
                    place = file_id(fd)
                    layout = bound(layout, guard, name, place)
                    disk.allocate(fd, size)
                    mapped = mmap.mmap(fd, size)
                    for header, buffer in zip(layout.headers, _split(mapped, layout)):
                        Frame.format(header, buffer)
                except BaseException:
                    path.unlink()
                    raise
        except OSError as error:
            raise StoreError(f"cannot make {wanted}: {self._cannot('write', error)}") from error
        return FileGeneration(name, layout, mapped, path, place)

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        path = self._file(guard, name)
        try:
            for folder in (self.path, self._folder(guard)):
                check_folder(folder, may_be_link=folder == self.path)
            with opened_private(path, os.O_RDWR) as fd:
                size, place = os.fstat(fd).st_size, file_id(fd)
                if not 0 < size <= MAX_BYTES:
                    raise CorruptFilter(f"{path} has {size:,} bytes")
                mapped = mmap.mmap(fd, size)
        except FileNotFoundError as error:
            raise UnknownGeneration(f"{path} does not exist") from error
        except OSError as error:
            raise StoreError(self._cannot("read", error)) from error
        layout = self._layout(guard, name, place, Header.unpack(memoryview(mapped)), size, find_key_hash)
        return FileGeneration(name, layout, mapped, path, place)

    def drop(self, guard: str, name: str) -> None:
        try:
            self._file(guard, name).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(self._cannot("remove", error)) from error

    def forget(self, guard: str) -> None:
        folder = self._folder(guard)
        try:
            for name in filter(_PAGE_NAME.fullmatch, os.listdir(folder)):
                (folder / name).unlink()
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # it has filters of another database
                raise StoreError(self._cannot("remove", error)) from error

    def names(self, guard: str) -> list[str]:
        try:
            files = os.listdir(self._folder(guard))
        except PermissionError as error:
            raise StoreError(self._cannot("read", error)) from error
        except OSError:
            return []
        return [file[: -len(_SUFFIX)] for file in files if file.endswith(_SUFFIX)]

    def free_bytes(self) -> int | None:
        try:
            usage = shutil.disk_usage(self.path if self.path.exists() else self.path.parent)
        except OSError:
            return None
        return usage.free if usage.total else None  # some file systems report no size: then writing may fail

    def add_metrics(self, page: Page, cells: Mapping[int, int]) -> None:
        """Add numbers to a page, a file beside the guard's filters; do nothing for a guard without a folder.

        The add is one ``pwrite`` under ``flock``, so a killed process leaves a page with all of it or none.
        """
        file = self._page_file(page)
        try:
            with opened_private(file, os.O_RDWR | os.O_CREAT) as fd:
                try:
                    lock_file(fd, file, fcntl.LOCK_EX)
                    before = os.pread(fd, PAGE_BYTES, 0)
                    if not before:
                        os.fchmod(fd, 0o600)  # restore the bits that the umask removed
                        self._sweep(page)
                    after = add_to(_padded(before), cells)
                    start, end = 4 * min(cells), 4 * max(cells) + 4
                    os.pwrite(fd, after[start:end], start)
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)  # close() would not unlock if a child forked meanwhile has it open
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot write metrics to {file}: {error.strerror}") from error

    def read_metrics(self, pages: Sequence[Page]) -> list[bytes]:
        return [self._read_page(self._page_file(page)) for page in pages]

    @staticmethod
    def _read_page(file: Path) -> bytes:
        try:
            with opened_private(file, os.O_RDONLY) as fd:
                return _padded(os.pread(fd, PAGE_BYTES, 0))
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"cannot read metrics from {file}: {error.strerror}") from error

    def _page_file(self, page: Page) -> Path:
        return self._folder(page.guard) / f"metrics-{page.step}-{page.number}"

    def _sweep(self, page: Page) -> None:
        folder = self._folder(page.guard)
        for name in os.listdir(folder):
            found = _PAGE_NAME.fullmatch(name)
            if found and Page(page.guard, int(found[1]), int(found[2])).is_over(page):
                with suppress(OSError):
                    (folder / name).unlink()

    def check(self) -> list[CheckMessage]:
        # Not by Path.exists(), which before Python 3.14 raises an error in a folder that this user may not search.
        existing = next(path for path in (self.path, *self.path.parents) if os.path.exists(path))
        if not os.access(existing, os.W_OK | os.X_OK):
            own, owner = os.geteuid(), os.stat(existing).st_uid
            give = f"chown -R {own}" if existing == self.path else f"install -d -m 700 -o {own}"
            return self._warning(
                f"cannot write {existing} of user {owner} as user {own}.",
                "a private folder of this user on a local disk"
                + (f"; or, if this is the workers' user, run as root: {give} {self.path}" if owner != own else "."),
                id="bloomguard.W110",
            )
        try:
            if self.path.exists():
                check_folder(self.path, may_be_link=True)
        except (StoreError, OSError) as error:
            hint = (
                "Run commands and shells as the user of the workers: a row that another user saves disables the guard. "
                "Use a private folder: if this is a mount, a folder inside, which will be made."
            )
            return [Warning(f"the store {self.alias!r} is not used: {error}.", hint=hint, id="bloomguard.W037")]
        kind = disk.filesystem_of(existing)
        place = f"is on a file system of type {kind}, at {self.path}"
        if kind in disk.NETWORK:
            return self._warning(
                f"{place}: if the network fails, a worker that reads a mapped file blocks or is killed, and other "
                "hosts do not trust the filters that this one wrote.",
                "a folder on a local disk; several hosts need a Redis store.",
                id="bloomguard.W026",
            )
        if kind in disk.OVERLAY:
            return self._warning(
                f"{place}: its filters are lost with the container, and other containers cannot read them.",
                "a volume of the host and run rebuild_filter there, or use a Redis store.",
                id="bloomguard.W027",
            )
        return []

    def _warning(self, problem: str, path: str, id: str) -> list[CheckMessage]:
        """Return the warning that the store has this problem until its path is set to ``path``."""
        return [Warning(f"the store {self.alias!r} {problem}", hint=f"Set {_option(self.alias)} to {path}", id=id)]


class FileGeneration(FrameGeneration):
    """A generation in a mapped file."""

    def __init__(self, name: str, layout: Layout, mapped: mmap.mmap, path: Path, place: str) -> None:
        self._mapped = mapped
        self._path = path
        super().__init__(name, layout, _split(mapped, layout), WriteLock(path, place))

    def seal(self) -> None:
        """Write the file to the disk, then its folder. Raises :class:`StoreError`."""
        super().seal()
        try:
            self._mapped.flush()
            for path in (self._path, self._path.parent):
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        except OSError as error:
            raise StoreError(f"cannot write {self._path} to the disk: {error.strerror}") from error


def _option(alias: str) -> str:
    return f"BLOOMGUARD['STORES'][{alias!r}]['OPTIONS']['path']"


def _padded(page: bytes) -> bytes:
    """Return a whole page: its file is only as long as the rows written so far."""
    return page.ljust(PAGE_BYTES, b"\0")


def _split(mapped: mmap.mmap, layout: Layout) -> list[memoryview]:
    """Return one writable view per shard."""
    whole, size = memoryview(mapped), layout.header.frame_bytes
    return [whole[start : start + size] for start in range(0, layout.total_bytes, size)]
