"""Raw SQL by one who knows the keys and adds them himself, so that the guard stays in use."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from ..guards import Guard
from . import fencing
from .transactions import together


class _Blocks(threading.local):
    """The blocks that this thread is in, by guard and database."""

    def __init__(self) -> None:
        self.open: dict[tuple[Guard, str], Adding] = {}


_blocks = _Blocks()


class Adding:
    """Adds the keys of rows that raw SQL has just written; made by :func:`adding`."""

    def __init__(self, guard: Guard, using: str) -> None:
        self._guard = guard
        self._using = using
        self.missing = ""
        """The statement that no add has followed yet."""

    def __call__(self, values: Iterable[Any]) -> None:
        """Add ``values``, each as :meth:`Guard.verdict` takes it; if that cannot be proved, fence the guard.

        Raises :class:`ValueError` for what can be no value of the guard's fields.
        """
        guard, using = self._guard, self._using
        keys = [guard.keys.key(value) for value in values]
        with fencing.writing(guard, using):
            proved = fencing.needs_nothing(guard, using) or guard.live.add(
                keys, partial(fencing.part_with_standby, guard, using)
            )
        if not proved:
            fencing.fence(guard, using, guard.live.why_not_added())
        self.missing = ""


@contextmanager
def adding(guard: Guard, using: str = DEFAULT_DB_ALIAS) -> Iterator[Adding]:
    """A transaction on the database ``using``, or a part of one, whose raw SQL on the guard's tables does not fence it.

    It gives a function that takes the values written. Call it after the statement: a block that ends with a statement
    after which it was not called fences the guard.
    """
    key, block = (guard, using), Adding(guard, using)
    with together(using, undo=True):
        outer = _blocks.open.get(key)
        _blocks.open[key] = block
        try:
            yield block
        finally:
            if outer is None:
                del _blocks.open[key]
            else:
                _blocks.open[key] = outer
        if block.missing:
            fencing.fence(guard, using, block.missing)


def is_open(guard: Guard, using: str) -> bool:
    """Whether the thread is in a block of this guard: rows may be there whose keys come later."""
    return (guard, using) in _blocks.open


def is_left_to_block(guard: Guard, using: str, statement: str) -> bool:
    """Whether the thread is in a block that adds this guard's keys; it is told of the statement."""
    block = _blocks.open.get((guard, using))
    if block is None:
        return False
    block.missing = statement
    return True
