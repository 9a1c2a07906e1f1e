"""Flush this process's counts to the stores, every few seconds, in a thread.

The thread starts with the first count. Counts for a store that does not respond are kept and written later. A process
that is killed loses its counts since the last flush. Counts of a process that works on a temporary database, as in a
test run, are not those of the site: there the thread does not start.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ..exceptions import BloomGuardError
from ..guards import registry
from ..guards.counters import NAMES, counts
from ..process import LogOnce, after_fork
from ..state.table import table
from ..stores import Store, stores
from ..stores.pages import COLUMNS, HOUR, MINUTE, ROWS, Page

logger = logging.getLogger("bloomguard")

#: Mean seconds between two flushes.
SECONDS = 5.0
#: Maximum rows per guard that wait for a store; older ones are dropped.
MOST_WAITING = 120
#: Seconds that an exiting process waits for its last flush.
_PATIENCE = 1.0

_COLUMN = {name: column for column, name in enumerate(NAMES)}

#: (guard, name) -> count since the last flush.
News = Mapping[tuple[str, str], int]
#: One row of a guard's counts: (step in seconds, number of steps since 1970).
CountRow = tuple[int, int]


class Flusher:
    """Writes counts to the stores. ``clock`` returns Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        #: Called with the new counts of each flush, even if no store can be written.
        self.listeners: list[Callable[[News], None]] = []
        self._log = LogOnce()
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        """Reset; also in a forked child, because its parent flushes what was counted before."""
        self._lock = threading.Lock()
        self._started = threading.Lock()  # acquired once, to start the thread
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting: dict[str, dict[CountRow, Counter[int]]] = {}
        self._flushed: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        """Start the thread, unless it is running or the database is temporary.

        Raises :class:`RuntimeError` if the process can start none now; a later call tries again.
        """
        if not table.connection.is_temporary and self._started.acquire(blocking=False):
            thread = threading.Thread(target=self._run, name="bloomguard-metrics", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._started.release()
                raise
            self._thread = thread

    def stop(self) -> None:
        """Flush once more and end the thread; return within :data:`_PATIENCE` even if a store hangs."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._ended.wait(SECONDS * random.uniform(0.8, 1.2)):  # noqa: S311  # spreads the workers
            self._flush_quietly()
        self._flush_quietly()

    def _flush_quietly(self) -> None:
        try:
            self.flush()
        except Exception as error:
            self._log.error(error, "bloomguard could not write its counts, because of an internal error")

    def flush(self) -> None:
        """Write all new counts to the stores; those for a store that fails are kept for the next flush."""
        with self._lock:
            news = self._new_counts()
            self._sort(news)
            try:
                self._write()
            finally:
                for listener in self.listeners:
                    try:
                        listener(news)
                    except Exception as error:
                        self._log.error(error, "bloomguard could not pass its counts on to a listener")

    def _new_counts(self) -> News:
        counted, flushed = counts.read(), self._flushed
        self._flushed = counted
        return {key: number - flushed.get(key, 0) for key, number in counted.items() if number > flushed.get(key, 0)}

    def _sort(self, news: News) -> None:
        now = int(self.clock())
        for (guard, name), number in news.items():
            if name in _COLUMN:
                rows = self._waiting.setdefault(guard, {})
                for step in (MINUTE, HOUR):
                    rows.setdefault((step, now // step), Counter())[_COLUMN[name]] += number

    def _write(self) -> None:
        silent: set[str] = set()
        for name, rows in list(self._waiting.items()):
            guard = registry.get(name)
            if guard is None:
                del self._waiting[name]
            elif (alias := guard.store) not in silent:
                try:
                    self._write_guard(name, rows, stores[alias])
                except BloomGuardError as error:
                    silent.add(alias)
                    logger.debug("bloomguard keeps its counts until the store %r can be written: %s", alias, error)
            for row in sorted(rows, key=lambda row: row[0] * row[1])[:-MOST_WAITING]:
                del rows[row]

    @staticmethod
    def _write_guard(guard: str, rows: dict[CountRow, Counter[int]], store: Store) -> None:
        pages: dict[Page, list[CountRow]] = {}
        for step, number in rows:
            pages.setdefault(Page(guard, step, number // ROWS), []).append((step, number))
        for page, some in pages.items():
            cells = {
                number % ROWS * COLUMNS + column: times
                for step, number in some
                for column, times in rows[step, number].items()
            }
            store.add_metrics(page, cells)
            for row in some:
                del rows[row]


flusher = Flusher()
