"""What the tests of both sites use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connections

from bloomguard.guards import registry
from bloomguard.lookups import guarded_lookups
from bloomguard.rebuild import rebuild
from bloomguard.state import table
from bloomguard.state.connection import StateConnection
from tests.support.patience import be_patient

be_patient()
StateConnection.is_temporary = False  # type: ignore[assignment]  # it stays open, as on a site


def build(*names: str) -> None:
    """Build the guards' filters; on this clock no wait takes time."""
    for name in names:
        rebuild.Rebuild(registry[name], sleep=table.table.sleep, probes=1_000).run()
        registry[name]._runtime.active_filter.forget()  # else the filter of the test before may say MAYBE
    table.table.current(names[0])  # what a process answers ABSENT from, it has to know before


def decide(name: str, value: Any) -> str:
    """The reason of the decision on a value, without ``using()``."""
    return registry[name]._runtime.decide(value).reason


def queried(connection: Any, ask: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of ``ask`` in a block of guarded lookups, and the statements that it sent."""
    sent: list[str] = []

    def record(execute: Any, sql: Any, *rest: Any) -> Any:
        if not str(sql).startswith("SET search_path"):
            sent.append(str(sql))
        return execute(sql, *rest)

    with connection.execute_wrapper(record), guarded_lookups():
        return ask(), sent


def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do ``work`` in a thread of its own, with connections of its own."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work(*arguments))
        except BaseException as error:
            results.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
