"""The tutorial works, typed in as it stands: every file, every command, every line that is shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import end, spawn
from tests.support.servers import free_port, wait_for

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who does what the page says, in ``folder``."""

    def __init__(self, folder):
        self.folder = folder
        self.server = None
        self.port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "COVERAGE"))}
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = {**kept, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""}

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
            elif "pip install" not in command:
                self.run(command.replace(":8000", f":{self.port}"), shown.strip())

    def run(self, command, shown):
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        pattern = ".*".join(re.escape(part) for part in shown.split("..."))
        assert re.search(pattern, done.stdout + done.stderr, re.DOTALL | re.IGNORECASE), f"{command}\n{done.stdout}"

    def serve(self):
        self.server = spawn(
            [sys.executable, "manage.py", "runserver", "--noreload", str(self.port)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self.port, self.server)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks with curl")
def test_the_tutorial_can_be_followed_to_the_letter(tmp_path):
    """From startproject to a blocked request, and to a row that is seen at once."""
    reader = Reader(tmp_path)
    try:
        for language, text in BLOCK.findall(TUTORIAL.read_text()):
            (reader.write if language == "python" else reader.type)(text)
    finally:
        if reader.server is not None:
            end(reader.server)
    assert reader.server is not None
