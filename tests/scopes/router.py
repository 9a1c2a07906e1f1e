"""The router of the site with shards: it follows the request."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

#: The shard of queries without ``using()``.
here: ContextVar[str] = ContextVar("here", default="default")
#: Aliases that are replicas, and the one that reads go to instead of ``here``.
replica: ContextVar[str] = ContextVar("replica", default="")


class Router:
    """Wares are everywhere, the state rows in the first database."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return replica.get() or self.db_for_write(model)

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default" if model._meta.app_label == "bloomguard" else here.get()

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return app_label == "wares" or db == "default"
