"""Puts simulated clocks, locks, names and barriers where the project's modules look for the real ones."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import django
from django.conf import settings

_SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


def configure() -> None:
    """Settings for a process that does nothing but simulate."""
    settings.configure(
        SECRET_KEY="for simulations alone",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "bloomguard", "tests.shop"],
        DATABASES={"default": _SQLITE, "rows": _SQLITE},
        USE_TZ=True,
    )
    django.setup()
    logging.getLogger("bloomguard").disabled = True


def install() -> None:
    """Done once a process, and never undone."""
    from bloomguard import barrier, live, rebuild
    from bloomguard.sync import connection, fencing, state, statements

    from .world import LAYOUT, World

    def holders(using: str, table: str) -> set[str]:
        return World.current.database.writers()

    def kill(pid: int, signal: int) -> None:
        if all(process.pid != pid or process.dead for process in World.current.processes.values()):
            raise ProcessLookupError

    for module in (live, state, connection):
        module.after_fork = lambda method: None
    wall: Any = SimpleNamespace(now=lambda: World.current.running().wall())
    for module in (rebuild, state, fencing):
        module.timezone = wall
    here: Any = rebuild
    here.os = SimpleNamespace(getpid=lambda: World.current.running().pid, kill=kill)
    here.socket = SimpleNamespace(gethostname=lambda: World.current.running().host)
    here.secrets = SimpleNamespace(token_hex=lambda size: World.current.new_name())
    here.Layout = SimpleNamespace(plan=lambda **parameters: LAYOUT)
    wait: Any = barrier
    wait.connections = {"rows": SimpleNamespace(vendor="postgresql")}
    wait._postgresql_writers = holders
    wait._POLL_SECONDS = 0.25
    writing: Any = statements
    writing.guards_of = lambda table: (World.current.running().guard,) if table == "shop_product" else ()
    transactions: Any = SimpleNamespace(
        atomic=lambda using=None, savepoint=True: World.current.database.atomic(using, savepoint),
        on_commit=lambda function, using=None: World.current.database.on_commit(function, using),
    )
    statements.transaction = transactions
    fencing.transaction = transactions
