"""In development, log which guards have no filter yet: at the first request, as ``ready()`` must send no query."""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.core.signals import request_started

from ..guards import registry
from ..state.table import table
from ..verdicts import COLD

logger = logging.getLogger("bloomguard")
_UID = "bloomguard.cold"


def watch() -> None:
    """Log the cold guards of this process at its first request, if ``DEBUG`` is on."""
    if settings.DEBUG:
        request_started.connect(log_cold_guards, dispatch_uid=_UID)


def log_cold_guards(**kwargs: Any) -> None:
    """Log a line for each guard without a filter; never in a test run, whose guards are all cold. Never raises."""
    request_started.disconnect(dispatch_uid=_UID)
    # Test runners switch DEBUG off, and replace the database after the start.
    if not settings.DEBUG or table.connection.is_temporary:
        return
    for guard in registry:
        if guard._runtime.answering() is COLD:
            logger.warning(
                "bloomguard: guard %s has no filter yet and passes every request: run manage.py rebuild_filter %s",
                guard.name,
                guard.name,
            )
