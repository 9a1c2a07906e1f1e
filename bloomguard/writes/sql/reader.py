"""The effects of a statement, read from its text: which tables it writes, which functions it calls.

What is not certainly a read, or a write of the tables named, is :data:`ANYTHING`: that costs a rebuild, while a missed
write costs a false 404.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from .definitions import Definition
from .effects import ANEW, ANYTHING, Effect, Reading, bare
from .tokens import MARK, NAME, TEXT, WORD, Token, Unclear, tokens
from .words import BEFORE_INTO, HARMLESS, MODIFIERS, NEVER_FUNCTIONS, PRAGMAS, SCANNED, TRANSACTIONS

_LAST_NAME = re.compile(r"[\w$]+\Z")
#: Marks before a bracket that make no call of it.
_OPERATORS = frozenset("(,=<>+-*/%|&^~!@#")
#: SQLite's names for the primary key that every table has.
_ROWID = frozenset({"rowid", "oid", "_rowid_"})
_SYSTEM_TABLES = re.compile(
    r"sqlite_(?:temp_)?(?:master|schema)|pg_(?:class|attribute|enum|namespace|inherits|rewrite|depend)"
)
_COPY = re.compile(
    rf'INSERT INTO "{ANEW}(?P<name>[^"]+)" \((?P<columns>.*?)\) SELECT (?P<values>.*) FROM "[^"]+"',  # noqa: S608
    re.DOTALL,
)


def is_plain_read(sql: str) -> bool:
    """Whether ``sql`` is a SELECT that calls only names known to write nothing, as most queries are."""
    if sql[:7] not in ("SELECT ", "select ") or ";" in sql or "--" in sql or "/*" in sql or "into" in sql.lower():
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
        effects, defines, count = {Effect("known", name) for name in NEVER_FUNCTIONS}, False, 1
    known = frozenset(effect for effect in effects if effect.verb == "known")
    # SQLite stores no functions.
    return Reading(frozenset(effects) - known, defines, count > 1, known if vendor != "sqlite" else frozenset())


def read_body(text: str, vendor: str = "") -> frozenset[Effect]:
    """Return the effects of a function, a trigger or a rule with this text."""
    try:
        return frozenset(_Statement(tokens(text, vendor), vendor, is_body=True).scan())
    except Unclear:
        return frozenset({ANYTHING})


def read_call(name: str) -> Reading:
    """Return the effects of calling a function or procedure from outside."""
    return Reading(frozenset({Effect("run", bare(name))}))


def _copied(sql: str) -> Effect | None:
    """Return the effect of SQLite's schema editor copying a table; ``None`` for other texts."""
    copy = _COPY.fullmatch(sql) if sql.startswith("INSERT INTO") else None
    if copy is None:
        return None
    names, values = _split(copy["columns"]), _split(copy["values"])
    if len(names) != len(values):
        return None
    kept = frozenset(name.strip('"').lower() for name, value in zip(names, values) if name == value)
    return Effect("copy", copy["name"].lower(), kept)


