"""The suite's settings, with each app of this folder that is installed: ``nox -s compatibility``."""

import os
from typing import Any

from tests.compatibility.apps import installed
from tests.settings import *  # noqa: F403
from tests.settings import BASE_DIR, DATABASES, INSTALLED_APPS, MIDDLEWARE

# One database a run: some apps begin their transactions on "default", whatever the routers say.
DATABASE_ROUTERS: list[str] = []
DATABASES = {"default": DATABASES[os.environ.get("BLOOMGUARD_COMPATIBILITY_DATABASE", "default")]}

INSTALLED_APPS = [each for each in INSTALLED_APPS if each != "guardian"]
for _folder, _apps in installed().items():
    INSTALLED_APPS += [*(app for app in _apps if app not in INSTALLED_APPS), f"tests.compatibility.{_folder}"]
#: Tables at once: those of the folders have no migrations, and refer to others.
MIGRATION_MODULES = dict.fromkeys(name.rpartition(".")[2] for name in INSTALLED_APPS)

ROOT_URLCONF = "tests.compatibility.urls"
LANGUAGES = [("en", "English"), ("de", "German")]
LANGUAGE_CODE = "en"
MEDIA_ROOT = BASE_DIR / "media"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
MIDDLEWARE = list(MIDDLEWARE)
_GUARD = MIDDLEWARE.index("bloomguard.middleware.BloomGuardMiddleware")

if "with_guardian" in installed():
    AUTHENTICATION_BACKENDS.append("guardian.backends.ObjectPermissionBackend")
if "with_reversion" in installed():
    MIDDLEWARE.insert(_GUARD, "reversion.middleware.RevisionMiddleware")
if "with_simple_history" in installed():
    MIDDLEWARE.insert(_GUARD, "simple_history.middleware.HistoryRequestMiddleware")
if "with_parler" in installed():
    PARLER_LANGUAGES: dict[Any, Any] = {
        None: ({"code": "en"}, {"code": "de"}),
        "default": {"fallbacks": ["en"], "hide_untranslated": False},
    }
