"""Negative cache: false positives of a generation that this process found in the database.

A client can repeat a false positive, and each repetition costs a query. So each process caches them, up to
:data:`MOST_KEYS` per guard for :data:`SECONDS`, and answers ABSENT. Against false 404s, each shard of a generation ends
with *recent bits*, a small Bloom filter: empty when the generation is announced, and each add sets its key's bits there
too, in the same critical section or command. A cached key is used only under a valid lease, only for the generation
that gave MAYBE for it, while that is active, and only if the key's recent bits are not all set.

Proof that no request gets a false 404. Let G be the generation. A key is cached after a query did not find its row. The
query ran outside a transaction, on the database that G was built from, and began after G was published. Let a request
begin after the row's commit, while G is active and armed. The last write of the row either committed before the scan of
G began, or added its key to G (see :mod:`bloomguard.state.active_filter`).

1. It committed before the scan. The query came after the scan and found no row, so the row was deleted before the
   query. To exist now, it was written again, so case 2 applies.
2. It added its key to G. The key's recent bits were set too, before the commit and so before the request. The cached
   key is not used.

Other generations have caches of their own.

A database that loses an acknowledged delete restores the row without a commit. So nothing is cached if this could go
unnoticed: for rows in another database than the state rows, or while a COMMIT does not wait for the disk. A promoted
standby, or a server after a point-in-time recovery, has another identity: see :mod:`bloomguard.state.connection`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from django.db import connections

from ..exceptions import StoreError
from ..filters import FilterError
from ..models import GuardState
from ..stores import Generation
from .table import StateTable
from .verdicts import MAYBE, REMEMBERED, Decision

logger = logging.getLogger("bloomguard")

#: Cached keys per guard and process, and the seconds that each is kept.
MOST_KEYS = 10_000
SECONDS = 60.0
_NEVER = float("-inf"), None


class NegativeCache:
    """One process's cached false positives of ``guard``.

    Keys are stored as digests with a secret of this object. ``table`` has the guard's state row.
    ``opened(name)`` returns a generation, ``None`` if this process does not have it open.
    """

    def __init__(self, guard: str, table: StateTable, opened: Callable[[str], Generation | None]) -> None:
        self._guard = guard
        self._table = table
        self._opened = opened
        self._secret = os.urandom(16)
        self.forget()

    def forget(self) -> None:
        """Drop all cached keys, as after a fork."""
        self._lock = threading.RLock()
        #: Generation and digest of each key, oldest first -> when its time is up, and its mark; ``None`` instead of the
        #: mark if the database was only asked: its answer is not known yet, or proves nothing.
        self._kept: OrderedDict[tuple[str, bytes], tuple[float, int | None]] = OrderedDict()
        #: The ``hash`` of each cached key: rules out nearly all other keys at a tenth of the cost of a digest.
        self.marks: set[int] = set()

    def recall(self, key: bytes, name: str) -> Decision | None:
        """Look up a key for which the generation ``name`` gave MAYBE; return ``None`` if the lease has expired."""
        return self._decide(name, self._is_recent(name, key)) if self._has(key, name) else MAYBE

    async def arecall(self, key: bytes, name: str) -> Decision | None:
        """Do :meth:`recall` on an event loop, for a generation that ``supports_async``."""
        if not self._has(key, name):
            return MAYBE
        generation = self._opened(name)
        try:
            is_recent = generation is None or await generation.ais_recent(key)
        except (FilterError, StoreError) as error:
            is_recent = self._cannot_tell(error)
        return self._decide(name, is_recent)

    def _has(self, key: bytes, name: str) -> bool:
        until, mark = self._kept.get((name, self._digest(key)), _NEVER)
        return mark is not None and until > self._table.clock()

    def _decide(self, name: str, is_recent: bool) -> Decision | None:
        """Decide on a cached key, by the lease that is valid after its recent bits were read."""
        state = self._table.lease(self._guard)
        if state is None:
            return None
        return REMEMBERED if state.may_forget(name) and not is_recent else MAYBE

    def is_worth_asking(self, key: bytes, name: str) -> bool:
        """Return whether to query the database for ``key``: at most once in :data:`SECONDS` for each key. May wait."""
        if not self.is_in_use(name):
            return False
        entry = name, self._digest(key)
        with self._lock:
            if self._kept.get(entry, _NEVER)[0] > self._table.clock():
                return False
            self._keep(entry, None)
        return not self._is_recent(name, key)

    def is_in_use(self, name: str) -> bool:
        """Return whether keys of the generation ``name`` are cached now. May wait."""
        state = self._table.renewed(self._guard)
        return state is not None and state.may_forget(name)

    def is_proved(self, name: str, using: str, sql: str, parameters: Sequence[Any]) -> bool:
        """Return whether the query ``sql`` on ``using`` gives no row, in data from after ``name`` was published.

        Call it outside a transaction, after ``name`` gave MAYBE. Raises :class:`DatabaseError`.
        """
        # On SQLite a scan of the same connection may hold an old snapshot, and a pooler, or a HOST with several names,
        # may lead to a standby that lags, and the next statement to another server. So one statement asks for both.
        connection, quote = connections[using], self._table.connection.quote
        with connection.wrap_database_errors, closing(connection.create_cursor()) as cursor:
            cursor.execute(
                f"SELECT 1 FROM {quote(GuardState._meta.db_table)} WHERE {quote('name')} = %s "  # noqa: S608
                f"AND {quote('active')} = %s AND NOT EXISTS ({sql})",
                (self._guard, name, *parameters),
            )
            return cursor.fetchone() is not None

    def remember(self, key: bytes, name: str) -> None:
        """Cache ``key`` after :meth:`is_proved`; see the module for the conditions."""
        mark = hash(key)
        with self._lock:
            self._keep((name, self._digest(key)), mark)
            self.marks.add(mark)

    def _keep(self, entry: tuple[str, bytes], mark: int | None) -> None:
        now = self._table.clock()
        gone = [self._kept.pop(entry, _NEVER)]
        self._kept[entry] = now + SECONDS, mark
        while len(self._kept) > MOST_KEYS or next(iter(self._kept.values()))[0] <= now:
            gone.append(self._kept.popitem(last=False)[1])
        self.marks.difference_update(mark for _, mark in gone)

    def tidy(self, names: Sequence[str]) -> None:
        """Drop all generations except ``names``."""
        with self._lock:
            self._kept = OrderedDict(each for each in list(self._kept.items()) if each[0][0] in names)
            self.marks.intersection_update({mark for _, mark in list(self._kept.values()) if mark is not None})

    def _is_recent(self, name: str, key: bytes) -> bool:
        """Return whether ``key`` may have been added since ``name`` was announced; ``True`` on error. Never raises."""
        generation = self._opened(name)
        try:
            return generation is None or generation.is_recent(key)
        except (FilterError, StoreError) as error:
            return self._cannot_tell(error)

    @staticmethod
    def _cannot_tell(error: Exception) -> bool:
        logger.debug("bloomguard could not check whether a key was added recently: %s", error)
        return True

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=16).digest()
