"""Where filters live: alias -> ``BACKEND`` + ``OPTIONS``, through one handler."""

from __future__ import annotations

import threading
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ..conf import settings
from ..exceptions import ConfigurationError
from ..forks import after_fork
from ..turns import turn
from .base import Generation, Store

__all__ = ["Generation", "Store", "stores"]


class StoreHandler:
    """``stores["default"]``: one store a process and alias, made when first asked for."""

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def __getitem__(self, alias: str) -> Store:
        """The store ``alias``; raises :class:`ConfigurationError` if it is not there or cannot be made.

        Raises :class:`StoreUnavailable` while another thread makes it and cannot reach its server.
        """
        store = self._stores.get(alias)
        if store is None:
            with turn(self._lock, "making a store"):
                store = self._stores.get(alias) or self._make(alias)
                self._stores[alias] = store
        return store

    def _make(self, alias: str) -> Store:
        configured = settings.stores
        if alias not in configured:
            raise ConfigurationError(
                f"there is no store {alias!r}; BLOOMGUARD['STORES'] has {', '.join(sorted(configured)) or 'none'}"
            )
        backend = configured[alias].get("BACKEND")
        try:
            cls = import_string(backend or "")
            made: Store = cls(alias, **configured[alias].get("OPTIONS", {}))
        except (ImportError, TypeError) as error:
            raise ConfigurationError(f"BLOOMGUARD['STORES'][{alias!r}] with BACKEND {backend!r}: {error}") from error
        return made

    def reset(self) -> None:
        """Forget every store, so that the next look-up follows the settings as they are then."""
        self._stores = {}


stores = StoreHandler()


def _follow_settings(*, setting: str, **kwargs: Any) -> None:
    if setting in ("BLOOMGUARD", "BASE_DIR"):
        stores.reset()


setting_changed.connect(_follow_settings, dispatch_uid="bloomguard.stores")
