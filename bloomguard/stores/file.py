"""A store for one host: a private folder a guard, a file a generation, mapped into every worker.

Readers take no lock. Writers take ``flock``: a bit is set by reading and writing its byte, and two processes that do
so to neighbouring bits at once would lose one of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Info, Warning

from ..exceptions import ConfigurationError, StoreError, UnknownGeneration
from ..filters import CorruptFilter
from ..filters.codec import Frame, Header
from ..filters.layout import MAX_BYTES, Layout
from ..forks import after_fork
from ..places import boot_id, file_id
from . import mounts
from .base import FindKeyHash, Generation, Store, bound, owner
from .frames import FrameGeneration
from .pages import Page, PageFolder
from .private import NotPrivate, check_folder, open_private, read_private

_SUFFIX = ".filter"
_IDENTITY_BYTES = 32
#: Programs that make backups may leave such a folder out: https://bford.info/cachedir/
_CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Filters of bloomguard. An older copy is of no use.\n"
#: The longest that a writer, or a reader that opens a generation, waits for another writer.
_LOCK_SECONDS = 1.0


class FileStore(Store):
    """Generations in files under ``path``, by default ``BASE_DIR / ".bloomguard"``.

    The folder belongs to the user whom the workers and ``rebuild_filter`` run as; nobody else may read or write it.
    """

    def __init__(self, alias: str, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(alias)
        if path is None:
            base = getattr(django_settings, "BASE_DIR", None)
            if base is None:
                raise ConfigurationError(
                    f"the store {alias!r} has no place for its files: set BASE_DIR, or "
                    f"BLOOMGUARD['STORES'][{alias!r}]['OPTIONS']['path'] to a folder on a local disk"
                )
            path = Path(base) / ".bloomguard"
        self.path = Path(path)
        self._locks: dict[str, _WriteLock] = {}
        self._figures = PageFolder(self.path)

    @property
    def identity(self) -> str:
        """The folder's UUID, its place on this host, and this boot: after a crash of the host, pages may be lost.

        The place matters where containers start from one image: each has its own copy of the same folder. Raises
        :class:`StoreError` if another user could have written there.
        """
        try:
            check_folder(self.path, may_be_link=True)
            life = read_private(self.path / "identity", _IDENTITY_BYTES).decode(errors="replace")
            place = f"{life}:{boot_id()}:{os.stat(self.path).st_dev}:{file_id(self.path)}"
        except OSError:
            return ""
        return "file:" + hashlib.sha256(place.encode()).hexdigest()[:40]

    def _folder(self, guard: str) -> Path:
        return self.path / guard

    def _file(self, guard: str, name: str) -> Path:
        return self._folder(guard) / (name + _SUFFIX)

    def _lock(self, guard: str) -> _WriteLock:
        """The lock of a guard and of what belongs to it: who writes to one writes to the other."""
        guard = owner(guard)
        lock = self._locks.get(guard)
        if lock is None:
            lock = self._locks.setdefault(guard, _WriteLock(self._folder(guard)))
        lock.doubt()
        return lock

    def prepare(self, guard: str) -> None:
        """Make the folders, private; raises :class:`StoreError` that says who cannot write where."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.path, self._folder(owner(guard)), self._folder(guard)):
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                    folder.chmod(0o700)  # whatever the umask took away
                check_folder(folder, may_be_link=folder == self.path)
            self._write_once(self.path / ".gitignore", "*\n")
            self._write_once(self.path / "CACHEDIR.TAG", _CACHE_TAG)
            self._write_once(self.path / "identity", uuid.uuid4().hex)
            self._write_once(self._folder(owner(guard)) / "lock", "")
        except OSError as error:
            raise StoreError(self._cannot("write", error)) from error

    @staticmethod
    def _write_once(path: Path, text: str) -> None:
        """Write a file unless it is there: whole or not at all, so that two who start at once agree on one."""
        if path.exists():
            return
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            with _opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                os.write(fd, text.encode())
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def _cannot(self, what: str, error: OSError) -> str:
        return (
            f"the store {self.alias!r} cannot {what} {error.filename or self.path} as user {os.geteuid()}: "
            f"{error.strerror}; the folder {self.path} has to be on a local disk and belong to this user"
        )

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        self.prepare(guard)
        path, size, free = self._file(guard, name), layout.total_bytes, self.free_bytes()
        no_room = f"no room for a filter of {size:,} bytes" + ("" if free is None else f", {free:,} are free")
        if free is not None and size > free:
            raise StoreError(f"{no_room} in the store {self.alias!r} at {self.path}")
        try:
            with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
                try:
                    layout = bound(layout, guard, name, file_id(fd))
                    _allocate(fd, size)
                    mapped = mmap.mmap(fd, size)
                    buffers = _cut(mapped, layout)
                    for header, buffer in zip(layout.headers, buffers):
                        Frame.format(header, buffer)
                except BaseException:
                    path.unlink()
                    raise
        except OSError as error:
            raise StoreError(f"{no_room}: {self._cannot('write', error)}") from error
        return FileGeneration(name, layout, buffers, self._lock(guard), mapped, path)

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        path = self._file(guard, name)
        try:
            for folder in (self.path, self._folder(owner(guard)), self._folder(guard)):
                check_folder(folder, may_be_link=folder == self.path)
            with _opened(path, os.O_RDWR) as fd:
                size, place = os.fstat(fd).st_size, file_id(fd)
                if not 0 < size <= MAX_BYTES:
                    raise CorruptFilter(f"{path} has {size:,} bytes")
                mapped = mmap.mmap(fd, size)
        except FileNotFoundError as error:
            raise UnknownGeneration(f"{path} is not there") from error
        except OSError as error:
            raise StoreError(self._cannot("read", error)) from error
        layout = self._layout(guard, name, place, Header.unpack(memoryview(mapped)), size, find_key_hash)
        return FileGeneration(name, layout, _cut(mapped, layout), self._lock(guard), mapped, path)

    def drop(self, guard: str, name: str) -> None:
        try:
            self._file(guard, name).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(self._cannot("remove", error)) from error

    def names(self, guard: str) -> list[str]:
        try:
            files = os.listdir(self._folder(guard))
        except OSError:
            return []
        return [file[: -len(_SUFFIX)] for file in files if file.endswith(_SUFFIX)]

    def free_bytes(self) -> int | None:
        try:
            usage = shutil.disk_usage(self.path if self.path.exists() else self.path.parent)
        except OSError:
            return None
        return usage.free if usage.total else None  # what has no size is no disk: writing there will say why

    def add_figures(self, page: Page, cells: Mapping[int, int]) -> None:
        self._figures.add(page, cells)

    def read_figures(self, pages: Sequence[Page]) -> list[bytes]:
        return [self._figures.read(page) for page in pages]

    def check(self) -> list[CheckMessage]:
        existing = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not os.access(existing, os.W_OK | os.X_OK):
            return [
                Error(
                    f"the store {self.alias!r} cannot write {existing} as user {os.geteuid()}.",
                    hint=f"Give this user a private folder on a local disk, by {self._option}.",
                    id="bloomguard.E010",
                )
            ]
        try:
            if self.path.exists():
                check_folder(self.path, may_be_link=True)
        except (NotPrivate, OSError) as error:
            return [
                Warning(
                    f"the store {self.alias!r} is not used: {error}.",
                    hint=f"Give it a private folder, by {self._option}, or run this as the user of the workers.",
                    id="bloomguard.W037",
                )
            ]
        return self._check_disk()

    def _check_disk(self) -> list[CheckMessage]:
        kind = mounts.filesystem_of(self.path)
        lies = f"the store {self.alias!r} lies on {kind}, at {self.path}: "
        if kind in mounts.NETWORK:
            return [
                Warning(
                    f"{lies}where the network fails, a worker that reads a mapped file waits or is killed, and no "
                    "other host trusts what this one wrote.",
                    hint=f"Give it a folder on a local disk, by {self._option}; several hosts share a Redis store.",
                    id="bloomguard.W026",
                )
            ]
        if kind in mounts.OVERLAY:
            return [
                Warning(
                    f"{lies}its filters are gone with the container, and other containers do not see them.",
                    hint=f"Give it a volume of the host, by {self._option}, and run rebuild_filter where the workers "
                    "run; or take a Redis store.",
                    id="bloomguard.W027",
                )
            ]
        if kind in mounts.MEMORY:
            return [
                Info(
                    f"{lies}its filters take memory, and are gone after a restart.",
                    hint="Run rebuild_filter --if-needed at every start; until it is done, every request passes.",
                    id="bloomguard.I028",
                )
            ]
        return []

    @property
    def _option(self) -> str:
        return f"BLOOMGUARD['STORES'][{self.alias!r}]['OPTIONS']['path']"


