"""What became of a request after a guard's verdict: counted, and told to whoever listens. Never raises.

A route that said MAYBE, or whose view was told that there is nothing, is remembered with the request, and looked at
again only if the answer is a 404.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .counts import BLOCKED, FALSE_POSITIVE
from .signals import atell, request_blocked, tell
from .verdicts import ABSENT, MAYBE, Decision

if TYPE_CHECKING:
    from .guards import Guard
    from .routes import GuardedRoute

logger = logging.getLogger("bloomguard")

_failures: set[type[Exception]] = set()  # said already


def remember(request: Any, route: GuardedRoute, decision: Decision) -> None:
    """Keep in mind what ``route`` was told."""
    request._bloomguard_route = route, decision


def is_remembered(request: Any) -> bool:
    """Whether somebody looks at the request's answer already."""
    return hasattr(getattr(request, "_request", request), "_bloomguard_route")


def settle(request: Any) -> Guard | None:
    """For a request that was answered 404: count what that says, and return the guard if it was blocked by its view."""
    try:
        remembered: tuple[GuardedRoute, Decision] | None = getattr(request, "_bloomguard_route", None)
        if remembered is None or not remembered[0].pattern.is_of(request.resolver_match):
            return None
        route, decision = remembered
        if decision is MAYBE:
            route.guard.tallies[FALSE_POSITIVE]()
        return route.guard if decision is ABSENT else None
    except Exception as error:
        if type(error) not in _failures:
            _failures.add(type(error))
            logger.exception("bloomguard could not count what became of a request because of an error of its own")
        return None


def blocked(guard: Guard, request: Any) -> None:
    """``request`` is answered 404 by ``guard``; ``None`` where there is no request of Django's yet."""
    guard.tallies[BLOCKED]()
    tell(request_blocked, type(guard), guard=guard, request=request)


async def ablocked(guard: Guard, request: Any) -> None:
    """:func:`blocked`, without a blocking receiver on the event loop."""
    guard.tallies[BLOCKED]()
    await atell(request_blocked, type(guard), guard=guard, request=request)
