"""Count the calls of bloomguard's functions during a request and a write: ``python -m tests.support.ways``.

Runs on SQLite with the file store, when everything is loaded. For each of them it prints the number of calls, the
number of files, and how often a call is in another file than the call before it; ``-v`` lists the calls.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

#: Runs before the one whose calls are counted.
WARM = 300


class Way(NamedTuple):
    """The calls of one run, in order: the file within the package, and the function."""

    calls: list[tuple[str, str]]

    @property
    def files(self) -> list[str]:
        """The files, in the order in which they are first entered."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def changes(self) -> int:
        """How often a call is in another file than the call before it."""
        return sum(one[0] != other[0] for one, other in zip(self.calls, self.calls[1:]))


def way_of(action: Callable[[], object]) -> Way:
    """Return the calls of one run of ``action``, after the runs that warm it up."""
    import bloomguard

    root = str(Path(bloomguard.__file__).parent) + "/"
    calls: list[tuple[str, str]] = []
    shown: dict[CodeType, tuple[str, str] | None] = {}

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in shown:
            file = code.co_filename
            ours = file.startswith(root) or file == "<string>"  # a filter's check is compiled
            name = getattr(code, "co_qualname", code.co_name)  # of Python 3.11 and later
            shown[code] = (file.removeprefix(root), name) if ours else None
        if (found := shown[code]) is not None:
            calls.append(found)

    for _ in range(WARM):
        action()
    gc.disable()  # what earlier tests left would be finalized in between, by calls of its own
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return Way(calls)


def main() -> None:
    from bench.requests import GUARDED, LOOKUP, ROUTE, fill, handler, requests, set_up

    with tempfile.TemporaryDirectory() as name:
        set_up(Path(name), {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{name}/db.sqlite3"})
        fill()
        from tests.shop.models import Product

        handle = handler(GUARDED)
        numbers = iter(range(1_000_000, 2_000_000))
        ways = {
            f"{what} at the {where}": partial(requests(handle, path % "", status), pk)
            for where, path in (("route", ROUTE), ("lookup", LOOKUP))
            for what, status, pk in (("blocked", "404", 4), ("passed", "200", 7))
        }
        ways["INSERT"] = lambda: Product(pk=next(numbers), name="new").save(force_insert=True)
        for what, action in ways.items():
            way = way_of(action)
            print(f"{what}: {len(way.calls)} calls in {len(way.files)} files, {way.changes} changes of file")
            if "-v" in sys.argv:
                for file, function in way.calls:
                    print(f"    {file}: {function}")


if __name__ == "__main__":
    main()
