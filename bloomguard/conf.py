"""The one setting, ``BLOOMGUARD``, read lazily so that ``override_settings`` works.

    BLOOMGUARD = {
        "STORES": {"default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": "/var/lib/..."}}},
    }

Everything has a default: with no setting at all, filters lie in a private folder under ``BASE_DIR``.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings
from django.utils.crypto import salted_hmac

DEFAULT_STORES: dict[str, dict[str, Any]] = {"default": {"BACKEND": "bloomguard.stores.file.FileStore"}}
KNOWN = {"STORES"}


class Settings:
    """``BLOOMGUARD`` as it stands now."""

    @property
    def raw(self) -> dict[str, Any]:
        """The setting as the project wrote it; empty where it wrote none."""
        return getattr(django_settings, "BLOOMGUARD", {})

    @property
    def stores(self) -> dict[str, dict[str, Any]]:
        """Alias -> ``BACKEND`` and ``OPTIONS``, as in ``CACHES``."""
        stores: dict[str, dict[str, Any]] = self.raw.get("STORES", DEFAULT_STORES)
        return stores

    @property
    def secrets(self) -> list[bytes]:
        """32 bytes of ``SECRET_KEY``, for new builds, then of each of ``SECRET_KEY_FALLBACKS``."""
        keys = [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS]
        return [salted_hmac("bloomguard.filters", "secret", secret=key, algorithm="sha256").digest() for key in keys]


settings = Settings()
