"""What has to come before the guard in ``MIDDLEWARE``, and what after it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register
from django.middleware.locale import LocaleMiddleware
from django.utils.module_loading import import_string

from ..middleware import BloomGuardMiddleware
from ..routes import table_for
from .tags import TAG

#: Middleware that may turn a 404 into another answer.
_FALLBACKS = (
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
    "django.contrib.redirects.middleware.RedirectFallbackMiddleware",
)


@register(TAG)
def check_order(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Which middleware has to come before the guard, so that it sees what the guard does."""
    inner: list[type] = []
    for path in settings.MIDDLEWARE:
        with suppress(ImportError):  # Django says so itself
            middleware = import_string(path)
            if isinstance(middleware, type):
                inner.append(middleware)
    guards = [place for place, middleware in enumerate(inner) if issubclass(middleware, BloomGuardMiddleware)]
    if not guards:
        return []
    messages: list[CheckMessage] = []
    for middleware in inner[guards[0] + 1 :]:
        name = f"{middleware.__module__}.{middleware.__name__}"
        if issubclass(middleware, LocaleMiddleware) and table_for(settings.ROOT_URLCONF).by_language:
            messages.append(
                Warning(
                    f"MIDDLEWARE has BloomGuardMiddleware before {name}, so it cannot tell which of the URLconf's "
                    "languages a path is in, and passes every request.",
                    hint=f"Put BloomGuardMiddleware after {name}.",
                    id="bloomguard.W003",
                )
            )
        if name in _FALLBACKS:
            messages.append(
                Warning(
                    f"MIDDLEWARE has BloomGuardMiddleware before {name}, which then cannot answer in place of a 404.",
                    hint=f"Put BloomGuardMiddleware after {name}.",
                    id="bloomguard.W004",
                )
            )
    return messages
