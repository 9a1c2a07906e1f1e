"""Real processes beside the tests': ``python -m tests.child rebuild_filter product``.

In the environment, ``BLOOMGUARD_STOP`` names a step, ``module:Class.method``: the process says ``reached`` before that
step and waits there for whatever the test does to it. ``BLOOMGUARD_HASTE`` takes the waiting out of a rebuild.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import time
from typing import Any


def stop_before(step: str) -> None:
    """Make the process halt the first time that it comes to ``step``."""
    module, _, path = step.partition(":")
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    original = getattr(owner, name)
    reached: list[int] = []

    @functools.wraps(original)
    def halted(*args: Any, **kwargs: Any) -> Any:
        if not reached:
            reached.append(1)
            free: list[int] = []
            signal.signal(signal.SIGUSR1, lambda *received: free.append(1))  # lets it go on
            print("reached", flush=True)
            while not free:
                time.sleep(0.01)  # signal.pause() waits for ever if the signal comes just before it
        return original(*args, **kwargs)

    setattr(owner, name, halted)


def main() -> None:
    import django

    django.setup()
    from django.core.management import execute_from_command_line

    if os.environ.get("BLOOMGUARD_HASTE"):
        from bloomguard import rebuild

        rebuild.SETTLE_SECONDS = 0.0
    if os.environ.get("BLOOMGUARD_STOP"):
        stop_before(os.environ["BLOOMGUARD_STOP"])
    execute_from_command_line(["manage.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
