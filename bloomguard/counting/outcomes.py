"""What became of a request after a guard's verdict: counted, and told to whoever listens. Never raises.

A request carries the route that said MAYBE as ``bloomguard_maybe``, and the one whose view was told that there is
nothing as ``bloomguard_absent``. Both are looked at only if the answer is a 404.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..complaints import Complaints
from ..signals import atell, request_blocked, tell
from .counts import BLOCKED, FALSE_POSITIVE

if TYPE_CHECKING:
    from ..guards import Guard
    from ..routes import GuardedRoute

_complaints = Complaints()


def is_remembered(request: Any) -> bool:
    """Whether somebody looks at the request's answer already."""
    return hasattr(getattr(request, "_request", request), "bloomguard_maybe")


def settle(request: Any) -> Guard | None:
    """For a request that was answered 404: count what that says, and return the guard if it was blocked by its view."""
    try:
        absent: GuardedRoute | None = getattr(request, "bloomguard_absent", None)
        if absent is not None:
            return absent.guard
        maybe: GuardedRoute | None = getattr(request, "bloomguard_maybe", None)
        if maybe is not None and maybe.pattern.is_of(request.resolver_match):
            maybe.guard.tallies[FALSE_POSITIVE]()
    except Exception as error:
        _complaints.say(error, "bloomguard could not count what became of a request because of an error of its own")
    return None


def blocked(guard: Guard, request: Any) -> None:
    """``request`` is answered 404 by ``guard``; ``None`` where there is no request of Django's yet."""
    guard.tallies[BLOCKED]()
    if request_blocked.receivers:
        tell(request_blocked, type(guard), guard=guard, request=request)


async def ablocked(guard: Guard, request: Any) -> None:
    """:func:`blocked`, without a blocking receiver on the event loop."""
    guard.tallies[BLOCKED]()
    await atell(request_blocked, type(guard), guard=guard, request=request)