class FileGeneration(FrameGeneration):
    """A generation in a mapped file."""

    def __init__(
        self, name: str, layout: Layout, buffers: list[memoryview], lock: _WriteLock, mapped: mmap.mmap, path: Path
    ) -> None:
        self._mapped = mapped
        self._path = path
        super().__init__(name, layout, buffers, lock)

    def seal(self) -> None:
        """Write it to the disk: the file first, then the folder that names it. Raises :class:`StoreError`."""
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


class _WriteLock:
    """``flock`` on a file of the guard's folder, with a thread lock before it.

    ``flock`` belongs to the open file, so threads that share one do not exclude each other, and neither do a parent
    and a child that inherited it: after a fork, each opens its own.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._thread = threading.Lock()
        self._fd: int | None = None
        self._doubts = 1
        self._sure = 0  # after how many doubts the open file was the one that the path names
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._thread = threading.Lock()
        self._close()

    def _close(self, close: Callable[[int], None] = os.close) -> None:
        # The default keeps hold of the function: at the interpreter's end the module may be gone first.
        if self._fd is not None:
            close(self._fd)
            self._fd = None

    def __call__(self, exclusive: bool) -> _Held:
        """A block that holds the lock, alone or with others; raises :class:`StoreError` if that takes too long."""
        return _Held(self, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)

    def take(self, how: int) -> int:
        if not self._thread.acquire(timeout=_LOCK_SECONDS):
            raise StoreError(f"another thread has held {self._path} for {_LOCK_SECONDS:g} s")
        try:
            return self._locked(how)
        except BaseException as error:
            self._close()  # and so unlocks it, if it came that far
            self._thread.release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot lock {self._path}: {error.strerror}") from error
            raise

    def leave(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            self._thread.release()

    def doubt(self) -> None:
        """The folder may have been moved away, and another one made: the next to lock looks."""
        self._doubts += 1

    def _locked(self, how: int) -> int:
        """Lock the very file that the path names now.

        A folder that was removed and made again has another one: whoever held on to the old file would lock out nobody.
        """
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            if self._fd is None:
                self._fd = open_private(self._path, os.O_RDWR | os.O_CREAT)
                self.doubt()
            self._flock(self._fd, how, deadline)
            about, doubts = os.fstat(self._fd), self._doubts
            with suppress(FileNotFoundError):
                if about.st_nlink and (self._sure == doubts or os.path.samestat(about, os.stat(self._path))):
                    self._sure = doubts
                    return self._fd
            self._close()

    def _flock(self, fd: int, how: int, deadline: float) -> None:
        """Take the lock, but never wait for good: whoever holds it may have been stopped in the middle of it."""
        pause = 0.00002
        while True:
            try:
                return fcntl.flock(fd, how | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{self._path} has been locked for {_LOCK_SECONDS:g} s; is a process that writes stopped?"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, 0.001)

    def __del__(self) -> None:
        self._close()


class _Held:
    """The block of a :class:`_WriteLock`. Each INSERT comes by, and a generator costs it two microseconds."""

    __slots__ = ("_fd", "_how", "_lock")

    def __init__(self, lock: _WriteLock, how: int) -> None:
        self._lock = lock
        self._how = how

    def __enter__(self) -> None:
        self._fd = self._lock.take(self._how)

    def __exit__(self, *exception: object) -> None:
        self._lock.leave(self._fd)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = open_private(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _allocate(fd: int, size: int) -> None:
    """Take the disk space now: writing through a mapping to a sparse file on a full disk kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    piece = bytes(1 << 20)
    for start in range(0, size, len(piece)):
        os.write(fd, piece[: size - start])


def _cut(mapped: mmap.mmap, layout: Layout) -> list[memoryview]:
    """One writable view a shard."""
    whole, size = memoryview(mapped), layout.frame_bytes
    return [whole[start : start + size] for start in range(0, layout.total_bytes, size)]
