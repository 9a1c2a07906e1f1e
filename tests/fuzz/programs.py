"""Programs: steps drawn from a seed. A step is who, what, and a seed for all that is drawn in it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

Step = tuple[int, str, int]
Program = list[Step]

#: What a step may be, and how often.
WRITES = {
    "create": 8, "save": 7, "save_fields": 5, "copy": 3, "get_or_create": 4, "bulk_create": 8, "bulk_update": 4,
    "update": 9, "update_many": 6, "delete": 5, "delete_many": 4, "through": 6, "related": 5, "migration": 3,
    "fixture": 2, "asynchronous": 1, "several": 5, "kept_on": 3, "raw": 5, "known": 2,
    "move": 3,
}  # fmt: skip
TRANSACTIONS = {"enter": 5, "leave": 9, "savepoint": 4, "by_hand": 5, "autocommit": 1.5, "finish": 1, "read": 1}
OTHERS = {
    "alter": 0.3, "lookup": 6, "both": 1, "rebuild": 3.5, "back": 2, "fence": 0.5, "restart": 1.5, "dump": 1,
    "restore": 0.5, "drop": 0.3,
}  # fmt: skip
_ALL = {**WRITES, **TRANSACTIONS, **OTHERS}
_NESTED = {**WRITES, "enter": 6, "leave": 9, "by_hand": 3}


def program(seed: int, length: int) -> Program:
    """Rows and filters, then ``length`` steps; most of them are one thread's."""
    draw = Random(seed)
    first: Program = [(0, "plant", draw.getrandbits(30)), (0, "rebuild_all", draw.getrandbits(30))]
    names = draw.choices(list(_ALL), list(_ALL.values()), k=length)
    return first + [(int(draw.random() < 0.25), name, draw.getrandbits(30)) for name in names]


def nested(draw: Random, length: int) -> Iterator[Step]:
    """Steps for the time of a rebuild."""
    for name in draw.choices(list(_NESTED), list(_NESTED.values()), k=length):
        yield int(draw.random() < 0.5), name, draw.getrandbits(30)
