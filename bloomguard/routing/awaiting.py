"""Finding the guard of a request on an event loop, where a decision may have to be waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..guards import Guard
from ..routes import Decide
from ..verdicts import Decision

Found = TypeVar("Found")

#: Decisions that one request may have to wait for: a path belongs to one route, seldom to two.
_MOST = 10


async def awaited(find: Callable[[Decide], Found]) -> Found:
    """``find(decide)``, which asks for decisions as it goes; it is called anew with each that had to be waited for.

    What it is told once it is told again: no decision is waited for, or counted, twice.
    """
    known: dict[tuple[str, bytes], Decision] = {}
    lacking: list[tuple[Guard, Any]] = []

    def decide(guard: Guard, value: Any) -> Decision | None:
        asked = _question(guard, value)
        if asked in known:
            return known[asked]
        decision = guard.decide_now(value)
        if decision is None:
            lacking.append((guard, value))
        elif asked is not None:
            known[asked] = decision
        return decision

    for _ in range(_MOST):
        found = find(decide)
        if not lacking:
            break
        guard, value = lacking[0]
        asked, decision = _question(guard, value), await guard.adecide(value)
        if asked is not None:
            known[asked] = decision
        lacking.clear()
    return found


def _question(guard: Guard, value: Any) -> tuple[str, bytes] | None:
    """Values with the same key have the same answer. Where no key can be made, nobody has to wait for one."""
    try:
        return guard.name, guard.keys.key(value)
    except Exception:
        return None
