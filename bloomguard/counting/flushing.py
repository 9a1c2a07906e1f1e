"""Brings what this process has counted to the stores, every few seconds, in a thread of its own.

The thread starts with the first thing that is counted. A store that does not answer gets what has gathered later; a
process that is killed takes along what it counted since the last time. Under Django's test runner no thread starts.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from django.core import mail

from ..exceptions import BloomguardError
from ..forks import after_fork
from ..guards import registry
from ..log_once import LogOnce
from ..stores import Store, stores
from ..stores.pages import COLUMNS, HOUR, MINUTE, ROWS, Page
from .counts import NAMES, counts

logger = logging.getLogger("bloomguard")

#: Seconds between two flushes, more or less.
SECONDS = 5.0
#: Rows of a guard that wait for a store at most; then the oldest are let go.
MOST_WAITING = 120
#: How long a process that ends waits for its last flush.
_PATIENCE = 1.0

_COLUMN = {name: column for column, name in enumerate(NAMES)}

#: What was counted since the last flush, by guard and name.
News = Mapping[tuple[str, str], int]
#: One row of a guard's figures: its step and how many steps it lies after 1970.
Row = tuple[int, int]


class Flusher:
    """Brings news to the stores; ``clock`` is that of the calendar, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        #: Called with the news of each flush, even where no store takes it.
        self.listeners: list[Callable[[News], None]] = []
        self._log = LogOnce()
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        """A forked child has a parent that sees to what was counted before."""
        self._lock = threading.Lock()
        self._started = threading.Lock()  # taken once, by who starts the thread
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting: dict[str, dict[Row, Counter[int]]] = {}
        self._told: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        """Start the thread, unless it runs or tests do."""
        if not hasattr(mail, "outbox") and self._started.acquire(blocking=False):
            self._thread = threading.Thread(target=self._run, name="bloomguard-figures", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Flush once more, and end; returns soon, whatever the stores do."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._ended.wait(SECONDS * random.uniform(0.8, 1.2)):  # noqa: S311  # not all workers at once
            self._flush_quietly()
        self._flush_quietly()

    def _flush_quietly(self) -> None:
        try:
            self.flush()
        except Exception as error:
            self._log.error(error, "bloomguard could not keep its figures because of an error of its own")

    def flush(self) -> None:
        """Bring all there is to the stores; what one does not take waits for the next time."""
        with self._lock:
            news = self._news()
            self._sort(news)
            for listener in self.listeners:
                listener(news)
            self._write()

    def _news(self) -> News:
        counted, told = counts.read(), self._told
        self._told = counted
        return {key: number - told.get(key, 0) for key, number in counted.items() if number > told.get(key, 0)}

    def _sort(self, news: News) -> None:
        now = int(self.clock())
        for (guard, name), number in news.items():
            if name in _COLUMN:
                rows = self._waiting.setdefault(guard, {})
                for step in (MINUTE, HOUR):
                    rows.setdefault((step, now // step), Counter())[_COLUMN[name]] += number

    def _write(self) -> None:
        silent: set[str] = set()
        for guard, rows in list(self._waiting.items()):
            alias = next((known.store for known in registry if known.name == guard), None)
            if alias is None:
                del self._waiting[guard]
            elif alias not in silent:
                try:
                    self._write_guard(guard, rows, stores[alias])
                except BloomguardError as error:
                    silent.add(alias)
                    logger.debug("bloomguard keeps its figures until the store %r takes them: %s", alias, error)
            for row in sorted(rows, key=lambda row: row[0] * row[1])[:-MOST_WAITING]:
                del rows[row]

    @staticmethod
    def _write_guard(guard: str, rows: dict[Row, Counter[int]], store: Store) -> None:
        pages: dict[Page, list[Row]] = {}
        for step, number in rows:
            pages.setdefault(Page(guard, step, number // ROWS), []).append((step, number))
        for page, some in pages.items():
            cells = {
                number % ROWS * COLUMNS + column: times
                for step, number in some
                for column, times in rows[step, number].items()
            }
            store.add_figures(page, cells)
            for row in some:
                del rows[row]


flusher = Flusher()
