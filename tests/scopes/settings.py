"""What the sites of these tests have in common."""

import json
import os
from typing import Any

from tests.support.patience import PATIENT

DEBUG = False
SECRET_KEY = "for tests alone"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.scopes.wares.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MIDDLEWARE = ["bloomguard.middleware.BloomGuardMiddleware"]

#: From the test that starts the site.
given: dict[str, Any] = json.loads(os.environ["BLOOMGUARD_SITE"])
_FILES = {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": f"{given['folder']}/filters"}}
_REDIS = {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": given.get("redis"), **PATIENT}}
BLOOMGUARD = {"STORES": {"default": _REDIS if "redis" in given else _FILES}}
