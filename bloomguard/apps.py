"""What Django is told of the package when it starts."""

from __future__ import annotations

import atexit

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class BloomguardConfig(AppConfig):
    """Finds every app's ``guards.py``, hooks into writes, keeps figures, and registers the system checks."""

    name = "bloomguard"
    verbose_name = "Bloomguard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401
        from .counting.counts import counts
        from .counting.flushing import flusher
        from .hearing import log_if_wanted
        from .lookups import select
        from .sync import raw, signals, statements

        autodiscover_modules("guards")
        signals.connect()
        statements.connect()
        raw.connect()
        select.connect()
        counts.begin = flusher.start
        atexit.register(flusher.stop)
        log_if_wanted()
