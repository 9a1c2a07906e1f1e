"""Stores of filters, by alias: ``BLOOMGUARD["STORES"]`` maps an alias to a ``BACKEND`` and its ``OPTIONS``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ..conf import did_you_mean, settings
from ..exceptions import BloomGuardError, ConfigurationError, StoreUnavailable
from ..process import own_lock
from .base import Generation, Store

__all__ = ["Generation", "Store", "stores", "turn"]

logger = logging.getLogger("bloomguard")

#: Failures of a store with less than so many seconds between them are one outage.
OUTAGE_SECONDS = 60.0
#: Maximum seconds that a thread waits while another one opens a filter or creates a store.
OPEN_SECONDS = 2.0


@contextmanager
def turn(lock: Any, what: str) -> Iterator[None]:
    """Hold ``lock`` during disk or network I/O.

    Raises :class:`StoreUnavailable` if another thread has held it for ``what`` for too long.
    """
    if not lock.acquire(timeout=OPEN_SECONDS):
        raise StoreUnavailable(f"another thread has been {what} for {OPEN_SECONDS:g} s")
    try:
        yield
    finally:
        lock.release()


class StoreHandler:
    """Mapping of aliases to stores, one instance per process and alias, created on first use."""

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}
        self._failed_at: dict[str, float] = {}
        self._lock = own_lock(self, "_lock")

    def __getitem__(self, alias: str) -> Store:
        """Return the store ``alias``; raises :class:`ConfigurationError` if it is not configured correctly.

        Raises :class:`StoreUnavailable` if another thread takes too long to create it, as while a server is down.
        """
        store = self._stores.get(alias)
        if store is None:
            with turn(self._lock, "creating a store"):
                store = self._stores.get(alias) or self._stores.setdefault(alias, self._make(alias))
        return store

    def _make(self, alias: str) -> Store:
        configured = settings.stores
        if alias not in configured:
            raise ConfigurationError(
                f"there is no store {alias!r}; the aliases in BLOOMGUARD['STORES'] are: "
                f"{', '.join(sorted(configured)) or 'none'}"
            )
        backend = configured[alias].get("BACKEND")
        if not isinstance(backend, str) or not all(map(str.isidentifier, backend.split("."))):
            raise ConfigurationError(
                f"BLOOMGUARD['STORES'][{alias!r}] has no BACKEND that is the path of a class, such as "
                "'bloomguard.stores.file.FileStore'"
            )
        cls, options = None, configured[alias].get("OPTIONS", {})
        try:
            cls = import_string(backend)
            made = cls(alias, **options)
        except BloomGuardError:
            raise
        except Exception as error:
            # The message of another error may contain an option's value, such as a password.
            why = error if isinstance(error, (ImportError, TypeError)) else type(error).__name__
            if isinstance(error, TypeError) and isinstance(options, dict):
                why = _unknown_option(cls, options) or why
            raise ConfigurationError(f"BLOOMGUARD['STORES'][{alias!r}] with BACKEND {backend!r}: {why}") from error
        if not isinstance(made, Store):
            raise ConfigurationError(f"BLOOMGUARD['STORES'][{alias!r}]: BACKEND {backend!r} is not a subclass of Store")
        return made

    def log_outage(self, alias: str, error: StoreUnavailable, now: float) -> None:
        """Log that the store ``alias`` does not answer, once an outage; ``now`` in seconds. Does not create the store.

        That it answers again is not noticed, so that a check which succeeds does nothing for it.
        """
        since, self._failed_at[alias] = now - self._failed_at.get(alias, float("-inf")), now
        if since >= OUTAGE_SECONDS:
            logger.warning("bloomguard cannot use the store %r, so requests may pass: %s", alias, error)

    def reset(self) -> None:
        """Drop all instances; the next access reads the settings again."""
        self._stores, self._failed_at = {}, {}


def _unknown_option(cls: Any, options: dict[str, Any]) -> str:
    """Return which option ``cls`` does not take; empty if it takes all, or if its ``**options`` may."""
    with suppress(TypeError, ValueError):  # it has no signature
        parameters = signature(cls).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return ""
        known = [each.name for each in parameters if each.name != "alias"]
        for name in sorted(map(str, options.keys() - known)):
            return f"OPTIONS has {name!r}. {did_you_mean(name, known) or 'Known are ' + ', '.join(known)}"
    return ""


stores = StoreHandler()


def _follow_settings(*, setting: str, **kwargs: Any) -> None:
    if setting in ("BLOOMGUARD", "BASE_DIR"):
        stores.reset()


setting_changed.connect(_follow_settings, dispatch_uid="bloomguard.stores")
