"""Who hears of every verdict: nobody, but for the log ``bloomguard.verdicts`` at DEBUG and the debug toolbar's panel.

They are told of an ID as a digest under a secret of the project's: the same for the same ID, and no way back to it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .conf import settings
from .log_once import LogOnce
from .verdicts import Decision

if TYPE_CHECKING:
    from .guards import Guard

verdicts = logging.getLogger("bloomguard.verdicts")

#: ``listener(guard, value, decision)`` is called after every verdict. What it raises is logged once.
listeners: list[Callable[[Any, Any, Decision], None]] = []

_log = LogOnce()


def hear(guard: Guard, value: Any, decision: Decision) -> None:
    """Tell all listeners. Never raises."""
    for listener in listeners:
        try:
            listener(guard, value, decision)
        except Exception as error:
            _log.error(error, "bloomguard could not tell of a verdict of %s because of an error", guard.name)


def digest(guard: Guard, value: Any) -> str:
    """16 hexadecimal digits that stand for ``value`` of this guard, empty for what is no value of its fields."""
    try:
        key = guard.keys.key(value)
    except ValueError:
        return ""
    return hashlib.blake2b(guard.name.encode() + b"\0" + key, key=settings.secrets[0], digest_size=8).hexdigest()


def log(guard: Guard, value: Any, decision: Decision) -> None:
    """A record of one verdict, with ``guard``, ``key_digest``, ``verdict`` and ``reason`` as attributes."""
    said = {
        "guard": guard.name,
        "key_digest": digest(guard, value),
        "verdict": decision.verdict.value,
        "reason": decision.reason,
    }
    verdicts.debug("%(guard)s: %(verdict)s (%(reason)s) of %(key_digest)s", said, extra=said)


def log_if_wanted() -> None:
    """Begin to log if the project's ``LOGGING`` wants it: asked once, when Django starts."""
    if verdicts.isEnabledFor(logging.DEBUG) and verdicts.hasHandlers() and log not in listeners:
        listeners.append(log)
