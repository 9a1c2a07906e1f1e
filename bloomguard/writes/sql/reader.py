"""The effects of a text of SQL: of all its statements, or of a routine's body."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .statement import ANY_FIELD, ANYTHING, DEFINE, Effect, Statement, split
from .tokens import WORD, Token, Unclear, tokens
from .words import NEVER_FUNCTIONS

_NAME = re.compile(r"[\w$\x80-\U0010ffff]*")
#: Marks before a bracket that make no call of it.
_OPERATORS = frozenset("(,=<>+-*/%|&^~!@")


class Reading(NamedTuple):
    """The effects of a text; ``defines``: one of its statements may change definitions.

    ``several``: it has more than one statement. ``known``: calls of names that write nothing, and fields, unless the
    database has a function of its own with that name. ``head``: the first word of a single statement, empty if that is
    not certain, or if a savepoint around it may be refused.
    """

    effects: frozenset[Effect]
    defines: bool = False
    several: bool = False
    known: frozenset[Effect] = frozenset()
    head: str = ""

    @property
    def all_effects(self) -> frozenset[Effect]:
        """Those that are certain, and those of :attr:`known` names."""
        return self.effects | self.known


def is_plain_read(sql: str) -> bool:
    """Whether ``sql`` is a SELECT that calls only names known to write nothing, as most queries are."""
    if sql[:7] not in ("SELECT ", "select ") or ";" in sql or "--" in sql or "/*" in sql or "#" in sql:
        return False
    if "into" in sql.lower():
        return False
    pieces = sql.split("(")
    del pieces[-1]
    for piece in (piece.rstrip(" \t\n\r\f\v") for piece in pieces):
        # The name at the end is read backwards: a search from the left would try each place of a long literal.
        name = _NAME.match(piece[::-1])[0][::-1]  # type: ignore[index]
        if not name:
            if piece and piece[-1] not in _OPERATORS:
                return False
        elif name.lower() not in NEVER_FUNCTIONS or piece[: -len(name)].rstrip().endswith("."):
            return False
    return True


def read(sql: str, vendor: str) -> Reading:
    """Return the effects of ``sql``, as far as its text shows them."""
    return _read(sql, vendor) if len(sql) < 2_000 else _read.__wrapped__(sql, vendor)


@lru_cache(maxsize=500)
def _read(sql: str, vendor: str) -> Reading:
    found, statements = list[Token](), list[Statement]()
    try:
        found = tokens(sql, vendor)
        statements = [Statement(each, vendor) for each in split(found, ";")]
        effects = set[Effect]().union(*(each.read() for each in statements))
    except Unclear:
        effects, statements = {ANYTHING, DEFINE}, []
        if is_plain_read(sql):
            effects = {Effect("known", name) for name in NEVER_FUNCTIONS} | {ANY_FIELD}
    known = frozenset(effect for effect in effects if effect.verb in ("known", "field"))
    # PostgreSQL wants no savepoint between FREEZE and the table's TRUNCATE; SQLite releases none before all rows that
    # RETURNING gives have been fetched.
    stands_alone = (WORD, "returning" if vendor == "sqlite" else "freeze") in found
    return Reading(
        frozenset(effect for effect in effects - known if effect.verb != "define"),
        defines=any(effect.verb == "define" for effect in effects),
        several=len(statements) > 1,
        known=known,
        head=statements[0].head if len(statements) == 1 and not stands_alone else "",
    )


def read_body(text: str, vendor: str) -> frozenset[Effect]:
    """Return the effects of a function or a trigger with this text. The definitions that it changes are not known.

    On SQLite it is a trigger with its head, whenever it fires.
    """
    begin = Token(WORD, "begin")
    try:
        body = Statement(tokens(text, vendor), vendor, is_body=True)
        has_head = vendor == "sqlite" and begin in body.found
        effects = body.scan(body.found.index(begin) if has_head else 0)
    except Unclear:
        return frozenset({ANYTHING})
    if vendor == "sqlite":  # an OR REPLACE of the statement that fires it also holds for these
        effects |= {Effect("delete", effect.name) for effect in effects if effect.verb in ("insert", "update")}
    return frozenset(ANYTHING if effect == DEFINE else effect for effect in effects)
