"""What SQLite's schema editor keeps when it makes a table anew: by a copy of its rows, into other columns.

The new column may be declared with another collation, under which other texts are equal, or with a type that converts
values: SQLite stores the text '007' as the number 7 in a column of integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..state.connection import fetch_uncounted
from .sql.statement import Effect, split
from .sql.tokens import ANEW, MARK, Token, Tokens, Unclear, tokens


def kept(effects: Iterable[Effect], connection: Any) -> list[Effect]:
    """Return ``effects``, each copy with those columns alone that are declared as before: their keys are the same."""
    return [_kept(effect, connection) if effect.verb == "copy" else effect for effect in effects]


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
