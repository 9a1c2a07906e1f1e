"""Shadow mode: what a guard would have answered passes, and is compared with what the site answers."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..counting.counts import WOULD_BLOCK, WOULD_HARM
from ..keys import OutOfRange
from ..log_once import LogOnce
from ..verdicts import Verdict

if TYPE_CHECKING:
    from ..guards import Guard
    from .scope import Scope

logger = logging.getLogger("bloomguard")

#: The number of changed answers that were found, by guard: the log names the 1st, 10th, 100th.
_harms: Counter[str] = Counter()
_log = LogOnce()


def compare_rows(scope: Scope, guard: Guard, value: Any, *, found: bool) -> None:
    """A query that ``guard`` would not have sent has ``found`` a row, or none. May read the state rows."""
    if guard.name not in scope.shadowed:  # a request counts once, however many queries it makes
        scope.shadowed.add(guard.name)
        guard.tallies[WOULD_BLOCK]()
        if found and _is_still_absent(guard, value):
            _harm(guard, "found a row that the filter does not have. Run verify_filter")


def compare_status(scope: Scope, guard: Guard, value: Any, status: int) -> None:
    """A request that ``guard`` would have answered 404 at its route was answered ``status``. Never raises.

    Anything but 404 and 410 is another answer, a redirect too. A row that was made after the guard was asked is no
    mistake: by now the filter has it. May read the state rows.
    """
    try:
        scope.shadowed.add(guard.name)
        guard.tallies[WOULD_BLOCK]()
        if status not in (404, 410) and _is_still_absent(guard, value):
            _harm(guard, f"would have answered 404 in place of {status}. Does the view answer without a row?")
    except Exception as error:
        _log.error(error, "bloomguard could not compare an answer in shadow mode")


def _harm(guard: Guard, what: str) -> None:
    guard.tallies[WOULD_HARM]()
    _harms[guard.name] += 1
    number = _harms[guard.name]
    if str(number).strip("0") == "1":
        logger.error("bloomguard: %s, in shadow mode, %s (number %d in this process)", guard.name, what, number)


def _is_still_absent(guard: Guard, value: Any) -> bool:
    try:
        return guard.live.ask(guard.keys.key(value)).verdict is Verdict.ABSENT
    except OutOfRange:
        return True
