"""A site with eight databases; the first has the state rows too."""

from .settings import *  # noqa: F403
from .settings import given

SCOPE = given.get("scope", "database")
DATABASES = given.get("shards") or {
    alias: {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{given['folder']}/{alias}.sqlite3",
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;", "timeout": 20},
    }
    for alias in ["default", *(f"shard{number}" for number in range(1, 8))]
}
DATABASE_ROUTERS = ["tests.scopes.router.Router"]
INSTALLED_APPS = ["django.contrib.contenttypes", "bloomguard", "tests.scopes.wares"]
