"""Settings of a process that a test starts: the test's own databases and store, as the environment tells."""

import json
import os
from typing import Any

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS

from tests.support import database

_given: dict[str, Any] = json.loads(os.environ["BLOOMGUARD_CHILD"])

DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
SECRET_KEY = _given["secret_key"]
INSTALLED_APPS = [*INSTALLED_APPS, "tests.shop"]
ROOT_URLCONF = "tests.shop.urls"
DATABASES = _given["databases"]
DATABASE_ROUTERS = ["tests.support.database.Router"]
BLOOMGUARD = _given["bloomguard"]
database.current = _given["current"]
#: All requests read this one: else the door would leave its routes to Django.
database.Router.allow_migrate = lambda self, db, *args, **hints: db == database.current  # type: ignore[attr-defined]
