"""Checks of the position in ``MIDDLEWARE``, and of the routes for which the middleware answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Info, Warning, register
from django.middleware.cache import FetchFromCacheMiddleware

from ..conf import did_you_mean, listed
from ..exceptions import ConfigurationError
from ..guards import AUTO, registry
from ..lookups.select import answers_queries
from ..middleware import BloomGuardMiddleware
from ..routes.openness import (
    ELSEWHERE,
    guarded_views,
    guards_number,
    guards_place,
    is_admin,
    is_rest_framework,
    may_skip_views,
    middleware_classes,
)
from ..routes.table import GuardedRoute, UnclearKwargs, kwargs_of_view, table_for

_PATH = f"{BloomGuardMiddleware.__module__}.{BloomGuardMiddleware.__name__}"


@register("bloomguard")
def check_order(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check that all other middleware has processed the request when a guard answers at a route."""
    number = guards_number()
    if number is None:
        return
    if guards_place() == ELSEWHERE:
        after = settings.MIDDLEWARE[number + 1 :]
        yield Warning(
            f"MIDDLEWARE has {listed(after, 3)} after BloomGuardMiddleware, so guards answer only at the lookup, not "
            "before a view runs: that middleware might have answered differently.",
            hint=f"Put {_PATH!r} last, or, if each process_view before it is known, right before "
            "FetchFromCacheMiddleware.",
            id="bloomguard.W011",
        )
    before = middleware_classes()[:number]
    for each in before if may_skip_views(before) else ():
        if isinstance(each, type) and issubclass(each, FetchFromCacheMiddleware):
            yield Warning(
                f"MIDDLEWARE has {each.__module__}.{each.__qualname__} before BloomGuardMiddleware, so a request for "
                "an absent ID queries the cache first.",
                hint=f"Put {_PATH!r} right before it, as the last but one.",
                id="bloomguard.W012",
            )


@register("bloomguard")
def check_presence(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check that requests reach the guards at all."""
    if guards_number() is not None:
        return
    in_views = {view.guarded_by for pattern in table_for().patterns for view in guarded_views(pattern.callback)}
    silent = sorted(repr(guard.name) for guard in registry if guard.name not in in_views)
    if silent:
        text = f"MIDDLEWARE has no BloomGuardMiddleware, so requests do not ask the guards {listed(silent)}."
        hint = f"Add {_PATH!r} at the end, or put @guarded on the views. Silence this check if a door is all you want."
        yield Warning(text, hint=hint, id="bloomguard.W013")


@register("bloomguard")
def check_closed(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Report named routes that are closed, and routes of the admin with ``public = True``."""
    alike: dict[Any, list[GuardedRoute]] = {}  # a REST router makes two patterns for one view
    for route in table_for().guarded:
        if route.guard.routes != AUTO:
            key = route.guard.name, route.pattern.view_name, route.closed, is_admin(route.pattern.callback)
            alike.setdefault(key, []).append(route)
    for (name, view_name, closed, is_of_admin), routes in alike.items():
        guard, where = routes[0].guard, f"{' and '.join(each.pattern.text for each in routes)} ({view_name})"
        if not closed and is_of_admin:
            yield Warning(
                f"the guard {name!r} answers for {where}, a view of the admin, before its login: everybody could find "
                "out which rows exist, and the admin redirects where the guard answers 404.",
                hint="Remove the route from routes; the guard answers at the view's own query.",
                obj=guard.model,
                id="bloomguard.W017",
            )
        answered = {view.guarded_by for view in guarded_views(routes[0].pattern.callback)}
        if closed and guard.public is None and name not in answered:
            cure = "if an early 404 reveals no more than the view does, set public = True on the guard; else "
            cure = "" if is_rest_framework(routes[0].pattern.callback) else cure
            lookup = "It answers at the view's own query" if answers_queries(guard) else "It answers no query either"
            yield Info(
                f"the guard {name!r} does not answer for {where} before its view runs: {closed}.",
                hint=f"{lookup}; {cure}remove the route from routes.",
                obj=guard.model,
                id="bloomguard.I015",
            )


@register("bloomguard")
def check_arguments(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Report views under ``@guarded`` without such a guard, or whose arguments do not say which is the ID."""
    for pattern in table_for().patterns:
        for view in guarded_views(pattern.callback):
            guard = registry.get(view.guarded_by)
            if guard is None:
                names = sorted(each.name for each in registry)
                yield Warning(
                    f"no guard has the name {view.guarded_by!r}, by which the view of {pattern.text} is @guarded: all "
                    "requests reach it.",
                    hint=did_you_mean(view.guarded_by, names) or f"The guards are {listed(names) or 'none'}.",
                    id="bloomguard.W043",
                )
                break
            try:
                kwargs_of_view(guard, view, pattern.captured, view.guarded_arg)
            except UnclearKwargs as problem:
                text = f"the guard {view.guarded_by!r} does not answer for {pattern.text}: {problem}."
                hint = f"Name the argument, as in @guarded({view.guarded_by!r}, arg='argument')."
                yield Warning(text, hint=hint, obj=guard.model, id="bloomguard.W102")
                break  # `as_view` has the attributes of a decorated `dispatch` too
            except ConfigurationError:  # another check reports the guard
                pass
