"""Checks unrolled into source and compiled, for a loop would take twice their time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any


def compile_check(argument: str, names: dict[str, Any], *lines: str) -> Callable[[Any], bool]:
    """A check of ``argument`` whose body is ``lines``, which know ``names``.

    A closure's names are found without a look-up in a dictionary. The source is made of a kind's own expressions and
    of integers.
    """
    body = "\n".join(f"  {line}" for line in lines)
    return _made(f"def make({', '.join(names)}):\n def check({argument}):\n{body}\n return check")(**names)


@lru_cache(maxsize=64)  # the shards of a generation all have the same source
def _made(source: str) -> Callable[..., Callable[[Any], bool]]:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    make: Callable[..., Callable[[Any], bool]] = namespace["make"]
    return make
