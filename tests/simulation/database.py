"""A simulated database: rows, transactions that hold locks on the table and its rows from their first write to their
end, and the state rows, which are real rows of a real in-memory SQLite, one statement at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import django.db
from django.db import OperationalError, connections

from bloomguard.filters.layout import KeysSummary
from bloomguard.models import GuardState
from bloomguard.rebuild.pages import KeyPage
from bloomguard.rebuild.sources import Sources
from bloomguard.state.connection import StateConnection

from .scheduler import TICK, Scheduler

PAGE_ROWS = 3
#: The database of the guarded rows; the state rows are in another, so a fence never waits for a writer.
ROWS = "rows"

_COLUMNS = [field.column for field in GuardState._meta.concrete_fields]
_ASSIGNMENTS = ", ".join(f"{column} = ?" for column in _COLUMNS)


class Transaction:
    """An open transaction: what it has inserted and deleted, and whether it holds the table's lock."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.wrote = False
        self.inserted: set[int] = set()
        self.deleted: set[int] = set()
        self.doomed = False
        self.on_commit: list[Callable[[], None]] = []


class Database:
    """``rows`` is what everybody sees: keys, the latest last, with the number of the transaction that inserted them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rows: dict[int, int] = {}
        self.open: dict[Any, Transaction] = {}  # by agent
        self.down_until = 0.0
        self.lossy = 0.0  # the share of statements on the state rows whose answer is lost
        self.behind: set[str] = set()  # hosts that reach a standby, whose rows are older
        self.slow = 0.0  # the share of those whose answer takes longer than a lease
        #: Called after each commit of rows, and after each change of the state row.
        self.committed: Callable[[Transaction], None] = lambda done: None
        self.changed: Callable[[], None] = lambda: None
        #: The numbers of transactions whose writers have not heard of the COMMIT yet, or have got an error.
        self.unacknowledged: set[int] = set()
        self.commits = 0
        self.published = 0
        self._numbers = 0

    @contextmanager
    def atomic(self, number: int | None = None) -> Iterator[None]:
        """``transaction.atomic`` of the agent that is running, by default with the next number."""
        agent = self.scheduler.current
        if agent in self.open:
            try:
                yield
            except BaseException:
                self.open[agent].doomed = True
                raise
            return
        mine = self.open[agent] = Transaction(number or self.new_number())
        try:
            yield
            self.scheduler.hop()
        except BaseException:
            del self.open[agent]
            raise
        del self.open[agent]
        if mine.doomed:
            self.scheduler.note("ROLLBACK")
            return
        self.rows.update(dict.fromkeys(mine.inserted, mine.number))
        for key in mine.deleted:
            self.rows.pop(key, None)
        self.commits += 1
        self.scheduler.note("COMMIT", *sorted(mine.inserted), *(f"-{key}" for key in sorted(mine.deleted)))
        self.committed(mine)
        for function in mine.on_commit:
            function()

    def new_number(self) -> int:
        """The number of a transaction that is about to begin."""
        self._numbers += 1
        return self._numbers

    def lose_answer(self) -> None:
        """The connection may end before a writer hears how its statement ended."""
        if self.lossy and self.scheduler.random() < self.lossy:
            self.scheduler.note("loses the answer")
            raise OperationalError("the connection was lost before the answer came")

    def is_open(self) -> bool:
        """Whether the agent that is running is in a transaction."""
        return self.scheduler.current in self.open

    @property
    def mine(self) -> Transaction:
        """The open transaction of the agent that is running."""
        return self.open[self.scheduler.current]

    def lock(self, key: int) -> None:
        """``SELECT ... FOR UPDATE``: wait for whoever has written the row before us."""
        while any(key in each.inserted or key in each.deleted for each in self.open.values() if each is not self.mine):
            self.scheduler.sleep(TICK)

    def touched(self) -> set[int]:
        """Rows that an open transaction has written."""
        return {key for each in self.open.values() for key in (*each.inserted, *each.deleted)}

    def writers(self) -> set[str]:
        """Who holds the table's lock, as ``pg_locks`` tells it."""
        self.scheduler.hop()
        return {str(each.number) for each in self.open.values() if each.wrote}

    def execute(self, sql: str, parameters: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        """One statement on the state rows, committed at once: on its way there, and back."""
        scheduler = self.scheduler
        scheduler.hop()
        if scheduler.now < self.down_until:
            raise OperationalError("the database is gone")
        server = "rows" if scheduler.current.process.host in self.behind else "default"
        if server == "rows" and not sql.startswith("SELECT"):
            raise OperationalError("cannot write in a read-only transaction")
        cursor = connections[server].connection.execute(_plain(sql), parameters)
        found = cursor.fetchall(), cursor.rowcount
        if not sql.startswith("SELECT") and found[1]:
            self.published += "published_at" in sql
            self.changed()
        if scheduler.trace is not None and not sql.startswith("SELECT"):
            changed = [state_words()] if found[1] else ["no row changed"]
            scheduler.note(sql.split(" ", 1)[0], *changed)
        scheduler.hop()
        if scheduler.random() < self.slow and sql.startswith("SELECT") and scheduler.current.name.startswith("web"):
            scheduler.sleep(scheduler.rng.randrange(14, 56) * TICK)
        self.lose_answer()
        return found


@cache
def _plain(sql: str) -> str:
    return sql.replace("%s", "?")


def write_row(alias: str, row: GuardState) -> None:
    """Make ``row`` the state row of the database ``alias``, past everything that is simulated."""
    values = [getattr(row, column) for column in _COLUMNS]
    plain = [str(value) if hasattr(value, "isoformat") else value for value in values]
    connections[alias].connection.execute(f"UPDATE bloomguard_guardstate SET {_ASSIGNMENTS}", plain)


def read_row(alias: str) -> GuardState:
    """The state row of the database ``alias``."""
    sql = f"SELECT {', '.join(_COLUMNS)} FROM bloomguard_guardstate"
    return GuardState(**dict(zip(_COLUMNS, connections[alias].connection.execute(sql).fetchone())))


def state_words() -> str:
    """The state row in a few words."""
    names = ("version", "status", "identity", "active", "standby", "building")
    row = connections["default"].connection.execute(f"SELECT {', '.join(names)} FROM bloomguard_guardstate").fetchone()
    return " ".join(f"{name}={value}" for name, value in zip(names, row) if value != "")


class SimulatedRows:
    """The connection of the agent that is running to the database of the guarded rows, as far as the code asks it."""

    vendor = "postgresql"
    execute_wrappers = ()
    commit_on_exit = True
    wrap_database_errors = nullcontext()
    Database = django.db

    def __init__(self, current: Callable[[], Database]) -> None:
        self._current = current

    @property
    def in_atomic_block(self) -> bool:
        return self._current().is_open()

    @property
    def connection(self) -> Any:
        """The driver's: its status as libpq has it, in a transaction or idle."""
        return SimpleNamespace(info=SimpleNamespace(transaction_status=2 if self.in_atomic_block else 0))

    def get_autocommit(self) -> bool:
        return not self.in_atomic_block

    def set_rollback(self, rollback: bool) -> None:
        self._current().mine.doomed = rollback

    def state_rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The state rows, which lie beside the guarded ones."""
        self._current().scheduler.hop()
        found: list[tuple[Any, ...]] = connections["default"].connection.execute(_plain(sql)).fetchall()
        return found

    def create_cursor(self) -> ProvingCursor:
        """A cursor for the statement that proves a miss."""
        return ProvingCursor(self._current())


class ProvingCursor:
    """Reads the state rows, and whether there is a row, at one moment. The key is the last parameter."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.close = lambda: None

    def execute(self, sql: str, parameters: Sequence[Any]) -> None:
        self._database.scheduler.hop()
        *others, key = parameters
        found = connections["default"].connection.execute(_plain(sql), [*others, key in self._database.rows])
        self.fetchone = found.fetchone


class SimulatedConnection(StateConnection):
    """A process's connection to the state rows: its retry after a lost connection is the real one."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    is_standby = "pg_is_in_recovery()"
    here = "database"

    def _run(self, sql: str, parameters: Sequence[Any], seconds: float) -> tuple[list[tuple[Any, ...]], int]:
        self._connection = self  # type: ignore[assignment]
        return self._database.execute(sql, parameters)

    def quote(self, name: str) -> str:
        return f'"{name}"'

    def has_table(self, name: str) -> bool:
        return True

    def close(self) -> None:
        self._connection = None


class SimulatedSources(Sources):
    """The only source of a guard without scopes, and all of its sources."""

    def __init__(self, database: Database, make_key: Callable[[int], bytes]) -> None:
        self._sources: Any = [SimulatedSource(database, make_key)]
        self.aliases = [ROWS]


class SimulatedSource:
    """Scans the rows in key order, a page at a time; each page sees what is committed when it is read."""

    def __init__(self, database: Database, make_key: Callable[[int], bytes]) -> None:
        self.using = ROWS
        self.connection = None  # of what the database itself refuses nothing is simulated
        self._database = database
        self._make_key = make_key

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def marks(self) -> list[bytes]:
        return []

    def summary(self) -> KeysSummary:
        self._database.scheduler.hop()
        return KeysSummary(count=len(self._database.rows))

    def pages(self) -> Iterator[KeyPage]:
        last = -1
        while True:
            self._database.scheduler.hop()
            keys = sorted(key for key in self._database.rows if key > last)[:PAGE_ROWS]
            if keys:
                self._database.scheduler.note("scans", *keys)
                yield self._page(keys)
            if len(keys) < PAGE_ROWS:
                return
            last = keys[-1]
            self._database.scheduler.sleep(TICK)

    def _page(self, keys: list[int]) -> KeyPage:
        return KeyPage(len(keys), lambda: [self._make_key(key) for key in keys])