def _split(text: str) -> list[str]:
    """Split a list at its commas, but not at those in brackets and quotes."""
    parts, start, depth = [], 0, 0
    for found in re.finditer(r"""'(?:[^']|'')*'|"[^"]*"|[(),]""", text):
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == "," and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def _statements(found: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Split a text at its semicolons, but not at those in the body of a routine."""
    start = 0
    ends = [*(place for place, token in enumerate(found) if token == (MARK, ";")), len(found)]
    for number, end in enumerate(ends):
        if end < start:
            continue
        words = [token.value for token in found[start : start + 8] if token.kind == WORD]
        if words[:1] == ["create"] and {"trigger", "function", "procedure"} & set(words):
            inner = found[start:end]
            if (WORD, "begin") in inner:  # a SQLite trigger or a standard SQL body: up to the last END
                later = [other for other in ends[number:] if (WORD, "end") in found[max(0, other - 3) : other]]
                end = later[-1] if later else end
        yield found[start:end]
        start = end + 1


class _Statement(Definition):
    """A reader of one statement, or of the body of a routine."""

    def __init__(self, found: Sequence[Token], vendor: str, *, is_body: bool = False) -> None:
        super().__init__(found)
        self.vendor = vendor
        self.is_body = is_body
        self.effects: set[Effect] = set()

    def read(self, start: int = 0) -> tuple[set[Effect], bool]:
        """Return the effects of the statement that begins at ``start``, and whether it is a definition."""
        at = start
        while self.mark(at) == "(":
            at += 1
        if at >= len(self.found):
            return set(), False
        head = self.word(at)
        if head == "explain":
            return (self.scan(at + 1), False) if self.has("analyze", "analyse") else (set(), False)
        if head == "begin" and self.word(at + 1) not in TRANSACTIONS and at + 1 < len(self.found):
            return self.scan(at), False
        if self.vendor == "mysql" and self.word(at + 1) == "statement" and self.has("for"):
            return _Statement(self.found[self.found.index(Token(WORD, "for")) + 1 :], self.vendor).read()
        if self.vendor == "mysql" and (head in ("analyze", "set") or self.has("atomic")):
            return self.scan(at), False  # ANALYZE INSERT, SET @a = f(), BEGIN NOT ATOMIC INSERT
        if head in ("commit", "end", "rollback", "xa") and self.has("prepared"):
            return {ANYTHING}, False
        if head in HARMLESS:
            return set(), False
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

    def add(self, verb: str, name: str, columns: frozenset[str] | None = None) -> None:
        """Add an effect on ``name``."""
        known = name and not _SYSTEM_TABLES.fullmatch(name)
        self.effects.add(Effect(verb, name, columns) if known else ANYTHING)

    # -- writes and calls anywhere in a statement

    def scan(self, start: int = 0) -> set[Effect]:
        """Return each write and call from ``start`` on, also in CTEs, loops and branches."""
        target = ""
        for at in range(start, len(self.found)):
            word = self.word(at)
            if not word or self.mark(at - 1) == ".":
                continue
            before = self.word(at - 1)
            if word in ("insert", "replace"):
                target = self._insert(at) or target
            elif word == "update":
                self._update(at, target)
            elif word == "delete" and (before not in ("then", "on", "or") or self.word(at + 1) == "from"):
                self._delete(at)
            elif word == "merge" and self.word(at + 1) == "into":
                target, _ = self.name(at + 2)
                for verb in ("insert", "update", "delete"):
                    self.add(verb, target)
            elif word == "copy" and (at == start or self.is_body):
                self._copy(at)
            elif word == "truncate" and (at == start or self.is_body):
                self._truncate(at)
            elif word == "into" and before not in BEFORE_INTO:
                self._into(at)
            elif self.is_body:
                self._in_body(at, word)
        self.calls(start)
        return self.effects

    def _insert(self, at: int) -> str:
        place, replaces = at + 1, self.word(at) == "replace"
        while self.word(place) in MODIFIERS:
            replaces |= self.word(place) == "replace"
            place += 1
        if self.word(place) == "into":
            place += 1
        elif self.vendor in ("postgresql", "sqlite") or self.token(place).kind == MARK or place >= len(self.found):
            return ""  # of a MERGE, or a function
        name, _ = self.name(place)
        self.add("insert", name)
        if replaces:
            self.add("delete", name)
        return name

    def _update(self, at: int, target: str) -> None:
        before = self.word(at - 1)
        if before == "for" or (before == "key" and self.word(at - 2) == "no"):
            return  # a lock
        if before == "key" or self.word(at + 1) == "set":  # ON DUPLICATE KEY, ON CONFLICT, MERGE
            if target:
                self.add("update", target, self._assigned(at + 1) if before == "do" else None)
            else:
                self.add("", "")
            return
        place = at + 1
        replaces = self.word(place) == "or" and self.word(place + 1) == "replace"
        place = self.skip(place, MODIFIERS)
        name, place = self.name(place)
        between, set_at = [name], place
        while set_at < len(self.found) and self.word(set_at) != "set" and self.mark(set_at) != ";":
            if self.found[set_at].kind != MARK:
                between.append(self.found[set_at].value.lower())
            set_at += 1
        if self.word(set_at) != "set":
            return  # a column, or an alias, of that name
        several = {"join", ","} & {token.value for token in self.found[place:set_at]}  # MySQL's
        for each in between if several else [name]:
            self.add("update", each, self._assigned(set_at))
        if replaces:
            self.add("delete", name)

    def _assigned(self, set_at: int) -> frozenset[str] | None:
        """Return the columns that the assignments after SET name; ``None`` if that is not certain."""
        columns, depth, at = set[str](), 0, set_at
        while at < len(self.found):
            mark = self.mark(at)
            if mark in ("(", "["):
                depth += 1
            elif mark in (")", "]"):
                depth -= 1
                if depth < 0:
                    break
            elif mark == ";":
                break
            if at == set_at or (mark == "," and depth == 0):
                found = self._assignment(at + 1)
                if found is None and at == set_at:
                    return None
                columns |= found or set()
            at += 1
        return None if self.vendor == "sqlite" and columns & _ROWID else frozenset(columns)

    def _assignment(self, at: int) -> set[str] | None:
        """Return the columns from ``at`` to the equals sign; ``None`` if they cannot be read."""
        columns, depth, start = set[str](), 0, at
        while at < len(self.found):
            token = self.found[at]
            if token.kind == MARK:
                if token.value in ("=", ":=") and depth == 0:
                    return columns
                depth += (token.value in "([") - (token.value in ")]")
                if token.value not in "().,[]:" and not token.value.isdigit():
                    return None
                if token.value == "," and depth == 0:
                    return None
            elif depth == 0 and self.found[at - 1].kind != MARK and at > start:
                return None  # two adjacent words are no column
            else:
                columns.add(token.value.lower())
            at += 1
        return None

    def _delete(self, at: int) -> None:
        place = self.skip(at + 1, (*MODIFIERS, "quick"))
        if self.word(place) == "from":
            place += 1
        elif self.vendor in ("postgresql", "sqlite"):
            return
        name, place = self.name(place)
        self.add("delete", name)
        while self.vendor not in ("postgresql", "sqlite") and self.mark(place) == ",":
            name, place = self.name(place + 1)
            self.add("delete", name)

    def _copy(self, at: int) -> None:
        if self.mark(at + 1) == "(":
            return  # a query, which the scan reads
        name, place = self.name(self.skip(at + 1, ("binary",)))
        while place < len(self.found) and self.word(place) not in ("from", "to"):
            place += 1
        if self.word(place) != "to":
            self.add("insert", name)

    def _truncate(self, at: int) -> None:
        place = self.skip(at + 1, ("table",))
        while True:
            name, place = self.name(place)
            self.add("delete", name)
            place += self.mark(place) in ("*", ")")
            if self.mark(place) != ",":
                break
            place += 1

    def _into(self, at: int) -> None:
        """Read a SELECT ... INTO: a new table, or variables of a routine."""
        place = self.skip(at + 1, ("strict", "temp", "temporary", "local", "global", "unlogged", "table"))
        while True:
            name, place = self.name(place)
            if name:
                self.add("insert", name)
            if self.mark(place) != ",":
                break
            place += 1

    def _in_body(self, at: int, word: str) -> None:
        if word == "execute":
            self.effects.add(ANYTHING)  # its text is made at run time
        elif word == "call":
            self._call(at + 1)
        elif word == "refresh":
            self._refresh(at + 1)
        elif word in ("alter", "create", "drop", "do", "load", "import"):
            end = next((place for place in range(at, len(self.found)) if self.mark(place) == ";"), len(self.found))
            did, _ = _Statement(self.found[at:end], self.vendor).read()
            self.effects |= did

    def calls(self, start: int) -> None:
        """Add each name that is followed by a bracket and is no keyword of SQL."""
        for at in range(start, len(self.found) - 1):
            if self.mark(at + 1) == "(" and self.found[at].kind in (WORD, NAME):
                name = self.found[at].value
                is_known = self.found[at].kind == WORD and name in NEVER_FUNCTIONS and self.mark(at - 1) != "."
                self.effects.add(Effect("known" if is_known else "call", name))

    # -- other statements

    def _call(self, at: int) -> None:
        name, _ = self.name(at)
        self.add("run", name)
        self.calls(at)

    def _do(self, at: int) -> None:
        texts = [token for token in self.found[at:] if token.kind == TEXT]
        if self.vendor == "mysql":
            self.calls(at)
        elif len(texts) != 1 or (self.has("language") and not self.has("plpgsql")):
            self.effects.add(ANYTHING)
        else:
            self.effects |= read_body(texts[0].value, self.vendor)

    def _refresh(self, at: int) -> None:
        name, _ = self.name(self.skip(at, ("materialized", "view", "concurrently")))
        self.add("insert", name)

    def _pragma(self, at: int) -> None:
        name, place = self.name(at)
        if name not in PRAGMAS and (self.mark(place) or name == "writable_schema"):
            self.effects.add(ANYTHING)

    def _rename(self, at: int) -> None:
        for token in self.found[at:]:
            if token.kind != MARK and token not in ((WORD, "table"), (WORD, "to")):
                self.add("insert", token.value.lower())

    def _load(self, at: int) -> None:
        for place in range(at, len(self.found)):
            if self.word(place) == "into":
                name, _ = self.name(self.skip(place + 1, ("table",)))
                self.add("insert", name)
