"""The Django app configuration: connects bloomguard when Django starts."""

from __future__ import annotations

import atexit
import logging
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.signals import request_started
from django.utils.module_loading import autodiscover_modules

logger = logging.getLogger("bloomguard")


class BloomGuardConfig(AppConfig):
    """App configuration that hooks into writes, discovers every app's ``guards.py`` and registers the system checks."""

    name = "bloomguard"
    verbose_name = "Bloomguard"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Hook into writes now, because another app's ``ready()`` may run before ours and write rows."""
        super().import_models()
        from .guards import registry
        from .writes import batches, cursors, signals, state_rows, statements, updates

        for module in (signals, state_rows, statements, batches, updates, cursors):
            module.connect()
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
        from . import checks  # noqa: F401
        from .guards import registry
        from .guards.counters import counts, log_if_wanted
        from .guards.doubts import strayed
        from .lookups import select
        from .metrics import flusher
        from .state.table import table
        from .writes.raw_fences import complete_early

        table.connection.alias  # noqa: B018  # asks the routers before any request
        strayed.adopt_databases()
        registry.discover = None
        autodiscover_modules("guards")
        complete_early()
        select.connect()
        counts.begin = flusher.start
        atexit.register(flusher.stop)
        log_if_wanted()
        request_started.connect(log_cold_guards)  # `ready()` must send no query


def log_cold_guards(**kwargs: Any) -> None:
    """Log each guard without a filter, if ``DEBUG`` is on; not in a test run, where all are cold. Never raises."""
    from .guards import registry
    from .rebuild.plan import how_to_rebuild
    from .state.table import table
    from .state.verdicts import COLD

    request_started.disconnect(log_cold_guards)
    # Test runners switch DEBUG off, and replace the database after the start.
    if not settings.DEBUG or table.connection.is_temporary:
        return
    for guard in registry:
        if guard._runtime.answering() is COLD:
            logger.warning(
                "bloomguard: guard %s has no filter yet and passes every request: %s",
                guard.name,
                how_to_rebuild(guard),
            )
