"""What the clients ask for: IDs that don't exist, all distinct, among some that do. Knows nothing of Django."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ABSENT_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """IDs in the order in which they are asked for; `exists[i]` is 1 where `ids[i]` is a real one."""

    ids: "array[int]"
    exists: bytes

    def split(self, count: int) -> "tuple[Traffic, Traffic]":
        """The first `count` requests, and the rest."""
        return (
            Traffic(ids=self.ids[:count], exists=self.exists[:count]),
            Traffic(ids=self.ids[count:], exists=self.exists[count:]),
        )

    def share(self, part: int, parts: int) -> "Traffic":
        """One client's part: no two parts have an absent ID in common."""
        return Traffic(ids=self.ids[part::parts], exists=self.exists[part::parts])


def draw_traffic(ids: Sequence[int], populations: Sequence[int], count: int, *, seed: int) -> Traffic:
    """`count` requests, the same for the same seed. `ids` ascend; their cities are asked for by population."""
    rng = random.Random(seed)
    absent = round(count * ABSENT_SHARE)
    weights = [population + 1 for population in populations]
    requests = [(id_, 0) for id_ in absent_ids(ids, absent, rng)]
    requests += [(id_, 1) for id_ in rng.choices(ids, weights, k=count - absent)]
    rng.shuffle(requests)
    return Traffic(ids=array("Q", [id_ for id_, _ in requests]), exists=bytes(exists for _, exists in requests))


def absent_ids(ids: Sequence[int], count: int, rng: random.Random) -> list[int]:
    """`count` distinct numbers that aren't in `ids` (ascending) but are spread as they are.

    Each lies in the gap behind a real ID that was drawn evenly: where real ones are dense, these are dense.
    So neither the range nor the distribution tells an attacker's ID from a visitor's.
    """
    real = set(ids)
    absent: dict[int, None] = {}
    while len(absent) < count:
        position = rng.randrange(len(ids) - 1)
        candidate = rng.randint(ids[position], ids[position + 1])
        if candidate not in real:
            absent[candidate] = None
    return list(absent)
