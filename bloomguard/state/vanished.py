"""State rows that are gone without a fence: deleted by SQL, as by ``manage.py flush``, or with their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .row import FENCED, Rows, State, new_token

#: Why a guard is fenced whose row was put back: what was written meanwhile is not in its filter.
PUT_BACK = "its state row was taken away and put back as it was"


class _Vanished(NamedTuple):
    since: float
    before: State
    fence: State


class VanishedRows:
    """The rows that were there when this process read them last, until there is another row of the same name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[str, _Vanished] = {}

    def follow(self, known: Rows, rows: Rows, here: str, seconds: float) -> tuple[Rows, list[str]]:
        """Return ``rows``, with a fenced one for each that vanished in the last ``seconds``, and who is back unchanged.

        Other processes may still answer by their copy of a vanished row. Later, writers add nothing for it.
        ``known``: the rows of the last read. ``here``: the identity of the database.
        """
        now = self._clock()
        for name, before in known.items():
            if name not in rows and before.generations:
                fence = before.fenced_at if before.status == FENCED else f"vanished {new_token()}"
                tables, definition = before.tables, before.definition
                fenced = State(name, 0, FENCED, fenced_at=fence, tables=tables, definition=definition, here=here)
                self._found[name] = _Vanished(now, before, fenced)
        returned = []
        fences: Rows = {}
        for name, vanished in list(self._found.items()):  # a copy: another thread, which reads too, may change it
            if name not in rows:
                if now - vanished.since < seconds:
                    fences[name] = vanished.fence
            elif rows[name].generations:
                self._found.pop(name, None)
                if not set(vanished.before.generations).isdisjoint(rows[name].generations):
                    returned.append(name)
        return {**rows, **fences}, returned

    def forget(self) -> None:
        """Forget them, as in a new process."""
        self._found.clear()
