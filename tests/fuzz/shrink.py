"""Leaves out steps of a program that fails, as long as it fails."""

from __future__ import annotations

from typing import Any, NamedTuple

from .programs import Program

#: So many tries at most.
MOST_TRIES = 150


class Shrunk(NamedTuple):
    program: Program
    error: str
    explained: list[str]


def shrunk(machine: Any, program: Program) -> Shrunk | None:
    """The shortest that was found to fail too, with every statement of it; ``None`` if it does not fail again."""
    from .machine import Wrong

    def error_of(steps: Program, explain: bool = False) -> str:
        try:
            machine.run(steps, explain)
        except Wrong as error:
            return str(error)
        return ""

    if not error_of(program):
        return None
    tries, size = 0, len(program) // 2
    while size and tries < MOST_TRIES:
        start = 0
        while start < len(program) and tries < MOST_TRIES:
            tries += 1
            less = program[:start] + program[start + size :]
            if less and error_of(less):
                program = less
            else:
                start += size
        size //= 2
    error = error_of(program, explain=True)
    return Shrunk(program, error, machine.explained)
