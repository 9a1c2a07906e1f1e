"""What a guard can say of a key, and why."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Verdict(enum.Enum):
    """``ABSENT``: certainly no such row. ``MAYBE``: look. ``UNKNOWN``: nothing can be said, so look as well."""

    ABSENT = "absent"
    MAYBE = "maybe"
    UNKNOWN = "unknown"


class Decision(NamedTuple):
    """A verdict with its reason, one of the constants below."""

    verdict: Verdict
    reason: str


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
SHADOW = Decision(Verdict.UNKNOWN, "shadow")
CAUGHT = Decision(Verdict.UNKNOWN, "false absence")
ERROR = Decision(Verdict.UNKNOWN, "error")
