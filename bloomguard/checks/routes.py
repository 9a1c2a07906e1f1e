"""Routes that a guard names although it does not, or should not, answer for them before their views."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Info, Warning, register

from ..guards import AUTO
from ..routes.listing import is_admin
from ..routes.table import GuardedRoute, table_for
from .tags import TAG


@register(TAG)
def check_closed(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Named routes that are closed, and routes of the admin that are said to be public."""
    named = [route for route in table_for(settings.ROOT_URLCONF).guarded if route.guard.routes != AUTO]
    return [message for route in named for message in _of(route)]


def _of(route: GuardedRoute) -> list[CheckMessage]:
    guard, where = route.guard, f"{route.pattern.text} ({route.pattern.view_name})"
    if not route.closed and is_admin(route.pattern):
        return [
            Warning(
                f"the guard {guard.name!r} answers for {where}, a view of the admin, before its login: everybody "
                "could find out which rows exist, and the admin redirects where a guard says 404.",
                hint="Take the route out of routes; the guard answers at the view's own query.",
                obj=guard.model,
                id="bloomguard.W017",
            )
        ]
    # A view that `@guarded` guards is answered for there.
    if route.closed and guard.public is None and getattr(route.pattern.callback, "guarded_by", "") != guard.name:
        return [
            Info(
                f"the guard {guard.name!r} does not answer for {where} before its view runs: {route.closed}.",
                hint="It answers at the view's own query. If nobody may be told more by an early 404 than by the view, "
                "set public = True on the guard; else take the route out of routes.",
                obj=guard.model,
                id="bloomguard.I015",
            )
        ]
    return []
