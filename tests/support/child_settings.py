"""Settings of a process that a test starts: the test's own databases and store, as the environment tells."""

import json
import os
from typing import Any

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS

_given: dict[str, Any] = json.loads(os.environ["BLOOMGUARD_CHILD"])
#: The alias that the test uses.
CURRENT: str = _given["current"]

DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
SECRET_KEY = _given["secret_key"]
INSTALLED_APPS = [*INSTALLED_APPS, "tests.shop"]
ROOT_URLCONF = "tests.shop.urls"
DATABASES = _given["databases"]
DATABASE_ROUTERS = ["tests.support.child_settings.Router"]
BLOOMGUARD = _given["bloomguard"]


class Router:
    """Sends each query to the test's database. The tests' own router would import pytest and clients of servers."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return CURRENT

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True

    def allow_migrate(self, db: str, *arguments: Any, **hints: Any) -> bool:
        """Only here: else requests read more than one database, and the door leaves its routes to Django."""
        return db == CURRENT
