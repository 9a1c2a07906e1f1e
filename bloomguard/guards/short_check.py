"""The short check of one value, by which nearly every request is decided.

It uses only what this process has: the generation that was checked last, in memory or on its disk, and for ABSENT what
the last ABSENT rested on. In any other case it decides nothing, and the guard is asked in full.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from django.db import connections, router

from ..conf import settings
from ..exceptions import ConfigurationError
from ..verdicts import ABSENT, MAYBE, Decision
from . import spot_checks
from .counters import drawn, listeners
from .doubts import named, strayed, unadded

if TYPE_CHECKING:
    from .guard import Guard
    from .runtime import GuardRuntime

#: What the guards of one request have decided: guard and key -> decision. ``None`` in place of a key: it has none.
Known = dict[tuple["Guard", "bytes | None"], Decision]
#: ``check(known, value, absent)`` returns MAYBE, ABSENT or ``None``, and keeps the decision in ``known``.
ShortCheck = Callable[..., "Decision | None"]

#: Limit of known decisions: a request checks few keys, but a block of guarded lookups may run for hours.
MOST_KNOWN = 1_000


def short_check(guard: Guard, runtime: GuardRuntime) -> ShortCheck:
    """Return the short check of ``guard``. It never raises; with ``absent=False`` it decides nothing but MAYBE.

    ABSENT may query the database, for a spot check. So it is not for an event loop.

    Hot path: the rest of the request has filled the processor's caches, so each call and each object on the way costs
    a microsecond: all of them are bound here. MAYBE needs no lease (:mod:`bloomguard.state.active_filter`). Of a guard
    with a ``scope`` it knows nothing: the key depends on the connection.
    """
    try:
        active, counters, key_of = runtime.active_filter, runtime.counters, guard._meta.keys.key
    except ConfigurationError:  # a system check reports it, or it is over at the next check

        def begin_again(known: Known, value: Any, absent: bool = True) -> None:
            vars(runtime).pop("short", None)

        return begin_again
    if guard.scope is not None:
        return lambda known, value, absent=True: None
    cache, model = active.negative_cache, guard.model

    def check(known: Known, value: Any, absent: bool = True) -> Decision | None:
        asked = active.last_check
        if asked is None or active.is_remote or listeners or not settings.is_enabled:
            return None
        try:
            key = key_of(value)
            place = guard, key
            decision = known.get(place)
            if decision is not None:
                return MAYBE if decision is MAYBE else None
            began = perf_counter_ns() if drawn() else 0
            if asked[1](key):
                if hash(key) in cache.marks:
                    return None
                decision = MAYBE
            elif absent:
                # All that the last ABSENT rested on is the same. The lease is checked after the filter.
                last, row, alias = runtime.last_absent
                if (
                    last is not asked
                    or guard.mode != "enforce"
                    or active.table.lease(guard.name) is not row
                    or router.db_for_read(model) != alias
                    or named(connections.settings[alias]) != strayed.databases.get(alias)
                    or (unadded.writers and unadded.may_have(guard.name))
                ):
                    return None
                decision = ABSENT
            else:
                return None
        except Exception:  # the full check meets the same error, and handles it
            return None
        if began:
            counters.time(began)
        if decision is ABSENT and spot_checks.drawn():
            decision = spot_checks.checks.check(guard, value)
        counters[decision.reason]()
        if len(known) < MOST_KNOWN:
            known[place] = decision
        return decision

    return check
