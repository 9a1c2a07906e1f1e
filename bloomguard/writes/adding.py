"""A block for raw SQL whose caller adds the keys, so that the guard is not fenced."""

from __future__ import annotations

import datetime
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections, models

from ..guards import Guard
from ..guards.doubts import unadded
from ..guards.fields import kind_of, own_methods, value_field
from ..guards.keys import NoScope, NotNormalized, unwrapped
from ..state.transactions import together
from . import fencing, unknown_guards

#: The classes that a field's values may have, by its kind: `to_python` takes any object for a text, by its str().
_CLASSES: dict[str | None, tuple[type, ...]] = {
    "integer": (int, str, float, Decimal),
    "uuid": (UUID, str),
    "text": (str,),
    "decimal": (Decimal, int, str, float),
    "date": (datetime.date, str),
}


class _Blocks(threading.local):
    """The open blocks of this thread, by guard and database."""

    def __init__(self) -> None:
        self.open: dict[tuple[Guard, str], Adding | None] = {}


_blocks = _Blocks()


class Adding:
    """A callable that adds the keys of rows that raw SQL has just written; :func:`adding` makes it."""

    def __init__(self, guard: Guard, using: str) -> None:
        self._guard = guard
        self._using = using
        #: The last statement, while no add has followed it.
        self.missing = ""

    def __call__(self, values: Iterable[Any]) -> None:
        """Add ``values``, each as :meth:`Guard.verdict` takes it or as a row of a cursor; else fence the guard.

        Rows without a key are skipped: those with a NULL, and texts for which ``normalize`` has no form. Raises
        :class:`ValueError` if one cannot be a value of the guard's fields.
        """
        if isinstance(values, (str, bytes, Mapping)):
            raise ValueError(f"adding() takes the values of several rows, not a {type(values).__name__}")
        guard, using = self._guard, self._using
        with fencing.reading_by_writer(guard, using):
            needs_none = fencing.needs_no_add(guard, using)  # reads the state row, which `key_written` may need
            given = [_values(guard, row) for row in values]
            try:
                keys, problem = _keys(guard, guard._meta.key_written(using, by_orm=False), given), ""
            except NoScope as error:
                keys, problem = [], str(error)
            if keys and connections[using].vendor != "sqlite" and not _fit(guard._meta.fields, given):
                problem = "adding() got a text that is longer than its field, and the column may have cut it"
            if keys and guard._meta.discards and not guard._meta.is_unique:
                # Given once for two rows, as in a set, a key would be discarded with the first of them.
                problem = "adding() cannot count the rows of a key, and the filter discards keys"
            if not (keys or problem) and isinstance(values, Iterator):
                return  # it was read before, by the statement itself: that is no add
            add = guard._runtime.active_filter.add
            confirmed = needs_none or (not problem and add(keys, partial(fencing.drop_standby, guard, using)))
        if not confirmed:
            fencing.fence({guard: problem or unknown_guards.why_not_added(guard)}, using)
        self.missing = ""


def _keys(guard: Guard, key: Callable[[Any], bytes], rows: Iterable[Sequence[Any]]) -> list[bytes]:
    """Return the keys of the rows that have one. Raises :class:`ValueError`."""
    found = []
    for values in rows:
        if None in values:
            continue  # no request can ask for it
        for field, kind, value in zip(guard._meta.fields, guard._meta.keys.kinds, values, strict=True):
            _check_class(field, kind, value)
        try:
            found.append(key(unwrapped(values)))
        except NotNormalized:
            continue  # a request for it has no key either, and passes
    return found


def _values(guard: Guard, row: Any) -> Sequence[Any]:
    """Return the values of the guard's fields in ``row``: a row of a cursor, or the only value."""
    names = guard._meta.keys.names
    is_row = hasattr(row, "__len__") and hasattr(row, "__getitem__") and not isinstance(row, (str, bytes, bytearray))
    if isinstance(row, Mapping):
        if not set(names) <= set(row):
            raise ValueError(f"adding() got no value of {', '.join(sorted(set(names) - set(row)))}")
        return [row[name] for name in names]
    values = list(row) if is_row else [row]
    if len(values) != len(names):
        given = f"{len(values)} ({type(row).__name__})"
        raise ValueError(f"adding() takes {len(names)} values of a row ({', '.join(names)}), not {given}")
    return values


def _check_class(field: models.Field[Any, Any], kind: str | None, value: Any) -> None:
    """Raise :class:`ValueError` for a value that the database may store as another one than `to_python` returns."""
    field = value_field(field)
    if own_methods(field, ("to_python",)):
        is_accepted = not isinstance(value, (list, tuple, bytes, bytearray, memoryview))
    else:
        is_accepted = isinstance(value, _CLASSES.get(kind, ())) and not isinstance(value, datetime.datetime)
        if kind == "integer" and isinstance(value, (float, Decimal)):  # one with a fraction is rounded, or cut
            is_accepted = math.isfinite(value) and value == int(value)
    if not is_accepted:
        raise ValueError(f"a {type(value).__name__} is not a value of {field}")


def _fit(fields: Sequence[models.Field[Any, Any]], rows: Iterable[Sequence[Any]]) -> bool:
    """Return whether no text is longer than its field."""
    for field, values in zip(fields, zip(*rows)):
        longest = value_field(field).max_length if kind_of(field) == "text" else None
        if longest is not None and any(isinstance(value, str) and len(value) > longest for value in values):
            return False
    return True


@contextmanager
def adding(guard: Guard, using: str = DEFAULT_DB_ALIAS) -> Iterator[Adding]:
    """Run raw SQL on the guard's tables without fencing the guard, in a transaction on the database ``using``.

    This covers the rows that the statements themselves write, also through views and partitions. What triggers, rules,
    functions and foreign keys write because of them fences the guard, as does a statement that cannot be parsed.

    In an open transaction, the block is a savepoint. It gets a function: pass the written values to it after each
    statement. Without such a call after the last statement, the guard is fenced at the end of the block. The function
    raises :class:`ValueError` for a value that the guard's fields cannot have. Raises :class:`StoreError` if the guard
    cannot be fenced when it has to be; then the transaction must be rolled back.
    """
    key, block = (guard, using), Adding(guard, using)
    with together(connections[using], undo=True):
        outer = _blocks.open.get(key)
        try:
            try:  # from here on: a block that is left open would take all later statements of this thread for its own
                _blocks.open[key] = block
                unadded.begin(block, [guard.name])
                yield block
            finally:
                _blocks.open[key] = outer
            if block.missing:
                fencing.fence({guard: block.missing}, using)
        finally:
            unadded.end(block)


def is_left_to_block(guard: Guard, using: str, statement: str) -> bool:
    """Whether this thread is in a block that adds the guard's keys; if so, record the statement there."""
    block = _blocks.open.get((guard, using))
    if block is None:
        return False
    block.missing = statement
    return True
