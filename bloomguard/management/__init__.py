"""The management commands, and what several of them share."""

from __future__ import annotations

import re
import signal
import sys
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from ..exceptions import BloomGuardError
from ..guards import Guard, registry
from ..rebuild.plan import EXPECTED, is_in_memory
from ..state.table import table


class JsonCommand(BaseCommand):
    """A command with the option ``--json``."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Convert texts among the keyword arguments of ``call_command()``, which Django passes on as they are."""
        for action in self.create_parser("manage.py", "")._actions:
            if callable(action.type) and isinstance(given := options.get(action.dest), str):
                try:
                    options[action.dest] = action.type(given)
                except (ArgumentTypeError, ValueError) as error:
                    raise CommandError(str(error)) from error
        return super().execute(*args, **options)


class GuardsCommand(JsonCommand):
    """A command on all guards, or the named ones; subclasses implement :meth:`run`, for the ``purpose`` in words.

    The errors in :data:`EXPECTED` are shown without a traceback, Ctrl-C with the text ``interrupted``. In
    ``call_command()``, signals do what they do in the program that calls it.
    """

    purpose = ""
    interrupted = "interrupted"
    #: Whether the command asks the guards' stores.
    asks_stores = True
    #: Whether success means that something was found to be right: without guards it fails. Others have nothing to do.
    is_proof = False
    _called_from_command_line: bool  # set by Django

    def add_arguments(self, parser: CommandParser) -> None:
        # Without a default, argparse lists it among the arguments that are missing.
        parser.add_argument(
            "names", nargs="*", default=(), metavar="name", help=f"guards to {self.purpose} (default: all)"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self._is_quiet = not options["verbosity"]
        self._is_verbose = not (self._is_quiet or options["json"])
        stopping = _stopped_as_by_ctrl_c() if self._called_from_command_line else nullcontext()
        try:
            with ExitStack() as self._bar, stopping:
                guards = [registry[name] for name in dict.fromkeys(options["names"])] or list(registry)
                if not guards:
                    none = f"there is no guard to {self.purpose}: register one in an app's guards.py"
                    if self.is_proof:
                        raise CommandError(none)
                    self.write(none)
                    if options["json"]:
                        self.stdout.write('{"guards": []}')
                    return
                if self.asks_stores and self._called_from_command_line:
                    guards = self._without_memory(guards, are_named=bool(options["names"]))
                self.run(guards, options)
        except EXPECTED as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            if not self._called_from_command_line:
                raise  # a loop that logs errors, and goes on, could not be stopped
            raise CommandError(self.interrupted, returncode=130) from None

    def _without_memory(self, guards: Sequence[Guard], *, are_named: bool) -> list[Guard]:
        """Leave out guards whose filters are in the memory of another process; raise if one is named, or none left."""
        left = [guard for guard in guards if is_in_memory(guard)]
        why = "is in the memory of one process, so a command of another one can neither read nor build its filter"
        if left and (are_named or len(left) == len(guards)):
            cure = "let the process of the site call call_command(), or use a FileStore or a RedisStore"
            raise CommandError(f"{left[0].name}: the store {left[0].store!r} {why}; {cure}")
        for guard in left:
            self.write(f"{guard.name}: left out: the store {guard.store!r} {why}")
        return [guard for guard in guards if guard not in left]

    def run(self, guards: Sequence[Guard], options: dict[str, Any]) -> None:
        """Do the work."""
        raise NotImplementedError

    def write(self, text: str) -> None:
        """Print ``text``, unless figures are printed as JSON, or ``--verbosity 0`` is given."""
        self._bar.close()
        if self._is_verbose:
            self.stdout.write(text)

    def progress(self, guard: Guard) -> Callable[[int, int], None]:
        """Return a function that shows progress, in a bar that closes the one before it."""
        bar: tqdm[Any] | None = None

        def show(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                self._bar.close()
                # `None` shows it on a terminal alone: cron would mail every step.
                off = True if self._is_quiet else None
                bar = tqdm(desc=guard.name, unit=" rows", unit_scale=True, disable=off, file=sys.stderr)
                self._bar.enter_context(bar)
            bar.total = total
            bar.update(done - bar.n)

        return show


class UrlsCommand(JsonCommand):
    """A command on the patterns of a URLconf; subclasses implement :meth:`run`."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--urlconf", type=_module, help="the URLconf (default: ROOT_URLCONF)")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.run(options)
        except (ImportError, ImproperlyConfigured) as error:
            urlconf = options["urlconf"] or settings.ROOT_URLCONF
            raise CommandError(f"there is no URLconf {urlconf!r}: {error}") from error
        except BloomGuardError as error:
            raise CommandError(str(error)) from error

    def run(self, options: dict[str, Any]) -> None:
        """Do the work."""
        raise NotImplementedError


def refuse_unmigrated() -> None:
    """Raise :class:`CommandError` if the database has no state rows. Raises :class:`DatabaseError`."""
    if missing := table.missing():
        raise CommandError(missing)


@contextmanager
def _stopped_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM, by which containers and systemd stop a process, end the block as Ctrl-C does: it cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers of signals in the main thread alone
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _module(text: str) -> str:
    if not all(map(str.isidentifier, text.split("."))):
        raise ArgumentTypeError(f"{text!r} is not the name of a module")
    return text


# Sleeps and dates overflow long after ten years.
def seconds(text: str, least: str = "1s", most: str = "3650d") -> float:
    """Convert ``90s``, ``30m``, ``1h`` or ``7d`` to seconds, from ``least`` to ``most``; for ``type=``."""
    if not _count(least) <= (given := _count(text)) <= _count(most):
        raise ArgumentTypeError(
            f"{text!r} is not a duration from {least} to {most}; write a number with s, m, h or d, as in 30m or 1h"
        )
    return given


def _count(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    return float(int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]) if found else 0.0


_EXACT = "exact for IDs of its range"


def room_in_words(kind: str, capacity: int, promised: float) -> str:
    """Return the number of keys that a filter is made for, and its error rate when it is full."""
    rate = f" at an error rate of {promised:g}" if kind != "bitmap" else f", {_EXACT}"
    return f"room for {capacity:,}{rate}"


def rate_in_words(kind: str, measured: float, promised: float) -> str:
    """Return the error rate of a filter, now and when it is full; a bitmap has one outside of its range only."""
    if kind == "bitmap":
        return _EXACT
    return f"error rate {measured * 100:.3g}% now, {promised * 100:.3g}% when full"


def by_reason(errors: Iterable[tuple[Guard, Exception]]) -> list[str]:
    """Return a line for each reason, with the guards that it stopped: a server that is down is the reason of all."""
    stopped: dict[str, list[str]] = {}
    for guard, error in errors:
        reason = str(error).removeprefix(f"{guard.name}: ")
        stopped.setdefault(reason, []).extend([guard.name] if reason != str(error) else [])
    return [f"{', '.join(names)}: {reason}" if names else reason for reason, names in stopped.items()]


def named(figures: Any) -> dict[str, Any]:
    """Return the fields of a dataclass about one guard for ``--json``, with ``name`` in place of ``guard``."""
    found = asdict(figures)
    return {"name": found.pop("guard"), **found}


def counted(count: int, noun: str = "row") -> str:
    """Return a number with its noun, such as ``1 row`` or ``1,234 rows``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def size_in_words(count: int) -> str:
    """Return a number of bytes as text, such as ``1.2 MiB``."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "bytes" else f"{count} bytes"
