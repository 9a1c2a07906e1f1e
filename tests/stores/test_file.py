"""The file store: damaged files, private modes, places that cannot be written."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bloomguard.exceptions import ConfigurationError, StoreError
from bloomguard.filters import CorruptFilter
from bloomguard.stores import disk
from bloomguard.stores.base import Page
from bloomguard.stores.file import FileStore
from tests.support.processes import end, spawn

from .conftest import fill, find, key, make_layout

REFUSALS = (StoreError, CorruptFilter)


def modes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder.parent)): stat.filemode(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


GUARDS = ["city", "identity", "gitignore", "metrics-60-1", "a.filter"]


def test_no_guard_has_the_folder_of_another_or_a_name_of_the_stores_own(files):
    """The files of the store are files, and each guard has a folder."""
    for guard in GUARDS:
        files.create(guard, "a", make_layout()).add([key(1)])
        files.add_metrics(Page(guard, 60, 1), {0: 1})

    names = os.listdir(files.path)
    assert len({name.lower() for name in names}) == len(names) == len(GUARDS) + 2
    assert {name for name in names if (files.path / name).is_file()} == {".gitignore", "CACHEDIR.TAG"}
    for guard in GUARDS:
        assert files.names(guard) == ["a"]
        assert files.open(guard, "a", find).might_contain(key(1))
        assert any(files.read_metrics([Page(guard, 60, 1)])[0])
    assert files.identity


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])
def test_everything_is_private(files, umask):
    """Folders are 0700 and files 0600, whatever the umask."""
    before = os.umask(umask)
    try:
        files.create("city", "a", make_layout()).add([key(1)])
    finally:
        os.umask(before)

    found = modes(files.path)
    assert {name for name, mode in found.items() if mode == "drwx------"} == {"s", "s/city"}
    assert {name for name, mode in found.items() if mode == "-rw-------"} == {
        "s/.gitignore", "s/CACHEDIR.TAG", "s/city/a.filter"
    }  # fmt: skip
    assert len(found) == 5


def test_what_is_there_already_is_left_alone(files):
    """A second guard and a second start change neither the identity nor the .gitignore."""
    files.create("city", "a", make_layout())
    (files.path / ".gitignore").write_text("mine\n")
    identity = files.identity

    FileStore("default", path=files.path).create("listing", "b", make_layout())

    assert files.identity == identity
    assert (files.path / ".gitignore").read_text() == "mine\n"


def test_two_who_start_at_once_agree_on_one_identity(tmp_path):
    """However many processes make the folder at the same moment, it has one identity, and no litter."""
    code = "import sys; from bloomguard.stores.file import FileStore; sys.stdin.read(1); "
    code += f"s = FileStore('default', path={str(tmp_path / 's')!r}); s.prepare('city'); print(s.identity)"
    started = [
        spawn([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        for _ in range(4)
    ]
    try:
        for each in started:
            each.stdin.write(b"x")
            each.stdin.flush()
        told = {each.communicate()[0] for each in started}
    finally:
        for each in started:
            end(each)

    assert len(told) == 1
    assert sorted(os.listdir(tmp_path / "s")) == [".gitignore", "CACHEDIR.TAG", "city"]


def environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": f"{root}:{root / 'example_project'}"}


def test_a_folder_that_was_moved_is_another_store(files):
    """A copy of the folder, or a new one in its place, has another identity; without a folder there is none."""
    assert files.identity == ""
    files.create("city", "a", make_layout())
    first = files.identity

    shutil.copytree(files.path, files.path.with_name("copy"))
    copy = FileStore("default", path=files.path.with_name("copy")).identity
    shutil.rmtree(files.path)
    gone = files.identity
    files.create("city", "a", make_layout())

    assert gone == ""
    assert len({first, copy, files.identity}) == 3


def test_another_boot_is_another_store(files, monkeypatch, tmp_path):
    """After the host went down, pages that were never written to the disk may be lost: it is not the same store."""
    files.create("city", "a", make_layout())
    before = files.identity
    (tmp_path / "boot_id").write_text("another boot")
    monkeypatch.setattr("bloomguard.stores.disk.BOOT_ID", tmp_path / "boot_id")

    assert files.identity not in (before, "")


@pytest.mark.parametrize("content", [None, ""], ids=["no file", "an empty one"])
def test_a_process_that_does_not_see_the_boot_trusts_no_file(files, monkeypatch, tmp_path, content):
    """As a service with ``ProcSubset=pid``: after a crash of the host it would trust what lacks the last adds."""
    hidden = tmp_path / "boot_id"
    if content is not None:
        hidden.write_text(content)
    monkeypatch.setattr("bloomguard.stores.disk.BOOT_ID", hidden)
    monkeypatch.setattr("bloomguard.stores.disk._libc_sysctl", None)

    with pytest.raises(StoreError, match=r"cannot tell whether the host has restarted.*ProcSubset"):
        files.create("city", "a", make_layout())
    with pytest.raises(StoreError, match="cannot tell whether the host has restarted"):
        files.identity  # noqa: B018
    assert len({disk.comparable_boot_id(), disk.comparable_boot_id()}) == 2


def test_windows_has_an_id_of_the_host(monkeypatch, tmp_path):
    """It has no file store; with filters on a server, a SQLite database there keeps its identity."""
    monkeypatch.setattr("bloomguard.stores.disk.BOOT_ID", tmp_path / "none")
    monkeypatch.setattr("bloomguard.stores.disk._libc_sysctl", None)
    monkeypatch.setattr("bloomguard.stores.disk.fcntl", None)

    assert disk.boot_id() == disk.comparable_boot_id() == f"node:{uuid.getnode()}"


def test_each_boot_of_a_mac_is_another_store(files, monkeypatch, tmp_path):
    """Without Linux's file the kernel is asked, by a UUID, or else by the time of the boot."""
    values = {b"kern.bootsessionuuid": b"", b"kern.boottime": b"first boot"}

    def sysctl(name, value, size, new, new_size):
        ctypes.memmove(value, values[name], len(values[name]))
        size._obj.value = len(values[name])
        return 0 if values[name] else -1

    monkeypatch.setattr("bloomguard.stores.disk.BOOT_ID", tmp_path / "none")
    monkeypatch.setattr("bloomguard.stores.disk._libc_sysctl", sysctl)
    files.create("city", "a", make_layout())
    found = []
    for name, value in (
        (b"kern.boottime", b"first boot"),
        (b"kern.boottime", b"second boot"),
        (b"kern.bootsessionuuid", b"UUID of it"),
        (b"kern.boottime", b"the clock was set"),
    ):
        values[name] = value
        found.append(files.identity)

    assert found[0] != found[1] != found[2] == found[3]
    assert found[0] != found[2]


