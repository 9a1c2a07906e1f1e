"""Somebody who has a page of ours, a wheel and an empty folder, and does what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

from tests.support.processes import spawn
from tests.support.servers import free_port, wait_for

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(command, folder, environment=None):
    """What ``command`` prints; it has to end well."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def wheel(folder):
    """The wheel that is being tested, or one of this source, built without a network."""
    if given := os.environ.get("BLOOMGUARD_WHEEL"):
        return Path(given)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, ROOT], folder)
    [built] = folder.glob("*.whl")
    return built


def environment(folder, built):
    """A virtual environment with the wheel, and this one's packages but for bloomguard; returns its ``python``.

    A path in a ``.pth`` file is only put on ``sys.path``: the ``.pth`` files there, an editable bloomguard's too, are
    not read.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    [own] = (folder / "lib").glob("python*/site-packages")
    kept = [path for path in sys.path if Path(path).name == "site-packages"]
    (own / "others.pth").write_text("\n".join(kept) + "\n")
    options = ["--quiet", "--no-index", "--no-deps", "--ignore-installed", "--disable-pip-version-check"]
    run([python, "-m", "pip", "install", *options, built], folder)
    return python


class Reader:
    """Types what a page shows, in ``folder``, with ``python``."""

    def __init__(self, folder, python):
        self.folder = folder
        self.server = None
        self.port = free_port()
        ours = ("DJANGO", "COVERAGE", "PYTHON", "BLOOMGUARD")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        mark = {name: value for name, value in os.environ.items() if name == "BLOOMGUARD_TEST_RUN"}
        self.environment = kept | mark | {"PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]])}

    def follow(self, page):
        """All blocks of the page that name a file or are typed."""
        for language, text in BLOCK.findall(page):
            if language == "console":
                self.type(text)
            elif text.startswith("# "):
                self.write(text)

    def write(self, text):
        """A block of Python says in its first line which file it is, or that it is the end of one."""
        first, _, body = text.partition("\n")
        name, _, at_end = first.removeprefix("# ").partition(", ")
        with (self.folder / name).open("a" if at_end else "w") as file:
            file.write("\n" + body)

    def type(self, text):
        """The lines that begin with ``$`` are commands; those after one are what it prints."""
        for typed in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, shown = typed.partition("\n")
            if command.startswith("cd "):
                self.folder /= command.removeprefix("cd ")
            elif command.endswith("runserver"):
                self.serve()
            elif not command.startswith(("git clone", "python -m pip install")):
                command = re.sub("^django-admin", "python -m django", command).replace(":8000", f":{self.port}")
                self.expect(command, shown.strip())

    def expect(self, command, shown):
        """Run ``command``, which has to print ``shown``; dots stand for anything."""
        printed = run(["sh", "-c", command], self.folder, self.environment)
        pattern = ".*".join(re.escape(part.strip()) for part in shown.split("..."))
        assert re.search(pattern, printed, re.DOTALL | re.IGNORECASE), f"{command}\n{printed}"
        return printed

    def serve(self):
        self.server = spawn(
            ["python", "manage.py", "runserver", "--noreload", str(self.port)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self.port, self.server)
