"""One algorithm for threads and for event loops.

It is a generator: each step yields what it waits for, a function of a *waiter*, and goes on with what came of it.
:func:`run` does the steps in a thread, :func:`arun` awaits them in a task, each with a waiter of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Step = Callable[[Any], Any]
Steps = Generator[Step, Any, Any]


def run(steps: Steps, waiter: Any) -> Any:
    """Run the steps in this thread, to their result."""
    try:
        step = next(steps)
        while True:
            try:
                done = step(waiter)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        return end.value


async def arun(steps: Steps, waiter: Any) -> Any:
    """Run the steps in this task, to their result."""
    try:
        step = next(steps)
        while True:
            try:
                done = await step(waiter)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        return end.value
