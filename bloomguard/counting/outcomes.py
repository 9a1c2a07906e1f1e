"""What became of a request after a guard's verdict: counted, and sent to receivers. Never raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..signals import atell, request_blocked, tell
from .counts import BLOCKED

if TYPE_CHECKING:
    from ..guards import Guard


def blocked(guard: Guard, request: Any) -> None:
    """``request`` is answered 404 by ``guard``; ``None`` where there is no request of Django's yet."""
    guard.tallies[BLOCKED]()
    if request_blocked.receivers:
        tell(request_blocked, type(guard), guard=guard, request=request)


async def ablocked(guard: Guard, request: Any) -> None:
    """:func:`blocked`, without a blocking receiver on the event loop."""
    guard.tallies[BLOCKED]()
    await atell(request_blocked, type(guard), guard=guard, request=request)
