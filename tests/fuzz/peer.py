"""What both processes have: the database, its tables, and two threads that write."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from django.db import connection, connections

from .actor import Actor, Hand, Outcome
from .oracle import Plain
from .raw import create_views
from .rows import NUMBERS


class Peer:
    """``step(who, name, seed)`` has a thread perform a step."""

    def __init__(self, adding: Callable[..., Any] | None = None) -> None:
        from django.apps import apps

        with connection.schema_editor() as editor:
            for config in apps.get_app_configs():
                if config.label in ("fuzz", "bloomguard"):
                    for model in config.get_models():
                        if not model._meta.proxy:
                            editor.create_model(model)
        create_views()
        connection.close()
        self.plain = Plain()
        self.hands = [Hand(), Hand()]
        self.actors = [Actor(number * NUMBERS, adding) for number in range(2)]

    def reset(self, explain: bool) -> None:
        for hand, actor in zip(self.hands, self.actors):
            hand(actor.start_over)
            actor.statements = [] if explain else None
        gc.collect()  # a cursor in the traceback of an error keeps SQLite's lock, though its connection is closed
        self.plain.clear()

    def step(self, who: int, name: str, seed: int) -> Outcome:
        return self.hands[who](self.actors[who].perform, name, seed)  # type: ignore[no-any-return]

    def both(self, names: list[str], seeds: list[int]) -> list[Outcome]:
        """Each thread performs a step, at the same time.

        Python collects no cycles meanwhile. Django leaves the cursor of a BEGIN that SQLite refused in a cycle, and to
        free it takes the mutex of its connection. If one thread waits for SQLite's lock, and the collector runs in the
        thread that has that lock, each waits for the other until "database is locked".
        """
        gc.disable()
        try:
            for hand, actor, name, seed in zip(self.hands, self.actors, names, seeds):
                hand.begin(actor.perform, name, seed)
            return [hand.wait() for hand in self.hands]
        finally:
            gc.enable()

    def close(self) -> None:
        for hand in self.hands:
            hand(connections.close_all)
            hand.end()
        self.plain.close()
