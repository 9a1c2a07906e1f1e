"""The effects of a statement, as the parser, the catalogue and the guards exchange them.

Table names are bare: in lower case, without quotes and schema.
"""

from __future__ import annotations

from typing import NamedTuple

#: Prefix of the table that SQLite's schema editor fills with a copy of the rows.
ANEW = "new__"


class Effect(NamedTuple):
    """One effect of a statement.

    ``insert``: ``name`` has new rows, or names another table now. ``update``: rows change in ``columns``, ``None`` for
    any; ``nulls``: they become NULL. ``alter``: the same by an ALTER TABLE, which fires no trigger. ``delete``: rows
    are deleted. ``copy``: SQLite's schema editor copies a table and keeps the values of ``columns``. ``call``: a
    function is called, ``run``: a procedure. ``known``: something is called that is known to write nothing, if
    it is not the database's own. ``field``: ``x.name`` on PostgreSQL, which calls a function of that name if ``x`` is a
    row without such a column. ``any``: the effects are unknown.
    """

    verb: str
    name: str = ""
    columns: frozenset[str] | None = None
    nulls: bool = False


ANYTHING = Effect("any")
#: A ``field`` whose name is not known.
ANY_FIELD = Effect("field")


class Reading(NamedTuple):
    """The effects of a text; ``defines``: it may change views, triggers, constraints and the like.

    ``several``: it has more than one statement. ``known``: calls of names that write nothing, and fields, unless the
    database has a function of its own with that name.
    """

    effects: frozenset[Effect]
    defines: bool = False
    several: bool = False
    known: frozenset[Effect] = frozenset()


def bare(table: str) -> str:
    """Return a table's name without quotes, schema and the prefix of SQLite's schema editor, in lower case."""
    name = table.replace('"', "").replace("`", "").rpartition(".")[2].lower()
    return name.removeprefix(ANEW)
