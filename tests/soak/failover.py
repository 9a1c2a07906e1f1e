"""A primary and its replica: the primary is killed, and the replica takes its place and its port."""

from __future__ import annotations

import time

from tests.support.servers import Valkey


class Servers:
    """``between(kills)`` fails over ``failovers`` times while ``kills`` of the crew are counted."""

    def __init__(self, failovers: int, kills: int) -> None:
        self.done = 0
        self._every = max(kills // (failovers + 1), 1)
        self._wanted = failovers
        self._primary, self._replica = Valkey(), Valkey()
        self.url = self._primary.url
        self._follow()

    def _follow(self) -> None:
        with self._replica.client() as admin:
            admin.replicaof("127.0.0.1", self._primary.port)

    def between(self, kills: int) -> None:
        if kills % self._every or self.done == self._wanted:
            return
        port = self._primary.port
        self._primary.stop()
        with self._replica.client() as admin:
            admin.replicaof("NO", "ONE")
            self._take(admin, port)
        self._replica.port = port
        self._primary, self._replica = self._replica, Valkey()
        self._follow()
        self.done += 1

    @staticmethod
    def _take(admin: object, port: int) -> None:
        for _ in range(200):  # connections of the dead server may hold its port for a moment
            try:
                admin.config_set("port", port)  # type: ignore[attr-defined]
            except Exception:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"port {port} is not free")
