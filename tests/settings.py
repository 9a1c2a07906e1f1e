"""The example project's settings, with each database that is there, and a folder that goes away."""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS, TEMPLATES

from tests.support.mariadb import is_missing, mariadb
from tests.support.servers import at_end, postgresql, quick_folder

_folder = tempfile.TemporaryDirectory(prefix="bloomguard-tests-", dir=quick_folder())
at_end(_folder.cleanup)
BASE_DIR = Path(_folder.name)

DEBUG = False
SECRET_KEY = "for tests alone"
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
INSTALLED_APPS = [*INSTALLED_APPS, "guardian", "tests.shop", "tests.lookups"]
ANONYMOUS_USER_NAME = None  # guardian makes no user
SILENCED_SYSTEM_CHECKS = ["guardian.W001"]
ROOT_URLCONF = "tests.shop.urls"
TEMPLATES = [{**TEMPLATES[0], "OPTIONS": {**TEMPLATES[0]["OPTIONS"], "debug": False}}]

#: Under pytest-xdist the first process deals out the tests and runs none: it needs no server.
DEALS_OUT = "PYTEST_XDIST_WORKER" not in os.environ and bool(
    re.search(r"\s(-n|--numprocesses)[= ]?[1-9a-z]", " ".join(sys.argv))
)

# A file, not memory: other connections and other processes have to see it.
DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        "TEST": {"NAME": BASE_DIR / "test.sqlite3"},
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;", "timeout": 20},
    },
    "postgresql": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"} if DEALS_OUT else postgresql(),
}
if not DEALS_OUT and not is_missing():
    DATABASES["mariadb"] = mariadb()
DATABASE_ROUTERS = ["tests.support.database.Router"]
