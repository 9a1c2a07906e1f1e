"""Count blocked requests and send ``request_blocked``. Never raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..guards.counters import BLOCKED
from ..signals import asend, request_blocked, send

if TYPE_CHECKING:
    from ..guards import Guard


def blocked(guard: Guard, request: Any) -> None:
    """Record that ``guard`` answers 404 to ``request``; ``None`` if Django has made no request yet."""
    guard._runtime.counters[BLOCKED]()
    if request_blocked.receivers:
        send(request_blocked, type(guard), guard=guard, request=request)


async def ablocked(guard: Guard, request: Any) -> None:
    """Do :func:`blocked` without running sync receivers on the event loop."""
    guard._runtime.counters[BLOCKED]()
    await asend(request_blocked, type(guard), guard=guard, request=request)
