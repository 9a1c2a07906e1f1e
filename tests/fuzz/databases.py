"""Databases and settings of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import django

#: How long a lock is waited for, in milliseconds: whoever holds one here is waiting for us. SQLite's is also held for
#: an instant by the other process.
LOCK_MS = {"postgresql": 200, "sqlite": 5_000, "mariadb": 1_000}


def set_up(database: dict[str, Any], *, guarded: bool, store: dict[str, Any] | None = None) -> None:
    """Configure Django in this process."""
    os.environ["BLOOMGUARD_FUZZ"] = json.dumps({"database": database, "guarded": guarded, "store": store})
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.fuzz.settings"
    django.setup()


def database_for(folder: Path, kind: str, name: str, server: dict[str, Any]) -> dict[str, Any]:
    """Django's settings for a database ``name`` of this run."""
    if kind == "sqlite":
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"
        options = {"timeout": LOCK_MS[kind] / 1_000, "init_command": pragmas}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / f"{name}.sqlite3"), "OPTIONS": options}
    if kind == "mariadb":
        seconds = LOCK_MS[kind] // 1_000
        limits = f"SET lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"
        return {**server, "NAME": name, "OPTIONS": {**server["OPTIONS"], "init_command": limits}}
    # As durable as by default: a server that may lose a COMMIT keeps the keys of deleted rows, and tries no discard.
    options = {"options": f"-c lock_timeout={LOCK_MS[kind]}"}
    return {**server, "NAME": name, "OPTIONS": options}
