"""The effects of a statement, read from its text: which tables it writes, which functions it calls.

What is not certainly a read, or a write of the tables named, is :data:`ANYTHING`: that costs a rebuild, while a missed
write costs a false 404.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from .effects import ANEW, ANY_FIELD, ANYTHING, Effect, Reading, bare
from .scanner import Scanner
from .tokens import MARK, TEXT, WORD, Token, Unclear, tokens
from .words import CALLING_NOTHING, HARMLESS, NEVER_FUNCTIONS, PRAGMAS, SCANNED, TRANSACTIONS

_LAST_NAME = re.compile(r"[\w$]+\Z")
#: Marks before a bracket that make no call of it.
_OPERATORS = frozenset("(,=<>+-*/%|&^~!@")
_COPY = re.compile(
    rf'INSERT INTO "{ANEW}(?P<name>[^"]+)" \((?P<columns>.*?)\) SELECT (?P<values>.*) FROM "(?P=name)"',  # noqa: S608
    re.DOTALL,
)
_EVENTS = frozenset({"insert", "update", "delete"})
_QUOTED = re.compile(r"'(?:[^']|'')*'" r'|"[^"]*"')
_OTHER_SOURCE = re.compile(r"\b(?:FROM|UNION|EXCEPT|INTERSECT)\b|--|/\*", re.IGNORECASE)


def is_plain_read(sql: str) -> bool:
    """Whether ``sql`` is a SELECT that calls only names known to write nothing, as most queries are."""
    if sql[:7] not in ("SELECT ", "select ") or ";" in sql or "--" in sql or "/*" in sql or "#" in sql:
        return False
    if "into" in sql.lower():
        return False
    pieces = sql.split("(")
    del pieces[-1]
    for piece in map(str.rstrip, pieces):
        name = _LAST_NAME.search(piece)
        if name is None:
            if piece and piece[-1] not in _OPERATORS:
                return False
        elif name[0].lower() not in NEVER_FUNCTIONS or piece[: name.start()].rstrip().endswith("."):
            return False
    return True


def read(sql: str, vendor: str = "") -> Reading:
    """Return the effects of ``sql``, as far as its text shows them."""
    return _read(sql, vendor) if len(sql) < 2_000 else _read.__wrapped__(sql, vendor)


@lru_cache(maxsize=500)
def _read(sql: str, vendor: str) -> Reading:
    copied = _copied(sql)
    if copied is not None:
        return Reading(frozenset({copied}))
    try:
        found = tokens(sql, vendor)
        effects, defines, count = set[Effect](), False, 0
        for statement in _statements(found):
            did, defined = _Statement(statement, vendor).read()
            effects |= did
            defines |= defined
            count += bool(statement)
    except Unclear:
        if not is_plain_read(sql):
            return Reading(frozenset({ANYTHING}), True)
        effects, defines, count = {Effect("known", name) for name in NEVER_FUNCTIONS} | {ANY_FIELD}, False, 1
    known = frozenset(effect for effect in effects if effect.verb in ("known", "field"))
    # SQLite stores no functions.
    return Reading(frozenset(effects) - known, defines, count > 1, known if vendor != "sqlite" else frozenset())


def read_body(text: str, vendor: str = "") -> frozenset[Effect]:
    """Return the effects of a function, a trigger or a rule with this text."""
    try:
        return frozenset(_Statement(tokens(text, vendor), vendor, is_body=True).scan())
    except Unclear:
        return frozenset({ANYTHING})


def read_trigger(sql: str) -> tuple[frozenset[str], frozenset[Effect]]:
    """Return the event of a trigger of SQLite, all three if that is not certain, and its effects."""
    try:
        return _Statement(tokens(sql, "sqlite"), "sqlite", is_body=True).trigger()
    except Unclear:
        return _EVENTS, frozenset({ANYTHING})


def read_call(name: str) -> Reading:
    """Return the effects of calling a function or procedure from outside."""
    return Reading(frozenset({Effect("run", bare(name))}))


def _copied(sql: str) -> Effect | None:
    """Return the effect of SQLite's schema editor copying a table; ``None`` for other texts."""
    copy = _COPY.fullmatch(sql) if sql.startswith("INSERT INTO") else None
    if copy is None:
        return None
    names, values = _split(copy["columns"]), _split(copy["values"])
    if len(names) != len(values) or _OTHER_SOURCE.search(_QUOTED.sub("", copy["values"])):
        return None
    kept = frozenset(name.strip('"').lower() for name, value in zip(names, values) if name == value)
    return Effect("copy", copy["name"].lower(), kept)


