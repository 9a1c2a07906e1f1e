"""What SQLite's schema editor keeps when it makes a table anew: by a copy of its rows, into other columns.

The statement copies each column under its name. But the new column may be declared with another collation, under which
other texts are equal, or with a type that converts values: SQLite stores the text '007' as the number 7 in a column of
integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ..state.connection import fetch_uncounted
from .sql.statement import Effect, split
from .sql.tokens import ANEW, MARK, NAME, WORD, Token, Tokens, Unclear, tokens

#: Words after the type in the declaration of a column.
_CONSTRAINTS = frozenset(
    {
        "as", "check", "collate", "constraint", "default", "foreign", "generated", "not", "null", "primary",
        "references", "unique",
    }
)  # fmt: skip
#: First words of the constraints of a table.
_OF_TABLES = {Token(WORD, word) for word in _CONSTRAINTS}
#: The types of columns that store values in one way, by a part of their name; SQLite looks for them in this order.
_AFFINITIES = (
    ("int", "integer"), ("char", "text"), ("clob", "text"), ("text", "text"), ("blob", "blob"), ("real", "real"),
    ("floa", "real"), ("doub", "real"),
)  # fmt: skip


def kept(effects: Iterable[Effect], connection: Any) -> list[Effect]:
    """Return ``effects``, each copy with those columns alone that have the same values and comparisons after it."""
    return [_kept(effect, connection) if effect.verb == "copy" else effect for effect in effects]


def _kept(effect: Effect, connection: Any) -> Effect:
    before, after = (_declared(name, connection) for name in (effect.name, ANEW + effect.name))
    same = {column for column in effect.columns or () if column in before and before[column] == after.get(column)}
    return effect._replace(columns=frozenset(same))


def _declared(table: str, connection: Any) -> dict[str, tuple[str, ...]]:
    """Return how the columns of a table are declared; none if that is not certain."""
    try:
        rows = fetch_uncounted(connection, "SELECT sql FROM main.sqlite_master WHERE lower(name) = ?", [table])
        return declarations(rows[0][0]) if len(rows) == 1 else {}
    except (connection.Database.Error, Unclear):
        return {}


def declarations(sql: str) -> dict[str, tuple[str, ...]]:
    """Return column -> affinity, collation and the options of the table. Raises :class:`Unclear`."""
    found = tokens(sql, "sqlite")
    begin = (MARK, "(")
    if begin not in found:
        return {}
    start = found.index(Token(*begin))
    _, end = Tokens(found).names(start + 1)
    options = " ".join(value for _, value in found[end + 1 :])
    parts = [part for part in split(found[start + 1 : end], ",") if part[0] not in _OF_TABLES]
    return {part[0].value: (_affinity(part), _collation(part), options) for part in parts}


def _affinity(part: Sequence[Token]) -> str:
    name, depth = "", 0
    for kind, value in part[1:]:
        depth += (value == "(") - (value == ")") if kind == MARK else 0
        if kind == WORD and not depth and value in _CONSTRAINTS:
            break
        name += value if kind in (WORD, NAME) and not depth else ""
    return next((affinity for text, affinity in _AFFINITIES if text in name), "numeric" if name else "blob")


def _collation(part: Sequence[Token]) -> str:
    depth, found = 0, "binary"
    for (kind, value), (_, following) in pairwise(part):
        depth += (value == "(") - (value == ")") if kind == MARK else 0
        if (kind, value) == (WORD, "collate") and not depth:
            found = following
    return found
