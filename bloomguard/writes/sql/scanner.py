"""The writes and calls anywhere in a statement, or in the body of a routine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .definitions import Definition
from .effects import ANYTHING, Effect
from .tokens import MARK, NAME, WORD, Token
from .words import BEFORE_INTO, MODIFIERS, NEVER_FUNCTIONS

#: Statements in the body of a routine that are read as outside of it.
_BEGINNINGS = frozenset({"alter", "create", "drop", "do", "load", "import"})
#: Databases where a query cannot contain an EXECUTE.
_PREPARING_APART = frozenset({"postgresql", "sqlite", "mysql"})
#: SQLite's names for the primary key that every table has.
_ROWID = frozenset({"rowid", "oid", "_rowid_"})
_SYSTEM_TABLES = re.compile(
    r"sqlite_(?:temp_)?(?:master|schema)|pg_(?:class|attribute|enum|namespace|inherits|rewrite|depend)"
)


class Scanner(Definition):
    """A reader of one statement from end to end."""

    def __init__(self, found: Sequence[Token], vendor: str, *, is_body: bool = False) -> None:
        super().__init__(found)
        self.vendor = vendor
        #: Whether statements of any kind may begin anywhere.
        self.is_body = is_body
        self.effects: set[Effect] = set()

    def read(self) -> tuple[set[Effect], bool]:
        """Return the effects of the statement, and whether it is a definition."""
        raise NotImplementedError

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
            elif word == "merge" and at == start:
                self.effects.add(ANYTHING)
            elif word == "copy" and (at == start or self.is_body):
                self._copy(at)
            elif word == "truncate" and (at == start or self.is_body):
                self._truncate(at)
            elif word == "into" and before not in BEFORE_INTO:
                self._into(at)
            elif self.is_body:
                self._in_body(at, word)
            elif word in ("exec", "execute") and self.vendor not in _PREPARING_APART:
                self.effects.add(ANYTHING)
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
        if before == "on":
            return  # the action of a foreign key, or the event of a trigger
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
        has_more = set_at - place > 2  # than an alias, so it may be a join, as MySQL and MariaDB have them
        for each in between if has_more or self.mark(place) == "," else [name]:
            self.add("update", each, self._assigned(set_at))
        if self.follows("for", "portion"):
            self.add("insert", name)  # of the rows' other portions
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
        while True:
            name, place = self.name(place)
            self.add("delete", name)
            if self.follows("for", "portion"):
                self.add("insert", name)  # of the rows' other portions
            place += self.mark(place) == "*"  # of `a.*`
            if self.vendor in ("postgresql", "sqlite") or self.mark(place) != ",":
                return
            place += 1

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
        elif word == "do" and self.word(at + 1) in ("nothing", "update", "also", "instead"):
            return  # of ON CONFLICT, or of a rule
        elif word in _BEGINNINGS or (word == "rename" and self.vendor == "mysql"):
            end = next((place for place in range(at, len(self.found)) if self.mark(place) == ";"), len(self.found))
            did, _ = type(self)(self.found[at:end], self.vendor).read()
            self.effects |= did

    def calls(self, start: int) -> None:
        """Add each name that is followed by a bracket and is no keyword of SQL."""
        for at in range(start, len(self.found) - 1):
            if self.mark(at + 1) == "(" and self.found[at].kind in (WORD, NAME):
                name = self.found[at].value
                is_known = self.found[at].kind == WORD and name in NEVER_FUNCTIONS and self.mark(at - 1) != "."
                self.effects.add(Effect("known" if is_known else "call", name))
            elif self.vendor == "postgresql" and self.mark(at) == "." and self.found[at + 1].kind != MARK:
                self.effects.add(Effect("field", self.found[at + 1].value))

    def _call(self, at: int) -> None:
        name, _ = self.name(at)
        self.add("run", name)
        self.calls(at)

    def _refresh(self, at: int) -> None:
        name, _ = self.name(self.skip(at, ("materialized", "view", "concurrently")))
        self.add("insert", name)
