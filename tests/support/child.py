"""Real processes beside the tests': ``python -m tests.support.child rebuild_filter product``.

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
from collections.abc import Callable
from typing import Any

#: Where a rebuild can be stopped, in their order.
STEPS = {
    "announcing": "bloomguard.rebuild:Rebuild._name_generation",
    "sweeping": "bloomguard.rebuild.standby:sweep",
    "waiting": "bloomguard.rebuild:Rebuild.wait_for_writers",
    "scanning": "bloomguard.rebuild.source:Source._fetch",
    "adding": "bloomguard.filters.codec:Frame.seal",
    "sealing": "bloomguard.stores.file:FileGeneration.seal",
    "measuring": "bloomguard.stores.memory:FrameGeneration.measure_error_rate",
    "publishing": "bloomguard.rebuild:Rebuild._publish",
    "retiring": "bloomguard.rebuild:Rebuild.retire",
}


def patch_step(step: str, wrapper: Callable[..., Any]) -> None:
    """Let ``wrapper(original, *arguments)`` stand for ``step``, which is ``module:Class.method``."""
    module, _, path = step.partition(":")
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    original = getattr(owner, name)
    # A function, not a partial: it has to bind as a method does.
    setattr(owner, name, functools.wraps(original)(lambda *args, **kwargs: wrapper(original, *args, **kwargs)))


def stop_before(step: str) -> None:
    """Make the process halt the first time that it comes to ``step``."""
    reached: list[int] = []

    def halted(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not reached:
            reached.append(1)
            free: list[int] = []
            signal.signal(signal.SIGUSR1, lambda *received: free.append(1))  # lets it go on
            print("reached", flush=True)
            while not free:
                time.sleep(0.01)  # signal.pause() waits for ever if the signal comes just before it
        return original(*args, **kwargs)

    patch_step(step, halted)


def main() -> None:
    import django

    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a suite that runs in the background ignores
    django.setup()
    from django.core.management import execute_from_command_line

    if os.environ.get("BLOOMGUARD_HASTE"):
        from bloomguard.rebuild import rebuild

        rebuild.EXPIRY_SECONDS = 0.0
    if os.environ.get("BLOOMGUARD_STOP"):
        stop_before(os.environ["BLOOMGUARD_STOP"])
    execute_from_command_line(["manage.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
