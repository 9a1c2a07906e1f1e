"""State rows that another program took away, or replaced by older ones, so that nobody has fenced their guards."""

from __future__ import annotations

from collections.abc import Callable

from .row import FENCED, Rows, State, new_token

#: Why a guard is fenced whose row was put back: what was written meanwhile may not be in its filter.
PUT_BACK = "its state row was taken away and put back as it was before"


class VanishedRows:
    """What a process remembers of state rows that it has read and that are no longer there."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fences: dict[str, tuple[float, State]] = {}
        #: Name -> when the row was missed, and the generations that it named. Until there is another row.
        self._gone: dict[str, tuple[float, tuple[str, ...]]] = {}

    def fences(self, known: Rows, rows: Rows, here: str, seconds: float) -> Rows:
        """Return a fenced row for each of ``known`` that is not in ``rows``, for so many ``seconds`` after it vanished.

        Other processes may still answer by their copy of it. Later, writers add nothing for it. ``here``: the identity
        of the database.
        """
        now = self._clock()
        for name, before in known.items():
            if name not in rows and before.generations:
                fence = before.fenced_at if before.status == FENCED else f"vanished {new_token()}"
                tables, definition = before.tables, before.definition
                fenced = State(name, 0, FENCED, fenced_at=fence, tables=tables, definition=definition, here=here)
                self._fences[name] = now, fenced
        for name, (since, _) in list(self._fences.items()):
            if name in rows or now - since >= seconds:
                self._fences.pop(name, None)
        # A copy first: another thread, which reads the rows too, may change it meanwhile.
        return {name: state for name, (_, state) in list(self._fences.items())}

    def put_back(self, known: Rows, rows: Rows, asked: float) -> list[str]:
        """Return the names of ``rows`` that had vanished, or are older than in ``known``, and name the same filter.

        A row that is older now may have been fenced before. ``known``: the rows of the last read. ``asked``: when this
        read began.
        """
        found = []
        for name, before in known.items():
            if name not in rows and before.generations:
                self._gone[name] = self._clock(), before.generations
        for name, row in rows.items():
            missed_at, generations = self._gone.get(name, (asked, ()))
            if generations and row.generations and missed_at <= asked:
                self._gone.pop(name, None)
            elif name in known and row.version < known[name].version and row.here == known[name].here:
                generations = known[name].generations
            else:
                continue
            if not set(generations).isdisjoint(row.generations):
                found.append(name)
        return found

    def restart_clock(self) -> None:
        """Date all of it anew: the clock went back."""
        now = self._clock()
        self._fences = {name: (now, fence) for name, (_, fence) in self._fences.items()}
        self._gone = {name: (now, generations) for name, (_, generations) in self._gone.items()}

    def forget(self) -> None:
        """Forget them, as in a new process."""
        self._fences.clear()
        self._gone.clear()
