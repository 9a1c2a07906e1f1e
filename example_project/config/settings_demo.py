"""Settings of the servers that `manage.py demo` starts: the same site, in one of five modes.

`GAZETTEER_MODE` names the mode. Everything that is not about the mode is the same in all five, so that
the figures differ by nothing else.
"""

import os

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS, MIDDLEWARE

MODE = os.environ.get("GAZETTEER_MODE", "lookup")

DEBUG = False

if MODE in ("unguarded", "null_caching"):
    INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "bloomguard"]
    MIDDLEWARE = [path for path in MIDDLEWARE if not path.startswith("bloomguard.")]

if MODE in ("route", "door"):
    INSTALLED_APPS = [*INSTALLED_APPS, "gazetteer.demo"]  # its guards.py names the route

if MODE == "null_caching":
    ROOT_URLCONF = "gazetteer.demo.null_caching"
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
            "OPTIONS": {"MAX_ENTRIES": 1_000_000},  # more than one run requests, so nothing is evicted
        },
    }