def lengths(size: int) -> list[int]:
    edges = [0, 1, 7, 8, 16, 63, 64, 72, 127, 128, size - 16, size - 9, size - 8, size - 1]
    return sorted({length for length in edges + random.Random(2).sample(range(size), 60) if 0 <= length < size})


@pytest.mark.parametrize("shard_bytes", [1 << 25, 1 << 12])
def test_a_file_of_another_length_is_not_trusted(files, shard_bytes):
    """At whatever length a file was cut, or with whatever was appended, it is not opened."""
    files.create("city", "a", make_layout(shard_bytes=shard_bytes)).add([key(1)])
    path = files.path / "city" / "a.filter"
    whole = path.read_bytes()

    for damaged in [*(whole[:length] for length in lengths(len(whole))), whole + b"\0", whole + whole]:
        path.write_bytes(damaged)
        with pytest.raises(REFUSALS):
            fill(files.open("city", "a", find))


@pytest.mark.parametrize("kind", ["bloom", "bitmap", "cuckoo"])
def test_no_flipped_bit_makes_a_key_vanish(files, kind):
    """Any one bit of the header and the trailer, and many of the body: refused, or every answer is still right."""
    numbers = range(0, 500, 3)
    layout = make_layout(kind)
    files.create("city", "a", layout).add(list(map(key, numbers)))
    path = files.path / "city" / "a.filter"
    whole = path.read_bytes()
    start, end, every = 8 * layout.header.body_offset, 8 * (len(whole) - 16), 8 * len(whole)
    positions = [*range(start), *random.Random(3).sample(range(start, end), 100), *range(end, every)]

    trusted = []
    for position in positions:
        with path.open("r+b") as file:
            file.seek(position // 8)
            file.write(bytes([whole[position // 8] ^ 1 << position % 8]))
        try:
            opened = files.open("city", "a", find)
            assert all(opened.might_contain(key(number)) for number in numbers)
            trusted.append(position)
        except REFUSALS:
            pass
        path.write_bytes(whole)

    # The mark of a writer that died, which asks for no checksum.
    assert trusted == [end + 8 * 7]


def test_a_file_that_others_may_write_is_not_trusted(files):
    """Whoever may write a filter decides what a site answers: group and others may not."""
    files.create("city", "a", make_layout())

    for mode in (0o620, 0o602, 0o666):
        (files.path / "city" / "a.filter").chmod(mode)
        with pytest.raises(StoreError, match="could have been written by others"):
            files.open("city", "a", find)


def test_what_is_no_file_is_not_trusted(files, tmp_path):
    """A symbolic link, a folder or a pipe under a generation's name is refused, and nobody waits at the pipe."""
    files.create("city", "a", make_layout())
    path = files.path / "city" / "a.filter"
    path.rename(tmp_path / "elsewhere")

    for make in (lambda: path.symlink_to(tmp_path / "elsewhere"), path.mkdir, lambda: os.mkfifo(path)):
        make()
        with pytest.raises(StoreError):
            files.open("city", "a", find)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_drop_that_fails_says_so(files):
    """What cannot be removed is a :class:`StoreError` that names it."""
    files.create("city", "a", make_layout())
    files.drop("city", "a")
    (files.path / "city" / "a.filter").mkdir()

    with pytest.raises(StoreError, match=r"cannot remove .*a\.filter"):
        files.drop("city", "a")


def test_a_lock_is_that_of_the_file_itself(files, monkeypatch):
    """Whatever happens to its folder: writers that have the same bytes mapped lock each other out, or do not write."""
    monkeypatch.setattr("bloomguard.stores.disk.LOCK_SECONDS", 0.01)
    made = files.create("city", "a", make_layout())
    mine = FileStore("default", path=files.path).open("city", "a", find)
    files.path.rename(files.path.with_name("moved"))

    with made._locked(True), pytest.raises(StoreError, match=r"has been locked for 0\.01 s"):
        mine.add([key(1)])


def test_nobody_waits_for_a_lock_until_a_clock_that_went_back_is_where_it_was(files, monkeypatch):
    made = files.create("city", "a", make_layout())
    mine = FileStore("default", path=files.path).open("city", "a", find)
    with made._locked(True):
        monkeypatch.setattr("bloomguard.stores.disk.seconds", iter([1_000.0, 10.0]).__next__)
        with pytest.raises(StoreError, match="has been locked"):
            mine.add([key(1)])


def test_a_child_does_not_lock_a_file_that_has_taken_the_name(files):
    """It opens the file again by its path: a lock on another one would exclude no writer of the mapped one."""
    made = files.create("city", "a", make_layout())
    other = FileStore("other", path=files.path).open("city", "a", find)
    file, aside = files.path / "city" / "a.filter", files.path / "aside"
    made._locked._close()  # as in every child
    file.rename(aside)
    with pytest.raises(StoreError, match="cannot lock"):
        made.add([key(2)])
    shutil.copy2(aside, file)
    with pytest.raises(StoreError, match="has been replaced"):
        made.add([key(2)])
    aside.rename(file)

    other.add([key(2)])
    made.add([key(3)])
    assert all(map(other.might_contain, map(key, (2, 3))))


UNWRITABLE = ["/proc/bloomguard", "/sys/bloomguard", "/dev/null/bloomguard", "{tmp}/file", "{tmp}/file/below"]


@pytest.mark.parametrize("path", UNWRITABLE)
def test_a_place_that_cannot_be_written_is_named(path, tmp_path):
    """A store in a place that cannot be written says which, as whom, and why; reading there finds nothing."""
    (tmp_path / "file").write_text("a file, where a folder should be")
    path = path.format(tmp=tmp_path)
    store = FileStore("default", path=path)

    with pytest.raises(
        StoreError, match=rf"cannot write .* as user \d+: .* the folder {path} has to be on a local disk"
    ):
        store.create("city", "a", make_layout())

    assert store.names("city") == []
    assert store.identity == ""
    with pytest.raises(StoreError):
        store.open("city", "a", find)


def test_a_place_that_cannot_be_written_is_a_warning(monkeypatch, tmp_path):
    """``manage.py check`` finds a place that cannot be written, and passes one that can, there or yet to be made."""
    assert FileStore("default", path=tmp_path / "not" / "yet").check() == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    (found,) = FileStore("default", path=tmp_path / "s").check()

    assert found.id == "bloomguard.W110"
    assert str(tmp_path) in found.msg


@pytest.mark.usefixtures("as_root")
def test_a_place_of_another_user_is_a_warning_with_the_command_that_gives_it(files, monkeypatch):
    """As after a first ``rebuild_filter`` by root; also for a folder that its parent's user has to make."""
    files.path.mkdir(mode=0o700)
    monkeypatch.setattr(os, "access", partial(os.access, effective_ids=True))

    with stranger(files.path):
        (found,) = files.check()
        (inside,) = FileStore("default", path=files.path / "new").check()
    assert found.id == inside.id == "bloomguard.W110"
    assert f"cannot write {files.path} of user 0 as user {STRANGER}" in found.msg
    assert found.hint.endswith(f"run as root: chown -R {STRANGER} {files.path}")
    assert inside.hint.endswith(f"run as root: install -d -m 700 -o {STRANGER} {files.path}/new")


@pytest.mark.parametrize(("path", "folder"), [("filters", "filters"), ("", ".bloomguard"), (None, ".bloomguard")])
def test_a_relative_path_is_in_the_folder_of_the_project(settings, tmp_path, path, folder):
    """And not in the working directory, of which each process may have another one."""
    settings.BASE_DIR = tmp_path

    assert FileStore("default", path=path).path == tmp_path / folder


@pytest.mark.parametrize("path", ["filters", None])
def test_without_that_folder_a_relative_path_is_a_mistake_in_the_settings(settings, path):
    del settings.BASE_DIR

    with pytest.raises(ConfigurationError, match=r"where the folder '(filters|\.bloomguard)' is; set BASE_DIR, or"):
        FileStore("default", path=path)


def test_a_path_that_cannot_exist_is_a_mistake_in_the_settings():
    """``manage.py check`` reports it: a store with such a path is never made."""
    with pytest.raises(ConfigurationError, match=r"the store 'default': .*path'\] has a NUL"):
        FileStore("default", path="/srv/filters\0")


@pytest.mark.parametrize("capacity", [1_000_000, 100_000])
@pytest.mark.parametrize("reserve", ["", "del os.posix_fallocate\n"], ids=["reserved", "written"])
def test_a_full_disk_is_a_clear_error_and_leaves_nothing(files, reserve, capacity):
    """The kernel refuses the space, or takes a part of the zeros: the error tells the bytes wanted, and no file stays
    behind."""
    files.prepare("city")

    said = run_with_small_files(
        "import os; from bloomguard.stores.file import FileStore; from bloomguard.exceptions import StoreError\n"
        f"from tests.stores.conftest import make_layout\n{reserve}"
        f"try: FileStore('default', path={str(files.path)!r}).create('city', 'a', make_layout(capacity={capacity}))\n"
        "except StoreError as error: print(error)\n"
    )

    assert f"cannot make a filter of {make_layout(capacity=capacity).total_bytes:,} bytes" in said
    assert "File too large" in said
    assert os.listdir(files.path / "city") == []


def run_with_small_files(code: str) -> str:
    """What ``code`` prints in a process that may not make a file larger than 100,000 bytes."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1))\n"
    lift = "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"  # what measures coverage writes at the end
    run = subprocess.run([sys.executable, "-c", limit + code + lift], capture_output=True, text=True, env=environment())
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_without_a_way_to_reserve_space_it_is_written(files, monkeypatch):
    """Systems without ``posix_fallocate`` get their space by writing zeros."""
    monkeypatch.delattr(os, "posix_fallocate")
    layout = make_layout(capacity=2_000_000)

    files.create("city", "a", layout).add([key(1)])

    assert os.stat(files.path / "city" / "a.filter").st_size == layout.total_bytes
    assert files.open("city", "a", find).might_contain(key(1))


def test_what_cannot_be_brought_to_the_disk_is_not_sealed(files):
    """A generation whose file is gone cannot be made durable, and says so."""
    generation = files.create("city", "a", make_layout())
    files.drop("city", "a")

    with pytest.raises(StoreError, match="to the disk"):
        generation.seal()


# -- files that others could have made

STRANGER = 64_101


@pytest.fixture
def as_root():
    if os.geteuid():
        pytest.skip("only root gives files away")


def each_folder(files) -> list[Path]:
    return [files.path, files.path / "city"]


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_folder_that_others_may_write_is_not_used(files, number, mode):
    """Whoever may write a folder may put an older filter into it: it is opened, made and written in by nobody."""
    files.create("city", "a", make_layout())
    each_folder(files)[number].chmod(mode)

    for use in (lambda: files.open("city", "a", find), lambda: files.create("city", "b", make_layout())):
        with pytest.raises(StoreError, match="could have been written by others"):
            use()
    assert files.names("city") == ["a"]


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o2775], ids=["docker --tmpfs", "emptyDir", "fsGroup"])
def test_a_mount_that_others_may_write_has_room_for_a_folder(tmp_path, mode):
    """The mount itself is not used, and the hint says what is: a folder inside, which the store makes private."""
    mount = tmp_path / "mount"
    mount.mkdir()
    mount.chmod(mode)
    (message,) = FileStore("default", path=mount).check()
    inside = FileStore("default", path=mount / "filters")

    assert message.id == "bloomguard.W037"
    assert "a folder inside" in message.hint
    assert inside.check() == []
    inside.create("city", "a", make_layout()).add([key(1)])
    assert inside.check() == []
    assert inside.open("city", "a", find).might_contain(key(1))


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("number", range(2))
def test_a_folder_of_another_user_is_not_used(files, number):
    """Somebody who made the folder first owns what is in it, whatever its mode says now."""
    files.create("city", "a", make_layout())
    os.chown(each_folder(files)[number], STRANGER, STRANGER)

    for use in (lambda: files.open("city", "a", find), lambda: files.create("city", "b", make_layout())):
        with pytest.raises(StoreError, match=f"belongs to user {STRANGER}, this process is user 0: run it as"):
            use()
    if not number:
        ((found, hint),) = [(each.id, each.hint) for each in files.check()]
        assert found == "bloomguard.W037"
        assert hint.startswith("Run commands and shells as the user of the workers")


@contextmanager
def stranger(folder: Path) -> Iterator[None]:
    """In this block, be another user, who may search the folders above ``folder``."""
    modes = {each: each.stat().st_mode for each in folder.parents}
    for each, mode in modes.items():
        if not mode & 0o001:
            each.chmod(mode | 0o011)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        for each, mode in modes.items():
            if not mode & 0o001:
                each.chmod(mode)


@pytest.mark.usefixtures("as_root")
def test_a_folder_that_root_has_made_is_named(files):
    """As after a ``rebuild_filter`` by root: the workers' error names the folder and their user, and no restart or
    other store, as a rebuild would not help."""
    files.create("city", "a", make_layout())

    with stranger(files.path):
        for use in (lambda: files.names("city"), lambda: files.open("city", "a", find)):
            with pytest.raises(StoreError, match=rf"cannot read {files.path}.* as user {STRANGER}: Permission denied"):
                use()


@pytest.mark.usefixtures("as_root")
def test_a_folder_that_cannot_be_written_is_no_full_disk(files):
    """As another user's, or on a file system that is read-only: the error gives the reason, and speaks of no room."""
    files.prepare("city")
    for number in range(2):
        each_folder(files)[number].chmod(0o755)

    with stranger(files.path), pytest.raises(StoreError, match=r"^cannot make a filter of .* Permission denied"):
        files.create("city", "a", make_layout())


@pytest.mark.usefixtures("as_root")
def test_a_place_in_a_folder_that_cannot_be_searched_is_a_warning(files, monkeypatch):
    """``manage.py check`` goes on."""
    files.path.mkdir(mode=0o700)
    monkeypatch.setattr(os, "access", partial(os.access, effective_ids=True))

    with stranger(files.path):
        (found,) = FileStore("default", path=files.path / "below").check()

    assert (found.id, str(files.path) in found.msg) == ("bloomguard.W110", True)


FILES = ["city/a.filter", "city/metrics-60-1"]


def uses(files: FileStore, name: str) -> list[Callable[[], object]]:
    """What reads or writes the file."""
    page = Page("city", 60, 1)
    return {
        "city/a.filter": [lambda: files.open("city", "a", find)],
        "city/metrics-60-1": [lambda: files.read_metrics([page]), lambda: files.add_metrics(page, {0: 1})],
    }[name]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "link", "endless", "folder", "socket"])
def test_what_is_no_file_is_waited_for_by_nobody(files, name, kind, tmp_path, monkeypatch):
    """A pipe, a link, a device, a folder or a socket in the place of any file is an error at once, or no store."""
    files.create("city", "a", make_layout())
    files.add_metrics(Page("city", 60, 1), {0: 1})
    path = files.path / name
    path.rename(tmp_path / "before")
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind in ("link", "endless"):
        path.symlink_to("/dev/zero" if kind == "endless" else tmp_path / "before")
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as bound, monkeypatch.context() as there:
            there.chdir(path.parent)  # the path of a socket has at most some 100 characters
            bound.bind(path.name)

    for use in uses(files, name):
        with pytest.raises(StoreError):
            use()


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_user_is_not_used(files, name):
    """Every file that is opened has to be this user's, or root's."""
    files.create("city", "a", make_layout())
    files.add_metrics(Page("city", 60, 1), {0: 1})
    os.chown(files.path / name, STRANGER, STRANGER)

    for use in uses(files, name):
        with pytest.raises(StoreError, match=f"belongs to user {STRANGER}, this process is user 0: run it as"):
            use()


def put_back(saved: Path, path: Path) -> None:
    """As most programs that restore do it: written beside, renamed into place."""
    shutil.copy2(saved, path.with_name("draft"))
    os.replace(path.with_name("draft"), path)


def unlinked(saved: Path, path: Path) -> None:
    """The new file gets the inode's number of the one that was removed, at once."""
    path.unlink()
    shutil.copy2(saved, path)


@pytest.mark.parametrize("restore", [put_back, unlinked])
def test_an_older_copy_in_a_files_place_is_not_trusted(files, restore, tmp_path):
    """It lacks what was added since: whoever opens it finds that it is another file than the one that was made."""
    made, path = files.create("city", "a", make_layout()), files.path / "city" / "a.filter"
    shutil.copy2(path, tmp_path / "saved")
    made.add([key(1)])

    restore(tmp_path / "saved", path)

    with pytest.raises(CorruptFilter, match="or is a copy"):
        FileStore("other", path=files.path).open("city", "a", find)
