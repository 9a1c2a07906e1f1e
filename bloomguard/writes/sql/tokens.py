"""A tokenizer for SQL: names, words, literals and marks, without comments.

The dialects differ in where a literal or a comment ends. A text that can be read in two ways raises :class:`Unclear`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

#: Kinds of tokens. A word is a keyword or an unquoted name; a name is quoted; the values of both are in lower case.
#: A text is a literal; its value is what stands between the quotes. Everything else is a mark.
WORD, NAME, TEXT, MARK = "word", "name", "text", "mark"

#: Prefix of the table that SQLite's schema editor fills with a copy of the rows.
ANEW = "new__"
#: The name of what a placeholder stands for, or of what cannot be read.
UNKNOWN = "%s"
#: Words before a name.
_BEFORE_NAME = frozenset({"concurrently", "ignore", "into", "join", "low_priority", "only", "table", "to", "view"})


class Unclear(Exception):
    """The text can be read in more than one way."""


class Token(NamedTuple):
    """A piece of SQL."""

    kind: str
    value: str


_COMMON = r"""
    (?P<space>[ \t\n\r\f\v]+|{line})
  | (?P<block>/\*)
  | (?P<odd>[uU]&["']|[qQ]'|--(?![ -~])|%\((?!\w+\))[^)]*\)[a-z]\b|{odd})
  | {texts}
  | {names}
  | (?P<word>{digits}{letter}[\w$\x80-\U0010ffff]*)
  | (?P<mark>%s\b|%\(\w+\)s|%%|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|:=|.)
"""
_LETTER = r"[A-Za-z_\x80-\U0010ffff]"

#: None of them repeats a group for single characters: a literal of some megabytes would take gigabytes of memory.
_TEXT = r"(?P<text>'[^']*(?:''[^']*)*')"
_NAMES = r'(?P<name>"[^"]*(?:""[^"]*)*")'
#: White space, a line's comment, and what may hide the rest of a text; then the literals and the quoted names.
_DIALECTS = {
    "postgresql": (
        r"--[^\n\r]*",
        "(?!)",
        r"(?P<escaped>[eE]'[^'\\]*(?:(?:''|\\.)[^'\\]*)*')"
        rf" | (?P<dollar>\$(?:{_LETTER}[\w\x80-\U0010ffff]*)?\$) | {_TEXT}",
        _NAMES,
    ),
    "sqlite": (
        r"\ufeff|--[^\n]*",
        r"[$@:\#][\w$:]+\(",  # a variable's name goes on to the next bracket
        _TEXT,
        rf"{_NAMES} | (?P<tick>`(?:[^`]|``)*`) | (?P<bracket>\[[^\]]*\])",
    ),
    "mysql": (
        r"--(?=[ \t\n\r]|$)[^\n]*|\#[^\n]*",
        r"\$",  # the beginning of a literal or a name
        r"(?P<text>'[^'\\]*(?:(?:''|\\.)[^'\\]*)*')",
        r'(?P<name>"[^"\\]*(?:(?:""|\\.)[^"\\]*)*") | (?P<tick>`(?:[^`]|``)*`)',
    ),
}


@lru_cache
def _pattern(vendor: str) -> re.Pattern[str]:
    line, odd, texts, names = _DIALECTS.get(vendor, _DIALECTS["postgresql"])  # no other database has a filter
    digits = r"\d*" if vendor == "mysql" else ""
    text = _COMMON.format(line=line, odd=odd, texts=texts, names=names, digits=digits, letter=_LETTER)
    return re.compile(text, re.VERBOSE | re.DOTALL)


def tokens(sql: str, vendor: str) -> list[Token]:
    """Return the tokens of ``sql``. Raises :class:`Unclear`."""
    match, position, found = _pattern(vendor).match, 0, list[Token]()
    while position < len(sql):
        piece = match(sql, position)
        if piece is None:
            raise Unclear
        kind, text, position = piece.lastgroup, piece[0], piece.end()
        if kind == "word":
            is_part = found and found[-1] == (MARK, ".")  # of a name, where a keyword is none
            found.append(Token(NAME if is_part else WORD, _folded(text, vendor)))
        elif kind == "mark":
            if text in ("'", '"', "`"):
                raise Unclear  # unterminated
            found.append(Token(MARK, UNKNOWN if text[0] == "%" and text[-1] == "s" else text))
        elif kind in ("name", "tick", "bracket"):
            if vendor == "mysql" and "\\" in text:
                raise Unclear
            found.append(Token(NAME, _folded(text[1:-1].replace(text[-1] * 2, text[-1]), vendor)))
        elif kind == "text":
            if vendor != "sqlite" and "\\'" in text:
                raise Unclear  # an escape or not, by the server's settings
            found.append(Token(TEXT, text[1:-1].replace("''", "'")))
        elif kind == "escaped":
            value = text[2:-1].replace("''", "'").replace("\\'", "'")
            found.append(Token(MARK if "\\" in value else TEXT, value))  # any characters may be escaped
        elif kind == "dollar":
            end = sql.find(text, position)
            if end < 0:
                raise Unclear
            found.append(Token(TEXT, sql[position:end]))
            position = end + len(text)
        elif kind == "block":
            position = _after_comment(sql, position, vendor)
        elif kind == "odd":
            raise Unclear
    return found


def _folded(name: str, vendor: str) -> str:
    """Return a name in lower case, to be on the safe side."""
    if vendor == "mysql" and "\u0130" in name:
        raise Unclear  # an i
    return _stored(name, vendor).lower()


def _stored(name: str, vendor: str) -> str:
    """Return a name as the database stores it: PostgreSQL truncates it to 63 bytes."""
    if vendor == "postgresql" and len(name) > 15:
        return name.encode()[:63].decode(errors="ignore")
    return name


def _after_comment(sql: str, position: int, vendor: str) -> int:
    """Return the end of a comment that has begun before ``position``; PostgreSQL's can be nested."""
    if vendor == "mysql" and sql[position : position + 1] in ("!", "M"):
        raise Unclear  # MySQL executes it
    begin, depth = position, 1
    for mark in re.compile(r"/\*|\*/").finditer(sql, position):
        if mark[0] == "*/":
            depth -= 1
            if not depth:
                if vendor == "mysql" and sql[begin] == "+" and re.search("['\"`]", sql[begin : mark.end()]):
                    raise Unclear  # MySQL may read on to the end of a literal in its hints
                return mark.end()
        elif vendor == "postgresql":
            depth += 1
    if vendor == "sqlite":
        return len(sql)
    raise Unclear


def bare(table: str, vendor: str = "") -> str:
    """Return a table's name without quotes, schema and the prefix of SQLite's schema editor, in lower case.

    ``vendor`` is that of the database, if the name is not from there but from a model or a text.
    """
    name = _stored(table.rpartition('"."')[2].replace('"', "").replace("`", ""), vendor)
    return name.rpartition(".")[2].lower().removeprefix(ANEW)


def have_two_schemas(one: str, other: str) -> bool:
    """Return whether the names of two models' tables have a schema each, as in ``one"."item``, and these differ."""
    given = [name.replace("`", '"').rpartition('"."')[0].strip('"') for name in (one, other)]
    schemas = [_stored(schema, "postgresql").lower() for schema in given]
    return "" not in schemas and schemas[0] != schemas[1]


def routine(name: str, vendor: str) -> str:
    """Return the name of a function, in lower case; for MySQL and MariaDB without accents, as they take it."""
    if vendor != "mysql" or name.isascii():
        return name.lower()
    return "".join(each for each in unicodedata.normalize("NFKD", name.lower()) if not unicodedata.combining(each))


class Tokens:
    """The tokens of one statement; reading past the last one gives empty words."""

    _END = Token(WORD, "")

    def __init__(self, found: Sequence[Token]) -> None:
        self.found = found

    def token(self, at: int) -> Token:
        """Return the token at ``at``, an empty word if there is none."""
        return self.found[at] if 0 <= at < len(self.found) else self._END

    def word(self, at: int) -> str:
        """Return the word at ``at``, empty if the token is no word."""
        token = self.token(at)
        return token.value if token.kind == WORD else ""

    def mark(self, at: int) -> str:
        """Return the mark at ``at``, empty if the token is no mark."""
        token = self.token(at)
        return token.value if token.kind == MARK else ""

    def has(self, *words: str, start: int = 0) -> bool:
        """Whether the statement has one of ``words`` from ``start`` on."""
        return any((WORD, word) in self.found[start:] for word in words)

    def skip(self, at: int, words: Collection[str]) -> int:
        """Return the place of the first token from ``at`` on that is none of ``words``."""
        while self.word(at) and self.word(at) in words:
            at += 1
        return at

    def after(self, at: int, *words: str) -> int:
        """Return the place after ``words`` if they stand at ``at`` in this order, else ``at``."""
        return at + len(words) if all(self.word(at + place) == word for place, word in enumerate(words)) else at

    def name(self, at: int) -> tuple[str, int]:
        """Return the bare name at ``at``, empty if there is none, and the place after it."""
        while self.token(at).kind != MARK and self.mark(at + 1) == ".":
            at += 2
            if self.token(at).kind == MARK:
                return UNKNOWN, at + 1
        kind, value = self.token(at)
        if self.token(at) is self._END or (kind == MARK and value != UNKNOWN):
            return "", at
        return bare(value), at + 1

    def names(self, at: int, *until: str) -> tuple[list[str], int]:
        """Return all names and words from ``at`` on, bare, and the place where they end.

        They end before a word of ``until`` outside brackets, a semicolon, or the end of the bracket around them.
        """
        found, depth, start = list[str](), 0, at
        before = _BEFORE_NAME - {"to"} if self.has("portion") else _BEFORE_NAME
        while at < len(self.found):
            kind, value = self.found[at]
            if depth == 0 and ((kind == WORD and value in until) or (kind, value) == (MARK, ";")):
                break
            if kind != MARK:
                found.append(bare(value))
            elif self.mark(at - 1) == ".":
                found.append(UNKNOWN)
            elif value == UNKNOWN:
                if at == start or self.mark(at - 1) == "," or self.word(at - 1) in before:
                    found.append(UNKNOWN)
            elif value in ("(", ")"):
                depth += 1 if value == "(" else -1
                if depth < 0:
                    break
            at += 1
        return found, at
