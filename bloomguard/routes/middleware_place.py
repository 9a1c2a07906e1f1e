"""The place of ``BloomGuardMiddleware``, and what the middleware beside it lets a guard do."""

from __future__ import annotations

import types
from typing import Any

from django.conf import settings
from django.middleware.cache import FetchFromCacheMiddleware
from django.utils.module_loading import import_string

#: The position of ``BloomGuardMiddleware`` in ``MIDDLEWARE``, which determines when it may answer for routes.
LAST, BEFORE_CACHE, ELSEWHERE, MISSING = "last", "before the cache", "elsewhere", "missing"
_LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
#: Middleware whose ``process_view`` lets Django call each view for which a guard may answer, with what the path says,
#: and whose ``process_exception`` answers no ``Http404``. Any other may do anything.
_PASSING_MIDDLEWARE = frozenset(
    {
        "allauth.account.middleware.AccountMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django_prometheus.middleware.PrometheusAfterMiddleware",
        "django_ratelimit.middleware.RatelimitMiddleware",
        "elasticapm.contrib.django.middleware.TracingMiddleware",
        "opentelemetry.instrumentation.django.middleware.otel_middleware._DjangoMiddleware",
        "scout_apm.django.middleware.ViewTimingMiddleware",
        "social_django.middleware.SocialAuthExceptionMiddleware",
        _LOGIN_REQUIRED,  # a route that demands a login is closed anyway
    }
)


def middleware_classes() -> list[Any]:
    """Return the classes in ``MIDDLEWARE``, with ``None`` for those that cannot be imported: Django reports them."""
    found: list[Any] = []
    for path in settings.MIDDLEWARE:
        try:
            found.append(import_string(path))
        except ImportError:
            found.append(None)
    return found


def guards_number() -> int | None:
    """Return the number of ``BloomGuardMiddleware`` in ``MIDDLEWARE``, from 0 on; ``None`` if it is not there."""
    return next((number for number, each in enumerate(middleware_classes()) if _is_bloomguards(each)), None)


def _is_bloomguards(middleware: Any) -> bool:
    # By name: the middleware imports this module.
    return any(base.__module__ == "bloomguard.middleware" for base in getattr(middleware, "__mro__", ()))


def guards_place() -> str:
    """Return the position of ``BloomGuardMiddleware``. Middleware after it has not processed the request yet."""
    number = guards_number()
    if number is None:
        return MISSING
    classes = middleware_classes()
    before, after = classes[:number], classes[number + 1 :]
    if not after:
        return LAST
    is_cache = isinstance(after[0], type) and issubclass(after[0], FetchFromCacheMiddleware)
    if len(after) > 1 or not is_cache:
        return ELSEWHERE
    return BEFORE_CACHE if may_skip_views(before) else ELSEWHERE


def may_skip_views(classes: list[Any]) -> bool:
    """Whether a guard behind these may answer before the cache, when none of their ``process_view`` has run yet."""
    return all(not hasattr(each, "process_view") or _name_of(each) in _PASSING_MIDDLEWARE for each in classes)


def are_passing(handler: Any, hooks: str) -> bool:
    """Whether all middleware in a list of Django's ``handler`` lets a guard answer before the view.

    ``hooks`` is the name of the list: ``_view_middleware`` or ``_exception_middleware``. Unknown middleware may give
    the view another ID, or answer its ``Http404``; without a list nothing is known. The classes in ``MIDDLEWARE`` lack
    what a factory function makes, or what ``__init__`` sets.
    """
    found = getattr(handler, hooks, None)
    if found is None:
        return False
    for hook in found:
        owner = type(getattr(hook, "__self__", None))  # Django and packages that trace wrap it
        name = _name_of(hook if owner is types.NoneType else owner).partition(".<locals>")[0]
        if name not in _PASSING_MIDDLEWARE and not _is_bloomguards(owner):
            return False
    return True


def _name_of(middleware: Any) -> str:
    return f"{getattr(middleware, '__module__', '')}.{getattr(middleware, '__qualname__', '')}"


def why_middleware_closes(view: Any) -> str:
    """Return which middleware may demand a login, or may answer an ``Http404`` of the view; empty if none does."""
    for path, middleware in zip(settings.MIDDLEWARE, middleware_classes()):
        names = map(_name_of, getattr(middleware, "__mro__", ()))
        if _LOGIN_REQUIRED in names and getattr(view, "login_required", True):
            return "LoginRequiredMiddleware demands a login"
        if hasattr(middleware, "process_exception") and _name_of(middleware) not in _PASSING_MIDDLEWARE:
            return f"{path} has a process_exception, which may answer an Http404"
    return ""
