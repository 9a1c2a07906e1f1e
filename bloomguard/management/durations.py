"""How long something takes, as people write it on a command line."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError


def seconds(text: str) -> float:
    """``90s``, ``30m``, ``1h`` or ``7d`` in seconds."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no time; write a number with s, m, h or d, as in 30m or 1h")
    return int(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[found[2]]
