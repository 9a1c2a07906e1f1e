"""The only setting, ``BLOOMGUARD``, read lazily so that ``override_settings`` works.

    BLOOMGUARD = {
        "ENABLED": True,
        "STORES": {"default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": "/var/lib/..."}}},
    }

Everything has a default: without the setting, filters are stored in a private folder under ``BASE_DIR``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.crypto import salted_hmac

from .exceptions import ConfigurationError

DEFAULT_STORES: dict[str, dict[str, Any]] = {"default": {"BACKEND": "bloomguard.stores.file.FileStore"}}
KNOWN = {"ENABLED", "STORES"}
#: Names in one message.
MOST_LISTED = 10
#: Where messages send their readers, who may have no clone.
PAGES = "https://github.com/bloomguard/bloomguard/blob/main/docs/"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a question to whoever wrote ``name``; empty if none of the ``known`` names is like it."""
    spelt = {each.casefold(): each for each in known}
    near = get_close_matches(str(name).casefold(), list(spelt), 1)
    return f"Did you mean {spelt[near[0]]!r}?" if near else ""


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return ``names`` with commas; of more than ``most``, the first and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


class Settings:
    """The current value of ``BLOOMGUARD``."""

    @property
    def raw(self) -> dict[str, Any]:
        """The setting as the project wrote it; empty if it is missing."""
        raw = getattr(django_settings, "BLOOMGUARD", {})
        if not isinstance(raw, dict):
            raise _not_a_dictionary("BLOOMGUARD", raw, "{'STORES': {...}}")
        return raw

    @cached_property
    def is_enabled(self) -> bool:
        """Whether guards may answer; cached, because each check asks. A value that is no boolean means no."""
        raw = getattr(django_settings, "BLOOMGUARD", {})
        return not isinstance(raw, dict) or raw.get("ENABLED", True) is True

    def forget(self, *, setting: str, **kwargs: Any) -> None:
        """Drop what is cached, because the setting has changed."""
        if setting in ("BLOOMGUARD", "SECRET_KEY", "SECRET_KEY_FALLBACKS"):
            vars(self).clear()

    @property
    def stores(self) -> dict[str, dict[str, Any]]:
        """Alias -> ``BACKEND`` and ``OPTIONS``, as in ``CACHES``."""
        stores: dict[str, dict[str, Any]] = self.raw.get("STORES", DEFAULT_STORES)
        if not isinstance(stores, dict):
            raise _not_a_dictionary("BLOOMGUARD['STORES']", stores, "CACHES")
        for alias, store in stores.items():
            if not isinstance(alias, str):
                kind = type(alias).__name__
                raise ConfigurationError(f"BLOOMGUARD['STORES'] has an alias of type {kind}; it has to be text")
            if not isinstance(store, dict):
                raise _not_a_dictionary(f"BLOOMGUARD['STORES'][{alias!r}]", store, "CACHES")
        return stores

    @cached_property
    def secrets(self) -> list[bytes]:
        """32 bytes derived from ``SECRET_KEY``, used for new builds, then 32 for each of ``SECRET_KEY_FALLBACKS``."""
        keys = [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS]
        return [salted_hmac("bloomguard.filters", "secret", secret=key, algorithm="sha256").digest() for key in keys]


def _not_a_dictionary(name: str, value: object, example: str) -> ConfigurationError:
    """Return the error for ``value``, which it does not show: it may be the URL of a server, with its password."""
    return ConfigurationError(f"{name} is of type {type(value).__name__}; it has to be a dictionary, as in {example}")


settings = Settings()
setting_changed.connect(settings.forget, dispatch_uid="bloomguard.conf")
