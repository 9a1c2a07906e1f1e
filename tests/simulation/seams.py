"""Puts simulated clocks, locks, names and barriers where the project's modules look for the real ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import nullcontext
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
        # No other store than ours, which is never made from this.
        BLOOMGUARD={"STORES": {"simulated": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}},
    )
    django.setup()
    logging.getLogger("bloomguard").disabled = True


def _put(module: Any, **seams: Any) -> None:
    for name, value in seams.items():
        getattr(module, name)  # a seam that moved is an error, not a rule that is never tried
        setattr(module, name, value)


def install() -> None:
    """Done once a process, and never undone."""
    from django.db import connections

    from bloomguard.guards import meta
    from bloomguard.rebuild import locks, pages, rebuild, standby
    from bloomguard.state import active_filter, connection, negative_cache, row
    from bloomguard.state import table as state
    from bloomguard.writes import fencing, idle, statements, unknown_guards

    from .database import SimulatedRows
    from .world import World

    def kill(pid: int, signal: int) -> None:
        if all(process.pid != pid or process.dead for process in World.current.processes.values()):
            raise ProcessLookupError

    for module in (active_filter, connection):
        _put(module, after_fork=lambda method: None)
    for module in (active_filter, state):
        _put(module, own_lock=lambda owner, name: threading.RLock())
    wall = SimpleNamespace(now=lambda: World.current.running().wall())
    for module in (locks, rebuild, standby, state):
        _put(module, timezone=wall)
    _put(state, new_token=lambda: World.current.new_token())
    network = SimpleNamespace(gethostname=lambda: World.current.running().host)
    for module in (row, locks, rebuild, unknown_guards):
        _put(module, socket=network)
    system = SimpleNamespace(getpid=lambda: World.current.running().pid)
    for module in (standby, unknown_guards):
        _put(module, os=system)
    _put(
        rebuild,
        plan_layout=lambda guard, summary: World.current.layout,
        PublishCheck=Unproved,
        check_error_rate=lambda guard, generation, probes: 0.0,
        refusals=SimpleNamespace(
            declaration_refusals=lambda guard: (),
            database_refusals=lambda guard, connection: (),
            unreadable_columns=lambda guard, connection: "",
        ),
    )
    _put(standby, secrets=SimpleNamespace(token_hex=lambda size: World.current.new_name()))
    _put(pages, ThreadPoolExecutor=AtOnce)
    simulated = {"rows": SimulatedRows(lambda: World.current.database)}
    for module in (negative_cache, idle, statements):
        _put(module, connections=simulated)
    with_default = simulated | {"default": connections["default"]}  # the tables of the world are made in it
    _put(state, connections=with_default, fetch_uncounted=fetch_uncounted)
    _put(fencing, connections=with_default)
    _put(rebuild, refuse_transaction=lambda aliases: None)
    _put(rebuild, beating=lambda beats: nullcontext())  # no step takes so long
    _put(meta, router=SimpleNamespace(db_for_write=lambda model: "rows"))
    _put(
        locks,
        os=SimpleNamespace(getpid=system.getpid, kill=kill, name="posix"),
        connections=simulated,
        _postgresql_writers=lambda using, tables, proof: World.current.database.writers(),
        _POLL_SECONDS=0.25,
    )


def fetch_uncounted(connection: Any, sql: str, *parameters: Any) -> Sequence[Any]:
    """The state rows. Of the table, which is given as a parameter: it is there."""
    return [(True, True)] if parameters else connection.state_rows(sql)


class AtOnce(Executor):
    """Instead of a thread of its own: the system would schedule it, and not the simulation."""

    def __init__(self, threads: int) -> None:
        pass

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Unproved:
    """Instead of the proof before publishing: nothing but the protocol is to keep rows."""

    def __init__(self, source: Any, sleep: Any, sources: int) -> None:
        pass

    def verify_rows(self, generation: Any) -> int:
        return 0
