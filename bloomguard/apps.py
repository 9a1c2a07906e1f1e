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

    def import_models(self) -> None:
        """Hook into writes: some other app's ``ready()``, which may come before ours, may write rows."""
        super().import_models()
        from .guards import registry
        from .sync import cursors, early, signals, statements

        signals.connect()
        statements.connect()
        cursors.connect()
        early.begin()
        registry.discover = self._discover

    def _discover(self) -> None:
        """Find the guards before it is our turn, because rows are written."""
        from .guards import registry

        if self.apps is None or not self.apps.models_ready:
            registry.discover = self._discover
            return
        with registry.all_or_none():
            autodiscover_modules("guards")

    def ready(self) -> None:
        from . import checks  # noqa: F401
        from .counting.counts import counts
        from .counting.flushing import flusher
        from .guards import registry
        from .hearing import log_if_wanted
        from .lookups import select
        from .sync import early

        registry.discover = None
        autodiscover_modules("guards")
        early.complete()
        select.connect()
        counts.begin = flusher.start
        atexit.register(flusher.stop)
        log_if_wanted()
