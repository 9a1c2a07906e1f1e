"""What a statement may do, in words that the text, the catalogue and the guards share.

Names are bare: in lower case, without quotes and schema.
"""

from __future__ import annotations

from typing import NamedTuple

#: SQLite's schema editor makes a table anew under its name with this in front.
ANEW = "new__"


class Effect(NamedTuple):
    """One thing that a statement does.

    ``insert``: ``name`` has new rows, or is another table now. ``update``: rows change in ``columns``, where ``None``
    stands for any; ``nulls``: they become NULL. ``delete``: rows go. ``copy``: SQLite's schema editor makes a table
    anew, and ``columns`` go over as they are. ``call``: a function is called, ``run``: a procedure. ``set``: a trigger
    changes its own row. ``any``: nobody can tell.
    """

    verb: str
    name: str = ""
    columns: frozenset[str] | None = None
    nulls: bool = False


ANYTHING = Effect("any")


class Reading(NamedTuple):
    """What a text does; ``defines``: views, triggers, constraints and the like may be others after it.

    ``several``: it is more than one statement.
    """

    effects: frozenset[Effect]
    defines: bool = False
    several: bool = False


NOTHING = Reading(frozenset())


def bare(table: str) -> str:
    """A table's name as effects have it; it may be given with quotes and a schema, and be SQLite's for one to be."""
    name = table.replace('"', "").replace("`", "").rpartition(".")[2].lower()
    return name.removeprefix(ANEW)
