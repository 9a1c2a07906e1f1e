"""Statements after which a session may read other rows by the name of a guarded table than others do."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ..guards.doubts import strayed
from ..process import log_once
from .sql.tokens import MARK, UNKNOWN, WORD, Tokens, Unclear, tokens

#: On MySQL and MariaDB: another database, or deleted rows of a system-versioned table. A statement may begin after
#: another one or after a comment; an index hint is none.
_ELSEWHERE = re.compile(
    r"(?:\A|[;\n]|\*/|/\*M?!\d*)[^\S\n]*USE\b(?!\s+(?:INDEX|KEY)\b)|\bsystem_versioning_asof\b", re.IGNORECASE
)
_MAY_BE_TEMPORARY = re.compile(r"\b(?:TEMP(?:ORARY)?\b|PG_TEMP)", re.IGNORECASE)
#: Words between TEMP and the name of a table or view.
_BEFORE_NAME = frozenset({"exists", "if", "not", "recursive", "table", "view"})
#: How many literals, one in the other, are looked into: each is read again with all that it has in it.
_DEEPEST = 10


def note(text: str, connection: Any, tables: Collection[str]) -> None:
    """Record that no guard may answer for the connection's alias, if ``text`` may be such a statement.

    ``tables``: the names of the guarded ones, as :func:`bare` gives them. It holds for as long as the process lives:
    when another connection takes the place of this one is not followed.
    """
    vendor = connection.vendor
    if not tables:
        return
    if (vendor == "mysql" and _leads_elsewhere(text)) or (_may_be_temporary(text) and _hides_one(text, vendor, tables)):
        strayed.add(connection.alias)
        log_once.warning(
            "bloomguard: by alias %r this process may read other rows than its guards know, since a statement about a "
            "temporary table, USE or system_versioning_asof, so they pass every request; restart the process",
            connection.alias,
        )


def _leads_elsewhere(text: str) -> bool:
    lower = text.lower()  # as below
    return ("use" in lower or "system_versioning" in lower) and _ELSEWHERE.search(text) is not None


def _may_be_temporary(text: str) -> bool:
    # A text of many values is searched in a twentieth of the time that the pattern takes.
    return "temp" in text.lower() and _MAY_BE_TEMPORARY.search(text) is not None


def _hides_one(text: str, vendor: str, tables: Collection[str], depth: int = 0) -> bool:
    """Return whether ``text`` may make a temporary table or view, which hides another one of its name.

    So may its literals, which may be the code of a function, of DO or EXECUTE, though most are no SQL at all.
    ``depth``: how many of them ``text`` is in.
    """
    try:
        found = Tokens(tokens(text, vendor))
    except Unclear:
        return True
    for at, (kind, value) in enumerate(found.found):
        may_be_code = kind != WORD and _may_be_temporary(value) and any(name in value.lower() for name in tables)
        # The words of a literal with escapes are not known.
        if may_be_code and (kind == MARK or depth == _DEEPEST or _hides_one(value, vendor, tables, depth + 1)):
            return True
        is_schema = found.mark(at + 1) == "." and (value == "temp" or value.startswith("pg_temp"))
        if not is_schema and found.word(at) not in ("temp", "temporary"):
            continue
        name, _ = found.name(at if is_schema else found.skip(at + 1, _BEFORE_NAME))
        if name in tables or name == UNKNOWN:
            return True
    return False