def _split(text: str) -> list[str]:
    """Split a list at its commas, but not at those in brackets and quotes."""
    parts, start, depth = [], 0, 0
    for found in re.finditer(rf"{_QUOTED.pattern}|[(),]", text):
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == "," and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def _statements(found: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Split a text at its semicolons, but not at those in the body of a routine. Raises :class:`Unclear`."""
    start = 0
    for at, token in enumerate([*found, Token(MARK, ";")]):
        if at < start or token != (MARK, ";"):
            continue
        words = [each.value for each in found[start : start + 8] if each.kind == WORD]
        if words[:1] == ["create"] and {"trigger", "function", "procedure"} & set(words):
            at = _routine_end(found, start, at)
        yield found[start:at]
        start = at + 1


def _routine_end(found: Sequence[Token], start: int, at: int) -> int:
    """Return the first semicolon from ``at`` on that is not inside of a BEGIN or CASE; the end of the text counts."""
    depth, place = 0, start
    while place < len(found):
        word = found[place].value if found[place].kind == WORD else ""
        if place >= at and depth == 0 and found[place] == (MARK, ";"):
            return place
        before = found[place - 1]
        if word in ("begin", "case") and before != (MARK, ".") and (word == "begin" or before != (WORD, "end")):
            depth += 1
        elif word == "end" and not _ends_loop(found, place):
            depth -= 1
        place += 1
    if depth:
        raise Unclear
    return place


def _ends_loop(found: Sequence[Token], at: int) -> bool:
    """Whether an END closes what no BEGIN or CASE has opened: END IF, END LOOP, or a column of that name."""
    following = found[at + 1].value if at + 1 < len(found) and found[at + 1].kind == WORD else ""
    return following in ("if", "loop", "while", "repeat", "for") or found[at - 1] == (MARK, ".")


class _Statement(Scanner):
    """A reader of one statement, or of the body of a routine."""

    def read(self) -> tuple[set[Effect], bool]:
        """Return the effects of the statement, and whether it is a definition."""
        at = 0
        while self.mark(at) == "(":
            at += 1
        if at >= len(self.found):
            return set(), False
        head = self.word(at)
        if head in ("explain", "desc", "describe") or (head == "analyze" and self.vendor == "mysql"):
            return self._explained(at), False
        if self.vendor == "mysql" and self.word(at + 1) == "statement" and self.has("for"):
            return _Statement(self.found[self.found.index(Token(WORD, "for")) + 1 :], self.vendor).read()
        if self._is_block(at):
            return self._body(at), False
        if head in ("commit", "end", "rollback", "xa") and self.has("prepared"):
            return {ANYTHING}, False
        if head in HARMLESS:
            if self.vendor not in ("postgresql", "sqlite") and head not in CALLING_NOTHING:
                self.scan(at)  # SET @a = f(), SHOW ... WHERE f()
            return self.effects, False
        if head in SCANNED:
            return self.scan(at), False
        special = {
            "alter": self.alter,
            "call": self._call,
            "create": self.create,
            "do": self._do,
            "drop": self.drop,
            "load": self._load,
            "pragma": self._pragma,
            "refresh": self._refresh,
            "rename": self._rename,
        }
        if head not in special:
            return {ANYTHING}, True
        special[head](at + 1)
        return self.effects, head in ("alter", "create", "drop", "rename")

    def trigger(self) -> tuple[frozenset[str], frozenset[Effect]]:
        """Return the event and the effects of a CREATE TRIGGER. No trigger of SQLite can change NEW."""
        at = self.after(self.skip(1, ("temp", "temporary", "trigger")), "if", "not", "exists")
        _, at = self.name(at)
        at = self.skip(at, ("before", "after", "instead", "of"))
        begin = next((place for place in range(at, len(self.found)) if self.word(place) == "begin"), at)
        return _EVENTS & {self.word(at)} or _EVENTS, frozenset(self.scan(begin))

    # -- statements around others

    def _is_block(self, at: int) -> bool:
        """Whether statements follow, as in ``BEGIN NOT ATOMIC``."""
        if self.word(at) == "declare":
            return self.vendor not in ("postgresql", "sqlite")
        if self.word(at) != "begin" or at + 1 >= len(self.found):
            return False
        return self.word(at + 1) not in TRANSACTIONS or self.has("atomic")

    def _body(self, start: int) -> set[Effect]:
        """Return the effects of statements that begin anywhere from ``start`` on."""
        if self.vendor not in ("postgresql", "sqlite", "mysql"):
            return {ANYTHING}  # it may call procedures without brackets
        return _Statement(self.found[start:], self.vendor, is_body=True).scan()

    def _explained(self, at: int) -> set[Effect]:
        """Return the effects of EXPLAIN: those of the statement if it is executed, of its functions on MySQL."""
        if self.word(at) == "analyze" or self.has("analyze", "analyse"):
            return self._body(at + 1)
        if self.vendor not in ("postgresql", "sqlite"):
            self.calls(at + 1)
        return self.effects

    # -- other statements

    def _do(self, at: int) -> None:
        texts = [token for token in self.found[at:] if token.kind == TEXT]
        if self.vendor == "mysql":
            self.calls(at)
        elif len(texts) != 1 or (self.has("language") and not self.has("plpgsql")):
            self.effects.add(ANYTHING)
        else:
            self.effects |= read_body(texts[0].value, self.vendor)

    def _pragma(self, at: int) -> None:
        name, place = self.name(at)
        if name not in PRAGMAS and (self.mark(place) or name == "writable_schema"):
            self.effects.add(ANYTHING)

    def _rename(self, at: int) -> None:
        for token in self.found[at:]:
            if token.kind != MARK and token not in ((WORD, "table"), (WORD, "to")):
                self.add("insert", token.value.lower())

    def _load(self, at: int) -> None:
        self.calls(at)
        for place in range(at, len(self.found)):
            if self.word(place) == "into":
                name, _ = self.name(self.skip(place + 1, ("table",)))
                self.add("insert", name)
                if self.has("replace"):
                    self.add("delete", name)
