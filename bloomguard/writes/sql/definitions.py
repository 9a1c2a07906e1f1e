"""The effects of CREATE, ALTER and DROP on rows: most have none, a few fill whole tables.

An ALTER is known to have none only if all of its words are read. Else its effects are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from .effects import ANYTHING, Effect
from .tokens import MARK, Token, Tokens
from .words import (
    ALTERED,
    BEFORE_KIND,
    COLUMN_SETTINGS,
    EXTENSIONS,
    KINDS,
    RELATIONS,
    TABLE_SETTINGS,
    UNEXPECTED,
)


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

    def scan(self, start: int = 0) -> set[Effect]:
        """Add each write and call from ``start`` on."""
        raise NotImplementedError

    def drop(self, at: int) -> None:
        """Read a DROP from the word after it."""
        if self.vendor != "sqlite" or self.word(at) != "table":
            return
        name, _ = self.name(self.after(at + 1, "if", "exists"))  # SQLite deletes its rows first
        self.add("delete", name)

    def _kind(self, at: int) -> tuple[str, int]:
        """Return what is created or altered, empty if that is not certain, and its place."""
        while True:
            if self.word(at) in ("algorithm", "definer") and self.mark(at + 1) == "=":
                at += 3
                while self.mark(at) in ("@", "(", ")"):  # of 'user'@'host' and CURRENT_USER()
                    at += 1 + (self.mark(at) == "@")
            elif self.word(at) == "sql" and self.word(at + 1) == "security":
                at += 3
            elif self.word(at) in BEFORE_KIND and self.word(at + 1) != "data":
                at += 1
            else:
                return (self.word(at) if self.word(at) in KINDS else ""), at

    # -- CREATE

    def create(self, at: int) -> None:
        """Read a CREATE from the word after it."""
        kind, kind_at = self._kind(at)
        name, place = self.name(self.after(kind_at + 1, "if", "not", "exists"))
        if (
            kind in ("", "subscription")
            or (kind == "schema" and Tokens(self.found[kind_at + 1 :]).has("create"))
            or (kind == "extension" and name not in EXTENSIONS)
        ):
            self.effects.add(ANYTHING)
        elif kind == "index":
            place = next((each for each in range(place, len(self.found)) if self.mark(each) == "("), place)
            self.calls(place + 1)
        elif kind == "view":
            self.calls(kind_at)
            self.add("insert", name)
        elif kind == "table":
            self._create_table(name, place)
            if self.word(at) == "foreign":  # PARTITION OF or INHERITS: its rows are the parent's too
                self._insert_all(kind_at + 1)
            elif "virtual" in (self.word(at), self.word(at + 1)):
                self.add("insert", name)

    def _create_table(self, name: str, start: int) -> None:
        self.scan(start)  # a WITH may write
        depth = 0
        for at in range(start, len(self.found)):
            depth += (self.mark(at) == "(") - (self.mark(at) == ")")
            word = self.word(at)
            if (
                word == "select"
                or (depth == 0 and (word == "as" or (word == "values" and self.word(at - 1) != "for")))
                or self._is_other_engine(at)
            ):
                self.add("insert", name)
            if depth == 0 and word == "execute":
                self.effects.add(ANYTHING)  # a prepared statement

    def _is_other_engine(self, at: int) -> bool:
        """Whether an ENGINE at ``at`` is not InnoDB: it may show rows that are elsewhere, or keep those of an error."""
        if self.vendor != "mysql" or self.word(at) != "engine":
            return False
        return self.token(at + 1 + (self.mark(at + 1) == "=")).value.lower() != "innodb"

    def _insert_all(self, start: int, end: int | None = None) -> None:
        for token in self.found[start:end]:
            if token.kind != MARK:
                self.add("insert", token.value.lower())

    # -- ALTER

    def alter(self, at: int) -> None:
        """Read an ALTER from the word after it."""
        kind, kind_at = self._kind(at)
        if kind in RELATIONS:
            if kind in ("table", "view") or self.has("rename", "schema"):
                self._alter_relation(kind_at)
        elif kind == "domain":
            self.calls(kind_at)
        elif kind == "type":
            self._alter_type(kind_at)
        elif kind not in ALTERED or (kind == "user" and self.word(kind_at + 1) == "mapping"):
            self.effects.add(ANYTHING)

    def _alter_type(self, kind_at: int) -> None:
        _, place = self.name(kind_at + 1)
        first, second = self.word(place), self.word(place + 1) or self.mark(place + 1)
        if first != "owner" and (first, second) not in (("add", "value"), ("set", "(")):
            self.effects.add(ANYTHING)  # tables may have it for their rows

    def _alter_relation(self, kind_at: int) -> None:
        self.calls(kind_at)
        name, place = self.name(self.after(self.after(kind_at + 1, "if", "exists"), "only"))
        place += self.mark(place) in ("*", ")")
        if self.vendor == "mysql" and self.word(place) in ("wait", "nowait"):
            place += 1 + (self.word(place) == "wait")
        depth, start = 0, place
        for later in range(place, len(self.found) + 1):
            depth += (self.mark(later) == "(") - (self.mark(later) == ")")
            if later == len(self.found) or (depth == 0 and self.mark(later) == ","):
                self._alteration(name, start, later)
                start = later + 1

    def _alteration(self, table: str, at: int, end: int) -> None:
        """Read one action of an ALTER TABLE, up to ``end``."""
        first = self.word(at)
        if first == "add":
            if not self._adds_no_column(at + 1):
                place = self.after(self.after(at + 1, "column"), "if", "not", "exists")
                self._alter_columns(table, [self.token(place)])
        elif first in ("alter", "modify", "change"):
            place = self.after(self.after(at + 1, "column"), "if", "exists")
            if first != "alter" or not self._sets_nothing(place + 1):
                self._alter_columns(table, self.found[place : place + 1 + (first == "change")])
        elif first == "rename":
            self._rename_part(table, at + 1, end)
        elif first == "convert":
            self._convert(table, at + 1, end)
        elif first == "inherit":
            name, _ = self.name(at + 1)
            self.add("insert", name)
        elif not self._is_setting(at) or self._is_other(at, end):
            self.add("insert", table)
            self._insert_all(at, end)  # as two tables swap names

    def _is_setting(self, at: int) -> bool:
        """Whether an action begins like one that keeps all rows and values."""
        first, second = self.word(at), self.word(at + 1) or self.mark(at + 1)
        if first == "set":
            return second in ("(", "tablespace", "logged", "unlogged", "without", "with", "access")
        return first in TABLE_SETTINGS or (first == "not" and second == "of")

    def _is_other(self, at: int, end: int) -> bool:
        """Whether what begins like a setting of a table may be something else."""
        words = {self.word(place) for place in range(at + 1, end)}
        return bool(words & UNEXPECTED) or any(self._is_other_engine(place) for place in range(at, end))

    def _adds_no_column(self, at: int) -> bool:
        """Whether an ADD is one of a constraint or an index; these words may also be names of columns."""
        first, second = self.word(at), self.word(at + 1) or self.mark(at + 1)
        if first in ("constraint", "primary", "unique", "foreign", "check", "not"):
            return True
        if first == "exclude":
            return second in ("using", "(")
        return self.vendor not in ("postgresql", "sqlite") and first in ("index", "key", "fulltext", "spatial")

    def _alter_columns(self, table: str, columns: Sequence[Token]) -> None:
        """Add a change of ``columns``; of any column, if one of them is no name."""
        named = columns and all(token.kind != MARK and token.value for token in columns)
        self.add("alter", table, frozenset(token.value.lower() for token in columns) if named else None)

    def _rename_part(self, table: str, at: int, end: int) -> None:
        """Read what follows RENAME: another name for the table, or for a column or an index of it."""
        if self.word(at) in ("to", "as") or self.mark(at) == "=":
            at += 1
        name, place = self.name(at)
        if place == end and name:
            if name != table:  # else it is SQLite's schema editor, whose copy was read before
                self.add("insert", name)
            return
        kind = "column"
        if end - at > 3 and self.word(at) in ("column", "constraint", "index", "key"):  # else it is a column's name
            kind, at = self.word(at), self.after(at + 1, "if", "exists")
        new = self.token(at + 2)
        if end - at != 3 or self.word(at + 1) != "to" or MARK in (self.token(at).kind, new.kind):
            self.effects.add(ANYTHING)
        elif kind == "column":
            self._alter_columns(table, [new])

    def _convert(self, table: str, at: int, end: int) -> None:
        """Read what follows CONVERT: another character set, or a partition that becomes a table, or the reverse."""
        if self.word(at) == "partition" and self.word(at + 2) == "to" and self.word(at + 3) == "table":
            name, place = self.name(at + 4)
            if name and place == end:
                self.add("insert", name)
                return
        elif self.word(at) == "to" and self.word(at + 1) in ("character", "charset"):
            self.add("insert", table)
            return
        elif self.word(at) == "table":
            self.add("insert", table)
            self._insert_all(at, end)
            return
        self.effects.add(ANYTHING)

    def _sets_nothing(self, at: int) -> bool:
        """Whether an ALTER COLUMN keeps the values."""
        first, second = self.word(at), self.word(at + 1) or self.mark(at + 1)
        return first in ("drop", "add", "reset", "restart") or (first == "set" and second in COLUMN_SETTINGS)
