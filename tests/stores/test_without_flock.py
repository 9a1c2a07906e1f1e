"""A system without ``fcntl``, as Windows: all works but the file store, which says what to use instead.

The workflow runs this file on Windows itself, without the suite's servers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Takes away what Windows lacks, before anything is imported; nothing there.
AS_ON_WINDOWS = """
import os, sys, time
sys.modules["fcntl"] = None
for module, names in {
    os: "register_at_fork O_CLOEXEC O_NOFOLLOW O_NONBLOCK fchmod pread pwrite geteuid getuid posix_fallocate fork",
    time: "clock_gettime CLOCK_BOOTTIME CLOCK_MONOTONIC",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""

SITE = """
import json, io
from pathlib import Path
import django
from django.conf import settings
from django.core.management import call_command
from config import settings as example
given = {name: getattr(example, name) for name in dir(example) if name.isupper()}
settings.configure(**{**given, "BASE_DIR": Path(sys.argv[1]), "DEBUG": False, "BLOOMGUARD": json.loads(sys.argv[2])})
django.setup()
def run(*words):
    out, err = io.StringIO(), io.StringIO()
    checked = {} if words == ("check",) else {"skip_checks": False}
    call_command(*words, stdout=out, stderr=err, **checked)
    return out.getvalue() + err.getvalue()
said = {"checks": run("check"), "migrate": run("migrate", "--verbosity", "0")}
from django.test import Client
from gazetteer.models import City
from bloomguard import registry
city = dict(slug="a", country="DE", timezone="x", population=1, latitude=0, longitude=0)
City.objects.create(pk=7, name="Ulm", **city)
"""

REST = """
from bloomguard.testing import assert_blocked, guards_armed
client = Client(SERVER_NAME='localhost')
said["there"], said["not there"] = client.get("/cities/7/").status_code, client.get("/cities/8/").status_code
said["explained"] = run("explain_guard", "/cities/8/")
with guards_armed():
    assert_blocked(client, "/cities/8/")
    City.objects.create(pk=8, name="Aix", **{**city, "slug": "b"})
    said["armed"] = registry["city"].verdict(8).value
print(json.dumps(said))
"""

BUILD = """
from bloomguard.rebuild import Rebuild, rebuild
rebuild.EXPIRY_SECONDS = 0
Rebuild(registry["city"]).run()
said["built"] = [registry["city"].verdict(value).value for value in (7, 8)]
"""


def run(tmp_path, setting, code=""):
    """What a process says that has no more than Windows has."""
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", AS_ON_WINDOWS + SITE + code + REST, tmp_path, json.dumps(setting)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "example_project")]),
            "DATABASE_URL": f"sqlite:///{(tmp_path / 'db.sqlite3').as_posix()}",
        },
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_the_file_store_says_what_to_use_instead(tmp_path):
    """The default store cannot be used there: one message, and the site works as without guards."""
    said = run(tmp_path, {})

    assert said["checks"].count("a FileStore needs flock, which this system") == 1
    assert "use bloomguard.stores.redis.RedisStore, or bloomguard.stores.memory.MemoryStore" in said["checks"]
    assert (said["there"], said["not there"]) == (200, 404)
    assert "passes" in said["explained"]
    assert said["armed"] == "maybe"


@pytest.mark.parametrize(
    ("store", "built"),
    [
        ({"BACKEND": "bloomguard.stores.memory.MemoryStore"}, ["maybe", "absent"]),
        ({"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": "redis://127.0.0.1:1/0"}}, None),
    ],
)
def test_the_other_stores_work(tmp_path, store, built):
    """A filter in memory is built and answers; a Redis store is made, and only its server is missing."""
    said = run(tmp_path, {"STORES": {"default": store}}, BUILD if built else "")

    assert "System check identified no issues" in said["checks"]
    assert (said["there"], said["not there"], said["armed"]) == (200, 404, "maybe")
    assert said.get("built") == built
