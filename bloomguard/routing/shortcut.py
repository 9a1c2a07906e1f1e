"""The way of a normal request, whose ID may exist, in one step.

It needs a few instructions each of reading the ID, of making its key and of asking the guard. Run over and over they
take 2 us; but after a request's own work nothing of all these functions is left in the processor's caches, and then
they take ten times as long. So the same is done here in one function. It only ever lets pass: whatever it does not
know for certain is left to the longer way.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from ..counting.counts import EVERY, one_in
from ..guards import Guard
from ..hearing import listeners
from .reading import Between

#: ``lets_pass(path)``: whether the ID in a path that begins as it should may exist; if so, that is counted.
LetsPass = Callable[[str], bool]


def shortcut(guard: Guard, between: Between) -> LetsPass | None:
    """For paths with an integer in ``between``; ``None`` where there is none, or it is not all of the guard's key."""
    if between.convert is not int or guard.keys.kinds != ("integer",):
        return None
    tallies, drawn = guard.tallies, one_in(EVERY)
    after, body, tail = between.after, between.body, between.tail

    def lets_pass(path: str) -> bool:
        live = guard.live  # each time: a test may give the guard another one
        check = live.check_at_hand
        if check is None or listeners or path[tail] != after:
            return False
        began = perf_counter_ns() if drawn() else 0
        try:
            key = int(path[body]).to_bytes(8, "little")
            if not check(key) or hash(key) in live.found_out.marks:
                return False
        except Exception:
            return False
        if began:
            tallies.time(began)
        tallies["maybe"]()
        return True

    return lets_pass
