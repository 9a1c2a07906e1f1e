"""Signals of bloomguard's own. A receiver that raises is logged, and hurts no request, write or rebuild.

``request_blocked``: a request ended as a 404 because of a guard, at the door, at the route or at a lookup. ``sender``
is the guard's class; ``guard``, and ``request``, which is ``None`` at the door: Django has made no request yet.

``guard_fenced``: a guard was taken out of use by this process until it is rebuilt. ``sender`` is ``GuardState``;
``name`` of the guard, ``reason`` in words. Sent inside of the transaction of the write that made it necessary, if any.

``generation_published``: a rebuild, or a roll-back, has put another generation into use. ``sender`` is the guard's
class; ``guard``, ``generation`` (its name), ``rows``, which is ``None`` after a roll-back.

``false_negative_found``: a row exists of which the filter said that it does not. ``sender`` is the guard's class;
``guard``, ``value``: the row's ID, as it was asked for.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("bloomguard")

request_blocked = Signal()
guard_fenced = Signal()
generation_published = Signal()
false_negative_found = Signal()


def tell(signal: Signal, sender: Any, **named: Any) -> None:
    """Send ``signal``, whatever its receivers do."""
    if signal.receivers:
        try:
            signal.send_robust(sender, **named)
        except Exception:  # Django cannot log a receiver without a name
            logger.exception("bloomguard could not call a receiver of one of its signals")


async def atell(signal: Signal, sender: Any, **named: Any) -> None:
    """:func:`tell`, without a blocking receiver on the event loop."""
    if signal.receivers:
        try:
            await signal.asend_robust(sender, **named)
        except Exception:
            logger.exception("bloomguard could not call a receiver of one of its signals")
