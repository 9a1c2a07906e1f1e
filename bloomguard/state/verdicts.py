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
    """A verdict with its reason, and what that means and how to fix it; the constants below are all decisions."""

    verdict: Verdict
    reason: str
    meaning: str


def in_words(verdict: str, reason: str) -> str:
    """Return ``"absent"``, or ``"unknown (cold)"`` if the reason says more than the verdict."""
    return verdict if reason == verdict else f"{verdict} ({reason})"


def _unknown(reason: str, meaning: str) -> Decision:
    return Decision(Verdict.UNKNOWN, reason, meaning)


ABSENT = Decision(Verdict.ABSENT, "absent", "the filter does not contain it")
OUT_OF_RANGE = Decision(Verdict.ABSENT, "out of range", "the column cannot hold it")
REMEMBERED = Decision(Verdict.ABSENT, "remembered", "a false positive of the filter: a recent query found no such row")
MAYBE = Decision(Verdict.MAYBE, "maybe", "the filter contains it, or this is a false positive")
UNKEYABLE = _unknown("unkeyable", "it is not a valid value for the lookup's field")
COLD = _unknown("cold", "there is no filter yet; run rebuild_filter")
FENCED = _unknown("fenced", "the guard is disabled, often after an unconfirmed add; run rebuild_filter")
WRITING = _unknown("writing", "this process is writing rows whose keys are not in the filter yet")
LEASE = _unknown("lease", "the state rows cannot be read")
IDENTITY = _unknown(
    "identity", "the filter is in another store, or the store was restarted since the build; run rebuild_filter"
)
UNREACHABLE = _unknown("unreachable", "the store does not answer")
UNTRUSTED = _unknown(
    "untrusted", "the filter is damaged, or was built for another definition or SECRET_KEY; run rebuild_filter"
)
AMBIGUOUS = _unknown(
    "ambiguous", "the filter may have the rows of another schema or database, or the catalogue cannot be read"
)
SHADOW = _unknown("shadow", "the filter does not contain it, but the guard is in shadow mode, so the request passes")
CAUGHT = _unknown("false absence", "the row exists, but the filter does not contain it; run rebuild_filter")
ERROR = _unknown("error", "the guard or bloomguard raised an error")
#: Not counted.
DISABLED = _unknown("disabled", "BLOOMGUARD['ENABLED'] is not True, so no guard answers")

#: All of them.
DECISIONS = tuple(each for each in list(globals().values()) if isinstance(each, Decision))
