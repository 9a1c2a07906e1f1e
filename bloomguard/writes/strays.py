"""Statements after which a session may read other rows by the name of a guarded table than others do."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from ..guards.strayed import strayed
from .sql.tokens import bare

#: On MySQL and MariaDB: another database, or deleted rows of a system-versioned table. A statement may begin after
#: another one or after a comment; an index hint is none.
_ELSEWHERE = re.compile(
    r"(?:\A|[;\n]|\*/|/\*M?!\d*)\s*USE\b(?!\s+(?:INDEX|KEY)\b)|\bsystem_versioning_asof\b", re.IGNORECASE
)
#: The name of a temporary table or view, which hides another one of that name.
_TEMPORARY = re.compile(
    r"""\bTEMP(?:ORARY)?\s+(?:(?:TABLE|RECURSIVE|VIEW|IF|NOT|EXISTS)\s+)*([^\s(;]+)"""
    r"""|\b(?:pg_temp|temp)["`\]]?\s*\.\s*([^\s(;]+)""",
    re.IGNORECASE,
)


def note(text: str, connection: Any, tables: Container[str]) -> None:
    """Record that no guard may answer for the connection's alias, if ``text`` may be such a statement.

    ``tables``: the names of the guarded ones, as :func:`bare` gives them. It holds for as long as the process lives:
    when another connection takes the place of this one is not followed.
    """
    vendor = connection.vendor
    if (vendor == "mysql" and _ELSEWHERE.search(text) is not None) or any(
        bare(found[1] or found[2], vendor) in tables for found in _TEMPORARY.finditer(text)
    ):
        strayed.add(connection.alias)
