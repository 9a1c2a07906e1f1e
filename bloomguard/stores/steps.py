"""Drivers that run one algorithm in a thread or in a task of an event loop.

The algorithm is a generator. Each step yields a function that takes a *waiter*, an object with sync or async methods;
the driver calls it and sends its result back. :func:`run` drives a generator in a thread, :func:`arun` in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Step = Callable[[Any], Any]
Steps = Generator[Step, Any, Any]


def run(steps: Steps, waiter: Any) -> Any:
    """Run the steps in this thread and return the generator's return value."""
    raised: BaseException | None = None
    try:
        step = next(steps)
        while True:
            try:
                done = step(waiter)
            except BaseException as error:
                raised = error
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        return end.value
    except RuntimeError as error:
        if isinstance(raised, StopIteration) and error.__cause__ is raised:
            raise raised from None  # a generator cannot let it through as it is
        raise


async def arun(steps: Steps, waiter: Any) -> Any:
    """Run the steps in this task and return the generator's return value."""
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
