"""Switching a guard by hand, in the admin or by ``manage.py switch_guards``: fence, shadow, enforce."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.utils.translation import gettext as _

from ..guards import Guard
from ..state.row import BY_HAND, FENCED
from ..writes.fencing import table_of

logger = logging.getLogger("bloomguard")

ENFORCE, SHADOW, FENCE = "enforce", "shadow", "fence"


def fence(guard: Guard, by: str) -> str:
    """Disable ``guard`` until its next rebuild; ``by`` says who did it. Raises :class:`DatabaseError`.

    ``rebuild_filter --if-needed`` leaves it alone. Returns what was done, in words; so do the others.
    """
    table, reason = table_of(guard), BY_HAND + by
    while True:  # a rebuild or a fence of others may change the row meanwhile
        seen = table.current(guard.name)
        if not seen.generations:
            return _("There is no filter to fence.")
        if table.swap(seen, **table.fenced_values(reason)):  # also if it is fenced already: now it is by hand
            break
    if seen.status != FENCED or seen.building:
        table.log_fenced(guard.name, reason)
    return _("Fenced: requests pass until the next rebuild.")


def shadow(guard: Guard, by: str) -> str:
    """Let all requests pass, also after rebuilds. Raises :class:`DatabaseError`."""
    _switch(guard, SHADOW, by)
    return _("In shadow mode: requests pass, and verdicts are compared with responses.")


def enforce(guard: Guard, by: str) -> str:
    """Answer absent IDs again, if the guard has a filter. Raises :class:`DatabaseError`."""
    _switch(guard, ENFORCE, by)
    return _("Enforcing: absent IDs are answered 404.")


def _switch(guard: Guard, mode: str, by: str) -> None:
    table_of(guard).set_mode(guard.name, "" if mode == guard.mode else mode)
    logger.warning("bloomguard: guard %s switched to %s by %s", guard.name, mode, by)


#: By the word that names it.
SWITCHES: dict[str, Callable[[Guard, str], str]] = {FENCE: fence, SHADOW: shadow, ENFORCE: enforce}
