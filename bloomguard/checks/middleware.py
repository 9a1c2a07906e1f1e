"""What has to come before the guard in ``MIDDLEWARE``, what after it, and whether it is there at all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Info, Warning, register
from django.middleware.cache import FetchFromCacheMiddleware
from django.middleware.locale import LocaleMiddleware
from django.middleware.security import SecurityMiddleware
from django.utils.module_loading import import_string

from ..middleware import BloomGuardMiddleware
from ..routes import table_for
from .tags import TAG

#: Middleware that may turn a 404 into another answer.
_FALLBACKS = (
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
    "django.contrib.redirects.middleware.RedirectFallbackMiddleware",
)
_SHIELDED = re.compile(r"^[^#\n]*\bshield\(", re.MULTILINE)


@register(TAG)
def check_order(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Which middleware has to come before the guard, so that it sees what the guard does, and which after it."""
    middleware = list(_classes())
    guards = [place for place, each in enumerate(middleware) if issubclass(each, BloomGuardMiddleware)]
    if not guards:
        return []
    outer, inner = middleware[: guards[0]], middleware[guards[0] + 1 :]
    return [message for each in outer for message in _before(each)] + [
        message for each in inner for message in _after(each)
    ]


@register(TAG)
def check_presence(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Whether there is anybody to answer for the guards' routes."""
    if any(issubclass(each, BloomGuardMiddleware) for each in _classes()):
        return []
    unanswered = [
        route
        for route in table_for(settings.ROOT_URLCONF).guarded
        if getattr(route.pattern.callback, "guarded_by", "") != route.guard.name
    ]
    if not unanswered:
        return []
    names = ", ".join(repr(name) for name in sorted({route.guard.name for route in unanswered}))
    path = f"{BloomGuardMiddleware.__module__}.{BloomGuardMiddleware.__name__}"
    if _has_front_door():
        return [
            Info(
                f"MIDDLEWARE has no BloomGuardMiddleware: for the routes of {names} the door alone answers, and "
                "what it leaves to Django (other hosts, other methods, views that demand a login) passes.",
                hint=f"If that is not meant, add {path!r} right after SecurityMiddleware.",
                id="bloomguard.I014",
            )
        ]
    return [
        Warning(
            f"MIDDLEWARE has no BloomGuardMiddleware, so nobody answers for the routes of {names}.",
            hint=f"Add {path!r} right after SecurityMiddleware, or put @guarded on the views.",
            id="bloomguard.W013",
        )
    ]


def _classes() -> Iterator[type]:
    for path in settings.MIDDLEWARE:
        with suppress(ImportError):  # Django says so itself
            middleware = import_string(path)
            if isinstance(middleware, type):
                yield middleware


def _before(middleware: type) -> Iterator[CheckMessage]:
    name = f"{middleware.__module__}.{middleware.__name__}"
    # UpdateCacheMiddleware may stand outside: it looks nothing up, and keeps no 404.
    if issubclass(middleware, FetchFromCacheMiddleware):
        yield Warning(
            f"MIDDLEWARE has BloomGuardMiddleware after {name}, so that every request for an absent ID asks the cache "
            "first, and pages in the cache are answered past the guard.",
            hint=f"Put BloomGuardMiddleware before {name}.",
            id="bloomguard.W011",
        )


def _after(middleware: type) -> Iterator[CheckMessage]:
    name = f"{middleware.__module__}.{middleware.__name__}"
    if issubclass(middleware, SecurityMiddleware):
        yield Warning(
            f"MIDDLEWARE has BloomGuardMiddleware before {name}, so its 404 goes out without the security headers, and "
            "without the redirect to HTTPS.",
            hint=f"Put BloomGuardMiddleware right after {name}.",
            id="bloomguard.W012",
        )
    if issubclass(middleware, LocaleMiddleware) and table_for(settings.ROOT_URLCONF).by_language:
        yield Warning(
            f"MIDDLEWARE has BloomGuardMiddleware before {name}, so it cannot tell which of the URLconf's "
            "languages a path is in, and passes every request.",
            hint=f"Put BloomGuardMiddleware after {name}.",
            id="bloomguard.W003",
        )
    if name in _FALLBACKS:
        yield Warning(
            f"MIDDLEWARE has BloomGuardMiddleware before {name}, which then cannot answer in place of a 404.",
            hint=f"Put BloomGuardMiddleware after {name}.",
            id="bloomguard.W004",
        )


def _has_front_door() -> bool:
    """Whether ``wsgi.py`` or ``asgi.py`` seems to call ``shield()``.

    They are read, not imported: importing one starts the whole site, and a door renders the 404 page.
    """
    module = str(settings.WSGI_APPLICATION or "").rpartition(".")[0]
    package = (module or str(settings.ROOT_URLCONF)).rpartition(".")[0]
    names = {module, f"{package}.wsgi", f"{package}.asgi"} if package else {module}
    return any(_SHIELDED.search(_source(name)) for name in names if name)


def _source(module: str) -> str:
    loaded = sys.modules.get(module)
    try:
        if loaded is not None:
            place = loaded.__file__
        else:
            spec = find_spec(module)
            place = spec.origin if spec is not None else None
        return Path(place).read_text() if place and place.endswith(".py") else ""
    except (ImportError, AttributeError, ValueError, OSError):  # Django says what is wrong with it
        return ""
