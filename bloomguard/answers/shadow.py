"""Shadow mode: a request that a guard would have answered 404 passes, and is compared with what the site answers."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..complaints import Complaints
from ..counting.counts import WOULD_BLOCK, WOULD_HARM
from ..guards import Guard
from ..keys import OutOfRange
from ..verdicts import Verdict

logger = logging.getLogger("bloomguard")

#: By guard, how many would-be false 404s there were: what the log tells of.
_harms: Counter[str] = Counter()
_complaints = Complaints()


@dataclass(frozen=True)
class Shadow:
    """A request that passes although ``guard`` says that there is no ``value``."""

    guard: Guard
    value: Any

    def compare(self, status: int) -> None:
        """Count the request, and say loudly if the site has answered with a page. Never raises.

        Redirects, refusals and errors tell nothing of the row. A row that was created after the guard was asked is no
        mistake: by now the filter has it. May read the state rows.
        """
        try:
            self.guard.tallies[WOULD_BLOCK]()
            if not (200 <= status < 300 or status == 304) or not self._is_still_absent():
                return
            self.guard.tallies[WOULD_HARM]()
            _harms[self.guard.name] += 1
            found = _harms[self.guard.name]
            if str(found).strip("0") == "1":  # the 1st, 10th, 100th: a flood of requests is none of log lines
                logger.error(
                    "bloomguard, in shadow mode, would have answered 404 in place of %s to a request to %s; that is "
                    "number %d in this process. Run verify_filter, and see whether the view answers without a row",
                    status,
                    self.guard.name,
                    found,
                )
        except Exception as error:
            _complaints.say(error, "bloomguard could not compare an answer in shadow mode")

    def _is_still_absent(self) -> bool:
        try:
            return self.guard.live.ask(self.guard.keys.key(self.value)).verdict is Verdict.ABSENT
        except OutOfRange:
            return True
