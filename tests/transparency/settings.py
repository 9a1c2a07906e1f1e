"""Settings of the site, in variants; the environment says which one, and where its files are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import django

VARIANT = os.environ["TRANSPARENCY_VARIANT"]
FOLDER = Path(os.environ["TRANSPARENCY_FOLDER"])
HERE = Path(__file__).resolve().parent

GUARD = "bloomguard.middleware.BloomGuardMiddleware"

#: What `startproject` writes.
STARTPROJECT = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

#: The middleware of each variant, without the guard's.
VARIANTS: dict[str, list[str]] = {
    "startproject": STARTPROJECT,
    "everything": [
        "django.middleware.security.SecurityMiddleware",
        "whitenoise.middleware.WhiteNoiseMiddleware",
        "corsheaders.middleware.CorsMiddleware",
        "django.middleware.common.BrokenLinkEmailsMiddleware",
        "django.middleware.gzip.GZipMiddleware",
        "django.middleware.http.ConditionalGetMiddleware",
        "tests.transparency.middleware.nonce",
        "tests.transparency.middleware.tenant",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.locale.LocaleMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.PersistentRemoteUserMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
        "tests.transparency.middleware.maintenance",
        "django.contrib.sites.middleware.CurrentSiteMiddleware",
        "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
        "django.contrib.redirects.middleware.RedirectFallbackMiddleware",
    ],
    "login": [
        *STARTPROJECT[:-2],
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
        *STARTPROJECT[-2:],
        "django.middleware.http.ConditionalGetMiddleware",
    ],
    "cache": [
        "django.middleware.cache.UpdateCacheMiddleware",
        *STARTPROJECT,
        "django.middleware.locale.LocaleMiddleware",
        "django.middleware.cache.FetchFromCacheMiddleware",
    ],
    "walls": [
        "tests.transparency.middleware.allow_list",
        *STARTPROJECT,
        "tests.transparency.middleware.tenant",
        "tests.transparency.middleware.maintenance",
    ],
    "insiders": ["tests.transparency.middleware.insiders", *STARTPROJECT],
    "plain": STARTPROJECT,
    "failing": STARTPROJECT,
}
BARE_MIDDLEWARE = VARIANTS[VARIANT]


def guarded(middleware: list[str]) -> list[str]:
    """The middleware with the guard's: last, or right before ``FetchFromCacheMiddleware``."""
    last = "django.middleware.cache.FetchFromCacheMiddleware"
    if middleware[-1] == last:
        return [*middleware[:-1], GUARD, last]
    return [*middleware, GUARD]


MIDDLEWARE = BARE_MIDDLEWARE

DEBUG = False
SECRET_KEY = "for tests alone"
ALLOWED_HOSTS = ["testserver", ".testserver"]
ROOT_URLCONF = "tests.transparency.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.sites",
    "django.contrib.flatpages",
    "django.contrib.redirects",
    "corsheaders",
    "guardian",
    "rest_framework",
    "bloomguard",
    "tests.transparency",
]
DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "db.sqlite3",
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;", "timeout": 20},
        "CONN_MAX_AGE": None,
        "ATOMIC_REQUESTS": VARIANT == "login",
    }
}
#: Tables at once: migrations would take half of the test's time.
MIGRATION_MODULES = dict.fromkeys(
    ["admin", "auth", "contenttypes", "sessions", "sites", "flatpages", "redirects", "guardian", "bloomguard"]
)
BLOOMGUARD: dict[str, Any] = {
    "STORES": {"default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": FOLDER / "filters"}}}
}
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # `plain`, `cache` and `insiders` have Django's own page, `login` Django's handler with the site's template.
        "DIRS": [HERE / "own_templates"] if VARIANT in {"login", "everything"} else [],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "tests.transparency.middleware.visitor",
            ],
        },
    },
]
#: The variants whose URLconf has a handler404, and the one whose handler404 fails for strangers.
OWN_HANDLER = VARIANT in {"startproject", "everything", "walls"}
FAILING_HANDLER = VARIANT == "failing"

AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend", "guardian.backends.ObjectPermissionBackend"]
if VARIANT == "everything":
    AUTHENTICATION_BACKENDS.append("django.contrib.auth.backends.RemoteUserBackend")
ANONYMOUS_USER_NAME = None  # guardian's
LOGIN_URL = "/log-in/"
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
SESSION_SAVE_EVERY_REQUEST = VARIANT == "insiders"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
_IN_MEMORY = "django.core.mail.backends.locmem.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": _IN_MEMORY}}
else:
    EMAIL_BACKEND = _IN_MEMORY
MANAGERS: list[Any] = ["manager@example.com"] if django.VERSION >= (6, 0) else [("Manager", "manager@example.com")]
SITE_ID = 1
STATIC_URL = "/static/"
WHITENOISE_AUTOREFRESH = False
CORS_ALLOWED_ORIGINS = ["https://friend.example"]
CORS_ALLOW_CREDENTIALS = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "German"), ("fr", "French")]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"
LOGGING_CONFIG = None
REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"once": "1/min"}}
