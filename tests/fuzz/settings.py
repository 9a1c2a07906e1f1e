"""Settings of either process: the environment says which database, and whether bloomguard is installed."""

import json
import os
from typing import Any

_given: dict[str, Any] = json.loads(os.environ["BLOOMGUARD_FUZZ"])

SECRET_KEY = "for tests alone"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "tests.fuzz", *(["bloomguard"] if _given["guarded"] else [])]
DATABASES = {"default": _given["database"]}
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"bloomguard": {"level": "CRITICAL"}}}
if _given["guarded"]:
    BLOOMGUARD = {"STORES": {"default": _given["store"]}}
