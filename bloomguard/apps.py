"""The Django app configuration: connects bloomguard when Django starts."""

from __future__ import annotations

import atexit

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class BloomGuardConfig(AppConfig):
    """App configuration that hooks into writes, discovers every app's ``guards.py`` and registers the system checks."""

    name = "bloomguard"
    verbose_name = "Bloomguard"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Hook into writes now, because another app's ``ready()`` may run before ours and write rows."""
        super().import_models()
        from .guards import registry
        from .writes import cursors, early, signals, state_rows, statements

        signals.connect()
        state_rows.connect()
        statements.connect()
        cursors.connect()
        early.begin()
        registry.discover = self._discover

    def _discover(self) -> None:
        """Discover the guards before our ``ready()`` has run, because rows are being written."""
        from .guards import registry

        if self.apps is None or not self.apps.models_ready:
            registry.discover = self._discover
            return
        with registry.importing():
            autodiscover_modules("guards")

    def ready(self) -> None:
        from .checks import cold
        from .guards import registry
        from .guards.counters import counts
        from .guards.verdict_log import log_if_wanted
        from .lookups import select
        from .metrics.flush import flusher
        from .state.table import table
        from .writes import early

        table.connection.adopt_databases()
        registry.discover = None
        autodiscover_modules("guards")
        early.complete()
        select.connect()
        counts.begin = flusher.start
        atexit.register(flusher.stop)
        log_if_wanted()
        cold.watch()
