"""What SQLite's schema editor keeps when it makes a table anew: by a copy of its rows, into other columns.

It makes and fills the new table, and puts it in the place of the former one, in one transaction: then each row came by
a statement that was followed. One that was there before may have rows that no filter has.

The new column may be declared with another collation, under which other texts are equal, or with a type that converts
values: SQLite stores the text '007' as the number 7 in a column of integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from ..state.connection import fetch_uncounted
from ..state.transactions import is_under_way
from .observer import TransactionObserver
from .sql.statement import Effect, split
from .sql.tokens import ANEW, MARK, Token, Tokens, Unclear, tokens


def note(effects: Iterable[Effect], connection: Any) -> None:
    """Note the tables that a statement has just made, for as long as its transaction is open."""
    made = {effect.name for effect in effects if effect.verb == "made"}
    if made and is_under_way(connection):
        TransactionObserver.ensure(connection).remade |= made


def kept(effects: Iterable[Effect], connection: Any) -> list[Effect]:
    """Return ``effects`` with what they mean for keys.

    Each copy has those columns alone that are declared as before: their keys are the same. A table that was made in
    this transaction takes the place of another one without an effect, and any other table has new rows.
    """
    found = [_kept(effect, connection) if effect.verb == "copy" else effect for effect in effects]
    return [effect for effect in map(partial(_swapped, connection), found) if effect.verb]


def _swapped(connection: Any, effect: Effect) -> Effect:
    if effect.verb != "swap":
        return effect
    observer = TransactionObserver.of(connection)
    return effect._replace(verb="" if observer is not None and effect.name in observer.remade else "insert")


def _kept(effect: Effect, connection: Any) -> Effect:
    before, after = (_declared(name, connection) for name in (effect.name, ANEW + effect.name))
    same = {column for column in effect.columns or () if column in before and before[column] == after.get(column)}
    return effect._replace(columns=frozenset(same))


def _declared(table: str, connection: Any) -> dict[str, list[Token]]:
    """Return how the columns of a table are declared; none if that is not certain."""
    try:
        rows = fetch_uncounted(connection, "SELECT sql FROM main.sqlite_master WHERE lower(name) = ?", [table])
        return declarations(rows[0][0]) if len(rows) == 1 else {}
    except (connection.Database.Error, Unclear):
        return {}


def declarations(sql: str) -> dict[str, list[Token]]:
    """Return each column with its declaration and the table's options. Raises :class:`Unclear`.

    Without numbers: SQLite ignores the length of a text.
    """
    found = tokens(sql, "sqlite")
    begin = Token(MARK, "(")
    if begin not in found:
        return {}
    start = found.index(begin)
    _, end = Tokens(found).names(start + 1)
    options = found[end + 1 :]
    return {
        part[0].value: [token for token in part + options if not token.value.isdigit()]
        for part in split(found[start + 1 : end], ",")
    }
