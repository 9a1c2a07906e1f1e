"""Signals that bloomguard sends. Errors of receivers are logged and affect no request, write or rebuild."""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("bloomguard")

#: A request was answered 404 because of a guard, at the door, at the route or at a lookup. ``sender``: the guard's
#: class. ``guard``. ``request``: ``None`` at the door, where Django has made no request yet.
request_blocked = Signal()
#: This process has fenced a guard until the next rebuild. ``sender``: ``GuardState``. ``name``: the guard's name.
#: ``reason``: a text. Sent inside the transaction of the write that caused the fence, if any.
guard_fenced = Signal()
#: A rebuild or a roll-back has activated another generation. ``sender``: the guard's class. ``guard``. ``generation``:
#: its name. ``rows``: their number, ``None`` after a roll-back.
generation_published = Signal()
#: A row exists, but the filter answered ABSENT for it. ``sender``: the guard's class. ``guard``. ``value``: the row's
#: ID as it was looked up.
false_negative_found = Signal()


def send(signal: Signal, sender: Any, **named: Any) -> None:
    """Send ``signal`` and log errors of its receivers. Never raises."""
    if signal.receivers:
        try:
            signal.send_robust(sender, **named)
        except Exception:  # Django fails to log a receiver that has no name
            logger.exception("bloomguard could not call a receiver of one of its signals")


async def asend(signal: Signal, sender: Any, **named: Any) -> None:
    """Async :func:`send`; sync receivers never block the event loop."""
    if signal.receivers:
        try:
            await signal.asend_robust(sender, **named)
        except Exception:
            logger.exception("bloomguard could not call a receiver of one of its signals")
