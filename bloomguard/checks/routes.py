"""Pages of guarded models that no guard answers for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Info, register

from ..guards import registry
from ..routes import table_for
from ..routing.discovery import detail_model
from ..routing.listing import PASSES, rows_of_pattern
from .tags import TAG


@register(TAG)
def check_unguarded(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Routes of class-based views that show one row of a guarded model, past its guard.

    What a function looks up is its own business. One message a pattern and guard that could be asked, with the reason.
    """
    models = {guard.model._meta.concrete_model for guard in registry}
    if not models:
        return []
    table = table_for(settings.ROOT_URLCONF)
    messages: list[CheckMessage] = []
    for pattern in table.patterns:
        model = None if _asks_itself(pattern.callback) else detail_model(pattern)
        if model is None or model._meta.concrete_model not in models:
            continue
        rows = rows_of_pattern(table, pattern)
        if any(row.answered != PASSES for row in rows):
            continue
        messages += [
            Info(
                f"the route {row.pattern} ({row.name}) shows one {model._meta.label}, and no guard answers for it: "
                f"{row.reason}.",
                hint="Name it in the guard's routes, or put @guarded on its view; manage.py guard_routes lists all. "
                "Where it is meant, silence this one with SILENCED_SYSTEM_CHECKS.",
                obj=model,
                id="bloomguard.I015",
            )
            for row in rows
        ]
    return messages


def _asks_itself(callback: Callable[..., Any]) -> bool:
    """Whether the view's class has a mixin of this package's."""
    cls: Any = getattr(callback, "view_class", None) or getattr(callback, "cls", type(None))
    return any(base.__module__.startswith("bloomguard.") for base in cls.__mro__)
