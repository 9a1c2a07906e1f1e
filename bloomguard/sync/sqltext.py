"""What a statement's text says that it writes: enough of SQL to never overlook a write, not to understand it all.

Where the text is not clear, it counts as a write: that costs a rebuild, the opposite a false 404.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_NAME = r'(?:"[^"]+"|`[^`]+`|\[[^\]]+\]|[\w$]+)'
_NAMES = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_WRITE = re.compile(
    r"\b(?:"
    r"(?P<insert>INSERT|REPLACE|MERGE)(?:\s+(?:OR\s+\w+|LOW_PRIORITY|HIGH_PRIORITY|DELAYED|IGNORE))*(?:\s+INTO)?"
    r"|(?P<update>UPDATE)(?!\s+OF\s)(?:\s+(?:OR\s+\w+|LOW_PRIORITY|IGNORE))*"
    r"|(?P<copy>COPY)"
    r"|LOAD\s+(?P<load>DATA|XML)\b.*?\bINTO\s+TABLE"
    r"|(?P<alter>ALTER)\s+TABLE(?:\s+IF\s+EXISTS)?"
    r"|(?P<rename>RENAME)\s+TABLE"
    r"|(?P<create>CREATE)(?:\s+\w+){0,3}?\s+TABLE(?:\s+IF\s+NOT\s+EXISTS)?"
    rf")(?:\s+ONLY\s*\(\s*|\s+ONLY\s+|\s+|(?=[\"`\[]))(?P<name>{_NAMES})",
    re.IGNORECASE | re.DOTALL,
)
#: Literals and comments, which say nothing; quoted names are kept. One pass: each hides the others' marks.
_SILENT = re.compile(r"""('(?:[^']|'')*')|(--[^\n]*|/\*.*?\*/)|("[^"]*"|`[^`]*`)""", re.DOTALL)
#: Where a literal, or a comment, may end elsewhere than the expression above believes.
_UNCLEAR = re.compile(r"\\|\$\w*\$|/\*!")
_MYSQL_UNCLEAR = re.compile(r"#|--")
_REMAKE = re.compile(
    r'INSERT INTO "new__(?P<name>[^"]+)" \((?P<columns>.*?)\) SELECT (?P<values>.*) FROM "[^"]+"', re.S
)


@dataclass(frozen=True)
class Write:
    """One table written by a statement; ``rest`` is its text from the table's name on, ``None`` if that is unclear."""

    verb: str
    table: str
    rest: str | None

    def sets(self, columns: Collection[str]) -> bool:
        """Whether this can give a row of the table a new value in one of ``columns``, or a new row."""
        if self.rest is None:
            return True
        if self.verb == "copy":
            return _mentions(self.rest, ["from"])
        if self.verb == "create":
            return _mentions(self.rest, ["select", "values", "table", "execute"])
        if self.verb == "update":
            return _mentions(_assignments(self.rest), columns)
        if self.verb == "alter":
            return _alters(self.rest, columns)
        return True


def writes(sql: str, tables: Collection[str], vendor: str = "") -> Iterator[Write]:
    """What ``sql`` may write among ``tables``, which are given in lower case and without quotes or schema."""
    if _UNCLEAR.search(sql) or (vendor == "mysql" and _MYSQL_UNCLEAR.search(sql)):
        if re.search(r"\b(?:INSERT|REPLACE|MERGE|UPDATE|COPY|LOAD|RENAME)\b", sql, re.IGNORECASE):
            yield from (Write("", table, None) for table in tables if _mentions(sql, [table]))
        return
    remake = _REMAKE.fullmatch(sql)
    if remake is not None and remake["name"].lower() in tables:
        yield Write("remake", remake["name"].lower(), sql)
        return
    text = _SILENT.sub(lambda found: "''" if found[1] else " " if found[2] else found[0], sql)
    for found in _WRITE.finditer(text):
        verb = next(name for name, value in found.groupdict().items() if value and name != "name")
        rest = text[found.end() :].partition(";")[0]
        name = _bare(found["name"])
        if name in tables:
            yield Write(verb, name, rest)
        if verb == "update":  # of several tables at once
            rest = rest[: _end(rest, r"SET\b")]
        elif verb == "alter":  # a table that takes the place of another
            renamed = re.search(rf"\bRENAME\s+TO\s+({_NAMES})", rest, re.IGNORECASE)
            rest = renamed[1] if renamed and not name.startswith("new__") else ""
        elif verb != "rename":
            continue
        yield from (Write("", table, None) for table in tables if table != name and _mentions(rest, [table]))


def keeps(sql: str, columns: Collection[str]) -> bool:
    """Whether SQLite's schema editor, making a table anew, copies ``columns`` as they are."""
    remake = _REMAKE.fullmatch(sql)
    if remake is None:
        return False
    names, values = _split(remake["columns"]), _split(remake["values"])
    copied = {name.strip('"').lower() for name, value in zip(names, values) if name == value}
    return len(names) == len(values) and {column.lower() for column in columns} <= copied


def bare(table: str) -> str:
    """A model's table as :func:`writes` takes it; it may be given with a schema."""
    return table.replace('"', "").replace("`", "").rpartition(".")[2].lower()


def _bare(name: str) -> str:
    parts: list[str] = re.findall(_NAME, name)
    return parts[-1].strip('"`[]').lower()


def _mentions(text: str, names: Collection[str]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) for name in names)


def _assignments(rest: str) -> str:
    """What stands between SET and the end of the assignments, as far as that can be told."""
    start = _end(rest, r"SET\b")
    return rest[start : start + _end(rest[start:], r"(?:WHERE|FROM|RETURNING|ORDER\s+BY|LIMIT)\b")]


def _end(text: str, word: str) -> int:
    """Where ``word`` stands outside of all brackets and quotes; the text's length if nowhere."""
    depth = 0
    for found in re.finditer(rf'"[^"]*"|`[^`]*`|[()]|\b{word}', text, re.IGNORECASE):
        if found[0] == "(":
            depth += 1
        elif found[0] == ")":
            depth -= 1
        elif depth <= 0 and found[0][0] not in '"`':
            return found.start()
    return len(text)


def _alters(rest: str, columns: Collection[str]) -> bool:
    """Whether an ALTER TABLE changes, adds or replaces one of ``columns``, or takes rows in."""
    one = "(?:" + "|".join(rf'["`\[]?{re.escape(column)}["`\]]?(?!\w)' for column in columns) + ")"
    changes = (
        rf"ALTER\s+(?:COLUMN\s+)?{one}\s+(?:SET\s+DATA\s+)?TYPE",
        rf"ADD\s+(?:COLUMN\s+)?(?:IF\s+NOT\s+EXISTS\s+)?{one}",
        rf"RENAME\s+(?:COLUMN\s+)?{_NAME}\s+TO\s+{one}",
        r"(?:MODIFY|CHANGE|ATTACH|EXCHANGE)\b",
    )
    return re.search(rf"\b(?:{'|'.join(changes)})", rest, re.IGNORECASE) is not None


def _split(text: str) -> list[str]:
    """The parts of a list, whose commas in brackets and quotes separate nothing."""
    parts, start, depth = [], 0, 0
    for found in re.finditer(r"""'(?:[^']|'')*'|"[^"]*"|[(),]""", text):
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == "," and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]
