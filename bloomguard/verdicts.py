"""The verdicts of a guard on a key, and their reasons."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Verdict(enum.Enum):
    """``ABSENT``: the row does not exist. ``MAYBE``: query the database. ``UNKNOWN``: no answer, query it as well."""

    ABSENT = "absent"
    MAYBE = "maybe"
    UNKNOWN = "unknown"


class Decision(NamedTuple):
    """A verdict with its reason; the constants below are all decisions."""

    verdict: Verdict
    reason: str


def in_words(verdict: str, reason: str) -> str:
    """Return ``"absent"``, or ``"unknown (cold)"`` if the reason says more than the verdict."""
    return verdict if reason == verdict else f"{verdict} ({reason})"


ABSENT = Decision(Verdict.ABSENT, "absent")
OUT_OF_RANGE = Decision(Verdict.ABSENT, "out of range")
REMEMBERED = Decision(Verdict.ABSENT, "remembered")
MAYBE = Decision(Verdict.MAYBE, "maybe")
UNKEYABLE = Decision(Verdict.UNKNOWN, "unkeyable")
COLD = Decision(Verdict.UNKNOWN, "cold")
FENCED = Decision(Verdict.UNKNOWN, "fenced")
LEASE = Decision(Verdict.UNKNOWN, "lease")
IDENTITY = Decision(Verdict.UNKNOWN, "identity")
UNREACHABLE = Decision(Verdict.UNKNOWN, "unreachable")
UNTRUSTED = Decision(Verdict.UNKNOWN, "untrusted")
AMBIGUOUS = Decision(Verdict.UNKNOWN, "ambiguous")
SHADOW = Decision(Verdict.UNKNOWN, "shadow")
CAUGHT = Decision(Verdict.UNKNOWN, "false absence")
ERROR = Decision(Verdict.UNKNOWN, "error")
#: ``BLOOMGUARD["ENABLED"]`` is ``False``. Not counted.
DISABLED = Decision(Verdict.UNKNOWN, "disabled")

#: All of them.
DECISIONS = tuple(each for each in list(globals().values()) if isinstance(each, Decision))
