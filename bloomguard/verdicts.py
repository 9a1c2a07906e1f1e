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
WRITING = Decision(Verdict.UNKNOWN, "writing")
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

#: The reason of each decision: what it means and how to fix it.
MEANING = {
    "absent": "the filter does not contain it",
    "out of range": "the column cannot hold it",
    "remembered": "a false positive of the filter: a recent query found no such row",
    "maybe": "the filter contains it, or this is a false positive",
    "unkeyable": "it is not a valid value for the lookup's field",
    "cold": "there is no filter yet; run rebuild_filter",
    "fenced": "the guard is disabled, often after an unconfirmed add; run rebuild_filter",
    "writing": "this process is writing rows whose keys are not in the filter yet",
    "lease": "the state rows cannot be read",
    "identity": "the filter is in another store, or the store was restarted since the build; run rebuild_filter",
    "unreachable": "the store does not answer",
    "untrusted": "the filter is damaged, or was built for another definition or SECRET_KEY; run rebuild_filter",
    "ambiguous": "the filter may have the rows of another schema or database, or the catalogue cannot be read",
    "shadow": "the filter does not contain it, but the guard is in shadow mode, so the request passes",
    "false absence": "the row exists, but the filter does not contain it; run rebuild_filter",
    "error": "the guard or bloomguard raised an error",
    "disabled": "BLOOMGUARD['ENABLED'] is not True, so no guard answers",
}
