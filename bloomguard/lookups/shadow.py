"""Shadow mode: compare what a guard would have answered with what the site answers."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..guards.counters import WOULD_BLOCK, WOULD_HARM
from ..guards.keys import OutOfRange
from ..process import LogOnce
from ..verdicts import Verdict

if TYPE_CHECKING:
    from ..guards import Guard
    from .context import LookupContext

logger = logging.getLogger("bloomguard")

#: By guard, the number of false 404s that the guard would have caused: the 1st, 10th, 100th, ... is logged.
_harms: Counter[str] = Counter()
_log = LogOnce()


def compare_rows(context: LookupContext, guard: Guard, value: Any, *, found: bool) -> None:
    """Count a query that ``guard`` would have answered and that ``found`` a row, or none. May read the state rows."""
    if guard not in context.shadowed:  # a request counts once, even with several queries
        context.shadowed = (*context.shadowed, guard)
        guard._runtime.counters[WOULD_BLOCK]()
        if found and _is_still_absent(guard, value):
            _count_harm(guard, "a query found a row that the filter does not have. Run verify_filter")


def compare_status(guard: Guard, value: Any, status: int) -> None:
    """Count a request that ``guard`` would have answered 404 at its route; the site answered ``status``.

    Any status but 404 and 410 differs, a redirect too. A row that was created after the check is no error: the filter
    has it by now. May read the state rows. Never raises.
    """
    try:
        guard._runtime.counters[WOULD_BLOCK]()
        if status not in (404, 410) and _is_still_absent(guard, value):
            _count_harm(guard, f"it would have answered 404 in place of {status}. Does the view answer without a row?")
    except Exception as error:
        _log.error(error, "bloomguard could not compare a response in shadow mode")


def _count_harm(guard: Guard, what: str) -> None:
    guard._runtime.counters[WOULD_HARM]()
    _harms[guard.name] += 1
    number = _harms[guard.name]
    if str(number).strip("0") == "1":
        logger.error("bloomguard: guard %s in shadow mode: %s (number %d in this process)", guard.name, what, number)


def _is_still_absent(guard: Guard, value: Any) -> bool:
    try:
        return guard._runtime.ask(guard._meta.keys.key(value)).verdict is Verdict.ABSENT
    except OutOfRange:
        return True
