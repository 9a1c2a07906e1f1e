"""After the statement, before the COMMIT: the keys of the rows just written go to their filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import DatabaseError, connections, models, transaction

from ..guards import Guard
from ..keys import NotNormalized, OutOfRange, Unkeyable
from . import fencing
from .connection import is_aborted
from .transactions import is_over
from .watches import Watch

Values = Sequence[tuple[Any, ...]]

#: How many rows are read back by one query: below every database's limit of parameters.
_PAGE = 500


class Told(NamedTuple):
    """What is known of the rows that a statement wrote. ``stored``: by the database, not by the instances."""

    values: Values
    link: str
    stored: bool


def add_all(watches: Sequence[Watch], using: str, tell: Callable[[Watch], Told | None]) -> None:
    """:func:`add` for each of several guards."""
    for watch in watches:
        add(watch, using, tell)


def add(watch: Watch, using: str, tell: Callable[[Watch], Told | None]) -> None:
    """Add the keys of the rows just written; what cannot be proved fences the guard.

    Whatever goes wrong with the filter, the write goes on: only a query that fails is the writer's own trouble, for it
    may have ended the transaction. If it has not, the rows may yet be committed.
    """
    try:
        with fencing.writing(watch.guard, using):
            if fencing.needs_nothing(watch.guard, using):
                return
            problem = _problem(watch, using, tell(watch))
    except DatabaseError:
        if not is_over(connections[using]) and not is_aborted(connections[using]):
            fencing.fence(watch.guard, using, "rows were written that could not be read back")
        raise
    except Exception as error:
        problem = f"adding a written row failed with {type(error).__name__}"
    if problem:
        fencing.fence(watch.guard, using, problem)


def _problem(watch: Watch, using: str, told: Told | None) -> str:
    """Add the keys; why that could not be proved, or nothing."""
    guard = watch.guard
    if told is not None and told.link:
        told = _read_back(watch, using, told)
    if told is None:
        return "rows were written whose keys the database did not tell"
    try:
        keys = _keys(guard, told)
    except (Unkeyable, OutOfRange):
        return "a row was written whose key cannot be made"
    if keys and not guard.live.add(keys, partial(fencing.part_with_standby, guard, using)):
        return guard.live.why_not_added()
    return ""


def _keys(guard: Guard, told: Told) -> list[bytes]:
    """The keys of the rows that have one; raises :class:`Unkeyable` and :class:`OutOfRange`."""
    key = guard.keys.key
    values: Sequence[Any] = [value[0] for value in told.values] if len(guard.fields) == 1 else told.values
    try:
        return [key(value) for value in values]
    except Unkeyable:
        keys = []
    for whole, value in zip(told.values, values):
        try:
            keys.append(key(value))
        except NotNormalized:
            continue  # a request for it has no key either, and passes
        except Unkeyable:
            if not told.stored and None not in whole:  # what is stored and has no key, nobody can look up
                raise
    return keys


def _read_back(watch: Watch, using: str, told: Told) -> Told | None:
    """The guard's values of its rows with these links, as they are now."""
    if not watch.historical:
        return Told(_rows(watch.guard, using, told), "", stored=True)
    try:
        with transaction.atomic(using=using):  # in the middle of a migration a column may be missing
            return Told(_rows(watch.guard, using, told), "", stored=True)
    except DatabaseError:
        return None


def _rows(guard: Guard, using: str, told: Told) -> Values:
    rows: Any = models.QuerySet(guard.model, using=using).order_by()
    keys = [value[0] if len(value) == 1 else value for value in told.values if None not in value]
    found: list[tuple[Any, ...]] = []
    for start in range(0, len(keys), _PAGE):
        found += rows.filter(**{f"{told.link}__in": keys[start : start + _PAGE]}).values_list(*guard.attnames)
    return found
