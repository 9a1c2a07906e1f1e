"""A block for raw SQL whose caller adds the keys, so that the guard is not fenced."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from ..guards import Guard
from ..guards.keys import NoScope
from ..guards.unadded import unadded
from . import fencing
from .instances import fit
from .transactions import together


class _Blocks(threading.local):
    """The open blocks of this thread, by guard and database."""

    def __init__(self) -> None:
        self.open: dict[tuple[Guard, str], Adding] = {}


_blocks = _Blocks()


class Adding:
    """A callable that adds the keys of rows that raw SQL has just written; :func:`adding` makes it."""

    def __init__(self, guard: Guard, using: str) -> None:
        self._guard = guard
        self._using = using
        self.missing = ""
        """The last statement, while no add has followed it."""

    def __call__(self, values: Iterable[Any]) -> None:
        """Add ``values``, each as :meth:`Guard.verdict` takes it; fence the guard if that cannot be confirmed.

        Raises :class:`ValueError` if one cannot be a value of the guard's fields.
        """
        guard, using = self._guard, self._using
        with fencing.writing(guard, using):
            needs_none = fencing.needs_no_add(guard, using)  # reads the state row, which `key_written` may need
            given = list(values)
            try:
                keys, problem = list(map(guard._meta.key_written(using, by_orm=False), given)), ""
            except NoScope as error:
                keys, problem = [], str(error)
            if keys and connections[using].vendor != "sqlite" and not fit(guard._meta.fields, given):
                problem = "adding() got a text that is longer than its field, and the column may have cut it"
            if keys and guard._meta.discards and not guard._meta.is_unique:
                # Given once for two rows, as in a set, a key would be discarded with the first of them.
                problem = "adding() cannot count the rows of a key, and the filter discards keys"
            if not (keys or problem) and isinstance(values, Iterator):
                return  # it was read before, by the statement itself: that is no add
            add = guard._runtime.active_filter.add
            confirmed = needs_none or (not problem and add(keys, partial(fencing.drop_standby, guard, using)))
        if not confirmed:
            fencing.fence(guard, using, problem or guard._runtime.active_filter.why_not_added())
        self.missing = ""


@contextmanager
def adding(guard: Guard, using: str = DEFAULT_DB_ALIAS) -> Iterator[Adding]:
    """Run raw SQL on the guard's tables without fencing the guard, in a transaction on the database ``using``.

    That goes for the rows that the statements themselves write, also through views and partitions. What triggers,
    rules, functions and foreign keys write because of them fences the guard, as does a statement that cannot be parsed.

    If one is open already, the block is a savepoint in it. The block gets a function to pass the written values to.
    Call it after each statement: if none is added after the last one, the guard is fenced at the end of the block.
    It raises :class:`ValueError` for a value that the guard's fields cannot have. Raises :class:`StoreError` if the
    guard cannot be fenced when it has to be; then the transaction must be rolled back.
    """
    key, block = (guard, using), Adding(guard, using)
    with together(connections[using], undo=True):
        outer = _blocks.open.get(key)
        _blocks.open[key] = block
        unadded.begin(block, [guard.name])
        try:
            try:
                yield block
            finally:
                if outer is None:
                    del _blocks.open[key]
                else:
                    _blocks.open[key] = outer
            if block.missing:
                fencing.fence(guard, using, block.missing)
        finally:
            unadded.end(block)


def is_left_to_block(guard: Guard, using: str, statement: str) -> bool:
    """Whether this thread is in a block that adds the guard's keys; if so, record the statement there."""
    block = _blocks.open.get((guard, using))
    if block is None:
        return False
    block.missing = statement
    return True
