"""The effects of one statement, read from its tokens: which tables it writes, which functions it calls.

A statement that begins with a word of :data:`SCANNED` writes what it names after INTO, UPDATE, DELETE and the like,
and nothing else. Of a definition every table counts that it may fill, whatever the details are. All other statements
are :data:`ANYTHING`. When in doubt a guard is fenced: that costs a rebuild, while a missed write costs a false 404.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .tokens import ANEW, MARK, NAME, TEXT, UNKNOWN, WORD, Token, Tokens, bare, routine, tokens
from .words import (
    BEFORE_KIND,
    BEFORE_NEW,
    BEFORE_TABLE,
    EXTENSIONS,
    KEEPING,
    KEEPING_COLUMN,
    KINDS,
    LEADING,
    NEVER_FUNCTIONS,
    RELATIONS,
    REPLACING,
    ROWID,
    SCANNED,
    SYSTEM_TABLES,
    UPSERTING,
)


class Effect(NamedTuple):
    """One effect of a statement on a table, whose ``name`` is :func:`bare`, or of a function.

    - ``insert``: ``name`` has new rows, or names another table now. ``delete``: rows are deleted.
    - ``truncate``: all rows are, and those of the tables that refer to it; no other trigger fires.
    - ``update``: rows change in ``columns``, ``None`` for any. ``alter``: the same by an ALTER TABLE, without triggers.
    - ``made``: on SQLite, an empty table is made with the name that the schema editor gives to the copy of a table.
      ``copy``: such a table is filled, and keeps the values of ``columns``. ``swap``: it takes the place of ``name``.
    - ``call``: a function is called. ``run``: a procedure. ``known``: a function that is known to write nothing, unless
      the database has one of that name. ``field``: ``x.name`` on PostgreSQL, which may call a function of that name.
    - ``define``: views, triggers, constraints and the like may change, or, if it is named ``table``, there is only a
      new table or something is gone.
    - ``any``: the effects are unknown.
    """

    verb: str
    name: str = ""
    columns: frozenset[str] | None = None


ANYTHING = Effect("any")
#: A ``field`` whose name is not known.
ANY_FIELD = Effect("field")
DEFINE = Effect("define")
DEFINE_TABLE = Effect("define", "table")


def split(found: Iterable[Token], mark: str) -> Iterator[list[Token]]:
    """Split at commas outside brackets, or at all semicolons: the body of a routine counts as further statements."""
    part, depth = list[Token](), 0
    for token in found:
        if token.kind == MARK and (mark == ";" or depth == 0) and token.value == mark:
            if part:
                yield part
            part, depth = [], 0
            continue
        part.append(token)
        if token.kind == MARK:
            depth += (token.value == "(") - (token.value == ")")
    if part:
        yield part


class Statement(Tokens):
    """A reader of one statement, or of the body of a routine, in which statements may begin anywhere."""

    def __init__(self, found: Sequence[Token], vendor: str, *, is_body: bool = False) -> None:
        super().__init__(found)
        self.vendor = vendor
        self.is_body = is_body
        self._start = next((at for at, token in enumerate(found) if token != (MARK, "(")), len(found))
        self.head = self.word(self._start)
        self.effects: set[Effect] = set()

    def add(self, verb: str, names: Iterable[str], columns: frozenset[str] | None = None) -> None:
        """Add an effect on each of ``names``; on anything for an empty one, and for a table of the system."""
        for name in names:
            is_table = name not in ("", UNKNOWN) and not SYSTEM_TABLES.fullmatch(name)
            self.effects.add(Effect(verb, name, columns) if is_table else ANYTHING)

    def read(self) -> set[Effect]:
        """Return the effects of the statement."""
        at, head = self._start, self.head
        if (copied := self._copied()) is not None:
            self.effects.add(copied)
        elif head in _SPECIAL:
            _SPECIAL[head](self, at + 1)
        elif head in SCANNED and not self._is_block(head, at + 1):
            self.is_body = head in LEADING
            self.scan(at)
        elif at < len(self.found):
            self.effects |= {ANYTHING, DEFINE}
        return self.effects

    def _is_block(self, head: str, at: int) -> bool:
        """Whether statements of any kind may follow, or a prepared transaction is committed."""
        if head in ("begin", "declare") and self.vendor == "mysql":
            return len(self.found) > at + 1  # BEGIN, or with WORK or TRANSACTION after it, begins a transaction
        return head in ("commit", "rollback") and self.has("prepared")

    def _copied(self) -> Effect | None:
        """Return the effect of SQLite's schema editor copying a table; ``None`` for another statement."""
        if self.vendor != "sqlite" or self.token(2).kind != NAME or self.mark(3) != "(":
            return None
        table, end = self.found[2].value, self._end(3)
        source = Token(NAME, table.removeprefix(ANEW))
        if (
            not table.startswith(ANEW)
            or (self.word(0), self.word(1), self.word(end + 1)) != ("insert", "into", "select")
            or list(self.found[-2:]) != [(WORD, "from"), source]
            or self.found.count(Token(WORD, "from")) > 1
        ):
            return None
        names = list(split(self.found[4:end], ","))
        values = list(split(self.found[end + 2 : -2], ","))
        kept = (name[0].value for name, value in zip(names, values) if name == value and len(name) == 1)
        return Effect("copy", source.value, frozenset(kept)) if len(names) == len(values) else None

    # -- writes and calls anywhere in a statement

    def scan(self, start: int = 0) -> set[Effect]:
        """Return each write and call from ``start`` on, also in CTEs, loops and branches."""
        targets = set[str]()
        for at in range(start, len(self.found)):
            word, before = self.word(at), self.word(at - 1)
            if not word:
                continue
            if word == "into" or (word in ("insert", "replace") and self.vendor == "mysql"):
                targets |= self._target(at)
            elif word == "update":
                self._update(at, targets)
            elif word == "delete" and before != "on":
                self._delete(at)
            elif at == start or self.is_body:
                self._begins(at, word)
        self.add("insert", targets)
        if self.has(*UPSERTING):
            self.add("update", targets)
        if self.has(*REPLACING):
            self.add("delete", targets)
        self.calls(start)
        return self.effects

    def _target(self, at: int) -> set[str]:
        """Return the table after INTO, or after an INSERT or REPLACE without it; none for a function or a variable."""
        name, place = self.name(at + 1)
        if self.word(at) == "into" and not name and self.mark(at + 1) not in ("@", ":"):
            self.effects.add(ANYTHING)  # a query, for example
        found = {name}
        while name in BEFORE_TABLE and self.token(place).kind != MARK:  # a table may have such a name, too
            name, place = self.name(place)
            found.add(name)
        return found - {"", "into"}

    def _update(self, at: int, targets: Iterable[str]) -> None:
        before = self.word(at - 1)
        if before == "on" or (before == "key" and self.word(at - 2) == "no"):
            return  # the action of a foreign key, the event of a trigger, or a lock. Nothing is SET after FOR UPDATE.
        if before == "key" or self.word(at + 1) == "set":  # of an INSERT or a MERGE
            if not targets:
                self.effects.add(ANYTHING)
            return
        tables, place = self.names(at + 1, "set")  # with joined tables, and words around them
        if self.word(place) != "set":
            return  # a column, or an alias, of that name
        self.add("update", tables or [""], self._assigned(place + 1))
        if "replace" in tables:
            self.add("delete", tables)
        if "portion" in tables:  # the rows' other portions are new rows
            self.add("insert", tables)

    def _assigned(self, at: int) -> frozenset[str] | None:
        """Return the columns that are assigned from ``at`` on, up to WHERE; ``None`` if that is not certain."""
        columns, names, depth = set[str](), set[str](), 0
        is_left = True  # of the equals sign
        for kind, value in self.found[at:]:
            depth += (value in ("(", "[")) - (value in (")", "]")) if kind == MARK else 0
            if depth < 0 or (depth == 0 and (kind, value) in ((MARK, ";"), (WORD, "where"))):
                break
            if depth == 0 and kind == MARK and value in ("=", ":="):
                columns |= names
                is_left = False
            elif depth == 0 and (kind, value) == (MARK, ","):
                names, is_left = set(), True
            elif is_left and value == UNKNOWN:
                return None
            elif is_left and kind != MARK:
                names.add(value.lower())
        return None if not columns or (self.vendor == "sqlite" and columns & ROWID) else frozenset(columns)

    def _delete(self, at: int) -> None:
        tables, _ = self.names(at + 1, "where", "returning")
        self.add("delete", tables)
        if "portion" in tables:
            self.add("insert", tables)

    def _begins(self, at: int, word: str) -> None:
        """Read what is a statement only where one may begin."""
        if word == "copy":
            self._copy(at)
        elif word == "truncate":
            self.add("truncate", self.names(at + 1)[0])
        elif word == "merge" and self.word(at + 1) != "into":
            self.effects.add(ANYTHING)
        elif word in ("exec", "execute", "import"):
            self.effects.add(ANYTHING)  # the text of the first two is made at run time
        elif word == "do" and self.word(at + 1) in ("nothing", "update", "also", "instead"):
            pass  # of ON CONFLICT, or of a rule
        elif word in _SPECIAL and self.is_body:
            end = self.names(at)[1]
            self.effects |= Statement(self.found[at:end], self.vendor).read()

    def _copy(self, at: int) -> None:
        if self.mark(at + 1) == "(":
            return  # a query, which the scan reads
        tables, place = self.names(at + 1, "from", "to")
        if self.word(place) != "to":
            self.add("insert", tables or [""])

    def calls(self, start: int) -> None:
        """Add each name that is followed by a bracket and is no keyword of SQL. SQLite stores no functions."""
        if self.vendor == "sqlite":
            return
        for at in range(start, len(self.found) - 1):
            if self.mark(at + 1) == "(" and self.found[at].kind in (WORD, NAME):
                name = self.found[at].value
                is_known = self.found[at].kind == WORD and name in NEVER_FUNCTIONS
                self.effects.add(Effect("known" if is_known else "call", routine(name, self.vendor)))
                self._calls_package(at)
            elif self.mark(at + 1) == "(" and self.mark(at) == UNKNOWN:
                self.effects.add(ANYTHING)
            elif self.vendor == "postgresql" and self.mark(at) == "." and self.found[at + 1].kind != MARK:
                self.effects.add(Effect("field", self.found[at + 1].value))

    def _calls_package(self, at: int) -> None:
        """Add what stands before a routine's name on MariaDB: a package is called as a whole."""
        while self.vendor == "mysql" and self.mark(at - 1) == ".":
            at -= 2
            self.effects.add(Effect("call", routine(self.token(at).value, self.vendor)))

    def _end(self, at: int) -> int:
        """Return the place of the bracket that closes the one at ``at``; past the end if there is none."""
        return self.names(at + 1)[1]

    # -- definitions

    def create(self, at: int) -> None:
        """Read a CREATE from the word after it."""
        is_plain = self.vendor == "sqlite" and self.word(at) == "table"
        at = self.skip(at, BEFORE_KIND)
        kind = self.word(at)
        is_apart = kind == "table" and not self.has("partition", "inherits", "references")
        self.effects.add(DEFINE_TABLE if is_apart else DEFINE)
        name, place = self.name(self.after(at + 1, "if", "not", "exists"))
        if kind in ("table", "view"):
            self.scan(place)  # a WITH may write
            if self.word(at - 1) == "foreign":  # its rows are also those of a table that it names
                self.add("insert", self.names(at + 1)[0])
            elif self._is_empty_table(place):
                if is_plain and place == at + 2 and self.token(at + 1).value.startswith(ANEW):
                    self.add("made", [name])
            else:
                self.add("insert", [name])
                if self.has("execute"):
                    self.effects.add(ANYTHING)  # a prepared statement
        elif kind == "index":
            self.calls(at)
        elif kind == "extension":
            if name not in EXTENSIONS:
                self.effects.add(ANYTHING)
        elif kind not in KINDS or (kind == "schema" and (WORD, "create") in self.found[at:]):
            self.effects.add(ANYTHING)

    def _is_empty_table(self, at: int) -> bool:
        """Whether what follows the name of a table is one list of columns and constraints, and nothing else."""
        is_list = self.mark(at) == "(" and self._end(at) == len(self.found) - 1
        return is_list and not self.has("select", "table", "values", start=at)  # a WITH has one of them, too

    def alter(self, at: int) -> None:
        """Read an ALTER from the word after it."""
        self.effects.add(DEFINE)
        at = self.skip(at, BEFORE_KIND)
        if self.word(at) not in RELATIONS:
            self.effects.add(ANYTHING)
            return
        self.calls(at)
        table, place = self.name(self.after(self.after(at + 1, "if", "exists"), "only"))
        for action in split(self.found[place:], ","):
            self._alteration(table, action)

    def _alteration(self, table: str, action: Sequence[Token]) -> None:
        """Read one action of an ALTER TABLE."""
        first = action[0].value if action[0].kind == WORD else ""
        names = [bare(token.value) for at, token in enumerate(action) if token.kind != MARK or _is_name(action, at)]
        if first == "alter" and not KEEPING_COLUMN.isdisjoint(pairwise(names[2:5])):  # COLUMN may be left out
            return
        if first in ("add", "alter", "change", "modify"):
            columns = self._altered(action)
            self.add("alter", [table], columns)
        elif first == "rename":  # the table, or a column or an index of it
            is_swap = self.vendor == "sqlite" and names[1:] == ["to", table]
            self.add("insert", (name for name in names if self.vendor != "sqlite" or name != table))
            self.add("swap", [table] if is_swap else [])
            self.add("alter", [table], frozenset(names))
        elif first not in KEEPING:
            self.add("insert", [table, *names])

    @staticmethod
    def _altered(action: Sequence[Token]) -> frozenset[str] | None:
        """Return the columns after ADD, ALTER, MODIFY or CHANGE; ``None`` for any. A constraint counts as a column."""
        left, columns = (2 if action[0].value == "change" else 1), set[str]()
        for kind, value in action[1:]:
            if kind == MARK:
                break
            columns.add(value.lower())
            left -= (kind, value) not in ((WORD, "column"), (WORD, "if"), (WORD, "not"), (WORD, "exists"))
            if not left:
                return frozenset(columns)
        return None

    def drop(self, at: int) -> None:
        """Read a DROP from the word after it. SQLite deletes a table's rows first."""
        self.effects.add(DEFINE_TABLE)
        self.add("delete", self.names(at)[0])

    def fill(self, at: int) -> None:
        """Read a statement that may fill, empty or rename each table that it names."""
        if self.word(at - 1) == "rename":
            self.effects.add(DEFINE)
        self.calls(at)
        for verb in ("insert", "delete"):
            self.add(verb, self.names(at)[0])

    # -- other statements

    def attach(self, at: int) -> None:
        """Read an ATTACH of SQLite: the file may have triggers."""
        self.effects.add(DEFINE)

    def call(self, at: int) -> None:
        """Read a CALL from the word after it."""
        name, end = self.name(at)
        self.add("run", [name])
        self._calls_package(end - 1)
        self.calls(at)

    def do(self, at: int) -> None:
        """Read a DO: on PostgreSQL a text in some language, elsewhere expressions."""
        texts = [token for token in self.found[at:] if token.kind == TEXT]
        if self.vendor == "mysql":
            self.calls(at)
        elif len(texts) != 1 or (self.has("language") and not self.has("plpgsql")):
            self.effects.add(ANYTHING)
        else:
            self.effects |= Statement(tokens(texts[0].value, self.vendor), self.vendor, is_body=True).scan()

    def pragma(self, at: int) -> None:
        """Read a PRAGMA: no other one changes what a table has. SQLite ignores those that it does not know."""
        if any(value in ("writable_schema", "schema_version") for _, value in self.found[at:]):
            self.effects.add(ANYTHING)


def _is_name(action: Sequence[Token], at: int) -> bool:
    """Whether a placeholder stands for a name, and not for a value, as that of an option."""
    return action[at].value == UNKNOWN and at > 0 and action[at - 1].value in BEFORE_NEW


_SPECIAL = {
    "alter": Statement.alter,
    "attach": Statement.attach,
    "call": Statement.call,
    "create": Statement.create,
    "do": Statement.do,
    "drop": Statement.drop,
    "load": Statement.fill,
    "pragma": Statement.pragma,
    "refresh": Statement.fill,
    "rename": Statement.fill,
}
