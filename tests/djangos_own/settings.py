"""The settings of Django's own tests, on the databases in the environment variable ``BLOOMGUARD_SITE``."""

from __future__ import annotations

import json
import os

DATABASES = json.loads(os.environ["BLOOMGUARD_SITE"])
SECRET_KEY = "of Django's own tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}
TEST_RUNNER = "tests.djangos_own.runner.GuardingRunner"
