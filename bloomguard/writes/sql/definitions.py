"""The effects of CREATE, ALTER and DROP on rows: most have none, a few fill whole tables."""

from __future__ import annotations

from .effects import ANYTHING, Effect
from .tokens import MARK, Tokens
from .words import COLUMN_SETTINGS, KINDS, TABLE_SETTINGS


class Definition(Tokens):
    """A statement that changes definitions."""

    effects: set[Effect]
    vendor: str

    def add(self, verb: str, name: str, columns: frozenset[str] | None = None) -> None:
        """Add an effect on ``name``."""
        raise NotImplementedError

    def calls(self, start: int) -> None:
        """Add the functions that are called from ``start`` on."""
        raise NotImplementedError

    def drop(self, at: int) -> None:
        """Read a DROP from the word after it."""
        if self.vendor != "sqlite" or self.word(at) != "table":
            return
        name, _ = self.name(self.skip(at + 1, ("if", "exists")))  # SQLite deletes its rows first
        self.add("delete", name)

    def create(self, at: int) -> None:
        """Read a CREATE from the word after it."""
        kind_at = next((place for place in range(at, min(at + 8, len(self.found))) if self.word(place) in KINDS), -1)
        kind = self.word(kind_at)
        if kind in ("materialized", "foreign") and self.word(kind_at + 1) in ("view", "table"):
            kind, kind_at = "view", kind_at + 1
        if kind in ("", "subscription") or (kind == "schema" and Tokens(self.found[kind_at:]).has("create")):
            self.effects.add(ANYTHING)
        if kind not in ("table", "view"):
            return
        self.calls(kind_at)
        name, place = self.name(self.skip(kind_at + 1, ("if", "not", "exists")))
        if kind == "view" or "virtual" in (self.word(at), self.word(at + 1)):
            self.add("insert", name)
            return
        depth = 0
        for later in range(place, len(self.found)):
            depth += (self.mark(later) == "(") - (self.mark(later) == ")")
            if depth == 0 and self.word(later) in ("as", "select"):
                self.add("insert", name)

    def alter(self, at: int) -> None:
        """Read an ALTER from the word after it."""
        kind_at = self.skip(at, ("foreign", "materialized"))
        kind = self.word(kind_at)
        if kind in ("schema", "extension") or kind not in KINDS or (kind == "type" and self.has("rename", "schema")):
            self.effects.add(ANYTHING)
        if kind not in ("table", "view"):
            return
        self.calls(kind_at)
        name, place = self.name(self.skip(kind_at + 1, ("if", "exists", "only")))
        place += self.mark(place) in ("*", ")")
        depth, starts = 0, [place]
        for later in range(place, len(self.found)):
            depth += (self.mark(later) == "(") - (self.mark(later) == ")")
            if depth == 0 and self.mark(later) == ",":
                starts.append(later + 1)
        for start in starts:
            self._alteration(name, start)

    def _alteration(self, table: str, at: int) -> None:
        """Read one action of an ALTER TABLE."""
        first, second = self.word(at), self.word(at + 1)
        if first == "add":
            if second in ("constraint", "primary", "unique", "foreign", "check", "exclude", "index", "key", "value"):
                return
            column = self.token(self.skip(at + 1, ("column", "if", "not", "exists")))
            self.add("alter", table, frozenset({column.value.lower()}) if column.kind != MARK else None)
        elif first in ("alter", "modify", "change"):
            place = self.skip(at + 1, ("column",))
            if first == "alter" and self._sets_nothing(place + 1):
                return
            columns = {token.value.lower() for token in self.found[place : place + 1 + (first == "change")]}
            self.add("alter", table, frozenset(columns))
        elif first == "rename":
            if second in ("to", "as"):
                name, _ = self.name(at + 2)
                if name != table:  # else it is SQLite's schema editor, whose copy was read before
                    self.add("insert", name)
            elif second not in ("constraint", "index", "key"):
                place = self.skip(at + 1, ("column",))
                self.add("alter", table, frozenset({self.token(place + 2).value.lower()}))
        elif first == "inherit":
            name, _ = self.name(at + 1)
            self.add("insert", name)
        elif first == "set" and (
            second in ("tablespace", "logged", "unlogged", "without", "with", "access") or not second
        ):
            return
        elif first not in TABLE_SETTINGS and not (first == "not" and second == "of"):
            self.add("insert", table)
            for token in self.found[at:]:  # two tables swap names
                if first == "exchange" and token.kind != MARK:
                    self.add("insert", token.value.lower())

    def _sets_nothing(self, at: int) -> bool:
        """Whether an ALTER COLUMN keeps the values."""
        first, second = self.word(at), self.word(at + 1) or self.mark(at + 1)
        return first in ("drop", "add", "reset", "restart") or (first == "set" and second in COLUMN_SETTINGS)
