"""Pass every verdict to listeners: the logger ``bloomguard.verdicts`` at DEBUG, and the debug toolbar's panel.

Without listeners nothing is logged. IDs are shown as digests keyed with a secret of the project: equal IDs have equal
digests, and a digest does not reveal its ID.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..conf import settings
from ..log_once import LogOnce
from ..verdicts import Decision

if TYPE_CHECKING:
    from .guard import Guard

verdicts = logging.getLogger("bloomguard.verdicts")

#: ``listener(guard, value, decision)`` is called after every verdict. Each type of error that it raises is logged once.
listeners: list[Callable[[Any, Any, Decision], None]] = []

_log = LogOnce()


def notify(guard: Guard, value: Any, decision: Decision) -> None:
    """Call all listeners. Never raises."""
    for listener in listeners:
        try:
            listener(guard, value, decision)
        except Exception as error:
            _log.error(error, "bloomguard: a listener for the verdicts of %s failed", guard.name)


def digest(guard: Guard, value: Any) -> str:
    """Return the digest of ``value`` for this guard as 16 hexadecimal digits; empty if the value has no key."""
    try:
        key = guard._meta.keys.key(value)
    except ValueError:
        return ""
    return hashlib.blake2b(guard.name.encode() + b"\0" + key, key=settings.secrets[0], digest_size=8).hexdigest()


def log(guard: Guard, value: Any, decision: Decision) -> None:
    """Log one verdict; the record has the attributes ``guard``, ``key_digest``, ``verdict`` and ``reason``."""
    fields = {
        "guard": guard.name,
        "key_digest": digest(guard, value),
        "verdict": decision.verdict.value,
        "reason": decision.reason,
    }
    verdicts.debug("%(guard)s: %(verdict)s (%(reason)s) of %(key_digest)s", fields, extra=fields)


def log_if_wanted() -> None:
    """Start logging if the project's ``LOGGING`` enables the logger; called once, when Django starts."""
    if verdicts.isEnabledFor(logging.DEBUG) and verdicts.hasHandlers() and log not in listeners:
        listeners.append(log)
